"""Files appear whole or not at all, and a manifest tells when one is no longer what was written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qkv import disk
from qkv.schema import UserError
from tests.support.fork_server import flip

OLD, NEW = b"old" * 50, b"new" * 70


def folder_with(place: Path, **files: bytes) -> Path:
    """A folder and its manifest; `a_txt` is the file a.txt."""
    place.mkdir()
    names = {name.replace("_", "."): content for name, content in files.items()}
    for name, content in names.items():
        (place / name).write_bytes(content)
    disk.write_manifest(place, names)
    return place


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    def write_new(path: Path) -> None:
        path.write_bytes(NEW)

    file = tmp_path / "a.txt"
    disk.replace_file(file, OLD)
    disk.replace_file(file, write_new)
    assert file.read_bytes() == NEW
    assert names_in(tmp_path) == ["a.txt"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "f", a_txt=OLD)

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        disk.replace_file(folder / "a.txt", fail)
    with pytest.raises(OSError, match="full"):
        disk.replace_listed(folder, "a.txt", fail)
    with pytest.raises(OSError, match="full"), disk.new_folder(tmp_path / "g") as made:
        fail(made / "a.txt")
    assert (folder / "a.txt").read_bytes() == OLD
    assert names_in(folder) == ["MANIFEST.json", "a.txt"]
    assert names_in(tmp_path) == ["f"]
    assert disk.problems(folder) == []


def test_facts_are_those_of_the_version_that_is_there(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "f", a_txt=OLD)
    assert disk.facts_of(folder, "a.txt") == disk.described(folder / "a.txt")
    disk.replace_listed(folder, "a.txt", NEW, step=3)
    assert (disk.facts_of(folder, "a.txt") or {})["step"] == 3
    (folder / "a.txt").write_bytes(OLD)
    assert disk.facts_of(folder, "a.txt") is None


@pytest.mark.parametrize("name", ["a.txt", "b.txt"])
def test_every_damage_is_named(tmp_path: Path, name: str) -> None:
    folder = folder_with(tmp_path / "f", a_txt=OLD, b_txt=NEW)
    file = folder / name
    content = file.read_bytes()
    flip(file)
    assert disk.problems(folder) == [f"{file}: its content is not what was written (sha256 differs from MANIFEST.json)"]
    file.write_bytes(content[:-1])
    expected = f"{file}: has {len(content) - 1} bytes, its manifest says {len(content)}"
    assert disk.problems(folder) == [expected]
    file.unlink()
    assert disk.problems(folder) == [f"{file}: is missing, its manifest lists it"]
    file.mkdir()
    assert disk.problems(folder) == [f"{file}: is not a regular file"]
    file.rmdir()
    file.write_bytes(content)
    assert disk.problems(folder) == []


def test_a_flipped_bit_anywhere_in_a_manifest_is_noticed(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "f", a_txt=OLD)
    disk.replace_listed(folder, "a.txt", NEW, step=20, temperature=1.25)
    file = folder / disk.MANIFEST
    size = file.stat().st_size
    for place in range(size):
        for bit in {place % 8, 5}:  # 5: the case of a letter
            flip(file, place, bit)
            assert disk.problems(folder), (place, bit)
            flip(file, place, bit)
    assert disk.problems(folder) == []


def test_a_file_that_would_be_used_must_be_listed(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "f", a_txt=OLD)
    assert disk.problems(folder, ["b.txt"]) == []
    (folder / "b.txt").write_bytes(NEW)
    wrong = disk.problems(folder, ["b.txt"])
    assert wrong == [f"{folder / 'b.txt'}: is not listed in MANIFEST.json, so it is not what was written"]


ENTRY = {"bytes": 1, "sha256": "0"}
ODD: list[Any] = [
    {"../secret": [ENTRY]},
    {"/etc/passwd": [ENTRY]},
    {"..": [ENTRY]},
    {"": [ENTRY]},
    {"a\0b": [ENTRY]},
    {"a\x1b[2Jb": [ENTRY]},
    {"a.txt": []},
    {"a.txt": {}},
    {"a.txt": "text"},
    {"a.txt": [1]},
    {"a.txt": [{"bytes": 1}]},
    {"a.txt": [{"bytes": "1", "sha256": "0"}]},
    {"a.txt": [{"bytes": 1.0, "sha256": "0"}]},
    {"a.txt": [{"bytes": True, "sha256": "0"}]},
    {"a.txt": [{"bytes": 1, "sha256": None}]},
]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b"7",
        b"{}",
        b'{"files": []}',
        b'{"files": {}}',
        b'{"files": {"a.txt": 1}, "sha256": ""}',
        b"1" * 5000,
        *(json.dumps({"files": files, "sha256": disk._sum(files)}).encode() for files in ODD),
    ],
)
def test_a_hostile_manifest_is_refused_in_a_sentence(tmp_path: Path, text: bytes) -> None:
    (tmp_path / disk.MANIFEST).write_bytes(text)
    (tmp_path / "a.txt").write_bytes(b"x")
    (wrong,) = disk.problems(tmp_path)
    assert wrong.startswith(f"{tmp_path / disk.MANIFEST}: is not a manifest as it was written: ")
    assert "\x1b" not in wrong
    with pytest.raises(UserError, match="not a manifest"):
        disk.facts_of(tmp_path, "a.txt")


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / disk.MANIFEST).open("wb") as file:
        file.truncate(10**12)  # no disk holds that: reading it would fail
    assert "at most 10,000,000 bytes" in disk.problems(tmp_path)[0]


def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    """They may never end. A file of size 0 is what a pipe looks like."""
    folder = folder_with(tmp_path / "f", a_txt=b"", b_txt=b"")
    for name in ("a.txt", "b.txt"):
        (folder / name).unlink()
    os.mkfifo(folder / "a.txt")
    (folder / "b.txt").symlink_to("/dev/zero")
    assert disk.problems(folder) == [f"{folder / name}: is not a regular file" for name in ("a.txt", "b.txt")]
    (folder / disk.MANIFEST).unlink()
    os.mkfifo(folder / disk.MANIFEST)
    assert "must be a regular file" in disk.problems(folder)[0]


def test_a_new_folder_has_a_manifest_unless_none_is_wanted(tmp_path: Path) -> None:
    for name, manifest in (("with", True), ("without", False)):
        (tmp_path / name).mkdir()  # an empty folder may be there already
        with disk.new_folder(tmp_path / name, manifest=manifest) as made:
            (made / "a.txt").write_bytes(NEW)
        assert names_in(tmp_path / name) == [disk.MANIFEST, "a.txt"][not manifest :]
    assert names_in(tmp_path) == ["with", "without"]


def test_what_another_writer_is_making_is_removed_only_by_who_holds_a_lock(tmp_path: Path) -> None:
    other = tmp_path / f"a.tmp-{os.getpid()}"
    other.mkdir()
    (other / "half").write_bytes(OLD)
    with pytest.raises(FileExistsError), disk.new_folder(tmp_path / "a", locked=False):
        pass
    assert names_in(other) == ["half"]
    with disk.new_folder(tmp_path / "a") as made:
        (made / "a.txt").write_bytes(NEW)
    assert names_in(tmp_path) == ["a"]
    assert names_in(tmp_path / "a") == [disk.MANIFEST, "a.txt"]


def test_a_folder_without_a_manifest_is_not_trusted(tmp_path: Path) -> None:
    assert disk.problems(tmp_path) == [f"{tmp_path / disk.MANIFEST}: is missing, so nothing beside it can be trusted"]
    (tmp_path / "file").touch()
    assert disk.problems(tmp_path / "file") == [f"{tmp_path / 'file' / disk.MANIFEST}: cannot be read: Not a directory"]


# --- killed between any two operations

DEATHS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.support.fork_server import inject_fault
from qkv import disk
what, folder = sys.argv[2], Path(sys.argv[3])
inject_fault({"operation": int(sys.argv[4])})
if what == "replace":
    disk.replace_listed(folder, "a.txt", b"new" * 70, step=2)
elif what == "add":
    disk.replace_listed(folder, "c.txt", b"new" * 70, step=2)
elif what == "remove":
    disk.remove_folder(folder / "inner")
else:
    with disk.new_folder(folder / "made") as made:
        (made / "a.txt").write_bytes(b"new" * 70)
        (made / "b.txt").write_bytes(b"more")
"""


def died(what: str, folder: Path, operation: int) -> bool:
    """Change a folder in a process that is killed before its n-th operation on the disk; False: it had fewer."""
    words = [sys.executable, "-c", DEATHS, str(Path(__file__).parents[1]), what, str(folder), str(operation)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode != 0


@pytest.mark.faults
@pytest.mark.parametrize(("what", "operations"), [("replace", 9), ("add", 9), ("remove", 4), ("new folder", 9)])
def test_a_kill_between_any_two_operations_leaves_all_or_nothing(tmp_path: Path, what: str, operations: int) -> None:
    number, seen = 0, set()
    while True:
        number += 1
        folder = folder_with(tmp_path / str(number), a_txt=OLD)
        folder_with(folder / "inner", b_txt=OLD)
        alive = not died(what, folder, number)
        assert disk.problems(folder) == []
        if what in ("replace", "add"):
            name = "a.txt" if what == "replace" else "c.txt"
            there = (folder / name).read_bytes() if (folder / name).exists() else b""
            assert there in ((OLD, NEW) if what == "replace" else (b"", NEW))
            if there == NEW:
                assert (disk.facts_of(folder, name) or {})["step"] == 2
            seen.add(there)
            disk.replace_listed(folder, name, b"later")  # what a killed process left is in nobody's way
            assert disk.problems(folder) == []
        else:
            target = folder / ("inner" if what == "remove" else "made")
            assert not target.exists() or disk.problems(target) == []
            seen.add(b"there" if target.exists() else b"not there")
        if alive:
            break
    assert number > operations
    assert len(seen) == 2


WRITER = """
import sys
from pathlib import Path
from qkv import disk
folder = Path(sys.argv[1])
for number in range(1, 60):
    disk.replace_listed(folder, "a.txt", str(number).encode() * 1000, number=number)
"""


def test_who_reads_while_another_writes_sees_whole_files_only(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "f", a_txt=OLD)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)])
    looks, numbers = 0, set()
    while writer.poll() is None:
        assert disk.problems(folder) == []
        facts = disk.facts_of(folder, "a.txt")
        assert facts is not None
        numbers.add(facts.get("number"))
        looks += 1
    assert writer.wait() == 0
    assert looks > 3
    assert len(numbers) > 2
