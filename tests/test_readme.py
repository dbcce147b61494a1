"""The documents are true: every command and every piece of code in them runs, and prints what they say it prints.

In a ```console block, a line `$ qkv ...` is run and what follows must be its output; a line `...` stands for any lines.
A ```python block is run as it is; a comment `# -> text` at the end of a print line is what it must print.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "tour.md"]


def blocks(kind: str) -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        for match in re.finditer(rf"^```{kind}\n(.*?)^```", document.read_text(encoding="utf-8"), re.S | re.M):
            found.append((f"{document.name}: {match[1].splitlines()[0]}", match[1]))
    return found


def run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout


def squeezed(text: str) -> str:
    """Without trailing blanks and empty lines, which say nothing to a reader."""
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


@pytest.mark.parametrize(("name", "text"), blocks("console"))
def test_commands_print_what_the_documents_say(name: str, text: str) -> None:
    for session in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, expected = session.partition("\n")
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            continue  # `make` builds the environment this test runs in
        assert words[0] == "qkv", name
        output = squeezed(run([sys.executable, "-m", "qkv.app.cli", *words[1:]]))
        pattern = ".*".join(re.escape(squeezed(piece)) for piece in re.split(r"^\.\.\.$", expected, flags=re.M))
        assert re.fullmatch(pattern, output, re.S), f"{command} printed:\n{output}"


@pytest.mark.parametrize(("name", "code"), blocks("python"))
def test_code_prints_what_the_documents_say(name: str, code: str) -> None:
    expected = re.findall(r"# -> (.*)$", code, re.M)
    assert expected, f"{name}: shows no result"
    assert run([sys.executable, "-c", code]).splitlines() == expected


def test_the_tree_in_the_readme_names_every_file_of_the_package() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files = [path for path in (ROOT / "src" / "qkv").rglob("*.py") if path.name != "__init__.py"]
    assert [path.name for path in files if path.name not in readme] == []


def test_documents_name_no_file_that_does_not_exist() -> None:
    for document in [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "docs" / "decisions.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert target.startswith("http") or (document.parent / target).exists(), f"{document.name}: {target}"
