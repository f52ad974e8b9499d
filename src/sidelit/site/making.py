"""# Making the pages

> Each page is rendered in each language, unless an earlier build has made the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest

from sidelit.cache import store
from sidelit.cache.graph import Graph, noting
from sidelit.config.chapters import Chapter
from sidelit.config.origin import Origin
from sidelit.errors import SidelitError
from sidelit.files import assets
from sidelit.files.atomic import Output
from sidelit.site import assemble, context, data_pages, static
from sidelit.site.context import NOTED, BuildContext
from sidelit.site.directives.kind import ProjectIndex
from sidelit.site.directives.stepper import page_of
from sidelit.site.edition import Page
from sidelit.site.navigation import Navigation
from sidelit.site.pictures import Picture
from sidelit.text import linebreaks

# ## Pages that are finished already
#
# > A page is made again when anything differs that it has read; otherwise it is what it was.
#
# The key of a page stands for what every page reads: the configuration, the templates, the data, which pages
# there are, the version and the date of the project; and for the words of the page itself. The commit is no
# part of it: a page is kept with a blank for that. All else is [noted when it is read](../cache/graph.py).


# However small a site is, this much may be kept, in bytes; of a larger one, three times as much as it has.
_LEAST = 64 << 20


def inputs(build: BuildContext, graph: Graph) -> str:
    """Tell the graph what stands for all that pages note, and return what stands for the rest."""
    if not graph.keeps:
        return ""
    editions, source_pages, index = build.editions, build.pages, build.index

    def page(name: str) -> Page:
        lang, _, output = name.partition("/")
        return editions[lang].pages[output]

    def cut(name: str) -> list[str]:
        return name.split("\t")

    def stands(stepper: str) -> str:
        try:
            found = page_of(stepper, ProjectIndex(build.config, index, source_pages))
        except SidelitError:
            return ""  # A directive that nobody can read is told where it stands.
        return store.digest(found and found.item.output)

    def section(name: str) -> str:
        source, address, anchor = name.split("\t")
        target = index.targets[source]
        moved = build.leads[address] if address else target.moved
        return store.digest(anchor in target.ids, moved.get(anchor))

    def contents(lang: str) -> str:
        home = next(iter(editions[lang].pages.values()))
        return Navigation(build.config, editions[lang], home).reading()

    # Found out here, and not by each of the processes that make pages.
    works = {source_page.item.source: data_pages.keys(source_page) for source_page in source_pages.values()}

    def cited(lang: str) -> str:
        pages = editions[lang].pages.values()
        labels = [(page.label, page.label_lang, works[page.source.item.source]) for page in pages]
        return store.digest(labels)

    graph.input("text", lambda source: source_pages[source].digest)
    graph.input("piece", lambda name: source_pages[cut(name)[0]].section_digest(cut(name)[1]))
    graph.input("lines", lambda name: source_pages[cut(name)[0]].lines_digest(cut(name)[1]))
    graph.input("notation", lambda source: store.digest(build.notations[source]))
    graph.input("stands", stands)
    graph.input("page", lambda name: page(name).digest)
    graph.input("said", lambda name: page(cut(name)[0]).section_digest(cut(name)[1]))
    graph.input("label", lambda name: store.digest(page(name).label, page(name).label_lang))
    graph.input("lede", lambda name: store.digest(page(name).summary))
    graph.input("contents", contents)
    graph.input("section", section)
    graph.input("ids", lambda source: store.digest(index.targets[source].ids))
    graph.input("leads", lambda address: store.digest(build.leads.get(address, {})))
    graph.input("names", build.names.digest)
    graph.input("ending", lambda name: store.digest(build.names.ending(name)))
    graph.input("backlinks", build.backlinks.digest)
    graph.input("uses", lambda term: store.digest(build.uses.get(term, ())))
    graph.input("cited", cited)
    shared = [getattr(build, each.name) for each in fields(build) if not each.metadata.get(NOTED)]
    there = [(each.source, each.name, each.output) for each in index.targets.values()]
    # What is on no page of its own, such as the words of a figure, may borrow a translation from any page.
    pages = {source_page.item.name for source_page in source_pages.values()}
    catalogs = build.catalogs.by_page.items() if build.catalogs else ()
    words = [(name, lang, book.digest) for (name, lang), book in catalogs if name not in pages]
    templates = store.of_folder(assets.templates_folder())
    return store.digest(templates, shared, there, list(build.leads), index.works, words, _data(build))


def _data(build: BuildContext) -> tuple[str, str]:
    """The files that a page may look at while it is made: data, drawings, templates, words, pictures."""
    config = build.config
    own = {(config.project / source).resolve() for source in build.pages}
    catalogs = {
        config.folder / "locale" / lang / f"{page.item.name}.po"
        for page in build.pages.values()
        for lang in build.editions
    }
    # Files that are printed without a site may have any folder beside them.
    there = sorted(config.folder.rglob("*")) if config.path.is_file() else []
    found = (path for path in there if path.is_file())
    pictures = [each.path for each in build.pictures.known.values() if isinstance(each, Picture)]
    return store.of_files(
        path for path in found if path not in catalogs and path.resolve() not in own
    ), store.of_files(sorted({*pictures, *build.theme.assets.values()}))


# ## Making the pages
#
# > All that a page needs was read before: so pages are made side by side, each written as soon as it is done.
#
# No page is kept: a site may have any number of them. They are written into a folder that nobody reads yet,
# and whoever called decides, when all mistakes are known, whether it becomes the site.


@dataclass(frozen=True, slots=True)
class PageJob:
    """A page to make, and its place in the site."""

    name: str
    shown: Page

    @property
    def is_chapter(self) -> bool:
        """Whether it is the page of a source."""
        return isinstance(self.shown.source.item, Chapter)

    @property
    def files(self) -> tuple[str, ...]:
        """What is written for it: the page, and the cards of its names beside it."""
        return (self.name, static.address(self.name)) if self.is_chapter else (self.name,)


def clashes(orders: Iterable[PageJob]) -> Iterator[SidelitError]:
    """The pages of which a disk or an archive keeps one alone where capitals do not count."""
    taken: dict[str, str] = {}
    for order in orders:
        other = taken.setdefault(order.name.casefold(), order.name)
        if other != order.name:
            what = f"its page {order.name} and {other} are one file on a disk that tells no capitals apart"
            yield SidelitError(
                what, path=order.shown.source.item.source, hint="give one of them another name"
            )


@dataclass(frozen=True, slots=True)
class _Writing:
    """What the pages of one build are written with.

    :param shared: stands for what is the same for all pages.
    :param state: the state of the project, which fills the blanks of each page.
    :param ahead: is handed each page that is made, while its words are at hand.
    """

    build: BuildContext
    graph: Graph
    out: Output
    shared: str
    state: Origin
    ahead: Callable[[Page], object]

    def taken(self, group: Sequence[PageJob]) -> list[list[SidelitError]] | None:
        """The mistakes of pages that lie in the site before as they are to be; they are not read again."""
        told = []
        for job in group:
            found: list[SidelitError] = []
            for name in job.files:
                known = self.graph.recalled("pages", self._key(job, name))
                left = known and self.graph.left("lies", self._place(name))
                if not (known and left and left[:-1] == (known.content, self._filling)):
                    return None
                if not self.out.take(name, left[-1]):
                    return None
                found += known.value
            told.append(found)
        return told

    def written(self, group: Sequence[PageJob]) -> list[list[SidelitError]]:
        """Write pages, and what lies beside them; returns the mistakes of each."""
        told = []
        for job in group:
            found: list[SidelitError] = []
            for name, make in zip(job.files, (self._page, _cards), strict=False):
                found += self._file(job, name, make)
            told.append(found)
        return told

    def _file(
        self, job: PageJob, name: str, make: Callable[[BuildContext, Page], bytes]
    ) -> Sequence[SidelitError]:
        key, content = self._key(job, name), None
        if known := self.graph.recalled("pages", key):
            content = self.graph.content("pages", key)
        errors: list[SidelitError] = known.value if known else []
        if content is None:
            errors = []
            with noting() as read:
                content = make(replace(self.build, report=errors.append), job.shown)
            known = self.graph.remember("pages", key, errors, read, content)
        written = self.out.put(name, self.state.filled(content))
        if known:
            self.graph.leave("lies", self._place(name), (known.content, self._filling, written))
        return errors

    def _page(self, build: BuildContext, shown: Page) -> bytes:
        page = _made(build, shown)
        self.ahead(shown)
        return page

    def _key(self, job: PageJob, name: str) -> tuple[str, ...]:
        return (self.shared, name, job.shown.lang, job.shown.digest) if job.shown.digest else ()

    @property
    def _filling(self) -> str:
        """Stands for what the blanks are filled with."""
        return f"{self.state.commit} {self.state.dirty}"

    def _place(self, name: str) -> tuple[str, str]:
        return str(self.out.before or ""), name


def write(
    build: BuildContext,
    orders: Sequence[Sequence[PageJob]],
    out: Output,
    jobs: int | None = None,
    graph: Graph | None = None,
    state: Origin | None = None,
    ahead: Callable[[Page], object] = bool,
) -> None:
    """Write pages; those of one source page in all languages are made by one process.

    What the `graph` has of them is taken from there, with blanks that `state` fills. The others are handed to
    `ahead`, while their words are at hand. Mistakes go to `build.report`, language by language in the order
    of the source pages.
    """
    graph = graph or Graph()
    writing = _Writing(build, graph, out, inputs(build, graph), state or Origin(), ahead)
    told = [writing.taken(group) for group in orders]
    left = [group for group, errors in zip(orders, told, strict=True) if errors is None]
    if left:
        build.figures.ahead(jobs)
        kinds = sorted({job.shown.source.item.kind for group in left for job in group})
        context.prepare(kinds, build.theme)
        made = iter(list(graph.shared(writing.written, left, jobs)))
        told = [next(made) if errors is None else errors for errors in told]
    for of_a_language in zip_longest(*filter(None, told), fillvalue=()):
        for errors in of_a_language:
            for error in errors:
                build.report(error)
    names = (name for group in orders for order in group for name in order.files)
    graph.trim(max(_LEAST, 3 * sum((out.folder / name).stat().st_size for name in names)))


def _made(build: BuildContext, shown: Page) -> bytes:
    language = build.config.language(shown.lang)
    html = context.render(assemble.view(build, shown), build.theme)
    terms = tuple(term.text[shown.lang] for term in build.glossary.terms if shown.lang in term.text)
    return linebreaks.settle(html, linebreaks.phrases_of(language.tag, terms)).encode()


def _cards(build: BuildContext, shown: Page) -> bytes:
    return static.script(shown)
