"""# A section in every language

> One section of a chapter as its own page prints it, and a choice of the language of its words.

    ::: editions src:zero/unit.py#Unit.gather
    :::

The code is the same in all languages, so it stands there once. The choice is a group of radio buttons, which
need no script.
"""

from __future__ import annotations

from markupsafe import Markup

from sidelit.site.directives import section
from sidelit.site.directives.kind import Book, Kind, Place
from sidelit.text.directives import Directive


def _check(given: Directive, book: Book) -> None:
    for key in given.options:
        raise given.error(f"`editions` has no option `{key}`")
    if given.body:
        raise given.error("`editions` takes no words", hint="write them below its `:::`")
    section.take(given, book)


def _html(given: Directive, place: Place) -> Markup:
    taken = section.take(given, place.book)
    return place.fragment(
        "editions.html",
        editions=place.editions(taken.text, taken.piece),
        home=place.address(taken.text.item.output, taken.piece.id),
        page=place.address(taken.text.item.output, ""),
        source=taken.text.item.source,
    )


EDITIONS = Kind("editions", _check, _html, everywhere=True)
