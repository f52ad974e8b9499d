"""# The rows of lists, as a template prints them

> The glossary and the bibliography are made from data, one record a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidelit.site.link_views import Link


@dataclass(frozen=True, slots=True)
class Word:
    """A word in the language of a tag, which is empty where nobody can tell; `language` is its name."""

    text: str
    lang: str = ""
    language: str = ""


@dataclass(frozen=True, slots=True)
class Term:
    """One row of the glossary."""

    id: str
    name: str
    words: tuple[Word, ...]
    """What it is called in each language of the site; the table is the same in all of them."""
    never: tuple[Word, ...]
    note: str
    meaning: str = ""
    """What the term means, in the language of the page."""
    see: tuple[Link, ...] = ()
    """The pages that explain it."""
    uses: tuple[Link, ...] = ()
    """To the sections that use it, those first that are about it."""


@dataclass(frozen=True, slots=True)
class Work:
    """One entry of the bibliography and the pages that refer to it."""

    id: str
    authors: str
    title: str
    year: str
    where: str
    url: str
    note: str
    lang: str
    """The tag of the language of its title."""
    used: tuple[Link, ...]
