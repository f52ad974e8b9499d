"""# Reading a docstring in its dialect

> Whatever a docstring was written in becomes the tokens of the press.

A dialect is a name in the configuration. `markdown` is the press's own; `rest` is reStructuredText; `google`
and `numpy` cut a docstring into their sections, whose words are in one of the former two; `auto` looks at
each docstring, and at its file where a docstring says nothing about itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from markdown_it.token import Token

from sidelit.errors import SidelitError
from sidelit.text import front_matter, markup
from sidelit.text.docstrings import guess, sections


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the docstrings of one file.

    :param dialect: what the configuration says, one of `sidelit.dialects.DIALECTS`.
    :param most: the markup of most of them.
    :param path: the file, which messages name.
    :param report: told of what is wrong.
    """

    dialect: str
    most: guess.Markup
    path: str
    report: Callable[[SidelitError], None]

    def read(self, text: str, first_line: int) -> tuple[Token, ...]:
        """The tokens of a text that starts on a line of the file."""
        text = front_matter.titled(text)
        if self.dialect == "markdown":
            return markup.parse(text, path=self.path, first_line=first_line)
        said = "rest" if self.dialect == "rest" else guess.markup(text, self.most)
        if guess.plain(text):
            return markup.parse(text, path=self.path, first_line=first_line)
        style = sections.style(text, self.dialect)
        if said == "markdown" and style is None:
            return markup.parse(text, path=self.path, first_line=first_line)
        # What reads reST, and the sections of others, takes long to import.
        from sidelit.text.docstrings import foreign

        return foreign.tokens(text, style, said, foreign.Place(self.path, first_line, self.report))


def reader(dialect: str, texts: Iterable[str], path: str, report: Callable[[SidelitError], None]) -> Reader:
    """The reader of the docstrings of one file, all of which are `texts`."""
    certain: dict[str, guess.Markup] = {"markdown": "markdown", "rest": "rest"}
    return Reader(dialect, certain.get(dialect) or guess.most(texts), path, report)
