"""# Gathering mistakes

> Who mends one mistake wants to hear of all of them, in the order of their places, and of each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sidelit.errors import SidelitError


class Failures(SidelitError):
    """Several mistakes at once, one line each."""

    def __init__(self, errors: Sequence[SidelitError]) -> None:
        super().__init__(f"{len(errors)} mistakes")
        # The same slip shows in every language; it is said once, and in the order of the places.
        self.errors = tuple({str(error): error for error in errors}.values())

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


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
