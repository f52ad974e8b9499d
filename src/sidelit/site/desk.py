"""# The desk at which one page is made

> A page asks here for its words, its sections, its figures and the record of what stands around them.

What a page needs again and again is looked up once. A lesson shows sections of other pages: their words are
printed at a desk of their own, whose links lead from the lesson.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from markdown_it.token import Token
from markupsafe import Markup

from sidelit.catalog import catalog
from sidelit.config import Lab
from sidelit.errors import SidelitError
from sidelit.interactive.words import Script, filled
from sidelit.labs import outputs
from sidelit.labs.outputs import Run
from sidelit.origin import fill
from sidelit.site import drawn, sections, views, ways
from sidelit.site.content import Piece, Text
from sidelit.site.directives import registry
from sidelit.site.edition import Page, Words
from sidelit.site.hanging import Hanging
from sidelit.site.place import Place
from sidelit.site.press import Press, Watched
from sidelit.site.symbol_list import Symbols
from sidelit.text import prose
from sidelit.text.directives import Directive


class Desk:
    """The making of one page, or of what another page shows of it: that is `host`."""

    def __init__(
        self, press: Press, shown: Page, host: Page | None = None, symbols: Symbols | None = None
    ) -> None:
        self.press = press
        self.config = press.config
        self.shown = shown
        self.item = shown.text.item
        self.edition = press.editions[shown.lang]
        self.target = press.index.targets[self.item.source]
        self.host = host
        self.symbols = symbols or Symbols(press.notations, shown)
        self._marker = self.symbols.of(shown)
        self.ways = ways.Ways(self.config, self.edition, host or shown)
        self.language = press.config.language(shown.lang)
        self.labels = {key: self.language.words[key] for key in prose.LABELS}
        self._taken: Counter[str] = Counter()
        self.figures_shown: Counter[str] = Counter()
        self.needed: dict[str, None] = {}

    @cached_property
    def run(self) -> Run:
        """The recorded run of a lab; what is wrong with it is told once, and nothing of it is shown."""
        try:
            return (
                outputs.read(self.config, self.item, self.shown.lang) if isinstance(self.item, Lab) else Run()
            )
        except SidelitError as error:
            self.press.report(error)
            return Run()

    def html(
        self, tokens: Sequence[Token], section: str = "", offset: int = 0, heading_ids: bool = False
    ) -> str:
        """Blocks of text; nothing where they hold a mistake."""
        try:
            context = self._context(section, heading_offset=offset, heading_ids=heading_ids)
            return prose.render(tokens, context=context)
        except SidelitError as error:
            self.press.report(error)
            return ""

    def inline(self, tokens: Sequence[Token], place: str, section: str | None = None) -> Markup:
        """Headings and ledes: the inline tokens among `tokens`, without a block around them.

        They are written apart from the text of their section, so `place` tells their references to its
        footnotes from those in the text. Title and lede belong to the first section.
        """
        if section is None:
            section = self.shown.text.pieces[0].id if self.shown.text.pieces else ""
        said = []
        for token in tokens:
            if token.type == "inline":
                try:
                    said.append(prose.render_inline(token, context=self._context(section, place=place)))
                except SidelitError as error:
                    self.press.report(error)
        return Markup(" ".join(said))

    def taken(self, text: Text, piece: Piece) -> views.SectionView:
        """A section of another page; its id here says where it is from, as no heading's does."""
        there = self.edition.pages[text.item.output]
        (words,) = (said for each, said in zip(text.pieces, there.words, strict=True) if each.id == piece.id)
        name = f"{text.item.output.removesuffix('.html')}/{piece.id}"
        self._taken[name] += 1
        again = f":{self._taken[name]}" if self._taken[name] > 1 else ""
        return self.beside(there).section(piece, words, None, name + again)

    def beside(self, there: Page) -> Desk:
        """A desk for what this page shows of another one."""
        return Desk(self.press, there, self.host or self.shown, self.symbols)

    def editions(self, text: Text, piece: Piece) -> Iterator[views.Edition]:
        """A section of another page in every language, each with links that start from this page."""
        for language in self.ways.alternates():
            there = self.press.editions[language.code].pages[text.item.output]
            desk = self.beside(there)
            (words,) = (
                said for each, said in zip(text.pieces, there.words, strict=True) if each.id == piece.id
            )
            name = f"{text.item.output.removesuffix('.html')}/{piece.id}:{language.code}"
            yield views.Edition(language, desk.section(piece, words, None, name))

    def figure(self, name: str, path: str, line: int) -> Markup:
        """A figure by its name; `path` and `line` say where the page asks for it."""
        drawing = self.press.figures.draw(name, self.shown.lang, path, line)
        self.figures_shown[name] += 1
        words = drawn.Words(self.language, self.shown.source_lang, self.press.look)
        return drawn.html(drawing, words, self.figures_shown[name], self._of_a_figure)

    def figure_of(self, piece: Piece) -> Markup:
        """The figure that a section names; one that cannot be drawn is reported, and left out."""
        try:
            return (
                self.figure(piece.figure, self.item.source, piece.figure_line) if piece.figure else Markup("")
            )
        except SidelitError as error:
            self.press.report(error)
            return Markup("")

    def said(self, script: Script, context: str, values: Mapping[str, object]) -> Markup:
        """A sentence of what a reader can move, in the language of this page, its blanks filled."""
        tokens, lang = script.said[context], self.shown.lang
        state = "current"
        book = self.press.shelf.translation(script.page, lang) if self.press.shelf else None
        if book is not None:
            found = catalog.translate(tokens, book, context)
            tokens, state = found.tokens, found.state
        html = self._of_a_figure(filled(tokens, values))
        if book is None or state in ("current", "recheck"):
            return html
        return Markup('<span lang="{}">{}</span>').format(book.source, html)

    def _of_a_figure(self, sentence: Sequence[Token]) -> Markup:
        """A title or a caption: its links start from this page, but a wrong one stands in another file."""
        return Markup(prose.render_inline(sentence[1], context=self._context("", place="figure")))

    def section(
        self, piece: Piece, words: Words, fold: views.Fold | None, name: str = ""
    ) -> views.SectionView:
        """One section; `name` is its id on the page that shows it, if that is not its own."""
        return sections.view(self, piece, words, fold, name)

    def code(self, html: str) -> str:
        """A line of code with the symbols of the page in it marked."""
        return self._marker.code(html)

    def source_url(self, line: int) -> str | None:
        """The address of a line of the page's source, if the project is published."""
        return fill(self.config.public.source_url, self.press.origin, self.item.source, line)

    def _context(
        self, section: str, *, place: str = "", heading_offset: int = 0, heading_ids: bool = False
    ) -> prose.RenderContext:
        hung = Hanging(self.press, self.item.source, self.ways.root, self._resolve)
        return prose.RenderContext(
            resolve=self._resolve,
            image=hung.address,
            picture_size=hung.size,
            math=Watched(self.press, self._marker),
            symbols=self._marker.span,
            section=section,
            place=place,
            heading_offset=heading_offset,
            heading_ids=heading_ids,
            labels=self.labels,
            directive=self._directive,
            strict=not self.press.lenient,
            report=self.press.report,
        )

    def _directive(self, given: Directive, words: Callable[[Sequence[Token]], str]) -> str:
        try:
            return registry.html(given, Place(self, words))
        except SidelitError as error:
            self.press.report(error)
            return ""

    def _resolve(self, href: str, line: int) -> str:
        host = self.host.text.item.output if self.host else ""
        up = self.ways.language_root
        return self.press.index.resolve(href, self.target, line, up=up, shown_on=host)
