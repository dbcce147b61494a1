"""A table is written again with more columns: what it held is kept, in every format and between them."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
import math
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from qkv.corpus.files import Columns
from qkv.corpus.table_writer import Added, as_text, check_written, fresh_names, text_writer, write_table
from qkv.corpus.tables import MISSING, Table, is_table, open_table
from qkv.schema import UserError

TEXT = Columns(label=None)
ADDED = Added(["label", "p(a)"], frozenset({"p(a)"}))
ODD = st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
                                 st.sampled_from('",;\t|\n\r \u2028\u0085\'=')), max_size=12)  # fmt: skip


def opened(path: Path, content: str | bytes, columns: Columns = TEXT) -> Table:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return open_table(path, columns)


def cells(table: Table) -> list[list[Any]]:
    return [record for _, record in table.records()]


def written(table: Table, name: str, answers: list[list[Any]] | None = None) -> Path:
    path = table.path.with_name(name)
    rows = len(cells(table))
    write_table(path, path.suffix, table, ADDED, answers or [["a", 0.25]] * rows)
    return path


def test_csv_keeps_every_column_its_separator_and_the_mark_of_excel(tmp_path: Path) -> None:
    raw = '\ufeffid;text;id;note\n1;"a;""b""\nc";2;=1+1\n;;;\n'
    table = opened(tmp_path / "in.csv", raw)
    assert table.names == ["id", "text", "id", "note"]
    out = written(table, "out.csv", [["a", 0.25], [None, None]])
    assert out.read_text() == '\ufeffid;text;id;note;label;p(a)\n1;"a;""b""\nc";2;=1+1;a;0.25\n;;;;;\n'
    assert [place for place, _ in table.records()] == ["in.csv, line 2", "in.csv, line 4"]
    with pytest.raises(UserError, match=r"in.csv: column 'id' is there twice, which .jsonl cannot hold; write .csv"):
        written(table, "out.jsonl")


@given(st.lists(st.tuples(ODD, ODD, ODD), min_size=1, max_size=6), st.sampled_from(["csv", "tsv"]))
def test_what_is_written_reads_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], kind: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "tables"
    folder.mkdir(exist_ok=True)
    out = io.StringIO(newline="")
    csv.writer(out).writerows([("id", "text", "other"), *rows])
    table = opened(folder / "in.csv", out.getvalue())
    again = open_table(written(table, f"out.{kind}"), TEXT)
    assert again.names == ["id", "text", "other", "label", "p(a)"]
    assert cells(again) == [[*row, "a", "0.25"] for row in rows]


def test_json_lines_keep_types_and_keys_that_only_some_lines_have(tmp_path: Path) -> None:
    lines = ['{"text": "a", "n": 3, "x": 1.50, "deep": {"k": [1, null]}}', '{"late": true, "text": null}']
    table = opened(tmp_path / "in.jsonl", "\n\n".join(lines) + "\n")
    assert table.names == ["text", "n", "x", "deep", "late"]
    assert cells(table)[1] == [None, MISSING, MISSING, MISSING, True]
    out = written(table, "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in out] == [{**json.loads(line), "label": "a", "p(a)": 0.25} for line in lines]
    assert written(table, "out.csv").read_text().splitlines() == [
        "text,n,x,deep,late,label,p(a)", 'a,3,1.5,"{""k"": [1, null]}",,a,0.25', ",,,,true,a,0.25"
    ]  # fmt: skip
    found = parquet.read_table(written(table, "out.parquet"))
    assert found.column("n").to_pylist() == ["3", None]
    assert found.schema.field("p(a)").type == arrow.float64()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"text": "\\ud800"}', "in.jsonl, line 1: "),
        ('{"text": "a", "n": 1e999}', "in.jsonl, line 1: Out of range float values"),
        ("[1]", "in.jsonl, line 1: an array, not an object"),
        ('{"a": 1}', "in.jsonl: no column 'text'; known: a"),
    ],
)
def test_json_that_could_not_be_written_again_is_refused_at_once(tmp_path: Path, line: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        opened(tmp_path / "in.jsonl", line + "\n")
    assert sentence in str(error.value)


def test_parquet_stays_what_it_is_and_is_text_elsewhere(tmp_path: Path) -> None:
    when = datetime.datetime(2026, 1, 2, 3, 4, 5)
    given = arrow.table(
        {
            "text": arrow.array(["a", None], arrow.large_string()),
            "when": arrow.array([when, None], arrow.timestamp("ns")),
            "price": arrow.array([Decimal("1.50"), None]),
            "x": [math.nan, 3.0],
            "tags": [["u", "v"], []],
            "kind": arrow.array(["k", "k"]).dictionary_encode(),
        }
    )
    parquet.write_table(given, tmp_path / "in.parquet")
    table = open_table(tmp_path / "in.parquet", TEXT)
    found = parquet.read_table(written(table, "out.parquet"))
    assert found.drop_columns(["label", "p(a)"]).schema == given.schema
    assert str(found.drop_columns(["label", "p(a)", "x"]).to_pydict()) == str(given.drop_columns(["x"]).to_pydict())
    first, second = (json.loads(line) for line in written(table, "out.jsonl").read_text().splitlines())
    assert (first["price"], first["x"], first["tags"]) == ("1.50", None, ["u", "v"])
    assert first["when"].startswith("2026-01-02 03:04:05")
    assert (second["text"], second["x"], second["kind"]) == (None, 3.0, "k")
    assert written(table, "out.csv").read_text().splitlines()[2].startswith(",,,3.0,[],k,")
    numbers = arrow.table({"text": [1, 2]})
    parquet.write_table(numbers, tmp_path / "n.parquet")
    with pytest.raises(UserError, match="column 'text' holds int64, not strings"):
        open_table(tmp_path / "n.parquet", TEXT)


def test_gzip_plain_text_and_workbooks_are_tables_too(tmp_path: Path) -> None:
    table = opened(tmp_path / "in.tsv.gz", gzip.compress(b'text\tn\n"a\tb"\t1\n'))
    assert cells(table) == [["a\tb", "1"]]
    assert cells(opened(tmp_path / "in.txt", "one, two\r\n\nthree")) == [["one, two"], [""], ["three"]]
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for record in (["text", "n"], ["a", 3.0], ["b", "#N/A"]):
        book.active.append(record)
    book.save(tmp_path / "in.xlsx")
    assert cells(open_table(tmp_path / "in.xlsx", TEXT)) == [["a", "3"], ["b", "#N/A"]]
    with pytest.raises(UserError, match="row 3: column 'n' holds the error #N/A"):
        cells(open_table(tmp_path / "in.xlsx", Columns("n", label=None)))


def test_names_decide(tmp_path: Path) -> None:
    tables = ("a.csv", "a.CSV.gz", "b.tsv", "c.jsonl", "d.parquet", "e.xlsx", "f.zip")
    assert all(is_table(Path(name)) for name in tables)
    assert not any(is_table(Path(name)) for name in ("a.txt", "a.txt.gz", "a", "a.foo"))
    for name in ("a.CSV", "a.tsv", "a.jsonl", "a.parquet"):
        check_written(Path(name))
    with pytest.raises(UserError, match=r"a.xlsx: .* must end in one of .csv, .tsv, .jsonl, .ndjson, .parquet"):
        check_written(Path("a.xlsx"))
    with pytest.raises(UserError, match="cannot be read inside a zip"):
        open_table(Path(os.devnull).with_name("x.zip"), TEXT)


def test_new_names_never_collide() -> None:
    assert fresh_names(["label", "p(a)"], ["text"]) == ["label", "p(a)"]
    assert fresh_names(["label", "p(a)"], ["label"]) == ["predicted_label", "p(a)"]
    assert fresh_names(["label"], ["label", "predicted_label"]) == ["predicted_label_2"]
    assert fresh_names(["p(a)", "p(a)"], []) == ["p(a)", "predicted_p(a)"]


def test_a_cell_that_looks_like_a_formula_is_left_as_it_is() -> None:
    out = io.StringIO(newline="")
    text_writer(out, ".csv", ["label"]).write([["=1+1"], ["-1"], ["@x"], ["+1"]])
    assert out.getvalue() == "label\n=1+1\n-1\n@x\n+1\n"
    assert as_text("=cmd|'/C calc'!A0") == "=cmd|'/C calc'!A0"
