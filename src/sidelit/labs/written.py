"""# A lab as Markdown

> Line for line the same text: a cell of Markdown loses its number signs, a cell of code gets a fence.

So a lab is read as any page of Markdown is, with its translations, links, formulas and directives, and what
is wrong with a sentence is told with the line of the lab. The fence of a cell of code becomes a directive
`cell`, so that the page can show more than the code: what the cell printed, and the solution of an exercise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from markdown_it.token import Token

from sidelit.errors import SidelitError
from sidelit.labs import cells, exercises
from sidelit.labs.cells import Cell
from sidelit.text import directives, markup

CELL = "cell"


def tokens(text: str, path: str) -> tuple[Token, ...]:
    """The words and the cells of a lab.

    :raises SidelitError: with the line of what is wrong
    """
    made = cells.read(text, path)
    for cell in made:
        exercises.check(cell, path)
    known = {cell.first: cell for cell in made if not cell.markdown}
    parsed = markup.parse(markdown(text, made, path), path=path, first_line=1, directives=True)
    return tuple(_with_cells(parsed, known))


def markdown(text: str, made: Sequence[Cell], path: str) -> str:
    """The lab as Markdown, with as many lines."""
    lines = text.split("\n")
    written = [""] * (len(lines) + 1)
    for cell in made:
        rows = range(cell.first + 1, cell.last + 1)
        if cell.markdown:
            for row in rows:
                written[row - 1] = _uncommented(lines[row - 1], path, row)
        elif cell.text.strip():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", cell.text)), default=0))
            for row in rows:
                written[row - 1] = lines[row - 1]
            if cell.last < len(lines) and lines[cell.last].strip():
                raise SidelitError("leave a blank line below this cell", path=path, line=cell.last)
            written[cell.first - 1], written[cell.last] = f"{fence}python", fence
    return "\n".join(written)


def _uncommented(line: str, path: str, row: int) -> str:
    if not line.startswith("#") and line.strip():
        hint = "begin each of its lines with `# `"
        raise SidelitError("a cell of Markdown is a comment", path=path, line=row, hint=hint)
    return line[1:].removeprefix(" ")


def _with_cells(parsed: Sequence[Token], known: dict[int, Cell]) -> Iterator[Token]:
    for token in parsed:
        cell = known.get(token.map[0] + 1) if token.type == "fence" and token.map else None
        if cell is None or token.level:
            yield token
            continue
        opening = Token(directives.OPEN, "div", 1, block=True, map=token.map, level=token.level)
        opening.meta = {**token.meta, "written": f"{CELL} {cell.name}", "closed": True}
        token.meta["cell"] = cell
        yield from (opening, token, Token(directives.CLOSE, "div", -1, block=True, level=token.level))
