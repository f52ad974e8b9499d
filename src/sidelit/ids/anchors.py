"""# Names that last

> A link to a section still leads to it after the next release, or the build fails.

The ledger holds the ids that readers may have kept, with an imprint of each section. Only a
release writes it (`sidelit publish`). Every build reads it, finds the published sections again, and gives
each its old id. An id changes only where the qualified name changes; the old one then stays as an alias. A
published id that would lead nowhere stops the build. This module looks at one page; `moves` at sections
that went to another.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from sidelit.cache.records import quick
from sidelit.errors import SidelitError
from sidelit.ids.matching import (
    HEADING,
    NUMBERS,
    PIECES,
    Imprint,
    imprint,
    match,
    moved,
    numbered,
    piece,
    propose,
)
from sidelit.source.source import Document

_DIGEST = re.compile(r"/(?:code|comment)-[0-9a-f]{8}(?:-\d+)?$|@[0-9a-f]{8}(?:-\d+)?$")


@dataclass(frozen=True, slots=True)
class Anchor:
    """The id of a section, the ids that once led to it, and the places on other pages that did."""

    id: str
    aliases: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class Linkable:
    """What readers can link to on a page: the sections of a source, or the headings of a page of Markdown.

    :param found: each under the id that its words, its code or its author give it.
    :param hidden: the positions of those that the page does not show.
    :param said: the ids that an author gives.
    :param whole: whether the first section stands for the page as a whole, as that of a source does.
    """

    path: str
    found: tuple[Imprint, ...]
    hidden: frozenset[int] = frozenset()
    said: frozenset[str] = frozenset()
    whole: bool = True


def linkable(document: Document | Linkable) -> Linkable:
    """What readers can link to in a source."""
    if isinstance(document, Linkable):
        return document
    named = zip(document.sections, propose(document.sections), strict=True)
    hidden = (index for index, each in enumerate(document.sections) if each.hidden)
    return Linkable(document.path, tuple(imprint(*each) for each in named), frozenset(hidden))


def assign(
    document: Document,
    published: Sequence[Imprint] | None = None,
    *,
    redirects: Mapping[str, str] | None = None,
) -> tuple[Anchor, ...]:
    """Return an anchor for each section of a single page, in the order of the sections.

    :param published: what the ledger holds about this page.
    :param redirects: published ids whose sections are gone on purpose, each with the id its readers should
        find.
    :raises SidelitError: a published id would lead nowhere.
    """
    naming = Naming(document, published or ())
    naming.finish()
    homes: list[tuple[Imprint, int]] = []
    lost: list[str] = []
    for entry in naming.lost:
        home = naming.index_of((redirects or {}).get(entry.id, ""))
        home = naming.home(entry) if home is None else home
        if home is None:
            lost.append(entry.id)
        else:
            homes.append((entry, home))
    if lost:
        raise nowhere(document.path, lost)
    arrivals = [*naming.kept, *homes]
    return naming.anchors([(place, index) for entry, index in arrivals for place in places_of(entry)])


def nowhere(path: str, lost: Sequence[str], page: str = "") -> SidelitError:
    """The error for published ids that lead nowhere; `page` had them, where it is another page."""
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return SidelitError(
        f"the published id {(f'{page}#' if page else '') + lost[0]!r}{more} would lead nowhere",
        path=path,
        hint="bring the section back, or publish with a redirect to another one",
    )


def places_of(entry: Imprint, address: str = "") -> Iterator[str]:
    """Every place that led to a published section, when its page stood at `address`."""
    yield from (f"{address}#{name}" for name in (*entry.aliases, entry.id))
    yield from entry.places


def imprints(document: Document | Linkable, anchors: Sequence[Anchor]) -> tuple[Imprint, ...]:
    """Take the imprints of all sections that readers can link to."""
    given = linkable(document)
    return tuple(
        replace(each, id=anchor.id, aliases=anchor.aliases, places=anchor.places)
        for index, (each, anchor) in enumerate(zip(given.found, anchors, strict=True))
        if index not in given.hidden
    )


class Naming:
    """The sections of a document beside those that were published, while each gets its name.

    What is off the page cannot be linked to, so hidden sections are neither found again nor published.

    :param reserved: ids that led to a place on this page once, and belong to sections that are elsewhere now.
    """

    def __init__(
        self, document: Document | Linkable, published: Sequence[Imprint] = (), reserved: Iterable[str] = ()
    ) -> None:
        given = linkable(document)
        self.sections, self.said = given.found, given.said
        self.shown = [index for index in range(len(given.found)) if index not in given.hidden]
        self.current = [self.sections[index] for index in self.shown]
        pairs, self.renamed = self._found(published)
        self.lost = [entry for old, entry in enumerate(published) if old not in pairs]
        names = (name for each in published for name in (each.id, *each.aliases))
        self.taken = {*names, *reserved, *self.said}
        self.names: dict[int, str] = {}
        self.kept: list[tuple[Imprint, int]] = []
        for old, new in pairs.items():
            self._name(published[old], new, (published[old].id, *published[old].aliases))

    @property
    def free(self) -> list[int]:
        """The places in `current` of the sections that have no name yet."""
        return [place for place, index in enumerate(self.shown) if index not in self.names]

    def imprint_of(self, index: int) -> Imprint:
        """What the section at a position of the document says and does."""
        return self.current[self.shown.index(index)]

    def admit(self, entry: Imprint, place: int, own: Collection[str]) -> int:
        """Name a section that was published on another page; `own` are ids that led to it here before that.

        Returns its position in the document.
        """
        return self._name(entry, place, own)

    def finish(self) -> None:
        """Name the sections that were never published, from the names that are left."""
        for index, each in enumerate(self.sections):
            if index not in self.names:
                self.names[index] = each.id if each.id in self.said else self._free(each.id)

    def index_of(self, name: str) -> int | None:
        """The section that readers find under an id, be it one of today or a published one."""
        today = (index for index in self.shown if self.names[index] == name)
        before = (index for entry, index in self.kept if name in (entry.id, *entry.aliases))
        return next(chain(today, before), None)

    def home(self, entry: Imprint) -> int | None:
        """Find the section on which the readers of one that is gone should land, if nobody need say it.

        For code without commentary that is the definition it stood in: nobody named it, so nobody can keep
        its name. Every other id is a promise, and only its author may say where it leads now.
        """
        if entry.words or entry.kind not in (*PIECES, "module"):
            return None
        home = self.definition(moved(entry.qualname, self.renamed))
        return self.first if home is None else home

    @property
    def first(self) -> int | None:
        """The section at the top of the page."""
        return self.shown[0] if self.shown else None

    def definition(self, qualname: str) -> int | None:
        """Return the innermost definition of this name or around it."""
        while qualname:
            for index in self.shown:
                each = self.sections[index]
                if each.qualname == qualname and each.kind not in PIECES:
                    return index
            qualname = qualname.rpartition(".")[0]
        return None

    def anchors(self, arrivals: Iterable[tuple[str, int]], address: str = "") -> tuple[Anchor, ...]:
        """Return the anchor of every section, given which place led to which of them."""
        aliases: dict[int, dict[str, None]] = {}
        places: dict[int, dict[str, None]] = {}
        taken = set(self.names.values())
        for place, index in arrivals:
            page, _, name = place.rpartition("#")
            if page != address:
                places.setdefault(index, {})[place] = None
            elif name and name not in taken:
                aliases.setdefault(index, {})[name] = None
        taken.update(*aliases.values())
        for index, each in enumerate(self.sections):
            if each.aliases:
                aliases.setdefault(index, {}).update(dict.fromkeys({*each.aliases} - taken))
        return tuple(
            Anchor(self.names[index], tuple(aliases.get(index, ())), tuple(places.get(index, ())))
            for index in range(len(self.names))
        )

    def _name(self, old: Imprint, place: int, own: Collection[str]) -> int:
        """Give a section that was found again the id that it had, or one for its new definition."""
        new, index = self.current[place], self.shown[place]
        # A digest was the name of code without commentary once, and nobody can say or print it.
        digest = _DIGEST.search(old.id)
        name = new.id if digest or (new.kind == HEADING and not self._stays(old, new)) else old.id
        if old.qualname != new.qualname and old.kind != "module" and not digest:
            name = piece(new.qualname, old.id.rpartition("/")[2]) if old.kind in PIECES else new.id
        self.names[index] = name if name in own or name in self.said else self._free(name)
        self.kept.append((old, index))
        return index

    def _free(self, name: str) -> str:
        """Return `name`, or where it is taken the next one that is free, and take it."""
        free = next(each for each in numbered(name) if each not in self.taken)
        self.taken.add(free)
        return free

    # ## Headings of Markdown
    #
    # > What a heading says now is its id, and what it said before leads to it.
    #
    # Authors and readers of Markdown take it that the words of a heading are its id, unless its author gives
    # it one. So a heading that was reworded gets the id of its new words, and the published one becomes an
    # alias. Only a number tells apart headings that say the same, and it stays with the text below them when
    # they change places.

    def _found(self, published: Sequence[Imprint]) -> tuple[dict[int, int], dict[str, str]]:
        """Pair what was published with the sections of today; an id that an author gives is certain.

        So a heading may get two of them: the one that had this id, and the one that it was itself.
        """
        pairs, renamed = match(published, self.current)
        given = {each.id: place for place, each in enumerate(self.current) if each.id in self.said}
        pairs.update((old, given[each.id]) for old, each in enumerate(published) if each.id in given)
        return pairs, renamed

    def _stays(self, old: Imprint, new: Imprint) -> bool:
        """Whether a heading says what it said, under an id that differs in its numbers at most."""
        alike = old.words == new.words and NUMBERS.sub("", old.id) == NUMBERS.sub("", new.id)
        return alike and not {old.id, new.id} & self.said
