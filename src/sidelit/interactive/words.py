"""# The words of what moves

> Sentences in a TOML file, which reach the catalogues, and the numbers that are put into their blanks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markdown_it.token import Token

from sidelit.catalog import catalog
from sidelit.errors import SidelitError
from sidelit.figures import quantities
from sidelit.figures.figure import sentence
from sidelit.figures.words import BLANK
from sidelit.tables import Table
from sidelit.text import markup


@dataclass(frozen=True, slots=True)
class Script:
    """The sentences of one file by their contexts; `page` is the name of its catalogue."""

    page: str
    path: str
    said: Mapping[str, tuple[Token, ...]]

    def units(self) -> catalog.PageUnits:
        """What of it is to be translated."""
        sections = (catalog.extract(context, tokens) for context, tokens in self.said.items())
        return catalog.PageUnits(self.page, tuple(each for each in sections if each.msgids))


def one(table: Table, key: str) -> tuple[str, tuple[Token, ...]]:
    """A sentence that the file must have, with its context."""
    return key, sentence(table, table.take(key, str), table.line(key))


def several(table: Table, name: str) -> Iterator[tuple[str, tuple[Token, ...]]]:
    """The sentences of a table of the file, each with its context."""
    words = table.inside(table.take(name, dict), name)
    for key, text in words.data.items():
        if not isinstance(text, str):
            raise words.error(f"the word `{key}` of [{name}] must be a string", key)
        yield f"{name}/{key}", sentence(words, text, words.line(key))


def filled(tokens: Sequence[Token], values: Mapping[str, object]) -> tuple[Token, ...]:
    """A sentence with its blanks filled: numbers rounded, and text as code.

    Raises `SidelitError` at the sentence if a blank has no value.
    """
    opening, inline, closing = tokens
    missing = sorted(set(BLANK.findall(inline.content)) - values.keys())
    if missing:
        path, line = markup.path_of(inline), markup.line_of(inline)
        what, hint = (
            f"nothing is put into the blank {{{missing[0]}}}",
            f"there is {', '.join(values) or 'none'}",
        )
        raise SidelitError(what, path=path, line=line, hint=hint)
    text = BLANK.sub(lambda blank: _written(values[blank[1]]), inline.content)
    return opening, markup.reinline(inline, text) if text != inline.content else inline, closing


def _written(value: object) -> str:
    if isinstance(value, (int, float)):
        return quantities.number(value)
    return f"`{value}`"
