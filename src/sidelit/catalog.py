"""# Catalogues

(public API; implementation follows)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from markdown_it.token import Token

from .catalog_units import PageUnits, SectionUnits, digest, extract, split_prose

__all__ = ["PageUnits", "SectionUnits", "digest", "extract", "split_prose"]

State = Literal["current", "recheck", "stale", "missing"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One unit in one language. `line` is where its msgstr stands in `path` (0: not written yet)."""

    context: str
    msgid: str
    msgstr: str = ""
    digests: tuple[str, ...] = ()
    fuzzy: bool = False
    same: bool = False
    previous: str = ""
    obsolete: bool = False
    notes: tuple[str, ...] = ()
    path: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Catalog:
    """The translations of one page into one language, matched with the page as it is now."""

    page: str
    lang: str
    entries: Mapping[tuple[str, str], Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Translation:
    """What to show for one unit: the translation, or the English where `state` is stale or missing."""

    text: str
    state: State
    path: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Translated:
    """A section's tokens in the reader's language; `state` is the worst of its units.

    An inline that was translated carries `meta["po"] = (path, line)`; the block of one that was not carries
    `lang="en"`, `class="untranslated"` and `data-state="stale"` or `"missing"`.
    """

    tokens: tuple[Token, ...]
    state: State


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `sidelit status`: how many units of a page are in which state."""

    page: str
    lang: str
    current: int
    recheck: int
    stale: int
    missing: int


@dataclass(frozen=True, slots=True)
class Shelf:
    """All catalogues of a site."""

    catalogs: Mapping[tuple[str, str], Catalog]

    def catalog(self, page: str, lang: str) -> Catalog:
        """The catalogue of a page; an empty one where nobody has begun."""
        raise NotImplementedError


def load(pages: Sequence[PageUnits], locale_dir: Path, languages: Sequence[str]) -> Shelf:
    """Read all catalogues below `locale_dir` and match them with the pages. `languages` leaves out English."""
    raise NotImplementedError


def sync(pages: Sequence[PageUnits], locale_dir: Path, languages: Sequence[str]) -> tuple[Path, ...]:
    """Bring the catalogue files up to date with the pages; returns those that were written."""
    raise NotImplementedError


def status(shelf: Shelf) -> tuple[Row, ...]:
    """Count the states, a row for each page and language."""
    raise NotImplementedError


def reviewed(
    pages: Sequence[PageUnits],
    locale_dir: Path,
    languages: Sequence[str],
    *,
    page: str,
    lang: str | None = None,
    context: str | None = None,
) -> int:
    """Clear `recheck` on a page, or on one context of it; returns how many units were cleared."""
    raise NotImplementedError


def translate(tokens: Sequence[Token], catalog: Catalog, context: str, code_digest: str = "") -> Translated:
    """Put the translations into a section's tokens."""
    raise NotImplementedError


def text(msgid: str, catalog: Catalog, context: str, code_digest: str = "") -> Translation:
    """Translate one plain string, such as a label of the navigation."""
    raise NotImplementedError
