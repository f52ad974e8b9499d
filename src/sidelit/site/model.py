"""# What a template may print

> Everything on a page is a field of one of these records, or of one that they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from sidelit.cache.graph import NotedText
from sidelit.config.languages import Language
from sidelit.figures.figure import Recording

# ## Links, as a template prints them
#
# > An address with its label, alone and in the lists that a page has.


@dataclass(frozen=True, slots=True)
class Link:
    """A labelled address; `lang` is set where the label is not in the page's language."""

    label: str
    url: str | None
    current: bool = False
    lang: str | None = None
    lede: str | NotedText = ""
    name: str = ""
    number: str = ""
    minutes: int = 0
    lesson: str = ""
    """What the reader's progress is remembered under, if this leads to a lesson."""
    part: str = ""
    """The part that a way to a neighbour enters."""
    labs: tuple[Link, ...] = ()
    """The labs of a lesson."""


@dataclass(frozen=True, slots=True)
class NavGroup:
    """One part in the table of contents of the site."""

    label: str
    number: str
    items: tuple[Link, ...]
    lang: str | None = None
    question: str = ""
    question_lang: str | None = None
    groups: tuple[NavGroup, ...] = ()
    """The same items in groups, where it has some; what is in no group comes first, and has no label."""
    kind: str = ""
    """`part` or `workshop`, if it holds chapters."""
    beside: bool = False
    """Whether each of its items stands beside one of another group, as a lab does beside its lesson."""

    @property
    def current(self) -> bool:
        """Whether the page that lists it is in it."""
        return any(item.current or any(lab.current for lab in item.labs) for item in self.items)


@dataclass(frozen=True, slots=True)
class Alternate:
    """A page or a section in one language."""

    code: str
    name: str
    short: str
    """The name where there is little room."""
    html_lang: str
    url: str
    current: bool = False


@dataclass(frozen=True, slots=True)
class TocEntry:
    """One line of the table of contents of a page; `folded` if it leads into depth."""

    id: str
    label: str
    depth: int
    folded: bool = False
    number: str = ""


@dataclass(frozen=True, slots=True)
class TocGroup:
    """A line of a long table of contents, and those that stand folded below it."""

    entry: TocEntry
    below: tuple[TocEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class UsageView:
    """Where a definition is used, and which tests name it."""

    uses: tuple[Link, ...] = ()
    """To places on this page and on others; of those the name of the page stands in `part`."""
    tests: tuple[Link, ...] = ()


# ## The head of a lesson, as a template prints it
#
# > What stands above the text of a lesson and of a lab.


@dataclass(frozen=True, slots=True)
class LabHead:
    """What the head of a lab offers beside that: its lesson, and its notebook in the page's language."""

    lesson: Link | None
    notebook: str
    """Where the notebook lies in the site."""
    places: tuple[tuple[str, str], ...]
    """Where it opens to be run: names and addresses."""
    teachers: str | None
    """Where the repository has the notebook with the solutions."""
    recording: Recording | None
    """The run whose outputs the page shows."""


@dataclass(frozen=True, slots=True)
class LessonHead:
    """What the head of a lesson says about it; `key` is what progress is remembered under."""

    key: str
    number: str
    minutes: int
    needs: Markup
    aims: tuple[Markup, ...]
    lab: LabHead | None = None
    labs: tuple[Link, ...] = ()
    """The labs that belong to it."""


# ## What a page states about itself
#
# > How it is cited, and what programs read in its head.


@dataclass(frozen=True, slots=True)
class Form:
    """A citation in one form: which it is, what it is called, and its text."""

    kind: str
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Citation:
    """How to cite a page; `blank` is for a script, which fills in one of its sections."""

    url: str
    """The permanent address, empty where nobody knows it."""
    base: str
    """What the address of a section begins with; empty if its source is what is cited."""
    forms: tuple[Form, ...]
    blank: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Meta:
    """What the head of a page tells to programs; every address is absolute."""

    canonical: str
    alternates: tuple[tuple[str, str], ...]
    feed: str
    properties: tuple[tuple[str, str], ...]
    names: tuple[tuple[str, str], ...]
    data: Markup


# ## Lines of code on a page
#
# > A line keeps its number in the file wherever it is shown.


@dataclass(frozen=True, slots=True)
class CodeLine:
    """One line of code under its number in the file, and the blanks that it begins with."""

    n: int
    html: Markup
    pad: str
    ids: tuple[str, ...] = ()
    """The names of a section without words whose code begins here."""
    apart: bool = False
    """Whether that is something else than what the words beside it are about."""

    @property
    def whole(self) -> str:
        """The line with its blanks."""
        return self.pad + str(self.html)

    @property
    def step(self) -> int:
        """How far it is indented, in steps of four blanks."""
        return min((len(self.pad) + 3) // 4, 9)


def code_line(number: int, html: str) -> CodeLine:
    """A line of code from its coloured HTML."""
    text = html.lstrip(" ")
    return CodeLine(number, Markup(text), html[: len(html) - len(text)])


def code_rows(lines: Sequence[CodeLine], home: str = "") -> Markup:
    """Lines of code as HTML, each under its number; a template would take ten times as long for them.

    The number is a link that copying leaves out; the indentation is kept apart so that narrow screens may
    draw it narrower without changing what is copied.

    :param home: the address that lines of another page are from: they have no id here, and their numbers lead
        to that page.
    """
    made, above = list[str](), 0
    page = escape(home.partition("#")[0])
    for line in lines:
        n, pad = line.n, line.pad
        begins = " another" if line.apart else " begins" if line.ids and 0 < above < n - 1 else ""
        step, blanks = (f" i{line.step}", f'<span class="pad">{pad}</span>') if pad else ("", "")
        own = "" if home else f' id="line-{n}"'
        names = "".join(f'<span class="alias" id="{escape(name)}"></span>' for name in line.ids)
        number = f'<a class="num" href="{page}#line-{n}" tabindex="-1">{n}</a>'
        made.append(f'<span class="line{begins}{step}"{own}>{names}{number}{blanks}{line.html}\n</span>')
        above = n
    return Markup("".join(made))


@dataclass(frozen=True, slots=True)
class Imports:
    """The imports that a file begins with, folded: some names, how many are left out, and the lines."""

    names: str
    more: int
    lines: tuple[CodeLine, ...]


# ## What a template may print
#
# > Everything on a page is a field of one of these records, or of one that they hold.
#
# The records hold finished pieces: safe HTML is `Markup`, every other string is escaped by Jinja2, and every
# address is relative to the page that carries it, so that a site works from any folder and from a disk. A
# template decides how a page looks and nothing else.


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
    """Chapter and section, as `12.4`; empty where it stands in the block of another one."""
    plain_title: str = ""
    """The heading without markup."""
    figure: Markup | str = ""
    """A drawing beside the words."""
    above: bool = False
    """Whether the words stand above the code and not beside it."""
    backlinks: UsageView = field(default_factory=UsageView)
    """Where a definition is used, and its tests."""
    newest: str = ""
    """Where it is in the newest release, on a page that is out of date."""
    joined: tuple[SectionView, ...] = ()
    """The sections without words whose code stands at the end of this one's."""

    @property
    def defines(self) -> int:
        """How many definitions begin in its block."""
        return sum(each.kind in ("class", "function") for each in (self, *self.joined))

    @property
    def apart(self) -> bool:
        """Whether its words are not about all of its block."""
        return any(line.apart for line in self.lines)

    @property
    def employed(self) -> tuple[SectionView, ...]:
        """Those of its block that are used, or tested in other ways than the section itself."""
        unused, own = UsageView(), self.backlinks
        found = [each for each in self.joined if each.backlinks not in (unused, UsageView((), own.tests))]
        return (self, *found) if own != unused else tuple(found)


@dataclass(frozen=True, slots=True)
class TranslatedSection:
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
    outline: tuple[TocGroup, ...] = ()
    """The table of contents where it is long: the methods of a class below the class."""
    has_depth: bool = False
    has_names: bool = False
    """Whether names in its code lead to what they mean."""
    has_figures: bool = False
    needs: tuple[str, ...] = ()
    """What a reader can move on the page: each has a stylesheet and a script of its name."""
    figure: Markup | str = ""
    """The figure beside the opening of a chapter."""
    arranged: bool = False
    """Whether the text says itself what stands where, as that of a home page may."""
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
    contents: str = ""
    """The page that lists all pages; empty where there is one alone."""
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
    entries: tuple[object, ...] = ()
    """The rows of the table that a page made from data shows: terms, works or programs."""
    meta: Meta | None = None
