"""# Which page of today is which published one

> A page is known by its name, and `was` says which names it had before.

The rules, in this order, for a published page of the ledger:

1. A page that says `was = [its name]` goes on with it, unless a release has noted that already. After the
   release the name is free, and a new page may bear it.
2. The page of this name is it.
3. The page whose path would give this name is it: an older press named pages by their paths.
4. The page at its address is it: it has gone to another package.

A published page that none of them finds would vanish, and stops the build.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sidelit.errors import SidelitError
from sidelit.ids.ledger import Ledger
from sidelit.page_names import Former
from sidelit.source.source import Document


@dataclass(frozen=True, slots=True)
class Placed:
    """A page as it is now: what it is called, and its text."""

    name: str
    output: str
    document: Document
    former: tuple[Former, ...] = ()


class Vanished(SidelitError):
    """A published page that no page of today goes on with."""

    def __init__(self, page: str, hint: str) -> None:
        super().__init__(f"the published page {page!r} would vanish", hint=hint)
        self.page = page


class Claims:
    """The pages of today beside the published ones.

    :raises SidelitError: a published page would vanish.
    """

    def __init__(self, pages: Sequence[Placed], ledger: Ledger) -> None:
        self.pages = pages
        self.ledger = ledger
        self._unnoted = {page.name: self._not_yet_noted(page) for page in pages}
        ways = self._ways()
        self.homes = {name: self._home(name, ways) for name in ledger.pages}
        self._taken: dict[str, list[str]] = {}
        for name, home in self.homes.items():
            self._taken.setdefault(home.name, []).append(name)

    def own(self, page: Placed) -> str | None:
        """The published page that a page goes on with: its own, or else the first one that it took in."""
        taken = self.taken(page)
        names = (page.name, *(each.name for each in page.former), *taken)
        return next((name for name in names if name in taken), None)

    def taken(self, page: Placed) -> Sequence[str]:
        """The published pages that a page goes on with."""
        return self._taken.get(page.name, ())

    def owns(self, name: str) -> bool:
        """Whether a published page lives on as a page of its own, and was not taken in by another one."""
        return self.own(self.homes[name]) == name

    def address(self, name: str) -> str:
        """Where a published page stood."""
        home = self.homes[name]
        former = next((each.output for each in home.former if each.name == name), home.output)
        return self.ledger.addresses.get(name, former)

    def unnoted(self, page: Placed) -> Sequence[Former]:
        """The former names of a page that no release has noted yet."""
        return self._unnoted[page.name]

    def _not_yet_noted(self, page: Placed) -> list[Former]:
        places = [place for entry in self.ledger.pages.get(page.name, ()) for place in entry.places]
        noted = {place.rpartition("#")[0] for place in places}
        return [former for former in page.former if former.told and former.output not in noted]

    def _ways(self) -> tuple[Mapping[str, Placed], ...]:
        """The pages by what says that they go on with a published one, the strongest first: by a former name
        that is not noted yet, by their own, by any former one, and by their address.
        """
        ways: tuple[dict[str, Placed], ...] = ({}, {}, {}, {})
        # Of two pages the first one in the book counts.
        for page in reversed(self.pages):
            ways[0].update((former.name, page) for former in self.unnoted(page))
            ways[1][page.name] = page
            ways[2].update((former.name, page) for former in page.former)
            ways[3][page.output] = page
        return ways

    def _home(self, name: str, ways: Sequence[Mapping[str, Placed]]) -> Placed:
        said = (name, name, name, self.ledger.addresses.get(name))
        found = (way[key] for way, key in zip(ways, said, strict=True) if key is not None and key in way)
        if (home := next(found, None)) is None:
            raise self._vanished(name)
        return home

    def _vanished(self, name: str) -> Vanished:
        """The error for a page that nobody goes on with; it names the new page that has its definitions."""
        known = {each.qualname for each in self.ledger.pages[name] if each.kind in ("class", "function")}
        shared: Counter[str] = Counter()
        for page in self.pages:
            if page.name not in self.ledger.pages:
                shared[page.document.path] = len(known & {each.qualname for each in page.document.sections})
        likely, count = next(iter(shared.most_common(1)), ("", 0))
        entry = likely if count else "the page that took its place"
        short = name.partition("/")[2] or name
        hint = f'write `was = ["{short}"]` in the entry of {entry}, or keep a page of this name in the site'
        return Vanished(name, hint)
