"""# What a template may print

> Everything on a page is a field of one of these records, or of one that they hold.

The records hold finished pieces: safe HTML is `Markup`, every other string is escaped by Jinja2, and every
address is relative to the page that carries it, so that a site works from any folder and from a disk. A
template decides how a page looks and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from markupsafe import Markup

from sidelit.languages import Language
from sidelit.site import employed
from sidelit.site.lesson_views import LessonHead
from sidelit.site.lines import CodeLine, Imports
from sidelit.site.link_views import Alternate, Link, NavGroup, TocEntry
from sidelit.site.list_views import Term, Work
from sidelit.site.statements import Citation, Meta


@dataclass(frozen=True, slots=True)
class Fold:
    """What stands above sections that are folded together; each of them has it.

    `first` and `last` are the lines of code in it, 0 if there are none.
    """

    line: int
    words: Markup
    state: str | None
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SectionView:
    """One section: commentary on one side, code on the other."""

    id: str
    aliases: tuple[str, ...]
    kind: str
    qualname: str
    name: str
    depth: int
    title: Markup
    doc: Markup
    lines: tuple[CodeLine, ...]
    imports: Imports | None
    state: str | None
    langs: tuple[Alternate, ...]
    source_url: str | None
    report: str | None
    fold: Fold | None = None
    number: str = ""
    """Chapter and section, as `12.4`."""
    plain_title: str = ""
    """The heading without markup."""
    figure: Markup | str = ""
    """A drawing beside the words."""
    above: bool = False
    """Whether the words stand above the code and not beside it."""
    employed: employed.View = field(default_factory=employed.View)
    """Where a definition is used, and its tests."""
    newest: str = ""
    """Where it is in the newest release, on a page that is out of date."""


@dataclass(frozen=True, slots=True)
class Edition:
    """One section in one language."""

    lang: Alternate
    section: SectionView


@dataclass(frozen=True, slots=True)
class Moved:
    """A section that stood here once: its id here, and its address now."""

    id: str
    url: str


@dataclass(frozen=True, slots=True)
class PageInfo:
    """What the head, the header and the foot of a page say about it."""

    kind: str
    title: str
    title_html: Markup
    title_state: str | None
    lede: Markup
    lede_text: str
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
    has_math: bool
    faces: tuple[str, ...] = ()
    """The files of the faces that its formulas are set in, and of the italic where its words need one."""
    has_depth: bool = False
    has_names: bool = False
    """Whether names in its code lead to what they mean."""
    has_figures: bool = False
    needs: tuple[str, ...] = ()
    """What a reader can move on the page: each has a stylesheet and a script of its name."""
    figure: Markup | str = ""
    """The figure beside the opening of a chapter."""
    arranged: bool = False
    """Whether a home page says itself what stands where, and lists what it wants listed."""
    forward: Link | None = None
    """Where the page went whose old address this is."""
    lesson: LessonHead | None = None
    original: Alternate | None = None
    """The page that this one is a translation of, where its words can be shown beside it."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a page's search needs: the folders of its language's index, and of its language's pages."""

    index: str
    pages: str


@dataclass(frozen=True, slots=True)
class Versions:
    """The other versions of the site."""

    notice: str
    """Why this page is not what readers should read, as in `Public.notice`."""
    label: str | None
    """The number of this version, or for a draft that of the newest one."""
    newest: str
    """Where this page is in the newest release."""
    others: tuple[Link, ...]
    """To the home pages of the others; the draft has no label."""


@dataclass(frozen=True, slots=True)
class SiteInfo:
    """What is the same on every page of one language."""

    title: str
    tagline: str
    summary: str
    licence_note: str
    home_figure: str
    version: str | None
    repository: str | None
    nav: tuple[NavGroup, ...]
    home: str
    course: bool = False
    """Whether it has lessons, so that pages may mark those that are finished."""
    search: Search | None = None
    versions: Versions | None = None


@dataclass(frozen=True, slots=True)
class Foot:
    """Where the page comes from, and where to say that it is wrong."""

    version: str | None
    commit: str | None
    commit_url: str | None
    date: str | None
    torch: str | None
    run: str | None
    report: str | None
    proofs: tuple[Link, ...] = ()
    licence: str | None = None
    cite: Citation | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A whole page, ready for `render`."""

    lang: str
    html_lang: str
    language: Language
    source_lang: str
    """The tag of the language that the page was written in."""
    root: str
    site: SiteInfo
    page: PageInfo
    foot: Foot
    sections: tuple[SectionView, ...] = ()
    moved: tuple[Moved, ...] = ()
    body: Markup | str = ""
    symbol_rows: Markup | str = ""
    """The rows of the notation at the end of a page that does not show it where it is declared."""
    glossary: tuple[Term, ...] = ()
    entries: tuple[Work, ...] = ()
    meta: Meta | None = None
