"""# Words and what stands beside them

> A page of two columns: a figure, a question or a piece of code stands beside the words that lead to it.

The words of a lesson are one list of elements, and a stylesheet cannot tell which words a figure belongs to.
So the press joins them in pairs: a few words, what stands beside them, and the words that go on below the
first ones while there is room. The elements keep their order, for a narrow screen, for paper, and for a
reader who listens to the page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from itertools import pairwise, takewhile
from unicodedata import east_asian_width

from markupsafe import Markup

# ## The elements of a text
#
# > A text of HTML, cut where an element begins that stands in no other.


_VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr")
)
# A comment, an element that holds no other of its kind, and any other tag.
_PART = re.compile(
    r"""(?s)<!--.*?-->|<(?P<closed>pre|math|script|style)\b.*?</(?P=closed)>"""
    r"""|<(?P<end>/?)(?P<tag>[a-zA-Z][\w-]*)[^"'>]*(?:"[^"]*"[^"'>]*|'[^']*'[^"'>]*)*>"""
)


def elements(text: str) -> Iterator[tuple[str, str]]:
    """The elements of a text that stand in no other, by their tags; each with what follows it.

    >>> list(elements("<p>a<b>b</b></p>\\n<hr><p>c</p>"))
    [('p', '<p>a<b>b</b></p>\\n'), ('hr', '<hr>'), ('p', '<p>c</p>')]
    """
    text, depth = str(text), 0
    starts: list[tuple[str, int]] = []
    for part in _PART.finditer(text):
        tag = part["closed"] or part["tag"]
        if tag and not depth and not part["end"]:
            starts.append((tag, part.start()))
        if part["tag"] and part["tag"] not in _VOID and not part[0].endswith("/>"):
            depth += -1 if part["end"] else 1
    for (tag, start), (_, end) in pairwise([*starts, ("", len(text))]):
        yield tag, text[start:end]


# ## How high an element is
#
# > Heights are estimated, in rem, for a column of fifty letters. An answer and the like count as folded.
#
# An error of the estimate makes a pair begin a paragraph earlier or later, and nothing worse.


_COLUMN, _LETTERS, _LINE, _CODE = 32, 50, 1.7, 1.35
# The letters of code or of a table that the column beside the words has room for in one line.
_ROOM = 65
# How much higher than what stands beside it a list may be.
_MORE = 1.5
_LIST = re.compile("<[uo]l\\b")
_ROW = re.compile(r"<tr.*?</tr>", re.DOTALL)
_PARTS = {"p": 0.8, "tr": 0.8, "li": 0.3, "h2": 1.2, "h3": 1.2, "summary": 0.5}
_FOLDED = re.compile(r"(?<=</summary>).*?(?=</details>)", re.DOTALL)
_UNSEEN = re.compile(r'<span class="katex-mathml">.*?</math></span>|<svg.*?</svg>', re.DOTALL)
_TAG = re.compile(r"<(/?\w+)[^>]*>")
_CODES = re.compile(r"<pre\b.*?</pre>", re.DOTALL)
# The drawing that a column shows, and its measures.
_DRAWN = re.compile(r'<svg class="(?:narrow|wide only)"[^>]* viewBox="0 0 ([\d.]+) ([\d.]+)"')


def height(html: str) -> float:
    """How high a piece of a page is, in rem."""
    html = _FOLDED.sub("", str(html))
    drawn = sum(_COLUMN * float(tall) / float(wide) for wide, tall in _DRAWN.findall(html))
    codes = sum(1.5 + sum(map(_code_line, _words(code).splitlines())) for code in _CODES.findall(html))
    rest = _CODES.sub("", _UNSEEN.sub("", html))
    text = _words(rest).strip()
    parts = sum(_PARTS.get(tag, 0.0) for tag in _TAG.findall(rest))
    return drawn + codes + _LINE * letters(text) / _LETTERS + parts + 1.8 * rest.count("katex-display")


def letters(text: str) -> int:
    """How many letters a text has room for in a line; an ideograph takes the room of two."""
    return len(text) if text.isascii() else sum(2 if east_asian_width(each) in "WF" else 1 for each in text)


def _code_line(line: str) -> float:
    return _CODE * max(1, math.ceil(len(line) / _ROOM))


def _widest(tag: str, element: str) -> int:
    """How many letters stand side by side in code or in a table; of other elements nothing."""
    if tag == "pre":
        return max(map(len, _words(element).splitlines()), default=0)
    rows = _ROW.findall(element) if "<table" in element[:200] else []
    return max((len(_words(row)) + 2 * row.count("</t") for row in rows), default=0)


def _words(html: str) -> str:
    return _TAG.sub("", _UNSEEN.sub("", html))


# ## Pairs
#
# > As many words stand beside a figure as are as high as it is: first those before it, then those behind it.
#
# Which kinds of elements stand where, a template says:
#
#     {% for pair in pairs(body, beside=["ask"], across=["taken"], either=["drawing"]) %}
#
# An element is of a kind if it has that class, or if its first child has. What goes `across` the page ends a
# pair, as do a heading, and code and a table whose lines a column would break. What may stand in `either`
# place goes across where the words are less than half as high as it is. Everything else is words.


_CLASS = re.compile(r'<[^>]*? class="([^"]*)"[^>]*>')


@dataclass(frozen=True, slots=True)
class Pair:
    """Words, what stands beside them, and the words that follow it; or what stands alone, as `lead`."""

    lead: str
    beside: str = ""
    then: str = ""


def pairs(
    body: str,
    *,
    beside: Collection[str] = (),
    across: Collection[str] = (),
    either: Collection[str] = (),
) -> Iterator[Pair]:
    """The pairs of a text; in their order they are the text."""
    kinds = {**dict.fromkeys(beside, "beside"), **dict.fromkeys(either, "either")} | dict.fromkeys(
        across, "across"
    )
    given = [(_kind(tag, element, kinds), element) for tag, element in elements(body)]
    words: list[str] = []
    place = 0
    while place < len(given):
        kind, element = given[place]
        behind = _run(given[place + 1 :], "words")
        if kind == "words":
            words.append(element)
        elif kind == "across" or (kind == "either" and 2 * _high([*words, *behind]) < height(element)):
            yield from _alone(words)
            yield Pair(Markup(element))
            words = []
        else:
            held = [element, *_run(given[place + 1 :], "beside")]
            place += len(held) - 1
            lead = _lead(words, _high(held))
            yield from _alone(words[: len(words) - len(lead)])
            then = _then(given[place + 1 :], _high(held) - _high(lead))
            place += len(then)
            yield Pair(_joined(lead), _joined(held), _joined(then)) if lead or then else Pair(_joined(held))
            words = []
        place += 1
    yield from _alone(words)


def _kind(tag: str, element: str, kinds: dict[str, str]) -> str:
    if re.fullmatch("h[1-6]", tag) or _widest(tag, element) > _ROOM:
        return "across"
    return _class(element, kinds)


def _class(element: str, kinds: dict[str, str]) -> str:
    classes = [name for found in _CLASS.findall(element)[:2] for name in found.split()]
    return min((kinds[name] for name in classes if name in kinds), default="words")


def _run(given: Sequence[tuple[str, str]], kind: str) -> list[str]:
    """The elements of one kind with which a list begins."""
    return [element for _, element in takewhile(lambda each: each[0] == kind, given)]


def _alone(words: Sequence[str]) -> Iterator[Pair]:
    if words:
        yield Pair(_joined(words))


def _lead(words: Sequence[str], wanted: float) -> list[str]:
    """The last of the words before an element, as many as are as high as it is; no list much higher."""
    lead: list[str] = []
    for each in reversed(words):
        if _high(lead) >= wanted or (_LIST.match(each) and height(each) > _MORE * wanted):
            break
        lead.insert(0, each)
    return lead


def _then(given: Sequence[tuple[str, str]], room: float) -> list[str]:
    """The words behind an element that have room beside it; those that lead to the next one stay there."""
    behind = _run(given, "words")
    if len(behind) < len(given) and given[len(behind)][0] in ("beside", "either"):
        del behind[-1:]
    then: list[str] = []
    for each in behind:
        if _high(then) + height(each) / 2 > room:
            break
        then.append(each)
    return then


def _high(found: Sequence[str]) -> float:
    return sum(map(height, found))


def _joined(found: Sequence[str]) -> Markup:
    return Markup("".join(found))


# ## Words beside code
#
# > The words of a section, cut where an example or a table stands among them.


def rows(words: str, kinds: Collection[str]) -> list[Pair]:
    """A text in rows: in each some words, and beside them the elements of some kinds that follow these.

    Nothing stands beside the words of the first row, which have the code of the section there; a sentence
    that leads to an example is in the example's row.
    """
    found: list[tuple[list[str], list[str]]] = [([], [])]
    of = dict.fromkeys(kinds, "beside")
    for _, element in elements(words):
        if _class(element, of) == "beside":
            found[-1][1].append(element)
        elif found[-1][1]:
            found.append(([element], []))
        else:
            found[-1][0].append(element)
    lead, beside = found[0]
    leading = lead[-1:] if beside and _words("".join(lead[-1:])).rstrip().endswith((":", "：")) else []
    first = [(lead[: len(lead) - len(leading)], []), (leading, beside)] if beside else [(lead, [])]
    return [Pair(_joined(said), _joined(shown)) for said, shown in (*first, *found[1:])]


# The letters of a line of code that the column has beside words in a line of seventy letters.
_BRIEF = 43
# The spaces at the beginnings of all lines that the stylesheet takes away.
_SHARED = 8


def brief(words: str, code: Iterable[str]) -> bool:
    """Whether code leaves its words the wider column: its lines are short, or the words much higher than it.

    >>> brief("Short words.", ["    return weights"])
    True
    >>> brief("Short words.", [f"{'x' * 50} = 0"])
    False
    """
    lines = [unescape(_TAG.sub("", str(line))) for line in code]
    shared = min(_SHARED, *(len(line) - len(line.lstrip(" ")) for line in lines))
    rows = sum(max(1, math.ceil((len(line) - shared) / _BRIEF)) for line in lines)
    return rows == len(lines) or height(words) > _CODE * rows


# ## The text again
#
# > A text as it was before its elements were joined in pairs.


def unpaired(text: str) -> Iterator[tuple[str, str]]:
    """The elements of a text without the boxes of its pairs."""
    for tag, element in elements(text):
        if not element.startswith('<div class="pair">'):
            yield tag, element
            continue
        for _, part in elements(_inside(element)):
            yield from elements(_inside(part))


def _inside(element: str) -> str:
    return element.partition(">")[2].rpartition("</div>")[0]
