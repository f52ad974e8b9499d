"""# The Markdown of a lab in one language

> Sentences are exchanged in the text itself, so that a notebook holds Markdown that its readers can edit.

A page takes the tokens of a translation and writes HTML. A notebook wants the Markdown back. So each sentence
is looked for in the lines that its token names, and what stands there is replaced by its translation, with
links that lead from the notebook to where the page would lead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from markdown_it.token import Token

from sidelit.catalog import catalog
from sidelit.errors import SidelitError
from sidelit.labs.cells import Cell
from sidelit.site.content import Text
from sidelit.text import markup

# Where a link of the lab leads from its notebook, given the link and its line.
Resolve = Callable[[str, int], str]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence as it is written, in the lines from `first` to before `end`, and what takes its place."""

    first: int
    end: int
    written: str
    said: str


def sentences(text: Text, book: catalog.Catalog | None, resolve: Resolve) -> tuple[Sentence, ...]:
    """All sentences of a lab, in the order of the text."""
    found: list[Sentence] = []
    for piece in text.pieces:
        tokens = piece.tokens
        if book is not None:
            tokens = catalog.translate(tokens, book, piece.context, piece.code_digest).tokens
        for own, other in zip(piece.tokens, tokens, strict=True):
            if own.type == "inline" and own.map:
                said = _linked(other, resolve)
                found.append(Sentence(own.map[0] + 1, own.map[1] + 1, own.content, said))
    return tuple(sorted(found, key=lambda each: each.first))


def _linked(token: Token, resolve: Resolve) -> str:
    """The Markdown of a sentence with its links resolved."""
    said = token.content
    for href in dict.fromkeys(_hrefs(token.children or ())):
        said = said.replace(f"]({href}", f"]({resolve(href, markup.line_of(token))}")
    return said


def _hrefs(children: Iterable[Token]) -> Iterator[str]:
    for child in children:
        href = child.attrGet("href") if child.type == "link_open" else None
        if isinstance(href, str):
            yield href


def cell(made: Cell, lines: list[str], said: Iterable[Sentence], path: str) -> str:
    """The Markdown of a cell; `lines` are those of the whole lab as Markdown.

    :raises SidelitError: if a sentence does not stand where it should
    """
    text = "\n".join(lines[made.first : made.last])
    starts = [0]
    for line in lines[made.first : made.last]:
        starts.append(starts[-1] + len(line) + 1)
    parts: list[str] = []
    done = 0
    for sentence in said:
        if not made.first < sentence.first <= made.last:
            continue
        place = max(done, starts[sentence.first - made.first - 1])
        found = _pattern(sentence.written).search(text, place)
        if found is None:
            what = f"the sentence {sentence.written[:40]!r} is not found in its lines"
            raise SidelitError(what, path=path, line=sentence.first, hint="write it without an escape")
        parts += [text[done : found.start()], _in_place(sentence, lines)]
        done = found.end()
    return "".join([*parts, text[done:]]).strip("\n")


def _pattern(written: str) -> re.Pattern[str]:
    """A sentence in its lines: each may be indented, and quoted, and a bar in a table is escaped."""
    lines = (re.escape(line).replace(r"\|", r"\\?\|") for line in written.split("\n"))
    return re.compile(r"[ \t]*\n[ \t>]*".join(lines))


def _in_place(sentence: Sentence, lines: list[str]) -> str:
    """In a table bars are escaped, and what goes on in a next line is indented as the first one is."""
    first = lines[sentence.first - 1]
    if first.lstrip().startswith("|"):
        return re.sub(r"(?<!\\)\|", r"\\|", sentence.said)
    indent = " " * (len(first) - len(first.lstrip()))
    return sentence.said.replace("\n", f"\n{indent}")
