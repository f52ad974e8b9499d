"""# The catalogues of a site

> What the other stages ask of them: the state of a sentence, a page, a whole site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sidelit.catalog_file import Entry
from sidelit.catalog_sync import Key, State, state_of

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
    obsolete: tuple[Entry, ...] = ()
    digests: Mapping[Key, tuple[str, ...]] = field(default_factory=dict)

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

    def catalog(self, page: str, lang: str) -> Catalog:
        """The catalogue of a page; an empty one for a page that `load` was not given."""
        return self.catalogs.get((page, lang)) or Catalog(page, lang)


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
