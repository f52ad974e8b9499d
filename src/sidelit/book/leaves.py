"""# A page on paper

> What a page says, cut out of its file, under names that no other page of the book has.

In a book all pages of a site stand in a few documents, so an id of a page gets the name of the page in front
of it. A link to another page keeps its aim under an address of its own kind, `sidelit:`, which the bookbinder
turns into a way through the book: a browser knows no way from one document into another. Behind a link of the
text stands a blank for the number of the page that it leads to, since paper cannot be clicked.
"""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

# The address of a place of the book.
SCHEME = "sidelit:"
# A link that says the number of a page; empty until that is known.
BLANK = re.compile(r'<a class="to" href="sidelit:(?P<place>[^"]*)"></a>')

# The press writes every attribute in double quotes.
_TAG = re.compile(r'<(?P<end>/?)(?P<name>[a-zA-Z][\w-]*)(?:[^<>"]|"[^"]*")*>')
_ATTRIBUTE = re.compile(r'\s(?P<key>[\w:-]+)="(?P<value>[^"]*)"')
_MAIN = re.compile(r"<main\b.*</main>", re.DOTALL)
_KIND = re.compile(r'<body class="([^"]*)"')
_SHEET = re.compile(r'<link rel="stylesheet" href="([^"]*)"')
_DRAWINGS = re.compile(r'<svg class="hatching".*?</svg>', re.DOTALL)
_CONTENTS = re.compile(r'<div class="toc">(.*?)</div>', re.DOTALL)
_ENTRY = re.compile(r'<li class="d(\d)[^>]*><a href="#([^"]*)"[^>]*>(.*?)</a></li>', re.DOTALL)
_SCHEMED = re.compile(r"[a-zA-Z][\w+.-]*:")
_FRAGMENT_OF = re.compile(r"url\(#([^)\"]+)\)")


@dataclass(frozen=True, slots=True)
class Heading:
    """A line of the contents of a page: how deep it stands, the place it leads to, and what it says."""

    depth: int
    place: str
    label: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """A page of the site as a part of a document."""

    name: str
    """What its places begin with: `p12`."""
    kind: str
    """The class of the page, by which stylesheets tell a lesson from a chapter."""
    html: str
    sheets: tuple[str, ...]
    """The stylesheets that it needs, from the root of the site."""
    headings: tuple[Heading, ...]
    wanted: frozenset[str]
    """The places that it leads to, in this leaf and in others, and its own headings."""
    drawings: str
    """What its drawings share with those of all pages; empty if it has none."""

    def written(self, shared: str = "") -> str:
        """The leaf as HTML, with what all leaves of its document share."""
        return f'<div class="leaf {self.kind}" id="{self.name}">{shared}{self.html}</div>'


def leaf(text: str, address: str, names: Mapping[str, str], public: str = "") -> Leaf | None:
    """Cut a leaf out of the file of a page; `None` if a template of the project wrote no `<main>`.

    :param text: the file.
    :param address: where it lies in the site.
    :param names: the leaves of the book by the addresses of their pages.
    :param public: the address of the root of the site, where links to what is in no book lead.
    """
    main = _MAIN.search(text)
    if main is None:
        return None
    kind, drawings = _KIND.search(text), _DRAWINGS.search(text)
    cutter = _Cutter(address, names, public, frozenset(re.findall(r'\sid="([^"]*)"', main[0])))
    body = _TAG.sub(cutter.tag, main[0])
    name = names[address]
    headings = tuple(_headings(text, name))
    return Leaf(
        name=name,
        kind=kind[1] if kind else "",
        html=body,
        sheets=tuple(
            posixpath.normpath(posixpath.join(cutter.folder, each)) for each in _SHEET.findall(text)
        ),
        headings=headings,
        wanted=frozenset((name, *cutter.wanted, *(heading.place for heading in headings))),
        drawings=drawings[0] if drawings else "",
    )


def owner(place: str) -> str:
    """The leaf that a place is in."""
    return place.partition("/")[0]


def _headings(text: str, name: str) -> list[Heading]:
    contents = _CONTENTS.search(text)
    return [
        Heading(int(depth), f"{name}/{html.unescape(place)}", html.unescape(re.sub(r"<[^>]*>", "", label)))
        for depth, place, label in (_ENTRY.findall(contents[1]) if contents else ())
    ]


class _Cutter:
    """Rewrites the tags of one page."""

    def __init__(self, address: str, names: Mapping[str, str], public: str, ids: frozenset[str]) -> None:
        self.address, self.names, self.public, self.ids = address, names, public, ids
        self.name = names[address]
        self.folder = posixpath.dirname(address)
        self.wanted: set[str] = set()
        # What stands behind the link that is open.
        self.blank = ""

    def tag(self, found: re.Match[str]) -> str:
        """A tag as it stands in the book. What a reader of the site unfolds is open on paper."""
        name = found["name"]
        if found["end"]:
            return found[0] + (self.blank if name == "a" else "")
        if name == "a":
            self.blank = ""
            # The number of a line leads to the line that it stands in.
            if 'class="num"' in found[0]:
                return '<a class="num">'
        written = _ATTRIBUTE.sub(lambda each: self._attribute(name, each), found[0])
        if name == "a" and " class=" not in written:
            self.blank = self._blank(written)
        return written.replace("<details", "<details open", 1) if name == "details" else written

    def _blank(self, link: str) -> str:
        """A number stands where a link of the text leaves the page; names in code have a class, and none."""
        there = re.search(rf' href="{SCHEME}([^"]*)"', link)
        if there is None or owner(there[1]) == self.name:
            return ""
        return f'<a class="to" href="{SCHEME}{there[1]}"></a>'

    def _attribute(self, tag: str, found: re.Match[str]) -> str:
        key, value = found["key"], found["value"]
        if key in ("id", "for") or (key == "name" and tag == "input"):
            return f' {key}="{self.name}/{value}"'
        if key == "href":
            there = self._there(value) if tag == "a" else f"#{self.name}/{value[1:]}"
            return f' href="{there}"' if there else ""
        if key == "src" and not _SCHEMED.match(value):
            return f' src="{posixpath.normpath(posixpath.join(self.folder, value))}"'
        if key == "loading" or (key.startswith("aria-") and key.endswith("by")):
            return ""
        return _FRAGMENT_OF.sub(self._shared, found[0])

    def _shared(self, found: re.Match[str]) -> str:
        """What a drawing refers to: its own, or what all drawings share."""
        return f"url(#{self.name}/{found[1]})" if found[1] in self.ids else found[0]

    def _there(self, address: str) -> str:
        """Where a link leads in the book; empty where what it led to is nowhere to be found."""
        if _SCHEMED.match(address):
            return address
        path, _, fragment = address.partition("#")
        page = posixpath.normpath(posixpath.join(self.folder, unquote(path))) if path else self.address
        if page not in self.names:
            return f"{self.public}{quote(page)}{'#' * bool(fragment)}{fragment}" if self.public else ""
        if page == self.address and fragment.startswith("line-"):
            # A name of a function leads to a line of the same function, which the reader sees already.
            return ""
        place = self.names[page] + (f"/{fragment}" if fragment else "")
        self.wanted.add(html.unescape(place))
        return SCHEME + place
