"""# Identifiers as links

> Each name in the code on a page leads to its definition.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from html import escape
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from sidelit import workers
from sidelit.cache import store
from sidelit.cache.graph import AT_HAND, Graph, Key, note
from sidelit.cache.records import Packed
from sidelit.config.chapters import Chapter
from sidelit.config.config import Config
from sidelit.names import library
from sidelit.names.library import Written
from sidelit.names.links import Definition, Found, Lines, Links, Names, Said
from sidelit.site.content import SourcePage
from sidelit.site.links import fragment
from sidelit.text import code, inlines
from sidelit.text.code import Mark

# ## The links of all sources
#
# > What the names in a source mean is found out again when its words change, or code that was asked for them.
#
# The links of a source are read from the [graph](../cache/graph.py) when a page shows them. What stands for
# them is known before: their places, and everything that they lead to, each once. A name is followed through
# few of the files that its own file imports, and their code alone is noted.


Target = Definition | str


@dataclass(frozen=True, slots=True)
class Outline:
    """The links of a source in short.

    :param digest: stands for the place of each link, and for what it leads to.
    :param bound: where the source binds its names.
    :param said: which of the targets each name in its words means.
    """

    digest: str = ""
    targets: tuple[Target, ...] = ()
    bound: Lines = field(default_factory=dict)
    said: Mapping[Said, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Linked:
    """The links of all sources.

    :param links: finds the links of a source.
    :param outlines: what stands for them.
    """

    links: Callable[[str], Links]
    outlines: Mapping[str, Outline]


def linked(
    folder: Path,
    pages: Sequence[SourcePage],
    jobs: int | None,
    shown: Mapping[str, Shown],
    *,
    sparing: bool = False,
) -> Linked:
    """Find out what the names in chapters mean; `folder` is the one that their paths start from.

    `sparing` takes little memory and more time for what is known of all sources.
    """
    chapters = {page.item.source: page for page in pages if isinstance(page.item, Chapter)}
    items = [page.item for page in chapters.values() if isinstance(page.item, Chapter)]
    codes: dict[str, list[str]] = {}
    for item in items:
        codes.setdefault(item.module, []).append(chapters[item.source].code)
    there = store.digest([(item.source, item.module) for item in items])
    graph = next((page.graph for page in chapters.values()), Graph())
    graph.input("code", lambda module: "".join(codes[module]))
    names = Names(written(folder, items))
    known: dict[str, Outline] = {}
    packed: Packed[Outline] = Packed()
    put = packed.put if sparing else known.__setitem__
    missing = []
    for source, page in chapters.items():
        if kept := graph.recalled("outlines", _key(page, there)):
            put(source, kept.value)
        else:
            missing.append(source)
    made: dict[str, Links] = {}
    outlines: Mapping[str, Outline] = packed if sparing else known
    if missing:

        def of(source: str) -> Found:
            return names.of(source, shown[source].said if source in shown else ())

        with names:
            for source, found in zip(missing, workers.shared(of, missing, jobs), strict=True):
                page, outline = chapters[source], _outline(found)
                put(source, outline)
                if graph.keeps:
                    graph.alone("links", _links_key(page, outline), partial(dict, found.links))
                else:
                    made[source] = found.links
                read_for_it = {f"code:{module}" for module in found.asked}
                graph.remember("outlines", _key(page, there), outline, read_for_it)

    @lru_cache(maxsize=AT_HAND)
    def read(source: str) -> Links:
        if source in made or source not in chapters:
            return made.get(source, {})
        key = _links_key(chapters[source], outlines[source])
        return graph.alone("links", key, lambda: names.links(source))

    return Linked(read, outlines)


def _key(page: SourcePage, there: str) -> Key:
    return (page.digest, there) if page.digest else ""


def _links_key(page: SourcePage, outline: Outline) -> Key:
    return (page.digest, outline.digest) if page.digest else ""


def _outline(found: Found) -> Outline:
    targets: dict[Target, int] = {}
    places = [
        (line, link.start, link.text, targets.setdefault(link.to, len(targets)))
        for line, row in found.links.items()
        for link in row
    ]
    said = {each: targets.setdefault(to, len(targets)) for each, to in found.said.items()}
    return Outline(store.digest(places, tuple(targets), said), tuple(targets), found.lines, said)


def written(folder: Path, chapters: Iterable[Chapter]) -> tuple[Written, ...]:
    """The sources of chapters that a program can import; their paths start from the folder."""
    return tuple(
        Written(each.source, each.module, folder / each.source, _is_package(each))
        for each in chapters
        if each.module
    )


def _is_package(chapter: Chapter) -> bool:
    return posixpath.basename(chapter.source) == "__init__.py"


# ## Identifiers as links
#
# > A name in code leads to the section that defines it, or to the page that documents it elsewhere.
#
# What a name means, [names](../names/links.py) says; here it gets an address. A definition is reached by the
# id of its section, and any other line by its number.


@dataclass(frozen=True, slots=True)
class Shown:
    """What of a source is on its page.

    :param lines: the lines of code, one bit for each.
    :param sections: the id of each class and function, by the line and the name of its definition.
    :param module: its name.
    :param said: the names in its words.
    """

    output: str
    lines: int
    sections: Mapping[tuple[int, str], str]
    module: str = ""
    said: tuple[Said, ...] = ()

    def places(self) -> Iterator[tuple[str, str]]:
        """The full name of each class and function, and its id."""
        # Of several of one name, such as overloads, the last one counts.
        yield from {f"{self.module}.{name}": place for (_, name), place in self.sections.items()}.items()


def shown(page: SourcePage) -> Shown:
    """What the page of a source shows, unless an earlier build knows."""
    return page.once("shown", partial(_shown, page))


def _shown(page: SourcePage) -> Shown:
    numbers, sections, said = set[int](), {}, dict[Said, None]()
    for section in page.sections:
        said.update(((name, section.qualname), None) for name in inlines.named(section.tokens))
        numbers.update(number for number, _ in (section.imports.lines if section.imports else ()))
        for number, _ in section.lines:
            numbers.add(number)
            if section.kind in ("class", "function"):
                sections[number, section.qualname] = section.id
    bits = bytearray(max(numbers, default=0) // 8 + 1)
    for number in numbers:
        bits[number // 8] |= 1 << number % 8
    lines = int.from_bytes(bits, "little")
    module = page.item.module if isinstance(page.item, Chapter) else ""
    return Shown(page.item.output, lines, sections, module, tuple(said))


def _of(links: Mapping[str, Links], source: str) -> Links:
    return links.get(source, {})


@dataclass(frozen=True, slots=True)
class Identifiers:
    """The names in the code of a site.

    :param shown: what of each source is on its page.
    :param links: finds the links of a source.
    :param documented: the addresses of names of others.
    :param outlines: what stands for the links of each source.
    """

    shown: Mapping[str, Shown]
    links: Callable[[str], Links]
    documented: Mapping[str, str]
    outlines: Mapping[str, Outline] = field(default_factory=dict)
    _places: dict[Definition | str, tuple[str, str | None]] = field(default_factory=dict, repr=False)
    _ends: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict, repr=False)
    _marked: dict[tuple[object, ...], tuple[tuple[int, str], ...]] = field(default_factory=dict, repr=False)

    def lines(
        self, source: str, lines: tuple[tuple[int, str], ...], page: str
    ) -> tuple[tuple[int, str], ...]:
        """Lines of code of a source, with links as a page of the site needs them."""
        note(READ.format(source))
        # The page in the next language shows the same.
        key = source, lines, page
        if key not in self._marked:
            if len(self._marked) >= MOST:
                self._marked.clear()
            self._marked[key] = tuple(self._with_links(source, lines, page))
        return self._marked[key]

    def _with_links(
        self, source: str, lines: Iterable[tuple[int, str]], page: str
    ) -> Iterator[tuple[int, str]]:
        links = self.links(source)
        for number, html in lines:
            if number in links:
                marks = [
                    Mark(link.start, link.text, _opening(href, link.to), "</a>")
                    for link in links[number]
                    if (href := self.address(link.to, page))
                ]
                yield number, code.marked(html, marks)
            else:
                yield number, html

    def digest(self, source: str) -> str:
        """Stands for all links of a source and where they lead, seen from its own page."""
        outline = self.outlines.get(source, Outline())
        page = self.shown[source].output if source in self.shown else ""
        return store.digest(outline.digest, page, [self._place(to) for to in outline.targets])

    def _place(self, to: Definition | str) -> tuple[str, str | None]:
        """The page that a name leads to and the id on it; of what is documented elsewhere its name, too."""
        if to not in self._places:
            if isinstance(to, str):
                self._places[to] = to, library.address(self.documented, to)
            else:
                self._places[to] = (
                    self.shown[to.path].output if to.path in self.shown else "",
                    self.anchor(to),
                )
        return self._places[to]

    def address(self, to: Definition | str, page: str) -> str | None:
        """The address of what a name means, seen from a page of the site."""
        if isinstance(to, str):
            return library.address(self.documented, to)
        place = self.shown.get(to.path)
        anchor = self.anchor(to)
        if place is None or anchor is None:
            return None
        return _address(place.output, anchor, page)

    def said(self, source: str, name: str, around: str, page: str) -> str | None:
        """The address of what words about the definition `around` in a source mean by a name."""
        note(READ.format(source))
        outline = self.outlines.get(source, Outline())
        place = outline.said.get((name, around))
        if place is not None:
            return self.address(outline.targets[place], page)
        there = self.ending(name) if name.startswith(".") else None
        return _address(*there, page) if there else None

    def ending(self, name: str) -> tuple[str, str] | None:
        """The page and the id of what alone has a full name that ends so, as in `.ring.Ring`.

        A module counts where no class or function ends so.
        """
        note(ENDING.format(name))
        if not self._ends:
            for shown in self.shown.values():
                for full, place in (*shown.places(), (shown.module, "")):
                    self._ends.setdefault(full.rpartition(".")[2], []).append((full, shown.output, place))
        found = [each for each in self._ends.get(name.rpartition(".")[2], ()) if f".{each[0]}".endswith(name)]
        found = [each for each in found if each[2]] or found
        return found[0][1:] if len(found) == 1 else None

    def anchor(self, to: Definition) -> str | None:
        """The id of a definition on its page, if it is shown there; empty for the page itself."""
        place = self.shown.get(to.path)
        if to.kind == "module":
            return ""
        if place is None:
            return None
        line = to.line(self.outlines[to.path].bound)
        if not place.lines >> line & 1:
            return None
        return self.section(to) or f"line-{line}"

    def sections(self, source: str) -> Collection[str]:
        """The ids of the classes and functions of a source."""
        return self.shown[source].sections.values() if source in self.shown else ()

    def section(self, to: Definition) -> str | None:
        """The id of the section that a class or a function begins, if a page shows it."""
        place = self.shown.get(to.path) if to.kind in ("class", "function") else None
        return place.sections.get((to.line(self.outlines[to.path].bound), to.qualname)) if place else None


# How many sections stay at hand with their links.
MOST = 1000
# What a task notes that reads the links of a source, or asks which full name ends in some way.
READ, ENDING = "names:{}", "ending:{}"
NOBODY = Identifiers({}, partial(_of, {}), {})


def identifiers(
    config: Config, pages: Sequence[SourcePage], jobs: int | None = None, unshown: Sequence[SourcePage] = ()
) -> Identifiers:
    """Find the names of all chapters, and those of sources that no page shows.

    :raises SidelitError: a list of documented names cannot be read.
    """
    documented = library.addresses(config.inventories, config.folder, config.shown(config.folder))
    on_pages = {page.item.source: shown(page) for page in pages if not page.prose}
    found = linked(config.project, [*pages, *unshown], jobs, on_pages)
    return Identifiers(on_pages, found.links, documented, found.outlines)


def _opening(href: str, to: Definition | str) -> str:
    """The tag of a link, with the full name of something from outside if its address does not end in it."""
    name = "" if isinstance(to, Definition) else to.removeprefix("builtins.")
    parts = urlsplit(href)
    last = parts.fragment or posixpath.basename(parts.path).removesuffix(".html")
    told = f' data-name="{escape(name)}"' if name and name != unquote(last) else ""
    return f'<a class="n" href="{escape(href)}" tabindex="-1"{told}>'


def _address(target: str, anchor: str, page: str) -> str | None:
    """The address of a place on one page seen from another; none of a page seen from itself."""
    path = "" if target == page else quote(posixpath.relpath(target, posixpath.dirname(page) or "."))
    return path + (f"#{fragment(anchor)}" if anchor else "") or None
