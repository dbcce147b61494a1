"""An arm of an experiment: a small model trained with the training code of qkv, and discarded.

Every arm is a recipe. What differs between two arms of a lab is what differs between their recipes, and nothing else:
the same rows, in the same order, by the same loop.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from qkv.config.presets import expand
from qkv.config.recipe import Recipe
from qkv.data.prepare import Prepared
from qkv.exchange.folder import write_folder
from qkv.labs.lab import Setting
from qkv.model.transformer import Decoder, Model
from qkv.tasks.task import Validation
from qkv.tokenizer.tokenizer import Tokenizer
from qkv.training.build import build_state, open_data
from qkv.training.loop import train
from qkv.training.model_files import tokenizer_files, trained_files

NEVER = 10**9


@dataclass(frozen=True)
class Arm:
    """A trained arm."""

    model: Model
    recipe: Recipe
    prepared: Prepared
    losses: tuple[float, ...]  # training loss at every report
    validation: Validation  # at the end

    @property
    def tokenizer(self) -> Tokenizer:
        return self.prepared.tokenizer

    @property
    def loss(self) -> float:
        return self.validation.loss

    @property
    def accuracy(self) -> float:
        return self.validation.metrics["accuracy"]


class Bench:
    """A place for the rows of a lab and what is made of them, gone when the lab is done."""

    def __init__(self, folder: Path, tick: Callable[[str], None]) -> None:
        self.folder, self.tick = folder, tick

    def table(self, name: str, rows: Iterable[Mapping[str, str]]) -> str:
        """Rows as a CSV; its path, for data.corpus."""
        path, rows = self.folder / f"{name}.csv", list(rows)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return str(path)

    def text(self, name: str, documents: Iterable[str]) -> str:
        """Documents as a table of one column."""
        return self.table(name, ({"text": document} for document in documents))

    def train(self, what: str, table: Mapping[str, Any]) -> Arm:
        """Train what a recipe, as plain values, says. Nothing is written but the tokenised rows."""
        data = open_data(expand(dict(table)), cache=self.folder)
        state, _ = build_state(data)
        losses, validation = list[float](), None
        for report in train(state):
            if report.line is not None:
                losses.append(report.line["loss"])
                self.tick(f"{what}: step {report.step} of {report.steps}")
            validation = report.validation or validation
        assert validation is not None, "the last step is validated"
        return Arm(state.model.eval(), data.recipe, data.prepared, tuple(losses), validation)

    def decoder(
        self, what: str, corpus: str, setting: Setting, train: Mapping[str, Any], *, length: int = 64, **parts: Any
    ) -> Arm:
        """Train the small decoder that labs share on running text: the same but for the parts that are named."""
        model: dict[str, Any] = {
            "family": "decoder", "width": 64, "heads": 4, "layers": 2, "feedforward": 128, "positions": "rotary",
            "norm_place": "pre", **parts,
        }  # fmt: skip
        model["embedding_scale"] = model["positions"] == "sinusoidal"
        return self.train(
            f"{what}, seed {setting.seed}",
            {
                "task": "complete",
                "seed": setting.seed,
                "data": {"corpus": corpus, "length": length},
                "tokenizer": {"kind": "wordpiece", "vocab_size": 1000, "lowercase": True},
                "model": model,
                "train": train,
            },
        )

    def keep(self, name: str, arm: Arm) -> str:
        """Write an arm as a folder that another one can fine-tune; its path, for `init`."""
        folder, files = self.folder / name, trained_files(arm.model, arm.recipe, arm.prepared, 1.0)
        own = tokenizer_files(arm.prepared, arm.recipe)
        write_folder(folder, config=files.config, generation={}, tensors=files.tensors, files=own)
        return str(folder)


@contextmanager
def bench(tick: Callable[[str], None]) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="qkv-lab-") as folder:
        yield Bench(Path(folder), tick)


def settings(steps: int, *, tokens: int = 1024, rate: float = 2e-3, reports: int = 20) -> dict[str, Any]:
    """The usual [train] of an arm: so many steps, judged once, at the end."""
    return {
        "steps": steps,
        "batch_tokens": tokens,
        "learning_rate": rate,
        "warmup": max(1, steps // 10),
        "schedule": "linear",
        "dropout": 0.0,
        "eval_every": NEVER,
        "save_every": NEVER,
        "report_every": max(1, steps // reports),
        "keep": "last",
    }


@torch.no_grad()
def loss_by_place(arm: Arm, documents: Sequence[str], length: int) -> list[float]:
    """How surprised a decoder is by each word of windows of so many words, by its place in the window."""
    assert isinstance(arm.model, Decoder), "it completes"
    running = [token for ids in arm.tokenizer.ids(list(documents)) for token in ids]
    windows = torch.tensor(running[: len(running) // length * length]).view(-1, length)
    first = torch.tensor([list(arm.tokenizer.template(pair=False).before)]).expand(len(windows), -1)
    total = torch.zeros(length, dtype=torch.float64)
    for some, begin in zip(windows.split(64), first.split(64), strict=True):
        given = torch.cat([begin, some], 1)[:, :-1]
        logits = arm.model.logits(arm.model(given)[:, -length:])
        total += F.cross_entropy(logits.transpose(1, 2), some, reduction="none").double().sum(0)
    return (total / len(windows)).tolist()
