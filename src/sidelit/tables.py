"""# A TOML file whose mistakes have a line

> Each key is taken once and with its type; what is left over was misspelt.

The line of a mistake is that of the key or the string in question, as far as it stands in this table, and
otherwise that of the header of the table.
"""

from __future__ import annotations

import re
import sys
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from sidelit import reading, toml_places
from sidelit.errors import SidelitError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")


def read_toml(path: Path, shown: str) -> dict[str, Any]:
    """Parse a TOML file of the site; a mistake is a `SidelitError` with its line."""
    return _parse(_text(path, shown), shown)


def read_table(path: Path, shown: str) -> Table:
    """Read a TOML file whose keys are to be taken one by one."""
    text = _text(path, shown)
    return Table(_parse(text, shown), shown, text)


def _parse(text: str, shown: str) -> dict[str, Any]:
    if line := toml_places.long_key(text):
        raise SidelitError("a key has more than 100 parts", path=shown, line=line)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        what = re.sub(r" \(at .*\)$", "", str(error))
        line = int(found[1]) if found else len(text.splitlines())
        raise SidelitError(f"not valid TOML: {what}", path=shown, line=line) from None
    except RecursionError:
        line = toml_places.deep(text)
        raise SidelitError("its tables or lists are nested too deeply", path=shown, line=line) from None
    except ValueError as error:
        # A number with thousands of digits, which the parser leaves to Python.
        raise SidelitError(f"not valid TOML: {error}", path=shown, line=1) from None


def _text(path: Path, shown: str) -> str:
    try:
        return reading.text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SidelitError(f"cannot be read: {reason}", path=shown) from None


class _Text:
    """A text and the places in it, which most files are never asked for."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def top(self) -> toml_places.Place:
        return toml_places.read(self.text)


class Table:
    """One table of the file: hands out keys with their types checked, and refuses what nobody asked for.

    :param way: the keys and numbers that lead to it from the top of the file.
    """

    def __init__(
        self, data: dict[str, Any], shown: str, text: str | _Text, way: tuple[str | int, ...] = ()
    ) -> None:
        self.data = dict(data)
        self.shown = shown
        self._text = _Text(text) if isinstance(text, str) else text
        self._way = way

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self.data.pop(key, default)
        if value is None:
            raise self.error(f"the key `{key}` is missing")
        if not isinstance(value, kind):
            raise self.error(f"`{key}` must be a {_NAMES[kind]}", key)
        return value

    def table(self, key: str) -> Table | None:
        """The one table of this name, if there is one."""
        entry = self.data.pop(key, None)
        if entry is None:
            return None
        if not isinstance(entry, dict):
            raise self.error(f"`{key}` must be a table", key)
        return self.inside(cast("dict[str, Any]", entry), key)

    def tables(self, key: str) -> tuple[Table, ...]:
        entries = self.take(key, list, [])
        if not all(isinstance(entry, dict) for entry in entries):
            raise self.error(f"`{key}` must be a list of tables", key)
        return tuple(self.inside(entry, key, number) for number, entry in enumerate(entries))

    def inside(self, data: dict[str, Any], *way: str | int) -> Table:
        """A table to which these keys and numbers lead from here, even if its data was made of it."""
        return Table(data, self.shown, self._text, (*self._way, *way))

    def strings(self, key: str) -> tuple[str, ...]:
        """A list of strings; nothing where there is none."""
        entries = self.take(key, list, [])
        if not all(isinstance(entry, str) for entry in entries):
            raise self.error(f"`{key}` must be a list of strings", key)
        return tuple(entries)

    def finish(self) -> None:
        for key in self.data:
            raise self.error(f"unknown key `{key}`", key, hint="remove it or mend its spelling")

    def error(self, what: str, near: str | None = None, hint: str | None = None) -> SidelitError:
        return self.at(self.line(near), what, hint)

    def at(self, line: int, what: str, hint: str | None = None) -> SidelitError:
        return SidelitError(what, path=self.shown, line=line, hint=hint)

    def line(self, near: str | None = None) -> int:
        """The line of this key, or else of the first key or string in the table that reads so.

        Where there is none, it is the line of the table's header.
        """
        return ((near and self._place.find(near)) or self._place).line

    @property
    def _place(self) -> toml_places.Place:
        place = self._text.top
        for step in self._way:
            place = place.at(step)
        return place


_NAMES: dict[type, str] = {str: "string", list: "list", dict: "table", bool: "boolean", int: "number"}
