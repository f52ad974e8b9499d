"""# The files beside the pages

> A page that is not there, a list of those that are, the releases, and the pictures that networks show.

All of them need the public address; without one there are none. Of a site with several versions, only the
newest one has more than pictures: programs need no list of pages that are out of date.
"""

from __future__ import annotations

from urllib.parse import urlsplit
from xml.etree import ElementTree

from sidelit import reading
from sidelit.site import feed, meta, page, ways
from sidelit.site.citation import Project
from sidelit.site.press import Press

NOT_FOUND = "404.html"
_SITEMAP = "http://www.sitemaps.org/schemas/sitemap/0.9"
_XHTML = "http://www.w3.org/1999/xhtml"


def files(press: Press, project: Project) -> dict[str, bytes]:
    """The files of a site that are no pages of its text, by their names."""
    config = press.config
    if not config.public.url:
        return {}
    made: dict[str, bytes] = {}
    if not config.public.base:
        made = {NOT_FOUND: _not_found(press), "sitemap.xml": _sitemap(press)}
        if project.releases:
            made[feed.NAME] = feed.atom(config, project.credits, project.releases)
    for path in sorted((config.folder / meta.CARDS).rglob("*.png")):
        made[f"{meta.CARDS}/{path.relative_to(config.folder / meta.CARDS).as_posix()}"] = reading.data(path)
    return made


def _not_found(press: Press) -> bytes:
    """What a server shows for an address that leads nowhere, whatever its depth.

    So its addresses begin at the root of the server, and the public address tells the path from there.
    """
    config = press.config
    root = urlsplit(config.public.here).path
    languages = [config.language(code) for code in config.languages]
    homes = [f"{root}{ways.address(config, config.home, code)}" for code in config.languages]
    values = {"languages": list(zip(languages, homes, strict=True)), "root": root, "title": config.title}
    return page.fragment(NOT_FOUND, languages[0], press.look, values).encode()


def _sitemap(press: Press) -> bytes:
    """Every page in every language, each with where it is in the others."""
    config = press.config
    top = ElementTree.Element("urlset", {"xmlns": _SITEMAP, "xmlns:xhtml": _XHTML})
    for lang in config.languages:
        pages = press.editions[lang].pages.values()
        for shown in (each for each in pages if not each.original):
            entry = ElementTree.SubElement(top, "url")
            ElementTree.SubElement(entry, "loc").text = meta.address(config, shown, lang)
            for tag, other in meta.alternates(config, shown):
                link = {"rel": "alternate", "hreflang": tag, "href": other}
                ElementTree.SubElement(entry, "xhtml:link", link)
    return feed.written(top)
