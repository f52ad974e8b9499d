"""# The ledger of published ids

> What readers may have kept, with an imprint of each section, in a file that only a release writes.

`anchors.json` has an object for each page, by the page's name, and in it one for each section, by its id:

    "book/hooks": {
     "": {"address": "hooks.html"},
     "Hooks": {"kind": "class", "qualname": "Hooks", "words": "…", "lines": "…",
      "aliases": ["Layer"], "places": ["layer.html#Layer"]}
    }

A page of Markdown has one for each heading, whose `kind` is `heading`. A ledger without such pages was
written by an older release, which kept the ids of sources alone.

`aliases` are ids that once led to this section on this page, `places` those that once led to it at another
address. A ledger without addresses was written by an older release, when a file's path decided the address
of its page.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from sidelit.config.chapters import Former
from sidelit.errors import SidelitError
from sidelit.files import assets
from sidelit.ids.anchors import Linkable, linkable
from sidelit.ids.matching import HEADING, Imprint
from sidelit.source.source import Document, Kind

Page = tuple[Imprint, ...]

# No section has this id, since every id is a word at least.
PAGE = ""
_HINT = "only `sidelit publish` writes this file: bring back the version that it wrote"


@dataclass(frozen=True, slots=True)
class Ledger:
    """The published sections of every page, and the addresses that the pages had."""

    pages: Mapping[str, Page] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)


def load(path: Path) -> Ledger:
    """Read the ledger; a site that was never published has an empty one.

    :raises SidelitError: the file is not a ledger.
    """
    if not path.exists():
        return Ledger()
    data = assets.parsed(path, path, _HINT)
    about, pages, page = {}, {}, PAGE
    try:
        for page, entries in data.items():
            about[page] = _address(entries.pop(PAGE, {}))
            pages[page] = tuple(_read(*item) for item in entries.items())
    except (AttributeError, KeyError, TypeError):
        raise SidelitError("not a ledger of ids", path=path, line=line_of(path, page), hint=_HINT) from None
    return Ledger(pages, {page: address for page, address in about.items() if address})


def save(path: Path, ledger: Ledger) -> None:
    """Write the ledger: a reader of the file finds the old one or the new one, whole."""
    data: dict[str, dict[str, dict[str, object]]] = {}
    for name, page in ledger.pages.items():
        data[name] = {each.id: _entry(each) for each in page}
        if name in ledger.addresses:
            data[name][PAGE] = {"address": ledger.addresses[name]}
    written = path.with_name(path.name + ".new")
    text = json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    # Half a surrogate pair, which a docstring can evaluate to, is written as JSON's own escape.
    written.write_bytes(text.encode("utf-8", "backslashreplace"))
    written.replace(path)


def line_of(path: Path, page: str) -> int:
    """The line on which the entries of a page begin."""
    start = f" {json.dumps(page, ensure_ascii=False)}: {{"
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((number for number, line in enumerate(lines, 1) if line.startswith(start)), 1)


def _address(about: Mapping[str, Any]) -> str:
    return _sound(str(about.get("address", "")))


def _sound(place: str) -> str:
    """An address at which a page may be written.

    :raises TypeError: it is none.
    """
    page = place.partition("#")[0]
    if page and not (page.endswith(".html") and assets.stays_inside(page)):
        raise TypeError(f"{page!r} is not the address of a page")
    return place


def _entry(each: Imprint) -> dict[str, object]:
    """Words and lines are kept as one string each, so that a change is one line of a diff."""
    entry: dict[str, object] = {"kind": each.kind, "qualname": each.qualname}
    if each.words:
        entry["words"] = " ".join(each.words)
    if each.lines:
        entry["lines"] = " ".join(each.lines)
    if each.aliases:
        entry["aliases"] = list(each.aliases)
    if each.places:
        entry["places"] = list(each.places)
    return entry


def _read(name: str, entry: Mapping[str, Any]) -> Imprint:
    kind, qualname = _texts([entry["kind"], entry["qualname"]])
    words, lines = _texts([entry.get("words", ""), entry.get("lines", "")])
    aliases, places = _texts(entry.get("aliases", [])), _texts(entry.get("places", []))
    return Imprint(
        name,
        cast("Kind", kind),
        qualname,
        tuple(words.split()),
        tuple(lines.split()),
        aliases,
        tuple(map(_sound, places)),
    )


def _texts(given: object) -> tuple[str, ...]:
    """The texts of a list.

    :raises TypeError: it is none, or holds something else.
    """
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise TypeError("not a list of texts")
    return tuple(given)


# ## Which page of today is which published one
#
# > A page is known by its name, and `was` says which names it had before.
#
# The rules, in this order, for a published page of the ledger:
#
# 1. A page that says `was = [its name]` goes on with it, unless a release has noted that already. After the
#    release the name is free, and a new page may bear it.
# 2. The page of this name is it.
# 3. The page whose path would give this name is it: an older press named pages by their paths.
# 4. The page at its address is it: it has gone to another package.
# 5. A page that says `was = [its address without .html]` goes on with it: it was of another kind.
#
# A published page that none of them finds would vanish, and stops the build.


@dataclass(frozen=True, slots=True)
class Placed:
    """A page as it is now: what it is called, and its text."""

    name: str
    output: str
    document: Document | Linkable
    former: tuple[Former, ...] = ()
    moved: Mapping[str, str] = field(default_factory=dict)
    """Where its author says that the readers of an id go: `PAGE#ID`, or a page as a whole."""


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
        nav = self._ways()
        self.homes = {name: self._home(name, nav) for name in ledger.pages}
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
        that is not noted yet, by their own, by any former one, by their address, and by a former one.
        """
        nav: tuple[dict[str, Placed], ...] = ({}, {}, {}, {}, {})
        # Of two pages the first one in the book counts.
        for page in reversed(self.pages):
            nav[0].update((former.name, page) for former in self.unnoted(page))
            nav[1][page.name] = page
            nav[2].update((former.name, page) for former in page.former)
            nav[3][page.output] = page
            nav[4].update((former.output, page) for former in page.former if former.told)
        return nav

    def _home(self, name: str, nav: Sequence[Mapping[str, Placed]]) -> Placed:
        address = self.ledger.addresses.get(name)
        said = (name, name, name, address, address)
        found = (way[key] for way, key in zip(nav, said, strict=True) if key is not None and key in way)
        if (home := next(found, None)) is None:
            raise self._vanished(name)
        return home

    def _vanished(self, name: str) -> Vanished:
        """The error for a page that nobody goes on with; it names the new page that has its definitions."""
        known = {each.id for each in self.ledger.pages[name] if each.kind == HEADING}
        known |= {each.qualname for each in self.ledger.pages[name] if each.kind in ("class", "function")}
        shared: Counter[str] = Counter()
        for page in self.pages:
            if page.name not in self.ledger.pages:
                shared[page.document.path] = len(known & set(_called(page.document)))
        likely, count = next(iter(shared.most_common(1)), ("", 0))
        entry = likely if count else "the page that took its place"
        short = name.partition("/")[2] or name
        if not any(page.name.partition("/")[0] == name.partition("/")[0] for page in self.pages):
            # No page of this kind is left, and `was` of another kind needs the address.
            short = self.ledger.addresses.get(name, short).removesuffix(".html")
        hint = f'write `was = ["{short}"]` in the entry of {entry}, or keep a page of this name in the site'
        return Vanished(name, hint)


def _called(document: Document | Linkable) -> Iterator[str]:
    """The names by which a page is known again: those of its definitions, or the ids of its headings."""
    given = linkable(document)
    yield from (each.qualname if given.whole else each.id for each in given.found)
