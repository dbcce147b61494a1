"""The model card opens in plain words, links only what is there, and shows text from outside as text."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch

import qkv
from qkv.config.recipe import Recipe
from qkv.export import export_hf
from qkv.training.comparison import BaselineComparison, Rung
from qkv.training.model_card import markdown
from qkv.training.trainer import open_trainer
from tests.support.cli import write_table

EVIL = "<img src=x> | [a](http://b.c) `x`"
SMALL = {
    "model": {"width": 16, "heads": 2, "layers": 1, "feedforward": 16, "positions": "rotary",
              "embedding_norm": True, "pooler": "gelu"},
    "tokenizer": {"vocab_size": 80},
    "train": {"epochs": 3, "batch_tokens": 512, "learning_rate": 5e-3, "warmup": 10},
    "runtime": {"threads": 1},
}  # fmt: skip


def table(folder: Path, rows: int, labels: tuple[str, str] = ("blue", EVIL)) -> Recipe:
    chance, lines = random.Random(2), [["text", "label"]]
    for number in range(rows):
        word = chance.choice(["rose", "sea"])
        lines.append([f"{number} the {word}", labels[word == "rose"]])
    write_table(folder / "table.csv", lines)
    return Recipe.read({"data": {"corpus": str(folder / "table.csv"), "length": 12}, **SMALL})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with more than 300 test rows, in a folder whose name is markup too."""
    folder = tmp_path_factory.mktemp("card")
    run = folder / "my_*run*"
    comparison = BaselineComparison((Rung("a linear model", 0.79, 0.5, (0.75, 0.83)),), 360, "accuracy", "test set")
    with open_trainer(table(folder, 3600), run, comparison=comparison) as trainer:
        list(trainer.reports())
        trainer.finish()
    return run


def test_the_first_paragraph_is_plain(run: Path) -> None:
    card = (run / "README.md").read_text()
    title, first, *_ = card.split("\n\n")
    assert title == r"# my\_\*run\*"
    wanted = (
        r"Right [\d.]+ times in 100 on \d{3} rows that it never saw \(95% interval [\d.]+ to [\d.]+\)\. "
        r"Always predicting '.*' would be right 5\d times\. "
        r"Its probabilities are off by (less than 1 point|1 point|\d+ points) on average\."
    )
    assert re.match(wanted, first), first
    assert "## Baselines\n\nOn the same 360 rows (test set):\n\n- a linear model: accuracy 0.790" in card
    assert "Temperature scaling (" in card
    assert "| blue | " in card


def test_every_picture_that_is_linked_is_there(run: Path, tmp_path: Path) -> None:
    links = re.findall(r"!\[.*?\]\((.*?)\)", (run / "README.md").read_text())
    assert links == ["curves.png", "reliability.png", "confusion.png"]
    for link in links:
        assert (run / link).read_bytes().startswith(b"\x89PNG")
    export_hf(run, tmp_path / "exported")
    for link in links:
        assert (tmp_path / "exported" / link).exists()


def test_labels_and_names_are_text(run: Path) -> None:
    card = (run / "README.md").read_text()
    assert "<img" not in card
    assert "[a](http" not in card
    assert markdown(EVIL) in card
    for line in card.splitlines():
        if line.startswith("| ") and "img" in line:
            assert len(re.findall(r"(?<!\\)\|", line)) == 7, "six cells"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b*c", r"a\_b\*c"),
        ("<script>&", "&lt;script&gt;&amp;"),
        ("two\nlines\x00\u202e", "two lines"),
        ("a|b", r"a\|b"),
        ("see http://x.y @me www.z", "see http&#58;//x.y &#64;me www&#46;z"),
        ("# no title", r"\# no title"),
    ],
)
def test_text_is_shown_as_it_is(text: str, shown: str) -> None:
    assert markdown(text) == shown


def test_the_three_ways_to_use_it_work(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python snippets of the card are executed, and both give the same probabilities."""
    card = (run / "README.md").read_text()
    ours, theirs = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert "qkv predict RUN" in card
    (tmp_path / "RUN").symlink_to(run)
    export_hf(run, tmp_path / "EXPORTED")
    monkeypatch.chdir(tmp_path)
    shown: list[object] = []
    for code in (ours, theirs):
        exec(code.replace('"..."', '"7 the rose"'), {"print": shown.append})
    predictions, probabilities = shown
    assert isinstance(predictions, list)
    assert isinstance(probabilities, torch.Tensor)
    assert probabilities[0].tolist() == pytest.approx(list(predictions[0].probabilities.values()), abs=1e-5)


def test_few_rows_are_said_to_be_few(tmp_path: Path) -> None:
    qkv.train(table(tmp_path, 200, ("blue", "red")), tmp_path / "run")
    card = (tmp_path / "run/README.md").read_text()
    assert re.search(r"Too few validation rows \(\d+\) to calibrate: probabilities are the model's own", card)
    assert "Too few rows to say how far its probabilities can be trusted" in card
    assert "| too few rows to say |" in card
    assert "reliability.png" not in card


def test_an_untested_run_says_so_and_links_what_is_there(tmp_path: Path) -> None:
    texts = [f"the {word} {n}" for n in range(20) for word in ("rose", "sea")]
    model = qkv.TransformerClassifier(output=tmp_path / "run", epochs=1, settings=["runtime.threads=1"])
    model.fit(texts, ["red", "blue"] * 20)
    card = (tmp_path / "run/README.md").read_text()
    assert card.split("\n\n")[1].startswith("Not tested: the test set was empty")
    assert re.findall(r"!\[.*?\]\((.*?)\)", card) == ["curves.png"]
    assert (tmp_path / "run/curves.png").exists()
