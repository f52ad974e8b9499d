"""# Which directives there are

> A directive is a kind in a module beside this one, and one line here.
"""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from sidelit.config.prose import Prose
from sidelit.errors import SidelitError
from sidelit.site import page_kinds
from sidelit.site.content import SourcePage
from sidelit.site.directives import layout, section, stepper
from sidelit.site.directives.kind import DirectiveContext, DirectiveType, ProjectIndex, nearest
from sidelit.text import directives
from sidelit.text.directives import Directive

KINDS = {
    kind.name: kind
    for kind in (
        section.SECTION,
        layout.FIGURE,
        stepper.STEPPER,
        stepper.MOMENT,
        stepper.SLIDERS,
        layout.QUESTION,
        layout.TRY,
        layout.LAB,
        layout.HINT,
        section.CELL,
        layout.OPENING,
        layout.DOORS,
        layout.COLUMNS,
        layout.NUMBERS,
        section.EDITIONS,
        layout.LESSONS,
        layout.PARTS,
        layout.LABS,
        layout.PROOFS,
    )
}


def html(given: Directive, place: DirectiveContext) -> Markup:
    """Draw a directive.

    :raises SidelitError: if it is wrong
    """
    kind = _kind(given, place.book)
    kind.check(given, place.book)
    return kind.html(given, place)


def mistakes(page: SourcePage, book: ProjectIndex) -> Iterator[SidelitError]:
    """What is wrong with the directives of a page, as far as no language is needed to see it."""
    for tokens in page.directives:
        try:
            given = directives.read(tokens)
            _kind(given, book).check(given, book)
        except SidelitError as error:
            yield error


def _kind(given: Directive, book: ProjectIndex) -> DirectiveType:
    kind = KINDS.get(given.name)
    if kind is None:
        what = f"there is no directive `::: {given.name}`"
        raise given.error(what, hint=nearest(given.name, KINDS, f"there is {', '.join(KINDS)}"))
    item = book.pages[given.path].item
    only = page_kinds.of(item).directives
    if only and given.name not in only:
        what = f"a {item.kind} has no place for `::: {given.name}`"
        raise given.error(what, hint=f"it may have {', '.join(only)}")
    if not kind.everywhere and not (isinstance(item, Prose) and item.lesson):
        raise given.error(f"`{given.name}` stands in lessons only")
    return kind
