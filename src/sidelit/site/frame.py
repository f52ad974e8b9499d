"""# What stands around a page

> The head of every page names the site, and the foot says where the page comes from and whom to tell.
"""

from __future__ import annotations

from collections.abc import Iterator

from sidelit.config import Chapter
from sidelit.origin import fill, report
from sidelit.public import DRAFT
from sidelit.site import citation, views
from sidelit.site.edition import Edition, Page
from sidelit.site.link_views import Link
from sidelit.site.press import Press
from sidelit.site.search import index
from sidelit.site.ways import Ways


def head(press: Press, edition: Edition, around: Ways) -> views.SiteInfo:
    """What is the same on every page of one language, with its addresses as one page needs them."""
    return views.SiteInfo(
        title=press.config.title,
        tagline=edition.tagline,
        summary=edition.tagline,
        licence_note=edition.licence_note,
        home_figure=press.config.home_figure,
        version=press.origin.version,
        repository=press.config.public.repository,
        nav=tuple(around.nav()),
        home=around.to(press.config.home),
        course=bool(press.config.course.lessons),
        search=_search(edition, around),
        versions=_versions(press, around),
    )


def _versions(press: Press, around: Ways) -> views.Versions | None:
    public, shown = press.config.public, around.shown
    if not public.others:
        return None
    others = (Link(other.label, f"{around.top}{other.home(shown.lang)}") for other in public.others)
    label = public.others[0].label if public.notice == DRAFT else press.origin.version
    return views.Versions(public.notice, label, around.newest(shown.text.item.output), tuple(others))


def _search(edition: Edition, around: Ways) -> views.Search | None:
    """One page needs no search: the browser has one."""
    if len(edition.pages) < 2:
        return None
    language = around.to("index.html").removesuffix("index.html")
    return views.Search(around.root + index.folder(edition.lang), language)


def foot(press: Press, shown: Page) -> views.Foot:
    """What a reader needs to trust a page, to mend it, or to cite it."""
    origin, item = press.origin, shown.text.item
    return views.Foot(
        version=origin.version,
        commit=origin.label,
        commit_url=fill(press.config.public.commit_url, origin, item.source),
        date=origin.date,
        torch=press.config.figures_torch,
        run=item.run if isinstance(item, Chapter) else None,
        report=report(press.config, origin, item.source, shown.lang),
        proofs=tuple(_proofs(press, item)) if isinstance(item, Chapter) else (),
        cite=citation.of_page(press.cited, shown),
    )


def _proofs(press: Press, item: Chapter) -> Iterator[Link]:
    """To the tests that prove a chapter."""
    for proof in item.proves:
        line = press.proved.get(proof, 1)
        yield Link(str(proof), fill(press.config.public.source_url, press.origin, proof.path, line))
