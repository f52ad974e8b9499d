"""# Figures and their recordings

> A figure is a claim in words, a template that draws it, and the numbers that a program has recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from markdown_it.token import Token

from sidelit.catalog import sync
from sidelit.config.config import Config
from sidelit.config.toml import Table, read_table
from sidelit.errors import SidelitError
from sidelit.files import assets
from sidelit.text import markup

# ## Recordings
#
# > A file of numbers that a program wrote, and how to make it again.
#
# No number of a figure is typed by hand. It is read from a recording: a JSON object with the command that
# wrote it, the commit, the machine and the versions it ran on, and under `data` what it found.


@dataclass(frozen=True, slots=True)
class Recording:
    """What one command found, and where; `versions` are pairs of a name and a version."""

    name: str
    command: str
    commit: str
    machine: str
    versions: tuple[tuple[str, str], ...]
    data: Any


def read_recording(path: Path, shown: str) -> Recording:
    """Read a recording; every mistake in it is a `SidelitError` with its line."""
    found = assets.parsed(path, shown)
    if not isinstance(found, dict):
        raise SidelitError("a recording is an object with the key `data`", path=shown, line=1)
    for key, kind in (("command", str), ("commit", str), ("machine", str), ("versions", dict)):
        if not isinstance(found.get(key), kind):
            what = f"the key {key!r} is missing" if key not in found else f"{key!r} has the wrong type"
            raise SidelitError(what, path=shown, line=1, hint="record it again")
    if "data" not in found:
        raise SidelitError("the key 'data' is missing", path=shown, line=1, hint="record it again")
    versions = tuple((str(name), str(version)) for name, version in sorted(found["versions"].items()))
    return Recording(path.stem, found["command"], found["commit"], found["machine"], versions, found["data"])


# ## Figures
#
# > A table of words, a template that draws, and the recordings it draws from.
#
# `figures/NAME.toml` says what a figure claims, in words that reach the catalogues; `NAME.svg` beside it is a
# template that draws it, `NAME.narrow.svg` a second one for narrow screens, and `recorded/` holds the
# numbers. Here all of it is read and checked, before any language.


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

    def units(self) -> sync.PageUnits:
        """What of it is to be translated."""
        sections = (sync.extract(context, tokens) for context, tokens in self.said.items())
        return sync.PageUnits(self.page, tuple(each for each in sections if each.msgids))


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
    return read_recording(path, config.shown(path))
