"""# Tables of Markdown

> A column of numbers stands at the right, and a table too wide for a phone becomes a list of its rows there.

Both are decided from the words of the cells, before the table is written. In the list each value needs the
heading of its column beside it, which the cell carries along for the stylesheet.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from markdown_it.token import Token

from sidelit.text import markup

# A number with its sign, a range of two, what it is counted in. A name such as `0.weight` is none.
_NUMBER = re.compile(
    r"[~≈<>≤≥+−-]?\s?\d([\d,.\u00a0\u2009\u202f ]*\d)?([–-]\s?\d([\d,.]*\d)?)?"
    r"\s?(%|×|[A-Za-zµ][A-Za-z/]{0,7})?"
)
# Letters in a line of a phone that is 390 pixels wide, and what the gap between two columns takes of it.
_ROOM, _GAP = 42, 2
# Words of a cell break into lines. A line needs so many letters to be read, and more in a long text.
_LINE, _FEW, _LONG_LINE = 11, 30, 16

Attributes = dict[int, dict[str, str]]


def measured(tokens: Sequence[Token], start: int) -> tuple[bool, Attributes]:
    """Look at the table that opens at `start`: whether it is too wide for a phone, and what its cells need.

    :returns: the attributes of a cell by the `id` of the token that opens it.
    """
    rows = list(_rows(tokens, start))
    said = [[_plain(words) for _, words in row] for row in rows]
    # A row may be shorter than another one.
    columns = list(zip_longest(*said, fillvalue=""))
    counts = [_counts(column) for column in columns]
    wide = len(columns) > 1 and sum(map(_needs, columns)) + _GAP * (len(columns) - 1) > _ROOM
    attributes: Attributes = {}
    for row in rows:
        for number, (opening, _) in enumerate(row):
            needed = {"style": "text-align:right"} if counts[number] else {}
            if wide and number and opening.type == "td_open":
                needed["data-label"] = columns[number][0]
            attributes[id(opening)] = needed
    return wide, attributes


def _rows(tokens: Sequence[Token], start: int) -> Iterator[list[tuple[Token, Token]]]:
    """The cells of each row: the token that opens one, and its words."""
    row: list[tuple[Token, Token]] = []
    for index in range(start + 1, len(tokens)):
        match tokens[index].type:
            case "tr_open":
                row = []
            case "th_open" | "td_open":
                row.append((tokens[index], tokens[index + 1]))
            case "tr_close":
                yield row
            case "table_close":
                return


def _plain(words: Token) -> str:
    """The words of a cell; a formula counts with the letters of its TeX, less the commands."""
    parts = (
        re.sub(r"\\[a-z]+|[{}\\]", "", child.content)
        if child.type == "math_inline"
        else markup.plain([child])
        for child in words.children or ()
    )
    return "".join(parts).strip()


def _counts(column: Sequence[str]) -> bool:
    """Whether all of a column below its heading are numbers, and there are several."""
    body = [cell for cell in column[1:] if cell and cell not in "–—-"]
    return len(body) > 1 and all(_NUMBER.fullmatch(cell) for cell in body)


def _needs(column: Sequence[str]) -> int:
    """The letters in a line that a column needs."""
    if _counts(column):
        return max(map(_width, [*column[0].split(), *column[1:]]))
    line = _LINE if max(map(_width, column)) <= _FEW else _LONG_LINE
    return max(min(_width(cell), max([line, *map(_width, cell.split())])) for cell in column)


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
