"""# Drawing

> One figure in one language: the template is filled, and what came out is checked before it goes on a page.

A template calls the pen and a few functions that know the figure:

| function | what it does |
|---|---|
| `word("key", n=…)` | a word of the figure's table in the page's language, its blanks filled |
| `code(text)` | a name from the data, the same in every language |
| `say(peak=…)` | fills the blank `{peak}` of the title, the description and the caption |
| `row(…)` | one row of the table that is folded under the figure |
| `holds(condition, "what it says")` | stops the build if a new recording no longer bears out a claim |

So numbers come from the data alone, words from the catalogue alone, and a claim is checked at every build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment
from markdown_it.token import Token
from markupsafe import Markup

from sidelit import template_errors
from sidelit.catalog import catalog
from sidelit.catalog.shelf import STATES
from sidelit.errors import SidelitError
from sidelit.figures import pen, quantities, scales, words
from sidelit.figures.figure import Figure
from sidelit.figures.recording import Recording
from sidelit.figures.sheet import check_literals, checked
from sidelit.figures.words import BLANK, Said
from sidelit.text import markup

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

    def draw(self, figure: Figure, book: catalog.Catalog | None) -> Drawing:
        """Draw it in the language of a catalogue, or without one in that of its words.

        Raises `SidelitError` at the line of the template or of the catalogue that has to be mended.
        """
        script = _Script(figure, book)
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
            "row": row,
            "say": say,
        }
        try:
            check_literals(self.environment, self.folder / name, self._path(figure, ending))
            text = self.environment.get_template(name).render(context)
        except template_errors.RAISED as error:
            raise template_errors.refused(error, self.folder, self.shown) from None
        return checked(text, self._path(figure, ending), width), told


class _Script:
    """The sentences of a figure in one language."""

    def __init__(self, figure: Figure, book: catalog.Catalog | None) -> None:
        self.figure, self.book = figure, book
        self.states: list[catalog.State] = ["current"]
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
    write = getattr(quantities, name)
    return lambda *given, **options: words.plain(write(*given, **options))


_TOOLS: dict[str, Any] = {
    **pen.TOOLS,
    **{name: _quantity(name) for name in ("number", "fixed", "size", "percent", "power", "duration")},
    "scaled": quantities.scaled,
    "linear": scales.linear,
    "log": scales.log,
    "band": scales.band,
    "ceiling": scales.ceiling,
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
