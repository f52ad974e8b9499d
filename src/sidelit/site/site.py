"""# The site

> Read everything, check everything, and only then hand out the files.

This is the pipeline in one place: sources and prose are read, sections get their names, catalogues their
matches, and each page is assembled in each language. The result is a folder of files that nobody reads yet.
Who wants it, the command line, mkdocs or a server, is of no concern here, and a site that has a mistake
anywhere is never handed out.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sidelit import assets, glossary, interrupts, origin
from sidelit import look as looks
from sidelit.catalog import catalog
from sidelit.cite import authors
from sidelit.config import Config, Prose, load
from sidelit.errors import SidelitError
from sidelit.figures import figure, gallery
from sidelit.ids.claims import Placed
from sidelit.kept import Kept, Noted
from sidelit.site import (
    anchoring,
    beside,
    citation,
    content,
    edition,
    feed,
    finished,
    forwarding,
    identifiers,
    index,
    links,
    listing,
    making,
    proved,
    public_files,
    static,
    uses,
    ways,
)
from sidelit.site.directives import registry
from sidelit.site.directives.kind import Book
from sidelit.site.press import Press
from sidelit.site.search import index as search
from sidelit.site.symbol_list import Notations
from sidelit.site.views import Work
from sidelit.store import Store
from sidelit.text.math import Typesetter

CACHE = ".cache/sidelit"


class Failures(SidelitError):
    """Several mistakes at once, one line each."""

    def __init__(self, errors: Sequence[SidelitError]) -> None:
        super().__init__(f"{len(errors)} mistakes")
        # The same slip shows in every language; it is said once, and in the order of the places.
        self.errors = tuple({str(error): error for error in errors}.values())

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


@dataclass(slots=True)
class Collector:
    """Gathers mistakes, so that an author hears of all of them at once."""

    errors: list[SidelitError] = field(default_factory=list)

    def add(self, error: SidelitError) -> None:
        """Take note of one mistake, or of several at once."""
        self.errors += error.errors if isinstance(error, Failures) else [error]

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Take note of a mistake inside this block, and go on behind it."""
        try:
            yield
        except SidelitError as error:
            self.add(error)

    def check(self) -> None:
        """Raise what was gathered, if anything was."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise Failures(self.errors)


def texts(config: Config, notes: Collector | None = None) -> tuple[content.Text, ...]:
    """Read every page of the site in the language it was written in.

    What is wrong with a mark or a formula of a source goes to `notes`, if they are given.

    Raises `SidelitError` with all the sources that cannot be read.
    """
    gathered = Collector()
    prose: dict[str, content.Text] = {}
    for each in config.prose:
        with gathered.gathering():
            prose[each.source] = _watched(content.prose(each, config.project / each.source))
    placed: dict[str, Placed] = {}
    for chapter in config.chapters:
        with gathered.gathering():
            placed[chapter.source] = anchoring.placed(config, chapter)
            for fault in placed[chapter.source].document.faults:
                (notes or gathered).add(fault)
    gathered.check()
    names = anchoring.assign(config, tuple(placed.values()))
    found: list[content.Text] = []
    numbers = {chapter.name: number for number, chapter in enumerate(config.chapters, start=1)}
    for item in config.order:
        if isinstance(item, Prose):
            found.append(prose[item.source])
        elif isinstance(anchors := names[item.name], SidelitError):
            gathered.add(anchors)
        else:
            document, report = placed[item.source].document, (notes or gathered).add
            text = content.chapter(item, document, anchors, numbers[item.name], report)
            found.append(_watched(text))
    gathered.check()
    return tuple(found)


def _watched(text: content.Text) -> content.Text:
    """The same text, and `kept.asking` tells who asks for its pieces."""
    pieces = tuple(text.pieces)
    return replace(text, pieces=Kept(lambda: pieces, len(pieces), text.item.source))


def shelf(config: Config, written: Sequence[content.Text]) -> catalog.Shelf:
    """Open the catalogues of the site and match them with its pages."""
    units, tag = content.units(config, written), config.language(config.source_language).tag
    return catalog.load(units, config.folder / "locale", config.languages[1:], tag)


def files(config: Config, notes: Collector | None = None) -> dict[str, bytes]:
    """Make the whole site in memory: every file by its path, as `write` does."""
    with tempfile.TemporaryDirectory() as name, interrupts.tidied(lambda: shutil.rmtree(name, True)):
        folder = Path(name)
        return {name: (folder / name).read_bytes() for name in write(config, folder, notes)}


def write(
    config: Config, folder: Path, notes: Collector | None = None, jobs: int | None = None
) -> tuple[str, ...]:
    """Make the whole site in an empty folder; returns its files in a fixed order.

    With `notes` a formula or a link that is wrong is printed as it was typed, and noted there. `jobs` is the
    number of processes that make pages, by default one for each core.

    Raises `SidelitError` (one, or `Failures`) when anything else in it is wrong. Then the folder holds no
    site, and whoever made it removes it.
    """
    looks.forget()
    written = texts(config, notes)
    books = shelf(config, written)
    editions = {lang: edition.edition(config, written, books, lang) for lang in config.languages}
    terms, works = _data(config)
    leads = forwarding.leads(written)
    gathered = Collector()
    project = citation.Project(config, origin.origin(config), authors.read(config), feed.releases(config))
    press = Press(
        config=config,
        editions=editions,
        index=index.index(config, written, leads, terms, works),
        leads=leads,
        texts={text.item.source: text for text in written},
        names=identifiers.identifiers(config, written, jobs),
        notations=Notations(written),
        math=Typesetter(cache=config.project / CACHE / "math", macros=config.macros),
        origin=project.origin,
        cited=project,
        glossary=terms,
        uses=Noted(uses.uses(terms, written), finished.USES),
        figures=gallery.gallery(config, figure.read_all(config), books),
        shelf=books,
        works=works,
        proved=proved.lines(config, gathered.add),
        look=looks.look(config),
        pictures=beside.pictures(config, written),
        lenient=notes is not None,
        report=(notes or gathered).add,
    )
    # A page tells its first mistake only; of its directives all are told.
    for error in mistakes(config, written):
        gathered.add(error)
    found = {**public_files.files(press, project), **press.pictures.files()}
    made = static.files(config, press.look, found)
    orders = _orders(press, written)
    done = finished.Finished(press, Store(config.project / CACHE / "pages"))
    making.write(press, orders, folder, jobs, done)
    gathered.check()
    material = search.Material(config, editions, terms, works, press.uses)
    for name, part in search.files(material).items():
        if name in made:
            what = f"two files would be written to {name}, and one of them is the index of the search"
            raise SidelitError(what, path=f"{links.pages_folder(config)}/{name}", hint="give it another name")
        made[name] = part
    for name, data in made.items():
        making.put(folder, name, data)
    return tuple(sorted([*made, *(order.name for group in orders for order in group)]))


def _orders(press: Press, written: Sequence[content.Text]) -> list[list[making.Order]]:
    """Every page in every language, and what forwards at old addresses."""
    found: dict[str, list[making.Order]] = {}
    forwards = forwarding.forwards(press.leads, written)
    for lang, each in press.editions.items():
        pages = dict(each.pages)
        for address in forwards:
            pages[address] = forwarding.page(address, each.pages[press.leads[address][""].output])
        for output, shown in pages.items():
            name = ways.address(press.config, output, lang)
            found.setdefault(output, []).append(making.Order(name, shown))
    return list(found.values())


def searchable(config: Config, lang: str) -> dict[str, bytes]:
    """The index of the search in one language, without a page of the site."""
    written = texts(config)
    shown = edition.edition(config, written, shelf(config, written), lang)
    terms, works = _data(config)
    found = uses.uses(terms, written)
    return search.files(search.Material(config, {lang: shown}, terms, works, found))


def mistakes(config: Config, written: Sequence[content.Text]) -> Iterator[SidelitError]:
    """What the pages ask of each other and is not there, as far as no language is needed to see it."""
    named = book(config, written)
    for text in written:
        yield from registry.mistakes(text, named)


def book(config: Config, written: Sequence[content.Text]) -> Book:
    """All that a directive may name."""
    terms, works = _data(config)
    known = index.index(config, written, forwarding.leads(written), terms, works)
    return Book(config, known, {text.item.source: text for text in written})


def watched(path: Path) -> tuple[Path, ...]:
    """The files and folders whose change makes another site.

    `path` is the configuration, which may be broken at the moment.
    """
    try:
        made = load(path)
        sources = tuple(made.project / chapter.source for chapter in made.chapters) + proved.files(made)
    except SidelitError:
        sources = ()
    return (path.parent, assets.templates_folder(), *sources)


def _data(config: Config) -> tuple[glossary.Glossary, tuple[Work, ...]]:
    words, works = config.folder / "glossary.toml", config.folder / "bibliography.toml"
    terms = glossary.read(words, config.shown(words), config.languages)
    return terms, listing.works(works, config.shown(works), config.language(config.source_language).tag)
