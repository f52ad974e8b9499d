"""# Saying what is wrong

> One exception class, whose text is one sentence with the place in front of it.

Whoever writes a chapter or a translation meets the press mostly through its complaints. Each of them names
the file and the line, says what is wrong and, where there is something to do, what to do. The command line
prints that sentence and ends with exit code 1; a traceback is kept for faults of the press itself.
"""

from __future__ import annotations

from pathlib import Path


class SidelitError(Exception):
    """A mistake in what the press was given, told in one sentence.

    The parts are kept apart so that a caller can add a place it knows better: a formula knows its line inside
    a paragraph, and only the caller knows where the paragraph stands.

    :param what: what is wrong, without a full stop.
    :param path: the file it is in.
    :param line: the line of that file, counted from 1.
    :param hint: what to do about it.
    """

    def __init__(
        self, what: str, *, path: str | Path | None = None, line: int | None = None, hint: str | None = None
    ) -> None:
        self.what = what
        self.path = None if path is None else str(path)
        self.line = line
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        """`path:line: what; hint`, which editors and terminals turn into a link."""
        if self.path is None:
            place = "" if self.line is None else f"line {self.line}: "
        else:
            place = f"{self.path}: " if self.line is None else f"{self.path}:{self.line}: "
        return place + self.what + (f"; {self.hint}" if self.hint else "")


def refused(error: OSError) -> SidelitError:
    """What the operating system refuses, told like any other mistake."""
    return SidelitError(error.strerror or str(error), path=error.filename)
