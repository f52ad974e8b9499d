"""# Labs

> A lab is a notebook as a Python file, and its cells are a page, exercises and their solutions.
"""

from __future__ import annotations

import importlib
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markdown_it.token import Token

from sidelit.config.config import Config
from sidelit.config.prose import Prose
from sidelit.errors import SidelitError
from sidelit.text import directives, markup

# ## What labs are read and written with
#
# > Jupytext and nbformat, which only a project with labs needs.


def jupytext() -> Any:
    """The module of that name.

    :raises SidelitError: if it is not installed
    """
    return _needed("jupytext")


def nbformat() -> Any:
    """The module of that name.

    :raises SidelitError: if it is not installed
    """
    return _needed("nbformat")


def _needed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        hint = "install the press with its labs: `pip install 'sidelit[labs]'`"
        raise SidelitError(f"labs need {name}, which is not installed", hint=hint) from None


# ## The cells of a lab
#
# > A lab is a Python file in Jupytext's percent format, and each of its cells knows its lines.
#
#     # %% [markdown]
#     # # Where the memory goes
#     # > A step of training, measured.
#
#     # %% exercise="bytes_of_adamw" points=2
#     def bytes_of_adamw(parameters):
#         ### BEGIN SOLUTION
#         return 8 * parameters
#         ### END SOLUTION
#
#     # %% check="bytes_of_adamw"
#     checks.bytes_of_adamw(bytes_of_adamw)
#
# An `exercise` loses its solution in the student's notebook, and the cell that is its `check` judges what the
# student wrote there. Jupytext reads the cells; where they stand the tokens of the file say, so that a
# mistake has a line. A cell has a name that lasts: that of its exercise, or the heading above it and a
# number.


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
    found = jupytext().reads(text, fmt="py:percent").cells
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
            self.heading = markup.ascii_slug(found[1]) or "section"
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


# ## Exercises
#
# > The student's cell has a blank where the teacher's has the solution.
#
# What stands between the lines `### BEGIN SOLUTION` and `### END SOLUTION` is the solution. These are the
# marks of nbgrader, and the blank is the one that it would make, so a course that grades with it finds what
# it expects.


_BEGIN, _END = "### BEGIN SOLUTION", "### END SOLUTION"
BLANK = ("# YOUR CODE HERE", "raise NotImplementedError()")


def check(cell: Cell, path: str) -> None:
    """Refuse an exercise without a solution, a solution that does not end, and one outside an exercise."""
    marks = [
        (cell.first + 1 + row, line.strip())
        for row, line in enumerate(cell.text.split("\n"))
        if line.strip() in (_BEGIN, _END)
    ]
    if marks and not cell.exercise:
        hint = 'write `# %% exercise="NAME"` above the cell'
        raise SidelitError("a solution stands in no exercise", path=path, line=marks[0][0], hint=hint)
    if cell.exercise and not marks:
        hint = f"put its solution between `{_BEGIN}` and `{_END}`"
        raise SidelitError(
            f"the exercise {cell.exercise!r} has no solution", path=path, line=cell.first, hint=hint
        )
    for place, (line, mark) in enumerate(marks):
        if mark != (_END if place % 2 else _BEGIN) or (mark == _BEGIN and place == len(marks) - 1):
            raise SidelitError(f"`{mark}` has no partner", path=path, line=line)


def student(code: str) -> str:
    """The code with a blank in the place of each solution."""
    lines: list[str] = []
    inside = False
    for line in code.split("\n"):
        mark = line.strip()
        if mark == _BEGIN:
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + each for each in BLANK]
        inside = (inside or mark == _BEGIN) and mark != _END
        if not inside and mark != _END:
            lines.append(line)
    return "\n".join(lines)


def solution(code: str) -> str:
    """The code without the marks around its solutions."""
    return re.sub(rf"^[ \t]*(?:{_BEGIN}|{_END})\n?", "", code, flags=re.MULTILINE).rstrip("\n")


# ## Where notebooks lie
#
# > Beside their sources, in a folder for each language; those for teachers in a folder of their own.
#
#     notebooks/01_memory.py
#     notebooks/en/01_memory.ipynb
#     notebooks/ja/01_memory.ipynb
#     notebooks/teacher/en/01_memory.ipynb


TEACHERS = "teacher"


def student_path(config: Config, item: Prose, lang: str) -> str:
    """The notebook in which the solutions are blanks, from the project folder."""
    return f"{config.labs.folder}/{lang}/{item.stem}.ipynb"


def teacher_path(config: Config, item: Prose, lang: str) -> str:
    """The notebook with the solutions, from the project folder."""
    return f"{config.labs.folder}/{TEACHERS}/{lang}/{item.stem}.ipynb"


# ## A lab as Markdown
#
# > Line for line the same text: a cell of Markdown loses its number signs, a cell of code gets a fence.
#
# So a lab is read as any page of Markdown is, with its translations, links, formulas and directives, and what
# is wrong with a sentence is told with the line of the lab. The fence of a cell of code becomes a directive
# `cell`, so that the page can show more than the code: what the cell printed, and the solution of an
# exercise.


CELL = "cell"


def tokens(text: str, path: str) -> tuple[Token, ...]:
    """The words and the cells of a lab.

    :raises SidelitError: with the line of what is wrong
    """
    made = read(text, path)
    for cell in made:
        check(cell, path)
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
