"""# Where a definition is used

> Below a definition stand the sections whose code names it, so that a reader can see it at work.

They follow from the [links in code](identifiers.py), each turned round. A definition that names itself, and a
class that is named by its own methods, are no news. Neither are the imports at the head of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sidelit import digests
from sidelit.names.links import Definition
from sidelit.site.content import Piece, Text
from sidelit.site.identifiers import Identifiers


@dataclass(frozen=True, slots=True)
class Place:
    """A section: its page, its id there, and the definition that it is part of, by its dotted name; empty
    outside of all definitions.
    """

    output: str
    id: str
    name: str


# The places that use each definition of a source, by the id of its section.
Uses = Mapping[str, tuple[Place, ...]]


def used_in(names: Identifiers, texts: Sequence[Text]) -> Mapping[str, Uses]:
    """The uses of all definitions, by their sources; those on the page of a definition come first."""
    found: dict[str, dict[str, list[Place]]] = {}
    for text in texts:
        outline = names.outlines.get(text.item.source)
        if outline is None:
            continue
        key = digests.digest(outline.digest, outline.targets)
        for to, place in text.once("used in", partial(_within, names, text), key):
            if section := names.section(to):
                found.setdefault(to.path, {}).setdefault(section, []).append(place)
    return {
        source: {each: _near(names, source, places[each]) for each in places}
        for source, places in found.items()
    }


def _near(names: Identifiers, source: str, places: Sequence[Place]) -> tuple[Place, ...]:
    own = names.shown[source].output
    return tuple(sorted(places, key=lambda place: place.output != own))


def _within(names: Identifiers, text: Text) -> tuple[tuple[Definition, Place], ...]:
    """What the code of a source uses, and in which of its definitions, each pair once."""
    return tuple({(to, place.name): (to, place) for to, place in reversed([*_uses(names, text)])}.values())[
        ::-1
    ]


def _uses(names: Identifiers, text: Text) -> Iterator[tuple[Definition, Place]]:
    pieces: dict[int, Piece] = {number: piece for piece in text.pieces for number, _ in piece.lines}
    for line, links in names.links(text.item.source).items():
        if (piece := pieces.get(line)) is None:
            continue
        place = Place(text.item.output, piece.id, piece.qualname)
        for to in (link.to for link in links if isinstance(link.to, Definition)):
            if to.kind in ("class", "function") and not _inside(piece, to, text):
                yield to, place


def _inside(piece: Piece, to: Definition, text: Text) -> bool:
    return to.path == text.item.source and f"{piece.qualname}.".startswith(f"{to.qualname}.")
