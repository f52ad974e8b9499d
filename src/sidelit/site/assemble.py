"""# Putting a page together

> The renderer makes the text; here stands what is around it, for each kind of page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from markdown_it.token import Token
from markupsafe import Markup

from sidelit.config.chapters import Chapter
from sidelit.config.config import Config
from sidelit.config.origin import fill, report
from sidelit.config.prose import Prose
from sidelit.config.publication import DRAFT
from sidelit.errors import SidelitError
from sidelit.files import assets
from sidelit.labs import cells
from sidelit.site import content, links, metadata, model, navigation, page_kinds, page_renderer
from sidelit.site.backlinks import Proved
from sidelit.site.context import BuildContext
from sidelit.site.data_pages import Around
from sidelit.site.edition import Edition, Page
from sidelit.site.links import fragment
from sidelit.site.model import LessonHead, Link
from sidelit.site.navigation import Navigation
from sidelit.site.page_renderer import PageRenderer
from sidelit.site.search import index
from sidelit.symbols import marking
from sidelit.symbols.marking import Marker
from sidelit.text import directives, prose
from sidelit.theme import breakable

# ## What stands around a page
#
# > The head of every page names the site, and the foot says where the page comes from and whom to tell.


def site_head(build: BuildContext, edition: Edition, around: Navigation) -> model.SiteInfo:
    """What is the same on every page of one language, with its addresses as one page needs them."""
    return model.SiteInfo(
        title=build.config.title,
        tagline=edition.tagline,
        summary=edition.tagline,
        licence_note=edition.licence_note,
        home_figure=build.config.home_figure,
        version=build.origin.version,
        repository=build.config.public.repository,
        nav=tuple(around.nav()),
        home=around.to(build.config.home),
        contents=around.to(_contents(build.config)) if len(edition.pages) > 1 else "",
        course=bool(build.config.course.lessons),
        search=_search(edition, around),
        versions=_versions(build, around),
    )


def _contents(config: Config) -> str:
    """The page that lists all pages: of printed files their index, or else one that is made for it."""
    listing = (each.output for each in config.front if each.kind == "listing")
    return next(listing, config.contents)


def _versions(build: BuildContext, around: Navigation) -> model.Versions | None:
    public, shown = build.config.public, around.shown
    if not public.others:
        return None
    others = (Link(other.label, f"{around.top}{other.home(shown.lang)}") for other in public.others)
    label = public.others[0].label if public.notice == DRAFT else build.origin.version
    return model.Versions(public.notice, label, around.newest(shown.source.item.output), tuple(others))


def _search(edition: Edition, around: Navigation) -> model.Search | None:
    """One page needs no search: the browser has one."""
    if len(edition.pages) < 2:
        return None
    language = around.to("index.html").removesuffix("index.html")
    return model.Search(around.root + index.folder(edition.lang), language)


def foot(build: BuildContext, shown: Page) -> model.Foot:
    """What a reader needs to trust a page, to mend it, or to cite it."""
    origin, item = build.origin, shown.source.item
    return model.Foot(
        version=origin.version,
        commit=origin.label,
        commit_url=fill(build.config.public.commit_url, origin, item.source),
        date=origin.date,
        torch=build.config.figures_torch,
        run=item.run if isinstance(item, Chapter) else None,
        report=report(build.config, origin, item.source, shown.lang),
        proofs=tuple(_proofs(build, item)) if isinstance(item, Chapter) else (),
        cite=metadata.citation_of(build.cited, shown),
    )


def _proofs(build: BuildContext, item: Chapter) -> Iterator[Link]:
    """To the tests that prove a chapter."""
    for proof in item.proves:
        line = build.proved.get(proof, Proved()).line
        yield Link(str(proof), fill(build.config.public.source_url, build.origin, proof.path, line))


# ## What stands around the text of a page
#
# > The title, the lede, the ways to other pages, and what else the frame of a page has to know.


# The two faces of KaTeX that letters and signs are set in, and what of its HTML shows that a page uses them.
_MATH_FACES = {
    "katex/fonts/KaTeX_Main-Regular.woff2": re.compile(
        r'class="m(?:ord|bin|rel|open|close|punct)"[^>]*>[^<]'
    ),
    "katex/fonts/KaTeX_Math-Italic.woff2": re.compile(r'class="mord mathnormal'),
}
# What words are emphasised in, where letters have an italic.
_ITALIC = "fonts/source-serif-4-basic-wght-italic.woff2"
# What a reader has to open, such as an answer: the faces it is set in are not asked for ahead.
_SHUT = re.compile(r"<details(?![^>]*\sopen\b).*?</details>", re.DOTALL)
# How the link of a name in code begins.
_NAME = '<a class="n" '


def _code(section: model.SectionView) -> Iterator[str]:
    imports = section.imports.lines if section.imports else ()
    return (line.html for line in (*section.lines, *imports))


def info(
    renderer: PageRenderer,
    sections: Sequence[model.SectionView],
    body: str,
    lesson: model.LessonHead | None = None,
) -> model.PageInfo:
    """The record of what stands around the text of the page."""
    kind = page_kinds.of(renderer.item)
    shown, part = renderer.shown, renderer.nav.part()
    before, after = renderer.nav.neighbours()
    crumbs = ((model.Link(part, None),) if part else ()) + (
        model.Link(shown.label, None, lang=shown.label_lang),
    )
    title_html = renderer.inline(shown.title, "title") or breakable(shown.label)
    lede = renderer.inline(shown.lede, "lede")
    folds = [each.fold.words for each in sections if each.fold]
    parts = (part for each in sections for part in (each.title, each.doc))
    above = (lesson.needs, *lesson.aims) if lesson else ()
    written = (body, title_html, lede, *above, *folds, *parts)
    unfolded = [each for each in sections if not each.fold]
    words = [_SHUT.sub("", html) for html in (body, lede, *(each.doc for each in unfolded))]
    seen = (*words, title_html, *above, *folds, *(each.title for each in unfolded))
    page = shown.source
    opens = page.sections[0] if page.sections and page.sections[0].kind == "module" else None
    figure = renderer.figure_of(opens) if opens else Markup("")
    toc = tuple(navigation.sections(sections) if sections else navigation.headings(shown))
    table = renderer.build.tables.get(kind.name)
    toc += tuple(table.toc()) if table else ()
    return model.PageInfo(
        kind=kind.name,
        title=shown.label,
        title_html=title_html,
        title_state=shown.title_state,
        lede=lede,
        lede_text=prose.plain(shown.lede),
        lede_state=shown.lede_state,
        part=part,
        crumbs=crumbs,
        url=renderer.nav.here,
        source_path=renderer.item.source,
        source_url=renderer.source_url(1),
        prev=before,
        next=after,
        alternates=tuple(renderer.nav.alternates()),
        toc=toc,
        outline=navigation.outline(toc) if sections else (),
        run=renderer.item.run if isinstance(renderer.item, Chapter) else None,
        has_math=any('class="katex' in html for html in written),
        faces=tuple(name for name, used in _MATH_FACES.items() if any(used.search(html) for html in seen))
        + ((_ITALIC,) if not renderer.language.cjk and any("<em>" in html for html in words) else ()),
        has_depth=any(each.fold for each in sections),
        has_names=_NAME in body or any(_NAME in html for each in sections for html in _code(each)),
        has_figures=bool(renderer.figures_shown),
        needs=(*renderer.needed, *(("symbols",) if renderer.symbols.used else ())),
        figure=figure,
        arranged='class="opening"' in body,
        forward=forward(renderer) if kind.name == "forward" else None,
        lesson=lesson,
        original=_original(renderer) if kind.in_blocks and not shown.original else None,
    )


def _original(renderer: PageRenderer) -> model.Alternate | None:
    """The page in the language that it was written in, if this is a translation of it."""
    if renderer.shown.original:
        return None
    source = renderer.config.source_language
    others = (each for each in renderer.nav.alternates() if not each.current)
    return next((each for each in others if each.code == source), None)


def forward(renderer: PageRenderer) -> model.Link:
    """To the page that went from this address."""
    lead = links.leading(renderer.build.leads, renderer.item.output)[""]
    label, lang = renderer.edition.label(lead.output)
    return model.Link(label, renderer.nav.to(lead.output), lang=lang)


def moved(renderer: PageRenderer) -> Iterator[model.Moved]:
    """To the sections that went from this address."""
    for old, lead in links.departed(renderer.build.leads, renderer.shown.source).items():
        place = f"#{fragment(lead.id)}" if lead.id else ""
        yield model.Moved(old, f"{renderer.nav.to(lead.output)}{place}")


# ## The page of a lab
#
# > Where its notebook opens, which lesson it belongs to, and which run its outputs are from.
#
# The notebooks are files of the repository, one for each language, which `sidelit lab` makes. The site has
# the student's; the one with the solutions stays in the repository.


def lab_head(renderer: PageRenderer, item: Prose) -> model.LabHead:
    """What stands at the head of a lab beside what every lesson says."""
    config, lang = renderer.config, renderer.shown.lang
    public, path = config.public, cells.student_path(config, item, lang)
    known = (("Colab", public.colab_url), ("Jupyter", public.jupyter_url))
    opens = ((name, fill(pattern, renderer.build.origin, path)) for name, pattern in known)
    return model.LabHead(
        lesson=_lesson_of_lab(renderer, item),
        notebook=renderer.nav.to(_place(item)),
        places=tuple((name, address) for name, address in opens if address),
        teachers=fill(public.source_url, renderer.build.origin, cells.teacher_path(config, item, lang)),
        recording=renderer.run.recording,
    )


def _lesson_of_lab(renderer: PageRenderer, item: Prose) -> model.Link | None:
    """To the lesson that the lab names, if it names one."""
    page = renderer.shown.source
    if not page.lesson:
        return None
    lessons = {each.stem: each for each in renderer.config.course.lessons}
    if page.lesson not in lessons:
        what, hint = f"there is no lesson {page.lesson!r}", f"there is {', '.join(lessons) or 'none'}"
        renderer.build.report(SidelitError(what, path=item.source, line=page.lesson_line, hint=hint))
        return None
    output = lessons[page.lesson].output
    label, lang = renderer.edition.label(output)
    return model.Link(label, renderer.nav.to(output), lang=lang)


def _place(item: Prose) -> str:
    return item.output.removesuffix(".html") + ".ipynb"


def lab_files(config: Config, report: Callable[[SidelitError], None]) -> dict[str, bytes]:
    """The students' notebooks, by where they lie in the site; `report` is told of those that nobody made."""
    found: dict[str, bytes] = {}
    for item in config.labs.lessons:
        for lang in config.languages:
            path = cells.student_path(config, item, lang)
            try:
                found[navigation.address(config, _place(item), lang)] = assets.data(config.project / path)
            except OSError:
                what = f"the notebook {path} is not there"
                report(SidelitError(what, path=item.source, line=1, hint="run `sidelit lab`"))
    return found


# ## The rows of a page's notation
#
# > A page ends with what its symbols mean: its own, and those of what it shows of other pages.
#
# A lesson shows sections of chapters, and each symbol in them is explained once, in the lesson's language.


def notation_rows(renderer: PageRenderer) -> Iterator[Markup]:
    """The rows of the notation that belongs at the end of a page: its own, and what it has taken."""
    symbols = renderer.symbols
    if not symbols.used:
        return
    yield _of(renderer, renderer.shown, symbols.own, every=True)
    for there, marker in tuple(symbols.taken()):
        yield _of(renderer.beside(there), there, marker)


def _of(renderer: PageRenderer, there: Page, marker: Marker, every: bool = False) -> Markup:
    """The rows of a page's notation, in the language of this page, that have no row here yet."""
    tokens = [token for words in there.words for token in words.tokens]
    found = []
    for row in directives.take(tokens, marking.KIND)[1]:
        keys = {marker.key_of(symbol) for symbol in marking.declared(row)}
        if every or (keys & marker.used) - renderer.symbols.listed:
            found.append(row)
        renderer.symbols.listed |= keys
    table = renderer.html(directives.listed(found)) if found else ""
    return Markup(table.partition("<tbody>")[2].partition("</tbody>")[0])


# ## Putting a page together
#
# > Words, code, links and the way through the book meet in one record, the page's view.
#
# Every piece is made by the stage that knows how; this one decides only what goes where. A mistake in one
# section does not hide the mistakes in the next: they are collected, so that one build tells an author all of
# them.


def view(build: BuildContext, shown: Page) -> model.View:
    """Assemble one page in one language. Mistakes go to `build.report`; what they spoil is left out."""
    renderer = PageRenderer(build, shown)
    item = shown.source.item
    body, rows, lesson = "", Markup(""), None
    sections: tuple[model.SectionView, ...] = ()
    if isinstance(item, Prose):
        tokens: Sequence[Token] = [token for words in shown.words for token in words.tokens]
        if item.lesson:
            lesson, tokens = _lesson(renderer, item, tokens)
        tokens, _ = directives.parted(tokens, marking.KIND)
        body = renderer.html(tokens, heading_ids=True)
        rows = Markup("").join(notation_rows(renderer))
    else:
        sections = tuple(page_renderer.sections(renderer))
    return model.View(
        lang=shown.lang,
        html_lang=renderer.language.tag,
        language=renderer.language,
        source_lang=shown.source_lang,
        root=renderer.nav.root,
        site=site_head(build, renderer.edition, renderer.nav),
        page=info(renderer, sections, body, lesson),
        foot=foot(build, shown),
        meta=metadata.meta_of(build.cited, shown),
        sections=sections,
        moved=tuple(moved(renderer)),
        body=Markup(body),
        symbol_rows=rows,
        entries=tuple(_entries(renderer)),
    )


def _entries(renderer: PageRenderer) -> Iterable[object]:
    """The rows of the table that the page shows, if it shows one."""
    build = renderer.build
    table = build.tables.get(renderer.item.kind)
    around = Around(renderer.edition, renderer.nav.to, partial(_see, renderer), build.uses)
    return table.entries(around) if table else ()


def _see(renderer: PageRenderer, href: str, path: str, line: int) -> model.Link:
    """A link of a row; `path` and `line` are the row's. A link that leads nowhere is reported there."""
    index = renderer.build.index
    try:
        address = index.resolve(href, renderer.target, line, up=renderer.nav.language_root)
        there = index.page(href.partition("#")[0], renderer.target, line)
        if there is None:
            raise SidelitError(f"the link {href!r} leads to no page of the site")
    except SidelitError as error:
        renderer.build.report(SidelitError(error.what, path=path, line=line, hint=error.hint))
        return model.Link(href, None)
    label, lang = renderer.edition.label(there.output)
    return model.Link(label, address, lang=lang)


def _lesson(
    renderer: PageRenderer, item: Prose, tokens: Sequence[Token]
) -> tuple[LessonHead, Sequence[Token]]:
    """The head of a lesson, and the text below it."""
    head = content.split(tokens, item.source)
    needs, *aims = (Markup(renderer.html(words)) for words in (head.needs, *head.aims))
    lab = lab_head(renderer, item) if item.kind == "lab" else None
    labs = renderer.nav.labs_of(item)
    return LessonHead(item.name, item.number, head.minutes, needs, tuple(aims), lab, labs), head.rest
