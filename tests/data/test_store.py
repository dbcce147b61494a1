"""A store gives back what was written, is checked when it is opened, and appears whole or not at all."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config.recipe import DataConfig, TokenizerConfig
from qkv.corpus.corpus import open_corpus
from qkv.data.prepare import Prepared, prepare
from qkv.data.store import Store, Writer, open_store, read_facts
from qkv.schema import UserError

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=5)
ROWS = st.lists(st.tuples(IDS, IDS, st.integers(0, 2**31 - 1)), max_size=12)

# What a process of its own does: wait for the word, prepare, and tell what it has heard and what it holds.
CHILD = """
import hashlib, json, sys, time
from pathlib import Path
from qkv.config.recipe import DataConfig, TokenizerConfig
from qkv.data.prepare import prepare
from qkv.corpus.corpus import open_corpus
folder = Path(sys.argv[1])
corpus = open_corpus(DataConfig(corpus=sys.argv[2]))
(folder / f"ready-{sys.argv[3]}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
heard = []
made = prepare(corpus, TokenizerConfig(kind="wordpiece", vocab_size=300), folder / "cache", heard.append)
arrays = [made.train.tokens, made.train.starts_R, made.train.labels_R, made.validation.tokens]
whole = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
print(json.dumps({"heard": heard, "whole": whole, "rows": len(made.train)}))
"""


def written(folder: Path, rows: list[tuple[list[int], list[int], int]], *, pairs: bool, chunk: int) -> Store:
    with Writer(folder, "train", pairs=pairs) as writer:
        for start in range(0, len(rows), chunk):
            some = rows[start : start + chunk]
            seconds = [row[1] for row in some] if pairs else []
            writer.add([row[0] for row in some], seconds, [row[2] for row in some])
    assert writer.rows == len(rows)
    return open_store(folder, "train", pairs=pairs)


def read(store: Store) -> list[tuple[list[int], list[int], int]]:
    bounds = zip(*(edge.tolist() for edge in store.bounds()), strict=True)
    return [
        (store.tokens[a:b].tolist(), store.tokens[b:c].tolist(), label)
        for (a, b, c), label in zip(bounds, store.labels_R.tolist(), strict=True)
    ]


@settings(max_examples=60, deadline=None)
@given(ROWS, st.booleans(), st.integers(1, 5))
def test_rows_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[list[int], list[int], int]], pairs: bool, chunk: int
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = written(folder, rows, pairs=pairs, chunk=chunk)
    assert len(store) == len(rows)
    assert read(store) == [(first, second if pairs else [], label) for first, second, label in rows]
    assert store.tokens.dtype == np.uint32


@pytest.mark.parametrize("pairs", [False, True])
def test_no_rows_and_empty_texts(tmp_path: Path, pairs: bool) -> None:
    assert len(written(tmp_path, [], pairs=pairs, chunk=1)) == 0
    rows: list[tuple[list[int], list[int], int]] = [([], [], 1), ([], [], 0)]
    assert read(written(tmp_path, rows, pairs=pairs, chunk=1)) == rows


def test_a_store_is_mapped_and_cannot_be_written_to(tmp_path: Path) -> None:
    store = written(tmp_path, [([1, 2], [], 0)], pairs=False, chunk=1)
    assert isinstance(store.tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        store.tokens[0] = 5


def test_facts_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"facts\.json: cannot be read: .*; delete .* to rebuild it"):
        read_facts(tmp_path)
    (tmp_path / "facts.json").write_text("{")
    with pytest.raises(UserError, match=r"facts\.json: cannot be read"):
        read_facts(tmp_path)


# --- stores in a cache


def corpus_in(folder: Path, rows: int = 300) -> Path:
    lines = [f"film {n} was {'good' if n % 3 else 'bad'},{n % 3 and 1}\n" for n in range(rows)]
    (folder / "r.csv").write_text("text,label\n" + "".join(lines))
    return folder / "r.csv"


def prepared(folder: Path, heard: list[str]) -> Prepared:
    corpus = open_corpus(DataConfig(corpus=str(folder / "r.csv")))
    return prepare(corpus, TokenizerConfig(kind="wordpiece", vocab_size=300), folder / "cache", heard.append)


def store_folder(folder: Path) -> Path:
    (found,) = (entry for entry in (folder / "cache" / "stores").iterdir() if entry.is_dir())
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in store_folder(folder).iterdir()}


def children(folder: Path, count: int) -> list[subprocess.Popen[str]]:
    """Processes that are all ready to prepare, and begin when there is a file `go`."""
    corpus = str(folder / "r.csv")
    started = [
        subprocess.Popen([sys.executable, "-c", CHILD, str(folder), corpus, str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(count)
    ]
    while not all((folder / f"ready-{n}").exists() for n in range(count)):
        assert all(child.poll() is None for child in started)
        time.sleep(0.005)
    return started


@pytest.mark.parametrize(
    "name", ["train.tokens", "train.starts", "validation.labels", "tokenizer.json", "facts.json", "MANIFEST.json"]
)
def test_a_flipped_bit_is_noticed_and_the_store_rebuilt(tmp_path: Path, name: str) -> None:
    corpus_in(tmp_path)
    prepared(tmp_path, [])
    good = contents(tmp_path)
    spoilt = bytearray(good[name])
    spoilt[len(spoilt) // 2] ^= 1
    (store_folder(tmp_path) / name).write_bytes(spoilt)
    heard: list[str] = []
    prepared(tmp_path, heard)
    assert heard[0].endswith("; rebuilding it")
    assert name in heard[0] or name == "MANIFEST.json"
    assert contents(tmp_path) == good


@pytest.mark.parametrize("damage", ["truncated", "gone", "no manifest", "empty folder"])
def test_what_a_crash_or_a_hand_took_away_is_rebuilt(tmp_path: Path, damage: str) -> None:
    corpus_in(tmp_path)
    prepared(tmp_path, [])
    good, folder = contents(tmp_path), store_folder(tmp_path)
    if damage == "truncated":
        (folder / "train.tokens").write_bytes(good["train.tokens"][:-4])
    elif damage == "gone":
        (folder / "train.tokens").unlink()
    elif damage == "no manifest":
        (folder / "MANIFEST.json").unlink()
    else:
        shutil.rmtree(folder)
        folder.mkdir()
    heard: list[str] = []
    prepared(tmp_path, heard)
    assert heard[0].endswith("; rebuilding it")
    assert contents(tmp_path) == good


def test_what_a_killed_process_left_does_no_harm_and_is_swept_away(tmp_path: Path) -> None:
    corpus_in(tmp_path)
    prepared(tmp_path, [])
    good, folder = contents(tmp_path), store_folder(tmp_path)
    left = folder.with_name(f"{folder.name}.tmp-99999")
    folder.rename(left)
    (left / "train.tokens").write_bytes(b"half")
    (left / "MANIFEST.json").unlink()
    foreign = folder.with_name("0123.tmp-99999")  # of another store, which another process may be making
    foreign.mkdir()
    prepared(tmp_path, [])
    assert not left.exists()
    foreign.rmdir()
    assert contents(tmp_path) == good


def test_two_processes_at_the_same_moment_make_one_good_store(tmp_path: Path) -> None:
    corpus_in(tmp_path, rows=3000)
    started = children(tmp_path, 2)
    (tmp_path / "go").touch()
    said = [json.loads(child.communicate()[0]) for child in started]
    assert [child.returncode for child in started] == [0, 0]
    assert sorted(len(one["heard"]) for one in said) == [0, 2]  # one reads and tokenises, the other waits
    assert said[0]["whole"] == said[1]["whole"]
    heard: list[str] = []
    assert len(prepared(tmp_path, heard).train) == said[0]["rows"] > 2000
    assert heard == []  # and it is whole


def test_one_store_is_open_twice_while_it_is_rebuilt(tmp_path: Path) -> None:
    """Who has mapped a store keeps what was in it, also when another process replaces it."""
    corpus_in(tmp_path)
    first, second = prepared(tmp_path, []), prepared(tmp_path, [])
    before = first.train.tokens.copy()
    file = store_folder(tmp_path) / "facts.json"
    file.write_bytes(file.read_bytes() + b" ")
    heard: list[str] = []
    third = prepared(tmp_path, heard)
    assert len(heard) == 3
    for store in (first.train, second.train, third.train):
        assert np.array_equal(store.tokens, before)


@pytest.mark.faults
def test_a_process_killed_while_it_writes_leaves_nothing_that_is_believed(tmp_path: Path) -> None:
    corpus_in(tmp_path, rows=15_000)
    (child,) = children(tmp_path, 1)
    (tmp_path / "go").touch()
    while not list((tmp_path / "cache").glob("stores/*.tmp-*/train.tokens")):
        assert child.poll() is None
        time.sleep(0.001)
    child.kill()
    child.communicate()
    assert [entry.suffix[:4] for entry in (tmp_path / "cache" / "stores").iterdir() if entry.is_dir()] == [".tmp"]
    heard: list[str] = []
    killed = prepared(tmp_path, heard)
    assert len(heard) == 2
    counts = killed.counts["train"]
    assert len(killed.train) == sum(counts.values()) > 11_000
    assert prepared(tmp_path, []).train.tokens.tobytes() == killed.train.tokens.tobytes()
