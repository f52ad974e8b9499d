"""# The cells of a lab

> A lab is a Python file in Jupytext's percent format, and each of its cells knows its lines.

    # %% [markdown]
    # # Where the memory goes
    # > A step of training, measured.

    # %% exercise="bytes_of_adamw" points=2
    def bytes_of_adamw(parameters):
        ### BEGIN SOLUTION
        return 8 * parameters
        ### END SOLUTION

    # %% check="bytes_of_adamw"
    checks.bytes_of_adamw(bytes_of_adamw)

An `exercise` loses its solution in the student's notebook, and the cell that is its `check` judges what the
student wrote there. Jupytext reads the cells; where they stand the tokens of the file say, so that a mistake
has a line. A cell has a name that lasts: that of its exercise, or the heading above it and a number.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sidelit.errors import SidelitError
from sidelit.labs import tools
from sidelit.text import markup

MARKER = re.compile(r"# %%(?!%)(?: |$)")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_HEADING = re.compile(r"^#{1,6} +(.+)$", re.MULTILINE)
# What Jupytext notes by itself, and what it hands on to the notebook.
_HANDED_ON = ("lines_to_next_cell", "tags")
# The notebook has a cell of this name already.
_TAKEN = "install"


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell.

    :param name: its id in every notebook, and on the page.
    :param text: Markdown without its number signs, or code.
    :param first: the line of its marker.
    :param last: the last line that says something.
    :param exercise: the name of the exercise that it is, or empty.
    :param check: the name of the exercise that it checks, or empty.
    :param points: what its check is worth.
    """

    name: str
    markdown: bool
    text: str
    first: int
    last: int
    exercise: str = ""
    check: str = ""
    points: int = 0


def read(text: str, path: str) -> tuple[Cell, ...]:
    """Read the cells of a lab.

    :raises SidelitError: with the line of what is wrong
    """
    lines = text.splitlines()
    markers = _markers(text, path)
    if not markers:
        raise SidelitError("a lab has cells, and here is no line `# %%`", path=path, line=1)
    found = tools.jupytext().reads(text, fmt="py:percent").cells
    if len(found) != len(markers):
        what = f"Jupytext reads {len(found)} cells, and there are {len(markers)} lines `# %%`"
        hint = "begin the file with `# %% [markdown]`, and write no such line inside a string"
        raise SidelitError(what, path=path, line=markers[0], hint=hint)
    ends = [*markers[1:], len(lines) + 1]
    made: list[Cell] = []
    names = _Names()
    for each, first, end in zip(found, markers, ends, strict=True):
        last = max((row for row in range(first, end) if lines[row - 1].strip(" #")), default=first)
        options = _options(each.metadata, path, first)
        markdown = each.cell_type == "markdown"
        if markdown and options:
            raise SidelitError("a cell of Markdown is no exercise", path=path, line=first)
        name = names.of(each.source, markdown, options)
        made.append(Cell(name, markdown, each.source, first, last, **options))
    _check(made, path)
    return tuple(made)


def _markers(text: str, path: str) -> list[int]:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError) as error:
        line = getattr(error, "lineno", None) or 1
        raise SidelitError(f"is not valid Python: {error.args[0]}", path=path, line=line) from None
    comments = (token for token in tokens if token.type == tokenize.COMMENT and token.start[1] == 0)
    return [token.start[0] for token in comments if MARKER.match(token.string)]


def _options(given: Mapping[str, object], path: str, line: int) -> dict[str, Any]:
    options = {key: value for key, value in given.items() if key not in _HANDED_ON}
    for key, value in options.items():
        if key not in ("exercise", "check", "points"):
            hint = "there is `exercise`, `check` and `points`"
            raise SidelitError(f"a cell of a lab has no option {key!r}", path=path, line=line, hint=hint)
        if key == "points" and (not isinstance(value, int) or value < 0):
            raise SidelitError(f"`points` is a whole number, and not {value!r}", path=path, line=line)
        if key != "points" and not (isinstance(value, str) and _NAME.fullmatch(value)):
            hint = f'write {key}="NAME", in small letters, digits and underscores'
            raise SidelitError(f"{value!r} is no name of an exercise", path=path, line=line, hint=hint)
    if "exercise" in options and "check" in options:
        raise SidelitError("a cell is an exercise or its check, not both", path=path, line=line)
    if "check" in options:
        return {"points": 1, **options}
    if "points" in options:
        raise SidelitError("the points stand at the check of an exercise", path=path, line=line)
    return options


class _Names:
    """Gives each cell a name: that of its exercise, or what the heading above it says, and a number."""

    def __init__(self) -> None:
        self.heading = "top"
        self.taken: Counter[str] = Counter({_TAKEN: 1})

    def of(self, text: str, markdown: bool, options: Mapping[str, object]) -> str:
        if markdown and (found := _HEADING.search(text)):
            self.heading = markup.heading_slug(found[1]) or "section"
        if name := options.get("exercise"):
            return str(name)
        if name := options.get("check"):
            return f"{name}-check"
        base = self.heading[:48] + ("" if markdown else "-code")
        self.taken[base] += 1
        return base if self.taken[base] == 1 else f"{base}-{self.taken[base]}"


def _check(cells: list[Cell], path: str) -> None:
    """Each exercise is checked below it, and each name is that of one cell."""
    for name, count in Counter(cell.name for cell in cells).items():
        if count > 1:
            line = [cell.first for cell in cells if cell.name == name][1]
            raise SidelitError(f"two cells have the name {name!r}", path=path, line=line)
    for cell, problem in _unpaired(cells):
        raise SidelitError(problem, path=path, line=cell.first)


def _unpaired(cells: list[Cell]) -> Iterator[tuple[Cell, str]]:
    asked: set[str] = set()
    checked = {cell.check for cell in cells}
    for cell in cells:
        if cell.exercise and cell.exercise not in checked:
            yield cell, f"no cell checks the exercise {cell.exercise!r}"
        if cell.check and cell.check not in asked:
            yield cell, f"no exercise {cell.check!r} stands above this check"
        asked.add(cell.exercise)
