"""# The build context

> What all pages of one build share, and what one page takes from it: its template, its pictures, its figures,
> its symbols.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

import jinja2
from markdown_it.token import Token
from markupsafe import Markup, escape

from sidelit.cache.graph import LazySequence, as_one
from sidelit.catalog.catalog import Catalogs
from sidelit.config.chapters import Proof
from sidelit.config.config import Config
from sidelit.config.glossary import Glossary
from sidelit.config.languages import Language
from sidelit.config.origin import Origin
from sidelit.errors import SidelitError
from sidelit.figures.drawing import Drawing, Gallery
from sidelit.figures.words import Said
from sidelit.files.assets import BUNDLES
from sidelit.site import links, metadata, model, pictures
from sidelit.site.backlinks import Backlinks, Proved
from sidelit.site.content import SourcePage
from sidelit.site.data_pages import DataTable, Use
from sidelit.site.edition import Edition, Page
from sidelit.site.identifiers import NOBODY, Identifiers
from sidelit.site.links import Index
from sidelit.site.model import View
from sidelit.site.pictures import Pictures
from sidelit.symbols import marking
from sidelit.symbols.marking import Marker, Meaning, Notation
from sidelit.text import columns
from sidelit.text.math import Typesetter, unnumbered
from sidelit.theme import RAISED, Theme

# ## A page through its template
#
# > The records of `model` go in, a page of HTML comes out.
#
# Nothing is looked up in silence: a word, a field or an asset that does not exist stops the build at the
# template's line.


def render(view: View, theme: Theme) -> str:
    """Fill the template of the page's kind.

    Raises `SidelitError` at the template's line when the template asks for something that does not exist.
    """
    context: dict[str, Any] = {field.name: getattr(view, field.name) for field in fields(view)}
    context["asset"] = _asset_address(view.root, theme)
    return _filled(f"{view.page.kind}.html", view.language, theme, context)


def fragment(template: str, language: Language, theme: Theme, values: Mapping[str, object]) -> Markup:
    """Fill a template that is a piece of a page, as `render` fills a whole one."""
    return Markup(_filled(template, language, theme, values))


def _filled(template: str, language: Language, theme: Theme, values: Mapping[str, object]) -> str:
    """Beside the values a template has `ui`, the words of the interface, `own`, those of the project, and
    what puts words in columns.
    """
    columned = {name: getattr(columns, name) for name in ("pairs", "rows", "height", "brief")}
    try:
        return theme.environment.get_template(template).render(
            {**columned, "code_rows": model.code_rows, **values, "ui": language.words, "own": language.own}
        )
    except RAISED as error:
        raise theme.refused(error) from None


# What the templates of all kinds of pages extend and include.
_COMMON = ("base.html", "macros.html", "foot.html")


def prepare(kinds: Iterable[str], theme: Theme) -> None:
    """Read the templates of some kinds of pages before the work is shared, so that each is read once.

    Raises `SidelitError` where one is not valid.
    """
    try:
        for name in (*_COMMON, *(f"{kind}.html" for kind in kinds)):
            theme.environment.get_template(name)
    except RAISED as error:
        raise theme.refused(error) from None


def _asset_address(root: str, theme: Theme) -> Callable[[str], str]:
    def asset(name: str) -> str:
        if name not in theme.assets and name not in BUNDLES:
            raise jinja2.TemplateRuntimeError(f"there is no file assets/{name}")
        return f"{root}assets/{name}"

    return asset


# ## What the pages of a build share
#
# > One record goes with every page to the place where it is put together.


# Marks a field of which pages note what they read, or that follows from files which are told of. What
# stands for the others is part of every page's key.
NOTED = "noted"
_noted = {NOTED: True}


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What all pages of one build share."""

    config: Config
    editions: Mapping[str, Edition] = field(metadata=_noted)
    index: Index = field(metadata=_noted)
    math: Typesetter = field(metadata=_noted)
    origin: Origin
    glossary: Glossary = field(default_factory=Glossary)
    uses: Mapping[str, tuple[Use, ...]] = field(default_factory=dict, metadata=_noted)
    """Where each term of the glossary is used, by its name."""
    tables: Mapping[str, DataTable] = field(default_factory=dict)
    """What pages show that is made from data, by the names of their kinds."""
    proved: Mapping[Proof, Proved] = field(default_factory=dict)
    """Where each test that a chapter names stands in its file, and what it states."""
    backlinks: Backlinks = field(default_factory=Backlinks, metadata=_noted)
    """Where each definition is used, and which tests name it."""
    leads: links.Leads = field(default_factory=dict, metadata=_noted)
    pages: Mapping[str, SourcePage] = field(default_factory=dict, metadata=_noted)
    """Every page as it was written, by its source."""
    names: Identifiers = field(default=NOBODY, metadata=_noted)
    """What the names in code mean."""
    notations: Mapping[str, Notation] = field(default_factory=dict, metadata=_noted)
    """What each page declares its symbols to mean, by its source."""
    figures: Gallery = field(default_factory=Gallery, metadata=_noted)
    cited: metadata.Project | None = None
    """What a citation names; `None` for files that are printed without their project."""
    catalogs: Catalogs | None = field(default=None, metadata=_noted)
    """The catalogues."""
    theme: Theme = field(default_factory=Theme)
    """The templates and the assets."""
    pictures: Pictures = field(default_factory=Pictures)
    """The pictures that lie beside the sources."""
    lenient: bool = False
    """Show what is wrong as it was typed and go on: for sources that were not written for this press."""
    report: Callable[[SidelitError], None] = field(default=lambda error: None, metadata=_noted)
    """Told of every mistake, in either mode."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A typesetter that marks the symbols of a page.

    It tells about what it refuses, even where the page shows it as it was typed.
    """

    build: BuildContext
    marker: marking.Marker
    numbered: bool = True

    def render(self, tex: str, *, display: bool, path: str | None, line: int | None) -> str:
        tex = tex if self.numbered else unnumbered(tex)
        try:
            html = self.build.math.render(tex, display=display, path=path, line=line)
        except SidelitError as error:
            if self.build.lenient:
                self.build.report(error)
            raise
        return self.marker.settled(tex, html, partial(self.build.math.drawn, display=display))


# ## Pictures on a page
#
# > The address of a picture from the page that shows it, and its size.


@dataclass(frozen=True, slots=True)
class ImageResolver:
    """The pictures of one text.

    :param source: the file that the text is from.
    :param root: the way from the page to the folder of the site.
    :param resolve: finds what lies among the pages.
    """

    build: BuildContext
    source: str
    root: str
    resolve: Callable[[str, int], str]

    def address(self, target: str, line: int) -> str:
        """Where a picture is, as seen from the page.

        Raises `SidelitError` if it is not there or may not be shown.
        """
        if found := self.build.pictures.find(self.source, target):
            return f"{self.root}{quote(found.output)}"
        try:
            return self.resolve(target, line)
        except SidelitError as error:
            if self.source.endswith(".py") and self.build.config.path.is_file():
                error.hint = error.hint or "name the folder where it lies in `pictures`"
            raise

    def size(self, target: str) -> tuple[int, int] | None:
        """Its width and height, if it says them. A picture lies beside the text that shows it."""
        target = unquote(target)
        if found := self.build.pictures.find(self.source, target):
            return pictures.size(found.path)
        return pictures.size((self.build.config.project / self.source).parent / target)


# ## A figure on its page
#
# > The drawing, what it claims above it, where its numbers come from and the numbers themselves below it.


ID = "figure-{}"


@dataclass(frozen=True, slots=True)
class FigureContext:
    """The page's language, the tag of that of the data, and the look of the page."""

    language: Language
    source_lang: str
    theme: Theme


def html(
    drawing: Drawing, context: FigureContext, number: int, inline: Callable[[Sequence[Token]], Markup]
) -> Markup:
    """The figure as HTML, the page's `number`th of that name; `inline` sets its title and its caption."""
    own = ID.format(drawing.name) + (f"-{number}" if number > 1 else "")
    values = {
        "id": own,
        "title": inline(drawing.title),
        "title_lang": _language(drawing.title),
        "caption": inline(drawing.caption),
        "caption_lang": _language(drawing.caption),
        "wide": _described(drawing, drawing.wide, own, "wide" if drawing.narrow else "wide only"),
        "narrow": _described(drawing, drawing.narrow, own, "narrow") if drawing.narrow else "",
        "heads": [_cell(head) for head in drawing.heads],
        "rows": [[_cell(cell) for cell in row] for row in drawing.rows],
        "recordings": drawing.recordings,
        "state": drawing.state,
        "source_lang": context.source_lang,
    }
    return fragment("figure.html", context.language, context.theme, values)


def _described(drawing: Drawing, svg: Markup, own: str, kind: str) -> Markup:
    """The drawing as an image with a name and a description, for whoever cannot see it."""
    about = f"{own}-{kind.split()[0]}"
    opening = Markup('<svg class="{}" role="img" aria-labelledby="{}" aria-describedby="{}"').format(
        kind, f"{own}-title", f"{about}-desc"
    )
    start, end = svg.index("<svg") + len("<svg"), svg.index(">") + 1
    desc = Markup('<desc id="{}">{}</desc>').format(f"{about}-desc", drawing.description)
    return opening + svg[start:end] + desc + svg[end:]


def _cell(said: Said) -> Markup:
    runs = (
        Markup("<code>{}</code>").format(run.text) if run.code else escape(run.text) for run in said.pieces
    )
    text = Markup("").join(runs)
    return Markup('<span lang="{}">{}</span>').format(said.lang, text) if said.lang else text


def _language(sentence: Sequence[Token]) -> str | None:
    return str(sentence[0].attrs["lang"]) if "lang" in sentence[0].attrs else None


# ## The symbols of a page
#
# > Which symbols a page shows, its own and those of the sections it takes from chapters, each under one key.
#
# A chapter shows its notation where it declares it. A lesson or a page of prose shows it at its end, folded,
# together with that of the sections it has taken. There $n$ may be the number of layers in one section and of
# tokens in another: where a symbol does not have the same name in both programs, it has two keys.


class Notations(Mapping[str, Notation]):
    """What each page declares its symbols to mean, by its source; it is read when a page asks for it."""

    def __init__(self, pages: Iterable[SourcePage]) -> None:
        self._pages = {
            source: LazySequence(partial(_read, page), 1, NOTATION.format(source))
            for source, page in ((page.item.source, page) for page in pages)
        }

    def __getitem__(self, source: str) -> Notation:
        return self._pages[source][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pages)

    def __len__(self) -> int:
        return len(self._pages)


# What a task notes that reads what a page declares.
NOTATION = "notation:{}"


def _read(page: SourcePage) -> tuple[Notation, ...]:
    with as_one(NOTATION.format(page.item.source)):
        key = (page.digest,) if page.digest else ()
        return page.graph.alone("notations", key, lambda: (marking.read(page.tokens),))


class Symbols:
    """The markers of one page, and of the pages that it takes sections from."""

    def __init__(self, notations: Mapping[str, Notation], shown: Page) -> None:
        self._notations = notations
        self._known: dict[str, Meaning] = {}
        self._markers: dict[str, tuple[Page, Marker]] = {}
        self.listed: set[str] = set()
        """The keys that have a row in the list."""
        self.own = self.of(shown)

    def of(self, there: Page) -> Marker:
        """The marker for what this page shows of another one, or of itself."""
        source = there.source.item.source
        if source not in self._markers:
            declared = self._notations.get(source, Notation())
            keys = {each.key: self._key(each, there) for each in declared.meanings}
            self._markers[source] = there, Marker(declared, keys)
        return self._markers[source][1]

    def _key(self, meaning: Meaning, there: Page) -> str:
        key = meaning.key
        known = self._known.setdefault(key, meaning)
        same = meaning.code or len(self._markers) == 0
        # Two texts that say the same of a symbol mean the same, though one of them has no name for it.
        if (known.code == meaning.code and same) or (known.said and known.said == meaning.said):
            return key
        apart = f"{key}--{re.sub(r'[^A-Za-z0-9]+', '-', there.source.item.name)}"
        self._known[apart] = meaning
        return apart

    @property
    def used(self) -> bool:
        """Whether the page shows any."""
        return any(marker.used for _, marker in self._markers.values())

    def taken(self) -> Iterator[tuple[Page, Marker]]:
        """The other pages whose symbols are shown, with what marks them, in their order."""
        for there, marker in self._markers.values():
            if marker is not self.own and marker.used:
                yield there, marker
