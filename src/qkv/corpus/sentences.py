"""Rule-based sentence splitting. No torch.

Sentences come in the order of the text, and nothing but white space is lost between them. A splitter is a plain
function; register your own in `SPLITTERS`. Run time is linear in the length of the text, whatever the text is: patterns
do not backtrack, and no look-around goes further than `NEAR` or `QUOTED` characters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from types import CodeType

from qkv.schema import UserError, listed

Splitter = Callable[[str], list[str]]

NEAR = 24  # characters: no abbreviation is longer
QUOTED = 2000  # characters back in which the other half of a quote is looked for


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# After a title a sentence never ends: a name follows, or a number. With a capital, for "rep" and "gen" are words too.
_TITLES = _words(
    "Mr Mrs Ms Mx Dr Prof St Ste Mt Ft Gen Col Maj Capt Cmdr Lt Sgt Cpl Pvt Adm Brig Rev Fr Hon Sen Rep Gov Pres Supt "
    "Insp Messrs Mme Mlle Vol Vols Pt Chap"
)
_NEVER = _words("mr mrs ms dr prof messrs vs viz cf e.g i.e eg ie")
_NUMBERED = _words("no nos vol vols fig figs ch chap sec art ep op pt pp pg eq ver")
# These may also close a sentence. After the first three any capital says so. After the others, and after initials, only
# a word that often begins sentences does: "U.S. Army" and "Warner Bros. Pictures" go on.
_OFTEN = _words("etc a.m p.m")
_ABBREVIATIONS = _words(
    "inc ltd co corp bros jr sr esq dept univ assn assoc govt est al ed eds approx ca incl lit misc esp orig min max "
    "hr hrs ft lb lbs oz mph var sp spp subsp ave blvd rd jan feb apr jun jul aug sept sep oct nov dec mon tue tues "
    "thu thurs fri calif conn minn penn tenn"
)
_STARTERS = _words(
    "the a an it its he she i we they you this that these those there here his her my our their your in on at by for "
    "from with as after before when while if but and or so yet then now however what who why how where one some many "
    "most all no not although though because since during until also even just both"
)

_GAP = r"(?:\s++|<[bB][rR]\s*+/?>)"
# A possible end. All but its first sign may be missing, so that what was looked at once is not looked at again.
_END = re.compile(
    r"(?P<sign>[.!?\u2026]++)"
    r"(?P<close>(?:[\"'\u201d\u2019)\]}\u00bb]|\[\d{1,3}\]|\x20(?:[)\]}\u201d\u00bb]|''))*+)"
    rf"(?P<gap>{_GAP}*+)"
    rf"|(?:[\r\n]|<[bB][rR]\s*+/?>){_GAP}*+"
)
_LINE_END = r"(?>\r\n|\r|\n)"
_BREAK = re.compile(rf"<[bB][rR]|{_LINE_END}[^\S\r\n]*+{_LINE_END}")
_WORD_BEFORE = re.compile(r"[^\W_][\w.'\u2019]*+\s*+$")
_WORD_AFTER = re.compile(r"[^\W\d_]++(?!\.)")
_OPENING = re.compile(r"[\"'`\u201c\u2018(\[{\u00ab\u00bf\u00a1*_]{0,3}+")
_DOTTED = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")
_ITEM = re.compile(r"\d{1,3}|[IVXLC]+|[^\W\d_]")
_GOES_ON = frozenset(",;:.!?\u2026)]}\u201d\u00bb%/|&=+-\u2013\u2014")


def english(text: str) -> list[str]:
    """The sentences of ordinary English.

    A sentence ends with . ! ? or an ellipsis, closing quotes or brackets, and blanks, where what follows can begin one.
    A blank line and `<br />` always end it, and the latter stays with what it ends; a single line end is a blank.
    A small letter can begin one too, as careless writers have it, but not after a closing quote or bracket, not after
    an ellipsis, and after a single dot only where the word before it does not look like an abbreviation."""
    pieces, start = [], 0
    for found in _END.finditer(text):
        after, sign, ends = found.end(), found["sign"], True
        if after == len(text) or (sign and not found["gap"]):
            continue
        broken = _BREAK.search(text, found.end("close") if sign else found.start(), after)
        if sign and not broken:
            quote = _quote_apart(text, after)
            after += quote
            ends = _ends(text, start, found, after, closed=bool(found["close"] or quote))
        elif not sign:  # a <br /> that opens the text has no sentence to stay with, and stays with the first
            ends = bool(broken and text[start : found.start()].strip())
        if ends:
            pieces.append(text[start:after].strip())
            start = after
    rest = text[start:].strip()
    return [*pieces, rest] if rest else pieces


def lines(text: str) -> list[str]:
    """The lines of a text that are not blank, for text that has one sentence in each."""
    return [line.strip() for line in re.split(r"\r\n|\r|\n", text) if line.strip()]


SPLITTERS: dict[str, Splitter] = {"english": english, "lines": lines}


def splitter(name: str) -> Splitter:
    """A sentence splitter by its name."""
    if name not in SPLITTERS:
        raise UserError(f"data.sentences = {name!r}: must be one of {listed(SPLITTERS)}")
    return SPLITTERS[name]


def identity(name: str) -> str:
    """What the cache knows a splitter by: one that users add, also by its code, so that a changed one is run again."""
    function = splitter(name)
    code = getattr(function, "__code__", None)
    return (
        name
        if function.__module__ == __name__ or code is None
        else f"{name} {hashlib.sha256(_bytes(code)).hexdigest()}"
    )


def _bytes(code: CodeType) -> bytes:
    inner = [_bytes(one) if isinstance(one, CodeType) else repr(one).encode() for one in code.co_consts]
    return b"\0".join([code.co_code, *(name.encode() for name in code.co_names), *inner])


def _quote_apart(text: str, after: int) -> int:
    """How far a straight quote goes that stands between blanks, as in text taken apart into words, and closes: 0 or 2.

    It closes where its line has an odd number of them before it."""
    if text[after] != '"' or text[after + 1 : after + 2].strip():
        return 0
    near = max(0, after - QUOTED)
    line = text.rfind("\n", near, after) + 1 or near
    return 2 * (text.count('"', line, after) % 2)


def _ends(text: str, start: int, found: re.Match[str], after: int, closed: bool) -> bool:
    """Whether a sentence ends with these signs, of which blanks follow, and then the text from `after` on."""
    if text[after : after + 1] in _GOES_ON:
        return False
    first = _OPENING.match(text, after).end()  # type: ignore[union-attr]  # it matches nothing as well
    small = text[first : first + 1].islower()
    if closed:
        return not small
    sign = found["sign"]
    if "!" in sign or "?" in sign:
        return True
    if sign != ".":
        return not small
    before = _WORD_BEFORE.search(text[max(start, found.start() - NEAR) : found.start()])
    word = before.group().strip() if before else ""
    if found.start() - start <= NEAR and _ITEM.fullmatch(word) and text[start : found.start()].strip() == word:
        return False  # "1. The plot"
    return _word_ends(word, text[first : first + NEAR], small)


def _word_ends(word: str, follows: str, small: bool) -> bool:
    """Whether a single dot after this word ends a sentence, by the word and by what follows."""
    key = word.lower()
    if key in _NEVER or (word[:1].isupper() and word.capitalize() in _TITLES):
        return False
    if key in _NUMBERED and follows[:1].isdigit():
        return False
    if key in _OFTEN:
        return follows[:1].isupper()
    if key in _ABBREVIATIONS or (len(word) == 1 and word.isalpha()) or _DOTTED.fullmatch(word):
        begins = _WORD_AFTER.match(follows)
        return not small and begins is not None and begins.group().lower() in _STARTERS
    if not small or not word:
        return True
    looks_cut = word[0].isupper() and len(word) <= 5  # "Bros", "Univ"; and "Tom", for whom we miss an end
    return not looks_cut and bool(re.search(r"[aeiouy\d]", key))
