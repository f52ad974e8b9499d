"""Docstrings in the styles of NumPy, Google and reST keep their lists on the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from press.project import sidelit
from sidelit.text import foreign

NUMPY = '''
def solve(a, *b):
    """Solve it.

    Parameters
    ----------
    a : (..., M, M) array_like
        Coefficient matrix.
    *b : {int, str}, optional
        The rest of it.

        In two paragraphs.

    Notes
    -----
    a : is
    what stands first.
    """
'''
GOOGLE = '''
def solve(a, b):
    """Solve it, see :func:`~pkg.other` and :class:`a name <pkg.Name>`::

        solve(1, 2)

    Args:
        a (int): the first
            and its second line.
        **b: the rest.

    Returns:
        What it found.

    .. note::
       Be careful.
    """
'''


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (
            NUMPY,
            [
                "<code>a : (..., M, M) array_like</code><br>\nCoefficient matrix.</p>",
                "<code>*b : {int, str}, optional</code><br>\nThe rest of it.</p>\n<p>In two paragraphs.</p>",
                "<p>a : is\nwhat stands first.</p>",
            ],
        ),
        (
            GOOGLE,
            [
                "<code>pkg.other</code> and <code>pkg.Name</code>:</p>",
                "<li><code>a (int)</code>: the first\nand its second line.</li>",
                "<li><code>**b</code>: the rest.</li>",
                "<strong>Returns:</strong>\nWhat it found.",
                '<aside class="admonition note" role="note">',
            ],
        ),
    ],
)
def test_lists_stay_lists(tmp_path: Path, text: str, pieces: list[str]) -> None:
    (tmp_path / "foreign.py").write_text(text.lstrip(), encoding="utf-8")
    assert sidelit("print", "foreign.py", "--out", "out", cwd=tmp_path).stderr == ""
    html = (tmp_path / "out/foreign.html").read_text(encoding="utf-8")
    for piece in pieces:
        assert piece in html


SHAPE = '''def f():
    """Apply it.

    Shape:
        - Input: :math:`(*)`, where `*` is any number
          of dimensions.
        - Output: the same.

    Returns:
        * one
        * two
    """
'''


def test_a_list_below_a_heading_of_another_house_stays_a_list(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SHAPE, encoding="utf-8")
    sidelit("print", "one.py", "--out", "out", cwd=tmp_path)
    html = (tmp_path / "out/one.html").read_text(encoding="utf-8")
    assert "<strong>Shape:</strong></p>\n<ul><li>Input: <code>(*)</code>" in html
    assert html.count("<li>one</li>") == html.count("<li>Output: the same.</li>") == 1


HEAD = """---
title: A ring
summary: >
  It forgets
  what is *oldest*.
---
"""


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (HEAD + "\nText.", "# A ring\n\n> It forgets what is *oldest*.\n\n\n\n\nText."),
        (HEAD + "\n# Its own\n\nText.", "\n\n\n\n\n\n\n# Its own\n\nText."),
        ("---\ntitle: A\n---\nText.", "# A\n\n\nText."),
        ("---\na: [\n---\nText.", "---\na: [\n---\nText."),
        ("---\nText\n---\nText.", "---\nText\n---\nText."),
        ("---\nText, and no end.", "---\nText, and no end."),
        ("---\ntitle: [1]\n---\n", "\n\n\n"),
    ],
)
def test_front_matter_gives_a_title_where_the_text_has_none(text: str, printed: str) -> None:
    assert foreign.markdown(text) == printed


MARKDOWN = """# Title

> Lede.

Text with `code`, $a:b$ and a list:

- one: two
  three

:param x: what it is
    and more
:notation $N$: a number

!!! note "Title"
    Text of it.
"""


def test_markdown_passes_unchanged() -> None:
    assert foreign.markdown(MARKDOWN) == MARKDOWN


LINES = st.sampled_from(
    [
        "Parameters",
        "-----",
        "---",
        "title: t",
        "Args:",
        "x : int",
        "    x: y",
        "  z",
        "",
        ".. note:: a",
        "   b",
        "a::",
        "- c",
        ":f:`~g`",
        "`",
    ]
)


@given(st.lists(LINES, max_size=12).map("\n".join) | st.text(max_size=40))
def test_every_line_stays_on_its_line(text: str) -> None:
    assert foreign.markdown(text).count("\n") == text.count("\n")
