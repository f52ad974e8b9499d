"""# What is translated

> A page is cut into sentences that can be judged one at a time.

A page is translated in units, and a unit is what Markdown calls an inline: one paragraph, one list item,
one heading, one table cell, one footnote, the text of one `:param:`, the title of an admonition. It is
small enough to judge at a glance and large enough to be a thought; code spans and formulas stay inside
it, since the sentence around them decides where they stand.

Units are filed under the qualified name of what they describe. Nothing is numbered, so a paragraph may
move within its section, and a section within its page, without touching a single catalogue entry.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markdown_it.token import Token

from sidelit.records import quick
from sidelit.text import markup


@quick
@dataclass(frozen=True, slots=True)
class SectionUnits:
    """The sentences of one section, and the fingerprint of the code they stand beside."""

    context: str
    msgids: tuple[str, ...]
    code_digest: str = ""


@dataclass(frozen=True, slots=True)
class PageUnits:
    """The sections of one page, in source order.

    `name` is its catalogue's path below the language, `former` are the paths at which older catalogues may
    lie. `languages` are those it stands in; empty for all those of the site.
    """

    name: str
    sections: tuple[SectionUnits, ...]
    former: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()

    def stands_in(self, lang: str) -> bool:
        """Whether the page has a catalogue in a language."""
        return not self.languages or lang in self.languages


def extract(context: str, tokens: Sequence[Token], code_digest: str = "") -> SectionUnits:
    """Collect the units of one section's Markdown.

    `context` is the section's qualified name, or `module`; for prose, the slugs of the headings above it.
    """
    return SectionUnits(context, tuple(msgid(tokens[index]) for index in unit_indices(tokens)), code_digest)


def unit_indices(tokens: Sequence[Token]) -> list[int]:
    """The positions of the inline tokens that a translator has to see."""
    return [
        index
        for index, token in enumerate(tokens)
        if token.type == "inline" and has_words(token.children or [])
    ]


def has_words(children: Iterable[Token]) -> bool:
    """Whether an inline says anything in words.

    A heading that is one code span, or a table cell that is one formula or number, reads the same in every
    language: to ask for its translation would only invite a slip.
    """
    return any(_has_letter(child.content) for child in children if child.type in ("text", "image"))


def _has_letter(text: str) -> bool:
    return any(unicodedata.category(char).startswith("L") for char in text)


def msgid(token: Token) -> str:
    """The text of a unit as the catalogue files it."""
    return unwrap(token.content)


def unwrap(content: str) -> str:
    """Join the lines of a paragraph: wrapping the source anew must not make a translation stale.

    A line break that Markdown keeps (two spaces or a backslash before it) is kept.
    """
    joined = re.sub(r"(?<!\\)(?<!  )\n[ \t]*", " ", content.strip())
    return re.sub(r"(\\|(?<! ) {2,})\n[ \t]*", lambda match: match[1][:2] + "\n", joined)


def code_digest(lines: Iterable[str]) -> str:
    """Fingerprint the code beside a section; `""` when there is none.

    Indentation shared by all lines, trailing spaces and blank lines do not count: to move a method into
    another class is no reason to doubt its translation.
    """
    block = textwrap.dedent("\n".join(line.rstrip() for line in lines if line.strip()))
    return hashlib.sha256(block.encode()).hexdigest()[:12] if block else ""


def split_prose(tokens: Sequence[Token]) -> tuple[tuple[str, tuple[Token, ...]], ...]:
    """Cut the tokens of a prose page into sections, each under the slugs of its headings.

    The title and what follows it is `page`: a page may be renamed without unsettling its text. Footnotes
    gather at the end of a page wherever they were written, so they get a context of their own.
    """
    cuts: list[tuple[str, list[Token]]] = [("page", [])]
    path: dict[int, str] = {}
    for index, token in enumerate(tokens):
        if token.level == 0 and token.type == "footnote_block_open":
            cuts.append(("footnotes", []))
        if token.level == 0 and token.type == "heading_open":
            depth = int(token.tag[1:])
            path = {level: slug for level, slug in path.items() if level < depth}
            if depth > 1:
                path[depth] = markup.heading_slug(markup.plain(tokens[index + 1])) or "section"
            cuts.append(("/".join(path.values()) or "page", []))
        cuts[-1][1].append(token)
    return tuple((context, tuple(body)) for context, body in cuts if body)
