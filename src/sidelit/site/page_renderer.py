"""# The page renderer

> The sections of a page become HTML in one language: words beside code, directives, folds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby, pairwise

from markdown_it.token import Token
from markupsafe import Markup

from sidelit.catalog import catalog
from sidelit.config.chapters import Chapter, Proof
from sidelit.config.origin import fill, report
from sidelit.config.prose import Prose
from sidelit.errors import SidelitError
from sidelit.figures.interactive import Script, filled
from sidelit.files import assets
from sidelit.labs import outputs
from sidelit.labs.outputs import Run
from sidelit.site import context, model, navigation
from sidelit.site.backlinks import Proved, Test, Usage
from sidelit.site.content import PageSection, SourcePage
from sidelit.site.context import BuildContext, ImageResolver, Symbols, Watched
from sidelit.site.directives import registry
from sidelit.site.directives.kind import ProjectIndex
from sidelit.site.edition import Page, SectionText
from sidelit.site.links import Target, fragment
from sidelit.site.model import CodeLine, Imports, Link, NavGroup, UsageView, code_line
from sidelit.text import code, columns, inlines, linebreaks, markup, prose
from sidelit.text.directives import Directive

# ## How high the two sides of a section are
#
# > Where the words are much higher than the code beside them, they stand above it and take the whole width.
#
# Heights are estimated, in rem, for a page 1280 pixels wide: nobody sees more of an error than that a section
# stands one way and not the other.


# A line of words holds about so many Latin letters, and what it, a line of code and the parts of a text take.
_LETTERS, _LINE, _CODE = 54, 1.7, 1.4
_PARTS = {"<p": 0.8, "<tr": 0.8, "<li": 0.25, "<h": 1.2, "katex-display": 1.8}
_UNSEEN = re.compile(r'<span class="katex-mathml">.*?</math></span>|<[^>]*>', re.DOTALL)


def words_above(doc: str, lines: Sequence[CodeLine]) -> bool:
    """Whether the words are one and a half times as high as the code, and it is worth an eye's way down."""
    words, code = _height(str(doc)), _CODE * len(lines)
    return bool(lines) and words > 1.5 * code and words - code > 7


def _height(html: str) -> float:
    parts = sum(html.count(part) * each for part, each in _PARTS.items())
    return _LINE * columns.letters(_UNSEEN.sub("", html)) / _LETTERS + parts


# ## Where a directive is drawn
#
# > What a directive may ask of the page that it stands on, and nothing else of it.


@dataclass(frozen=True, slots=True)
class PageDirectiveContext:
    """Where a directive is drawn; `printed` prints the words in it."""

    renderer: PageRenderer
    printed: Callable[[Sequence[Token]], str]

    @property
    def book(self) -> ProjectIndex:
        return ProjectIndex(self.renderer.config, self.renderer.build.index, self.renderer.build.pages)

    def words(self, tokens: Sequence[Token]) -> Markup:
        return Markup(self.printed(tokens))

    def section(self, page: SourcePage, section: PageSection) -> model.SectionView:
        return self.renderer.taken(page, section)

    def editions(self, page: SourcePage, section: PageSection) -> Sequence[model.TranslatedSection]:
        return tuple(self.renderer.editions(page, section))

    def nav(self) -> Sequence[NavGroup]:
        return tuple(self.renderer.nav.nav())

    def proved(self, proof: Proof) -> tuple[str, str | None]:
        build = self.renderer.build
        found = build.proved.get(proof, Proved())
        return found.says, fill(build.config.public.source_url, build.origin, proof.path, found.line)

    def address(self, output: str, anchor: str) -> str:
        return self.renderer.nav.to(output) + (f"#{fragment(anchor)}" if anchor else "")

    def figure(self, name: str, path: str, line: int) -> Markup:
        return self.renderer.figure(name, path, line)

    def said(self, script: Script, context: str, values: Mapping[str, object]) -> Markup:
        return self.renderer.said(script, context, values)

    def run(self) -> Run:
        return self.renderer.run

    def other_language(self, code: str) -> str:
        return self.renderer.config.language(code).tag if code not in ("", self.renderer.shown.lang) else ""

    def colours(self) -> Mapping[str, str]:
        return outputs.colours(assets.text(self.renderer.build.theme.assets["colours.css"]))

    def needs(self, name: str) -> None:
        self.renderer.needed[name] = None

    def fragment(self, template: str, **values: object) -> Markup:
        renderer = self.renderer
        return context.fragment(f"directives/{template}", renderer.language, renderer.build.theme, values)


# ## Sections of a page
#
# > The words of a section, its code, and what can be done with it: link to it, cite it, mend it.


def view(
    renderer: PageRenderer, section: PageSection, words: SectionText, fold: model.Fold | None, name: str = ""
) -> model.SectionView:
    """A section with all that a template prints of it.

    :param name: its id on the page that shows it, if that is not its own.
    """
    line = section.lines[0][0] if section.lines else section.first_line
    ranked, about = tuple(_ranked(section, words)), section.qualname
    doc = Markup(renderer.html(ranked, name or section.id, about=about))
    lines = tuple(_lines(renderer, section.lines, renderer.code))
    config, shown = renderer.config, renderer.shown
    return model.SectionView(
        id=name or section.id,
        aliases=() if name else section.aliases,
        kind=section.kind,
        qualname=section.qualname,
        name=section.qualname.rpartition(".")[2] if section.kind in ("class", "function") else "",
        depth=section.depth,
        title=renderer.inline(words.title, "title", name or section.id, about),
        doc=doc,
        lines=lines,
        imports=_imports(renderer, section),
        state=words.state,
        langs=tuple(renderer.nav.others(name or section.id)),
        source_url=renderer.source_url(line),
        report=report(config, renderer.build.origin, renderer.item.source, shown.lang, line, section.id),
        backlinks=UsageView() if name else _usage(renderer, section),
        newest=_newest(renderer, section),
        fold=fold,
        number=section.number,
        plain_title=markup.plain(words.title),
        figure=renderer.figure_of(section) if section.kind != "module" else "",
        above=not section.figure and words_above(doc, lines),
    )


def _lines(
    renderer: PageRenderer, lines: Sequence[tuple[int, str]], marked: Callable[[str], str]
) -> Iterator[CodeLine]:
    page = (renderer.host or renderer.shown).source.item.output

    def rest(count: str, rows: bool) -> str:
        language = renderer.language
        return language.word("lines_more", n=count) if rows else language.word("line_of", n=count)

    for number, html in renderer.build.names.lines(renderer.item.source, tuple(lines), page):
        yield code_line(number, code.told(marked(html), rest))


def _imports(renderer: PageRenderer, section: PageSection) -> Imports | None:
    if section.imports is None:
        return None
    named = section.imports.named
    return Imports(", ".join(named.names), named.more, tuple(_lines(renderer, section.imports.lines, str)))


def _newest(renderer: PageRenderer, section: PageSection) -> str:
    """Where a section is in the newest release, on a page that is out of date."""
    noted, output = renderer.config.public.notice, renderer.item.output
    return f"{renderer.nav.newest(output)}#{fragment(section.id)}" if noted else ""


def _ranked(section: PageSection, words: SectionText) -> Iterator[Token]:
    """The words of a section with headings that stand below the one above them; none skips a level.

    Of what their author typed, it counts which is higher than which. Every dialect begins at another level.
    """
    typed = [int(token.tag[1]) for token in words.tokens if token.type == "heading_open"]
    # The templates set a definition in h2, a method in h3, and anything deeper in h4.
    own, opened = 2 + min(section.depth, 2), list[tuple[int, int]]()
    least = own + (section.kind in ("class", "function") or bool(section.qualname and not words.title))
    if words.title and section.tokens:
        opened.append((int(section.tokens[0].tag[1]), own))
    elif not section.qualname and section.kind != "module" and typed:
        # A comment without a title goes on below that of a section above.
        least = min(max(typed[0], 2), 3)
    for token in words.tokens:
        if token.type == "heading_open":
            level = int(token.tag[1])
            while opened and opened[-1][0] >= level:
                opened.pop()
            opened.append((level, min(opened[-1][1] + 1, 6) if opened else least))
        heading = token.type in ("heading_open", "heading_close")
        yield token.copy(tag=f"h{opened[-1][1]}") if heading else token


def _usage(renderer: PageRenderer, section: PageSection) -> UsageView:
    """Where a definition of a page is used, and its tests."""
    if section.kind not in ("class", "function"):
        return UsageView()
    uses, tests = renderer.build.backlinks.of(renderer.item.source, section.id)
    return UsageView(tuple(_uses(renderer, uses)), tuple(_tests(renderer, tests)))


def _uses(renderer: PageRenderer, uses: tuple[Usage, ...]) -> Iterator[Link]:
    for place in uses:
        address = f"{renderer.nav.to(place.output)}#{fragment(place.id)}"
        if place.output == renderer.item.output:
            yield Link("", f"#{fragment(place.id)}", name=place.name or place.id)
        else:
            label, lang = renderer.edition.label(place.output)
            yield Link(label, address, lang=lang, name=place.name)


def _tests(renderer: PageRenderer, tests: tuple[Test, ...]) -> Iterator[Link]:
    for test in tests:
        address = fill(renderer.config.public.source_url, renderer.build.origin, test.path, test.line)
        yield Link(f"{test.path}::{test.name}", address, name=test.name)


# ## The renderer of one page
#
# > A page asks here for its words, its sections and its figures.
#
# What a page needs again and again is looked up once. A lesson shows sections of other pages: their words are
# printed by a renderer of their own, whose links lead from the lesson.


class PageRenderer:
    """The making of one page, or of what another page shows of it: that is `host`."""

    def __init__(
        self, build: BuildContext, shown: Page, host: Page | None = None, symbols: Symbols | None = None
    ) -> None:
        self.build = build
        self.config = build.config
        self.shown = shown
        self.item = shown.source.item
        self.edition = build.editions[shown.lang]
        # No link leads to the list of all pages, so the index has no such page.
        own = Target(self.item.source, self.item.name, self.item.output, shown.source.ids)
        self.target = build.index.targets.get(self.item.source, own)
        self.host = host
        self.symbols = symbols or Symbols(build.notations, shown)
        self._marker = self.symbols.of(shown)
        self.nav = navigation.Navigation(self.config, self.edition, host or shown)
        self.language = build.config.language(shown.lang)
        self.labels = {key: self.language.words[key] for key in inlines.LABELS}
        self._taken: Counter[str] = Counter()
        self.figures_shown: Counter[str] = Counter()
        self.needed: dict[str, None] = {}

    @cached_property
    def run(self) -> Run:
        """The recorded run of a lab; what is wrong with it is told once, and nothing of it is shown."""
        try:
            if isinstance(self.item, Prose):
                return outputs.read(self.config, self.item, self.shown.lang)
        except SidelitError as error:
            self.build.report(error)
        return Run()

    def html(
        self, tokens: Sequence[Token], section: str = "", heading_ids: bool = False, about: str = ""
    ) -> str:
        """Blocks of text, `about` a definition; nothing where they hold a mistake."""
        try:
            context = self._context(section, about, heading_ids=heading_ids)
            return prose.render(tokens, context=context)
        except SidelitError as error:
            self.build.report(error)
            return ""

    def inline(
        self, tokens: Sequence[Token], place: str, section: str | None = None, about: str = ""
    ) -> Markup:
        """Headings and ledes: the inline tokens among `tokens`, without a block around them.

        They are written apart from the text of their section, so `place` tells their references to its
        footnotes from those in the text. Title and lede belong to the first section.
        """
        if section is None:
            section = self.shown.source.sections[0].id if self.shown.source.sections else ""
        said = []
        for token in tokens:
            if token.type == "inline":
                try:
                    said.append(
                        prose.render_inline(token, context=self._context(section, about, place=place))
                    )
                except SidelitError as error:
                    self.build.report(error)
        return Markup(" ".join(said))

    def taken(self, page: SourcePage, section: PageSection) -> model.SectionView:
        """A section of another page; its id here says where it is from, as no heading's does."""
        there, words = self.edition.section(page.item.output, section.id)
        name = f"{page.item.output.removesuffix('.html')}/{section.id}"
        self._taken[name] += 1
        again = f":{self._taken[name]}" if self._taken[name] > 1 else ""
        return self.beside(there).section(section, words, None, name + again)

    def beside(self, there: Page) -> PageRenderer:
        """A renderer for what this page shows of another one."""
        return PageRenderer(self.build, there, self.host or self.shown, self.symbols)

    def editions(self, page: SourcePage, section: PageSection) -> Iterator[model.TranslatedSection]:
        """A section of another page in every language, each with links that start from this page."""
        for language in self.nav.alternates():
            there, words = self.build.editions[language.code].section(page.item.output, section.id)
            renderer = self.beside(there)
            name = f"{page.item.output.removesuffix('.html')}/{section.id}:{language.code}"
            yield model.TranslatedSection(language, renderer.section(section, words, None, name))

    def figure(self, name: str, path: str, line: int) -> Markup:
        """A figure by its name; `path` and `line` say where the page asks for it."""
        drawing = self.build.figures.draw(name, self.shown.lang, path, line)
        self.figures_shown[name] += 1
        figure_context = context.FigureContext(self.language, self.shown.source_lang, self.build.theme)
        return context.html(drawing, figure_context, self.figures_shown[name], self._of_a_figure)

    def figure_of(self, section: PageSection) -> Markup:
        """The figure that a section names; one that cannot be drawn is reported, and left out."""
        try:
            return (
                self.figure(section.figure, self.item.source, section.figure_line)
                if section.figure
                else Markup("")
            )
        except SidelitError as error:
            self.build.report(error)
            return Markup("")

    def said(self, script: Script, context: str, values: Mapping[str, object]) -> Markup:
        """A sentence of what a reader can move, in the language of this page, its blanks filled."""
        tokens, lang = script.said[context], self.shown.lang
        state = "current"
        book = self.build.catalogs.translation(script.page, lang) if self.build.catalogs else None
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
        self, section: PageSection, words: SectionText, fold: model.Fold | None, name: str = ""
    ) -> model.SectionView:
        """One section; `name` is its id on the page that shows it, if that is not its own."""
        return view(self, section, words, fold, name)

    def code(self, html: str) -> str:
        """A line of code with the symbols of the page in it marked."""
        return self._marker.code(html)

    def source_url(self, line: int) -> str | None:
        """The address of a line of the page's source, if the project is published."""
        return fill(self.config.public.source_url, self.build.origin, self.item.source, line)

    def _context(
        self, section: str, about: str = "", *, place: str = "", heading_ids: bool = False
    ) -> inlines.RenderContext:
        hung = ImageResolver(self.build, self.item.source, self.nav.root, self._resolve)
        says = self.item if isinstance(self.item, Chapter) else self.config
        numbered = says.equation_numbers
        return inlines.RenderContext(
            resolve=self._resolve,
            image=hung.address,
            picture_size=hung.size,
            name=partial(self._named, about),
            math=Watched(self.build, self._marker, numbered),
            symbols=self._marker.span,
            section=section,
            place=place,
            heading_ids=heading_ids,
            typed_quotes=linebreaks.is_cjk_language(self.language.tag),
            labels=self.labels,
            directive=self._directive,
            strict=not self.build.lenient,
            report=self.build.report,
        )

    def _directive(self, given: Directive, words: Callable[[Sequence[Token]], str]) -> str:
        try:
            return registry.html(given, PageDirectiveContext(self, words))
        except SidelitError as error:
            self.build.report(error)
            return ""

    def _named(self, about: str, name: str) -> str | None:
        page = (self.host or self.shown).source.item.output
        return self.build.names.said(self.item.source, name, about, page)

    def _resolve(self, href: str, line: int) -> str:
        host = self.host.source.item.output if self.host else ""
        up = self.nav.language_root
        return self.build.index.resolve(href, self.target, line, up=up, shown_on=host)


# ## Sections in folds
#
# > Sections that tell more than a first reading needs stand together under one line that opens them.
#
# The line is what the source says above its first section in depth.


def sections(renderer: PageRenderer) -> Iterator[model.SectionView]:
    """The sections of a chapter, those that are folded together with one fold."""
    pairs = zip(renderer.shown.source.sections, renderer.shown.words, strict=True)
    for _, group in groupby(pairs, key=lambda pair: pair[0].fold and pair[0].fold.line):
        together = list(group)
        numbers = [number for section, _ in together for number, _ in section.lines]
        fold = _fold(renderer, *together[0], numbers)
        head: list[model.SectionView] = []
        for section, words in together:
            if head and not section.joined:
                yield _with_joined(*head)
                head = []
            head.append(renderer.section(section, words, fold))
        yield _with_joined(*head)


def _with_joined(head: model.SectionView, *joined: model.SectionView) -> model.SectionView:
    """A section with the code of those behind it that have no words; their ids lead to their first lines."""
    if not joined:
        return head
    lines = list(head.lines)
    for before, each in pairwise((head, *joined)):
        first, *rest = each.lines
        apart = bool(lines) and _is_apart(each, before, head)
        lines += [replace(first, ids=(each.id, *each.aliases), apart=apart), *rest]
    above = not head.figure and words_above(head.doc, lines)
    return replace(head, lines=tuple(lines), joined=joined, above=above)


def _is_apart(section: model.SectionView, before: model.SectionView, head: model.SectionView) -> bool:
    """Whether code without words begins something that the words of the head are not about.

    Those of a class or a function are about all that is in it, and those of a comment about its own lines.
    """
    defines = head.kind in ("class", "function")
    if defines and f"{section.qualname}.".startswith(f"{head.qualname}."):
        return False
    return section.kind == "function" or section.qualname != before.qualname


def _fold(
    renderer: PageRenderer, section: PageSection, words: SectionText, numbers: Sequence[int]
) -> model.Fold | None:
    """What stands above folded sections; a click on it opens them, so a link has no place there."""
    if section.fold is None:
        return None
    inline = words.fold[1]
    if any(child.type == "link_open" for child in inline.children or ()):
        what, line = "a link cannot stand in the line above depth", markup.line_of(inline)
        path, hint = markup.path_of(inline), "put it into the text of a section"
        renderer.build.report(SidelitError(what, path=path, line=line, hint=hint))
    said = navigation.unlinked(renderer.inline(words.fold, "depth", section.id))
    lines = (numbers[0], numbers[-1]) if numbers else (0, 0)
    return model.Fold(section.fold.line, said, words.fold_state, *lines)
