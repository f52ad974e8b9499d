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
from functools import partial
from pathlib import Path

from sidelit import assets, glossary, interrupts, origin, workers
from sidelit import look as looks
from sidelit.catalog import catalog
from sidelit.cite import authors
from sidelit.config import Config, Prose, load
from sidelit.errors import SidelitError
from sidelit.figures import figure, gallery
from sidelit.ids.claims import Placed
from sidelit.kept import Noted
from sidelit.memory import Memory
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
    lab_page,
    links,
    listing,
    making,
    proved,
    public_files,
    recalled,
    static,
    tested_by,
    used_in,
    uses,
    ways,
)
from sidelit.site.collector import Collector
from sidelit.site.directives import registry
from sidelit.site.directives.kind import Book
from sidelit.site.employed import Employed
from sidelit.site.list_views import Work
from sidelit.site.press import Press
from sidelit.site.search import index as search
from sidelit.site.symbol_list import Notations
from sidelit.store import Store
from sidelit.text.math import Typesetter

CACHE = ".cache/sidelit"


def texts(
    config: Config, notes: Collector | None = None, memory: Memory | None = None
) -> tuple[content.Text, ...]:
    """Read every page of the site in the language it was written in.

    What is wrong with a mark or a formula of a source goes to `notes`, if they are given. Otherwise it is
    passed over, if the configuration allows that. `memory` is the work of earlier builds.

    Raises `SidelitError` with all the sources that cannot be read.
    """
    gathered, memory = Collector(), memory or Memory()
    notes = Collector() if notes is None and config.keep_going else notes
    prose: dict[str, content.Text] = {}
    for each in config.prose:
        with gathered.gathering():
            prose[each.source] = recalled.prose(each, config.project / each.source, memory)
    placed: dict[str, Placed] = {}
    for chapter in config.chapters:
        with gathered.gathering():
            placed[chapter.source] = anchoring.placed(config, chapter, memory)
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
            found.append(recalled.chapter(item, document, anchors, numbers[item.name], report, memory))
    gathered.check()
    return tuple(found)


def shelf(config: Config, written: Sequence[content.Text], memory: Memory | None = None) -> catalog.Shelf:
    """Open the catalogues of the site and match them with its pages."""
    units, tag = content.units(config, written), config.language(config.source_language).tag
    return catalog.load(units, config.folder / "locale", config.languages[1:], tag, memory)


def files(config: Config, notes: Collector | None = None) -> dict[str, bytes]:
    """Make the whole site in memory: every file by its path, as `write` does."""
    with tempfile.TemporaryDirectory() as name, interrupts.tidied(lambda: shutil.rmtree(name, True)):
        folder = Path(name)
        return {name: (folder / name).read_bytes() for name in write(config, folder, notes)}


@workers.looking_seldom()
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
    store = Store(config.project / CACHE / "work")
    memory = Memory(store)
    written = texts(config, notes, memory)
    books = shelf(config, written, memory)
    editions = {lang: edition.edition(config, written, books, lang) for lang in config.languages}
    terms, works = _data(config)
    leads = forwarding.leads(written)
    gathered = Collector()
    state = origin.origin(config)
    project = citation.Project(config, state.blank, authors.read(config), feed.releases(config))
    tests = tested_by.texts(config, memory)
    names = identifiers.identifiers(config, written, jobs, tests)
    uses_of = used_in.used_in(names, written)
    press = Press(
        config=config,
        editions=editions,
        index=index.index(config, written, leads, terms, works),
        leads=leads,
        texts={text.item.source: text for text in written},
        names=names,
        employed=Employed(uses_of, tested_by.tested_by(config, names, tests, uses_of)),
        notations=Notations(written),
        math=Typesetter(cache=config.project / CACHE / "math", macros=config.macros),
        origin=project.origin,
        cited=project,
        glossary=terms,
        uses=Noted(uses.uses(terms, written), finished.USES),
        figures=gallery.gallery(config, figure.read_all(config), books),
        shelf=books,
        works=works,
        proved=proved.lines(config, gathered.add, memory),
        look=looks.look(config),
        pictures=beside.pictures(config, written),
        lenient=notes is not None,
        report=(notes or gathered).add,
    )
    # A page tells its first mistake only; of its directives all are told.
    for error in mistakes(config, written):
        gathered.add(error)
    found = {
        **public_files.files(press, project),
        **press.pictures.files(),
        **lab_page.files(config, gathered.add),
    }
    made = static.files(config, press.look, found)
    orders = _orders(press, written)
    # Said in one language, it is true of all.
    for error in making.clashes(group[0] for group in orders):
        press.report(error)
    done = finished.Finished(press, store)
    making.write(press, orders, folder, jobs, done, state.filled)
    gathered.check()
    material = search.Material(config, editions, terms, works, press.uses)
    parts = search.write(material, partial(making.put, folder))
    pages = [name for group in orders for order in group for name in order.files]
    for name in (*parts, *pages):
        if name in made:
            what = f"two files would be written to {name}, and one of them is the press's own"
            raise SidelitError(what, path=f"{links.pages_folder(config)}/{name}", hint="give it another name")
    for name, data in made.items():
        making.put(folder, name, data)
    memory.keep()
    return tuple(sorted([*made, *parts, *pages]))


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
