"""# Figures

> A table of words, a template that draws, and the recordings it draws from.

`figures/NAME.toml` says what a figure claims, in words that reach the catalogues; `NAME.svg` beside it is a
template that draws it, `NAME.narrow.svg` a second one for narrow screens, and `recorded/` holds the numbers.
Here all of it is read and checked, before any language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from markdown_it.token import Token

from sidelit.catalog import catalog
from sidelit.config import Config
from sidelit.errors import SidelitError
from sidelit.figures import recording
from sidelit.figures.recording import Recording
from sidelit.tables import Table, read_table
from sidelit.text import markup

FOLDER, RECORDED = "figures", "recorded"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure as it was written; `said` holds every sentence of it by its context in the catalogue."""

    name: str
    path: str
    """Its table of words, as messages name it."""
    said: Mapping[str, tuple[Token, ...]]
    heads: tuple[str, ...]
    """The contexts of the heads of its table, in order."""
    recordings: tuple[Recording, ...]
    narrow: bool
    """Whether it has a second drawing."""

    @property
    def page(self) -> str:
        """The name of its catalogue."""
        return f"{FOLDER}/{self.name}"

    def units(self) -> catalog.PageUnits:
        """What of it is to be translated."""
        sections = (catalog.extract(context, tokens) for context, tokens in self.said.items())
        return catalog.PageUnits(self.page, tuple(each for each in sections if each.msgids))


def read_all(config: Config) -> tuple[Figure, ...]:
    """Read every figure of a site, in the order of their names.

    Raises `SidelitError` at the first mistake.
    """
    folder = config.folder / FOLDER
    names = sorted(path.stem for path in folder.glob("*.toml")) if folder.is_dir() else []
    for path in sorted(folder.glob("[!_]*.svg")) if folder.is_dir() else []:
        if (name := path.name.removesuffix(".svg").removesuffix(".narrow")) not in names:
            what, shown = f"this drawing has no words: {name}.toml is missing", config.shown(path)
            raise SidelitError(what, path=shown, line=1, hint="a file that others include begins with `_`")
    return tuple(read(config, name) for name in names)


def read(config: Config, name: str) -> Figure:
    """Read one figure; every mistake in it is a `SidelitError` with its line."""
    path = config.folder / FOLDER / f"{name}.toml"
    table = read_table(path, config.shown(path))
    if not path.with_suffix(".svg").is_file():
        raise table.error(f"there is no drawing {name}.svg beside it")
    said = dict(_sentences(table))
    heads = table.take("table", list)
    if not heads or not all(isinstance(head, str) for head in heads):
        raise table.error("`table` names the columns of the figure's table", "table")
    columns = {f"table/{number}": head for number, head in enumerate(heads, 1)}
    row = table.inside({}, "table")
    said.update({context: sentence(row, head, row.line(head)) for context, head in columns.items()})
    recordings = tuple(recorded(config, table, file) for file in table.take("data", list))
    if not recordings:
        raise table.error("a figure is drawn from data, and `data` names no file", "data")
    table.finish()
    narrow = path.with_suffix(".narrow.svg").is_file()
    return Figure(name, table.shown, MappingProxyType(said), tuple(columns), recordings, narrow)


def _sentences(table: Table) -> Iterator[tuple[str, tuple[Token, ...]]]:
    for key in ("title", "description", "caption"):
        text = table.take(key, str)
        yield key, sentence(table, text, table.line(key))
    words = table.inside(table.take("words", dict, {}), "words")
    for key, text in words.data.items():
        if not isinstance(text, str) or not re.fullmatch(r"\w+", key):
            raise words.error(f"the word {key!r} must be a string", key)
        yield f"words/{key}", sentence(words, text, words.line(key))


def sentence(table: Table, text: str, number: int) -> tuple[Token, ...]:
    """Parse one sentence of a table of words, which stands at this line of it."""
    return markup.line(" ".join(text.split()), path=table.shown, number=number)


def recorded(config: Config, table: Table, file: object) -> Recording:
    """Read a recording that a table of words names.

    Raises `SidelitError` if it is not there or is none.
    """
    path = config.folder / RECORDED / str(file)
    if not path.resolve().is_relative_to((config.folder / RECORDED).resolve()):
        raise table.error(
            f"the recording {file} lies outside {config.shown(config.folder / RECORDED)}/", str(file)
        )
    if not path.is_file():
        hint = f"record it, or name another file of {config.shown(path.parent)}/"
        raise table.error(f"there is no recording {file}", str(file), hint=hint)
    return recording.read(path, config.shown(path))
