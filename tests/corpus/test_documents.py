"""Files fall into documents as the user said, whatever their line ends, one document in memory at a time."""

import gzip
import json
import tracemalloc
import zipfile
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from qkv.corpus import records
from qkv.corpus.documents import KINDS, documents
from qkv.corpus.files import Columns, Row, find, rows
from qkv.schema import UserError

TEXT = "\n \none\n two \n\n\t\nthree\n\nfour"


def read(path: Path, content: str | bytes, kind: str) -> list[tuple[str, str]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [(row.text, row.place) for row in documents([path], Columns(), kind)]


def refused(path: Path, content: str | bytes, kind: str) -> str:
    with pytest.raises(UserError) as error:
        read(path, content, kind)
    return str(error.value)


# --- plain text


def test_blank_lines_part_documents(tmp_path: Path) -> None:
    found = read(tmp_path / "a.txt", TEXT, "blank-lines")
    assert found == [("one\n two ", "a.txt, line 3"), ("three", "a.txt, line 7"), ("four", "a.txt, line 9")]
    assert read(tmp_path / "a.txt", TEXT, "auto") == found


def test_each_line_is_a_document(tmp_path: Path) -> None:
    assert read(tmp_path / "a.txt", TEXT, "lines") == [
        ("one", "a.txt, line 3"), (" two ", "a.txt, line 4"), ("three", "a.txt, line 7"), ("four", "a.txt, line 9"),
    ]  # fmt: skip


def test_a_whole_file_is_a_document_without_the_blank_lines_around_it(tmp_path: Path) -> None:
    assert read(tmp_path / "a.txt", TEXT + "\n\n \n", "files") == [("one\n two \n\n\nthree\n\nfour", "a.txt, line 3")]


WIKI = """
 = First ( film ) =

 One .
 = Wins ; L =
 Two .

 = = Section = =

 Three .

 = = = Deeper = = =

 = Nothing in it =

 = E = mc2 =

 Four = five .
"""


def test_headings_between_blank_lines_begin_documents_and_are_no_part_of_them(tmp_path: Path) -> None:
    first = " One .\n = Wins ; L =\n Two .\n\n\n Three ."
    expected = [(first, "w.raw, line 2"), (" Four = five .", "w.raw, line 16")]
    assert read(tmp_path / "w.raw", WIKI, "headings") == expected
    assert read(tmp_path / "w.raw", WIKI.replace("\n", " \n"), "headings") == [
        (" One . \n = Wins ; L = \n Two . \n\n\n Three . ", "w.raw, line 2"), (" Four = five . ", "w.raw, line 16"),
    ]  # fmt: skip
    assert read(tmp_path / "w.raw", "before\n\n= A =\n\nafter\n\n== B ==", "headings") == [
        ("before", "w.raw, line 1"), ("after", "w.raw, line 3"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line", ["a\n= A =", "= A =\na", "= = A =", "= A = =", "=A=", "= A", "A =", "=", "= =", "===", "a = b", "= A =."]
)
def test_what_is_not_a_heading(tmp_path: Path, line: str) -> None:
    assert read(tmp_path / "w.txt", f"= T =\n\none\n\n{line}\n\ntwo", "headings") == [
        (f"one\n\n{line}\n\ntwo", "w.txt, line 1")
    ]


def test_text_without_a_heading_is_refused_where_headings_are_wanted(tmp_path: Path) -> None:
    assert refused(tmp_path / "w.txt", "= A =\nnot alone", "headings") == (
        "w.txt: no heading in it; accepted as documents by headings: "
        "lines such as ' = Title = ' with a blank line before and after it"
    )
    assert read(tmp_path / "w.txt", "\n\n", "headings") == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [WIKI, WIKI + WIKI.strip(), "= T =\n\na\n\n\nb\n", "= T =\n\na"])
def test_line_ends_do_not_matter(tmp_path: Path, kind: str, text: str) -> None:
    expected = read(tmp_path / "a.txt", text, kind)
    assert expected
    ends = ["\r\n", "\n", "\r\n", "\r\n", "\n"]  # a lone \r before a \n would be one end with it
    mixed = "".join(line + ends[number % 5] for number, line in enumerate(text.split("\n")))
    for other in (text.replace("\n", "\r\n"), text.replace("\n", "\r"), mixed, "\ufeff" + text):
        assert read(tmp_path / "a.txt", other, kind) == expected
    assert read(tmp_path / "a.txt", "one\rtwo\r\nthree\n\rfour", "blank-lines") == [
        ("one\ntwo\nthree", "a.txt, line 1"), ("four", "a.txt, line 5"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blank", ["", "\n", " \r\n\t\r", "\ufeff"])
def test_what_is_blank_holds_no_document(tmp_path: Path, kind: str, blank: str) -> None:
    assert read(tmp_path / "a.txt", blank, kind) == []


def test_other_separators_of_unicode_are_text(tmp_path: Path) -> None:
    text = "a\u2028b\u0085c\x0bd\x1ce"
    for kind in ("lines", "blank-lines", "files"):
        assert read(tmp_path / "a.txt", text, kind) == [(text, "a.txt, line 1")]


# --- files


def test_members_of_a_zip_and_packed_files_are_files(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("two.txt", "2a\n\n2b")
        archive.writestr("one.text", "1a\n")
        archive.writestr("table.csv", "text,label\n3a,x\n")
    (tmp_path / "a.raw.gz").write_bytes(gzip.compress(b"0a\n"))
    found = documents(find(str(tmp_path)), Columns(), "files")
    assert [(row.text, row.place) for row in found] == [
        ("0a", "a.raw.gz, line 1"),
        ("1a", "b.zip:one.text, line 1"),
        ("3a", "b.zip:table.csv, line 2"),
        ("2a\n\n2b", "b.zip:two.txt, line 1"),
    ]


def test_a_document_does_not_go_on_in_the_next_file(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f" = {name} = \n\none")
    for kind in ("auto", "headings", "files"):
        found = list(documents(find(str(tmp_path)), Columns(), kind))
        assert {row.place.partition(",")[0] for row in found} == {"a.txt", "b.txt"}
        assert all(row.text.count("one") <= 1 for row in found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_a_table_is_a_document_and_only_its_text_is_read(tmp_path: Path, kind: str) -> None:
    text = " = T = \n\none\r\n\ntwo"
    records = [{"body": text}, {"body": " "}, {"body": "three"}]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(record) for record in records))
    (tmp_path / "b.csv").write_bytes(f'x,body\n1,"{text}"\n2, \n3,three\n'.encode())
    parquet.write_table(arrow.Table.from_pylist(records), tmp_path / "c.parquet")
    columns = Columns("body", "pair", "label", "group")
    found = list(documents(find(str(tmp_path)), columns, kind))
    assert [row.text for row in found] == [text, "three"] * 3
    assert found[2:] == [
        Row(text, None, None, None, "b.csv, line 2"), Row("three", None, None, None, "b.csv, line 8"),
        Row(text, None, None, None, "c.parquet, row 1"), Row("three", None, None, None, "c.parquet, row 3"),
    ]  # fmt: skip


def test_rows_of_raw_text_are_still_lines(tmp_path: Path) -> None:
    (tmp_path / "a.raw").write_text("one\n\ntwo\n")
    assert [row.text for row in rows([tmp_path / "a.raw"], Columns(label=None))] == ["one", "", "two"]


# --- what is refused


def test_an_unknown_kind_is_refused_at_once() -> None:
    with pytest.raises(UserError) as error:
        documents([], Columns(), "paragraphs")
    assert str(error.value) == (
        "documents = 'paragraphs': no such kind; accepted: auto, lines, blank-lines, headings, files"
    )


def test_a_document_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LARGEST", 20)
    sentence = "one document of more characters than are read, accepted: up to 20; split it into smaller ones"
    fits = "123456789\n1234567890"  # 20 characters
    for kind in ("auto", "files"):
        assert read(tmp_path / "a.txt", f"\n{fits}\n", kind) == [(fits, "a.txt, line 2")]
        assert refused(tmp_path / "a.txt", f"\n{fits}1\n", kind) == f"a.txt, line 2: {sentence}"
    assert len(read(tmp_path / "a.txt", f"{fits}\n\n{fits}\n", "blank-lines")) == 2
    assert len(read(tmp_path / "a.txt", f"= A =\n\n{fits}\n\n= B =\n\n{fits}", "headings")) == 2
    assert refused(tmp_path / "a.txt", f"= A =\n\n{fits}1", "headings") == f"a.txt, line 1: {sentence}"
    parquet.write_table(arrow.table({"text": ["short", "x" * 21]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet, row 2: one document of more characters"):
        list(documents([tmp_path / "a.parquet"], Columns(), "auto"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_of_50_mb_is_refused_before_it_is_in_memory(tmp_path: Path, kind: str) -> None:
    with gzip.open(tmp_path / "a.txt.gz", "wb", compresslevel=1) as file:
        file.write(b"a title\n\n")
        for _ in range(50):
            file.write(b"x" * 2**20)
    tracemalloc.start()
    with pytest.raises(UserError) as error:
        list(documents([tmp_path / "a.txt.gz"], Columns(), kind))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(error.value) == (
        "a.txt.gz, line 3: a line of over 16 MiB, the most that is read; one text or one record must stand in each line"
    )
    assert peak < 40 * 2**20


def test_bytes_that_are_no_text_are_refused_with_their_place(tmp_path: Path) -> None:
    assert "a.txt, line 2, byte 6: 0xff is not UTF-8" in refused(tmp_path / "a.txt", b"one\nt\xff", "files")
    assert "a.txt, line 1: a NUL byte" in refused(tmp_path / "a.txt", b"one\0", "auto")


def test_only_one_document_is_held(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text((("word " * 20 + "\n") * 10 + "\n") * 5000)  # 5 MB
    tracemalloc.start()
    assert sum(1 for _ in documents([path], Columns(), "auto")) == 5000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 2**20
