"""# The rows of a page's notation

> A page ends with what its symbols mean: its own, and those of what it shows of other pages.

A lesson shows sections of chapters, and each symbol in them is explained once, in the lesson's language.
"""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from sidelit.site.desk import Desk
from sidelit.site.edition import Page
from sidelit.symbols import notation
from sidelit.symbols.marking import Marker
from sidelit.text import fields


def rows(desk: Desk) -> Iterator[Markup]:
    """The rows of the notation that belongs at the end of a page: its own, and what it has taken."""
    symbols = desk.symbols
    if not symbols.used:
        return
    yield _of(desk, desk.shown, symbols.own, every=True)
    for there, marker in tuple(symbols.taken()):
        yield _of(desk.beside(there), there, marker)


def _of(desk: Desk, there: Page, marker: Marker, every: bool = False) -> Markup:
    """The rows of a page's notation, in the language of this page, that have no row here yet."""
    tokens = [token for words in there.words for token in words.tokens]
    found = []
    for row in fields.take(tokens, notation.KIND)[1]:
        keys = {marker.key_of(symbol) for symbol in notation.declared(row)}
        if every or (keys & marker.used) - desk.symbols.listed:
            found.append(row)
        desk.symbols.listed |= keys
    table = desk.html(fields.listed(found)) if found else ""
    return Markup(table.partition("<tbody>")[2].partition("</tbody>")[0])
