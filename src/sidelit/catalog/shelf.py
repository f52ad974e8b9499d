"""# The catalogues of a site

> What the other stages ask of them: the state of a sentence, a page, a whole site.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sidelit.catalog.po_file import Entry
from sidelit.catalog.rewordings import Key
from sidelit.catalog.sync import State, is_translated, state_of
from sidelit.catalog.units import PageUnits

# From best to worst: a section is as good as its worst sentence.
STATES: tuple[State, ...] = ("current", "recheck", "stale", "missing")


@dataclass(frozen=True, slots=True)
class Catalog:
    """The translations of one page into one language, matched with the page as it is now.

    `entries` are the live ones by context and English, in the page's order; `obsolete` those kept for
    reuse; `digests` the fingerprints of the code beside each sentence today.
    """

    page: str
    lang: str
    entries: Mapping[Key, Entry] = field(default_factory=dict)
    obsolete: Sequence[Entry] = ()
    digests: Mapping[Key, tuple[str, ...]] = field(default_factory=dict)
    source: str = "en"
    """The tag of the language that it translates from."""
    digest: str = ""
    """Stands for the live entries."""
    original: bool = False
    """Whether the page does not stand in this language, so that nothing of it waits for a translator."""

    def state(self, key: Key) -> State:
        """The state of one sentence: the worst of all the places where its context has it."""
        states = [state_of(self.entries.get(key), code) for code in self.digests.get(key) or ("",)]
        return max(states, key=STATES.index)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `sidelit status`: how many units of a page are in which state."""

    page: str
    lang: str
    current: int
    recheck: int
    stale: int
    missing: int


@dataclass(frozen=True, slots=True)
class Shelf:
    """All catalogues of a site, by page and language."""

    catalogs: Mapping[tuple[str, str], Catalog]
    languages: tuple[str, ...] = ()
    """The languages translated into."""
    source: str = "en"
    """The tag of the language that everything is written in."""
    originals: frozenset[tuple[str, str]] = frozenset()
    """The pages, each with a language, that are shown there as they were written."""

    def catalog(self, page: str, lang: str) -> Catalog:
        """The catalogue of a page; an empty one for a page that `load` was not given."""
        original = (page, lang) in self.originals
        known = self.catalogs.get((page, lang))
        return known or Catalog(page, lang, source=self.source, original=original)

    def translation(self, page: str, lang: str) -> Catalog | None:
        """The same, but nothing in the language that the page is written in: there is nothing to look up."""
        return self.catalog(page, lang) if lang in self.languages else None


def shelves(pages: Sequence[PageUnits], files: Collection[str]) -> dict[str, str]:
    """The page that each catalogue belongs to, by the catalogue's name.

    A catalogue is its namesake's, or else that of the page that had this name before. Where a new page
    bears the name of an old one, the old one takes its catalogue first, for as long as it has none under
    its own name.
    """
    homes: dict[str, str] = {}
    for page in pages:
        if page.name not in files:
            homes.update(dict.fromkeys(page.former, page.name))
    for page in pages:
        homes.setdefault(page.name, page.name)
    for page in pages:
        for name in page.former:
            homes.setdefault(name, page.name)
    return {name: home for name, home in homes.items() if name in files}


def unique(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries of several catalogues as those of one; a live one goes before its obsolete double."""
    found: dict[Key, Entry] = {}
    for entry in entries:
        # An entry that is exchanged keeps its place: what stood beside a sentence tells what became of it.
        if entry.key not in found or _merit(entry) > _merit(found[entry.key]):
            found[entry.key] = entry
    return tuple(found.values())


def _merit(entry: Entry) -> tuple[bool, bool]:
    return not entry.obsolete, is_translated(entry)


def status(shelf: Shelf) -> tuple[Row, ...]:
    """Count the states, a row for each page and language."""
    rows = []
    for catalog in shelf.catalogs.values():
        states = [catalog.state(key) for key in catalog.digests]
        rows.append(Row(catalog.page, catalog.lang, *(states.count(state) for state in STATES)))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class Pending:
    """A sentence that wants a translator; `str()` is a line that editors jump from."""

    path: str
    line: int
    state: State
    context: str
    msgid: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.state}: {self.context}: {self.msgid}"


def pending(shelf: Shelf) -> Iterator[Pending]:
    """Every sentence that is not current, with its place. Run `sync` first, or new ones have none."""
    for catalog in shelf.catalogs.values():
        for key, entry in catalog.entries.items():
            if (state := catalog.state(key)) != "current":
                yield Pending(entry.path, entry.line, state, entry.context, " ".join(entry.msgid.split()))
