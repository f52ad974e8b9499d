"""# Sections that moved or went

> A section is looked for on every page before it counts as gone, and then its author says where readers go.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from sidelit.errors import SidelitError
from sidelit.ids import ledger as ledger_file
from sidelit.ids.anchors import Anchor, Naming, imprints, linkable, nowhere, places_of
from sidelit.ids.ledger import Claims, Ledger, Page, Placed
from sidelit.ids.matching import PIECES, Imprint, alike, match, says_enough, text_of

# ## Where the readers of a section that is gone go
#
# > Its author says so once, at a release, and a word of it that means nothing is refused.
#
# `sidelit publish --redirect PAGE#OLD=NEW` names a published id whose section is gone, and the id that its
# readers should find: one of the same page, or `PAGE#ID`. `*` stands for every other id of the page.


Redirects = Mapping[str, Mapping[str, str]]
"""By page and id, where the readers of sections that are gone go: `ID`, or `PAGE#ID`; `*` is any other id."""


def published(claims: Claims, lost: Mapping[str, Sequence[Imprint]]) -> dict[str, dict[str, bool]]:
    """By the names of each published page its ids, and whether the section of each is lost."""
    found: dict[str, dict[str, bool]] = {}
    for name, page in claims.ledger.pages.items():
        for called in {name, claims.homes[name].name} if claims.owns(name) else {name}:
            found.setdefault(called, {}).update({each.id: each in lost[name] for each in page})
    return found


def refuse(
    redirects: Redirects,
    known: Mapping[str, Mapping[str, bool]],
    leads: Callable[[str, str], bool],
) -> None:
    """Refuse a redirect from what was never published or is still there, and one to what is on no page.

    :param known: the published ids of each page by every name that it has, and whether each is gone.
    :param leads: whether a page has a section that a redirect of its ids names.
    """
    for page, said in redirects.items():
        if said and page not in known:
            raise SidelitError(f"no published page is called {page!r}", hint=_near(page, known))
        for old, new in said.items():
            if old != "*":
                _refuse_id(f"{page}#{old}", known[page].get(old), _near(old, known[page]))
            if not leads(page, new):
                what = f"the redirect of {f'{page}#{old}'!r} names {new!r}, which is on no page"
                raise SidelitError(what, hint="`sidelit sections FILE` lists the ids of a file")


def _refuse_id(place: str, gone: bool | None, near: str | None) -> None:
    if gone is None:
        raise SidelitError(f"no release has published the id {place!r}", hint=near)
    if not gone:
        what = f"the section {place!r} is still there, and only an id whose section is gone can be redirected"
        raise SidelitError(what, hint="leave this redirect out")


def _near(wanted: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(wanted, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else None


# ## Sections that went to another page
#
# > A chapter may be renamed, split and merged, and what readers kept of it still leads to the same section.
#
# [Claims](ledger.py) tell which page goes on with which published one. Each page finds its own sections
# again, as [anchors](anchors.py) does. What is left of them, and of pages that another one took in, is looked
# for on all pages: exact copies first, then sections that are alike. A section that is found takes its id
# along where that is free, and the place it had before is noted with it, as `address#id`.
#
# A definition that nobody finds leads to the definition of its name on the page that took its own page in.
# For anything else only the author can say where its readers go (`sidelit publish --redirect`).


# Where a section is now: the name of its page, and its position in the document.
Found = tuple[str, int]


def assign(
    pages: Sequence[Placed], ledger: Ledger, redirects: Redirects | None = None
) -> dict[str, tuple[Anchor, ...] | SidelitError]:
    """Return the anchors of each page, by its name, or the error for ids that would lead nowhere.

    :raises SidelitError: a published page would vanish, or a redirect means nothing.
    """
    site = _Site(pages, ledger)
    for name in ledger.pages:
        site.look_around(name)
    for naming in site.naming.values():
        naming.finish()
    refuse(redirects or {}, published(site.claims, site.lost), site.leads)
    wrong = {}
    for name, entries in site.lost.items():
        if lost := [entry.id for entry in entries if not site.settle(name, entry, redirects or {})]:
            home = site.claims.homes[name]
            wrong[home.name] = nowhere(home.document.path, lost, "" if site.claims.owns(name) else name)
    arrived = site.arrived()
    return {page.name: wrong.get(page.name) or site.anchors(page, arrived[page.name]) for page in pages}


def publish(
    path: Path,
    pages: Sequence[Placed],
    redirects: Redirects | None = None,
    check: Callable[[Mapping[str, Page]], None] = lambda fixed: None,
) -> Ledger:
    """Fix the ids and the addresses of all pages and write them to the ledger.

    :param check: refuses the published sections of the pages, by name, before they are written.
    :raises SidelitError: a published id or page would lead nowhere.
    """
    given = assign(pages, ledger_file.load(path), redirects)
    fixed: dict[str, Page] = {}
    for page in pages:
        anchors = given[page.name]
        if isinstance(anchors, SidelitError):
            raise anchors
        fixed[page.name] = imprints(page.document, anchors)
    check(fixed)
    ledger = Ledger(fixed, {page.name: page.output for page in pages})
    ledger_file.save(path, ledger)
    return ledger


class _Site:
    """All pages, while their sections get names.

    :param found: where each published section is now, by its page and id.
    :param lost: by published page, the sections that are still looked for.
    """

    def __init__(self, pages: Sequence[Placed], ledger: Ledger) -> None:
        self.pages = {page.name: page for page in pages}
        self.claims = Claims(pages, ledger)
        self.entries = {(name, entry.id): entry for name, page in ledger.pages.items() for entry in page}
        self.naming: dict[str, Naming] = {}
        self.found: dict[tuple[str, str], Found] = {}
        self.lost = {name: list(page) for name, page in ledger.pages.items()}
        for page in pages:
            self.naming[page.name] = self._named(page)
        for page, gone in [(page, gone) for page in pages if (gone := self._exchanged(page))]:
            self.naming[page.name] = self._named(page, gone)
        for page in pages:
            own, naming = self.claims.own(page), self.naming[page.name]
            if own is not None:
                kept = {(own, entry.id): (page.name, index) for entry, index in naming.kept}
                self.found.update(kept)
                self.lost[own] = [entry for entry in ledger.pages[own] if (own, entry.id) not in kept]

    def look_around(self, name: str) -> None:
        """Look on all pages for the lost sections of a published page."""
        home = self.claims.homes[name].name
        wanted = {text_of(entry) for entry in self.lost[name] if self._may_have_left(name, entry)}
        if not wanted:
            return
        copies: Counter[str] = Counter()
        for page, naming in self.naming.items():
            copies[page] = sum(text_of(naming.current[place]) in wanted for place in naming.free)
        # The page that took this one in comes first, then those that hold most of its sections as they were.
        order = sorted(self.pages, key=lambda page: (page != home, -copies[page]))
        for exact in (True, False):
            for page in order:
                self._look_on(page, name, exact)

    def leads(self, page: str, redirect: str) -> bool:
        """Whether a redirect from a page, published under this name or of today, names a section."""
        home = self.claims.homes[page].name if page in self.claims.homes else page
        return self._named_by(home, redirect) is not None

    def settle(self, name: str, entry: Imprint, redirects: Redirects) -> bool:
        """Find where the readers of a section go that is on no page; false when nobody can tell."""
        found = self._redirected(name, entry, redirects) or self._left_to(name, entry)
        if found:
            self.found[name, entry.id] = found
        # A page as a whole has no id to which an old one could be noted, so its author goes on saying it.
        return found is not None or {entry.id, *entry.aliases} <= self.claims.homes[name].moved.keys()

    def arrived(self) -> Mapping[str, list[tuple[str, int]]]:
        """By page, the places that led to its sections, once every published section is found or settled."""
        arrived: dict[str, list[tuple[str, int]]] = {page: [] for page in self.pages}
        for (name, anchor), (there, index) in self.found.items():
            places = places_of(self.entries[name, anchor], self._published[name])
            arrived[there] += ((place, index) for place in places)
        return arrived

    def anchors(self, page: Placed, arrived: Sequence[tuple[str, int]]) -> tuple[Anchor, ...]:
        """The anchors of a page, to whose sections what has `arrived` led."""
        arrivals = [*arrived]
        naming = self.naming[page.name]
        # A page of Markdown has no section that stands for all of it, so its author goes on saying `was`.
        if naming.first is not None and linkable(page.document).whole:
            arrivals += ((f"{address}#", naming.first) for address in self._addresses(page))
        for address in self._unpublished(page):
            arrivals += ((f"{address}#{naming.names[index]}", index) for index in naming.shown)
        return naming.anchors(arrivals, page.output)

    def _addresses(self, page: Placed) -> Iterator[str]:
        """The addresses at which a page, or one that it took in, stood."""
        yield from (self._published[name] for name in self.claims.taken(page))
        yield from (former.output for former in self.claims.unnoted(page))

    def _unpublished(self, page: Placed) -> set[str]:
        """The addresses that a page had when no release knew it: its sections had the ids that they have."""
        former = {former.output for former in self.claims.unnoted(page)}
        current = (each.output for each in self.pages.values())
        return former.difference(self._published.values(), current) if former else former

    @cached_property
    def _published(self) -> Mapping[str, str]:
        """The address of each published page."""
        return {name: self.claims.address(name) for name in self.claims.homes}

    def _named(self, page: Placed, gone: Collection[str] = ()) -> Naming:
        """Let a page find its own sections, but for those that are `gone` to another page."""
        own = self.claims.own(page)
        published = () if own is None else self.claims.ledger.pages[own]
        # Where its author says where a heading went, nothing else is taken for it.
        gone = {*gone, *page.moved}
        stayed = [entry for entry in published if entry.id not in gone]
        left = [name for entry in published if entry.id in gone for name in (entry.id, *entry.aliases)]
        return Naming(page.document, stayed, [*self._reserved(page, own), *left])

    def _exchanged(self, page: Placed) -> list[str]:
        """The definitions of a page that went to another one, while others of their names took their places.

        Within a page a name is certain. So such a one is known by its copy elsewhere, which is new there.
        """
        naming = self.naming[page.name]
        return [
            entry.id
            for entry, index in naming.kept
            if entry.kind in ("class", "function")
            and says_enough(entry)
            # Few have a copy elsewhere, and to find one takes less than to compare two texts.
            and any(map(self._is_new, self._copies(page, entry)))
            and not alike(entry, naming.imprint_of(index))
        ]

    def _copies(self, page: Placed, entry: Imprint) -> Iterator[tuple[Naming, Imprint]]:
        for name, each in self._by_text.get(text_of(entry), ()):
            if name != page.name:
                yield self.naming[name], each

    @cached_property
    def _by_text(self) -> Mapping[tuple[object, ...], Sequence[tuple[str, Imprint]]]:
        """The sections of all pages of today by what they say and do."""
        found: dict[tuple[object, ...], list[tuple[str, Imprint]]] = {}
        for name, naming in self.naming.items():
            for each in naming.current:
                found.setdefault(text_of(each), []).append((name, each))
        return found

    @staticmethod
    def _is_new(copy: tuple[Naming, Imprint]) -> bool:
        naming, each = copy
        return text_of(each) not in [text_of(entry) for entry, _ in naming.kept]

    def _reserved(self, page: Placed, own: str | None) -> Iterator[str]:
        """The ids that led to a place at the address of a page, and lead to another page now."""
        yield from (anchor for name, anchor in self._promised.get(page.output, ()) if name != own)

    @cached_property
    def _promised(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """By address, the published pages and the ids by which their sections were reached there."""
        found: dict[str, list[tuple[str, str]]] = {}
        for (name, _), entry in self.entries.items():
            for place in places_of(entry, self._published[name]):
                address, _, anchor = place.rpartition("#")
                if anchor:
                    found.setdefault(address, []).append((name, anchor))
        return found

    def _may_have_left(self, name: str, entry: Imprint) -> bool:
        """Code that nobody described is looked for only where the code around it went."""
        if entry.kind == "module" or entry.id in self.claims.homes[name].moved:
            return False
        if entry.words or entry.kind not in PIECES or not self.claims.owns(name):
            return True
        return self._around(name, entry) not in (None, self.claims.homes[name].name)

    def _look_on(self, page: str, name: str, exact: bool) -> None:
        """Look on one page for what a published page lost, for copies alone or for what is alike too."""
        naming = self.naming[page]
        lost = [entry for entry in self.lost[name] if self._may_have_left(name, entry)]
        free = [place for place in naming.free if naming.current[place].kind != "module"]
        if not lost or not free:
            return
        pairs, _ = match(lost, [naming.current[place] for place in free])
        # Definitions come first, the outer ones before the inner ones: what stands in them follows.
        for old in sorted(pairs, key=lambda old: (lost[old].kind in PIECES, lost[old].qualname.count("."))):
            entry, place = lost[old], free[pairs[old]]
            copy = text_of(entry) == text_of(naming.current[place]) and says_enough(entry)
            follows = page in (self.claims.homes[name].name, self._around(name, entry))
            if copy or (not exact and (follows or alike(entry, naming.current[place]))):
                self._admit(name, entry, page, place)

    def _admit(self, name: str, entry: Imprint, page: str, place: int) -> None:
        before = (each.rpartition("#") for each in places_of(entry, self.claims.address(name)))
        own = [anchor for address, _, anchor in before if address == self.pages[page].output]
        self.found[name, entry.id] = page, self.naming[page].admit(entry, place, own)
        self.lost[name].remove(entry)

    def _around(self, name: str, entry: Imprint) -> str | None:
        """The page that the innermost published definition around a section is on now."""
        found = self._definition(name, entry)
        return found[0] if found else None

    def _definition(self, name: str, entry: Imprint) -> Found | None:
        around = entry.qualname if entry.kind in PIECES else entry.qualname.rpartition(".")[0]
        while around:
            if found := self.found.get((name, around)):
                return found
            around = around.rpartition(".")[0]
        return None

    def _redirected(self, name: str, entry: Imprint, redirects: Redirects) -> Found | None:
        home = self.claims.homes[name].name
        of_today = redirects.get(home, {}) if self.claims.owns(name) else {}
        said = {**self.claims.homes[name].moved, **of_today, **redirects.get(name, {})}
        return self._named_by(home, said.get(entry.id, said.get("*", "")))

    def _named_by(self, home: str, redirect: str) -> Found | None:
        """The section that a redirect from a page of today names."""
        page, _, anchor = redirect.rpartition("#")
        if page in self.claims.homes and page not in self.naming:
            page = self.claims.homes[page].name
        index = self.naming[page or home].index_of(anchor) if (page or home) in self.naming else None
        return None if index is None else (page or home, index)

    def _left_to(self, name: str, entry: Imprint) -> Found | None:
        """Where the readers of a section go that is gone, when its author need not say it."""
        home = self.claims.homes[name].name
        naming = self.naming[home]
        index = naming.home(entry)
        if index is not None:
            around = self._definition(name, entry)
            return around if around and around[0] != home else (home, index)
        if not self.claims.owns(name) and entry.kind == "module":
            index = naming.first
        elif not self.claims.owns(name) and entry.kind not in PIECES:
            index = naming.index_of(entry.qualname)
        return None if index is None else (home, index)
