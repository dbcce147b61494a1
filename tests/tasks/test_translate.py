"""Pairs to batches for `translate`, aligned files, and batches of pairs that are alike in both lengths."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from qkv.tasks.translations import Translations

from qkv.corpus.files import aligned
from qkv.data.sampler import BatchSampler
from qkv.data.store import Store
from qkv.schema import UserError
from qkv.tokenizer.tokenizer import Template

END = 3
FRAME = Template((), (), (END,), 0)


def store_of(pairs: list[tuple[list[int], list[int]]]) -> Store:
    lengths = [len(part) for pair in pairs for part in pair]
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.array([token for pair in pairs for part in pair for token in part], np.uint32)
    return Store(tokens, edges[::2], edges[1::2], np.full(len(pairs), -1, np.int32), True)


def made(pairs: list[tuple[list[int], list[int]]], longest: int = 99) -> Translations:
    return Translations.of(store_of(pairs), longest, FRAME, start=7, end=END, pad=0, target_pad=7)


def test_a_batch_of_pairs() -> None:
    translations = made([([11, 12], [21]), ([13], [22, 23, 24])])
    assert translations.lengths().tolist() == [[2, 3], [4, 2]]
    batch = translations.collate(np.array([0, 1]))
    assert batch.source_BS is not None
    assert batch.source_BS.tolist() == [[11, 12, END], [13, END, 0]]
    assert batch.source_keep_BS is not None
    assert batch.source_keep_BS.tolist() == [[True, True, True], [True, True, False]]
    assert batch.tokens_BL.tolist() == [[7, 21, 7, 7], [7, 22, 23, 24]]
    assert batch.targets_N.tolist() == [21, END, 22, 23, 24, END]
    assert batch.positions_N is not None
    assert batch.positions_N.tolist() == [0, 1, 4, 5, 6, 7]
    assert batch.counts == {"word": 6.0}
    assert batch.real_tokens == 11
    alone = translations.collate(np.array([1]))
    assert alone.keep_BL is None
    assert alone.source_keep_BS is None
    assert alone.positions_N is None


@pytest.mark.parametrize(("longest", "kept"), [(3, [0]), (4, [0, 1]), (5, [0, 1, 2]), (2, [])])
def test_a_pair_with_a_side_too_long_is_left_out_whole(longest: int, kept: list[int]) -> None:
    translations = made([([11, 12], [21]), ([13], [22, 23, 24]), ([11] * 4, [21])], longest)
    assert translations.rows_N.tolist() == kept
    assert translations.too_long == 3 - len(kept)


def test_batches_of_pairs_hold_every_pair_once_within_the_budget_and_waste_little() -> None:
    noise = np.random.default_rng(5)
    target = noise.integers(2, 60, 4000)
    lengths = np.stack([target, np.maximum(2, target + noise.integers(-8, 9, 4000))], 1)
    sampler, seen, padded = BatchSampler(lengths, 2048, 11), list[int](), 0
    for number in range(sampler.batches):
        epoch, examples_B = sampler.batch(number)
        assert epoch == 0
        size = len(examples_B) * int(lengths[examples_B].max(0).sum())
        assert size <= 2048
        padded += size
        seen += examples_B.tolist()
    assert sorted(seen) == list(range(4000))
    assert padded / lengths.sum() < 1.1, "random batches would waste half"


def write(folder: Path, source: bytes, target: bytes) -> tuple[list[Path], list[Path]]:
    (folder / "a.en").write_bytes(source)
    (folder / "a.de").write_bytes(target)
    return [folder / "a.en"], [folder / "a.de"]


def test_aligned_lines(tmp_path: Path) -> None:
    rows = list(aligned(*write(tmp_path, b"one\n\ntwo\r\nthree", "eins\nnull\n\tzwei\n\u0085drei\n".encode())))
    assert [(row.text, row.pair) for row in rows] == [
        ("one", "eins"),
        ("", "null"),
        ("two", "\tzwei"),
        ("three", "\u0085drei"),
    ]
    assert rows[2].place.endswith("a.en, line 3")
    assert list(aligned(*write(tmp_path, b"", b""))) == []


def test_aligned_files_may_be_packed(tmp_path: Path) -> None:
    (tmp_path / "a.en.gz").write_bytes(gzip.compress(b"one\n"))
    (tmp_path / "a.de").write_bytes(b"eins\n")
    assert [row.pair for row in aligned([tmp_path / "a.en.gz"], [tmp_path / "a.de"])] == ["eins"]


@pytest.mark.parametrize(("source", "target", "found"), [
    (b"one\ntwo\n", b"eins\n", "a.de has 1 lines, .*a.en has more"),
    (b"", b"eins\n", "a.en has 0 lines, .*a.de has more"),
    (b"one\n", b"\xff\n", "a.de"),
])  # fmt: skip
def test_files_that_do_not_belong_side_by_side(tmp_path: Path, source: bytes, target: bytes, found: str) -> None:
    with pytest.raises(UserError, match=found):
        list(aligned(*write(tmp_path, source, target)))
