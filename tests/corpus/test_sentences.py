"""Sentences end where a reader of English says they do, nothing is lost, and no text makes it slow."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.corpus.sentences import SPLITTERS, english, lines

# A bar stands where one sentence ends and the next begins.
CASES = """
It was bad. | The plot was worse.
It was bad! | The plot was worse?! | Yes.
Was it bad? | It was.
He left... | She stayed.
He left\u2026 | She stayed.
He left... and came back.
He left\u2026 and came back.
He said "no." | Then he left.
He said \u201cno.\u201d | Then he left.
He said \u2018no.\u2019 | Then he left.
"Stop!" she cried. | "Why?" he asked.
\u201cStop!\u201d she cried. | \u201cWhy?\u201d he asked.
(It was long.) | It was dull.
It was long (and dull). | I slept.
It was long (really!) and dull.
[It ends here.] | [It begins here.]
It was long. | (It was dull.)
It was long. | "Dull" is the word.
It was long. | \u201cDull\u201d is the word.
It was long. | \u00abDull\u00bb is the word.
It ended in 1999. | 20 years later it began again.
It rained.[12] | Then it snowed.
Mr. Smith met Mrs. Jones and Ms. Brown.
Dr. Who saw Prof. Moriarty in St. Ives.
MR. SMITH MET DR. JONES. | THEY LEFT.
mr. smith met dr. jones here.
Gen. Lee and Capt. Kirk met Lt. Uhura on Mt. Everest.
I did one more rep. | Then I stopped.
It is Kramer vs. Kramer again.
Take fruit, e.g. Apples or pears, i.e. Something sweet.
We saw cats, dogs, etc. and went home.
We saw cats, dogs, etc. | Tom went home.
See No. 5 and Nos. 7, vol. 2, p. 12, pp. 3-5, fig. 3.
She said no. | He said yes.
No. | I did not.
Kill Bill Vol. II is long.
The U.S. Army came. | It left the U.S. | The end came.
He moved to Washington D.C. and stayed.
She has a Ph.D. in art.
It starts at 5 p.m. and ends at 7 a.m. in the morning.
It starts at 5 p.m. | Tom is late.
J. R. R. Tolkien wrote it. | C. S. Lewis did not.
A. A. Milne and J.K. Rowling wrote as well.
Samuel L. Jackson shouts.
We read A. A. Milne and W. I. Thomas.
The firm (Acme Inc. (2010) or so) was good.
Take vitamin C. | It helps.
Homarus gammarus is close to H. americanus here.
It cost 3.50 dollars, or 1,000.00 in all. | That is much.
It cost .50 or so.
See www.example.com for more. | Or mail a.b@c.org. | Thanks.
It runs on Node.js and reads file.txt now.
Warner Bros. pictures and Acme Inc. are big.
Warner Bros. Pictures made it.
Robert Downey Jr. is in it. | So is Cuba Gooding Jr. | He is good.
On Jan. 5 it rained, on Dec. 25 it snowed.
The cast (Smith et al. 2010) was good.
1. The plot. | 2. The cast.
I. The beginning. | II. The end.
a. The plot is thin.
I give it a 7. | You may not.
it was bad. | really bad. | do not see it!
was it bad? | yes! | it was.
i give it 3. | not more.
it was approx. five hours, incl. the break, at the univ. of life.
it was good. | (not great.)
He ran to Tom. and fell.
Well... "maybe" it was.
Wait!!! | What???
It was good . | It was " very good . " | She left .
It was ( very good . ) | She left .
`` It was . '' | `` It was not . ''
Hmm . . . | Well .
It was good, no ?; but long.
It was 10.- or so.
It was 5. % of it.
caf\u00e9 is nice. | \u00c9lan is better. | \u4f60\u597d is more.
It was \u00e9. | It is.
"""


def marked(case: str) -> list[str]:
    return [piece.strip() for piece in case.split("|")]


@pytest.mark.parametrize("case", CASES.strip().split("\n"))
def test_english(case: str) -> None:
    assert english(case.replace(" | ", " ")) == marked(case)
    assert english(case.replace(" | ", "\n")) == marked(case)  # a line end is a blank
    assert english("Before it. " + case.replace(" | ", "  ")) == ["Before it.", *marked(case)]


def test_a_quote_apart_closes_what_was_opened_in_its_line() -> None:
    assert english('" It was good . It was . " She left . " Why ? "') == [
        '" It was good .', 'It was . "', "She left .", '" Why ? "',
    ]  # fmt: skip
    assert english('It was " good .\n" Why ? " she said .') == ['It was " good .', '" Why ? " she said .']


def test_a_blank_line_is_an_end_and_a_line_end_is_not() -> None:
    wrapped = "A title\n\nIt was a long\nfilm and a dull\r\none\r\n \t\r\nwithout end"
    assert english(wrapped) == ["A title", "It was a long\nfilm and a dull\r\none", "without end"]
    assert english("one\rtwo\r\rthree") == ["one\rtwo", "three"]
    assert english("said Mr.\n\nsmith") == ["said Mr.", "smith"]


def test_an_html_line_break_is_an_end_and_stays_with_what_it_ends() -> None:
    assert english("It was bad.<br /><br />The plot<br>or so<BR/> \n <br  />was thin") == [
        "It was bad.<br /><br />", "The plot<br>", "or so<BR/> \n <br  />", "was thin",
    ]  # fmt: skip
    assert english('"Bad."<br />and so on... <br />and on') == ['"Bad."<br />', "and so on... <br />", "and on"]
    assert english("<br /><br />It was bad. It was.<br />") == ["<br /><br />It was bad.", "It was.<br />"]
    assert english("a <b>bold</b> claim <bro> here") == ["a <b>bold</b> claim <bro> here"]


@pytest.mark.parametrize("text", ["", " ", "\n\n \r\n\t", "\u2003\u00a0", "\u2028"])
def test_what_is_blank_has_no_sentences(text: str) -> None:
    assert english(text) == lines(text) == []


@pytest.mark.parametrize(
    "text",
    [".", "...", "!", "\u2026", "<br />", "<br", '"', ". . . .", ").", "\udc80. \ud800! Yes", "\ufeff.", "\0. A"],
)
def test_odd_text_is_left_whole_or_cut_but_never_lost(text: str) -> None:
    assert "".join("".join(english(text)).split()) == "".join(text.split())


def test_lone_surrogates_and_other_scripts_do_no_harm() -> None:
    assert english("\udc80 is odd. \ud800 is odd too.") == ["\udc80 is odd.", "\ud800 is odd too."]
    assert english("\u0634\u0643\u0631\u0627. \u0646\u0639\u0645! \U0001f600 Yes.") == [
        "\u0634\u0643\u0631\u0627.", "\u0646\u0639\u0645!", "\U0001f600 Yes.",
    ]  # fmt: skip


SPLITS = st.sampled_from(
    [
        *"aTI5.!?\u2026\"')([ \n\r\t-,`*",
        "<br />",
        "<br",
        " Mr.",
        "etc.",
        "U.S.",
        "No. ",
        "''",
        "\u2028",
        "\udc80",
        "word",
        ". ",
    ]
)


@given(st.one_of(st.text(), st.lists(SPLITS, max_size=30).map("".join)))
def test_nothing_but_blanks_is_lost_and_the_order_stays(text: str) -> None:
    for splitter in SPLITTERS.values():
        at = 0
        for piece in splitter(text):
            assert piece
            assert piece == piece.strip()
            found = text.index(piece, at)
            assert not text[at:found].strip()
            at = found + len(piece)
        assert not text[at:].strip()


# Each is half a million characters: what looks twice at each character of it would need hours, not a moment.
@pytest.mark.parametrize(
    ("unit", "count"),
    [
        ("a", 1), ("word ", 1), (".", 1), ("\u2026", 1), (" ", 0), ("\n", 0), ("a\n", 1), ("<br", 1), ("<br ", 1),
        (".)", 1), (". \" ", None), ('." ', None), ("\r", 0), ("a. ", None), ("Mr. ", 1), (". ", 1), ("<br />", 1),
        ("*", 1), (".''", 1), ("[1]", 1), (".[1", 1), ("\n ", 0), ("a.b", 1),
    ],
)  # fmt: skip
def test_no_text_takes_more_than_its_length(unit: str, count: int | None) -> None:
    pieces = english(unit * (500_000 // len(unit)))
    assert count is None or len(pieces) == count


def test_lines_are_those_that_are_not_blank() -> None:
    assert lines(" one. two\r\n\r\n\ttwo\rthree\u2028still three\n\n") == ["one. two", "two", "three\u2028still three"]


def test_a_splitter_of_ones_own_goes_into_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(SPLITTERS) == {"english", "lines"}
    monkeypatch.setitem(SPLITTERS, "semicolons", lambda text: re.split(r";\s*", text))
    assert SPLITTERS["semicolons"]("a; b") == ["a", "b"]
