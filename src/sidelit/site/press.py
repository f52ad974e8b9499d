"""# What the pages of a build share

> One record goes with every page to the place where it is put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from sidelit.catalog.catalog import Shelf
from sidelit.config import Config
from sidelit.errors import SidelitError
from sidelit.figures.gallery import Gallery
from sidelit.glossary import Glossary
from sidelit.look import Look
from sidelit.origin import Origin
from sidelit.proofs import Proof
from sidelit.site import citation, forwarding, list_views
from sidelit.site.beside import Pictures
from sidelit.site.content import Text
from sidelit.site.edition import Edition
from sidelit.site.employed import Employed
from sidelit.site.identifiers import NOBODY, Identifiers
from sidelit.site.links import Index
from sidelit.site.uses import Use
from sidelit.symbols import marking
from sidelit.symbols.notation import Notation
from sidelit.text.math import Typesetter

__all__ = ["Press", "Watched"]


@dataclass(frozen=True, slots=True)
class Press:
    """What all pages of one build share."""

    config: Config
    editions: Mapping[str, Edition]
    index: Index
    math: Typesetter
    origin: Origin
    glossary: Glossary = field(default_factory=Glossary)
    uses: Mapping[str, tuple[Use, ...]] = field(default_factory=dict)
    """Where each term of the glossary is used, by its name."""
    works: tuple[list_views.Work, ...] = ()
    proved: Mapping[Proof, int] = field(default_factory=dict)
    """Where each test that a chapter names stands in its file."""
    employed: Employed = field(default_factory=Employed)
    """Where each definition is used, and which tests name it."""
    leads: forwarding.Leads = field(default_factory=dict)
    texts: Mapping[str, Text] = field(default_factory=dict)
    """Every page as it was written, by its source."""
    names: Identifiers = NOBODY
    """What the names in code mean."""
    notations: Mapping[str, Notation] = field(default_factory=dict)
    """What each page declares its symbols to mean, by its source."""
    figures: Gallery = field(default_factory=Gallery)
    cited: citation.Project | None = None
    """What a citation names; `None` for files that are printed without their project."""
    shelf: Shelf | None = None
    """The catalogues."""
    look: Look = field(default_factory=Look)
    """The templates and the assets."""
    pictures: Pictures = field(default_factory=Pictures)
    """The pictures that lie beside the sources."""
    lenient: bool = False
    """Show what is wrong as it was typed and go on: for sources that were not written for this press."""
    report: Callable[[SidelitError], None] = lambda error: None
    """Told of every mistake, in either mode."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A typesetter that marks the symbols of a page.

    It tells about what it refuses, even where the page shows it as it was typed.
    """

    press: Press
    marker: marking.Marker

    def render(self, tex: str, *, display: bool, path: str | None, line: int | None) -> str:
        try:
            html = self.press.math.render(tex, display=display, path=path, line=line)
        except SidelitError as error:
            if self.press.lenient:
                self.press.report(error)
            raise
        return self.marker.settled(tex, html, partial(self.press.math.drawn, display=display))
