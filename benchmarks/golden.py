"""A refactoring must not change a number: old and new code side by side, on this machine.

usage: python benchmarks/golden.py OLD_COMMIT [--only PART ...] [--keep FOLDER]

Checks out OLD_COMMIT beside the working tree and compares, in processes of their own with the same threads:
  recipes   the training loss of the first 20 steps of every built-in recipe (QKV_DATA, default ../shared/data)
  tasks     the sha256 of the weights and of the last checkpoint of a short run of each task
  bundled   the predictions of the bundled models on fixed texts
Keys that were renamed between the two are translated (`RENAMED`). Exits 1 where anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STEPS = 20
RENAMED = {  # new -> old, in settings and in output
    "data.truncation=head+tail": "data.long=ends",
    "train.token_dropout": "train.hide_tokens",
    "train.mask_rate": "train.mask_words",
    "task=regress": "model.head=grade",
    '"token":': '"word":',
}
FIRST_LOSSES = """
import json, os, sys
from pathlib import Path
try:
    from qkv.config.recipes import resolve
    from qkv.training.trainer import open_trainer as training
except ImportError:
    from qkv.api import training
    from qkv.recipes import resolve
name, folder, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
settings = ["train.report_every=1", "train.eval_every=1000000", "train.save_every=1000000", "runtime.threads=2"]
settings += sys.argv[4:]
with training(resolve(name, settings), folder) as session:
    for report in session.reports():
        print(json.dumps(report.line["loss"]), flush=True)
        if report.step == steps:
            os._exit(0)
"""
SIZES = {  # 50,000 tokens of files of one's own would take hours
    "vaswani-base": [
        "data.corpus=multi30k-en-de", "data.validation=split", "data.test=split", "train.batch_tokens=2000",
        "train.micro_batches=2",
    ],
}  # fmt: skip
SMALL = [
    "data.length=24", "tokenizer.vocab_size=150", "tokenizer.kind=wordpiece", "tokenizer.lowercase=true",
    "train.steps=30", "train.batch_tokens=256", "train.warmup=5",
    "train.eval_every=10", "runtime.threads=1", "seed=3", "model.width=16", "model.heads=2", "model.layers=1",
    "model.feedforward=32",
]  # fmt: skip
ENCODER = ["model.positions=rotary", "model.embedding_norm=true", "model.pooler=gelu"]
TASKS = {
    "classify": ["data.corpus=labels.csv", *ENCODER, "train.token_dropout=0.2", "data.truncation=head+tail"],
    "regress": ["task=regress", "data.corpus=numbers.csv", *ENCODER],
    "fill": ["task=fill", "data.corpus=documents.txt", *ENCODER, "train.mask_rate=0.2"],
    "complete": ["task=complete", "data.corpus=documents.txt", "data.documents=blank-lines", "model.family=decoder"],
    "translate": ["task=translate", "data.corpus=pairs.tsv", "model.family=encoder-decoder", "train.average=2"],
}
TEXTS = {
    "bundled-encoder": ["What a [MASK] film!", "The [MASK] was [MASK].", "I liked it.\tIt was a good film."],
    "bundled-gpt": ["It was a", "The captain", "Once"],
    "bundled-en-fr": ["I am hungry.", "Where is the station?", "My sister speaks French very well."],
}
OPTIONS = {
    "bundled-encoder": [["--top", "3"]],
    "bundled-gpt": [
        ["--max-tokens", "12"],
        ["--max-tokens", "12", "--temperature", "0.9", "--top-k", "20", "--seed", "5"],
    ],
    "bundled-en-fr": [["--beam", "4", "--best", "2"], ["--beam", "1"]],
}


class Tree:
    """One version of the source, and how to run it."""

    def __init__(self, name: str, source: Path, folder: Path, *, old: bool) -> None:
        self.name, self.old, self.folder = name, old, folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.main = "qkv.app.cli" if (source / "qkv/app/cli.py").exists() else "qkv.cli.main"
        data = os.environ.get("QKV_DATA", str(ROOT.parent / "shared" / "data"))
        self.environment = {
            **os.environ, "PYTHONPATH": str(source), "QKV_CACHE": str(folder / "cache"), "QKV_DATA": data,
        }  # fmt: skip

    def run(self, *words: str, code: str | None = None) -> str:
        """Standard output of a qkv command, or of a script."""
        start = ["-c", code] if code is not None else ["-m", self.main]
        command = [sys.executable, "-P", *start, *(self.spelled(word) for word in words)]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{self.name}: {' '.join(words)[:200]} failed:\n{done.stderr[-1500:]}")
        return done.stdout

    def spelled(self, setting: str) -> str:
        """A setting as this version spells it."""
        for new, old in RENAMED.items() if self.old else ():
            setting = setting.replace(new, old)
        return setting


def write_rows(folder: Path) -> None:
    """Small made-up data for every task."""
    dice = random.Random(0)
    words = [f"word{n}" for n in range(40)]

    def text(low: int, high: int) -> str:
        return " ".join(dice.choice(words) for _ in range(dice.randint(low, high)))

    labels = [f"{text(3, 40)},{dice.choice(['no', 'yes'])}" for _ in range(300)]
    numbers = [f"{text(3, 20)},{dice.gauss(5, 2):.3f}" for _ in range(300)]
    documents = [". ".join(text(3, 12).capitalize() for _ in range(dice.randint(2, 6))) + "." for _ in range(120)]
    pairs = [f"{(source := text(1, 9))}\t{' '.join(reversed(source.split()))}" for _ in range(300)]
    for name, content in {
        "labels.csv": ["text,label", *labels], "numbers.csv": ["text,label", *numbers],
        "documents.txt": ["\n\n".join(documents)], "pairs.tsv": ["text\ttarget", *pairs],
    }.items():  # fmt: skip
        (folder / name).write_text("\n".join(content) + "\n")


def recipe_losses(tree: Tree, name: str) -> Any:
    """The training loss of the first steps of a built-in recipe."""
    return tree.run(name, str(tree.folder / name), str(STEPS), *SIZES.get(name, ()), code=FIRST_LOSSES).split()


def task_hashes(tree: Tree, task: str) -> Any:
    """sha256 of the weights and of the last checkpoint of a short run."""
    write_rows(tree.folder)
    (tree.folder / "empty.toml").write_text("")
    run, flags = tree.folder / task, [word for one in [*SMALL, *TASKS[task]] for word in ("--set", one)]
    tree.run("train", "empty.toml", "-o", str(run), *flags)
    files = ("model.safetensors", *(f"checkpoints/step-30/{name}.safetensors" for name in ("model", "optimiser")))
    return [hashlib.sha256((run / file).read_bytes()).hexdigest()[:16] for file in files]


def predictions(tree: Tree, model: str) -> Any:
    """Predictions of a bundled model on fixed texts."""
    lines = [
        line
        for options in OPTIONS[model]
        for line in tree.run("predict", model, *TEXTS[model], "--json", *options).splitlines()
    ]
    return [json.loads(line.replace('"word":', '"token":') if tree.old else line) for line in lines]


PARTS: dict[str, tuple[Callable[[Tree], Iterable[str]], Callable[[Tree, str], Any]]] = {
    "tasks": (lambda tree: TASKS, task_hashes),
    "bundled": (lambda tree: TEXTS, predictions),
    "recipes": (lambda tree: [n for n in tree.run("train").splitlines() if not n.startswith(" ")], recipe_losses),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", metavar="OLD_COMMIT")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--keep", type=Path, help="keep the runs of both versions in this folder")
    chosen = parser.parse_args()
    differences = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = (chosen.keep or Path(temporary)).resolve()
        old = folder / "source"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", "--force", old, chosen.commit], check=True)
        try:
            trees = [
                Tree("old", old / "src", folder / "old", old=True),
                Tree("new", ROOT / "src", folder / "new", old=False),
            ]
            for part in chosen.only:
                names, compute = PARTS[part]
                for name in names(trees[0]):
                    before, after = (compute(tree, name) for tree in trees)
                    differences += before != after
                    state = "equal" if before == after else f"DIFFERENT {before} -> {after}"
                    print(f"{part:<8} {name:<24} {len(before):>3} values {state}", flush=True)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", old], check=True)
    print(f"{differences} differences")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
