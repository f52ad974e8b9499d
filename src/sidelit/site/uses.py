"""# Where the terms of the glossary are used

> A definition says little to a reader who cannot go and see the word at work.

Each term has the pages that use it, those first that are about it: a term in a heading counts for more than
one in a sentence. Of each page it has the section that uses it most. All of it is read from the original,
once a build, so that every language lists the same sections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from sidelit import digests
from sidelit.config import Prose
from sidelit.glossary import Finder, Glossary
from sidelit.site.content import Piece, Text
from sidelit.text import markup

# How many times a term in a heading or in the sentence below the title counts.
_HEADING = 8


@dataclass(frozen=True, slots=True)
class Use:
    """A page that uses a term: its place in the site, and its section that does so most."""

    output: str
    id: str


def uses(glossary: Glossary, texts: Collection[Text]) -> Mapping[str, tuple[Use, ...]]:
    """The uses of each term, by its name; nothing is read where no page shows them."""
    if not any(_shows(text) for text in texts):
        return {}
    finder, words = Finder(glossary), digests.digest(glossary)
    weighed: dict[str, list[tuple[int, Use]]] = {}
    for text in texts:
        if isinstance(text.item, Prose) and text.item.append:
            continue
        for term, (weight, section) in text.once("uses", partial(_in_page, finder, text), words).items():
            weighed.setdefault(term, []).append((weight, Use(text.item.output, section)))
    # The sort keeps the order of the book among pages of one weight.
    return {
        term: tuple(use for _, use in sorted(found, key=lambda each: -each[0]))
        for term, found in weighed.items()
    }


def _shows(text: Text) -> bool:
    return isinstance(text.item, Prose) and text.item.append == "glossary"


def _in_page(finder: Finder, text: Text) -> dict[str, tuple[int, str]]:
    """Each term of a page, with its weight there and the section in which it weighs most."""
    total: Counter[str] = Counter()
    best: dict[str, tuple[int, str]] = {}
    for piece in text.pieces:
        here: Counter[str] = Counter()
        for words, weight in _words(piece):
            for _, term in finder.find(words):
                here[term.name] += weight
        total.update(here)
        for name, weight in here.items():
            if weight > best.get(name, (0, ""))[0]:
                best[name] = (weight, _place(piece))
    return {term: (weight, best[term][1]) for term, weight in total.items()}


def _place(piece: Piece) -> str:
    """Where a section of a source begins, or a stretch of prose under its heading; the title is no place."""
    headings = (token for token in piece.tokens if token.type == "heading_open" and token.tag != "h1")
    return piece.id or next((str(token.meta.get("slug", "")) for token in headings), "")


def _words(piece: Piece) -> Iterator[tuple[str, int]]:
    """The sentences of a section, each with what a term in it counts."""
    headed = False
    for token in piece.tokens:
        if token.type == "inline":
            yield markup.plain(token.children or ()), _HEADING if headed else 1
            headed = False
        headed = headed or token.type in ("heading_open", "blockquote_open")
