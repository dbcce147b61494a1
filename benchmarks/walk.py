"""How far a reader walks: the files of the package that one command enters, in the order of first calls.

usage: python benchmarks/walk.py [--source SRC] [--verbose]

Two walks: `qkv train reviews-finetune-quick` to its first optimiser step, with the corpus downloaded and nothing
tokenised yet; and `qkv predict RUN TEXT` of a small classifier. Traced by `sys.setprofile`: every function of the
package counts once, where it is first called; functions called while a module is imported do not count. An entry is a
change of file in that sequence. `model/` is a closed box: it counts as one file that is entered once. Prints a Markdown
table of all functions, and of those with a body of six lines or more, which a reader opens: shorter ones are understood
by their names.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRACE = """
import importlib, os, sys
import torch
package, words = sys.argv[1] + os.sep, sys.argv[2:]
seen, calls = set(), []
def trace(frame, event, argument):
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(package) or not code.co_flags & 1 or "<" in code.co_name:
        return
    key = code.co_filename, code.co_qualname
    above = frame.f_back
    while above is not None:
        if above.f_code.co_name == "<module>" and above.f_code.co_filename.startswith(package):
            return
        above = above.f_back
    if key not in seen:
        seen.add(key)
        calls.append(code.co_filename[len(package):] + " " + code.co_qualname)
class Done(BaseException):
    pass
def step(*arguments, **named):
    raise Done
torch.optim.AdamW.step = step
main = importlib.import_module("qkv.app.cli" if os.path.exists(package + "app/cli.py") else "qkv.cli.main").main
sys.argv = ["qkv", *words]
sys.setprofile(trace)
try:
    main()
except BaseException:
    pass
sys.setprofile(None)
sys.stderr.write("\\n".join(calls))
"""
RECIPE = """
[data]
corpus = "rows.csv"
length = 32
[tokenizer]
vocab_size = 100
[model]
width = 16
heads = 2
layers = 1
segments = 2
positions = "rotary"
embedding_norm = true
pooler = "gelu"
[train]
steps = 2
batch_tokens = 256
"""


def walk(source: Path, folder: Path, *words: str) -> list[str]:
    """Functions of the package in the order of first calls, as `file name`."""
    environment = {**os.environ, "PYTHONPATH": str(source), "QKV_CACHE": str(folder / "cache")}
    command = [sys.executable, "-P", "-c", TRACE, str(source / "qkv"), *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    return [line for line in lines if line.count(" ") == 1 and line.split()[0].endswith(".py")]


def summary(calls: list[str]) -> tuple[int, int, int, str]:
    """Functions, files, re-entries, and the files entered most often."""
    files = [call.split()[0] for call in calls if not call.startswith(("model/", "__init__.py"))]
    entries = [file for file, _ in groupby(files)]
    counts = Counter(entries)
    most = ", ".join(f"{file} {count}" for file, count in counts.most_common(4) if count > 1)
    return len(calls), len(counts) + any(call.startswith("model/") for call in calls), len(entries) - len(counts), most


def long_functions(package: Path) -> set[str]:
    """Functions with a body of six lines or more, docstring not counted, as `file name`."""
    found = set()

    def visit(node: ast.AST, file: str, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                body = child.body[1:] if ast.get_docstring(child) else child.body
                if body and (child.end_lineno or 0) - body[0].lineno >= 5:
                    found.add(f"{file} {prefix}{child.name}")
                visit(child, file, f"{prefix}{child.name}.<locals>.")
            else:
                visit(child, file, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)

    for path in package.rglob("*.py"):
        visit(ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(package)), "")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=ROOT / "src")
    parser.add_argument("--verbose", action="store_true", help="every function")
    options = parser.parse_args()
    source = options.source.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = [f"a text about {'good' if n % 2 else 'bad'} thing {n},{n % 2}" for n in range(200)]
        (folder / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
        (folder / "small.toml").write_text(RECIPE)
        old = (source / "qkv/app/cli.py").exists()
        command = [sys.executable, "-P", "-m", "qkv.app.cli" if old else "qkv.cli.main"]
        environment = {**os.environ, "PYTHONPATH": str(source), "QKV_CACHE": str(folder / "cache")}
        for words in (["data", "get", "movie-reviews"], ["train", "small.toml", "-o", "small"]):
            subprocess.run([*command, *words], cwd=folder, env=environment, capture_output=True, check=True)
        print("| walk | counted | functions | files | re-entries | entered most often |")
        print("|---|---|---|---|---|---|")
        opened = long_functions(source / "qkv")
        for name, words in {
            "`train reviews-finetune-quick` to the first step": ["train", "reviews-finetune-quick", "-o", "run"],
            "`predict` of a label": ["predict", "small", "a text about good"],
        }.items():
            calls = walk(source, folder, *words)
            print("| {} | all | {} | {} | {} | {} |".format(name, *summary(calls)))
            print("| | six lines or more | {} | {} | {} | {} |".format(*summary([c for c in calls if c in opened])))
            if options.verbose:
                print("\n".join(calls))


if __name__ == "__main__":
    main()
