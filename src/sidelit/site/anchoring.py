"""# Sections and their ids

> A source is read, its sections get their published ids, and an earlier build may have done both.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from markdown_it.token import Token

from sidelit.cache import store
from sidelit.cache.graph import Graph, LazySequence, Task
from sidelit.cache.records import Ids
from sidelit.config import config as configuration
from sidelit.config.chapters import Chapter
from sidelit.config.config import Config
from sidelit.config.prose import Prose
from sidelit.errors import Collector, Failures, SidelitError
from sidelit.ids import anchors, ledger, moves
from sidelit.ids.anchors import Anchor, Linkable
from sidelit.ids.matching import HEADING, Imprint, text_digest
from sidelit.ids.moves import Redirects
from sidelit.site import content
from sidelit.site.content import PageSection, SourcePage
from sidelit.source import decoding, source
from sidelit.text import markup

# ## The names of a site's sections
#
# > One ledger names the sections of every page, for the site, for a file of it, and for a citation.
#
# What `sidelit sections FILE` tells of a file that a site prints is what the site prints: both ask here.


LEDGER = "anchors.json"


def publish(config: Config, redirects: Redirects) -> Path:
    """Fix the ids and addresses of all pages; returns the file that holds them.

    Raises `SidelitError` when a published id or page would lead nowhere, or a redirect means nothing.
    """
    path = config.folder / LEDGER

    def check(fixed: Mapping[str, ledger.Page]) -> None:
        # The ledger forgets what the configuration answers for, so the answer has to be right.
        gathered = Collector()
        ids = {each.source: _names_on(fixed[each.name]) for each in config.prose}
        for error in astray(config, ids):
            gathered.add(error)
        gathered.check()

    with _in_ledger(config):
        moves.publish(path, _pages(config), redirects, check)
    return path


def _names_on(page: ledger.Page) -> frozenset[str]:
    return frozenset(name for each in page for name in (each.id, *each.aliases))


def astray(config: Config, ids: Mapping[str, Set[str]]) -> Iterator[SidelitError]:
    """The sections of prose that are said to be elsewhere and are not, given the `ids` of each source."""
    path = config.shown(config.path)
    said = ((item, moved) for item in config.prose for moved in item.moved)
    for page, moved in said:
        what = hint = None
        if moved.source not in ids:
            what = f"`moved` leads to {moved.source}, which is no page of the site"
        elif moved.id and moved.id not in ids[moved.source]:
            what = f"`moved` leads to {moved.id!r}, which is no section of {moved.source}"
            close = difflib.get_close_matches(moved.id, tuple(ids[moved.source]), n=1)
            hint = f"did you mean {close[0]!r}?" if close else None
        elif moved.old in ids[page.source]:
            what, hint = f"{moved.old!r} in `moved` is a section of {page.source}", "remove it"
        if what:
            yield SidelitError(what, path=path, line=moved.line, hint=hint)


def pages(
    config: Config, found: Mapping[str, Source], source_pages: Mapping[str, SourcePage]
) -> list[ledger.Placed]:
    """The pages of a site, each with what readers can link to on it."""
    placed = [
        ledger.Placed(each.name, each.output, found[each.source].linkable, each.former)
        for each in config.chapters
    ]
    names = {each.source: each.name for each in config.prose}
    for item in config.prose:
        # A page that is none of the site is told elsewhere, with the line that names it.
        moved = {each.old: f"{names.get(each.source, each.source)}#{each.id}" for each in item.moved}
        headings = _headings(source_pages[item.source])
        placed.append(ledger.Placed(item.name, item.output, headings, item.former, moved))
    return placed


def _pages(config: Config) -> list[ledger.Placed]:
    found = {each.source: read(config, each.source, Graph()) for each in config.chapters}
    source_pages = {each.source: prose(each, config.project / each.source, Graph()) for each in config.prose}
    return pages(config, found, source_pages)


@dataclass(frozen=True, slots=True)
class Source:
    """A source of which an earlier build may know what it says.

    :param key: stands for it.
    :param document: what is in it; most builds need it of few sources.
    """

    key: str
    document: Callable[[], source.Document]
    linkable: Linkable
    faults: tuple[SidelitError, ...]


def read(config: Config, source_path: str, graph: Graph) -> Source:
    """Read a source, unless an earlier build has read the same."""
    document, known = _tasks(config, source_path, graph)
    return Source(str(known.key), partial(graph.do, document), *graph.do(known))


def source_read(config: Config, source_path: str, graph: Graph) -> Task[Any]:
    """Find a source; the task reads it."""
    return _tasks(config, source_path, graph)[1]


def _tasks(
    config: Config, source_path: str, graph: Graph
) -> tuple[Task[source.Document], Task[tuple[Linkable, tuple[SidelitError, ...]]]]:
    text, encoding = decoding.read_source(config.project / source_path, source_path)
    key = store.digest(text, source_path, encoding)
    document = Task("documents", key, cache(lambda: source.parse(text, source_path, encoding)))

    def known() -> tuple[Linkable, tuple[SidelitError, ...]]:
        found = graph.do(document)
        return anchors.linkable(found), found.faults

    return document, Task("linked", key, known)


Names = tuple[Anchor, ...] | SidelitError
"""The anchors of a page, or why ids of it would lead nowhere."""


def assign(config: Config, pages: Sequence[ledger.Placed]) -> dict[str, tuple[Anchor, ...] | SidelitError]:
    """The anchors of each page by its name, or the error for ids that would lead nowhere.

    Raises `SidelitError` when the ledger is broken, or a published page would vanish.
    """
    with _in_ledger(config):
        return moves.assign(pages, ledger.load(config.folder / LEDGER))


class Homes:
    """The sites that files belong to: each is read once, for however many of its files."""

    def __init__(self) -> None:
        self._sites: dict[Path, tuple[Config, Mapping[Path, Chapter]] | None] = {}
        self._names: dict[Path, dict[str, tuple[Anchor, ...] | SidelitError]] = {}

    def owner(self, path: Path) -> tuple[Config, Chapter] | None:
        """The site that prints a file, and the chapter it is there; `None` for the files of nobody."""
        try:
            found = configuration.find(path.resolve().parent)
        except SidelitError:
            return None  # Not part of a site: that is the usual case, and no mistake.
        if found not in self._sites:
            self._sites[found] = _site(found)
        config, chapters = self._sites[found] or (None, {})
        chapter = chapters.get(path.resolve())
        return (config, chapter) if config and chapter else None

    def anchors(self, path: Path, document: source.Document) -> tuple[Anchor, ...]:
        """The anchors of the sections of a file: those that its site prints, or proposals for a file of none.

        Raises `SidelitError` when another page of that site is broken, so that nobody knows what it prints.
        """
        home = self.owner(path)
        if home is None:
            return anchors.assign(document)
        config, own = home
        if config.path not in self._names:
            self._names[config.path] = assign(config, _pages(config))
        found = self._names[config.path][own.name]
        if isinstance(found, SidelitError):
            raise found
        return found


def _site(path: Path) -> tuple[Config, Mapping[Path, Chapter]] | None:
    try:
        config = configuration.load(path)
    except SidelitError:
        return None
    return config, {(config.project / each.source).resolve(): each for each in config.chapters}


@contextmanager
def _in_ledger(config: Config) -> Iterator[None]:
    """Give a mistake in the ledger the path that messages print."""
    path = config.folder / LEDGER
    try:
        yield
    except SidelitError as error:
        if isinstance(error, Failures) or error.path not in (None, str(path)):
            raise
        line = ledger.line_of(path, error.page) if isinstance(error, ledger.Vanished) else error.line
        raise SidelitError(error.what, path=config.shown(path), line=line, hint=error.hint) from None


# ## Pages of earlier builds
#
# > A page that is what it was is known without its sections, which are read when somebody asks for them.


Report = Callable[[SidelitError], None]


def prose(item: Prose, path: Path, graph: Graph) -> SourcePage:
    """Read a page of Markdown, as `content.prose` does."""
    return _source_page(*_prose(item, path), graph)[0]


def prose_read(item: Prose, path: Path, graph: Graph) -> Task[Read]:
    """Find a page of Markdown; the task reads it."""
    return _read(*_prose(item, path), graph, [])


def _prose(item: Prose, path: Path) -> tuple[str, Callable[[Report], SourcePage]]:
    written = content.written(item, path)
    return content.prose_digest(item, written), lambda report: content.prose(item, written)


def chapter(
    item: Chapter, found: Source, names: Sequence[Anchor], number: int, report: Report, graph: Graph
) -> SourcePage:
    """Make the page of a source, as `content.chapter` does."""
    key = chapter_key(item, found, names, number)

    def make(report: Report) -> SourcePage:
        document = found.document()
        page = content.chapter(item, document, names, number, report)
        return replace(page, digest=key, code=code_of(document))

    page, faults = _source_page(key, make, graph)
    for error in faults:
        report(error)
    return page


def chapter_key(item: Chapter, found: Source, names: Sequence[Anchor], number: int) -> str:
    """Stands for all that `chapter` makes a page from."""
    return store.digest(found.key, item, names, number)


def code_of(document: source.Document) -> str:
    """Stands for the code of a source, whatever lines it is on."""
    # A mark may hide a part of a section, whose code is not among the lines that are shown.
    whole = document.text if "sidelit: hide" in document.text else ""
    # Empty lines come and go with the words between them.
    lines = (line for section in document.sections for _, line in section.code if line.strip())
    return store.digest(whole, list(lines))


def _source_page(
    key: str, make: Callable[[Report], SourcePage], graph: Graph
) -> tuple[SourcePage, tuple[SidelitError, ...]]:
    """A page, and what is wrong in it."""
    sections: list[tuple[PageSection, ...]] = []

    def again() -> tuple[PageSection, ...]:
        # Those that this process has made stay: much will be asked about them.
        if sections:
            return sections[0]
        return graph.alone("pieces", key, lambda: tuple(make(lambda error: None).sections))

    page, length, faults = graph.do(_read(key, make, graph, sections))
    kept = LazySequence(again, length, content.READ.format(page.item.source))
    return replace(page, sections=kept, graph=graph), faults


Read = tuple[SourcePage, int, tuple[SidelitError, ...]]
"""A page without its sections, their number, and what is wrong in it."""


def _read(
    key: str, make: Callable[[Report], SourcePage], graph: Graph, sections: list[tuple[PageSection, ...]]
) -> Task[Read]:
    def read() -> Read:
        faults: list[SidelitError] = []
        page = make(faults.append)
        sections.append(graph.alone("pieces", key, lambda: tuple(page.sections)))
        return replace(page, sections=()), len(page.sections), tuple(faults)

    return Task("texts", key, read)


# ## The headings of Markdown
#
# > A heading is known again by its words and by what stands below it, as a section of a source is.
#
# Its words are one thing that is compared, and the sentences below it the other, up to the next heading. Of
# the headings that it has below it, the words count too: they are all that a heading without a text holds.


def named(page: SourcePage, names: Sequence[Anchor]) -> SourcePage:
    """A page of Markdown whose headings have these anchors."""
    found = _headings(page).found
    if tuple(names) == tuple(Anchor(each.id, each.aliases) for each in found):
        return page
    ids = Ids(each for name in names for each in (name.id, *name.aliases))
    digest = page.digest and store.digest(page.digest, names)
    again = partial(_named, page.sections, names)
    sections = LazySequence(again, len(page.sections), content.READ.format(page.item.source))
    return replace(page, sections=sections, ids=ids, digest=digest)


def places(page: SourcePage) -> Iterator[tuple[str, str]]:
    """Where the sections of a page stood before, each with the id that it has now."""
    for section in page.sections:
        if not page.prose:
            yield from ((place, section.id) for place in section.places)
        for token in section.tokens if page.prose else ():
            yield from ((place, str(token.meta["slug"])) for place in token.meta.get("places", ()))


def _named(sections: Sequence[PageSection], names: Sequence[Anchor]) -> tuple[PageSection, ...]:
    left = iter(names)
    return tuple(_renamed(section, left, title=number == 0) for number, section in enumerate(sections))


def _renamed(section: PageSection, names: Iterator[Anchor], title: bool) -> PageSection:
    tokens = list(section.tokens)
    rest = markup.opening(tokens).rest if title else tokens
    stood: list[str] = []
    for place in range(len(tokens) - len(rest), len(tokens)):
        token = tokens[place]
        if token.type == "heading_open":
            name = next(names)
            said = {"slug": name.id, "aliases": name.aliases, "places": name.places}
            tokens[place] = token.copy(meta={**token.meta, **said})
            stood += name.places
    return replace(section, tokens=tuple(tokens), places=tuple(stood))


def _headings(page: SourcePage) -> Linkable:
    return page.once("imprints", lambda: _read_headings(page))


def _read_headings(page: SourcePage) -> Linkable:
    tokens = markup.opening(page.tokens).rest
    found: list[tuple[Token, list[str], list[str]]] = []
    # What stands below each heading around the current token, the outermost first.
    around: list[tuple[int, list[str]]] = []
    for before, token in pairwise((None, *tokens)):
        if token is None or token.type == "footnote_block_open":
            around = []
        elif token.type == "heading_open":
            level = int(token.tag[1])
            around = [*(each for each in around if each[0] < level), (level, [])]
            found.append((token, [], around[-1][1]))
        elif before is not None and before.type == "heading_open":
            found[-1][1].extend(token.content.split())
            for _, below in around[:-1]:
                below.append(token.content)
        elif around:
            words = str(token.meta.get("written", "")) or ("" if token.nesting else token.content)
            around[-1][1].extend(filter(None, _SENTENCE.split(words)))
    imprints = tuple(
        Imprint(
            str(heading.meta["slug"]),
            HEADING,
            "",
            tuple(words),
            tuple(text_digest(each, 6) for each in below),
            heading.meta["aliases"],
        )
        for heading, words, below in found
    )
    given = (str(heading.meta["slug"]) for heading, _, _ in found if "said" in heading.meta)
    return Linkable(page.item.source, imprints, said=frozenset(given), whole=False)


_SENTENCE = re.compile(r"(?<=[.!?;:])\s+|(?<=[。！？；：])")
