"""# Links, as a template prints them

> An address with its label, alone and in the lists that a page has.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A labelled address; `lang` is set where the label is not in the page's language."""

    label: str
    url: str | None
    current: bool = False
    lang: str | None = None
    lede: str = ""
    name: str = ""
    number: str = ""
    minutes: int = 0
    lesson: str = ""
    """What the reader's progress is remembered under, if this leads to a lesson."""
    part: str = ""
    """The part that a way to a neighbour enters."""


@dataclass(frozen=True, slots=True)
class NavGroup:
    """One part in the table of contents of the site."""

    label: str
    number: str
    items: tuple[Link, ...]
    lang: str | None = None
    question: str = ""
    question_lang: str | None = None

    @property
    def current(self) -> bool:
        """Whether the page that lists it is in it."""
        return any(item.current for item in self.items)


@dataclass(frozen=True, slots=True)
class Alternate:
    """A page or a section in one language."""

    code: str
    name: str
    short: str
    """The name where there is little room."""
    html_lang: str
    url: str
    current: bool = False


@dataclass(frozen=True, slots=True)
class TocEntry:
    """One line of the table of contents of a page; `folded` if it leads into depth."""

    id: str
    label: str
    depth: int
    folded: bool = False
    number: str = ""
