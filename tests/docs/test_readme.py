"""The documents are true: every command and every piece of code in them runs, and prints what they say it prints.

In a ```console block, a line `$ qkv ...` is run and what follows must be its output; a line `...` stands for any lines.
A ```python block is run as it is; a comment `# -> text` at the end of a print line is what it must print. Blocks marked
`real` need the package index: they run in order, in one folder, with `make real`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "tasks.md", ROOT / "docs" / "tour.md"]
LINKING = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")]
PROGRAMS = {
    "qkv": [sys.executable, "-P", "-m", "qkv.cli.main"],
    "pip": [sys.executable, "-m", "pip"],
    "python": [sys.executable],
}


def blocks(kinds: str) -> list[tuple[str, str, str]]:
    """Name, kind and text of each block whose opening line is ``` and one of the kinds."""
    found = []
    for document in DOCUMENTS:
        for match in re.finditer(rf"^```({kinds})\n(.*?)^```", document.read_text(encoding="utf-8"), re.S | re.M):
            found.append((f"{document.name}: {match[2].splitlines()[0]}", match[1], match[2]))
    return found


def run(command: list[str], folder: Path = ROOT) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=folder, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def squeezed(text: str) -> str:
    """Without trailing blanks and empty lines, which say nothing to a reader."""
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def check_commands(text: str, folder: Path = ROOT) -> None:
    for session in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, expected = session.partition("\n")
        program, *words = shlex.split(command, comments=True)
        if program == "make":
            continue  # `make` builds the environment this test runs in
        output = squeezed(run([*PROGRAMS.get(program, [program]), *words], folder))
        if program == "qkv":
            pattern = ".*".join(re.escape(squeezed(piece)) for piece in re.split(r"^\.\.\.$", expected, flags=re.M))
            assert re.fullmatch(pattern, output, re.S), f"{command} printed:\n{output}"


def check_code(code: str, folder: Path = ROOT) -> None:
    expected = re.findall(r"# -> (.*)$", code, re.M)
    assert expected, "shows no result"
    assert run([sys.executable, "-c", code], folder).splitlines() == expected


@pytest.mark.parametrize(("name", "kind", "text"), blocks("console"))
def test_commands_print_what_the_documents_say(name: str, kind: str, text: str) -> None:
    check_commands(text)


@pytest.mark.parametrize(("name", "kind", "code"), blocks("python"))
def test_code_prints_what_the_documents_say(name: str, kind: str, code: str, tmp_path: Path) -> None:
    check_code(code, tmp_path)


@pytest.mark.real
def test_what_needs_the_package_index_is_true_too(tmp_path: Path) -> None:
    found = blocks("console real|python real")
    assert len(found) >= 2
    for _, kind, text in found:
        (check_commands if kind == "console real" else check_code)(text, tmp_path)


def test_the_tree_names_every_file_of_the_package() -> None:
    """Of commands and labs, one file each, only the folder."""
    tree = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = [path for path in (ROOT / "src" / "qkv").rglob("*.py") if path.name != "__init__.py"]
    many = {"cli", "experiments"}
    named = [f"{path.parent.name}/" if path.parent.name in many else path.name for path in files]
    assert [name for name in named if name not in tree] == []


def test_documents_name_no_file_that_does_not_exist() -> None:
    assert {document.name for document in LINKING} >= {"README.md", "CONTRIBUTING.md", "tour.md", "decisions.md"}
    for document in LINKING:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert target.startswith("http") or (document.parent / target).exists(), f"{document.name}: {target}"
