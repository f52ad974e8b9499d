"""# What stands around a page

> The head of every page names the site, and the foot says where the page comes from and whom to tell.
"""

from __future__ import annotations

from sidelit.config import Chapter, Prose
from sidelit.origin import fill
from sidelit.site import views
from sidelit.site.edition import Edition
from sidelit.site.press import Press
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
        repository=press.config.repository,
        nav=tuple(around.nav()),
        home=around.to(press.config.home),
    )


def foot(press: Press, item: Chapter | Prose) -> views.Foot:
    """What a reader needs to trust a page, or to mend it."""
    origin = press.origin
    return views.Foot(
        version=origin.version,
        commit=origin.label,
        commit_url=fill(press.config.commit_url, origin, item.source),
        date=origin.date,
        torch=press.config.figures_torch,
        run=item.run if isinstance(item, Chapter) else None,
        report=fill(press.config.report_url, origin, item.source),
    )
