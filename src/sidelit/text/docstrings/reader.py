"""# Reading a docstring in its dialect

> Whatever a docstring was written in becomes the tokens of the press.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import yaml
from markdown_it.token import Token

from sidelit.errors import SidelitError
from sidelit.text import markup
from sidelit.text.docstrings import sections

# ## Front matter
#
# > A title and a summary between two `---` are the title and the lede of a text that has none.
#
# Authors write it for other tools, which take the page's title from it. Each line of the text stays on its
# line, so that a message about line 7 is about line 7.


def titled(text: str) -> str:
    """Keep title and summary of what stands between two `---`, for a text that has no title of its own."""
    if not text.startswith("---"):
        return text
    lines = text.split("\n")
    end = next((number for number, line in enumerate(lines) if number and line.rstrip() == "---"), 0)
    if not end or lines[0].rstrip() != "---":
        return text
    try:
        said = yaml.safe_load("\n".join(lines[1:end]))
    except (yaml.YAMLError, RecursionError, ValueError):
        return text
    if not isinstance(said, dict):
        return text
    title, summary = said.get("title"), said.get("summary", said.get("description"))
    head = [""] * (end + 1)
    if isinstance(title, str) and not any(line.startswith("# ") for line in lines[end:]):
        head[0] = f"# {' '.join(title.split())}"
        if end > 2 and isinstance(summary, str):
            head[2] = f"> {' '.join(summary.split())}"
    return "\n".join(head + lines[end + 1 :])


# ## Reading a docstring in its dialect
#
# > Whatever a docstring was written in becomes the tokens of the press.
#
# A dialect is a name in the configuration. `markdown` is the press's own; `rest` is reStructuredText;
# `google` and `numpy` cut a docstring into their sections, whose words are in one of the former two; `auto`
# looks at each docstring, and at its file where a docstring says nothing about itself.


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the docstrings of one file.

    :param dialect: what the configuration says, one of `sidelit.config.chapters.DIALECTS`.
    :param most: the markup of most of them.
    :param path: the file, which messages name.
    :param report: told of what is wrong.
    """

    dialect: str
    most: sections.Markup
    path: str
    report: Callable[[SidelitError], None]

    def read(self, text: str, first_line: int) -> tuple[Token, ...]:
        """The tokens of a text that starts on a line of the file."""
        text = titled(text)
        if self.dialect == "markdown":
            return markup.parse(text, path=self.path, first_line=first_line)
        said = "rest" if self.dialect == "rest" else sections.markup(text, self.most)
        if sections.plain(text):
            return markup.parse(text, path=self.path, first_line=first_line)
        style = sections.style(text, self.dialect)
        if said == "markdown" and style is None:
            return markup.parse(text, path=self.path, first_line=first_line)
        # What reads reST, and the sections of others, takes long to import.
        from sidelit.text.docstrings import foreign

        return foreign.tokens(text, style, said, foreign.TextPlace(self.path, first_line, self.report))


def reader(dialect: str, texts: Iterable[str], path: str, report: Callable[[SidelitError], None]) -> Reader:
    """The reader of the docstrings of one file, all of which are `texts`."""
    certain: dict[str, sections.Markup] = {"markdown": "markdown", "rest": "rest"}
    return Reader(dialect, certain.get(dialect) or sections.most(texts), path, report)
