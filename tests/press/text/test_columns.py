"""Words and what stands beside them: which elements are joined, and that none of them is lost or moved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidelit.text import columns
from sidelit.text.columns import Pair, brief, height, pairs, rows

KINDS = {"beside": ["ask", "sample"], "either": ["drawing"], "across": ["taken"]}
LONG = f"<p>{'word ' * 100}</p>\n"
SHORT = "<p>A few words.</p>\n"
ASK = '<div class="ask"><p>Why?</p><details class="answer"><summary>Answer</summary>So.</details></div>\n'
DRAWN = '<figure class="drawing"><svg class="narrow" viewBox="0 0 100 100"><path d="M0 0"/></svg></figure>\n'
TAKEN = '<section class="sec taken"></section>\n'
HEAD = "<h2>Next</h2>\n"


def shown(body: str) -> list[tuple[str, str, str]]:
    return [(pair.lead, pair.beside, pair.then) for pair in pairs(body, **KINDS)]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (LONG + ASK, [(LONG, ASK, "")]),
        # Words that are higher than what stands beside them stand alone, but for the last of them.
        (LONG + LONG + ASK, [(LONG, "", ""), (LONG, ASK, "")]),
        # As many words follow as there is room for, and never those that lead to the next one.
        (SHORT + DRAWN + LONG + LONG + LONG, [(SHORT, DRAWN, LONG + LONG), (LONG, "", "")]),
        (SHORT + DRAWN + LONG + LONG + ASK, [(SHORT, DRAWN, LONG), (LONG, ASK, "")]),
        (SHORT + ASK + ASK + HEAD, [(SHORT, ASK + ASK, ""), (HEAD, "", "")]),
        (SHORT + HEAD + ASK, [(SHORT, "", ""), (HEAD, "", ""), (ASK, "", "")]),
        (SHORT + TAKEN + ASK + SHORT, [(SHORT, "", ""), (TAKEN, "", ""), ("", ASK, SHORT)]),
        # With too few words beside it a figure goes across the page.
        (SHORT + DRAWN + HEAD, [(SHORT, "", ""), (DRAWN, "", ""), (HEAD, "", "")]),
        ("", []),
    ],
)
def test_what_belongs_together_is_joined(body: str, wanted: list[tuple[str, str, str]]) -> None:
    assert shown(body) == wanted


@given(st.lists(st.sampled_from([LONG, SHORT, ASK, DRAWN, TAKEN, HEAD]), max_size=30))
def test_the_order_of_the_elements_stays(parts: list[str]) -> None:
    body = "".join(parts)
    assert "".join(lead + beside + then for lead, beside, then in shown(body)) == body
    # Taken out of their boxes they are the text again.
    boxed = "".join(
        f'<div class="pair"><div class="lead">{pair.lead}</div><div class="margin">{pair.beside}</div>'
        f'<div class="then">{pair.then}</div></div>\n'
        if pair.beside
        else pair.lead
        for pair in pairs(body, **KINDS)
    )
    assert [element.strip() for _, element in columns.unpaired(boxed)] == [part.strip() for part in parts]


def test_what_is_folded_or_spoken_has_no_height() -> None:
    assert height(ASK) == height(ASK.replace("So.", "So. " * 500))
    assert height(DRAWN) == 32
    assert height("<p>字</p>") > height("<p>a</p>")
    assert height("<pre>a\nb\nc</pre>") > height("<pre>a</pre>")


SAMPLE = '<pre class="sample">x = 1\n</pre>\n'
LEADS = "<p>For example:</p>\n"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (LONG, [(LONG, "")]),
        (LONG + SAMPLE, [(LONG, ""), ("", SAMPLE)]),
        (LONG + LEADS + SAMPLE + SHORT, [(LONG, ""), (LEADS, SAMPLE), (SHORT, "")]),
        (SAMPLE + SHORT, [("", ""), ("", SAMPLE), (SHORT, "")]),
        ("", [("", "")]),
    ],
)
def test_an_example_stands_beside_the_sentence_that_leads_to_it(
    words: str, wanted: list[tuple[str, str]]
) -> None:
    assert rows(words, ["sample"]) == [Pair(lead, beside) for lead, beside in wanted]


def test_code_leaves_its_words_the_wider_column_if_it_is_short_or_they_are_high() -> None:
    wide = ["def total(first, second, third, fourth, fifth, sixth):", "    return first + second"]
    assert brief("<p>Add.</p>", wide[1:])
    assert not brief("<p>Add.</p>", wide)
    assert brief("<p>Add six numbers.</p>" * 20, wide)
    # A sign that HTML writes in four letters is one; what all lines are indented by is not there.
    assert brief("<p>Add.</p>", [f"        {'<b>a</b> &lt; ' * 10}b"])


def test_a_list_much_higher_than_what_follows_it_stands_alone() -> None:
    many = f"<ul>{'<li>A few words.</li>' * 20}</ul>\n"
    assert [*columns_of(many + ASK)] == [(many, ""), (ASK, "")]
    few = "<ul><li>A few words.</li></ul>\n"
    assert [*columns_of(few + ASK)] == [(few, ASK)]


def columns_of(body: str) -> list[tuple[str, str]]:
    return [(pair.lead, pair.beside) for pair in pairs(body, **KINDS)]
