"""# A kind of directive

> A directive is one name, one check and one function that draws it.

The check needs no language and no page, so `sidelit lint` runs it too. What a directive needs of the page
that it stands on is handed to it as a `DirectiveContext`; so it imports nothing of what puts pages together.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from markdown_it.token import Token
from markupsafe import Markup

from sidelit.config.chapters import Proof
from sidelit.config.config import Config
from sidelit.figures.interactive import Script
from sidelit.labs.outputs import Run
from sidelit.site.content import PageSection, SourcePage
from sidelit.site.links import Index
from sidelit.site.model import NavGroup, SectionView, TranslatedSection
from sidelit.text.directives import Directive


@dataclass(frozen=True, slots=True)
class ProjectIndex:
    """What a directive may name in any language: the project, its pages by their sources, all links."""

    config: Config
    index: Index
    pages: Mapping[str, SourcePage]


class DirectiveContext(Protocol):
    """Where a directive is drawn: one place of one page in one language."""

    @property
    def book(self) -> ProjectIndex:
        """All that may be named."""

    def words(self, tokens: Sequence[Token]) -> Markup:
        """Print a part of the directive's own body."""

    def section(self, page: SourcePage, section: PageSection) -> SectionView:
        """A section of a chapter with its words in the language of this page, and an id of its own here."""

    def editions(self, page: SourcePage, section: PageSection) -> Sequence[TranslatedSection]:
        """The same section in every language."""

    def nav(self) -> Sequence[NavGroup]:
        """The contents of the site."""

    def proved(self, proof: Proof) -> tuple[str, str | None]:
        """What a test states, and its address where sources have one."""

    def address(self, output: str, anchor: str) -> str:
        """From this page to an id of another one."""

    def figure(self, name: str, path: str, line: int) -> Markup:
        """The drawing of a figure."""

    def said(self, script: Script, context: str, values: Mapping[str, object]) -> Markup:
        """A sentence of what a reader can move, in the language of this page."""

    def run(self) -> Run:
        """What the cells of this page, a lab, showed when they were recorded."""

    def other_language(self, code: str) -> str:
        """The tag of a language if it is not that of this page, else nothing."""

    def colours(self) -> Mapping[str, str]:
        """The names of the site's colours, by what they are on paper."""

    def needs(self, name: str) -> None:
        """Give the page the stylesheet and the script of this name."""

    def fragment(self, template: str, **values: object) -> Markup:
        """Fill a template of the folder `directives/`; it may use the words of the interface as `ui`."""


@dataclass(frozen=True, slots=True)
class DirectiveType:
    """One kind of directive.

    :param check: raises `SidelitError` where the directive names what is not there, or is written otherwise
        than it should be.
    :param html: draws it, and may rely on nothing that `check` would refuse.
    :param everywhere: whether pages of prose may use it too, or only lessons.
    """

    name: str
    check: Callable[[Directive, ProjectIndex], object]
    html: Callable[[Directive, DirectiveContext], Markup]
    everywhere: bool = False


def plain(given: Directive, *, argument: bool = False, parts: int = 1, body: bool = True) -> None:
    """Refuse options, and an argument, parts or words that a directive does not take, or that it lacks."""
    for key in given.options:
        raise given.error(f"`{given.name}` has no option `{key}`")
    if given.argument and not argument:
        raise given.error(f"`{given.name}` takes nothing on its line, but here is {given.argument!r}")
    if argument and not given.argument:
        raise given.error(f"`{given.name}` does not say which")
    if len(given.parts) != parts:
        what = f"`{given.name}` has {parts} part{'s' * (parts > 1)}, and here are {len(given.parts)}"
        raise given.error(what, hint="a line `---` divides the parts")
    if body and not all(given.parts):
        raise given.error(f"`{given.name}` says nothing between its lines")
    if not body and given.body:
        raise given.error(f"`{given.name}` takes no words", hint="write them below its `:::`")


def nearest(wanted: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """A hint that names what was probably meant."""
    close = difflib.get_close_matches(wanted, tuple(known), n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise
