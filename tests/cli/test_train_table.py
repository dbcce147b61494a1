"""`qkv train table.csv`: from a table to a model that says what it is worth, with the bundled encoder."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

import qkv
from qkv.run.folder import Run
from tests.support.cli import run_qkv, write_table

KINDS = {
    "billing": "invoice payment refund charge",
    "shipping": "parcel delivery courier late",
    "account": "password login email user",
}
FAST = ("--set", "train.steps=3", "--set", "runtime.threads=1")


def tickets(count: int, seed: int = 0) -> list[list[str]]:
    chance, rows = random.Random(seed), [["ticket_id", "message", "team"]]
    for number in range(count):
        team = list(KINDS)[number % 3]
        words = [
            *chance.choices(KINDS[team].split(), k=2),
            *chance.choices(["please", "help", "with", "my", "the", "now", "it", "is"], k=5),
        ]
        chance.shuffle(words)
        rows.append([str(1000 + number), " ".join(words), team])
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tables")
    write_table(made / "tickets.csv", tickets(60))
    ended = run_qkv(made, "train", "tickets.csv", *FAST)
    assert ended.code == 0, ended.err
    (made / "said.txt").write_text(ended.err)
    (made / "printed.txt").write_text(ended.out)
    return made


def test_columns_recipe_and_ladder_are_shown(folder: Path) -> None:
    said = (folder / "said.txt").read_text()
    assert "tickets.csv: 60 rows; text 'message', label 'team' (3 labels): classify" in said
    assert '  init = "bundled-encoder"' in said
    assert "`qkv models get minilm`" in said
    for rung in (
        "most frequent label",
        "TF-IDF + logistic regression",
        "frozen encoder + logistic regression",
        "fine-tuned",
    ):
        assert rung in said
    assert "fold 5 of 5" in said


def test_the_model_answers_and_its_card_says_what_it_is_worth(folder: Path) -> None:
    model = qkv.load(folder / "runs" / "tickets")
    labels = [one.label for one in model.predict(["refund of the invoice payment", "courier late with my parcel"])]
    assert labels == ["billing", "shipping"]
    card = (folder / "runs" / "tickets" / "README.md").read_text()
    assert "60 rows, each predicted by a model that was not trained on it (5-fold cross-validation)" in card
    assert (
        "## Baselines\n\nOn the same 60 rows (5-fold cross-validation):\n\n- most frequent label: accuracy 0." in card
    )
    assert "## Metrics by 5-fold cross-validation" in card
    verdict = r"(is better|No clear difference).*: accuracy [\d.]+ against [\d.]+ of TF-IDF"
    assert re.search(verdict, (folder / "printed.txt").read_text())
    assert re.search(verdict, card.split("##")[0])
    found = json.loads((folder / "runs" / "tickets" / "comparison.json").read_text())
    assert [rung["score"] > 0.8 for rung in found["rungs"]] == [False, True, True, True]


def test_the_same_command_resumes_and_the_card_stays(folder: Path) -> None:
    card = (folder / "runs" / "tickets" / "README.md").read_text()
    ended = run_qkv(folder, "train", "tickets.csv")
    assert ended.code == 0, ended.err
    assert "this run is already finished" in ended.err
    assert "cross-validation of the baselines" not in ended.err
    assert (folder / "runs" / "tickets" / "README.md").read_text() == card


def test_a_changed_table_is_refused_with_both_ways_out(folder: Path, tmp_path: Path) -> None:
    for name in ("runs", "tickets.csv"):
        (tmp_path / name).symlink_to(folder / name) if name == "runs" else write_table(tmp_path / name, tickets(63))
    ended = run_qkv(tmp_path, "train", "tickets.csv")
    assert ended.code == 2
    assert "the data has changed since this run was begun" in ended.err
    assert "`-o OTHER`" in ended.err
    assert "--set init=runs/tickets" in ended.err


def test_the_recipe_can_be_saved_edited_and_trained(folder: Path, tmp_path: Path) -> None:
    write_table(tmp_path / "tickets.csv", tickets(60))
    ended = run_qkv(tmp_path, "train", "tickets.csv", "--save-recipe", "mine.toml")
    assert (ended.code, Path(tmp_path, "runs").exists()) == (0, False), ended.err
    assert "qkv train mine.toml" in ended.err
    ended = run_qkv(tmp_path, "train", "mine.toml", *FAST)
    assert ended.code == 0, ended.err
    recipe = Run(tmp_path / "runs" / "mine").recipe
    assert recipe is not None
    assert (recipe.train.steps, recipe.train.fit_head, recipe.data.label) == (3, True, "team")


def test_a_separate_test_file_gives_the_figures(tmp_path: Path) -> None:
    write_table(tmp_path / "tickets.csv", tickets(60))
    write_table(tmp_path / "new.csv", tickets(45, seed=5))
    ended = run_qkv(tmp_path, "train", "tickets.csv", "--test", "new.csv", *FAST)
    assert ended.code == 0, ended.err
    assert "rows of a separate test set" in (tmp_path / "runs" / "tickets" / "README.md").read_text()


@pytest.mark.parametrize(
    ("rows", "words", "said"),
    [
        ([["text", "label"], ["a b", "x"], ["c d", "y"]], (), "2 different texts; at least 8 different texts"),
        ([["text", "label"], *[[f"word number {n}", "x"] for n in range(30)]], ("--label", "label"),
         "30 labels in the first rows, 1 of them different; a model needs at least two"),
        (tickets(30), ("--label", "team", "--text", "team"), "one column cannot be two of"),
        (tickets(30), ("--set", "init=5"), "init = 5: must be the name of a model"),
        ([["text", "label"], *[["the same text", "xy"[n % 2]] for n in range(30)]], (), "1 different texts; at least"),
        (tickets(30), ("--label", "squad"), "--label squad: table.csv has no such column"),
        (tickets(30), ("--set", "train.lr=1"), "train.learning_rate"),
        ([["a", "b"], *[[f"the text {n}", f"le texte {n}"] for n in range(30)]], (), "task = 'translate'"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_in_a_sentence(
    tmp_path: Path, rows: list[list[str]], words: tuple[str, ...], said: str
) -> None:
    write_table(tmp_path / "table.csv", rows)
    ended = run_qkv(tmp_path, "train", "table.csv", *words)
    assert ended.code == 2, ended.err
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "runs").exists()


def test_options_of_a_table_are_not_for_recipes(tmp_path: Path) -> None:
    ended = run_qkv(tmp_path, "train", "reviews-quick", "--label", "x")
    assert (ended.code, "--label is for a table" in ended.err) == (2, True)
    ended = run_qkv(tmp_path, "train", "nothere.csv")
    assert (ended.code, ended.err) == (2, "error: nothere.csv: no such file or folder\n")


def test_numbers_are_a_regression(tmp_path: Path) -> None:
    chance = random.Random(1)
    rows = [[f"{' good' * (n % 7)} film number {n}".strip(), f"{n % 7 + chance.random() / 3:.3f}"] for n in range(70)]
    write_table(tmp_path / "ratings.csv", [["text", "rating"], *rows])
    ended = run_qkv(tmp_path, "train", "ratings.csv", *FAST)
    assert ended.code == 0, ended.err
    assert "label 'rating' (numbers): regress" in ended.err
    assert "Pearson correlation" in ended.err
    low, high = (
        one.value
        for one in qkv.load(tmp_path / "runs" / "ratings").predict(
            ["film number 3", "good good good good good good film number 5"]
        )
    )
    assert low is not None
    assert high is not None
    assert high > low + 1


def test_more_rows_go_on_from_the_trained_model(folder: Path, tmp_path: Path) -> None:
    write_table(tmp_path / "more.csv", tickets(45, seed=9))
    ended = run_qkv(tmp_path, "train", "more.csv", "--set", f"init={folder / 'runs' / 'tickets'}", *FAST)
    assert ended.code == 0, ended.err
    assert "output layer taken from" in ended.err
    recipe = Run(tmp_path / "runs" / "more").recipe
    assert recipe is not None
    assert (recipe.train.pooling_layer, recipe.train.fit_head, recipe.model.layers) == (False, False, 4)


def test_the_same_command_with_settings_resumes(tmp_path: Path) -> None:
    """Also where the cross-validation has decided not to fine-tune."""
    write_table(tmp_path / "t.csv", tickets(30))
    for _ in range(2):
        ended = run_qkv(tmp_path, "train", "t.csv", *FAST)
        assert ended.code == 0, ended.err
    assert "already finished" in ended.err


def test_a_label_of_few_rows_is_no_error(tmp_path: Path) -> None:
    rows = [[f"word{n} text number {n}", "x" if n else "y"] for n in range(30)]
    write_table(tmp_path / "t.csv", [["text", "label"], *rows])
    ended = run_qkv(tmp_path, "train", "t.csv", *FAST)
    assert ended.code == 0, ended.err


def test_json_lines_may_hold_numbers_and_booleans_as_labels(tmp_path: Path) -> None:
    for name, values in (("numbers", (0, 1)), ("booleans", (True, False))):
        lines = [json.dumps({"id": n, "text": f"the text {n} is {n % 2}", "label": values[n % 2]}) for n in range(30)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        ended = run_qkv(tmp_path, "train", f"{name}.jsonl", "--save-recipe", f"{name}.toml")
        assert ended.code == 0, ended.err


def test_names_from_outside_do_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", [["te\x1b[31mxt", "label"], *[[f"text {n}", "ab"[n % 2]] for n in range(30)]])
    ended = run_qkv(tmp_path, "train", "t.csv", "--label", "nosuch")
    assert ended.code == 2
    assert "\x1b" not in ended.err
    assert "te\\x1b[31mxt" in ended.err


def test_a_recipe_is_never_written_over_a_file(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", tickets(30))
    before = (tmp_path / "t.csv").read_bytes()
    for name, said in (("t.csv", "already exists"), ("no/x.toml", "cannot be written")):
        ended = run_qkv(tmp_path, "train", "t.csv", "--save-recipe", name)
        assert (ended.code, said in ended.err) == (2, True), ended.err
    assert (tmp_path / "t.csv").read_bytes() == before


def test_runs_without_steps_are_verified_repaired_and_compared(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", tickets(30))
    ended = run_qkv(tmp_path, "train", "t.csv", "--save-recipe", "r.toml")
    ended = run_qkv(tmp_path, "train", "r.toml", "-o", "run", "--set", "train.steps=0", "--set", "train.epochs=0")
    assert ended.code == 0, ended.err
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    with (tmp_path / "run" / "README.md").open("a") as card:
        card.write("x")
    assert run_qkv(tmp_path, "verify", "run", "--repair").code == 0
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights
    assert run_qkv(tmp_path, "compare", "run", "run").code == 0
    ended = run_qkv(tmp_path, "eval", "run")
    assert (ended.code, "give other rows with --data FILE" in ended.err) == (2, True)


def test_labels_of_one_row_do_not_stop_a_table_that_is_split(tmp_path: Path) -> None:
    rows = [[f"word{n} text number {n}", "ab"[n % 2] if n >= 40 else f"rare {n}"] for n in range(1640)]
    write_table(tmp_path / "t.csv", [["text", "label"], *rows])
    ended = run_qkv(tmp_path, "train", "t.csv", *FAST)
    assert ended.code == 0, ended.err
    assert "validation and test rows have a label that no training row has and are left out" in ended.err
    assert run_qkv(tmp_path, "eval", "runs/t").code == 0
