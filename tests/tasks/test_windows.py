"""Documents to windows for `complete`: every token is predicted, none across documents, and each epoch elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from qkv.data.store import Store
from qkv.tasks.complete import Windows, packed
from qkv.tasks.next_token import NextTokenBatch
from qkv.tasks.task import EVALUATION

BEGIN, END, PAD = 1, 2, 0


def store_of(lengths: list[int]) -> Store:
    """Documents whose tokens say where they are: 1,000 times the document, plus the position."""
    tokens = [1000 * (number + 1) + position for number, length in enumerate(lengths) for position in range(length)]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    labels = np.full(len(lengths), -1, np.int32)
    return Store(np.array(tokens, np.uint32), starts, np.zeros(0, np.int64), labels, False)


def made(lengths: list[int], room: int, before: int | None = BEGIN, end: int | None = END) -> Windows:
    return Windows.of(store_of(lengths), room, before=before, end=end, pad=PAD, seed=3)


def rows_of(batch: NextTokenBatch) -> list[tuple[list[int], list[int]]]:
    """Of each row: its input, and the tokens to predict."""
    targets, rows = iter(batch.targets_N.tolist()), []
    for row, given in enumerate(batch.tokens_BL.tolist()):
        length = len(given) if batch.keep_BL is None else int(batch.keep_BL[row].sum())
        rows.append((given[:length], [next(targets) for _ in range(length)]))
    return rows


def test_a_document_that_fits_is_one_window_with_its_end() -> None:
    windows = made([3, 5], 8)
    assert windows.lengths().tolist() == [4, 6]
    batch = windows.collate(np.arange(2), 0)
    assert rows_of(batch) == [
        ([BEGIN, 1000, 1001, 1002], [1000, 1001, 1002, END]),
        ([BEGIN, 2000, 2001, 2002, 2003, 2004], [2000, 2001, 2002, 2003, 2004, END]),
    ]
    assert batch.real_tokens == 10
    assert batch.positions_N is not None
    assert batch.positions_N.tolist() == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]
    assert batch.counts == {"token": 10.0}


@pytest.mark.parametrize("before", [BEGIN, None])
@pytest.mark.parametrize("end", [END, None])
@pytest.mark.parametrize("room", [4, 7])
def test_windows_have_every_token_of_their_document_and_none_of_another(
    before: int | None, end: int | None, room: int
) -> None:
    lengths = [0, 1, 2, 3, 4, 5, 7, 8, 9, 29, 64, 65, 131]
    windows = made(lengths, room, before, end)
    for epoch in range(4):
        seen: dict[int, set[int]] = {document: set() for document in range(len(lengths))}
        batch = windows.collate(np.arange(len(windows.documents_N)), epoch)
        for document, (given, wanted) in zip(windows.documents_N.tolist(), rows_of(batch), strict=True):
            assert len(given) <= room
            assert given[1:] == wanted[:-1], "each token is predicted from those before it"
            if before is None:
                first = [token for token in wanted if token != END][:1] or [1000 * (document + 1) + lengths[document]]
                assert given[0] == first[0] - 1
            else:
                assert given[0] == BEGIN
            ours = range(1000 * (document + 1), 1000 * (document + 1) + lengths[document])
            assert all(token in ours for token in wanted if token != END)
            assert END not in wanted[:-1]
            seen[document] |= set(wanted)
        for document, length in enumerate(lengths):
            expected = {1000 * (document + 1) + position for position in range(before is None, length)}
            if end is not None and length + (before is not None) > 0 and windows.sizes_R[document] > 0:
                expected.add(END)
            assert seen[document] == expected


def test_the_length_of_a_window_does_not_change_with_the_epoch_but_its_begin_does() -> None:
    windows = made([300, 40, 5], 16)
    found = set()
    for epoch in range(8):
        begins_N = windows.begins(epoch)
        batch = windows.collate(np.arange(len(begins_N)), epoch)
        assert [len(given) for given, _ in rows_of(batch)] == windows.lengths().tolist()
        assert np.array_equal(begins_N, windows.begins(epoch))
        found.add(tuple(begins_N[:19].tolist()))
    assert len(found) > 4


def test_in_an_evaluation_every_token_is_predicted_exactly_once() -> None:
    windows = made([300, 16, 15, 40, 0], 16).each_once()
    batch = windows.collate(np.arange(len(windows.documents_N)), EVALUATION)
    wanted = [token for _, targets in rows_of(batch) for token in targets]
    tokens = [token for token in wanted if token != END]
    assert sorted(tokens) == store_of([300, 16, 15, 40]).tokens.tolist()
    assert wanted.count(END) == 5, "of an empty document only the end"


def test_windows_across_documents() -> None:
    one = packed(store_of([2, 0, 3]), END)
    assert one.tokens.tolist() == [1000, 1001, END, END, 3000, 3001, 3002]
    assert len(one) == 1
    windows = Windows.of(one, 100, before=BEGIN, end=END, pad=PAD, seed=3)
    ((given, wanted),) = rows_of(windows.collate(np.arange(1), 0))
    assert given == [BEGIN, 1000, 1001, END, END, 3000, 3001, 3002]
    assert wanted[-1] == END
    assert packed(store_of([2, 3]), None).tokens.tolist() == [1000, 1001, 2000, 2001, 2002]
    assert len(packed(store_of([]), END).tokens) == 0
