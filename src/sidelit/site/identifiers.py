"""# Identifiers as links

> A name in code leads to the section that defines it, or to the page that documents it elsewhere.

What a name means, [names](../names/links.py) says; here it gets an address. A definition is reached by the id
of its section, and any other line by its number.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias
from urllib.parse import quote

from sidelit.config import Chapter, Config
from sidelit.ids.anchors import Anchor
from sidelit.names import outside
from sidelit.names.links import Definition, Names, Written
from sidelit.site.links import fragment
from sidelit.source.source import Document
from sidelit.text.code import Mark

_OPENED = re.compile(r'<a class="n" href="([^"]*)"')


Read: TypeAlias = tuple[Chapter, Document, Sequence[Anchor]]
"""A source, and the anchors of its sections."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line of code is shown: its page, and its id there."""

    output: str
    anchor: str


class Identifiers:
    """The links of all chapters of a site."""

    def __init__(self, read: Sequence[Read], documented: Mapping[str, str]) -> None:
        self.documented = documented
        self.names = Names(
            tuple(
                Written(item.source, item.module, document.text, item.source.endswith("__init__.py"))
                for item, document, _ in read
                if item.module
            )
        )
        self.outputs = {item.source: item.output for item, _, _ in read}
        self.places: dict[str, dict[int, str]] = {}
        self.sections: dict[str, dict[tuple[int, str], str]] = {}
        for item, document, anchors in read:
            self.places[item.source] = places = {}
            self.sections[item.source] = sections = {}
            for section, anchor in zip(document.sections, anchors, strict=True):
                for number, _ in section.code if not section.hidden else ():
                    places[number] = anchor.id
                    if section.kind in ("class", "function"):
                        sections[number, section.qualname] = anchor.id

    def marks(self, item: Chapter) -> dict[int, tuple[Mark, ...]]:
        """The links of a chapter, by line, with addresses as its own page needs them."""
        found = {}
        for line, links in self.names.links(item.source).items():
            marks = []
            for link in links:
                href = self.address(link.to, item.output)
                if href:
                    marks.append(
                        Mark(
                            link.start, link.end, f'<a class="n" href="{escape(href)}" tabindex="-1">', "</a>"
                        )
                    )
            if marks:
                found[line] = tuple(marks)
        return found

    def address(self, to: Definition | str, page: str) -> str | None:
        """The address of what a name means, seen from a page of the site."""
        if isinstance(to, str):
            return outside.address(self.documented, to)
        place = self.place(to)
        if place is None:
            return None
        path = "" if place.output == page else _relative(place.output, page)
        return path + (f"#{fragment(place.anchor)}" if place.anchor else "") or None

    def place(self, to: Definition) -> Place | None:
        """Where a definition is shown, if it is."""
        if to.line == 0:
            return Place(self.outputs[to.path], "")
        if to.line not in self.places[to.path]:
            return None
        section = (
            self.sections[to.path].get((to.line, to.qualname)) if to.kind in ("class", "function") else None
        )
        return Place(self.outputs[to.path], section or f"line-{to.line}")


def identifiers(config: Config, read: Sequence[Read]) -> Identifiers:
    """Find the links of all chapters.

    :raises SidelitError: a list of documented names cannot be read.
    """
    folder = config.folder
    return Identifiers(read, outside.addresses(config.inventories, folder, config.shown(folder)))


def moved(html: str, home: str, page: str) -> str:
    """Code of one page as another page shows it: its links start from there."""

    def lead(found: re.Match[str]) -> str:
        path, sign, anchor = found[1].partition("#")
        if ":" in path:
            return found[0]
        target = posixpath.join(posixpath.dirname(home), path) if path else quote(home)
        return (
            f'<a class="n" href="{posixpath.relpath(target, posixpath.dirname(page) or ".")}{sign}{anchor}"'
        )

    return _OPENED.sub(lead, html)


def plain(html: str) -> str:
    """Code without its links."""
    return re.sub(r'<a class="n"[^>]*>|</a>', "", html)


def _relative(target: str, page: str) -> str:
    return quote(posixpath.relpath(target, posixpath.dirname(page) or "."))
