"""# What a citation names

> Everything that a citation can say stands in one record; the forms write it down.

It names the section by its title, its number and its id, the page, and the state of the project in which it
was read: version, commit and date. Nothing here is asked of the clock, so each build gives the same citation.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidelit.cite.authors import Author


@dataclass(frozen=True, slots=True)
class Place:
    """What is cited of a page: a section, or without an id the whole of it."""

    id: str = ""
    """As in an address: `Unit.gather`."""
    number: str = ""
    """As in the contents: `12.4`."""
    title: str = ""
    """Its heading; a section without one is called by its id."""

    @property
    def label(self) -> str:
        """What it is called in a sentence."""
        return self.title or self.id


@dataclass(frozen=True, slots=True)
class Record:
    """What all forms of one citation say. What is not known is empty."""

    book: str
    page: str
    """The title of the page, in the language of the citation."""
    name: str
    """The name of the page in the site, of which keys are made: `shardbook/unit`."""
    place: Place
    source: str
    authors: tuple[Author, ...]
    language: str
    version: str = ""
    commit: str = ""
    date: str = ""
    """Of the commit, as `2026-11-23`."""
    url: str = ""
    doi: str = ""

    @property
    def year(self) -> str:
        """The year of the date."""
        return self.date[:4]

    @property
    def title(self) -> str:
        """Page and section in one title."""
        if not self.place.id:
            return self.page
        return f"{self.page}, {' '.join(filter(None, (self.sign, self.place.label)))}"

    @property
    def sign(self) -> str:
        """The number of the section behind its sign."""
        return f"§ {self.place.number}" if self.place.number else ""
