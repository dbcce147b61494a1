"""From files as people have them to stores; what cannot be trained on is refused with one sentence."""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from qkv.config.recipe import DataConfig, Recipe, TokenizerConfig
from qkv.corpus import catalog
from qkv.corpus.corpus import RowFormat, open_corpus
from qkv.corpus.files import Columns
from qkv.corpus.split import Split, hash_position, split_of
from qkv.data.prepare import Prepared, prepare
from qkv.data.store import Store
from qkv.schema import UserError
from qkv.tasks import TASKS

CHARACTERS = TokenizerConfig(kind="characters", lowercase=False)


def made(
    folder: Path,
    content: str | bytes,
    tokenizer: TokenizerConfig = CHARACTERS,
    heard: list[str] | None = None,
    **data: Any,
) -> Prepared:
    """What comes of a file, with names of other files in the same folder as they are in `data`."""
    file = folder / "r.csv"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    table = {name: str(folder / value) if name in ("validation", "test") else value for name, value in data.items()}
    corpus = open_corpus(DataConfig.read({"corpus": str(file), **table}))
    return prepare(corpus, tokenizer, folder / "cache", (list[str]() if heard is None else heard).append)


def refused(folder: Path, content: str | bytes, **data: Any) -> str:
    with pytest.raises(UserError) as error:
        made(folder, content, **data)
    assert not list((folder / "cache").glob("stores/*/")), "nothing is left behind"
    return str(error.value).replace(f"{folder}/", "")


def texts_in(split: Split, words: str = "film") -> Iterator[str]:
    """Texts that the hash puts into this split."""
    return (text for n in count() if split_of(hash_position(text := f"{words} {n}")) == split)


def some(split: Split, n: int, words: str = "film") -> list[str]:
    return list(islice(texts_in(split, words), n))


def format_of(task: str) -> RowFormat:
    """How a task reads its rows."""
    return TASKS[task].format(Recipe.read({"task": task}))


def csv_of(rows: list[tuple[str, str]], head: str = "text,label") -> str:
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows]
    return "\n".join([head, *quoted, ""])


def texts(prepared: Prepared, store: Store) -> list[str]:
    starts = store.starts_R.tolist()
    return [prepared.tokenizer.decode(store.tokens[a:b].tolist()) for a, b in pairwise(starts)]


TWO = [(text, str(n % 2)) for n, text in enumerate(some("train", 6))]


def test_rows_come_through_in_their_order_with_their_labels(tmp_path: Path) -> None:
    held, tested = some("validation", 2), some("test", 3)
    rows = [(held[0], "1"), *TWO, (tested[0], "0"), (tested[1], "1"), (held[1], "0"), (tested[2], "0")]
    prepared = made(tmp_path, csv_of(rows), TokenizerConfig(kind="bytes"))
    assert texts(prepared, prepared.train) == [text for text, _ in TWO]
    assert prepared.train.labels_R.tolist() == [0, 1, 0, 1, 0, 1]
    assert texts(prepared, prepared.validation) == held
    assert prepared.validation.labels_R.tolist() == [1, 0]
    assert prepared.labels == ("0", "1")
    assert prepared.counts == {
        "train": {"0": 3, "1": 3}, "validation": {"0": 1, "1": 1}, "test": {"0": 2, "1": 1},
    }  # fmt: skip
    assert prepared.notes == []
    assert not prepared.train.pairs


@pytest.mark.parametrize("sign", [";", "|", "\t"])
def test_other_separators_and_a_byte_order_mark(tmp_path: Path, sign: str) -> None:
    content = csv_of(TWO).replace(",", sign).encode("utf-8-sig")
    prepared = made(tmp_path, content)
    assert texts(prepared, prepared.train) == [text for text, _ in TWO]


def test_tabs_quotes_and_line_ends_are_text(tmp_path: Path) -> None:
    odd = ["a\ttab", 'a "quote" in it', "two\nlines", "two\r\nlines, a comma; and a semicolon"]
    rows = [(text, str(n % 2)) for n, text in enumerate(odd) if split_of(hash_position(text)) == "train"]
    assert len(rows) == len(odd), "choose other texts: these are held out"
    prepared = made(tmp_path, csv_of(rows))
    assert texts(prepared, prepared.train) == odd


def test_a_missing_label_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    assert refused(tmp_path, "text,lable\ngood,1\n") == (
        "r.csv, line 1: no column 'label'; did you mean lable? known: text, lable; "
        "choose one with --set data.label=NAME"
    )


def test_rows_without_text_or_label_are_left_out_with_a_notice_that_names_the_line(tmp_path: Path) -> None:
    rows = [TWO[0], ("", "1"), (" \t\n ", "0"), ("no label here", ""), ("nor here", "  "), *TWO[1:]]
    heard: list[str] = []
    prepared = made(tmp_path, csv_of(rows), heard=heard)
    assert prepared.notes == [
        "2 rows have no text and are left out, first r.csv, line 3",
        "2 rows have no label and are left out, first r.csv, line 6",
    ]
    assert texts(prepared, prepared.train) == [text for text, _ in TWO]
    assert prepared.train.labels_R.tolist() == [0, 1, 0, 1, 0, 1]
    assert sum(prepared.counts["train"].values()) == 6
    assert heard == ["reading the corpus and training the tokenizer", "tokenising 6 rows"]


def test_one_class_only(tmp_path: Path) -> None:
    assert refused(tmp_path, csv_of([(text, "1") for text, _ in TWO])) == (
        "r.csv: only one label, '1', in 6 training rows of column 'label'; a classifier needs at least two"
    )


@pytest.mark.parametrize("split", ["train", "test"])
def test_one_row(tmp_path: Path, split: Split) -> None:
    sentence = refused(tmp_path, csv_of([(some(split, 1)[0], "1")]))
    expected = {
        "train": "only one label, '1'",
        "test": r"all 1 rows are in the validation and test splits \(.*\); none is left to train on$",
    }
    assert re.match(f"r.csv: {expected[split]}", sentence)


def test_no_rows(tmp_path: Path) -> None:
    assert refused(tmp_path, "text,label\n") == "r.csv: no rows to train on"
    assert refused(tmp_path, "text,label\n,1\n,0\n") == (
        "r.csv: no rows to train on: 2 rows have no text and are left out, first r.csv, line 2"
    )
    assert "empty; the first line must name the columns" in refused(tmp_path, "")


def test_a_row_for_each_label_is_enough_and_validation_may_be_empty(tmp_path: Path) -> None:
    prepared = made(tmp_path, csv_of(TWO[:2]))
    assert (len(prepared.train), len(prepared.validation)) == (2, 0)


def test_thousands_of_rows_of_one_word_are_all_on_one_side(tmp_path: Path) -> None:
    word = some("train", 1)[0]
    prepared = made(tmp_path, "text,label\n" + "".join(f"{word},{n % 2}\n" for n in range(30_000)))
    assert len(prepared.train) == 30_000
    assert prepared.counts["train"] == {"0": 15_000, "1": 15_000}
    assert prepared.train.labels_R[:4].tolist() == [0, 1, 0, 1]
    assert texts(prepared, prepared.train)[-1] == word
    assert len(prepared.validation) == 0


@pytest.mark.slow
def test_three_million_rows_of_one_word(tmp_path: Path) -> None:
    word = some("train", 1)[0]
    prepared = made(tmp_path, "text,label\n" + f"{word},0\n{word},1\n" * 1_500_000, TokenizerConfig(kind="wordpiece"))
    assert len(prepared.train) == 3_000_000
    assert int(prepared.train.labels_R.sum()) == 1_500_000
    widths = set((prepared.train.starts_R[1:] - prepared.train.starts_R[:-1]).tolist())
    assert widths == {len(prepared.tokenizer.ids([word])[0])}


def test_labels_are_sorted_by_number_where_all_are_numbers(tmp_path: Path) -> None:
    ten = some("train", 10)
    numbers = ["10", "2", "-1", "0", "10", "2", "-1", "0", "-3", "10"]
    assert made(tmp_path, csv_of(list(zip(ten, numbers, strict=True)))).labels == ("-3", "-1", "0", "2", "10")
    words = ["10", "2", "b", "a", "10", "2", "b", "a", "B", "10"]
    assert made(tmp_path, csv_of(list(zip(ten, words, strict=True)))).labels == ("10", "2", "B", "a", "b")


@pytest.mark.parametrize("odd", ["²", "--1", "1.5", "-"])
def test_labels_that_only_look_like_numbers_are_names(tmp_path: Path, odd: str) -> None:
    prepared = made(tmp_path, csv_of([(TWO[0][0], "10"), (TWO[1][0], odd), (TWO[2][0], "2")]))
    assert prepared.labels == tuple(sorted(["10", odd, "2"]))


def test_label_names_give_names_and_order(tmp_path: Path) -> None:
    content = csv_of(TWO)
    prepared = made(tmp_path, content, label_names="1=positive, 0 = negative")
    assert prepared.labels == ("positive", "negative")
    assert prepared.train.labels_R.tolist() == [1, 0, 1, 0, 1, 0]
    again = made(tmp_path, content, label_names="0=negative,1=positive")
    assert again.labels == ("negative", "positive")
    assert again.train.labels_R.tolist() == [0, 1, 0, 1, 0, 1]
    assert made(tmp_path, content, label_names="1=positive").labels == ("positive", "0")
    assert len(list((tmp_path / "cache" / "stores").glob("*/"))) == 3


@pytest.mark.parametrize("written", ["0", "0=", "=x", "0=a,,1=b", ""])
def test_label_names_of_another_form_are_refused(tmp_path: Path, written: str) -> None:
    assert refused(tmp_path, csv_of(TWO), label_names=written) == (
        f"data.label_names = {written!r}: must have the form 0=negative, 1=positive"
    )


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_label_that_no_training_row_has_is_refused_in_a_file_and_left_out_of_a_share(
    tmp_path: Path, split: Split
) -> None:
    known = "; known: 0, 1"
    (tmp_path / "v.csv").write_text(csv_of([("fine", "0"), ("odd", "maybe"), ("odder", "maybe")]))
    assert refused(tmp_path, csv_of(TWO), **{split: "v.csv"}) == (
        f"v.csv, line 3: label 'maybe' is in no training row{known}"
    )
    inside = csv_of([*TWO, (some(split, 1)[0], "maybe")])
    prepared = made(tmp_path, inside)
    assert prepared.labels == ("0", "1")
    assert prepared.rows(split) == 0
    assert prepared.notes == [
        "1 validation and test rows have a label that no training row has and are left out: maybe"
    ]


def test_a_text_column_taken_for_labels_is_asked_about(tmp_path: Path) -> None:
    rows = [(text, str(n % 2)) for n, text in enumerate(some("train", 150))]
    assert refused(tmp_path, csv_of(rows), label="text") == (
        "r.csv: 150 different labels in 150 training rows; is 'text' the label column? data.label names another"
    )


def test_pairs_are_kept_apart(tmp_path: Path) -> None:
    pairs = [(f"a {n}", f"bc {n}") for n in range(60)]
    held = {
        split: [pair for pair in pairs if split_of(hash_position(*pair)) == split]
        for split in ("train", "validation", "test")
    }
    assert all(held.values())
    content = csv_of([(a, b, "xy"[n % 2]) for n, (a, b) in enumerate(pairs)], "one,two,label")  # type: ignore[misc]
    prepared = made(tmp_path, content, text="one", pair="two")
    for store, split in ((prepared.train, "train"), (prepared.validation, "validation")):
        assert store.pairs
        found = [
            (
                prepared.tokenizer.decode(store.tokens[a:b].tolist()),
                prepared.tokenizer.decode(store.tokens[b:c].tolist()),
            )
            for a, b, c in zip(*(edge.tolist() for edge in store.bounds()), strict=True)
        ]
        assert found == held[split]


def test_half_a_pair_may_be_empty_but_not_both(tmp_path: Path) -> None:
    rows = ["a film,,0", ",a film,1", ",,0", "a,b,1", "c,d,0"]
    prepared = made(tmp_path, "\n".join(["one,two,label", *rows, ""]), text="one", pair="two")
    assert prepared.notes == ["1 rows have no text and are left out, first r.csv, line 4"]
    assert sum(sum(counts.values()) for counts in prepared.counts.values()) == 4


def test_a_group_is_read_and_changes_nothing_else(tmp_path: Path) -> None:
    rows = "".join(f"{text},{label},{'imdb' if n % 2 else 'rt'}\n" for n, (text, label) in enumerate(TWO))
    plain, grouped = (
        made(tmp_path, "text,label,source\n" + rows),
        made(tmp_path, "text,label,source\n" + rows, group="source"),
    )
    assert grouped.train.tokens.tobytes() == plain.train.tokens.tobytes()
    corpus = open_corpus(DataConfig(corpus=str(tmp_path / "r.csv"), group="source"))
    assert [row.group for _, row in corpus.rows()] == ["rt", "imdb"] * 3


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    files = (file for file in (folder / "cache" / "stores").rglob("*") if file.suffix != ".lock" and file.is_file())
    return {str(file): (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def test_the_second_time_nothing_is_written(tmp_path: Path) -> None:
    content = csv_of([*TWO, ("", "1")])
    first = made(tmp_path, content)
    before, heard = snapshot(tmp_path), list[str]()
    second = made(tmp_path, content, heard=heard)
    assert heard == []
    assert snapshot(tmp_path) == before
    assert second.tokenizer.to_json() == first.tokenizer.to_json()
    assert (second.labels, second.counts, second.notes) == (first.labels, first.counts, first.notes)
    assert second.data_hash == first.data_hash
    assert second.train.tokens.tobytes() == first.train.tokens.tobytes()


def test_a_copy_elsewhere_is_the_same_data(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    here, there = made(tmp_path, csv_of(TWO)), made(tmp_path / "other", csv_of(TWO))
    assert here.data_hash == there.data_hash


def test_anything_else_makes_another_store(tmp_path: Path) -> None:
    """And leaves those that are there as they were."""
    content = csv_of(TWO)
    made(tmp_path, content)
    (tmp_path / "v.csv").write_text(csv_of([("something else", "0")]))
    plain = TokenizerConfig(kind="characters", lowercase=True)
    others: list[tuple[str, TokenizerConfig, dict[str, str]]] = [
        (content, plain, {}),
        (content, TokenizerConfig(kind="bytes"), {}),
        (content, TokenizerConfig(kind="wordpiece", vocab_size=99), {}),
        (content.replace(TWO[0][0], TWO[0][0].upper()), CHARACTERS, {}),
        (content, CHARACTERS, {"validation": "v.csv"}),
        (content, CHARACTERS, {"label_names": "0=no,1=yes"}),
        (content.replace("text,", "words,"), CHARACTERS, {"text": "words"}),
    ]
    for number, (changed, tokenizer, data) in enumerate(others, 2):
        before, heard = snapshot(tmp_path), list[str]()
        made(tmp_path, changed, tokenizer, heard=heard, **data)
        assert len(heard) == 2
        assert before.items() < snapshot(tmp_path).items()
        assert len(list((tmp_path / "cache" / "stores").glob("*/"))) == number


def test_the_tokenizer_has_seen_training_rows_only(tmp_path: Path) -> None:
    """Each row has a character of its own: the vocabulary is exactly those of the training rows."""
    rows = [(chr(0x4E00 + n), str(n % 2)) for n in range(400)]
    prepared = made(tmp_path, csv_of(rows))
    known = {token for token in prepared.tokenizer._inner.get_vocab() if len(token) == 1}
    assert known == {text for text, _ in rows if split_of(hash_position(text)) == "train"}
    assert 300 < len(known) < 380
    assert all(prepared.tokenizer.unknown in prepared.tokenizer.ids([text])[0] for text, _ in rows if text not in known)


def test_the_tokenizer_has_not_seen_files_of_their_own_either(tmp_path: Path) -> None:
    for number, name in enumerate(("v.csv", "t.csv")):
        (tmp_path / name).write_text(csv_of([(chr(0x5E00 + 100 * number + n), "0") for n in range(50)]))
    rows = [(chr(0x4E00 + n), str(n % 2)) for n in range(100)]
    prepared = made(tmp_path, csv_of(rows), validation="v.csv", test="t.csv")
    known = {token for token in prepared.tokenizer._inner.get_vocab() if len(token) == 1}
    assert known == {text for text, _ in rows}
    assert (len(prepared.train), len(prepared.validation)) == (100, 50)
    assert prepared.counts["test"] == {"0": 50}


def test_special_tokens_in_a_text_are_text(tmp_path: Path) -> None:
    rows = [("a [CLS] b [SEP] [PAD]", "0"), ("c", "1"), ("d", "0"), ("e", "1")]
    prepared = made(tmp_path, csv_of([row for row in rows if split_of(hash_position(row[0])) == "train"]))
    assert set(prepared.train.tokens.tolist()).isdisjoint(range(5))


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "characters", "bytes"])
def test_every_kind_of_tokenizer_goes_the_whole_road(tmp_path: Path, kind: str) -> None:
    rows = [(f"the film {n} was {'good' if n % 2 else 'bad'}", str(n % 2)) for n in range(200)]
    tokenizer = TokenizerConfig.read({"kind": kind, "vocab_size": 300})
    prepared = made(tmp_path, csv_of(rows), tokenizer)
    expected = [text for text, _ in rows if split_of(hash_position(text)) == "train"]
    assert texts(prepared, prepared.train) == expected
    assert prepared.tokenizer.size <= 300
    assert int(prepared.train.tokens.max()) < prepared.tokenizer.size


def test_a_cache_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(UserError, match=r"cache/stores/.*: cannot be written: .*; set QKV_CACHE to another folder"):
        made(tmp_path, csv_of(TWO))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"v\.csv: no such file or folder"):
        made(tmp_path, csv_of(TWO), validation="v.csv")


@pytest.mark.parametrize("odd", ["a\xa0b", "two\nlines", "9" * 201])
def test_a_label_that_fits_on_no_line_is_refused_with_its_place(tmp_path: Path, odd: str) -> None:
    said = refused(tmp_path, csv_of([(TWO[0][0], "10"), (TWO[1][0], odd), (TWO[2][0], "2")]))
    assert said.startswith("r.csv, line 3: label ")
    assert "accepted: at most 200 printable characters" in said


def test_a_text_of_the_test_file_is_nowhere_else(tmp_path: Path) -> None:
    shared, kept = TWO[0][0], TWO[1:]
    (tmp_path / "t.csv").write_text(csv_of([(shared.upper(), "0"), ("a new one", "1")]))
    (tmp_path / "v.csv").write_text(csv_of([(f"  {shared}", "0"), (TWO[1][0], "1"), ("another one", "1")]))
    prepared = made(tmp_path, csv_of(TWO), validation="v.csv", test="t.csv")
    assert texts(prepared, prepared.train) == [text for text, _ in kept[1:]]
    assert len(prepared.validation) == 2
    assert any(
        "3 rows are also in a validation or test file and are left out, first r.csv, line 2" in n
        for n in prepared.notes
    )


def test_one_file_cannot_be_two_splits(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(csv_of(TWO))
    said = refused(tmp_path, csv_of(TWO), test="r.csv")
    assert said == "data.test: r.csv is also in data.corpus; each row must be in one split only"


def test_data_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(csv_of(TWO))
    corpus = open_corpus(DataConfig(corpus=str(tmp_path / "r.csv")))
    corpus.check_unchanged()
    (tmp_path / "r.csv").write_text(csv_of(TWO[1:]))
    with pytest.raises(UserError, match="changed while it was being read; run the command again"):
        prepare(corpus, CHARACTERS, tmp_path / "cache")


# --- several corpora


def own(folder: Path, name: str, text: str, label_names: dict[str, str]) -> catalog.Entry:
    """An entry of the catalogue, and its file."""
    content = csv_of([(f"{name} {n}", str(n % 2)) for n in range(40)], f"{text},label")
    (folder / f"{name}.csv").write_text(content)
    file = catalog.File(f"{name}.csv", hashlib.sha256(content.encode()).hexdigest())
    return catalog.Entry(
        name=name, title="", task="classify", licence="", source="", rows=40, kind="own", files=(file,),
        columns=Columns(text, None, "label", None), label_names=label_names,
    )  # fmt: skip


def test_corpora_read_together_have_the_same_columns_and_label_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_DATA", str(tmp_path))
    good = {"0": "bad", "1": "good"}
    kinds = {
        "a": ("text", good),
        "b": ("text", good),
        "other": ("text", {"0": "no", "1": "yes"}),
        "body": ("body", good),
    }
    made_up = {name: own(tmp_path, name, *kind) for name, kind in kinds.items()}
    monkeypatch.setattr(catalog, "entries", lambda: made_up)
    (tmp_path / "plain.csv").write_text(csv_of(TWO))

    def rows(corpus: str, task: str = "classify", **data: Any) -> int:
        return sum(1 for _ in open_corpus(DataConfig(corpus=corpus, **data), format_of(task)).rows())

    assert rows("a + b") == 80
    for both in ("a + other", f"a + {tmp_path}/plain.csv", f"{tmp_path}/plain.csv + a"):
        with pytest.raises(UserError) as error:
            rows(both)
        assert (
            str(error.value)
            == f"data.corpus = {both!r}: these have different label names; set data.label_names for both"
        )
        assert rows(both, label_names="0=no, 1=yes") == rows(both, task="fill") > 40
    with pytest.raises(
        UserError, match=r"data\.corpus = 'a \+ body': corpora that are read together need the same columns"
    ):
        rows("a + body")
    with pytest.raises(
        UserError, match=r"data\.test = 'b \+ body': corpora that are read together need the same columns"
    ):
        rows("a", test="b + body")
    assert rows("a + body", task="fill") == 80


def test_a_path_that_is_there_as_written_is_one_corpus(tmp_path: Path) -> None:
    for name, take in (("a.csv", TWO[:1]), ("b.csv", TWO[:2]), ("a.csv + b.csv", TWO)):
        (tmp_path / name).write_text(csv_of(take))
    with contextlib.chdir(tmp_path):
        assert len(list(open_corpus(DataConfig(corpus="a.csv + b.csv")).rows())) == 6
        (tmp_path / "a.csv + b.csv").unlink()
        assert len(list(open_corpus(DataConfig(corpus="a.csv + b.csv")).rows())) == 3


@pytest.mark.parametrize("kind", ["auto", "blank-lines"])
def test_text_in_class_folders_falls_into_the_same_splits_for_both_tasks(tmp_path: Path, kind: str) -> None:
    """Else what a classifier holds out would be learnt from before."""
    for label in ("bad", "good"):
        (tmp_path / label).mkdir()
        for n in range(60):
            (tmp_path / label / f"{n}.txt").write_text(f"{label} film {n}\n\nits second part\n")
    data = DataConfig.read({"corpus": str(tmp_path)})
    labelled = [(split, row.text) for split, row in open_corpus(data).rows()]
    documents = [
        (split, row.text) for split, row in open_corpus(data.replace(documents=kind), format_of("fill")).rows()
    ]
    assert len({split for split, _ in labelled}) == 3
    assert len(labelled) == 120
    if kind == "auto":
        assert [(split, text.split()) for split, text in documents] == [
            (split, text.split()) for split, text in labelled
        ]
    else:
        assert len(documents) == 240
