"""Real text that is on every machine that runs qkv: what Python's own `help()` says about the language.

Half a million characters of English prose and tables by the Python Software Foundation, read where Python keeps them;
nothing has to be downloaded, and nothing is copied. Which words it has depends a little on the version of Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pydoc_data import topics

SHORTEST, LONGEST = 60, 2000  # characters of a paragraph that is prose


@cache
def paragraphs() -> tuple[str, ...]:
    """Prose: paragraphs without code, each on one line, in the order of the topics, none twice."""
    found = dict.fromkeys(paragraph for name in sorted(topics.topics) for paragraph in _of(topics.topics[name]))
    return tuple(found)


def _of(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        line = " ".join(block.split())
        is_prose = line[:1].isupper() and line[-1:] in ".:;)" and "::=" not in line and ">>>" not in line
        if is_prose and SHORTEST <= len(line) <= LONGEST:
            yield line


@cache
def documents() -> tuple[str, ...]:
    """The topics whole, as prose: some 70 texts of many paragraphs."""
    joined = (" ".join(dict.fromkeys(_of(topics.topics[name]))) for name in sorted(topics.topics))
    return tuple(text for text in joined if len(text) > LONGEST)
