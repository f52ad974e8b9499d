"""# What a page tells to programs

> Search engines, reference managers and networks read the head of a page. Each of them asks in its own words.

All of it needs the public address, so a site without one says nothing here, and nothing on its pages points
anywhere else. The picture of a page is the card that `sidelit cards` drew of it, or that of the home page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

from markupsafe import Markup

from sidelit.cite.authors import Author
from sidelit.config import Config, Lesson
from sidelit.site import citation, feed, ways
from sidelit.site.edition import Page
from sidelit.site.statements import Meta

CARDS = "cards"
# What networks cut a picture to: all cards have this size, in pixels.
CARD_SIZE = (1200, 630)


def of_page(project: citation.Project | None, shown: Page) -> Meta | None:
    """The head of a page for programs; `None` where the site has no public address."""
    if project is None or not project.config.public.url or citation.forwards(shown):
        return None
    # A page that does not stand in this language is, to the world, the one that it shows.
    here = address(project.config, shown, project.config.source_language if shown.original else shown.lang)
    return Meta(
        canonical=here,
        alternates=tuple(alternates(project.config, shown)),
        feed=f"{project.config.public.url}{feed.NAME}" if project.releases else "",
        properties=tuple(_properties(project, shown, here)),
        names=tuple(_names(project, shown)),
        data=_data(project, shown, here),
    )


def address(config: Config, shown: Page, lang: str) -> str:
    """The public address of a page in a language: that of its newest release, if it has the page."""
    public, name = config.public, ways.address(config, shown.text.item.output, lang)
    return f"{public.url if name in public.newest else public.here}{quote(name)}"


def card(config: Config, output: str) -> str | None:
    """The card of a page, from the folder of the site: its own, or else that of the home page."""
    names = (f"{name.removesuffix('.html')}.png" for name in (output, config.home))
    return next((f"{CARDS}/{name}" for name in names if (config.folder / CARDS / name).is_file()), None)


def alternates(config: Config, shown: Page) -> Iterator[tuple[str, str]]:
    """The addresses of a page in every language that it stands in, and that for readers of any other."""
    for lang in config.written_in(shown.text.item):
        yield config.language(lang).tag, address(config, shown, lang)
    yield "x-default", address(config, shown, config.source_language)


def _properties(project: citation.Project, shown: Page, here: str) -> Iterator[tuple[str, str]]:
    """What networks show of a page that somebody links to."""
    config = project.config
    yield "og:type", "website" if shown.text.item.output == config.home else "article"
    yield "og:site_name", config.title
    yield "og:title", shown.label
    if summary := shown.summary or config.tagline:
        yield "og:description", summary
    yield "og:url", here
    if picture := card(config, shown.text.item.output):
        yield "og:image", f"{config.public.here}{quote(picture)}"
        for side, size in zip(("width", "height"), CARD_SIZE, strict=True):
            yield f"og:image:{side}", str(size)
        yield "og:image:alt", f"{config.title}: {shown.label}"


def _names(project: citation.Project, shown: Page) -> Iterator[tuple[str, str]]:
    """What reference managers and Scholar read; the first tag is what Twitter's cards want beside `og:`."""
    said = citation.record(project, shown)
    yield "twitter:card", "summary_large_image" if card(project.config, shown.text.item.output) else "summary"
    yield "citation_title", said.page
    for author in said.authors:
        yield "citation_author", f"{author.family}, {author.given}" if author.given else author.name
    yield "citation_inbook_title", said.book
    if said.date:
        yield "citation_publication_date", said.date.replace("-", "/")
    if said.doi:
        yield "citation_doi", said.doi
    yield "citation_language", said.language
    yield "citation_public_url", said.url
    yield "citation_fulltext_html_url", said.url


def _data(project: citation.Project, shown: Page, here: str) -> Markup:
    """The page as schema.org describes it: data, which no browser runs."""
    config = project.config
    said = citation.record(project, shown)
    home = f"{config.public.here}{quote(ways.address(config, config.home, shown.lang))}"
    values: dict[str, object] = {
        "@context": "https://schema.org",
        "@type": "LearningResource",
        "name": said.page,
        "description": shown.summary or config.tagline,
        "url": here,
        "inLanguage": said.language,
        "learningResourceType": _kind(shown),
        "timeRequired": f"PT{shown.text.minutes}M" if shown.text.minutes else "",
        "position": shown.text.number,
        "author": [_author(author) for author in said.authors],
        "isPartOf": {"@type": "Book", "name": config.title, "url": home},
        "version": said.version,
        "dateModified": said.date,
        "isAccessibleForFree": True,
    }
    text = json.dumps({name: value for name, value in values.items() if value}, ensure_ascii=False)
    # Nothing in it may end the element that it stands in.
    return Markup(text.replace("<", "\\u003c"))


def _kind(shown: Page) -> str:
    if isinstance(shown.text.item, Lesson):
        return "lesson"
    return "text" if shown.text.prose else "annotated source code"


def _author(author: Author) -> dict[str, str]:
    if not author.family:
        return {"@type": "Organization", "name": author.name}
    said = {"@type": "Person", "name": author.name, "familyName": author.family, "givenName": author.given}
    return {name: value for name, value in said.items() if value}
