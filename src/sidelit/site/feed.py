"""# The feed of releases

> Who wants to hear of a release subscribes to a file. It is made from the changelog that people read.

A release is a heading of the second level in `CHANGELOG.md` with its version and its date, as in
`## 1.2.0 (2026-11-23)` or `## [1.2.0] - 2026-11-23`. What has no date, as `(unreleased)`, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from markdown_it import MarkdownIt

from sidelit import reading
from sidelit.cite.authors import Credits
from sidelit.config import Config
from sidelit.errors import SidelitError

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
        return tuple(_releases(reading.text(path)))
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
