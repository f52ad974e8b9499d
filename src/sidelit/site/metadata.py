"""# Metadata of a page

> What a page tells to readers who cite it, to feeds, and to programs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from urllib.parse import quote
from xml.etree import ElementTree

from markdown_it import MarkdownIt
from markupsafe import Markup

from sidelit import citing
from sidelit.citing import Author, Credits, Place, Record
from sidelit.config.config import Config
from sidelit.config.origin import Origin, fill
from sidelit.errors import SidelitError
from sidelit.files import assets
from sidelit.site import edition, navigation, page_kinds
from sidelit.site.content import PageSection, SourcePage
from sidelit.site.edition import Page
from sidelit.site.links import fragment
from sidelit.site.model import Citation, Form, Meta
from sidelit.text import markup

# ## The feed of releases
#
# > Who wants to hear of a release subscribes to a file. It is made from the changelog that people read.
#
# A release is a heading of the second level in `CHANGELOG.md` with its version and its date, as in
# `## 1.2.0 (2026-11-23)` or `## [1.2.0] - 2026-11-23`. What has no date, as `(unreleased)`, is left out.


NAME = "feed.xml"
CHANGELOG = "CHANGELOG.md"
_ATOM = "http://www.w3.org/2005/Atom"
_RELEASE = re.compile(r"## +\[?v?(?P<version>\d[\w.+-]*)\]?.*?(?P<date>\d{4}-\d\d-\d\d)")


@dataclass(frozen=True, slots=True)
class Release:
    """A released version, the day of it, and what the changelog says of it, as Markdown."""

    version: str
    date: str
    text: str


def releases(config: Config) -> tuple[Release, ...]:
    """The releases of a project, as its changelog lists them; none without a changelog.

    Raises `SidelitError` when it cannot be read.
    """
    path = config.project / CHANGELOG
    if not path.is_file():
        return ()
    try:
        return tuple(_releases(assets.text(path)))
    except (OSError, UnicodeDecodeError):
        raise SidelitError("cannot be read: it is not UTF-8", path=CHANGELOG) from None


def atom(config: Config, credits: Credits, found: Sequence[Release]) -> bytes:
    """The feed of the releases that were `found`, at least one, in the order of the changelog.

    The configuration has a public address: each entry leads to the version that stays there.
    """
    home = config.public.url or ""
    feed = ElementTree.Element("feed", xmlns=_ATOM)
    _add(feed, "id", f"{home}{NAME}")
    _add(feed, "title", config.title)
    _add(feed, "updated", _time(max(release.date for release in found)))
    _add(feed, "link", href=f"{home}{NAME}", rel="self")
    _add(feed, "link", href=home)
    for author in credits.authors:
        _add(_add(feed, "author"), "name", author.name)
    for release in found:
        entry = _add(feed, "entry")
        _add(entry, "id", f"{home}v{release.version}/")
        _add(entry, "title", f"{config.title} {release.version}")
        _add(entry, "updated", _time(release.date))
        _add(entry, "link", href=f"{home}v{release.version}/")
        # Without HTML of its own: the changelog is words.
        words = MarkdownIt("commonmark", {"html": False}).render(release.text)
        _add(entry, "content", words, type="html")
    return written(feed)


def written(document: ElementTree.Element) -> bytes:
    """A document as a file: indented, in UTF-8."""
    ElementTree.indent(document)
    text: str = ElementTree.tostring(document, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _releases(text: str) -> Iterator[Release]:
    for part in re.split(r"(?m)^(?=## )", text)[1:]:
        heading, _, rest = part.partition("\n")
        if found := _RELEASE.match(heading):
            yield Release(found["version"], found["date"], rest.strip())


def _add(parent: ElementTree.Element, name: str, text: str = "", **attributes: str) -> ElementTree.Element:
    made = ElementTree.SubElement(parent, name, attributes)
    made.text = text or None
    return made


def _time(date: str) -> str:
    return f"{date}T00:00:00Z"


# ## Citing a section
#
# > A section has a name that lasts, so a paper can refer to the very lines it means.
#
# `sidelit cite` and the box on a page say the same, because both are written from the same record by the same
# forms. A page carries them twice: once for itself, and once with blanks, which a script fills in for the
# section whose "cite" was pressed. What stands in a blank is told by `BLANKS`.


# Signs that hardly any text has, for the id, the number, the label and the address of a section.
BLANKS = Place("◰", "◱", "◲")
ADDRESS = "◳"


@dataclass(frozen=True, slots=True)
class Project:
    """What is cited: a site, the state of it, and who wrote it."""

    config: Config
    origin: Origin
    credits: Credits
    releases: tuple[Release, ...] = ()


def find(pages: Sequence[SourcePage], wanted: str) -> tuple[SourcePage, PageSection | None]:
    """The section `wanted`: an id or a number, or `PAGE#ID` where several pages have that id.

    What a section or its page was called before leads to it too, and the name of a page to the whole of it.

    Raises `SidelitError` when no section or more than one has this name.
    """
    found = list(_matches(pages, wanted)) or [(page, None) for page in pages if wanted in _answers_to(page)]
    if not found:
        hint = "`sidelit sections FILE` lists the ids of a file"
        raise SidelitError(f"there is no section {wanted!r}", hint=hint)
    if len(found) > 1:
        choices = ", ".join(
            f"{page.item.name}{f'#{section.id}' if section else ''}" for page, section in found[:4]
        )
        raise SidelitError(f"several pages have a section {wanted!r}", hint=f"say which: {choices}")
    return found[0]


def record(project: Project, shown: edition.Page, section: PageSection | None = None) -> Record:
    """What is said of a page, or of one of its sections; the section that opens a page is the page.

    A section of prose is what stands under a heading.
    """
    item, origin, credits = shown.source.item, project.origin, project.credits
    place = Place(number=str(shown.source.number or ""))
    if section is None or section.kind == "module":
        section = None
    elif shown.source.prose:
        place = Place(_heading(section), "", _heading_said(shown, _heading(section)))
    else:
        (words,) = (
            words for each, words in zip(shown.source.sections, shown.words, strict=True) if each is section
        )
        place = Place(section.id, section.number, markup.plain(words.title))
    return Record(
        book=project.config.title,
        page=shown.label,
        name=item.name,
        place=place,
        source=item.source,
        authors=credits.authors,
        language=shown.source_lang if shown.original else project.config.language(shown.lang).tag,
        version=origin.version or credits.version,
        commit=origin.label or "",
        date=origin.date or credits.date,
        url=_address(project, shown, place.id, section),
        doi=credits.doi,
    )


def citation_of(project: Project | None, shown: edition.Page) -> Citation | None:
    """What the box of a page says; without a project the page is nobody's to cite."""
    if project is None or not page_kinds.of(shown.source.item).cited:
        return None
    words = project.config.language(shown.lang).words
    whole = record(project, shown)
    place = replace(BLANKS, number="") if shown.source.prose else BLANKS
    blank = replace(whole, place=place, url=ADDRESS if whole.url else "")
    public = _public(project.config, shown)
    return Citation(
        url=whole.url,
        base=f"{public}#" if public else "",
        forms=tuple(_forms(whole, words)),
        blank=tuple(_forms(blank, words)),
    )


def _forms(record: Record, words: Mapping[str, str]) -> Iterator[Form]:
    for form, called in citing.FORMS.items():
        yield Form(form, called, citing.written(record, form, words))


def _address(project: Project, shown: edition.Page, anchor: str, section: PageSection | None) -> str:
    """Where a reader finds what is cited: on the site if it is public, else in the repository."""
    if public := _public(project.config, shown):
        return f"{public}#{fragment(anchor)}" if anchor else public
    # A heading of prose has no lines of its own.
    section = None if shown.source.prose else section
    line = 1 if section is None else section.lines[0][0] if section.lines else section.first_line
    pattern, source = project.config.public.source_url, shown.source.item.source
    return fill(pattern, project.origin, source, line, section.id if section else "") or ""


def _public(config: Config, shown: edition.Page) -> str:
    """The address at which this text stays: that of the release, if it is one."""
    output = navigation.address(config, shown.source.item.output, shown.lang)
    return f"{config.public.lasting}{quote(output)}" if config.public.lasting else ""


def _matches(pages: Sequence[SourcePage], wanted: str) -> Iterator[tuple[SourcePage, PageSection | None]]:
    place, _, name = wanted.rpartition("#")
    for page in pages:
        here = not place or place in _answers_to(page)
        for section in page.sections:
            names = _headings(section) if page.prose else (section.id, *section.aliases)
            if (here and name and name in names) or wanted == section.number or _was_at(section, place, name):
                yield page, section


def _heading(section: PageSection) -> str:
    """The id of the heading that a stretch of prose stands under."""
    return next(iter(_headings(section)), "")


def _headings(section: PageSection) -> tuple[str, ...]:
    """That id, and the one that it had before."""
    first = section.tokens[0] if section.tokens else None
    return tuple(markup.names_of(first)) if first is not None and first.tag in ("h2", "h3") else ()


def _heading_said(shown: edition.Page, section: str) -> str:
    """A heading of a page in its language."""
    return next((each.label for each in navigation.headings(shown) if each.id == section), "")


def _answers_to(page: SourcePage) -> set[str]:
    """What a page may be called."""
    item = page.item
    path, output = PurePosixPath(item.source), item.output
    names = {item.name, item.source, output, output.removesuffix(".html"), path.name, path.stem}
    return names | {former.name for former in item.former if former.told}


def _was_at(section: PageSection, page: str, name: str) -> bool:
    """Whether a section stood on a page before, which is called by its name or by its address."""
    places = (place.rpartition("#") for place in section.places)
    called = (page, f"{page}.html", f"{page.rpartition('/')[2]}.html")
    return any(old == name and address in called for address, _, old in places)


# ## What a page tells to programs
#
# > Search engines, reference managers and networks read the head of a page. Each of them asks in its own
# > words.
#
# All of it needs the public address, so a site without one says nothing here, and nothing on its pages points
# anywhere else. The picture of a page is the card that `sidelit cards` drew of it, or that of the home page.


CARDS = "cards"
# What networks cut a picture to: all cards have this size, in pixels.
CARD_SIZE = (1200, 630)


def meta_of(project: Project | None, shown: Page) -> Meta | None:
    """The head of a page for programs; `None` where the site has no public address."""
    if not (project and project.config.public.url and page_kinds.of(shown.source.item).described):
        return None
    # A page that does not stand in this language is, to the world, the one that it shows.
    here = address(project.config, shown, project.config.source_language if shown.original else shown.lang)
    return Meta(
        canonical=here,
        alternates=tuple(alternates(project.config, shown)),
        feed=f"{project.config.public.url}{NAME}" if project.releases else "",
        properties=tuple(_properties(project, shown, here)),
        names=tuple(_named(project, shown)),
        data=_data(project, shown, here),
    )


def address(config: Config, shown: Page, lang: str) -> str:
    """The public address of a page in a language: that of its newest release, if it has the page."""
    public, name = config.public, navigation.address(config, shown.source.item.output, lang)
    return f"{public.url if name in public.newest else public.here}{quote(name)}"


def card(config: Config, output: str) -> str | None:
    """The card of a page, from the folder of the site: its own, or else that of the home page."""
    names = (f"{name.removesuffix('.html')}.png" for name in (output, config.home))
    return next((f"{CARDS}/{name}" for name in names if (config.folder / CARDS / name).is_file()), None)


def alternates(config: Config, shown: Page) -> Iterator[tuple[str, str]]:
    """The addresses of a page in every language that it stands in, and that for readers of any other."""
    for lang in config.written_in(shown.source.item):
        yield config.language(lang).tag, address(config, shown, lang)
    yield "x-default", address(config, shown, config.source_language)


def _properties(project: Project, shown: Page, here: str) -> Iterator[tuple[str, str]]:
    """What networks show of a page that somebody links to."""
    config = project.config
    yield "og:type", "website" if shown.source.item.output == config.home else "article"
    yield "og:site_name", config.title
    yield "og:title", shown.label
    if summary := shown.summary or config.tagline:
        yield "og:description", summary
    yield "og:url", here
    if picture := card(config, shown.source.item.output):
        yield "og:image", f"{config.public.here}{quote(picture)}"
        for side, size in zip(("width", "height"), CARD_SIZE, strict=True):
            yield f"og:image:{side}", str(size)
        yield "og:image:alt", f"{config.title}: {shown.label}"


def _named(project: Project, shown: Page) -> Iterator[tuple[str, str]]:
    """What reference managers and Scholar read; the first tag is what Twitter's cards want beside `og:`."""
    said = record(project, shown)
    yield (
        "twitter:card",
        "summary_large_image" if card(project.config, shown.source.item.output) else "summary",
    )
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


def _data(project: Project, shown: Page, here: str) -> Markup:
    """The page as schema.org describes it: data, which no browser runs."""
    config = project.config
    said = record(project, shown)
    home = f"{config.public.here}{quote(navigation.address(config, config.home, shown.lang))}"
    values: dict[str, object] = {
        "@context": "https://schema.org",
        "@type": "LearningResource",
        "name": said.page,
        "description": shown.summary or config.tagline,
        "url": here,
        "inLanguage": said.language,
        "learningResourceType": page_kinds.of(shown.source.item).resource,
        "timeRequired": f"PT{shown.source.minutes}M" if shown.source.minutes else "",
        "position": shown.source.number,
        "author": [_author(author) for author in said.authors],
        "isPartOf": {"@type": "Book", "name": config.title, "url": home},
        "version": said.version,
        "dateModified": said.date,
        "isAccessibleForFree": True,
    }
    text = json.dumps({name: value for name, value in values.items() if value}, ensure_ascii=False)
    # Nothing in it may end the element that it stands in.
    return Markup(text.replace("<", "\\u003c"))


def _author(author: Author) -> dict[str, str]:
    if not author.family:
        return {"@type": "Organization", "name": author.name}
    said = {"@type": "Person", "name": author.name, "familyName": author.family, "givenName": author.given}
    return {name: value for name, value in said.items() if value}
