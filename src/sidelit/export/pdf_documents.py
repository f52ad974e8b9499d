"""# What a browser prints

> Pages become leaves, leaves become a few documents, and each link keeps its aim.
"""

from __future__ import annotations

import html
import itertools
import posixpath
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, unquote

from markupsafe import Markup, escape

from sidelit.config.chapters import Chapter
from sidelit.config.config import Config
from sidelit.config.languages import Language
from sidelit.config.prose import Prose
from sidelit.site import context, page_kinds
from sidelit.site.edition import Edition
from sidelit.theme import Theme

# ## Are there letters for it?
#
# > A browser prints empty boxes for letters that no font has, and says nothing.
#
# Pages carry their own fonts for Latin letters. Fonts for ideographs are as large as a whole site, so those
# of the reader's system are used, and a machine that only builds may have none.


def lacking(language: Language) -> str | None:
    """What is wrong with the fonts of this machine for a language, as a sentence, or `None`.

    Where nobody can be asked, as on macOS and Windows, which bring such fonts, nothing is wrong.
    """
    asking = shutil.which("fc-list")
    if not language.cjk or asking is None:
        return None
    code = language.code.partition("-")[0]
    try:
        done = subprocess.run(
            [asking, f":lang={code}", "family"], capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode or done.stdout.strip():
        return None
    return (
        f"no font of this machine has the letters of {language.name}, and the book will show empty boxes; "
        "install one (Debian and Ubuntu: fonts-noto-cjk)"
    )


# ## A page on paper
#
# > What a page says, cut out of its file, under names that no other page of the book has.
#
# In a book all pages of a site stand in a few documents, so an id of a page gets the name of the page in
# front of it. A link to another page keeps its aim under an address of its own kind, `sidelit:`, which the
# bookbinder turns into a way through the book: a browser knows no way from one document into another. Behind
# a link of the text stands a blank for the number of the page that it leads to, since paper cannot be
# clicked.


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
_CONTENTS = re.compile(r'<details class="group toc">(.*?)</details>', re.DOTALL)
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


# ## What is in a book, and in which order
#
# > The pages of a site in reading order, in the groups that its table of contents has.


@dataclass(frozen=True, slots=True)
class Entry:
    """A page of the book."""

    leaf: str
    """What its places begin with."""
    output: str
    label: str
    lang: str | None
    """The language of the label where it is not that of the book."""
    number: str
    source: str
    """The file that a chapter shows; empty for prose."""
    group: tuple[str, str | None] = ("", None)
    """The group of its part that it is in, and its language as that of the label."""


@dataclass(frozen=True, slots=True)
class Group:
    """Pages under one heading; those before and behind all parts have none."""

    label: str
    lang: str | None
    number: str
    entries: tuple[Entry, ...] = field(default=())

    @property
    def stretches(self) -> list[tuple[str, str | None, list[Entry]]]:
        """Entries that are in one group of the part, each under its label and the language of that."""
        found = itertools.groupby(self.entries, key=lambda entry: entry.group)
        return [(*named, list(inside)) for named, inside in found]


@dataclass(frozen=True, slots=True)
class Mark:
    """A line of the outline that a reader of PDF files unfolds, and the lines below it."""

    label: str
    place: str
    below: tuple[Mark, ...] = ()


def groups(config: Config, edition: Edition) -> tuple[Group, ...]:
    """The pages of an edition that are a part of its book, each under a name of its own."""
    numbers = {item.output: place for place, item in enumerate(config.order, start=1)}

    def group(label: str, lang: str | None, number: str, items: Sequence[Chapter | Prose]) -> Iterator[Group]:
        entries = tuple(
            _entry(edition, item, numbers[item.output]) for item in items if _printed(edition, item)
        )
        if entries:
            yield Group(label, lang, number, entries)

    labels = zip(config.parts, edition.parts, strict=True)
    return (
        *group("", None, "", config.front),
        *group(*edition.courses[0], "", config.course.lessons),
        *(each for part, said in labels for each in group(*said, part.number, part.chapters)),
        *group(*edition.back, "", config.back),
    )


def marks(groups: Sequence[Group], found: Mapping[str, Leaf]) -> list[Mark]:
    """The outline: parts, their pages, and the sections of those."""
    made: list[Mark] = []
    for group in groups:
        pages = list(_marks(group, found))
        if group.label and pages:
            pages = [Mark(numbered(group.number, group.label), pages[0].place, tuple(pages))]
        made += pages
    return made


def _marks(group: Group, found: Mapping[str, Leaf]) -> Iterator[Mark]:
    """The pages of a part, those of one of its groups below the label of that."""
    for label, _, inside in group.stretches:
        pages = [
            Mark(numbered(each.number, each.label), each.leaf, _tree(found[each.leaf].headings))
            for each in inside
            if each.leaf in found
        ]
        yield from [Mark(label, pages[0].place, tuple(pages))] if label and pages else pages


def numbered(number: str, label: str) -> str:
    """A title behind its number, if it has one."""
    return f"{number} {label}".strip()


def _tree(headings: Sequence[Heading]) -> tuple[Mark, ...]:
    """Headings, each with the deeper ones behind it below it."""
    made: list[Mark] = []
    start = 0
    while start < len(headings):
        end = start + 1
        while end < len(headings) and headings[end].depth > headings[start].depth:
            end += 1
        mark = Mark(headings[start].label, headings[start].place)
        made.append(replace(mark, below=_tree(headings[start + 1 : end])))
        start = end
    return tuple(made)


def _printed(edition: Edition, item: Chapter | Prose) -> bool:
    """A list of all pages is what the table of contents is."""
    return item.output in edition.pages and page_kinds.of(item).listed


def _entry(edition: Edition, item: Chapter | Prose, place: int) -> Entry:
    shown = edition.pages[item.output]
    number = item.number if isinstance(item, Prose) else str(shown.source.number or "")
    source = item.source if isinstance(item, Chapter) else ""
    group = edition.groups.get(item.group, ("", None))
    return Entry(f"p{place}", item.output, shown.label, shown.label_lang, number, source, group)


# ## The documents of a book
#
# > A browser holds all that it prints in memory, so it gets the book in pieces of some chapters each.
#
# The first piece is the title page and the table of contents, and the pages of the others are numbered behind
# it. What stands in the margins of a page, the title of its chapter and the file that it shows, is written as
# a stylesheet, since Chromium knows no running titles of another kind.


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
    theme: Theme
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
        path.write_text(context.fragment("book.html", self.language, self.theme, values), encoding="utf-8")
        return path


def front(setting: Setting, groups: Sequence[Group], numbers: Numbers) -> Path:
    """The title page and the table of contents, with the numbers of pages that are known."""
    values = {"cover": setting.cover, "groups": groups, "numbers": numbers, "place": CONTENTS}
    body = context.fragment("book_front.html", setting.language, setting.theme, values)
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
    nav = "".join(f'<a hidden href="#{quote(place, safe="/")}"></a>' for place in places)
    shared = nav + next((leaf.drawings for leaf in leaves if leaf.drawings), "")
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
