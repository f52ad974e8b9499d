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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sidelit import citing, workers
from sidelit import theme as themes
from sidelit.cache.graph import Graph, Noted, Task
from sidelit.cache.store import Store
from sidelit.catalog import catalog
from sidelit.config import glossary, origin
from sidelit.config.chapters import Chapter
from sidelit.config.config import Config, load
from sidelit.config.prose import Prose
from sidelit.errors import Collector, SidelitError
from sidelit.figures import drawing, figure
from sidelit.files import assets, atomic
from sidelit.files.atomic import Output
from sidelit.ids.anchors import Anchor
from sidelit.site import (
    anchoring,
    assemble,
    backlinks,
    content,
    data_pages,
    edition,
    identifiers,
    links,
    making,
    metadata,
    navigation,
    page_kinds,
    pictures,
    static,
)
from sidelit.site.backlinks import Backlinks
from sidelit.site.context import BuildContext, Notations
from sidelit.site.data_pages import DataTable
from sidelit.site.directives import registry
from sidelit.site.directives.kind import ProjectIndex
from sidelit.site.search import index as search
from sidelit.site.search import synonyms
from sidelit.source.decoding import standing_in
from sidelit.text.math import Typesetter

# What is kept in a project, and there the work of earlier builds.
TOP = ".cache/sidelit"
CACHE = f"{TOP}/work"


def graph_of(config: Config) -> Graph:
    """What earlier builds of a project have done."""
    return Graph(Store(config.project / CACHE, top=config.project / TOP))


def texts(
    config: Config,
    notes: Collector | None = None,
    graph: Graph | None = None,
    jobs: int | None = None,
) -> tuple[content.SourcePage, ...]:
    """Read every page of the site in the language it was written in.

    What is wrong with a mark or a formula of a source goes to `notes`, if they are given. Otherwise it is
    passed over, if the configuration allows that. `graph` has the work of earlier builds, and what it has not
    is read by `jobs` processes.

    Raises `SidelitError` with all the sources that cannot be read.
    """
    gathered, graph = Collector(), graph or Graph()
    notes = Collector() if notes is None and config.keep_going else notes
    graph.ahead(_reading(config, graph), jobs)
    prose: dict[str, content.SourcePage] = {}
    for each in config.prose:
        with gathered.gathering():
            prose[each.source] = anchoring.prose(each, config.project / each.source, graph)
    sources: dict[str, anchoring.Source] = {}
    for chapter in config.chapters:
        with gathered.gathering():
            sources[chapter.source] = anchoring.read(config, chapter.source, graph)
            for fault in sources[chapter.source].faults:
                (notes or gathered).add(fault)
    gathered.check()
    names = anchoring.assign(config, anchoring.pages(config, sources, prose))
    found: list[content.SourcePage] = []
    numbers = {chapter.name: number for number, chapter in enumerate(config.chapters, start=1)}
    graph.ahead(_making(config, sources, names, numbers, graph), jobs)
    for item in config.order:
        if isinstance(anchors := names[item.name], SidelitError):
            gathered.add(anchors)
        elif isinstance(item, Prose):
            found.append(anchoring.named(prose[item.source], anchors))
        else:
            given, report = sources[item.source], (notes or gathered).add
            found.append(anchoring.chapter(item, given, anchors, numbers[item.name], report, graph))
    gathered.check()
    return tuple(found)


def _reading(config: Config, graph: Graph) -> Iterator[Task[Any]]:
    """All that a build reads of files, each by itself."""
    for each in config.prose:
        with suppress(SidelitError):
            yield anchoring.prose_read(each, config.project / each.source, graph)
    for chapter in config.chapters:
        with suppress(SidelitError):
            yield anchoring.source_read(config, chapter.source, graph)
    for path in dict.fromkeys(proof.path for chapter in config.chapters for proof in chapter.proves):
        with suppress(SidelitError):
            yield backlinks.tests_read(config, path)
    for lang in config.languages[1:]:
        yield from catalog.files_read(config.folder / "locale", lang)


def _making(
    config: Config,
    sources: Mapping[str, anchoring.Source],
    names: Mapping[str, anchoring.Names],
    numbers: Mapping[str, int],
    graph: Graph,
) -> Iterator[Task[None]]:
    """The pages of all chapters, and what is asked of each by itself."""
    for item in config.chapters:
        if not isinstance(anchors := names[item.name], SidelitError):
            place = item, sources[item.source], anchors, numbers[item.name]
            yield Task("asked", anchoring.chapter_key(*place), partial(_asked, place, graph))


def _asked(place: tuple[Chapter, anchoring.Source, Sequence[Anchor], int], graph: Graph) -> None:
    page = anchoring.chapter(*place, lambda fault: None, graph)
    content.page_units(page)
    identifiers.shown(page)
    data_pages.keys(page)


def catalogs(
    config: Config,
    written: Sequence[content.SourcePage],
    graph: Graph | None = None,
    drawn: Iterable[figure.Figure] | None = None,
) -> catalog.Catalogs:
    """Open the catalogues of the site and match them with its pages and its figures."""
    units, tag = content.units(config, written, drawn), config.language(config.source_language).tag
    return catalog.load(units, config.folder / "locale", config.languages[1:], tag, graph)


@workers.looking_seldom()
def write_whole(
    config: Config,
    out: Output,
    notes: Collector | None = None,
    jobs: int | None = None,
    graph: Graph | None = None,
) -> tuple[str, ...]:
    """Make the whole site in an empty folder; returns its files in a fixed order.

    With `notes` a formula or a link that is wrong is printed as it was typed, and noted there. `jobs` is the
    number of processes that make pages, by default one for each core. `graph` has the work of earlier builds,
    by default that of this project.

    Raises `SidelitError` (one, or `Failures`) when anything else in it is wrong. Then the folder holds no
    site, and whoever made it removes it.
    """
    themes.forget()
    graph = graph or graph_of(config)
    written = texts(config, notes, graph, jobs)
    drawn = figure.read_all(config)
    books = catalogs(config, written, graph, drawn)
    terms, tables = _data(config)
    graph.ahead([*edition.ahead(config, written, books), *data_pages.ahead(terms, written)], jobs)
    editions = {lang: edition.edition(config, written, books, lang) for lang in config.languages}
    leads = links.leads(written)
    gathered = Collector()
    state = origin.origin(config)
    project = metadata.Project(config, state.blank, citing.read(config), metadata.releases(config))
    tests = backlinks.texts(config, graph)
    names = identifiers.identifiers(config, written, jobs, tests)
    graph.ahead(backlinks.ahead(config, names, written, tests), jobs)
    uses_of = backlinks.used_in(names, written)
    uses_in = data_pages.uses(terms, written)
    build = BuildContext(
        config=config,
        editions=editions,
        index=data_pages.index(config, written, leads, tables),
        leads=leads,
        pages=Noted({page.item.source: page for page in written}, content.READ),
        names=names,
        backlinks=Backlinks(uses_of, backlinks.tested_by(config, names, tests, uses_of)),
        notations=Notations(written),
        math=Typesetter(store=graph.store, macros=config.macros),
        origin=project.origin,
        cited=project,
        glossary=terms,
        uses=Noted(uses_in, data_pages.USES),
        figures=drawing.gallery(config, drawn, books, graph),
        catalogs=books,
        tables=tables,
        proved=backlinks.proofs(config, gathered.add, graph),
        theme=themes.theme(config),
        pictures=pictures.pictures(config, written),
        lenient=notes is not None,
        report=(notes or gathered).add,
    )
    # A page tells its first mistake only; of its directives all are told.
    for error in mistakes(ProjectIndex(config, build.index, {page.item.source: page for page in written})):
        gathered.add(error)
    found = {
        **static.public_files(build, project),
        **build.pictures.files(),
        **assemble.lab_files(config, gathered.add),
    }
    made = static.static_files(config, build.theme, found)
    orders = _orders(build, written)
    # Said in one language, it is true of all.
    for error in making.clashes(group[0] for group in orders):
        build.report(error)
    index = search.Index(search.Material(config, editions, terms, tables, synonyms.of_site(config)))
    making.write(build, orders, out, jobs, graph, state, index.ahead)
    gathered.check()
    parts = index.write(out.put)
    pages = [name for group in orders for order in group for name in order.files]
    for name in (*parts, *pages):
        if name in made:
            what = f"two files would be written to {name}, and one of them is the press's own"
            raise SidelitError(what, path=f"{links.pages_folder(config)}/{name}", hint="give it another name")
    many = {lang: each for lang, each in editions.items() if len(each.pages) > 1}
    made |= {f"{navigation.FOLDER}{lang}.js": navigation.script(config, each) for lang, each in many.items()}
    for name, data in made.items():
        out.put(name, data)
    graph.keep()
    return tuple(sorted([*made, *parts, *pages]))


def _orders(build: BuildContext, written: Sequence[content.SourcePage]) -> list[list[making.PageJob]]:
    """Every page in every language, and what forwards at old addresses."""
    found: dict[str, list[making.PageJob]] = {}
    forwards = links.forwards(build.leads, written)
    for lang, each in build.editions.items():
        pages = dict(each.pages)
        if len(pages) > 1:
            pages[build.config.contents] = navigation.contents(build.config, each)
        for address in forwards:
            pages[address] = links.page(address, each.pages[build.leads[address][""].output])
        for output, shown in pages.items():
            name = navigation.address(build.config, output, lang)
            found.setdefault(output, []).append(making.PageJob(name, shown))
    return list(found.values())


def mistakes(named: ProjectIndex) -> Iterator[SidelitError]:
    """What the pages ask of each other and is not there, as far as no language is needed to see it."""
    yield from anchoring.astray(named.config, {source: page.ids for source, page in named.pages.items()})
    for page in named.pages.values():
        yield from registry.mistakes(page, named)


def book(config: Config, written: Sequence[content.SourcePage]) -> ProjectIndex:
    """All that a directive may name."""
    known = data_pages.index(config, written, links.leads(written), _data(config)[1])
    return ProjectIndex(config, known, {page.item.source: page for page in written})


def watched(path: Path) -> tuple[Path, ...]:
    """The files and folders whose change makes another site.

    `path` is the configuration, which may be broken at the moment.
    """
    try:
        made = load(path)
        sources = tuple(made.project / chapter.source for chapter in made.chapters) + backlinks.test_files(
            made
        )
    except SidelitError:
        sources = ()
    return (path.parent, assets.templates_folder(), *sources)


def _data(config: Config) -> tuple[glossary.Glossary, Mapping[str, DataTable]]:
    words = config.folder / "glossary.toml"
    terms = glossary.read(words, config.shown(words), config.languages)
    return terms, page_kinds.tables(config, terms)


# ## A site with gaps
#
# > An author who is asked to may see the site although some of it is wrong; every gap is told.
#
# A source that Python cannot parse has no sections, so it has no page either, and the links to it stay words.
# Whether the rest can be printed is found out by printing it. A build that nobody asked to go on stops, and
# leaves the old site as it is.


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The names of the files that were made, what was odd in them, and why which sources were left out."""

    files: tuple[str, ...]
    odd: tuple[SidelitError, ...] = ()
    skipped: tuple[SidelitError, ...] = ()


BuildListener = Callable[[BuildResult], object]
"""Who hears of the gaps of a site."""


def nobody(done: BuildResult) -> None:
    """Hear of no gap."""


def write(
    config: Config,
    out: Output,
    *,
    keep_going: bool = False,
    jobs: int | None = None,
    last: Mapping[str, bytes] = MappingProxyType({}),
) -> BuildResult:
    """Make a site in an empty folder, with gaps if its configuration or `keep_going` allows them.

    `last` has what sources held when they could be read: the page of one that cannot be read is made from
    that, and is no gap, but is told as one.

    Raises `SidelitError` as `write_whole` does.
    """
    if not (keep_going or config.keep_going):
        return BuildResult(write_whole(config, out, jobs=jobs))
    graph = graph_of(config)
    broken = readable(config, graph, jobs)[1]
    known = {str(error.path): last[str(error.path)] for error in broken if str(error.path) in last}
    with standing_in({config.project / source: content for source, content in known.items()}):
        made, skipped = readable(config, graph, jobs)
        notes = Collector()
        names = write_whole(made, out, notes, jobs, graph)
    told = [error for error in broken if str(error.path) in known and error.path not in _paths(skipped)]
    return BuildResult(names, _once(notes), (*told, *skipped))


def _paths(errors: Iterable[SidelitError]) -> set[str | Path | None]:
    return {error.path for error in errors}


def files(config: Config) -> tuple[dict[str, bytes], BuildResult]:
    """Make a site in memory, every file by its path; the same as `write` otherwise."""
    return _in_memory(lambda out: write(config, out))


def whole_files(config: Config, notes: Collector | None = None) -> dict[str, bytes]:
    """The same for `write_whole`."""
    return _in_memory(lambda out: BuildResult(write_whole(config, out, notes)))[0]


def _in_memory(make: Callable[[Output], BuildResult]) -> tuple[dict[str, bytes], BuildResult]:
    with tempfile.TemporaryDirectory() as name, atomic.tidied(lambda: shutil.rmtree(name, True)):
        done = make(Output(Path(name)))
        return {each: Path(name, each).read_bytes() for each in done.files}, done


def _once(notes: Collector) -> tuple[SidelitError, ...]:
    """What was noted: the same slip shows in every language."""
    return tuple({str(error): error for error in notes.errors}.values())


def sound(config: Config) -> Config:
    """The site as a command reads it that makes no pages: gaps are no news there."""
    return readable(config)[0] if config.keep_going else config


def readable(
    config: Config, graph: Graph | None = None, jobs: int | None = None
) -> tuple[Config, tuple[SidelitError, ...]]:
    """The site without the sources that are no Python, and why each of them is none."""
    why: dict[str, SidelitError] = {}
    graph = graph or Graph()
    graph.ahead(_reading(config, graph), jobs)
    for chapter in config.chapters:
        try:
            anchoring.read(config, chapter.source, graph)
        except SidelitError as error:
            why[chapter.source] = error
    if not why:
        return config, ()
    parts = (
        replace(part, chapters=tuple(each for each in part.chapters if each.source not in why))
        for part in config.parts
    )
    return replace(config, parts=tuple(part for part in parts if part.chapters)), tuple(why.values())
