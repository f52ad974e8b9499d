"""# Texts of earlier builds

> A text that is what it was is known without its pieces, which are read when a page asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sidelit.config import Chapter, Prose
from sidelit.errors import SidelitError
from sidelit.ids.anchors import Anchor
from sidelit.kept import Kept
from sidelit.memory import Memory
from sidelit.site import content
from sidelit.site.content import Piece, Text
from sidelit.source import source
from sidelit.source.surface import surface

Report = Callable[[SidelitError], None]


def prose(item: Prose, path: Path, memory: Memory) -> Text:
    """Read a page of Markdown, as `content.prose` does."""
    written = content.written(item, path)
    key = content.prose_digest(item, written)
    return _text(key, lambda report: content.prose(item, written), memory)[0]


def chapter(
    item: Chapter,
    document: source.Document,
    names: Sequence[Anchor],
    number: int,
    report: Report,
    memory: Memory,
) -> Text:
    """Make the text of a source, as `content.chapter` does."""
    key = content.chapter_digest(item, document, names, number)

    def make(report: Report) -> Text:
        text = content.chapter(item, document, names, number, report)
        return replace(text, surface=surface(document))

    text, faults = _text(key, make, memory)
    for error in faults:
        report(error)
    return text


def _text(key: str, make: Callable[[Report], Text], memory: Memory) -> tuple[Text, tuple[SidelitError, ...]]:
    """A text, and what is wrong in it."""
    pieces: list[tuple[Piece, ...]] = []

    def first() -> tuple[Text, int, tuple[SidelitError, ...]]:
        faults: list[SidelitError] = []
        text = make(faults.append)
        pieces.append(memory.alone("pieces", key, lambda: tuple(text.pieces)))
        return replace(text, pieces=()), len(text.pieces), tuple(faults)

    def again() -> tuple[Piece, ...]:
        # Those that this build has made stay: much will be asked about them.
        if pieces:
            return pieces[0]
        return memory.alone("pieces", key, lambda: tuple(make(lambda error: None).pieces))

    text, length, faults = memory.of("texts", key, first)
    # `kept.asking` tells who asks for them.
    kept = Kept(again, length, text.item.source)
    return replace(text, pieces=kept, memory=memory), faults
