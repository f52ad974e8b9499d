"""# Sliders

> A table of answers, one of which is shown; a script adds what chooses another one.
"""

from __future__ import annotations

from markupsafe import Markup

from sidelit.interactive import sliders
from sidelit.interactive.sliders import Row
from sidelit.site.directives.kind import Book, Kind, Place, nearest, plain
from sidelit.text.directives import Directive


def _check(given: Directive, book: Book) -> None:
    plain(given, argument=True, body=False)
    known = sliders.names(book.config)
    if given.argument not in known:
        raise given.error(f"there are no sliders {given.argument!r}", hint=nearest(given.argument, known))
    sliders.read(book.config, given.argument)


def _html(given: Directive, place: Place) -> Markup:
    made = sliders.read(place.book.config, given.argument)
    place.needs("sliders")

    def said(context: str) -> Markup:
        return place.said(made.script, context, {})

    return place.fragment(
        "sliders.html",
        name=made.name,
        title=said("title"),
        caption=said("caption"),
        axes=[(said(f"axes/{axis.name}"), axis) for axis in made.axes],
        rows=[(said(f"rows/{name}"), row) for name, row in zip(made.rows, made.start, strict=True)],
        parts=[said(f"parts/{part}") for part in made.parts],
        points=";".join("|".join(map(_packed, point)) for point in made.points),
        recording=made.recording,
    )


def _packed(row: Row) -> str:
    """A row as the script reads it; what is written holds none of its signs."""
    return " ".join([row.text, *(f"{width:g}" for width in row.widths)])


SLIDERS = Kind("sliders", _check, _html, everywhere=True)
