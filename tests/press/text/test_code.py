"""Highlighting loses no character and no line."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from sidelit.text import code


class Text(HTMLParser):
    """The text of a piece of HTML, and whether its elements are closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.depth = 0
        self.feed(html)
        self.close()
        assert self.depth == 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "span"
        self.depth += 1

    def handle_endtag(self, tag: str) -> None:
        self.depth -= 1

    def handle_data(self, data: str) -> None:
        self.text += data


PIECES = st.sampled_from(
    [
        "def f(x):",
        "    return '''",
        "'''",
        '"""a',
        "# <b>&amp;",
        "\n",
        "\r\n",
        "\r",
        "\x0c",
        "\u2028",
        "\\",
        "é",
        "'",
        "\t",
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=60))
def test_lines_are_those_of_python_and_each_is_whole(text: str) -> None:
    lines = code.highlight(text)
    expected = re.split("\r\n|\r|\n", text.removeprefix("\ufeff"))
    assert [line.text for line in lines] == expected
    for line in lines:
        shown = Text(line.html).text
        assert len(shown) == len(line.text) or re.search(r"[\x80-\x9f]", line.text)
        assert not re.search(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]", shown)


def test_a_string_over_several_lines_is_a_string_on_each_of_them() -> None:
    lines = code.highlight('a = """one\n<two>\n"""\nb = 1\n')
    assert [Text(line.html).text for line in lines] == ['a = """one', "<two>", '"""', "b = 1", ""]
    assert 'class="s' in lines[1].html
    assert 'class="mi"' in lines[3].html


def test_colours_know_what_the_lines_before_have_opened() -> None:
    whole = code.highlight('x = """\nreturn 1\n"""\n')
    assert '"k"' not in whole[1].html
    assert '"k"' in code.highlight("return 1\n")[0].html


def test_a_line_that_is_shown_shortened_is_shown_plain() -> None:
    lines = code.highlight("x = 1; y = 2\n")
    assert list(code.numbered(lines, ((1, "y = 2"), (1, "x = 1; y = 2"), (9, "<")))) == [
        (1, "y = 2"),
        (1, lines[0].html),
        (9, "&lt;"),
    ]


def test_control_characters_become_visible() -> None:
    assert code.printable("a\x00\x1b\x7f\x85<") == "a\u2400\u241b\u2421\\x85&lt;"
