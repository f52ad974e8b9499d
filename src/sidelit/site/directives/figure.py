"""# A figure

> The name of a drawing stands where the drawing shall be.
"""

from __future__ import annotations

from markupsafe import Markup

from sidelit.site.directives.kind import Book, Kind, Place, nearest, plain
from sidelit.text.directives import Directive


def _check(given: Directive, book: Book) -> None:
    plain(given, argument=True, body=False)
    names = sorted(path.stem for path in (book.config.folder / "figures").glob("*.toml"))
    if given.argument not in names:
        raise given.error(f"there is no figure {given.argument!r}", hint=nearest(given.argument, names))


def _html(given: Directive, place: Place) -> Markup:
    return place.figure(given.argument, given.path, given.line)


FIGURE = Kind("figure", _check, _html, everywhere=True)
