r"""# The reader's own lines

> An error shows the lines that the reader wrote, and not the layers of libraries below.

Suppose that a cell calls an all-gather with a wrong shape. The traceback has twelve
frames, and eleven of them belong to PyTorch and to this library. The reader wrote one,
which is the line to change. So a lab shows the [lines of the reader's own
program](place.py), and after them the last frame of all, where the error was raised.

A frame from another process arrives as a file, a line number and a function. For a cell
Jupyter invents a file, such as `/tmp/ipykernel_411/2874.py`. Only the notebook's kernel
knows the number and the text of that cell, so the frames are turned into text there.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from shardbook.check.place import is_users
from shardbook.labs.words import tell

__all__ = ["Frame", "frames_of", "is_blank_line", "own", "show"]


@dataclass(frozen=True, slots=True)
class Frame:
    """A line that was running."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        place = tell("{file}, line {line}", file=name_of(self.file), line=self.line)
        code = linecache.getline(self.file, self.line).strip()
        within = "" if self.function == "<module>" else f" ({self.function})"
        return f"  {place}{within}" + (f"\n    {code}" if code else "")


def frames_of(trace: TracebackType | None) -> list[Frame]:
    """The frames of a traceback, the innermost last."""
    summary = traceback.StackSummary.extract(
        traceback.walk_tb(trace), lookup_lines=False
    )
    return [Frame(each.filename, each.lineno or 0, each.name) for each in summary]


def is_blank_line(error: BaseException) -> bool:
    """Whether an error comes from the line that a lab puts in the place of a solution.

    The line is `raise NotImplementedError()`. PyTorch raises errors of the same class,
    but says in words what is missing.
    """
    if type(error) is not NotImplementedError or error.args:
        return False
    frames = frames_of(error.__traceback__)
    return bool(frames) and is_users(frames[-1].file)


def own(frames: Iterable[Frame]) -> list[Frame]:
    """The frames of the reader's program."""
    return [frame for frame in frames if is_users(frame.file)]


def show(frames: Sequence[Frame]) -> str:
    """The reader's own frames and the innermost one, a line or two for each.

    Dots stand for the frames that are left out.

    >>> print(show([Frame("a.py", 3, "work"), Frame(traceback.__file__, 9, "inner")]))
    ... # doctest: +ELLIPSIS
      a.py, line 3 (work)
      ...traceback.py, line 9 (inner)
    """
    kept: list[str] = []
    skipped = False
    for number, frame in enumerate(frames):
        if is_users(frame.file) or number == len(frames) - 1:
            kept += ["  …"] * skipped + [str(frame)]
            skipped = False
        else:
            skipped = bool(kept)
    return "\n".join(kept)


def name_of(file: str) -> str:
    """A file as the reader knows it.

    A cell has its number, an installed file its path in the package, and another one its
    path in the working folder.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and (named := shell.compile.format_code_name(file)):
        return " ".join(named)
    for installed in ("/site-packages/", "/dist-packages/"):
        if installed in file:
            return file.rpartition(installed)[2]
    path = Path(file)
    near = path.is_relative_to(Path.cwd())
    return str(path.relative_to(Path.cwd()) if near else path)
