"""# The documents of a book

> A browser holds all that it prints in memory, so it gets the book in pieces of some chapters each.

The first piece is the title page and the table of contents, and the pages of the others are numbered behind
it. What stands in the margins of a page, the title of its chapter and the file that it shows, is written as a
stylesheet, since Chromium knows no running titles of another kind.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup, escape

from sidelit.book.contents import Entry, Group
from sidelit.book.leaves import BLANK, Leaf, owner
from sidelit.languages import Language
from sidelit.look import Look
from sidelit.site import page

# How many characters of HTML one document has at most; one leaf may have more.
MOST = 1_500_000
# About as many characters of HTML give a page; this only tells how many digits a number has.
_PER_PAGE = 10_000
# What every document is set with; pages name the others.
_SHEETS = ("fonts.css", "colours.css", "page.css")
_LAST = ("assets/rtl.css", "assets/print.css", "assets/book.css")
# Where the table of contents is.
CONTENTS = "contents"


@dataclass(frozen=True, slots=True)
class Cover:
    """What the title page says; what is not known is empty."""

    title: str
    tagline: str
    authors: tuple[str, ...]
    version: str
    commit: str
    date: str
    licence: str
    address: str
    citation: str


@dataclass(frozen=True, slots=True)
class Numbers:
    """Where things lie in the book, as far as it is known."""

    pages: Mapping[str, int]
    """The pages of places, counted from 1."""
    firsts: Sequence[int]
    """How many pages stand before each document."""
    digits: int
    """Of the largest number."""

    def of(self, place: str) -> str:
        """The number of the page of a place, or of the leaf that should have it; empty before it is known."""
        number = self.pages.get(place) or self.pages.get(owner(place))
        return str(number or "")


@dataclass(frozen=True, slots=True)
class Setting:
    """What all documents of a book have in common."""

    language: Language
    look: Look
    cover: Cover
    folder: Path
    """The site in files, where the documents are written, too."""

    def document(self, name: str, body: Markup, sheets: Iterable[str], heads: str) -> Path:
        """Write a document and the stylesheet of its margins; returns its path."""
        (self.folder / f"{name}.css").write_text(heads, encoding="utf-8")
        values = {
            "language": self.language,
            "title": self.cover.title,
            "sheets": [*_in_order(sheets), f"{name}.css"],
            "body": body,
        }
        path = self.folder / f"{name}.html"
        path.write_text(page.fragment("book.html", self.language, self.look, values), encoding="utf-8")
        return path


def front(setting: Setting, groups: Sequence[Group], numbers: Numbers) -> Path:
    """The title page and the table of contents, with the numbers of pages that are known."""
    values = {"cover": setting.cover, "groups": groups, "numbers": numbers, "place": CONTENTS}
    body = page.fragment("book_front.html", setting.language, setting.look, values)
    return setting.document("book-0", body, (), _margins(setting.cover, ()))


def volume(
    setting: Setting,
    number: int,
    leaves: Sequence[Leaf],
    entries: Mapping[str, Entry],
    wanted: Iterable[str],
    numbers: Numbers,
) -> Path:
    """A piece of the book, the first behind the front is number 1.

    :param wanted: the places of the book that something leads to.
    """
    sheets = dict.fromkeys(sheet for leaf in leaves for sheet in leaf.sheets)
    body = _numbered(_joined(leaves, wanted), setting.language.words["book_page"], numbers)
    heads = (
        f":root {{ --digits: {numbers.digits}; }}\nhtml {{ counter-reset: page {numbers.firsts[number]}; }}\n"
        + _margins(setting.cover, [entries[leaf.name] for leaf in leaves])
    )
    return setting.document(f"book-{number}", Markup(body), sheets, heads)


def volumes(leaves: Iterable[Leaf]) -> Iterator[list[Leaf]]:
    """Leaves in their order, as many together as one document holds."""
    held: list[Leaf] = []
    size = 0
    for leaf in leaves:
        if held and size + len(leaf.html) > MOST:
            yield held
            held, size = [], 0
        held.append(leaf)
        size += len(leaf.html)
    if held:
        yield held


def digits(leaves: Iterable[Leaf]) -> int:
    """How many digits the numbers of the pages have, more or less."""
    return len(str(sum(len(leaf.html) for leaf in leaves) // _PER_PAGE))


def _joined(leaves: Sequence[Leaf], wanted: Iterable[str]) -> str:
    own = {leaf.name for leaf in leaves}
    # A browser tells where a place lies if the document itself leads there.
    places = sorted(place for place in wanted if owner(place) in own)
    ways = "".join(f'<a hidden href="#{quote(place, safe="/")}"></a>' for place in places)
    shared = ways + next((leaf.drawings for leaf in leaves if leaf.drawings), "")
    # In front of the first leaf it would be on a page of its own.
    return "\n".join(leaf.written(shared if leaf is leaves[0] else "") for leaf in leaves)


def _numbered(body: str, words: str, numbers: Numbers) -> str:
    """A text with the numbers of pages in its blanks, each as wide as any number, known or not."""
    pattern = escape(words)

    def fill(blank: re.Match[str]) -> str:
        # An empty box would stand on another line than one with a number.
        number = numbers.of(html.unescape(blank["place"])) or "0"
        said = pattern.format(page=Markup("<b>{}</b>").format(number))
        return f"{blank[0].removesuffix('</a>')}{said}</a>"

    return BLANK.sub(fill, body)


def _in_order(sheets: Iterable[str]) -> list[str]:
    """Stylesheets so that a later one may change what an earlier one said, whoever asked for them."""
    asked = dict.fromkeys((*(f"assets/{name}" for name in _SHEETS), *sheets))
    return [
        *(name for name in asked if name not in _LAST),
        *(name for name in _LAST if name in asked or name != _LAST[0]),
    ]


def _margins(cover: Cover, entries: Sequence[Entry]) -> str:
    about = _string(" ".join(filter(None, (cover.title, cover.version))))
    # Of two rules the later one counts, even if the first is for one kind of page.
    rules = [
        f"@page {{ @bottom-left {{ content: {about}; }} }}",
        "@page cover { @bottom-left { content: none; } }",
    ]
    for each in entries:
        title, source = _string(" ".join(filter(None, (each.number, each.label)))), _string(each.source)
        rules.append(
            f"@page {each.leaf} {{ @top-left {{ content: {title}; }} @top-right {{ content: {source}; }} }}\n"
            f"#{each.leaf} {{ page: {each.leaf}; }}"
        )
    return "\n".join(rules) + "\n"


def _string(text: str) -> str:
    """A text as a string of CSS."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'
