"""# Statements and comments

> What the tokens say: where statements start and end, which lines are comments, and which of them a reader is
> shown.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sidelit.errors import SidelitError
from sidelit.source import marks
from sidelit.source.decoding import CODING, NO_CODE
from sidelit.source.marks import Mark


@dataclass(frozen=True, slots=True)
class Statement:
    """A logical line: all physical lines up to the newline that ends a statement or the header of a block.

    :param row: the line of its first token, which follows `first` where lines with a lone backslash come
        before it.
    :param column: the indentation, measured as Python does.
    """

    first: int
    last: int
    column: int
    row: int
    decorator: bool


@dataclass(frozen=True, slots=True)
class Block:
    """Comment lines that stand directly below each other, in one column."""

    first: int
    last: int
    column: int


@dataclass(frozen=True, slots=True)
class Scan:
    """A file without its newlines, and what stands where.

    :param events: statements, comment blocks, and the marks that begin and end depth, in order.
    :param marks: all comments that speak to the press, known or not.
    :param hidden: the rows that no reader is shown.
    :param stray: the rows of `hide` and `show` marks without a partner.
    :param licence: the rows of the comments that say whose the file is; they are code.
    """

    lines: Sequence[str]
    events: Sequence[Statement | Block | Mark]
    marks: Sequence[Mark]
    hidden: frozenset[int]
    stray: tuple[int, ...]
    licence: range = range(0)


def scan(lines: Sequence[str], path: str) -> Scan:
    """Find statements and comment blocks in the lines of a valid file.

    Only tokens tell a comment from a `#` inside a string, and the end of a statement from the end of a line.
    """
    events: list[Statement | Block | Mark] = []
    noted: list[Mark] = []
    start: tokenize.TokenInfo | None = None
    for token in _tokens(lines, path):
        row = token.start[0]
        if token.type == tokenize.COMMENT:
            alone, column = not lines[row - 1][: token.start[1]].strip(), _column(lines[row - 1])
            if alone and (mark := marks.read(token.string, row, column, inside=start is not None)):
                noted.append(mark)
                events += [mark] if mark.folds else []
            if start is None and not _is_directive(lines, row):
                _add_comment(events, row, column)
        elif token.type == tokenize.NEWLINE and start is not None:
            events.append(_statement(lines, start, row))
            start = None
        elif token.type not in BLANK and start is None:
            start = token
    hidden, stray = marks.hidden(noted, len(lines))
    return Scan(lines, events, noted, hidden, stray, _licence(lines, events, hidden))


BLANK = (tokenize.INDENT, tokenize.DEDENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)


def _tokens(lines: Sequence[str], path: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO("\n".join([*lines, ""])).readline)
    except (tokenize.TokenError, SyntaxError) as error:
        raise SidelitError(
            f"the file cannot be cut into tokens: {error.args[0]}", path=path, line=1
        ) from None


def _statement(lines: Sequence[str], start: tokenize.TokenInfo, last: int) -> Statement:
    """A statement owns the lines with nothing but a backslash above it; the first one sets its column."""
    row = first = start.start[0]
    while first > 1 and lines[first - 2].strip() == "\\":
        first -= 1
    return Statement(first, last, _column(lines[first - 1]), row, start.string == "@")


def _column(line: str) -> int:
    """A tab goes to the next eighth column, a form feed starts anew."""
    column = 0
    for character in line:
        if character == "\t":
            column = (column // 8 + 1) * 8
        elif character == "\f":
            column = 0
        elif character == " ":
            column += 1
        else:
            break
    return column


# ## Comments that are code

# Beside type comments, `noqa` and `fmt`, other words open a note to some checker; in a reader's column they
# would be noise.
DIRECTIVE = re.compile(
    r"#+\s*(?:(?:type|fmt|sidelit|mypy|ruff|pylint|pyright|pyrefly|isort|flake8|yapf|pragma):|(?i:noqa|nosec)\b)"
)


def _is_directive(lines: Sequence[str], row: int) -> bool:
    """Tell whether the comment on this line speaks to a tool: a shebang, an encoding, a note to a checker."""
    text = lines[row - 1]
    if row == 1 and text.startswith("#!"):
        return True
    if CODING.match(text) and (row == 1 or (row == 2 and NO_CODE.match(lines[0]))):
        return True
    return DIRECTIVE.match(text.lstrip()) is not None


def _add_comment(events: list[Statement | Block | Mark], row: int, column: int) -> None:
    """Add a comment line to the block above it, if it touches that block and is aligned with it."""
    if events and isinstance(above := events[-1], Block) and (above.last, above.column) == (row - 1, column):
        events[-1] = Block(above.first, row, column)
    else:
        events.append(Block(row, row, column))


# Lawyers' words at the top of a file are for lawyers. A heading of Markdown tells that there is more to it.
_LICENCE = re.compile(
    r"\bcopyright\b|\bSPDX-|\blicen[cs]ed under\b|\ball rights reserved\b|\bunder the terms of\b",
    re.IGNORECASE,
)
_HEADING = re.compile(r"^[ \t]*#+[ \t]+#{1,6}[ \t]", re.MULTILINE)


def _licence(lines: Sequence[str], events: list[Statement | Block | Mark], hidden: frozenset[int]) -> range:
    """Take the comments out that a file begins with and that say whose it is; return their rows."""
    first = last = 0
    while events and isinstance(block := events[0], Block):
        text = "\n".join(lines[block.first - 1 : block.last])
        if block.first in hidden or not _LICENCE.search(text) or _HEADING.search(text):
            break
        first, last = first or block.first, block.last
        del events[0]
    return range(first, last + 1) if first else range(0)


def followings(events: Sequence[Statement | Block | Mark]) -> list[int]:
    """For each event the column of the next statement below it; 0 at the end."""
    columns, following = [0] * len(events), 0
    for index in range(len(events) - 1, -1, -1):
        columns[index] = following
        event = events[index]
        following = event.column if isinstance(event, Statement) else following
    return columns
