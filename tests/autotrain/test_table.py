"""Columns, task and oddities of a table are found, or refused with the option that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qkv.autotrain.table import find_roles, table_facts
from qkv.corpus.files import Row
from qkv.schema import UserError
from tests.support.cli import write_table

ROWS = 60


def sentence(number: int) -> str:
    return f"message number {number} about the {('bill', 'parcel', 'login')[number % 3]}"


def table(folder: Path, **columns: Any) -> list[Path]:
    """A CSV; each column is a function of the row's number."""
    rows = [[str(make(number)) for make in columns.values()] for number in range(ROWS)]
    write_table(folder / "table.csv", [list(columns), *rows])
    return [folder / "table.csv"]


def kinds(number: int) -> str:
    return ("billing", "shipping", "account")[number % 3]


@pytest.mark.parametrize(
    ("columns", "task", "text", "pair", "label"),
    [
        ({"text": sentence, "label": kinds}, "classify", "text", None, "label"),
        ({"id": lambda n: n, "Message": sentence, "Team": kinds}, "classify", "Message", None, "Team"),
        ({"queue": kinds, "what the customer wrote": sentence}, "classify", "what the customer wrote", None, "queue"),
        ({"text": sentence, "label": lambda n: n % 2}, "classify", "text", None, "label"),
        ({"text": sentence, "stars": lambda n: 1 + n % 5}, "classify", "text", None, "stars"),
        ({"text": sentence, "price": lambda n: n * 1.37}, "regress", "text", None, "price"),
        ({"sentence1": sentence, "sentence2": lambda n: sentence(n + 1), "score": lambda n: n / 7}, "regress",
         "sentence1", "sentence2", "score"),
        ({"premise": sentence, "hypothesis": sentence, "label": kinds}, "classify", "premise", "hypothesis", "label"),
        ({"title": lambda n: f"case {n} of many", "body": lambda n: 3 * sentence(n), "label": kinds}, "classify",
         "body", None, "label"),
        ({"english": sentence, "french": lambda n: f"le message {n} est ici"}, "translate", "english", "french", None),
        ({"文": lambda n: f"这是第{n}条消息关于账单", "label": kinds}, "classify", "文", None, "label"),
    ],
)  # fmt: skip
def test_columns_and_task_are_found(
    tmp_path: Path, columns: dict[str, Any], task: str, text: str, pair: str | None, label: str | None
) -> None:
    roles = find_roles(table(tmp_path, **columns))
    assert (roles.task, roles.text, roles.pair, roles.label) == (task, text, pair, label)


def test_what_the_user_names_is_taken(tmp_path: Path) -> None:
    paths = table(tmp_path, text=sentence, note=sentence, label=kinds, other=lambda n: n % 2)
    roles = find_roles(paths, text="note", label="other")
    assert (roles.text, roles.label, roles.notes) == (
        "note",
        "other",
        ("text columns that are not read: text (--text, --pair)",),
    )


@pytest.mark.parametrize(
    ("columns", "named", "sentence_of_error"),
    [
        ({"text": sentence, "label": kinds}, {"label": "lable"}, "has no such column; did you mean label?"),
        ({"a": sentence, "b": kinds, "c": lambda n: n % 2}, {}, "which column is the label? b, c could be; name it:"),
        ({"text": sentence}, {}, "no label column found; columns: text."),
        ({"n": lambda n: n * 1.5, "label": kinds}, {}, "no column holds text; columns: n; name it: --text COLUMN"),
        ({"text": sentence, "label": lambda n: f"value {n}"}, {"label": "label"},
         "60 different values in 60 rows, so it is probably not a label"),
    ],
)  # fmt: skip
def test_what_cannot_be_found_is_asked_for(
    tmp_path: Path, columns: dict[str, Any], named: dict[str, str], sentence_of_error: str
) -> None:
    with pytest.raises(UserError) as error:
        find_roles(table(tmp_path, **columns), **named)
    assert sentence_of_error in str(error.value)


def facts(rows: list[tuple[str, str]]) -> Any:
    made = [(label, Row(text, None, label, None, f"t.csv, line {n}")) for n, (text, label) in enumerate(rows, 2)]
    return table_facts(made, "t.csv", classes=True)


def test_duplicates_and_contradictions_are_counted() -> None:
    found = facts([(f"text {n % 12}", "a" if n < 12 else "b") for n in range(20)])
    assert found.rows == 20
    assert "8 of 20 rows repeat the text of another row; they stay in one split" in found.notes
    assert "8 rows have the text of another row with another label" in found.notes


def test_odd_labels_are_named() -> None:
    found = facts([(f"text {n}", "spam" if n < 3 else "nan" if n < 5 else "ham") for n in range(100)])
    assert found.notes == (
        "label 'nan' (2 rows) looks like a missing value; it is trained as a class",
        "95% of the rows have the label 'ham'; accuracy says little, look at macro F1",
        "2 labels have fewer than 5 rows, too few to learn: spam, nan",
    )
    assert found.rarest_share == 0.02


def test_several_labels_in_a_cell_are_refused() -> None:
    with pytest.raises(UserError, match="holds several labels; a text has exactly one here"):
        facts([(f"text {n}", ("red", "blue", "red;blue", "blue;green")[n % 4]) for n in range(40)])
    assert (
        facts([(f"text {n}", ("Paris, France", "London")[n % 2]) for n in range(40)]).rows == 40
    )  # one comma is a name
