"""# Where a directive is drawn

> What a directive may ask of the page that it stands on, and nothing else of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markdown_it.token import Token
from markupsafe import Markup

from sidelit import reading
from sidelit.interactive.words import Script
from sidelit.labs import plots
from sidelit.labs.outputs import Run
from sidelit.site import page, views
from sidelit.site.content import Piece, Text
from sidelit.site.directives.kind import Book
from sidelit.site.link_views import NavGroup
from sidelit.site.links import fragment

if TYPE_CHECKING:
    from sidelit.site.desk import Desk


@dataclass(frozen=True, slots=True)
class Place:
    """Where a directive is drawn; `printed` prints the words in it."""

    desk: Desk
    printed: Callable[[Sequence[Token]], str]

    @property
    def book(self) -> Book:
        return Book(self.desk.config, self.desk.press.index, self.desk.press.texts)

    def words(self, tokens: Sequence[Token]) -> Markup:
        return Markup(self.printed(tokens))

    def section(self, text: Text, piece: Piece) -> views.SectionView:
        return self.desk.taken(text, piece)

    def editions(self, text: Text, piece: Piece) -> Sequence[views.Edition]:
        return tuple(self.desk.editions(text, piece))

    def nav(self) -> Sequence[NavGroup]:
        return tuple(self.desk.ways.nav())

    def address(self, output: str, anchor: str) -> str:
        return self.desk.ways.to(output) + (f"#{fragment(anchor)}" if anchor else "")

    def figure(self, name: str, path: str, line: int) -> Markup:
        return self.desk.figure(name, path, line)

    def said(self, script: Script, context: str, values: Mapping[str, object]) -> Markup:
        return self.desk.said(script, context, values)

    def run(self) -> Run:
        return self.desk.run

    def other_language(self, code: str) -> str:
        return self.desk.config.language(code).tag if code not in ("", self.desk.shown.lang) else ""

    def colours(self) -> Mapping[str, str]:
        return plots.colours(reading.text(self.desk.press.look.assets["colours.css"]))

    def needs(self, name: str) -> None:
        self.desk.needed[name] = None

    def fragment(self, template: str, **values: object) -> Markup:
        return page.fragment(f"directives/{template}", self.desk.language, self.desk.press.look, values)
