"""Highlighting loses no character and no line."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
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
        assert tag in ("span", "bdi")
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
    lines = code.highlighted(text)
    expected = re.split("\r\n|\r|\n", text.removeprefix("\ufeff"))
    assert [line.text for line in lines] == expected
    for line in lines:
        shown = Text(line.html).text
        escaped = re.search(r"[\x80-\x9f]", line.text) or code.HIDDEN.search(line.text)
        assert len(shown) == len(line.text) or escaped
        assert not code.HIDDEN.search(shown)
        assert not re.search(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]", shown)


def test_a_string_over_several_lines_is_a_string_on_each_of_them() -> None:
    lines = code.highlighted('a = """one\n<two>\n"""\nb = 1\n')
    assert [Text(line.html).text for line in lines] == ['a = """one', "<two>", '"""', "b = 1", ""]
    assert 'class="s' in lines[1].html
    assert 'class="mi"' in lines[3].html


def test_colours_know_what_the_lines_before_have_opened() -> None:
    whole = code.highlighted('x = """\nreturn 1\n"""\n')
    assert '"k"' not in whole[1].html
    assert '"k"' in code.highlighted("return 1\n")[0].html


def test_a_line_that_is_shown_shortened_is_shown_plain() -> None:
    lines = code.highlighted("x = 1; y = 2\n")
    assert list(code.numbered(lines, ((1, "y = 2"), (1, "x = 1; y = 2"), (9, "<")))) == [
        (1, "y = 2"),
        (1, lines[0].html),
        (9, "&lt;"),
    ]


def test_of_a_line_of_data_the_beginning_is_shown_and_what_follows_keeps_its_colours() -> None:
    data = f"a = '''{'<' * 9_000}\n{'b' * 2_000}\n{'c' * 2_001}''' + d\n1\n"
    lines = code.highlighted(data)
    assert "\n".join(line.text for line in lines) == data
    shown = [Text(line.html).text for line in lines]
    assert shown == [f"a = '''{'<' * 493}9007", "b" * 2_000, f"{'c' * 500}2008", "1", ""]
    assert '"s' in lines[1].html
    assert '"mi"' in lines[3].html
    assert list(code.numbered(lines, ((9, "x" * 3_000),))) == [
        (9, "x" * 500 + '<span class="rest">3000</span>')
    ]


def test_of_a_table_of_data_the_first_lines_are_shown() -> None:
    lines = code.highlighted("a,\n" * 5_001)
    rows = tuple((number, "a,") for number in range(1, 5_002))
    assert len(list(code.numbered(lines, rows[1:]))) == 5_000
    *shown, rest = code.numbered(lines, rows)
    assert shown == [(number, lines[0].html) for number in range(1, 201)]
    assert rest == (201, '<span class="rest rows">4801</span>')
    assert (
        code.told(rest[1], lambda count, rows: f"{count} > {rows:d}")
        == '<span class="rest rows">4,801 &gt; 1</span>'
    )


def test_control_characters_become_visible() -> None:
    assert code.printable("a\x00\x1b\x7f\x85<") == "a\u2400\u241b\u2421\\x85&lt;"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('if level != "user\u202e \u2066# admin\u2069":', 'if level != "user\\u202e \\u2066# admin\\u2069":'),
        ("na\u200bme = na\u00adme", "na\\u200bme = na\\xadme"),
        ("\u3164 = 1", "\\u3164 = 1"),
        ("x = 'a\u200d'", "x = 'a\\u200d'"),
        ("x = '\U000e0041'", "x = '\\U000e0041'"),
        ("a\u200d\u200d\u200db", "a\\u200d\\u200d\\u200db"),
        ("a\u200b\u200d\u200bb", "a\\u200b\\u200d\\u200bb"),
        ("'x\ufe00\U000e0100\ufff9'", "'x\\ufe00\\U000e0100\\ufff9'"),
        # Joiners that a script or a picture needs.
        ("x = '\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645'", None),
        ("x = '\U0001f468\u200d\U0001f469'", None),
    ],
)
def test_what_nobody_sees_is_shown(text: str, shown: str | None) -> None:
    (line,) = code.highlighted(text)
    assert Text(line.html).text == (text if shown is None else shown)
    assert line.text == text
    assert Text(code.coloured(text, "python")).text.rstrip("\n") == (text if shown is None else shown)


def test_words_from_right_to_left_do_not_turn_the_code_between_them_around() -> None:
    (line,) = code.highlighted("\u05d0 = \u05d1 + '\u05d2'")
    assert line.html.count("<bdi ") == 3
    assert Text(line.html).text == "\u05d0 = \u05d1 + '\u05d2'"
