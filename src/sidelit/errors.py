"""# Saying what is wrong

> One exception class, whose text is one sentence with the place in front of it.

Whoever writes a chapter or a translation meets the press mostly through its complaints. Each of them names
the file and the line, says what is wrong and, where there is something to do, what to do. The command line
prints that sentence and ends with exit code 1; a traceback is kept for faults of the press itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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


class SourceFault(SidelitError):
    """What is odd in the words of a source: a build may go on over it, and `sidelit lint` tells it, too."""


def refused(error: OSError) -> SidelitError:
    """What the operating system refuses, told like any other mistake."""
    return SidelitError(error.strerror or str(error), path=error.filename)


# ## Gathering mistakes
#
# > Who mends one mistake wants to hear of all of them, in the order of their places, and of each once.


class Failures(SidelitError):
    """Several mistakes at once, one line each."""

    def __init__(self, errors: Sequence[SidelitError]) -> None:
        super().__init__(f"{len(errors)} mistakes")
        # The same slip shows in every language; it is said once, and in the order of the places.
        self.errors = tuple({str(error): error for error in errors}.values())

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


# What lists everything that is odd in the sources of a site.
LINT = "`sidelit lint`"


def summed(errors: Iterable[SidelitError], listing: str = LINT) -> Iterator[str]:
    """A line for each thing that is wrong: its first place, and how many more places have the same.

    One role of a stranger's own may stand in hundreds of docstrings, and would hide all else.

    :param listing: what tells all places of a fault of sources.
    """
    groups: dict[tuple[str, str | None], list[SidelitError]] = {}
    for error in errors:
        groups.setdefault((error.what, error.hint), []).append(error)
    for first, *others in groups.values():
        many = len(others)
        more = f" … and {many} more place{'s' * (many != 1)}" if many else ""
        told = f"; {listing} lists them all" if many and isinstance(first, SourceFault) else ""
        yield f"{first}{more}{told}"


@dataclass(slots=True)
class Collector:
    """Gathers mistakes, so that an author hears of all of them at once."""

    errors: list[SidelitError] = field(default_factory=list)

    def add(self, error: SidelitError) -> None:
        """Take note of one mistake, or of several at once."""
        self.errors += error.errors if isinstance(error, Failures) else [error]

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Take note of a mistake inside this block, and go on behind it."""
        try:
            yield
        except SidelitError as error:
            self.add(error)

    def check(self) -> None:
        """Raise what was gathered, if anything was."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise Failures(self.errors)
