"""# Putting a page together

> Words, code, links and the way through the book meet in one record, the page's view.

Every piece is made by the stage that knows how; this one decides only what goes where. A mistake in one
section does not hide the mistakes in the next: they are collected, so that one build tells an author all of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from markdown_it.token import Token
from markupsafe import Markup

from sidelit.config import Chapter, Lab, Lesson
from sidelit.errors import SidelitError
from sidelit.site import (
    folding,
    frame,
    lab_page,
    lesson_head,
    link_views,
    list_views,
    listing,
    meta,
    surroundings,
    symbol_rows,
    views,
)
from sidelit.site.desk import Desk
from sidelit.site.edition import Page
from sidelit.site.lesson_views import LessonHead
from sidelit.site.press import Press
from sidelit.symbols import notation
from sidelit.text import fields


def view(press: Press, shown: Page) -> views.View:
    """Assemble one page in one language. Mistakes go to `press.report`; what they spoil is left out."""
    own = kind(shown)
    desk = Desk(press, shown)
    body, rows, lesson = "", Markup(""), None
    sections: tuple[views.SectionView, ...] = ()
    if shown.text.prose:
        tokens: Sequence[Token] = [token for words in shown.words for token in words.tokens]
        if isinstance(shown.text.item, Lesson):
            lesson, tokens = _lesson(desk, shown.text.item, tokens)
        tokens, _ = fields.parted(tokens, notation.KIND)
        body = desk.html(tokens, heading_ids=True)
        rows = Markup("").join(symbol_rows.rows(desk))
    else:
        sections = tuple(folding.sections(desk))
    return views.View(
        lang=shown.lang,
        html_lang=desk.language.tag,
        language=desk.language,
        source_lang=shown.source_lang,
        root=desk.ways.root,
        site=frame.head(press, desk.edition, desk.ways),
        page=surroundings.info(desk, own, sections, body, lesson),
        foot=frame.foot(press, shown),
        meta=meta.of_page(press.cited, shown),
        sections=sections,
        moved=tuple(surroundings.moved(desk)),
        body=Markup(body),
        symbol_rows=rows,
        glossary=tuple(_glossary(desk)) if own == "glossary" else (),
        entries=listing.cited(press.works, desk.edition, desk.ways.to) if own == "bibliography" else (),
    )


def _glossary(desk: Desk) -> Iterator[list_views.Term]:
    """The rows of the glossary, with where each term is explained and where it is used."""
    press = desk.press
    for term in listing.terms(press.glossary, press.config, desk.shown.lang, partial(_see, desk)):
        yield replace(term, uses=listing.used(press.uses.get(term.name, ()), desk.edition, desk.ways.to))


def _see(desk: Desk, href: str, line: int) -> link_views.Link:
    """A link of a glossary's row; `line` is the row's. A link that leads nowhere is reported there."""
    index = desk.press.index
    try:
        address = index.resolve(href, desk.target, line, up=desk.ways.language_root)
        there = index.page(href.partition("#")[0], desk.target, line)
        if there is None:
            raise SidelitError(f"the link {href!r} leads to no page of the site")
    except SidelitError as error:
        path = desk.config.shown(desk.config.folder / "glossary.toml")
        desk.press.report(SidelitError(error.what, path=path, line=line, hint=error.hint))
        return link_views.Link(href, None)
    known = desk.edition.pages[there.output]
    return link_views.Link(known.label, address, lang=known.label_lang)


def kind(shown: Page) -> str:
    """The kind of a page, which has a template of its own."""
    item = shown.text.item
    if isinstance(item, Chapter):
        return "chapter"
    if isinstance(item, Lesson):
        return "lab" if isinstance(item, Lab) else "lesson"
    return item.append or ("home" if item.output == "index.html" else "prose")


def _lesson(desk: Desk, item: Lesson, tokens: Sequence[Token]) -> tuple[LessonHead, Sequence[Token]]:
    """The head of a lesson, and the text below it."""
    head = lesson_head.split(tokens, item.source)
    needs, *aims = (Markup(desk.html(words)) for words in (head.needs, *head.aims))
    lab = lab_page.head(desk, item) if isinstance(item, Lab) else None
    return LessonHead(item.name, item.number, head.minutes, needs, tuple(aims), lab), head.rest
