"""# A page, as its template sees it

> Everything a template may print is a field of one of these records.

The records hold finished pieces: safe HTML is `Markup`, every other string is escaped by Jinja2, and every address
is relative to the page that carries it, so that a site works from any folder and from a disk. A template decides
how a page looks and nothing else.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from sidelit import assets
from sidelit.config import read_toml
from sidelit.errors import SidelitError

HTML_LANGUAGES = {"zh": "zh-Hans"}


@dataclass(frozen=True, slots=True)
class Link:
    """A labelled address; `lang` is set where the label is not in the page's language."""

    label: str
    url: str | None
    current: bool = False
    lang: str | None = None


@dataclass(frozen=True, slots=True)
class NavGroup:
    """One part in the table of contents of the site."""

    label: str
    number: str
    items: tuple[Link, ...]
    lang: str | None = None


@dataclass(frozen=True, slots=True)
class Alternate:
    """A page or a section in one language."""

    code: str
    name: str
    html_lang: str
    url: str
    current: bool = False


@dataclass(frozen=True, slots=True)
class TocEntry:
    """One line of the table of contents of a page."""

    id: str
    label: str
    depth: int


@dataclass(frozen=True, slots=True)
class CodeLine:
    """One line of code under its number in the file."""

    n: int
    html: Markup


@dataclass(frozen=True, slots=True)
class SectionView:
    """One section: commentary on one side, code on the other."""

    id: str
    aliases: tuple[str, ...]
    kind: str
    qualname: str
    depth: int
    title: Markup
    title_state: str | None
    doc: Markup
    lines: tuple[CodeLine, ...]
    state: str | None
    langs: tuple[Alternate, ...]
    source_url: str | None
    report_url: str | None
    url: str


@dataclass(frozen=True, slots=True)
class PageInfo:
    """What the head, the header and the foot of a page say about it."""

    kind: str
    title: str
    title_html: Markup
    title_state: str | None
    lede: Markup
    lede_state: str | None
    part: str
    crumbs: tuple[Link, ...]
    url: str
    source_path: str
    source_url: str | None
    prev: Link | None
    next: Link | None
    alternates: tuple[Alternate, ...]
    toc: tuple[TocEntry, ...]
    run: str | None


@dataclass(frozen=True, slots=True)
class SiteInfo:
    """What is the same on every page of one language."""

    title: str
    tagline: str
    version: str | None
    repository: str | None
    nav: tuple[NavGroup, ...]
    home: str


@dataclass(frozen=True, slots=True)
class Foot:
    """Where the page comes from, and where to say that it is wrong."""

    version: str | None
    commit: str | None
    commit_url: str | None
    date: str | None
    torch: str | None
    run: str | None
    report_url: str | None


@dataclass(frozen=True, slots=True)
class View:
    """A whole page, ready for `render`."""

    lang: str
    html_lang: str
    root: str
    site: SiteInfo
    page: PageInfo
    foot: Foot
    sections: tuple[SectionView, ...] = ()
    body: Markup = Markup("")


def render(view: View) -> str:
    """Fill the template of the page's kind.

    Raises `SidelitError` at the template's line when the template asks for something that does not exist.
    """
    context: dict[str, Any] = {field.name: getattr(view, field.name) for field in fields(view)}
    context["ui"] = interface(view.lang)
    context["asset"] = _asset_address(view.root)
    try:
        return _environment().get_template(f"{view.page.kind}.html").render(context)
    except jinja2.TemplateSyntaxError as error:
        raise SidelitError(f"not a valid template: {error.message}", path=error.filename, line=error.lineno) from None
    except jinja2.TemplateError as error:
        name, line = _template_line(error)
        raise SidelitError(f"the template fails: {error}", path=name, line=line) from None


@cache
def interface(lang: str) -> dict[str, str]:
    """The words of the interface in one language, the same keys as in English."""
    words = _words(lang)
    missing = sorted(set(_words("en")) - set(words))
    if missing:
        raise SidelitError(f"the word {missing[0]!r} is missing", path=f"templates/ui/{lang}.toml", line=1)
    return words


def word(lang: str, key: str, **values: str) -> str:
    """One word of the interface with its blanks filled."""
    words = interface(lang)
    if key not in words:
        raise SidelitError(f"the word {key!r} is missing", path=f"templates/ui/{lang}.toml", line=1)
    return words[key].format(**values)


def html_language(lang: str) -> str:
    """The BCP 47 tag of a language of the site: glyphs and spacing hang on it."""
    return HTML_LANGUAGES.get(lang, lang)


def relative(target: str, page: str) -> str:
    """The address of one file of the site as seen from a page of it."""
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


def _words(lang: str) -> dict[str, str]:
    path = assets.templates_folder() / "ui" / f"{lang}.toml"
    return {key: str(value) for key, value in read_toml(path, f"templates/ui/{lang}.toml")["ui"].items()}


def _asset_address(root: str) -> Callable[[str], str]:
    known = {name for name, _ in assets.asset_files()}

    def asset(name: str) -> str:
        if name not in known:
            raise jinja2.TemplateRuntimeError(f"there is no file assets/{name}")
        return f"{root}assets/{name}"

    return asset


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(assets.templates_folder()),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _template_line(error: BaseException) -> tuple[str | None, int | None]:
    """The deepest template line in a traceback: Jinja2 rewrites frames to point at its templates."""
    folder, place = assets.templates_folder(), (None, None)
    trace = error.__traceback__
    while trace is not None:
        name = Path(trace.tb_frame.f_code.co_filename)
        if name.is_relative_to(folder):
            place = (f"templates/{name.relative_to(folder).as_posix()}", trace.tb_lineno)  # type: ignore[assignment]
        trace = trace.tb_next
    return place
