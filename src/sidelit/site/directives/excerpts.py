"""# Lines around a line

> A recording names a line of a chapter by its definition and its text; here it is found as it is today.

The number of a line changes with every comment above it, so a recording has none. A line that is not there
any more, or is there twice, fails the build: then the run has to be recorded again.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass

from sidelit.interactive.replay import Event
from sidelit.site.content import Text
from sidelit.site.directives.kind import Book, nearest
from sidelit.site.lines import CodeLine, code_line
from sidelit.text.directives import Directive

MOST = 14
AROUND = 12


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a chapter: what it belongs to, its number, its coloured code and what stands around it."""

    text: Text
    definition: str
    number: int
    code: CodeLine
    excerpt: tuple[CodeLine, ...]


class Excerpts:
    """The lines that the events of a run stand at; near events show the same lines.

    Raises `SidelitError` at the directive if a line is not found.
    """

    def __init__(self, given: Directive, book: Book, events: Iterable[Event]) -> None:
        self.given, self.book = given, book
        found = [(event, *self._found(event)) for event in events]
        seen: dict[str, set[int]] = {}
        for event, _, _, at in found:
            seen.setdefault(_key(event), set()).add(at)
        self.places = tuple(
            Place(
                text,
                event.definition,
                lines[at].n,
                lines[at],
                lines[slice(*_window(len(lines), at, seen[_key(event)]))],
            )
            for event, text, lines, at in found
        )

    def _found(self, event: Event) -> tuple[Text, tuple[CodeLine, ...], int]:
        """The chapter, all lines of the definition, and which of them it is."""
        sources = [f"{self.book.index.source_root}/{event.path}", event.path]
        text = next((self.book.texts[source] for source in sources if source in self.book.texts), None)
        if text is None:
            what = f"the recording names {event.path}, which is no chapter"
            raise self.given.error(what, hint=nearest(sources[0], self.book.texts))
        pieces = [piece for piece in text.pieces if piece.qualname == event.definition and piece.fold is None]
        # A reader of these lines moves through the run, not through the code: so they have no links.
        lines = tuple(code_line(number, html) for piece in pieces for number, html in piece.lines)
        at = [place for place, line in enumerate(lines) if _plain(line.html).strip() == event.line]
        if len(at) == 1:
            return text, lines, at[0]
        what = f"the recording names the line {event.line!r} of {event.path}#{event.definition}"
        why = f"which is there {len(at)} times" if at else "which is not there, or in depth"
        raise self.given.error(f"{what}, {why}", hint="record the run again")


def _key(event: Event) -> str:
    return f"{event.path}#{event.definition}"


def _plain(code: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", code))


def _window(count: int, at: int, seen: set[int]) -> tuple[int, int]:
    """Which of `count` lines to show around one, so that the lines of other events near it are there too."""
    if count <= MOST:
        return 0, count
    first = min(place for place in seen if at - AROUND < place <= at)
    last = max(place for place in seen if place < first + AROUND)
    start = max(0, min(first - (AROUND - (last - first)) // 2, count - AROUND))
    return start, start + AROUND
