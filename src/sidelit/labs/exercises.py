"""# Exercises

> The student's cell has a blank where the teacher's has the solution.

What stands between the lines `### BEGIN SOLUTION` and `### END SOLUTION` is the solution. These are the marks
of nbgrader, and the blank is the one that it would make, so a course that grades with it finds what it
expects.
"""

from __future__ import annotations

import re

from sidelit.errors import SidelitError
from sidelit.labs.cells import Cell

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
