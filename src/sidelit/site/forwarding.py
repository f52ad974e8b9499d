"""# Old addresses

> A page that was renamed leaves one behind that sends its readers on, to the section they asked for.

The anchors of a chapter say at which places its sections stood before. Turned round, that is for each old
address a table from every id it had to the page and the id that it has now. Where no page stands at an old
address, a page is made that forwards: by a script, which sees the `#section`; without scripts by an instant
refresh, which does not; and by a plain link for each section where a browser does neither. Where a page
stands there, it lists the sections that have left it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sidelit import digests
from sidelit.config import Chapter, Prose
from sidelit.packed import Ids
from sidelit.site.content import Text
from sidelit.site.edition import Page


@dataclass(frozen=True, slots=True)
class Lead:
    """Where a reader of an old address goes: a page, and a section of it unless it is the whole page."""

    output: str
    id: str


Leads = Mapping[str, Mapping[str, Lead]]
"""By old address and old id; the empty id is the page as a whole."""


def leads(texts: Sequence[Text]) -> Leads:
    """Find where the readers of every old address go, in the order in which they would read it."""
    found: dict[str, dict[str, Lead]] = {}
    for text in texts:
        for place, anchor in _places(text):
            address, _, old = place.rpartition("#")
            found.setdefault(address, {})[old] = Lead(text.item.output, anchor if old else "")
    current = {text.item.output for text in texts}
    for text in texts:
        for former in text.item.former:
            if former.told and former.output not in current:
                there = found.setdefault(former.output, {})
                there.setdefault("", Lead(text.item.output, ""))
                # The headings of a page of prose are in no ledger, so they are taken to be what they were.
                there.update({slug: Lead(text.item.output, slug) for slug in _headings(text)})
    for there in found.values():
        there.setdefault("", Lead(next(iter(there.values())).output, ""))
    return found


def forwards(found: Leads, texts: Sequence[Text]) -> tuple[str, ...]:
    """The old addresses at which no page stands."""
    return tuple(address for address in sorted(found) if address not in {text.item.output for text in texts})


def departed(found: Leads, text: Text) -> dict[str, Lead]:
    """The ids that lead from a page to another one; those that it has today stay."""
    there = found.get(text.item.output, {})
    return {old: lead for old, lead in there.items() if old and old not in text.ids}


def page(address: str, target: Page) -> Page:
    """The page at an old address, in one language; it has the title of the page that it leads to."""
    item: Chapter | Prose = target.text.item
    forward = Prose(item.source, address, item.name, "forward")
    text = Text(forward, target.text.label, (), Ids())
    title, state = target.title, target.title_state
    digest = target.digest and digests.digest(address, target.digest)
    label, lang = target.label, target.lang
    return Page(text, lang, title, state, (), None, (), target.source_lang, label, digest=digest)


def _places(text: Text) -> Iterator[tuple[str, str]]:
    found = text.once("places", lambda: [(place, one.id) for one in text.pieces for place in one.places])
    yield from found


def _headings(text: Text) -> Iterator[str]:
    if text.prose:
        slugs = text.once("headings", lambda: [str(token.meta.get("slug")) for token in text.tokens])
        yield from (slug for slug in slugs if slug in text.ids)
