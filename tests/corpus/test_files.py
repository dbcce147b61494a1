"""Files become rows exactly as their formats say; what is no such file is refused with file and line."""

import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from qkv.corpus import records
from qkv.corpus.files import Columns, Row, column_names, find, fingerprint, rows
from qkv.schema import UserError
from tests.support.real_data import real_data

PLAIN = Columns(label=None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def read(path: Path, content: str | bytes, columns: Columns | None = None) -> list[Row]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(rows([path], columns or Columns()))


def pairs(found: list[Row]) -> list[tuple[str, str | None]]:
    return [(row.text, row.label) for row in found]


def refused(path: Path, content: str | bytes, columns: Columns | None = None) -> str:
    with pytest.raises(UserError) as error:
        read(path, content, columns)
    return str(error.value)


# --- CSV


def test_csv_counts_the_line_a_record_begins_in(folder: Path) -> None:
    found = read(folder / "r.csv", 'text,label\r\n"two\nlines, and ""quotes""",1\r\n\r\nplain, 0 \n,\n')
    assert [(row.text, row.label, row.place) for row in found] == [
        ('two\nlines, and "quotes"', "1", "r.csv, line 2"),
        ("plain", "0", "r.csv, line 5"),
        ("", None, "r.csv, line 6"),
    ]


def test_all_four_columns_are_picked_by_name_and_blanks_in_the_header_do_not_count(folder: Path) -> None:
    content = "\ufeffwhere, grade ,b,a\n here , 3 , second , first \n"
    assert read(folder / "r.csv", content, Columns("a", "b", "grade", "where")) == [
        Row(" first ", " second ", "3", "here", "r.csv, line 2")
    ]


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_another_separator_is_accepted_where_all_columns_are_found_by_it(folder: Path, sign: str) -> None:
    assert pairs(read(folder / "r.csv", f'"text"{sign}label\n"a{sign},b"{sign}1\n')) == [(f"a{sign},b", "1")]


def test_a_missing_column_is_named_with_those_found_also_by_another_separator(folder: Path) -> None:
    assert refused(folder / "r.csv", "id,test,label\n1,2,3\n") == (
        "r.csv, line 1: no column 'text'; did you mean test? known: id, test, label; "
        "choose one with --set data.text=NAME"
    )
    assert refused(folder / "r.csv", "text;lable\n1;2\n") == (
        "r.csv, line 1: no column 'label'; did you mean lable? known: text, lable; "
        "choose one with --set data.label=NAME"
    )
    assert "column 'text' is there twice" in refused(folder / "r.csv", "text,label,text\n")
    assert read(folder / "r.csv", "text,label,x,x\na,b,c,d\n")[0].text == "a"  # twice, but not wanted


def test_broken_csv_is_refused_where_the_record_began(folder: Path) -> None:
    start = "text,label\nfine,1\n"
    assert refused(folder / "r.csv", start + "a,b,1\n") == (
        "r.csv, line 3: 3 fields, but the header names 2; is a ',' inside a text? A field that holds one needs quotes"
    )
    assert "r.csv, line 3: 1 field, but the header names 2; is a line end inside" in refused(
        folder / "r.csv", start + "a\n"
    )
    assert refused(folder / "r.csv", start + '"open,1\nmore,1\nmore,1\n') == (
        "r.csv, line 3: a quote opens in this record and is not closed before the end of the file"
    )
    assert "r.csv, line 3: in this record, in line 4, something else than ',' follows a closing quote" in refused(
        folder / "r.csv", start + '"a\nb"c,1\n'
    )
    assert "r.csv, line 1: a quote opens" in refused(folder / "r.csv", '"text,label\nfine,1\n')
    assert "r.csv, line 1: a line ends with \\r alone" in refused(folder / "r.csv", "text,label\rfine,1\r")


def test_an_empty_file_is_refused_and_a_lone_header_has_no_rows(folder: Path) -> None:
    for name, blank in (("r.csv", ""), ("r.csv", "\n\n"), ("r.tsv", ""), ("r.tsv", "\n"), ("r.csv", "\ufeff")):
        assert refused(folder / name, blank) == f"{name}: empty; the first line must name the columns"
    assert read(folder / "r.csv", "text,label") == []
    assert read(folder / "r.tsv", "text\tlabel\n") == []
    assert read(folder / "r.jsonl", "") == []
    assert read(folder / "r.txt", "", PLAIN) == []


def test_a_field_has_a_bound_and_is_not_cut_before_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "x" * 200_000  # Python's own bound is 131,072
    assert read(folder / "r.csv", f"text,label\n{long},1\n")[0].text == long
    monkeypatch.setattr(records, "LARGEST", 50)
    assert "r.csv, line 2: a field of over 16 MiB" in refused(folder / "r.csv", 'text,label\n"' + "xxxx\n" * 20)
    for name in ("r.csv", "r.tsv", "r.jsonl", "r.txt"):
        sentence = refused(folder / name, "text,label\n" + "y" * 51, PLAIN if name == "r.txt" else None)
        assert f"{name}, line 2: a line of over 16 MiB" in sentence or "line 1" in sentence


ODD = st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
                                 st.sampled_from('",;\t|\n\r \u2028\u0085\ufeff\'')), max_size=20)  # fmt: skip


@given(st.lists(st.tuples(ODD, ODD, ODD), max_size=8), st.sampled_from([",", ";", "\t", "|"]))
def test_whatever_csv_writer_writes_reads_back(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[str, str, str]], sign: str
) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=sign).writerows([("pair", "text", "label"), *records])
    found = read(_scratch(tmp_path_factory) / "r.csv", out.getvalue(), Columns("text", "pair", "label"))
    assert [(row.pair, row.text, row.label) for row in found] == [(a, b, c.strip() or None) for a, b, c in records]


@given(st.lists(st.tuples(ODD, ODD), max_size=8))
def test_tsv_reads_back_with_tabs_in_the_last_column(
    tmp_path_factory: pytest.TempPathFactory, raw: list[tuple[str, str]]
) -> None:
    records = [(a.translate({9: "", 10: "", 13: ""}), b.replace("\n", "").rstrip("\r")) for a, b in raw]
    records.append(("x", 'with a "stray" quote'))  # so that no quote of this file quotes
    content = "label\ttext\n" + "".join(f"{a}\t{b}\n" for a, b in records)
    found = read(_scratch(tmp_path_factory) / "r.tsv", content)
    assert [(row.label, row.text) for row in found] == [(a.strip() or None, b) for a, b in records]


@given(st.lists(st.tuples(ODD, ODD, ODD), max_size=8))
def test_tsv_as_a_spreadsheet_writes_it_reads_back(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[str, str, str]]
) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter="\t").writerows([("pair", "text", "label"), *records])
    found = read(_scratch(tmp_path_factory) / "r.tsv", out.getvalue(), Columns("text", "pair", "label"))
    assert [(row.pair, row.text, row.label) for row in found] == [(a, b, c.strip() or None) for a, b, c in records]


def _scratch(factory: pytest.TempPathFactory) -> Path:
    place = factory.getbasetemp() / "scratch"
    place.mkdir(exist_ok=True)
    return place


# --- TSV, plain text


def test_tsv_knows_no_quotes_and_ends_lines_at_newlines_only(folder: Path) -> None:
    found = read(folder / "r.tsv", 'id\ttext\tlabel\r\n1\t"a\u2028b\u0085c\t1\r\n\n2\td\t0')
    assert [(row.text, row.label, row.place) for row in found] == [
        ('"a\u2028b\u0085c', "1", "r.tsv, line 2"),
        ("d", "0", "r.tsv, line 4"),
    ]


def test_a_text_in_the_last_column_of_tsv_takes_its_tabs(folder: Path) -> None:
    assert pairs(read(folder / "r.tsv", "label\ttext\n1\ta\t\tb\t\n")) == [("a\t\tb\t", "1")]


SPREADSHEET = 'id\ttext\tlabel\r\n1\t"two\nlines, a\ttab and ""quotes"""\t"a, b"\r\n2\tplain\t0\r\n'


def test_tsv_is_quoted_where_every_quote_is_that_of_a_spreadsheet(folder: Path) -> None:
    found = read(folder / "r.tsv", SPREADSHEET)
    assert [(row.text, row.label, row.place) for row in found] == [
        ('two\nlines, a\ttab and "quotes"', "a, b", "r.tsv, line 2"),
        ("plain", "0", "r.tsv, line 4"),
    ]
    assert column_names([folder / "r.tsv"]) == ["id", "text", "label"]
    (folder / "quoted.tsv").write_text('"my\ntext"\t"label"\n"a"\t1\n')
    assert column_names([folder / "quoted.tsv"]) == ["my\ntext", "label"]
    quoted = rows([folder / "quoted.tsv"], Columns("my\ntext"))
    assert [(row.text, row.place) for row in quoted] == [("a", "quoted.tsv, line 3")]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('1\t0.8\t"Then the captain was gone.', '"Then the captain was gone.'),  # STS-B
        ('1\t1.2\t"Fairies don\'t exist" - fine.', '"Fairies don\'t exist" - fine.'),
        ('1\t1\tAmrozi called him "the witness".', 'Amrozi called him "the witness".'),  # MRPC
        ('1\t1\ta fine film\tand "long"', 'a fine film\tand "long"'),  # IMDB, a tab in the last column
        ('1\t1\t"a fine film"\tand more', '"a fine film"\tand more'),
    ],
)
def test_one_quote_that_does_not_quote_makes_all_of_a_tsv_plain(folder: Path, line: str, text: str) -> None:
    found = read(folder / "r.tsv", f'id\tlabel\ttext\n0\t1\t"fine"\n{line}\n2\t1\tlast\n')
    assert [row.text for row in found] == ['"fine"', text, "last"]


def test_a_quoted_tsv_with_one_bad_record_says_why_its_quotes_do_not_count(folder: Path) -> None:
    assert refused(folder / "r.tsv", SPREADSHEET + '3\ta "stray" quote\t1\n') == (
        "r.tsv, line 2: 2 fields, but the header names 3; is a line end inside a text? "
        "Quotes are plain characters in this file, because the quotes of line 5 are not those of a quoted field"
    )


@pytest.mark.real
@pytest.mark.parametrize(
    "name", ["glue/RTE/train.tsv.gz", "glue/RTE/dev.tsv.gz", "imdb/dev.tsv.gz", "imdb/train.tsv.gz"]
)
def test_real_tsv_with_stray_quotes_is_read_as_it_stands(name: str) -> None:
    file = real_data(name)
    columns = Columns("text") if "imdb" in name else Columns("sentence1", "sentence2")
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as lines:
        names = next(lines).rstrip("\r\n").split("\t")
        plain = [line.rstrip("\n").removesuffix("\r").split("\t", len(names) - 1) for line in lines]
    found = list(rows([file], columns))
    assert [row.text for row in found] == [record[names.index(columns.text)] for record in plain]
    assert any('"' in row.text for row in found)


def test_tsv_with_wrong_fields_or_no_tabs(folder: Path) -> None:
    assert refused(folder / "r.tsv", "text\tlabel\na\tb\t1\n") == (
        "r.tsv, line 2: 3 fields, but the header names 2; is a tab inside a text?"
    )
    assert refused(folder / "r.tsv", "label\ttext\nalone\n").startswith("r.tsv, line 2: 1 field")
    assert "it has commas, not tabs: if it is CSV, name it .csv" in refused(folder / "r.tsv", "text,label\na,1\n")


def test_plain_text_is_one_text_a_line(folder: Path) -> None:
    found = read(folder / "r.txt", "one\r\n\n two\tand, \u2028 \n", PLAIN)
    assert [(row.text, row.label, row.place) for row in found] == [
        ("one", None, "r.txt, line 1"),
        ("", None, "r.txt, line 2"),
        (" two\tand, \u2028 ", None, "r.txt, line 3"),
    ]
    assert "r.txt: plain text has no column 'label'; accepted with labels: CSV" in refused(folder / "r.txt", "a\n")
    assert "data.pair = 'b'" in refused(folder / "r.txt", "a\n", Columns(label=None, pair="b"))


def test_folders_of_texts_are_labels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"neg/1_2.txt": "bad\nvery bad\n", "pos/1_9.txt": "good", "pos/0_8.txt": "fine\r\n"}.items():
        (folder / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "train" / name).write_bytes(text.encode())
    found = list(rows(find(str(folder / "train")), Columns()))
    assert [(row.text, row.label, row.place) for row in found] == [
        ("bad\nvery bad", "neg", "neg/1_2.txt, line 1"),
        ("fine", "pos", "pos/0_8.txt, line 1"),
        ("good", "pos", "pos/1_9.txt, line 1"),
    ]
    assert len(list(rows(find(str(folder / "train")), PLAIN))) == 4  # without labels a line is a text
    with zipfile.ZipFile(folder / "t.zip", "w") as archive:
        for file in find(str(folder / "train")):
            archive.write(file, file.relative_to(folder))
    assert pairs(list(rows([folder / "t.zip"], Columns()))) == pairs(found)
    (folder / "train" / "urls.txt").write_text("stray")
    with pytest.raises(UserError, match=r"train/urls\.txt: not beside the other text files; .*'train/\*/\*\.txt'"):
        list(rows(find(str(folder / "train")), Columns()))
    with pytest.raises(UserError, match="plain text has no column"):
        list(rows(find(str(folder / "train" / "pos")), Columns()))
    monkeypatch.setattr(records, "LARGEST", 10)
    with pytest.raises(UserError, match=r"neg/1_2\.txt: one text of over 16 MiB"):
        list(rows(find(str(folder / "train" / "*" / "*.txt")), Columns()))


# --- JSON lines


def test_json_labels_are_written_as_their_owner_would(folder: Path) -> None:
    labels: list[Any] = ["a ", 1, 1.0, 0.5, True, False, None, "", -3]
    lines = [json.dumps({"text": "t\n", "label": label}) for label in labels] + ["", '{"text": null}']
    found = read(folder / "r.jsonl", "\r\n".join(lines))
    assert [row.label for row in found] == ["a", "1", "1", "0.5", "true", "false", None, None, "-3", None]
    assert (found[0].text, found[-1].text, found[-1].place) == ("t\n", "", "r.jsonl, line 11")
    assert read(folder / "r.NDJSON", '{"a": "x", "b": "y", "g": 2}', Columns("a", "b", None, "g")) == [
        Row("x", "y", None, "2", "r.NDJSON, line 1")
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("[1]", "r.json, line 2: an array, not an object; accepted: one object a line; an array becomes that with jq"),
        ("{", "r.json, line 2: not JSON: Expecting"),
        ('{"text": 5}', "r.json, line 2: text is a number, not text"),
        ('{"txt": "a"}', "r.json, line 2: no key 'text'; did you mean txt? known: txt; choose one with --set"),
        ('{"text": "a", "label": [1]}', "line 2: label is an array; accepted: text, a number, true or false"),
        ('{"text": "a", "label": NaN}', "r.json, line 2: not JSON: NaN is no JSON number"),
        ('{"text": "\\ud800", "label": 1}', "r.json, line 2: '\\ud800' is half of a character (a lone surrogate)"),
        ('{"text": "a", "label": "\\udc00"}', "r.json, line 2: '\\udc00' is half of a character"),
        ("[" * 100_000, "r.json, line 2: nested too deeply"),
        ('{"text": "a", "label": ' + "1" * 5000 + "}", "r.json, line 2: not JSON"),
    ],
)
def test_bad_json_lines(folder: Path, line: str, sentence: str) -> None:
    assert sentence in refused(folder / "r.json", '{"text": "\\ud83d\\ude00", "label": 1}\n' + line)


def test_a_label_that_no_line_has_is_a_wrong_name(folder: Path) -> None:
    assert refused(folder / "r.jsonl", '{"text": "a", "lable": 1}\n') == (
        "r.jsonl: no line has 'label'; did you mean lable? known: text, lable; choose one with --set data.label=NAME"
    )


# --- bytes


def test_what_is_not_utf8_is_refused_with_line_and_byte(folder: Path) -> None:
    assert refused(folder / "r.csv", b"text,label\nok,1\ncaf\xe9,1\n") == (
        "r.csv, line 3, byte 20: 0xe9 is not UTF-8; "
        "convert it, if that is what it is: iconv -f latin1 -t utf-8 r.csv > new-r.csv"
    )
    far = b"\xef\xbb\xbftext,label\n" + "é,1\n".encode() * 60_000 + b"\xff"
    assert f"r.csv, line 60002, byte {len(far)}: 0xff is not UTF-8" in refused(folder / "r.csv", far)
    assert "r.tsv, line 2, byte 12: 0xc3 is not" in refused(folder / "r.tsv", b"text\tlabel\n\xc3")
    assert "r.csv, line 1, byte 1: UTF-16, not UTF-8" in refused(folder / "r.csv", "text,label\n".encode("utf-16"))
    assert "r.csv, line 1: a NUL byte" in refused(folder / "r.csv", "text,label\n".encode("utf-16-le"))
    assert "r.jsonl, line 2: a NUL byte" in refused(folder / "r.jsonl", b'{"text": "a", "label": 1}\n\0')


def test_gzip_and_zip_read_as_what_is_inside(folder: Path) -> None:
    content = "text,label\na,1\nb,0\n"
    assert pairs(read(folder / "R.CSV.GZ", gzip.compress(content.encode()))) == [("a", "1"), ("b", "0")]
    with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("z/b.tsv", "text\tlabel\nc\t2\n")
        archive.writestr("a.csv.gz", gzip.compress(content.encode()))
        for ignored in ("README.md", ".hidden.csv", "__MACOSX/a.csv"):
            archive.writestr(ignored, "nothing")
    assert [(row.text, row.place) for row in rows([folder / "x.zip"], Columns())] == [
        ("a", "x.zip:a.csv.gz, line 2"),
        ("b", "x.zip:a.csv.gz, line 3"),
        ("c", "x.zip:z/b.tsv, line 2"),
    ]
    assert column_names([folder / "x.zip"]) == ["text", "label"]


def test_broken_packages_are_refused_in_words(folder: Path) -> None:
    whole = gzip.compress(b"text,label\n" + os.urandom(3000).hex().encode() + b",1\n")
    for broken in (b"text,label\n", whole[:-20], whole[:600] + b"\xff\xff\xff" + whole[603:]):
        assert "r.csv.gz: a broken gzip file: " in refused(folder / "r.csv.gz", broken)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("r.csv", "text,label\naaaa,1\n")
    packed = out.getvalue()
    assert "x.zip: a broken zip file: " in refused(folder / "x.zip", packed[:50])
    assert "x.zip:r.csv: a broken zip file: Bad CRC" in refused(folder / "x.zip", packed.replace(b"aaaa", b"aaab"))
    locked = bytearray(packed)
    locked[packed.index(b"PK\x01\x02") + 8] |= 1
    assert refused(folder / "x.zip", bytes(locked)) == (
        "x.zip:r.csv: encrypted; unpack it with its password and give the file"
    )
    with zipfile.ZipFile(folder / "x.zip", "w") as archive:
        archive.writestr("README", "nothing")
    with pytest.raises(UserError, match=r"x\.zip: no member of a known format; it holds README; accepted: \.csv"):
        list(rows([folder / "x.zip"], Columns()))


def test_a_bomb_of_one_endless_line_is_refused_in_little_memory(folder: Path) -> None:
    with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("r.txt", "w") as member:
        for _ in range(40):
            member.write(b"a" * 2**20)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"x\.zip:r\.txt, line 1: a line of over 16 MiB"):
        list(rows([folder / "x.zip"], PLAIN))
    assert tracemalloc.get_traced_memory()[1] < 60 * 2**20
    tracemalloc.stop()


def test_memory_does_not_grow_with_the_file(folder: Path) -> None:
    (folder / "r.csv").write_text("text,label\n" + f"{'a word ' * 1000},1\n" * 2_000)  # 14 MB
    tracemalloc.start()
    count = sum(1 for _ in rows([folder / "r.csv"], Columns()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 2_000
    assert peak < 2 * 2**20


# --- Parquet


def _parquet(path: Path, **columns: Any) -> Path:
    parquet.write_table(arrow.table(columns), path, row_group_size=700)
    return path


def test_parquet_in_batches_with_every_kind_of_label(folder: Path) -> None:
    many = 2500
    path = _parquet(folder / "r.parquet", id=list(range(many)), text=[f"t{n}" for n in range(many)], label=[1] * many)
    found = list(rows([path], Columns()))
    assert [row.text for row in found] == [f"t{n}" for n in range(many)]
    assert (found[-1].label, found[-1].place) == ("1", "r.parquet, row 2500")
    kinds = {
        "words": arrow.array(["a ", None]).dictionary_encode(),
        "bools": arrow.array([True, None]),
        "floats": arrow.array([2.0, float("nan")]),
        "large": arrow.array(["", "b"], arrow.large_string()),
    }
    expected = {"words": ["a", None], "bools": ["true", None], "floats": ["2", None], "large": [None, "b"]}
    path = _parquet(folder / "k.parquet", text=["x", None], **kinds)
    for name, labels in expected.items():
        assert pairs(list(rows([path], Columns(label=name)))) == list(zip(["x", ""], labels, strict=True))
    assert next(rows([path], Columns("large", "words", None, "bools"))) == Row(
        "", "a ", None, "true", "k.parquet, row 1"
    )
    assert column_names([path]) == ["text", *kinds]


def test_parquet_that_does_not_fit(folder: Path) -> None:
    path = _parquet(folder / "r.parquet", text=[1], label=[[1]])
    for columns, sentence in (
        (Columns("txt"), "r.parquet: no column 'txt'; did you mean text? known: text, label"),
        (Columns(), "r.parquet: column 'text' holds int64, not strings"),
    ):
        with pytest.raises(UserError, match=re.escape(sentence)):
            list(rows([path], columns))
    path = _parquet(folder / "r.parquet", text=["a"], label=[[1]])
    with pytest.raises(UserError, match=r"r\.parquet, row 1: label is an array; accepted: text, a number"):
        list(rows([path], Columns()))
    assert "r.parquet: not a Parquet file that can be read" in refused(folder / "r.parquet", b"PAR1 not really PAR1")
    (folder / "r.parquet.gz").write_bytes(b"")
    with pytest.raises(UserError, match="not a known kind of file"):
        list(rows([folder / "r.parquet.gz"], Columns()))


def test_without_pyarrow_parquet_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refused(folder / "r.parquet", b"PAR1") == (
        "r.parquet: reading Parquet needs pyarrow: pip install 'qkv[parquet]'"
    )


# --- files


def test_find_takes_a_file_a_folder_and_a_glob(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["a.csv", "b/c.TSV.gz", "b/d.zip", "e.csv/f.txt"]
    for name in [*wanted, "notes.md", ".hidden.csv", ".git/x.csv", "b/x.dat"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert [file.relative_to(folder).as_posix() for file in find(str(folder))] == wanted
    assert find(f"{folder}/a.csv") == [folder / "a.csv"]
    monkeypatch.chdir(folder)
    assert find("**/*.[tT]*") == [Path("b/c.TSV.gz"), Path("e.csv/f.txt")]
    assert find("**/*.csv") == [Path("a.csv")]
    (folder / "odd[1].csv").touch()
    assert find("odd[1].csv") == [Path("odd[1].csv")]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nowhere.csv", "nowhere.csv: no such file or folder"),
        ("*.tsv", r"\*.tsv: no file of a known format matches; accepted: .csv, .tsv"),
        ("empty", "empty: a folder without a file of a known format; accepted: .csv"),
        ("r.xls", "r.xls: not a known kind of file; accepted: .csv, .tsv, .jsonl"),
        ("r.gz", "r.gz: not a known kind of file"),
        ("", "'': no file has such a name"),
        ("a\0b", "no file has such a name"),
        ("x" * 5000, "no such file"),
    ],
)
def test_find_says_what_it_did_not_find(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, sentence: str
) -> None:
    monkeypatch.chdir(folder)
    (folder / "empty").mkdir()
    (folder / "r.xls").touch()
    (folder / "r.gz").touch()
    with pytest.raises(UserError, match=sentence):
        find(source)


def test_what_is_no_regular_file_is_refused_at_once(folder: Path) -> None:
    (folder / "d.csv").mkdir()
    os.mkfifo(folder / "p.csv")
    os.mkfifo(folder / "p.csv.gz")
    (folder / "gone.csv").symlink_to(folder / "nowhere")
    for name, sentence in {
        "d.csv": "a folder, not a file",
        "p.csv": "neither a file nor a folder",
        "p.csv.gz": "neither a file nor a folder",
        "gone.csv": "gone.csv: cannot be read: No such file or directory",
    }.items():
        with pytest.raises(UserError, match=sentence):
            list(rows([folder / name], Columns()))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_one_may_not_read(folder: Path) -> None:
    (folder / "r.csv").touch(mode=0)
    with pytest.raises(UserError, match=r"r\.csv: cannot be read: Permission denied"):
        list(rows([folder / "r.csv"], Columns()))


def test_an_abandoned_reading_closes_its_file(folder: Path) -> None:
    (folder / "r.csv").write_text("text,label\na,1\nb,1\n")
    reading: Iterator[Row] = rows([folder / "r.csv"], Columns())
    assert next(reading).text == "a"
    opened = os.dup(0)  # the lowest free number: what the reader has is below it
    os.close(opened)
    del reading
    now = os.dup(0)
    os.close(now)
    assert now < opened


def test_a_fingerprint_is_of_names_and_contents_wherever_they_lie(folder: Path) -> None:
    for place in ("one", "two"):
        (folder / place / "sub").mkdir(parents=True)
        (folder / place / "a.csv").write_text("text\n1\n")
        (folder / place / "sub" / "b.csv").write_text("text\n2\n")
    one, two = find(str(folder / "one")), find(str(folder / "two"))
    assert fingerprint(one) == fingerprint(two)
    assert fingerprint(one[:1]) == fingerprint(two[:1]) != fingerprint(one)
    two[1].write_text("text\n3\n")
    assert fingerprint(one) != fingerprint(two)
    two[1].write_text("text\n2\n")
    two[1].rename(folder / "two" / "sub" / "c.csv")
    assert fingerprint(one) != fingerprint(find(str(folder / "two")))


def test_reading_text_does_not_load_torch_or_pyarrow() -> None:
    code = "import sys, qkv.corpus.catalog; assert not {'torch', 'pyarrow'} & set(sys.modules), 'loaded'"
    subprocess.run([sys.executable, "-c", code], check=True)
