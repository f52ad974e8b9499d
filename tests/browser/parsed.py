"""What a page says, read from its HTML without a browser, and what can be wrong with it.

Each check takes a page that was read, and yields complaints.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, normpath, relpath
from urllib.parse import unquote, urldefrag, urlsplit

from built import CONFIG, LANGUAGES, language_of, name_of, path_of

VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
)
CONTROLS = {"button", "input", "select", "textarea"}
# The links in the head of a page that a browser does not fetch.
UNFETCHED = {"alternate", "prev", "next", "canonical"}
# What an element stands in, as bits: all that its parent stands in, and itself.
MAIN, VERBATIM, CODE, LINE, NUMBER, LANGUAGE_MENU, ACTS = (1 << place for place in range(7))


def tag_of(language: str) -> str:
    """How HTML names a language of the site."""
    return {"zh": "zh-Hans"}.get(language, language)


@dataclass
class Line:
    """One shown line of code: its number and its text."""

    number: str = ""
    text: str = ""


@dataclass
class Read(HTMLParser):
    """One page: its names, addresses, words, formulas and lines of code."""

    language: str = ""
    chosen: list[str] = field(default_factory=list)
    """The languages that the language menu marks as the present one."""
    ids: list[str] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    """The addresses that a browser asks for to show the page."""
    others: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Where a section, by its id, links to itself in other languages: the language and the address."""
    controls: list[str] = field(default_factory=list)
    formulas: list[int] = field(default_factory=list)
    """How many `math` elements each formula has."""
    failed: int = 0
    """How many formulas KaTeX has refused."""
    words: list[str] = field(default_factory=list)
    """The text of the main part, without code and formulas."""
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, int]] = [("", 0)]
        # How many elements were open when the present formula began.
        self.formula: int | None = None

    @cached_property
    def names(self) -> frozenset[str]:
        """The ids, to look one up; only for a page that has been read."""
        return frozenset(self.ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        classes = given.get("class", "").split()
        bits = self.open[-1][1]
        bits |= bits_of(tag, classes, bits)
        if tag == "math" and self.formula is not None:
            self.formulas[-1] += 1
        if classes:
            self.begin(classes, bits)
        if given:
            self.note(tag, given, bits)
        # Radio buttons show a choice by the stylesheet alone, and a browser opens a popover by itself.
        control = tag in CONTROLS and given.get("type") != "radio" and "popovertarget" not in given
        if control or given.get("role") == "button" or "onclick" in given:
            self.controls.append(tag)
        if tag not in VOID:
            self.open.append((tag, bits))

    def begin(self, classes: list[str], bits: int) -> None:
        """A line of code begins, or a formula."""
        if bits & LINE and "line" in classes:
            self.lines.append(Line())
        if "katex" in classes and self.formula is None:
            self.formula = len(self.open)
            self.formulas.append(0)
        self.failed += "katex-error" in classes

    def note(self, tag: str, given: dict[str, str], bits: int) -> None:
        """Remember what an element is called and where it leads."""
        if tag == "html":
            self.language = given.get("lang", "")
        if "id" in given:
            self.ids.append(given["id"])
            if tag == "section":
                self.sections.append(given["id"])
        addresses = [given[name] for name in ("href", "src") if name in given]
        self.targets += addresses
        if "src" in given or (tag == "link" and UNFETCHED.isdisjoint(given.get("rel", "").split())):
            self.fetched += addresses
        if tag == "a" and "hreflang" in given:
            if bits & LANGUAGE_MENU and "aria-current" in given:
                self.chosen.append(given["hreflang"])
            if bits & ACTS:
                links = self.others.setdefault(self.sections[-1], [])
                links.append((given["hreflang"], given.get("href", "")))

    def handle_endtag(self, tag: str) -> None:
        # The end tag of an element may be left out; then it ends with its parent.
        if any(one == tag for one, _ in reversed(self.open)):
            while self.open.pop()[0] != tag:
                pass
        if self.formula is not None and len(self.open) <= self.formula:
            self.formula = None

    def handle_data(self, data: str) -> None:
        bits = self.open[-1][1]
        if bits & LINE:
            line = self.lines[-1]
            if bits & NUMBER:
                line.number += data
            else:
                line.text += data
        elif bits & MAIN and not bits & VERBATIM:
            self.words.append(data)


def bits_of(tag: str, classes: list[str], around: int) -> int:
    """What an element is, of the things that matter to what stands in it."""
    bits = 0
    if tag == "main":
        bits |= MAIN
    elif tag in ("code", "pre"):
        bits |= VERBATIM | (CODE if tag == "pre" and "code" in classes else 0)
    elif tag == "nav" and "langs" in classes:
        bits |= LANGUAGE_MENU
    if classes:
        if "katex" in classes or "katex-display" in classes:
            bits |= VERBATIM
        if "acts" in classes:
            bits |= ACTS
        if around & CODE and "line" in classes:
            bits |= LINE
        if around & LINE and "num" in classes:
            bits |= NUMBER
    return bits


def parse(text: str) -> Read:
    """Read one page."""
    page = Read()
    page.feed(text)
    page.close()
    return page


@cache
def is_file(path: Path) -> bool:
    """Whether a file is there; pages link to the same ones again and again."""
    return path.is_file()


@cache
def read(path: Path) -> Read:
    """Read one file, once."""
    return parse(path.read_text("utf-8"))


@cache
def names_of(path: Path) -> frozenset[str]:
    """The ids of a file to which others lead; to read all of it would take many times as long."""
    return frozenset(map(unescape, re.findall(r'<[^>]*?\sid="([^"]*)"', path.read_text("utf-8"))))


def languages(page: Read, path: str) -> Iterator[str]:
    """The page and its menu name the language of the folder that the page is in."""
    expected = tag_of(language_of(path))
    if page.language != expected:
        yield f"is in {page.language!r}"
    if page.chosen != [expected]:
        yield f"the menu marks {page.chosen}"


def formulas(page: Read) -> Iterator[str]:
    """A formula is there for screen readers, too, and was understood."""
    if any(count != 1 for count in page.formulas):
        yield f"the formulas have {page.formulas} elements of MathML each"
    if page.failed:
        yield f"KaTeX refused {page.failed} formulas"


def stray_tex(page: Read) -> Iterator[str]:
    """A formula that was not seen as one would stand there between its dollars."""
    text = "".join(page.words)
    yield from (repr(text[text.index(sign) :][:80]) for sign in "$\\" if sign in text)


def lines(page: Read, source: list[str]) -> Iterator[str]:
    """Each shown line is the line of the source that carries its number."""
    if not page.lines:
        yield "shows no code"
    for line in page.lines:
        number = int(line.number)
        if source[number - 1 : number] != [line.text.removesuffix("\n")]:
            yield f"line {number} is shown as {line.text!r}"


def controls(page: Read) -> Iterator[str]:
    """Without scripts a control would do nothing, so scripts bring their own."""
    yield from (f"has a {tag}" for tag in page.controls)


def strangers(page: Read) -> Iterator[str]:
    """All that a page needs lies beside it."""
    for target in page.fetched:
        if target.startswith("//") or urlsplit(target).scheme not in ("", "data"):
            yield f"fetches {target}"


def section_links(page: Read, path: str) -> Iterator[str]:
    """Each section links to itself in all other languages, so a reader stays there without any script.

    It does not to a language in which its page would say the same words once more.
    """
    item = next((each for each in CONFIG.order if each.output == name_of(path)), None)
    stands = CONFIG.written_in(item) if item else LANGUAGES
    for section in page.sections:
        here = dirname(path) or "."
        own = language_of(path)
        other = [language for language in stands if language != own and own in stands]
        expected = [(tag_of(one), relpath(path_of(name_of(path), one), here), section) for one in other]
        found = [
            (language, *map(unquote, urldefrag(target))) for language, target in page.others.get(section, ())
        ]
        if found != expected:
            yield f"{section} links to {found}"


def repeated_ids(page: Read) -> Iterator[str]:
    """An id names one element."""
    yield from sorted(name for name, count in Counter(page.ids).items() if count > 1)


def placeholders(page: Read) -> Iterator[str]:
    """No link waits for an address: none is empty, names nobody's host, or has a blank to fill in."""
    for target in page.targets:
        if not target.strip("#/ ") or re.search(
            r"[{}]|%7B|\b(None|undefined|TODO)\b|//(\w+\.)*(example\.\w+|localhost)", target
        ):
            yield f"{target!r} is no address"


def links(page: Read, here: Path) -> Iterator[str]:
    """Every link inside the site leads to a file that is there, and every fragment to an id of that file."""
    for target in page.targets:
        if urlsplit(target).scheme:
            continue
        if target.startswith("/"):
            yield f"{target} breaks where the site stands in a folder"
            continue
        file, fragment = urldefrag(target)
        there = Path(normpath(here.parent / unquote(file))) if file else here
        if not is_file(there):
            yield f"{target} leads nowhere"
        elif fragment and unquote(fragment) not in (page.names if there == here else names_of(there)):
            yield f"{target} leads to no id"
