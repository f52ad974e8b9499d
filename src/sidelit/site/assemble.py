"""# Putting a page together

> Words, code, links and the way through the book meet in one record, the page's view.

Every piece is made by the stage that knows how; this one decides only what goes where. A mistake in one
section does not hide the mistakes in the next: they are collected, so that one build tells an author all of
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from markdown_it.token import Token
from markupsafe import Markup, escape

from sidelit.config import Chapter
from sidelit.errors import SidelitError
from sidelit.origin import fill
from sidelit.site import drawn, forwarding, frame, listing, page, views, ways
from sidelit.site.content import Piece
from sidelit.site.edition import Page, Words
from sidelit.site.links import fragment
from sidelit.site.press import Press
from sidelit.text import markup, prose


def view(press: Press, shown: Page) -> views.View:
    """Assemble one page in one language. Mistakes go to `press.report`; what they spoil is left out."""
    kind = _kind(shown)
    desk = _Desk(press, shown)
    body = ""
    sections: tuple[views.SectionView, ...] = ()
    if shown.text.prose:
        body = desk.html([token for words in shown.words for token in words.tokens], heading_ids=True)
    else:
        sections = tuple(desk.sections())
    return views.View(
        lang=shown.lang,
        html_lang=page.html_language(shown.lang),
        root=desk.ways.root,
        site=frame.head(press, desk.edition, desk.ways),
        page=desk.info(kind, sections, body),
        foot=frame.foot(press, shown.text.item),
        sections=sections,
        moved=tuple(desk.moved()),
        body=Markup(body),
        glossary=listing.terms(press.glossary, shown.lang) if kind == "glossary" else (),
        entries=listing.cited(press.works, desk.edition, desk.ways.to) if kind == "bibliography" else (),
    )


def _kind(shown: Page) -> str:
    item = shown.text.item
    if isinstance(item, Chapter):
        return "chapter"
    return item.append or ("home" if item.output == "index.html" else "prose")


class _Desk:
    """The making of one page: what its pieces need again and again is looked up once."""

    def __init__(self, press: Press, shown: Page) -> None:
        self.press = press
        self.config = press.config
        self.shown = shown
        self.item = shown.text.item
        self.edition = press.editions[shown.lang]
        self.target = press.index.targets[self.item.source]
        self.ways = ways.Ways(self.config, self.edition, shown)
        words = page.interface(shown.lang)
        self.figures: Counter[str] = Counter()
        self.labels = {key: words[key] for key in prose.LABELS if key in words}

    def html(
        self, tokens: Sequence[Token], section: str = "", offset: int = 0, heading_ids: bool = False
    ) -> str:
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

    def figure(self, name: str, path: str, line: int) -> Markup:
        """A figure by its name; `path` and `line` say where the page asks for it."""
        try:
            drawing = self.press.figures.draw(name, self.shown.lang, path, line)
            self.figures[name] += 1
            return drawn.html(drawing, self.shown.lang, self.figures[name], self._of_a_figure)
        except SidelitError as error:
            self.press.report(error)
            return Markup("")

    def _of_a_figure(self, sentence: Sequence[Token]) -> Markup:
        """A title or a caption: its links start from this page, but a wrong one stands in another file."""
        inline = sentence[1]

        def resolve(href: str, line: int) -> str:
            try:
                return self._resolve(href, line)
            except SidelitError as error:
                raise SidelitError(
                    error.what, path=markup.path_of(inline), line=line, hint=error.hint
                ) from None

        context = replace(self._context("", place="figure"), resolve=resolve)
        return Markup(prose.render_inline(inline, context=context))

    def sections(self) -> Iterator[views.SectionView]:
        pairs = zip(self.shown.text.pieces, self.shown.words, strict=True)
        for _, group in groupby(pairs, key=lambda pair: pair[0].fold and pair[0].fold.line):
            together = list(group)
            fold = self._fold(*together[0], [number for piece, _ in together for number, _ in piece.lines])
            yield from (self._section(piece, words, fold) for piece, words in together)

    def _fold(self, piece: Piece, words: Words, numbers: Sequence[int]) -> views.Fold | None:
        """What stands above folded sections; a click on it opens them, so a link has no place there."""
        if piece.fold is None:
            return None
        inline = words.fold[1]
        if any(child.type == "link_open" for child in inline.children or ()):
            what, line = "a link cannot stand in the line above depth", markup.line_of(inline)
            path, hint = markup.path_of(inline), "put it into the text of a section"
            self.press.report(SidelitError(what, path=path, line=line, hint=hint))
        said = ways.unlinked(self.inline(words.fold, "depth", piece.id))
        lines = (numbers[0], numbers[-1]) if numbers else (0, 0)
        return views.Fold(piece.fold.line, said, words.fold_state, *lines)

    def _section(self, piece: Piece, words: Words, fold: views.Fold | None) -> views.SectionView:
        depth = piece.qualname.count(".")
        line = piece.lines[0][0] if piece.lines else piece.first_line
        return views.SectionView(
            id=piece.id,
            aliases=piece.aliases,
            kind=piece.kind,
            qualname=piece.qualname,
            name=piece.qualname.rpartition(".")[2] if piece.kind in ("class", "function") else "",
            depth=depth,
            title=self.inline(words.title, "title", piece.id),
            doc=Markup(self.html(words.tokens, piece.id, _offset(piece))),
            lines=tuple(_line(number, html) for number, html in piece.lines),
            state=words.state,
            langs=tuple(other for other in self.ways.alternates(piece.id) if not other.current),
            source_url=self._source_url(line),
            report=fill(self.config.report_url, self.press.origin, self.item.source, line, piece.id),
            fold=fold,
        )

    def info(self, kind: str, sections: Sequence[views.SectionView], body: str) -> views.PageInfo:
        shown, part = self.shown, self.ways.part()
        before, after = self.ways.neighbours()
        crumbs = ((views.Link(part, None),) if part else ()) + (
            views.Link(shown.label, None, lang=shown.label_lang),
        )
        title_html = self.inline(shown.title, "title") or escape(shown.label)
        lede = self.inline(shown.lede, "lede")
        folds = (each.fold.words for each in sections if each.fold)
        parts = (part for each in sections for part in (each.title, each.doc))
        written = (body, title_html, lede, *folds, *parts)
        figure = self.opening_figure()
        return views.PageInfo(
            kind=kind,
            title=shown.label,
            title_html=title_html,
            title_state=shown.title_state,
            lede=lede,
            lede_text=prose.plain(shown.lede),
            lede_state=shown.lede_state,
            part=part,
            crumbs=crumbs,
            url=self.ways.here,
            source_path=self.item.source,
            source_url=self._source_url(1),
            prev=before,
            next=after,
            alternates=tuple(self.ways.alternates()),
            toc=tuple(ways.sections(sections) if sections else ways.headings(shown)),
            run=self.item.run if isinstance(self.item, Chapter) else None,
            has_math=any('class="katex' in html for html in written),
            has_depth=any(each.fold for each in sections),
            has_figures=bool(self.figures),
            figure=figure,
            forward=self.forward() if kind == "forward" else None,
        )

    def opening_figure(self) -> Markup:
        """The figure that the opening of a chapter names."""
        text = self.shown.text
        return self.figure(text.figure, self.item.source, text.figure_line) if text.figure else Markup("")

    def forward(self) -> views.Link:
        """To the page that went from this address."""
        lead = self.press.leads[self.item.output][""]
        other = self.edition.pages[lead.output]
        return views.Link(other.label, self.ways.to(lead.output), lang=other.label_lang)

    def moved(self) -> Iterator[views.Moved]:
        """To the sections that went from this address."""
        for old, lead in forwarding.departed(self.press.leads, self.shown.text).items():
            yield views.Moved(old, f"{self.ways.to(lead.output)}#{fragment(lead.id)}")

    def _context(
        self, section: str, *, place: str = "", heading_offset: int = 0, heading_ids: bool = False
    ) -> prose.RenderContext:
        return prose.RenderContext(
            resolve=self._resolve,
            math=_Watched(self.press),
            section=section,
            place=place,
            heading_offset=heading_offset,
            heading_ids=heading_ids,
            labels=self.labels,
            strict=not self.press.lenient,
        )

    def _resolve(self, href: str, line: int) -> str:
        try:
            return self.press.index.resolve(href, self.target, line, up=self.ways.language_root)
        except SidelitError as error:
            if self.press.lenient:
                self.press.report(error)
            raise

    def _source_url(self, line: int) -> str | None:
        return fill(self.config.source_url, self.press.origin, self.item.source, line)


@dataclass(frozen=True, slots=True)
class _Watched:
    """A typesetter that tells about what it refuses, even where the page shows it as it was typed."""

    press: Press

    def render(self, tex: str, *, display: bool, path: str | None, line: int | None) -> str:
        try:
            return self.press.math.render(tex, display=display, path=path, line=line)
        except SidelitError as error:
            if self.press.lenient:
                self.press.report(error)
            raise


def _offset(piece: Piece) -> int:
    """How far headings inside a text move down, so that none skips a level below its section's own."""
    # The templates set a definition in h2, a method in h3, and anything deeper in h4.
    return 1 + min(piece.qualname.count("."), 2) if piece.qualname else 0


def _line(number: int, html: str) -> views.CodeLine:
    return views.CodeLine(number, Markup(html), len(html) - len(html.lstrip(" ")))
