"""# Code into coloured lines

> A file is highlighted once, and each line is HTML that any page may show.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Any
from unicodedata import bidirectional

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer, RegexLexer
from pygments.lexers import get_lexer_by_name
from pygments.lexers.python import PythonLexer
from pygments.token import STANDARD_TYPES, Error, Token, Whitespace
from pygments.util import ClassNotFound

# ## A lexer that asks once
#
# > Pygments tries the rules of a lexer one by one at every place of a text; joined to one pattern they are
# > tried at once.
#
# A lexer has up to fifty rules for a place, and asks each of them in Python whether it matches. That would be
# most of the time that a page of code takes. An alternation `(?:first)|(?:second)|…` asks the same questions
# in the same order inside of the regular expression engine: the first that matches wins, with the match that
# it would have had alone. So the tokens are those that Pygments makes itself, to the character.


# A rule as Pygments keeps it: the match of its pattern, the kind of token or a function, the next state.
Rule = tuple[Callable[[str, int], "re.Match[str] | None"], Any, Any]
Tokens = Iterator[tuple[int, Any, str]]


@dataclass(frozen=True, slots=True)
class _State:
    """The rules of one state, and one pattern for all; `which` maps the last group of a match to its rule."""

    match: Callable[[str, int], re.Match[str] | None]
    which: Mapping[int, Rule]


def joined(lexer: type[RegexLexer]) -> type[RegexLexer]:
    """The same lexer with the rules of each state joined.

    A lexer whose rules cannot be joined is returned as it is: one that refers to its groups, or gives them
    names, since a longer pattern has other groups.
    """
    # Pygments compiles the rules when the first lexer of the class is made.
    rules: Mapping[str, Sequence[Rule]] = lexer()._tokens
    try:
        states = _States({name: _pattern(each) for name, each in rules.items()}, rules)
    except (ValueError, AttributeError):
        return lexer

    class Joined(lexer):  # type: ignore[misc]
        def get_tokens_unprocessed(self, text: str, stack: Sequence[str] = ("root",)) -> Tokens:
            return _tokens(self, states, text, list(stack))

    return Joined


class _States(dict[str, _State]):
    """The states of a lexer; the pattern of one is compiled when a text first needs it, as most never do."""

    def __init__(self, patterns: Mapping[str, str], rules: Mapping[str, Sequence[Rule]]) -> None:
        self._patterns, self._rules = patterns, rules

    def __missing__(self, name: str) -> _State:
        which = dict(enumerate(self._rules[name], 1))
        state = self[name] = _State(re.compile(self._patterns[name]).match, which)
        return state


def _pattern(rules: Sequence[Rule]) -> str:
    parts = []
    for rule in rules:
        pattern: re.Pattern[str] = rule[0].__self__  # type: ignore[attr-defined]
        if pattern.groupindex or pattern.flags & re.VERBOSE or _REFERENCE.search(pattern.pattern):
            raise ValueError
        # An empty group at the end of a rule tells which one matched.
        parts.append(f"{_alone(pattern)}()")
    return "|".join(parts)


_REFERENCE = re.compile(r"\\[1-9]|\(\?\(")
# What may hold a parenthesis that opens no group, and the one that opens a group with a number.
_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(\((?!\?))", re.DOTALL)
_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL}


def _alone(pattern: re.Pattern[str]) -> str:
    """A pattern as it stands in a longer one: with its own flags and no others, and without its groups.

    The engine knows at once whether an alternative may begin with a character, unless a group begins it.
    """
    on = "".join(letter for letter, flag in _FLAGS.items() if pattern.flags & flag)
    off = "".join(letter for letter in _FLAGS if letter not in on)
    bare = _GROUP.sub(lambda found: "(?:" if found[1] else found[0], pattern.pattern)
    return f"(?{on}{'-' if off else ''}{off}:{re.sub(r'^[(][?][a-z]+[)]', '', bare)})"


def _tokens(lexer: RegexLexer, states: Mapping[str, _State], text: str, stack: list[str]) -> Tokens:
    """The tokens of a text.

    What no rule knows is a token `Error`, and at the end of a line all begins anew.
    """
    place, end = 0, len(text)
    state = states[stack[-1]]
    while True:
        match = state.match(text, place)
        if match is not None and match.lastindex is not None:
            alone, action, following = state.which[match.lastindex]
            if callable(action):
                # It asks for the groups of its own pattern.
                yield from action(lexer, alone(text, place))
            elif action is not None:
                yield place, action, match[0]
            place = match.end()
            if following is not None:
                _follow(stack, following)
                state = states[stack[-1]]
        elif place >= end:
            return
        elif text[place] == "\n":
            stack[:] = ["root"]
            state = states["root"]
            yield place, Whitespace, "\n"
            place += 1
        else:
            yield place, Error, text[place]
            place += 1


def _follow(stack: list[str], following: Any) -> None:
    """Go where a rule leads: some states on, or some back, but never out of the first."""
    if isinstance(following, int):
        del stack[1 if abs(following) >= len(stack) else following :]
        return
    for name in following if isinstance(following, tuple) else (following,):
        if name == "#pop":
            del stack[max(1, len(stack) - 1) :]
        else:
            stack.append(stack[-1] if name == "#push" else name)


# ## Code into coloured lines
#
# > A file is highlighted once, whole, and then handed out line by line.
#
# Highlighting a section on its own would be wrong as soon as a string or a bracket spans two sections, and it
# would be done again for each language. So the whole file goes through Pygments once, and every line comes
# back as closed HTML that any page may show anywhere.


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


def highlighted(text: str) -> tuple[Line, ...]:
    """Colour Python text; element `n` of the result is line `n + 1` of the file.

    Any text is accepted, valid or not: what Pygments cannot make out stays plain.
    """
    # Only these three end a line for Python; `str.splitlines` would also split at form feeds and U+2028.
    normal = re.sub(r"\r\n?", "\n", text).removeprefix("\ufeff")
    # Pygments would drop blank lines at both ends, and with them the agreement of line numbers.
    lexer = _lexer()(stripnl=False, ensurenl=False)
    plain = normal.split("\n")
    tokens: Iterable[tuple[object, str]] = (token[1:] for token in lexer.get_tokens_unprocessed(normal))
    if any(len(line) > LONGEST for line in plain):
        tokens = _shortened(tokens, plain)
    # Few tokens are the first of their kind: the others are looked up.
    known: dict[tuple[object, str], str] = {}
    coloured: list[str] = []
    for token in tokens:
        html = known.get(token)
        if html is None:
            kind, value = token
            html = known[token] = "\n".join(_span(kind, piece) for piece in value.split("\n"))
        coloured.append(html)
    lines = zip(plain, "".join(coloured).split("\n"), strict=True)
    return tuple(Line(text, html + _rest(text)) for text, html in lines)


def prepare() -> None:
    """Make the lexer before the work is shared, so that it is made once."""
    _lexer()


@functools.cache
def _lexer() -> type[RegexLexer]:
    return joined(PythonLexer)


def numbered(lines: tuple[Line, ...], shown: tuple[tuple[int, str], ...]) -> Iterator[tuple[int, str]]:
    """Yield (line number, HTML) for the lines a section shows.

    A line whose text was shortened for the page, and so differs from the file's, is shown without colours.
    """
    few = shown if len(shown) <= HIGHEST else shown[:ROWS]
    for number, text in few:
        line = lines[number - 1] if number <= len(lines) else Line("", "")
        yield number, line.html if line.text == text else printable(_beginning(text)) + _rest(text)
    if len(few) < len(shown):
        yield shown[ROWS][0], f'<span class="rest rows">{len(shown) - ROWS}</span>'


# ## Data between the lines of code
#
# > A line may hold a whole file of data, or a table a hundred thousand lines. No browser shows these in a
# > minute, so a page has their beginnings.
#
# The words that say how much is left out are those of the page, which has a language.


# The characters of a line and the lines of a section that nobody has typed, and what is shown of them.
LONGEST, SHOWN = 2_000, 500
HIGHEST, ROWS = 5_000, 200
_REST = re.compile(r'(<span class="rest( rows)?">)(\d+)</span>')


def _beginning(text: str) -> str:
    return text if len(text) <= LONGEST else text[:SHOWN]


def _rest(text: str) -> str:
    """What stands for all behind the beginning of a line: the number of its characters."""
    return "" if len(text) <= LONGEST else f'<span class="rest">{len(text)}</span>'


def told(html: str, words: Callable[[str, bool], str]) -> str:
    """The HTML of a line, with words where only a beginning is shown.

    :param words: says how many characters a line has, or how many more lines there are if the second is true.
    """

    def said(it: re.Match[str]) -> str:
        return f"{it[1]}{escape(words(f'{int(it[3]):,}', bool(it[2])), quote=False)}</span>"

    return _REST.sub(said, html)


def _shortened(tokens: Iterable[tuple[object, str]], lines: Sequence[str]) -> Iterator[tuple[object, str]]:
    """The tokens without what lies behind the beginnings of long lines."""
    row = column = 0
    for kind, value in tokens:
        pieces = value.split("\n")
        for place, piece in enumerate(pieces):
            if place:
                row, column = row + 1, 0
            if len(lines[row]) > LONGEST:
                pieces[place] = piece[: max(SHOWN - column, 0)]
            column += len(piece)
        yield kind, "\n".join(pieces)


def marked(html: str, marks: Sequence[Mark]) -> str:
    """The HTML of a line with its marks, which follow each other.

    A mark is left out that no single colour holds, or whose characters stand elsewhere on the page.
    """
    made, column, waiting = [], 0, list(reversed(marks))
    for found in _PIECE.finditer(html):
        piece = found[0]
        if not waiting:
            made.append(html[found.start() :])
            break
        if piece[0] == "<":
            made.append(piece)
            continue
        text = unescape(piece) if "&" in piece else piece
        done, end = column, column + len(text)
        if waiting[-1].start >= end:
            made.append(piece)
            column = end
            continue
        while waiting and waiting[-1].start < end:
            mark = waiting.pop()
            start = mark.start - column
            if mark.start >= done and text.startswith(mark.text, start):
                before = printable(text[done - column : start]) if start > done - column else ""
                made += (before, mark.opening, printable(mark.text), mark.closing)
                done = mark.start + len(mark.text)
        if done < end:
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


# ## Code in a text
#
# > A fence names its language, and Pygments colours it.


def coloured(code: str, language: str) -> str:
    """Code as HTML with Pygments' short classes; a language it does not know stays plain."""
    lexer, code = _lexer_of(language), visible(code)
    if lexer is None:
        return escape(code, quote=False)
    return str(highlight(code, lexer, _formatter()))


@functools.cache
def _formatter() -> HtmlFormatter[str]:
    return HtmlFormatter(nowrap=True)


@functools.cache
def _lexer_of(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False) if language else None
    except ClassNotFound:
        return None
