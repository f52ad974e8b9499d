"""# Code into coloured lines

> A file is highlighted once, whole, and then handed out line by line.

Highlighting a section on its own would be wrong as soon as a string or a bracket spans two sections, and it
would be done again for each language. So the whole file goes through Pygments once, and every line comes back
as closed HTML that any page may show anywhere.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape, unescape
from unicodedata import bidirectional

from pygments.lexer import RegexLexer
from pygments.lexers.python import PythonLexer
from pygments.token import STANDARD_TYPES, Token

from sidelit.text import lexing


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file: its plain text and the same text as HTML."""

    text: str
    html: str


@dataclass(frozen=True, slots=True)
class Mark:
    """What is to stand around some characters of a line: an element of HTML, opened and closed.

    :param start: the column of the first character, from 0.
    :param text: the characters.
    """

    start: int
    text: str
    opening: str
    closing: str


def highlight(text: str) -> tuple[Line, ...]:
    """Colour Python text; element `n` of the result is line `n + 1` of the file.

    Any text is accepted, valid or not: what Pygments cannot make out stays plain.
    """
    # Only these three end a line for Python; `str.splitlines` would also split at form feeds and U+2028.
    normal = re.sub(r"\r\n?", "\n", text).removeprefix("\ufeff")
    # Pygments would drop blank lines at both ends, and with them the agreement of line numbers.
    lexer = _lexer()(stripnl=False, ensurenl=False)
    # Few tokens are the first of their kind: the others are looked up.
    known: dict[tuple[object, str], str] = {}
    coloured: list[str] = []
    for token in lexer.get_tokens(normal):
        html = known.get(token)
        if html is None:
            kind, value = token
            html = known[token] = "\n".join(_span(kind, piece) for piece in value.split("\n"))
        coloured.append(html)
    lines = zip(normal.split("\n"), "".join(coloured).split("\n"), strict=True)
    return tuple(Line(plain, html) for plain, html in lines)


def prepare() -> None:
    """Make the lexer before the work is shared, so that it is made once."""
    _lexer()


@functools.cache
def _lexer() -> type[RegexLexer]:
    return lexing.joined(PythonLexer)


def numbered(lines: tuple[Line, ...], shown: tuple[tuple[int, str], ...]) -> Iterator[tuple[int, str]]:
    """Yield (line number, HTML) for the lines a section shows.

    A line whose text was shortened for the page, and so differs from the file's, is shown without colours.
    """
    for number, text in shown:
        line = lines[number - 1] if number <= len(lines) else Line("", "")
        yield number, line.html if line.text == text else printable(text)


def marked(html: str, marks: Sequence[Mark]) -> str:
    """The HTML of a line with its marks, which follow each other.

    A mark is left out that no single colour holds, or whose characters stand elsewhere on the page.
    """
    made, column, waiting = [], 0, list(reversed(marks))
    for piece in _PIECE.findall(html):
        if piece.startswith("<"):
            made.append(piece)
            continue
        text = unescape(piece)
        done, end = column, column + len(text)
        while waiting and waiting[-1].start < end:
            mark = waiting.pop()
            start = mark.start - column
            if mark.start >= done and text.startswith(mark.text, start):
                made += (
                    printable(text[done - column : start]),
                    mark.opening,
                    printable(mark.text),
                    mark.closing,
                )
                done = mark.start + len(mark.text)
        made.append(printable(text[done - column :]))
        column = end
    return "".join(made)


def printable(text: str) -> str:
    """Escape text for HTML; what nobody sees, and what HTML forbids, is written as Python's escapes."""
    return visible(text).translate(_PICTURES)


def visible(text: str) -> str:
    """Show the characters that take no room, or that turn the order of their neighbours around.

    They can make code look like other code: see [Trojan Source](https://arxiv.org/abs/2111.00169).
    """
    return text if text.isascii() else HIDDEN.sub(lambda found: _picture(ord(found[0])), text)


# Marks of direction, and characters without a width. Joiners are no deception between letters of the scripts
# that need them and in emoji, nor are selectors behind these.
_ALWAYS = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e007f"
)
_SELECTORS = "\ufe00-\ufe0e\U000e0100-\U000e01ef"
_LETTER = rf"[^\x00-\x7f{_ALWAYS}{_SELECTORS}\u200c\u200d]"
HIDDEN = re.compile(rf"[{_ALWAYS}]|(?<!{_LETTER})[{_SELECTORS}\u200c\u200d]|[\u200c\u200d](?!{_LETTER})")


_PIECE = re.compile(r"<[^>]*>|[^<]+")


def _picture(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# Unicode will never give a meaning to these, and HTML forbids them as it forbids control characters.
_NO_CHARACTERS = (*range(0xFDD0, 0xFDF0), 0xFFFE, 0xFFFF)
_STRANGE = (*range(0x20), *range(0x7F, 0xA0), *_NO_CHARACTERS)
_PICTURES = {code: _picture(code) for code in _STRANGE if chr(code) not in "\t\n\r"}
_PICTURES |= {ord(sign): escape(sign, quote=False) for sign in "&<>"}


def _span(kind: object, text: str) -> str:
    if not text:
        return ""
    name, shown = _class(kind), printable(text)
    # Between two words that run from right to left, a browser would turn the code around, too.
    if not text.isascii() and any(bidirectional(char) in ("R", "AL") for char in text):
        shown = f'<bdi dir="ltr">{shown}</bdi>'
    return f'<span class="{name}">{shown}</span>' if name else shown


def _class(kind: object) -> str:
    # A lexer may refine a standard kind (`Token.Name.Variable.Magic.X`): the nearest named ancestor is used.
    while kind is not Token:
        if kind in STANDARD_TYPES:
            return STANDARD_TYPES[kind] if STANDARD_TYPES[kind] not in ("w", "n") else ""
        kind = kind.parent  # type: ignore[attr-defined]
    return ""
