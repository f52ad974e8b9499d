"""# Drawings

> A template draws recorded numbers, once for each language, and what it drew is checked.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

import jinja2
from jinja2.sandbox import SandboxedEnvironment
from markdown_it.token import Token
from markupsafe import Markup

from sidelit import theme
from sidelit.cache import store
from sidelit.cache.graph import Graph, Task
from sidelit.catalog import catalog, sync
from sidelit.catalog.catalog import STATES, Catalogs
from sidelit.config.config import Config
from sidelit.errors import SidelitError
from sidelit.figures import pen, words
from sidelit.figures.figure import FOLDER, RECORDED, Figure, Recording
from sidelit.figures.words import BLANK, Said
from sidelit.text import markup

# ## The finished sheet
#
# > What a template drew is held to a few rules, so that every drawing follows its page.
#
# A drawing has no colour, no size of letters and no id of its own: the stylesheet of the page has them, in
# light and in dark. Every word in it comes from the catalogue. What breaks a rule is refused with the line of
# the template, or, where only the result shows it, with the piece in question.


ELEMENTS = frozenset(
    ("svg", "g", "path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "text", "tspan")
)
# What the stylesheet says, and what would be said twice on a page or run on it.
FORBIDDEN = frozenset(
    ("id", "style", "color", "font", "font-size", "font-family", "stroke", "opacity", "href")
)
_NAMESPACE = "{http://www.w3.org/2000/svg}"
_HATCH = re.compile(r"none|url\(#hatch-\d\)")


def check_literals(environment: jinja2.Environment, path: Path, shown: str) -> None:
    """Refuse words that are typed into a template: no translator would see them."""
    source = path.read_text(encoding="utf-8")
    # Expressions go and every line break stays, so that a place in the rest is a place in the file.
    kept = [
        value if kind == "data" else re.sub(r"[^\n]", "", value) for _, kind, value in environment.lex(source)
    ]
    bare = re.sub(
        r"<!--.*?-->|<[^>]*>", lambda tag: "\n" * tag[0].count("\n"), "".join(kept), flags=re.DOTALL
    )
    if found := re.search(r"[^\W\d_][^\n<]*", bare):
        line = bare.count("\n", 0, found.start()) + 1
        what, hint = f"{found[0].strip()!r} is typed into the drawing", "make it a word of the figure's table"
        raise SidelitError(what, path=shown, line=line, hint=hint)


def checked(text: str, shown: str, width: int) -> Markup:
    """The drawing as it goes on the page.

    Raises `SidelitError` for what is no drawing, or breaks a rule.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        line = text.splitlines()[error.position[0] - 1].strip()
        where = f", near {line[max(0, error.position[1] - 40) :][:80]!r}"
        raise SidelitError(f"what it draws is not well-formed{where}", path=shown, line=1) from None
    box = root.get("viewBox", "").split()
    if root.tag.removeprefix(_NAMESPACE) != "svg" or box[:3] != ["0", "0", str(width)] or len(box) != 4:
        what = f'the drawing begins with <svg viewBox="0 0 {width} HEIGHT">'
        raise SidelitError(what, path=shown, line=1, hint="{{ width }} is its width")
    for element in root.iter():
        _check(element, shown)
    return Markup(re.sub(r">\s*\n\s*<", "><", text.strip()))


def _check(element: ElementTree.Element, shown: str) -> None:
    name = element.tag.removeprefix(_NAMESPACE)
    if name not in ELEMENTS:
        raise SidelitError(f"<{name}> has no place in a drawing", path=shown, line=1)
    for key, value in element.attrib.items():
        if key in FORBIDDEN or key.startswith("on") or (key == "fill" and not _HATCH.fullmatch(value)):
            what = f'<{name} {key}="{value}"> does not follow the page'
            raise SidelitError(what, path=shown, line=1, hint="give it a class of the stylesheet")


# ## Drawing
#
# > One figure in one language: the template is filled, and what came out is checked before it goes on a page.
#
# A template calls the pen and a few functions that know the figure:
#
# | function | what it does |
# |---|---|
# | `word("key", n=…)` | a word of the figure's table in the page's language, its blanks filled |
# | `amount(number)` | a large number with the word of the language: 7.5 billion, 75億 |
# | `code(text)` | a name from the data, the same in every language |
# | `say(peak=…)` | fills the blank `{peak}` of the title, the description and the caption |
# | `row(…)` | one row of the table that is folded under the figure |
# | `holds(condition, "what it says")` | stops the build if a new recording no longer bears out a claim |
#
# So numbers come from the data alone, words from the catalogue alone, and a claim is checked at every build.


# How wide the two drawings are, in units that are pixels where the page has room.
WIDE, NARROW = 640, 340


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure in one language; `state` is the worst of its sentences, `None` if all are current."""

    name: str
    title: tuple[Token, ...]
    description: str
    caption: tuple[Token, ...]
    wide: Markup
    narrow: Markup | None
    heads: tuple[Said, ...]
    rows: tuple[tuple[Said, ...], ...]
    recordings: tuple[Recording, ...]
    state: str | None


@dataclass(slots=True)
class _Told:
    """What a template told while it was filled."""

    rows: list[tuple[Said, ...]] = field(default_factory=list)
    values: dict[str, Said] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)


# What may be the name of a file that a template includes.
_QUOTED = re.compile(r"""["']([^"'\n<>{}]{1,60})["']""")


class Easel:
    """Draws the figures of one site; `folder` holds their templates, `shown` is what messages call it."""

    def __init__(self, folder: Path, shown: str) -> None:
        self.folder, self.shown = folder, shown
        self.environment = _Environment(
            loader=jinja2.FileSystemLoader(folder),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            extensions=["jinja2.ext.do"],
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.environment.globals.update(_TOOLS)
        self._sound: set[str] = set()
        self._digests: dict[str, str] = {}

    def draw(
        self, figure: Figure, book: catalog.Catalog | None, counts: Sequence[tuple[float, str]] = ()
    ) -> Drawing:
        """Draw it in the language of a catalogue, or without one in that of its words.

        :param counts: what that language counts large numbers in.

        Raises `SidelitError` at the line of the template or of the catalogue that has to be mended.
        """
        script = _Script(figure, book, counts)
        wide, told = self._filled(figure, script, "svg", WIDE)
        narrow = self._filled(figure, script, "narrow.svg", NARROW)[0] if figure.narrow else None
        unused = set(figure.said) - script.used - {"title", "description", "caption", *figure.heads}
        if unused:
            what = f"the word {min(unused).partition('/')[2]!r} stands nowhere in the drawing"
            raise _at(figure.said[min(unused)], what)
        if not told.rows:
            raise SidelitError(
                "the template has no row(…) for the table", path=self._path(figure, "svg"), line=1
            )
        return Drawing(
            name=figure.name,
            title=script.sentence("title", told.values),
            description=str(words.said(script.sentence("description", told.values)[1])),
            caption=script.sentence("caption", told.values),
            wide=wide,
            narrow=narrow,
            heads=tuple(script.word(head) for head in figure.heads),
            rows=tuple(told.rows),
            recordings=figure.recordings,
            state=script.state,
        )

    def digest(self, figure: Figure) -> str:
        """Stands for the files that a figure is drawn from."""
        if figure.name not in self._digests:
            recorded = (self.folder.parent / RECORDED / f"{each.name}.json" for each in figure.recordings)
            drawings = self._included([*self._own.get(figure.name, ()), *self._own[""]])
            self._digests[figure.name] = store.of_files([*sorted(drawings), *recorded])
        return self._digests[figure.name]

    @cached_property
    def _own(self) -> Mapping[str, Sequence[Path]]:
        """The files of each figure; under the empty name those of none, which any drawing may include."""
        found = [path for path in self.folder.rglob("*") if path.is_file()]
        own: dict[str, list[Path]] = {path.stem: [] for path in self.folder.glob("*.toml")}
        own[""] = []
        for path in found:
            name = path.name.partition(".")[0] if path.parent == self.folder else ""
            own[name if name in own else ""].append(path)
        return own

    def _included(self, paths: Sequence[Path]) -> set[Path]:
        """Files, and those that they name between quotation marks."""
        found: set[Path] = set()
        todo = [*paths]
        while todo:
            if (path := todo.pop()) not in found and path.is_file():
                found.add(path)
                text = path.read_text(encoding="utf-8", errors="replace") if path.suffix != ".toml" else ""
                todo += (self.folder / name for name in _QUOTED.findall(text))
        return found

    def _path(self, figure: Figure, ending: str) -> str:
        return f"{self.shown}/{figure.name}.{ending}"

    def _filled(self, figure: Figure, script: _Script, ending: str, width: int) -> tuple[Markup, _Told]:
        told, name = _Told(), f"{figure.name}.{ending}"

        def row(*cells: object) -> str:
            if len(cells) != len(figure.heads):
                raise TypeError(f"a row of {len(cells)} cells in a table of {len(figure.heads)} columns")
            told.rows.append(tuple(words.of(cell) for cell in cells))
            return ""

        def say(**values: object) -> str:
            told.values.update({key: words.of(value) for key, value in values.items()})
            return ""

        context: dict[str, Any] = {
            "data": {each.name: each.data for each in figure.recordings},
            "width": width,
            "narrow": width == NARROW,
            "word": lambda key, **blanks: script.word(f"words/{key}", blanks),
            "amount": lambda value: words.plain(words.count(value, script.counts)),
            "row": row,
            "say": say,
        }
        try:
            if name not in self._sound:
                check_literals(self.environment, self.folder / name, self._path(figure, ending))
                self._sound.add(name)
            text = self.environment.get_template(name).render(context)
        except theme.RAISED as error:
            raise theme.refused(error, self.folder, self.shown) from None
        return checked(text, self._path(figure, ending), width), told


class _Script:
    """The sentences of a figure in one language."""

    def __init__(
        self, figure: Figure, book: catalog.Catalog | None, counts: Sequence[tuple[float, str]] = ()
    ) -> None:
        self.figure, self.book, self.counts = figure, book, counts
        self.states: list[sync.State] = ["current"]
        self.used: set[str] = set()
        self.done: dict[str, tuple[Token, ...]] = {}

    @property
    def state(self) -> str | None:
        """The worst state of what was asked for."""
        worst = max(self.states, key=STATES.index)
        return None if worst == "current" else worst

    def sentence(self, context: str, values: Mapping[str, Said]) -> tuple[Token, ...]:
        """A sentence as a paragraph, its blanks filled."""
        if context not in self.figure.said:
            known = ", ".join(key.partition("/")[2] for key in self.figure.said if key.startswith("words/"))
            key = context.partition("/")[2]
            raise LookupError(f"there is no word {key!r} in {self.figure.path}; there is {known or 'none'}")
        self.used.add(context)
        opening, inline, closing = self._translated(context)
        return opening, _with_blanks(inline, values), closing

    def word(self, context: str, blanks: Mapping[str, object] | None = None) -> Said:
        """A sentence for the drawing itself."""
        values = {key: words.of(value) for key, value in (blanks or {}).items()}
        opening, inline, _ = self.sentence(context, values)
        return words.said(inline, str(opening.attrs["lang"]) if "lang" in opening.attrs else None)

    def _translated(self, context: str) -> tuple[Token, ...]:
        if context not in self.done:
            written = self.figure.said[context]
            self.done[context] = written
            if self.book is not None:
                found = catalog.translate(written, self.book, context)
                self.states.append(found.state)
                self.done[context] = found.tokens
                there, own = (set(BLANK.findall(each[1].content)) for each in (written, found.tokens))
                if there != own:
                    what = "the translation has other blanks than the original: "
                    raise _at(found.tokens, what + ", ".join(f"{{{name}}}" for name in sorted(there ^ own)))
        return self.done[context]


def _with_blanks(inline: Token, values: Mapping[str, Said]) -> Token:
    asked = set(BLANK.findall(inline.content))
    if missing := sorted(asked - set(values)):
        raise _at(
            (inline, inline), f"nothing is put into the blank {{{missing[0]}}}", "say(…) it in the template"
        )
    if not asked:
        return inline
    text = BLANK.sub(lambda blank: values[blank[1]].markdown(), inline.content)
    return markup.reinline(inline, text)


def _at(tokens: Sequence[Token], what: str, hint: str | None = None) -> SidelitError:
    inline = tokens[1]
    return SidelitError(what, path=markup.path_of(inline), line=markup.line_of(inline), hint=hint)


class _Environment(SandboxedEnvironment):
    """In which `record.items` is the key of the data, and not the method of a dictionary.

    A drawing belongs to a project that may be a stranger's: it reaches its data and nothing else of Python.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, dict):
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


def _holds(condition: object, what: str) -> str:
    """A claim of the figure: the build stops where the data no longer bears it out."""
    if not condition:
        raise ValueError(f"the recording no longer says that {what}")
    return ""


def _quantity(name: str) -> Any:
    write = getattr(words, name)
    return lambda *given, **options: words.plain(write(*given, **options))


_TOOLS: dict[str, Any] = {
    **pen.TOOLS,
    **{name: _quantity(name) for name in ("number", "fixed", "size", "percent", "power", "duration")},
    "scaled": words.scaled,
    "linear": pen.linear,
    "log": pen.log,
    "band": pen.band,
    "ceiling": pen.ceiling,
    "code": words.code,
    "holds": _holds,
    "min": min,
    "max": max,
    "sum": sum,
    "zip": zip,
    "len": len,
    "abs": abs,
    "enumerate": enumerate,
}


# ## The gallery
#
# > All figures of a site, and each of them in each language.


class Gallery:
    """The figures of a site by name; a drawing is made once for each language, by this build or another."""

    def __init__(
        self,
        figures: Sequence[Figure] = (),
        easel: Easel | None = None,
        catalogs: Catalogs | None = None,
        counts: Mapping[str, Sequence[tuple[float, str]]] = MappingProxyType({}),
        graph: Graph | None = None,
    ) -> None:
        self._figures: Mapping[str, Figure] = {each.name: each for each in figures}
        self._easel, self._catalogs, self._counts = easel, catalogs, counts
        self._graph = graph or Graph()
        self._drawn: dict[tuple[str, str], Drawing] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What a page may ask for."""
        return tuple(sorted(self._figures))

    def ahead(self, jobs: int | None = None) -> None:
        """Let several processes draw what no earlier build has drawn."""
        if self._easel is not None:
            easel = self._easel
            self._graph.ahead([self._task(easel, each) for each in self._figures.values()], jobs)

    def draw(self, name: str, lang: str, path: str | None = None, line: int | None = None) -> Drawing:
        """The figure of a name in one language; `path` and `line` say who asks for it.

        Raises `SidelitError` there if there is no such figure, or where the figure has a mistake.
        """
        if name not in self._figures or self._easel is None:
            close = difflib.get_close_matches(name, self.names, n=3, cutoff=0.4) or self.names[:5]
            hint = f"there is {', '.join(close)}" if close else "this site has none"
            raise SidelitError(f"there is no figure {name!r}", path=path, line=line, hint=hint)
        if (name, lang) not in self._drawn:
            self._drawn |= {(name, each): made for each, made in self._made(name, lang, self._easel).items()}
        return self._drawn[name, lang]

    def _made(self, name: str, lang: str, easel: Easel) -> Mapping[str, Drawing]:
        figure = self._figures[name]
        if self._graph.keeps:
            with suppress(SidelitError):
                return self._graph.do(self._task(easel, figure))
        # A mistake of another language is told where that is shown.
        return {lang: self._in(lang, easel, figure)}

    def _task(self, easel: Easel, figure: Figure) -> Task[dict[str, Drawing]]:
        """A figure in all languages: its template is read once for them."""
        found = [self._book(figure, lang) for lang in self._counts]
        books = [book and (book.digest, book.source, book.original) for book in found]
        key = store.digest(easel.digest(figure), books, self._counts)
        return Task("figures", key, lambda: {lang: self._in(lang, easel, figure) for lang in self._counts})

    def _in(self, lang: str, easel: Easel, figure: Figure) -> Drawing:
        return easel.draw(figure, self._book(figure, lang), self._counts.get(lang, ()))

    def _book(self, figure: Figure, lang: str) -> catalog.Catalog | None:
        return self._catalogs.translation(figure.page, lang) if self._catalogs else None


def gallery(
    config: Config, figures: Sequence[Figure], catalogs: Catalogs, graph: Graph | None = None
) -> Gallery:
    """The gallery of a site, whose catalogues are given."""
    folder = config.folder / FOLDER
    counts = {lang: config.language(lang).counts for lang in config.languages}
    return Gallery(figures, Easel(folder, config.shown(folder)), catalogs, counts, graph)
