"""# What stands around the text of a page

> The title, the lede, the ways to other pages, and what else the frame of a page has to know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from sidelit.breaks import breakable
from sidelit.config import Chapter
from sidelit.site import forwarding, lesson_views, link_views, views, ways
from sidelit.site.desk import Desk
from sidelit.site.links import fragment
from sidelit.text import prose

# The kinds of pages whose words stand one block below the other.
_IN_BLOCKS = ("chapter", "lesson", "prose")
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


def _code(section: views.SectionView) -> Iterator[str]:
    imports = section.imports.lines if section.imports else ()
    return (line.html for line in (*section.lines, *imports))


def info(
    desk: Desk,
    kind: str,
    sections: Sequence[views.SectionView],
    body: str,
    lesson: lesson_views.LessonHead | None = None,
) -> views.PageInfo:
    """The record of what stands around the text of the page."""
    shown, part = desk.shown, desk.ways.part()
    before, after = desk.ways.neighbours()
    crumbs = ((link_views.Link(part, None),) if part else ()) + (
        link_views.Link(shown.label, None, lang=shown.label_lang),
    )
    title_html = desk.inline(shown.title, "title") or breakable(shown.label)
    lede = desk.inline(shown.lede, "lede")
    folds = [each.fold.words for each in sections if each.fold]
    parts = (part for each in sections for part in (each.title, each.doc))
    above = (lesson.needs, *lesson.aims) if lesson else ()
    written = (body, title_html, lede, *above, *folds, *parts)
    unfolded = [each for each in sections if not each.fold]
    words = [_SHUT.sub("", html) for html in (body, lede, *(each.doc for each in unfolded))]
    seen = (*words, title_html, *above, *folds, *(each.title for each in unfolded))
    text = shown.text
    opens = text.pieces[0] if text.pieces and text.pieces[0].kind == "module" else None
    figure = desk.figure_of(opens) if opens else Markup("")
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
        url=desk.ways.here,
        source_path=desk.item.source,
        source_url=desk.source_url(1),
        prev=before,
        next=after,
        alternates=tuple(desk.ways.alternates()),
        toc=tuple(ways.sections(sections) if sections else ways.headings(shown)),
        run=desk.item.run if isinstance(desk.item, Chapter) else None,
        has_math=any('class="katex' in html for html in written),
        faces=tuple(name for name, used in _MATH_FACES.items() if any(used.search(html) for html in seen))
        + ((_ITALIC,) if not desk.language.cjk and any("<em>" in html for html in words) else ()),
        has_depth=any(each.fold for each in sections),
        has_names=_NAME in body or any(_NAME in html for each in sections for html in _code(each)),
        has_figures=bool(desk.figures_shown),
        needs=(*desk.needed, *(("symbols",) if desk.symbols.used else ())),
        figure=figure,
        arranged=kind == "home" and 'class="opening"' in body,
        forward=forward(desk) if kind == "forward" else None,
        lesson=lesson,
        original=_original(desk) if kind in _IN_BLOCKS and not shown.original else None,
    )


def _original(desk: Desk) -> link_views.Alternate | None:
    """The page in the language that it was written in, if this is a translation of it."""
    if desk.shown.original:
        return None
    source = desk.config.source_language
    return next((each for each in desk.ways.alternates() if each.code == source and not each.current), None)


def forward(desk: Desk) -> link_views.Link:
    """To the page that went from this address."""
    lead = desk.press.leads[desk.item.output][""]
    other = desk.edition.pages[lead.output]
    return link_views.Link(other.label, desk.ways.to(lead.output), lang=other.label_lang)


def moved(desk: Desk) -> Iterator[views.Moved]:
    """To the sections that went from this address."""
    for old, lead in forwarding.departed(desk.press.leads, desk.shown.text).items():
        yield views.Moved(old, f"{desk.ways.to(lead.output)}#{fragment(lead.id)}")
