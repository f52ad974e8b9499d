"""# Sections and their ids

> A source is read, its sections get their published ids, and an earlier build may have done both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sidelit.cache import store
from sidelit.cache.graph import Graph, Kept, Task
from sidelit.config import config as configuration
from sidelit.config.chapters import Chapter
from sidelit.config.config import Config
from sidelit.config.prose import Prose
from sidelit.errors import SidelitError
from sidelit.ids import anchors, ledger, moves
from sidelit.ids.anchors import Anchor
from sidelit.ids.moves import Redirects
from sidelit.site import content
from sidelit.site.content import Piece, Text
from sidelit.source import decoding, source

# ## The names of a site's sections
#
# > One ledger names the sections of every page, for the site, for a file of it, and for a citation.
#
# What `sidelit sections FILE` tells of a file that a site prints is what the site prints: both ask here.


LEDGER = "anchors.json"


def publish(config: Config, redirects: Redirects) -> Path:
    """Fix the ids and addresses of all chapters; returns the file that holds them.

    Raises `SidelitError` when a published id or page would lead nowhere, or a redirect means nothing.
    """
    path = config.folder / LEDGER
    with _in_ledger(config):
        moves.publish(path, [placed(config, chapter) for chapter in config.chapters], redirects)
    return path


def placed(config: Config, item: Chapter, graph: Graph | None = None) -> ledger.Placed:
    """Read the source of a chapter.

    Raises `SidelitError` when it cannot be read as Python.
    """
    document = read(config, item.source, graph)
    return ledger.Placed(item.name, item.output, document, item.former)


def read(config: Config, source_path: str, graph: Graph | None = None) -> source.Document:
    """Read a source, unless an earlier build has read the same."""
    return (graph or Graph()).do(document_read(config, source_path))


def document_read(config: Config, source_path: str) -> Task[source.Document]:
    """Find a source; the task reads it."""
    text, encoding = decoding.read_source(config.project / source_path, source_path)
    key = store.digest(text, source_path, encoding)
    return Task("documents", key, lambda: source.parse(text, source_path, encoding))


def assign(config: Config, pages: Sequence[ledger.Placed]) -> dict[str, tuple[Anchor, ...] | SidelitError]:
    """The anchors of each chapter by its name, or the error for ids that would lead nowhere.

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
            self._names[config.path] = assign(config, [placed(config, each) for each in config.chapters])
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
        if error.path not in (None, str(path)):
            raise
        line = ledger.line_of(path, error.page) if isinstance(error, ledger.Vanished) else error.line
        raise SidelitError(error.what, path=config.shown(path), line=line, hint=error.hint) from None


# ## Texts of earlier builds
#
# > A text that is what it was is known without its pieces, which are read when a page asks for them.


Report = Callable[[SidelitError], None]


def prose(item: Prose, path: Path, graph: Graph) -> Text:
    """Read a page of Markdown, as `content.prose` does."""
    return _text(*_prose(item, path), graph)[0]


def prose_read(item: Prose, path: Path, graph: Graph) -> Task[Read]:
    """Find a page of Markdown; the task reads it."""
    return _read(*_prose(item, path), graph, [])


def _prose(item: Prose, path: Path) -> tuple[str, Callable[[Report], Text]]:
    written = content.written(item, path)
    return content.prose_digest(item, written), lambda report: content.prose(item, written)


def chapter(
    item: Chapter,
    document: source.Document,
    names: Sequence[Anchor],
    number: int,
    report: Report,
    graph: Graph,
) -> Text:
    """Make the text of a source, as `content.chapter` does."""
    key = content.chapter_digest(item, document, names, number)

    def make(report: Report) -> Text:
        text = content.chapter(item, document, names, number, report)
        return replace(text, code=_code(document))

    text, faults = _text(key, make, graph)
    for error in faults:
        report(error)
    return text


def _code(document: source.Document) -> str:
    """Stands for the code of a source, whatever lines it is on."""
    # A mark may hide a part of a section, whose code is not among the lines that are shown.
    whole = document.text if "sidelit: hide" in document.text else ""
    # Empty lines come and go with the words between them.
    lines = (line for section in document.sections for _, line in section.code if line.strip())
    return store.digest(whole, list(lines))


def _text(key: str, make: Callable[[Report], Text], graph: Graph) -> tuple[Text, tuple[SidelitError, ...]]:
    """A text, and what is wrong in it."""
    pieces: list[tuple[Piece, ...]] = []

    def again() -> tuple[Piece, ...]:
        # Those that this process has made stay: much will be asked about them.
        if pieces:
            return pieces[0]
        return graph.alone("pieces", key, lambda: tuple(make(lambda error: None).pieces))

    text, length, faults = graph.do(_read(key, make, graph, pieces))
    kept = Kept(again, length, content.READ.format(text.item.source))
    return replace(text, pieces=kept, graph=graph), faults


Read = tuple[Text, int, tuple[SidelitError, ...]]
"""A text without its pieces, their number, and what is wrong in it."""


def _read(
    key: str, make: Callable[[Report], Text], graph: Graph, pieces: list[tuple[Piece, ...]]
) -> Task[Read]:
    def read() -> Read:
        faults: list[SidelitError] = []
        text = make(faults.append)
        pieces.append(graph.alone("pieces", key, lambda: tuple(text.pieces)))
        return replace(text, pieces=()), len(text.pieces), tuple(faults)

    return Task("texts", key, read)
