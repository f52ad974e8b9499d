"""# Where a link leads

> A link in a text names a file, a section or a page, and an old address sends its readers on.
"""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from urllib.parse import quote, unquote

from sidelit.cache import store
from sidelit.cache.graph import note
from sidelit.cache.records import Ids
from sidelit.config.chapters import Chapter
from sidelit.config.config import Config
from sidelit.config.prose import Moved, Prose
from sidelit.errors import SidelitError
from sidelit.site import anchoring
from sidelit.site.content import SourcePage
from sidelit.site.edition import Page
from sidelit.text import markup

# ## Old addresses
#
# > A page that was renamed leaves one behind that sends its readers on, to the section they asked for.
#
# The anchors of a chapter say at which places its sections stood before. Turned round, that is for each old
# address a table from every id it had to the page and the id that it has now. Where no page stands at an old
# address, a page is made that forwards: by a script, which sees the `#section`; without scripts by an instant
# refresh, which does not; and by a plain link for each section where a browser does neither. Where a page
# stands there, it lists the sections that have left it. A page of prose says itself which have.


@dataclass(frozen=True, slots=True)
class Lead:
    """Where a reader of an old address goes: a page, and a section of it unless it is the whole page."""

    output: str
    id: str


Leads = Mapping[str, Mapping[str, Lead]]
"""By old address and old id; the empty id is the page as a whole."""


def leads(pages: Sequence[SourcePage]) -> Leads:
    """Find where the readers of every old address go, in the order in which they would read it."""
    found: dict[str, dict[str, Lead]] = {}
    for page in pages:
        for place, anchor in _places(page):
            address, _, old = place.rpartition("#")
            found.setdefault(address, {})[old] = Lead(page.item.output, anchor if old else "")
    current = {page.item.output for page in pages}
    outputs = {page.item.source: page.item.output for page in pages}
    for page in pages:
        gone = {
            moved.old: Lead(outputs[moved.source], moved.id)
            for moved in _moved(page)
            if moved.source in outputs
        }
        if gone:
            found.setdefault(page.item.output, {}).update(gone)
        for former in page.item.former:
            if former.told and former.output not in current:
                there = found.setdefault(former.output, {})
                there.setdefault("", Lead(page.item.output, ""))
                # What no ledger says of the headings of a page of prose, they are taken to be what they were.
                for slug in _headings(page):
                    there.setdefault(slug, Lead(page.item.output, slug))
                there.update(gone)
    for there in found.values():
        there.setdefault("", Lead(next(iter(there.values())).output, ""))
    return found


def forwards(found: Leads, pages: Sequence[SourcePage]) -> tuple[str, ...]:
    """The old addresses at which no page stands."""
    return tuple(address for address in sorted(found) if address not in {page.item.output for page in pages})


# What a task notes that asks where an old address leads, whether a page has a section, and which it has.
LEADS, SECTION, IDS = "leads:{}", "section:{}\t{}\t{}", "ids:{}"


def leading(found: Leads, address: str) -> Mapping[str, Lead]:
    """Where the readers of an old address go."""
    note(LEADS.format(address))
    return found.get(address, {})


def departed(found: Leads, page: SourcePage) -> dict[str, Lead]:
    """The ids that lead from a page to another one; those that it has today stay."""
    there = leading(found, page.item.output)
    return {old: lead for old, lead in there.items() if old and old not in page.ids}


def page(address: str, target: Page) -> Page:
    """The page at an old address, in one language; it has the title of the page that it leads to."""
    item: Chapter | Prose = target.source.item
    forward = Prose(item.source, address, item.name, "forward")
    source = SourcePage(forward, target.source.label, (), Ids())
    title, state = target.title, target.title_state
    digest = target.digest and store.digest(address, target.digest)
    label, lang = target.label, target.lang
    return Page(source, lang, title, state, (), None, (), target.source_lang, label, digest=digest)


def _places(page: SourcePage) -> Iterator[tuple[str, str]]:
    yield from page.once("places", lambda: list(anchoring.places(page)))


def _moved(page: SourcePage) -> tuple[Moved, ...]:
    return page.item.moved if isinstance(page.item, Prose) else ()


def _headings(page: SourcePage) -> Iterator[str]:
    if page.prose:
        names = page.once(
            "headings", lambda: [name for each in page.tokens for name in markup.names_of(each)]
        )
        yield from (name for name in names if name in page.ids)


# ## Where a link leads
#
# > A link names a file of the project, not a page of the site, and a link that leads nowhere stops the build.
#
# Authors link the way the repository is laid out: another source, a page of prose, a section by its id, a
# work by its key. The index knows every id of every page, so a section that was renamed is noticed before a
# reader notices.
#
# A file may move, and the links to it need not: a path that leads nowhere is looked up by its end. `unit.py`
# is the only source of this name, wherever it lies; or the only page that bears this name, or bore it before.
# Two of them are one too many, and the link must say more of the path.


EXTERNAL = ("http://", "https://", "mailto:")


@dataclass(frozen=True, slots=True)
class Target:
    """A page that can be linked to: its place in the project, its place in the site, and its ids."""

    source: str
    name: str
    output: str
    ids: Set[str]
    moved: Mapping[str, Lead] = field(default_factory=dict)
    """Where the ids lead that are on another page now, or are called otherwise there."""
    address: str = ""
    """The old address that it was found by, if it was."""

    def knows(self, anchor: str) -> tuple[bool, Lead | None]:
        """Whether it has an id, and where that leads otherwise."""
        note(SECTION.format(self.source, self.address, anchor))
        return anchor in self.ids, self.moved.get(anchor)


@dataclass(frozen=True, slots=True)
class Index:
    """Everything in the site that a link may name."""

    targets: Mapping[str, Target]
    works: Mapping[str, str]
    files: frozenset[str]
    source_root: str
    pages: str
    names: Sequence[Mapping[str, tuple[Target, ...]]] = ()
    """The targets by the ends of their paths: by those of their files, their names, their old names."""

    def resolve(self, href: str, page: Target, line: int, *, up: str = "", shown_on: str = "") -> str:
        """Turn a link of a page into the address the reader's browser needs.

        `up` leads from the page's language to the root, where the files that all languages share are.
        `shown_on` is the place of the page that shows the text, if that is another one than the text's own.
        Raises `SidelitError` at the page's line when nothing is there.
        """
        there, page = page, replace(page, output=shown_on) if shown_on else page
        if href.startswith(EXTERNAL):
            return href
        if href.startswith("bib:"):
            return self._work(href[4:], page, line)
        path, _, anchor = href.partition("#")
        if not path:
            return self._place(unquote(anchor), there, page, line, here=not shown_on)
        if posixpath.isabs(path) or ":" in path.removeprefix("src:"):
            raise SidelitError(
                f"the link {href!r} is not understood",
                path=page.source,
                line=line,
                hint="use a relative path, src:, bib: or https:",
            )
        target = self._find(unquote(path), page) or self._named(unquote(path), page, line)
        if isinstance(target, Target):
            return self._place(unquote(anchor), target, page, line)
        if target is not None:
            return up + relative(target, page.output)
        raise SidelitError(
            f"the link {href!r} leads to no page or file of the site",
            path=page.source,
            line=line,
            hint=_nearest(path, (*self.targets, *self.files)),
        )

    def page(self, path: str, page: Target, line: int) -> Target | None:
        """The page that a path means on another page, as in a link; `None` if there is none.

        Raises `SidelitError` at that page's line when it may be several.
        """
        found = self._find(path, page) or self._named(path, page, line)
        return found if isinstance(found, Target) else None

    def _find(self, path: str, page: Target) -> Target | str | None:
        for candidate in self._candidates(path, page):
            if candidate in self.targets:
                return self.targets[candidate]
            below = posixpath.relpath(candidate, self.pages)
            if below in self.files:
                return below
        return None

    def _candidates(self, path: str, page: Target) -> Iterator[str]:
        for spelling in _spellings(path):
            yield from self._places(spelling, page)

    def _places(self, path: str, page: Target) -> tuple[str, ...]:
        if path.startswith("src:"):
            return (posixpath.normpath(posixpath.join(self.source_root, path[4:])),)
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(page.source), path))
        # To an author sources and prose are one tree, as in the site: `../bibliography.md` works in both.
        tree = posixpath.normpath(posixpath.join(posixpath.dirname(page.name), path))
        return beside, posixpath.join(self.pages, tree), posixpath.join(self.source_root, tree)

    def _named(self, path: str, page: Target, line: int) -> Target | None:
        """Look a path up by its end, and by a shorter end where the longer one is that of no page."""
        parts = [part for part in path.removeprefix("src:").split("/") if part not in ("", ".", "..")]
        for start in range(len(parts)):
            end = "/".join(parts[start:])
            for known in self.names:
                found = {target.output: target for target in known.get(end, ())}
                if len(found) > 1:
                    several = ", ".join(sorted(target.source for target in found.values()))
                    raise SidelitError(
                        f"the link {path!r} may lead to several pages: {several}",
                        path=page.source,
                        line=line,
                        hint="write as much of the path as tells them apart",
                    )
                if found:
                    return next(iter(found.values()))
        return None

    def _place(self, anchor: str, target: Target, page: Target, line: int, here: bool = False) -> str:
        """The address of a section, or of the whole page for an empty anchor; `here` says no path."""
        known, lead = target.knows(anchor)
        if lead is not None:
            return relative(lead.output, page.output) + (f"#{fragment(lead.id)}" if lead.id else "")
        address = "" if here else relative(target.output, page.output)
        if not known and (anchor or here):
            # The hint looks at all of them.
            note(IDS.format(target.source))
            raise SidelitError(
                f"{target.source} has no section {anchor!r}",
                path=page.source,
                line=line,
                hint=_nearest(anchor, tuple(target.ids)),
            )
        return f"{address}#{fragment(anchor)}" if anchor or here else address

    def _work(self, key: str, page: Target, line: int) -> str:
        if key not in self.works:
            raise SidelitError(
                f"the bibliography has no entry {key!r}",
                path=page.source,
                line=line,
                hint=_nearest(key, tuple(self.works)),
            )
        return f"{relative(self.works[key], page.output)}#{fragment(f'bib-{key}')}"


def _spellings(path: str) -> Iterator[str]:
    """A path, and the files that an author means who links to the pages that another tool makes of them."""
    yield path
    stem = path.removesuffix(".html")
    if stem != path:
        yield from (f"{stem}.py", f"{stem}.md")
        if posixpath.basename(stem) == "index":
            yield posixpath.join(posixpath.dirname(stem), "__init__.py")
        return
    # A server shows the first page of a folder, and some know a page without its suffix.
    folder = path.rstrip("/")
    if "." not in (name := posixpath.basename(folder)) and name:
        yield from (f"{folder}.py", f"{folder}.md")
    if "." not in name or name in (".", ".."):
        yield from (f"{folder}/__init__.py", f"{folder}/index.md")


def ends(path: str) -> Iterator[str]:
    """Every end of a path: `unit.py`, `zero/unit.py`, …"""
    parts = path.split("/")
    yield from ("/".join(parts[start:]) for start in range(len(parts)))


def fragment(anchor: str) -> str:
    """An id as it stands after `#`: slashes and dots stay readable."""
    return quote(anchor, safe="/.:-_~")


def pages_folder(config: Config) -> str:
    """The folder of the prose, from the project folder."""
    return f"{config.folder.name}/pages"


def relative(target: str, page: str) -> str:
    """The address of one file of the site as seen from a page of it."""
    return _seen_from(target, posixpath.dirname(page))


# Every page of a folder has the same links to all others.
@lru_cache(maxsize=1 << 16)
def _seen_from(target: str, folder: str) -> str:
    return quote(posixpath.relpath(target, folder or "."))


def _nearest(wanted: str, known: tuple[str, ...]) -> str | None:
    close = difflib.get_close_matches(wanted, known, n=1)
    return f"did you mean {close[0]!r}?" if close else None
