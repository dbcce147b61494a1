"""Pairs to batches for `translate`, aligned files, and batches of pairs that are alike in both lengths."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, processors

from qkv.config.recipe import Recipe
from qkv.corpus.files import aligned
from qkv.data.sampler import BatchSampler
from qkv.data.store import Store
from qkv.schema import UserError
from qkv.tasks.translate import TranslationDataset, translation_dataset
from qkv.tokenizer.tokenizer import Tokenizer

END, TARGET_END, TARGET_PAD = 3, 4, 7


def store_of(pairs: list[tuple[list[int], list[int]]]) -> Store:
    lengths = [len(part) for pair in pairs for part in pair]
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.array([token for pair in pairs for part in pair for token in part], np.uint32)
    return Store(tokens, edges[::2], edges[1::2], np.full(len(pairs), -1, np.int32), True)


def tokenizer(pad: int, end: int) -> Tokenizer:
    """Two special tokens with these ids; an end token after a text."""
    inner = tokenizers.Tokenizer(models.WordLevel({"[PAD]": pad, "[SEP]": end, "a": 9}, unk_token="a"))
    inner.add_special_tokens(["[PAD]", "[SEP]"])
    inner.post_processor = processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", end)])
    return Tokenizer(inner)


def dataset_of(pairs: list[tuple[list[int], list[int]]], longest: int = 99) -> TranslationDataset:
    table = {"task": "translate", "data": {"length": longest}, "model": {"family": "encoder-decoder"}}
    source, target = tokenizer(0, END), tokenizer(TARGET_PAD, TARGET_END)
    return translation_dataset(Recipe.read(table), store_of(pairs), source, target)


def test_a_batch_of_pairs() -> None:
    """A target begins with the padding token of its own tokenizer, as Marian's do, and ends with its end token."""
    dataset = dataset_of([([11, 12], [21]), ([13], [22, 23, 24])])
    assert dataset.lengths_N2.tolist() == [[2, 3], [4, 2]]
    batch = dataset.collate(np.array([0, 1]), 0)
    assert batch.source_BS is not None
    assert batch.source_BS.tolist() == [[11, 12, END], [13, END, 0]]
    assert batch.source_keep_BS is not None
    assert batch.source_keep_BS.tolist() == [[True, True, True], [True, True, False]]
    assert batch.tokens_BL.tolist() == [[TARGET_PAD, 21, TARGET_PAD, TARGET_PAD], [TARGET_PAD, 22, 23, 24]]
    assert batch.targets_N.tolist() == [21, TARGET_END, 22, 23, 24, TARGET_END]
    assert batch.positions_N is not None
    assert batch.positions_N.tolist() == [0, 1, 4, 5, 6, 7]
    assert batch.counts == {"token": 6.0}
    assert batch.real_tokens == 11
    alone = dataset.collate(np.array([1]), 0)
    assert alone.keep_BL is None
    assert alone.source_keep_BS is None
    assert alone.positions_N is None


@pytest.mark.parametrize(("longest", "kept"), [(5, [0]), (6, [0, 1]), (7, [0, 1, 2]), (4, [])])
def test_a_pair_with_a_side_too_long_is_left_out_whole(longest: int, kept: list[int]) -> None:
    """The longer sides have 5, 6 and 7 tokens, the end token included."""
    dataset = dataset_of([([11] * 4, [21]), ([13], [22] * 5), ([11] * 6, [21])], longest)
    assert dataset.rows_N.tolist() == kept
    assert (len(dataset), dataset.too_long) == (len(kept), 3 - len(kept))


def test_batches_of_pairs_have_every_pair_once_within_the_budget_and_waste_little() -> None:
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
