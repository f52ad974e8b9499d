"""# Identifiers as links

> A name in code leads to the section that defines it, or to the page that documents it elsewhere.

What a name means, [names](../names/links.py) says; here it gets an address. A definition is reached by the id
of its section, and any other line by its number.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from urllib.parse import quote

from sidelit import kept, workers
from sidelit.config import Chapter, Config
from sidelit.names import outside
from sidelit.names.links import Definition, Links, Names
from sidelit.names.shelf import Written
from sidelit.site.content import Text
from sidelit.site.links import fragment
from sidelit.text import code
from sidelit.text.code import Mark


@dataclass(frozen=True, slots=True)
class Shown:
    """What of a source is on its page.

    :param lines: the lines of code.
    :param sections: the id of each class and function, by the line and the name of its definition.
    """

    output: str
    lines: frozenset[int]
    sections: Mapping[tuple[int, str], str]


def shown(text: Text) -> Shown:
    """What the page of a source shows."""
    lines, sections = set[int](), {}
    for piece in text.pieces:
        for number, _ in piece.lines:
            lines.add(number)
            if piece.kind in ("class", "function"):
                sections[number, piece.qualname] = piece.id
    return Shown(text.item.output, frozenset(lines), sections)


def _of(links: Mapping[str, Links], source: str) -> Links:
    return links.get(source, {})


@dataclass(frozen=True, slots=True)
class Identifiers:
    """The names in the code of a site.

    :param shown: what of each source is on its page.
    :param links: finds the links of a source.
    :param documented: the addresses of names of others.
    """

    shown: Mapping[str, Shown]
    links: Callable[[str], Links]
    documented: Mapping[str, str]

    def lines(self, source: str, lines: Iterable[tuple[int, str]], page: str) -> Iterator[tuple[int, str]]:
        """Lines of code of a source, with links as a page of the site needs them."""
        kept.note(NOTED.format(source))
        links = self.links(source)
        for number, html in lines:
            if number in links:
                marks = [
                    Mark(link.start, link.text, f'<a class="n" href="{escape(href)}" tabindex="-1">', "</a>")
                    for link in links[number]
                    if (href := self.address(link.to, page))
                ]
                yield number, code.marked(html, marks)
            else:
                yield number, html

    def told(self, source: str) -> Iterator[tuple[int, int, str, str | None]]:
        """All links of a source: line, first column, text, and address as seen from its own page."""
        page = self.shown[source].output if source in self.shown else ""
        for number, links in self.links(source).items():
            yield from ((number, link.start, link.text, self.address(link.to, page)) for link in links)

    def address(self, to: Definition | str, page: str) -> str | None:
        """The address of what a name means, seen from a page of the site."""
        if isinstance(to, str):
            return outside.address(self.documented, to)
        place = self.shown.get(to.path)
        anchor = self.anchor(to)
        if place is None or anchor is None:
            return None
        path = "" if place.output == page else _relative(place.output, page)
        return path + (f"#{fragment(anchor)}" if anchor else "") or None

    def anchor(self, to: Definition) -> str | None:
        """The id of a definition on its page, if it is shown there; empty for the page itself."""
        place = self.shown.get(to.path)
        if to.line == 0:
            return ""
        if place is None or to.line not in place.lines:
            return None
        named = to.kind in ("class", "function")
        return (named and place.sections.get((to.line, to.qualname))) or f"line-{to.line}"


# What `kept.asking` calls the links of a source.
NOTED = ":names/{}"
NOBODY = Identifiers({}, partial(_of, {}), {})


def identifiers(config: Config, texts: Sequence[Text], jobs: int | None = None) -> Identifiers:
    """Find the names of all chapters.

    :raises SidelitError: a list of documented names cannot be read.
    """
    documented = outside.addresses(config.inventories, config.folder, config.shown(config.folder))
    chapters = [text for text in texts if isinstance(text.item, Chapter)]
    sources = [text.item.source for text in chapters]
    names = Names(written(config.project, (text.item for text in chapters if isinstance(text.item, Chapter))))
    with names:
        links = dict(zip(sources, workers.shared(names.links, sources, jobs), strict=True))
    return Identifiers({text.item.source: shown(text) for text in chapters}, partial(_of, links), documented)


def written(folder: Path, chapters: Iterable[Chapter]) -> tuple[Written, ...]:
    """The sources of chapters that a program can import; their paths start from the folder."""
    return tuple(
        Written(each.source, each.module, folder / each.source, _is_package(each))
        for each in chapters
        if each.module
    )


def _is_package(chapter: Chapter) -> bool:
    return posixpath.basename(chapter.source) == "__init__.py"


def _relative(target: str, page: str) -> str:
    return quote(posixpath.relpath(target, posixpath.dirname(page) or "."))
