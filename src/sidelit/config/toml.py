"""# TOML whose mistakes have a line

> A configuration is read by the kind of each value, and what is wrong is told with file and line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from sidelit.errors import SidelitError
from sidelit.files import assets

# ## Where a TOML file says what
#
# > TOML's parser keeps no positions, so the text is read once more for the lines of its tables and keys.
#
# This happens for the sake of messages, and to a text that the parser has accepted. So nothing is judged
# here, and a table of the parser finds its own place by the way that leads to it.


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# One that does not end goes on to the end of the line or the text: to look for an end from each quote in it
# would take hours.
_STRING = (
    r'"""(?:\\.|[^\\])*?(?:"{3,5}|\\?\Z)'
    r"|'''.*?(?:'{3,5}|\Z)"
    r'|"(?:\\[^\n]|[^"\\\n])*"?'
    r"|'[^'\n]*'?"
)
# A date and its time are one value.
_BARE = r"[^\s,\[\]{}#\"'=]+(?: \d\d:[^\s,\[\]{}#\"'=]+)?"
_TOKEN = re.compile(rf"(?P<note>#[^\n]*)|(?P<string>{_STRING})|(?P<bare>{_BARE})|\n|[\[\]{{}},=]", re.DOTALL)
# The parser takes memory for each pair of a key's parts. What looks like such a key in a string or behind a
# sign of a comment is passed over with it.
_LONG_KEY = re.compile(
    rf"""(?<![\w.-])(?P<long>(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{100}})|#[^\n]*|{_STRING}""",
    re.DOTALL,
)
_DEEP = 100


@dataclass(slots=True)
class KeyPlace:
    """A table, a list or a value: its line, its text if it is a string, and what is in it."""

    line: int = 1
    text: str | None = None
    inside: dict[str | int, KeyPlace] = field(default_factory=dict)
    tables: bool = False
    """Whether this is a list whose elements have headers of their own."""

    def at(self, key: str | int) -> KeyPlace:
        """What is in it under a key; itself, where the text has none."""
        return self.inside.get(key, self)

    def find(self, word: str) -> KeyPlace | None:
        """The key of that name, or else the first key or string inside that reads so."""
        own = self.inside.get(word)
        return own or next((each for key, each in self._every() if word in (key, each.text)), None)

    def _every(self) -> Iterator[tuple[str | int, KeyPlace]]:
        left = [*reversed(self.inside.items())]
        while left:
            key, place = left.pop()
            yield key, place
            left += reversed(place.inside.items())


def read(text: str) -> KeyPlace:
    """The places of everything in a text that is valid TOML."""
    reader = _Reader()
    for token, line in _tokens(text):
        reader.take(token, line)
    return reader.top


def long_key(text: str) -> int:
    """The line of a key that has more than a hundred parts, or 0."""
    found = next((match for match in _LONG_KEY.finditer(text) if match["long"]), None)
    return text.count("\n", 0, found.start()) + 1 if found else 0


def deep(text: str) -> int:
    """The line in which a text has opened a hundred brackets that are still open, or else the first."""
    opened = 0
    for token, line in _tokens(text):
        opened += (token[0] in ("[", "{")) - (token[0] in ("]", "}"))
        if opened >= _DEEP:
            return line
    return 1


def _tokens(text: str) -> Iterator[tuple[re.Match[str], int]]:
    line, last = 1, 0
    for token in _TOKEN.finditer(text):
        line += text.count("\n", last, token.start())
        last = token.start()
        if token["note"] is None:
            yield token, line


class _Reader:
    """What has been read so far."""

    def __init__(self) -> None:
        self.top = KeyPlace()
        # The table of the last header, and the lists and tables within braces that are still open in it.
        self.open: list[tuple[KeyPlace, str]] = [(self.top, "")]
        self.keys: list[str] = []
        # What has a key or a place in a list, and waits for its value.
        self.value: KeyPlace | None = None
        self.header = 0

    def take(self, token: re.Match[str], line: int) -> None:
        sign = token[0]
        place, end = self.open[-1]
        if self.header:
            self._head(token, line)
        elif self.value is None and end == "]" and sign not in ("]", ",", "\n"):
            self.value = place.inside[len(place.inside)] = KeyPlace(line)
            self._fill(token, self.value)
        elif self.value is not None:
            self._fill(token, self.value)
        elif sign == end:
            self.open.pop()
        elif sign in (",", "\n"):
            self.keys.clear()
        elif sign == "[":
            self.header, self.open = 1, [(self.top, "")]
        elif sign == "=":
            self.value = _down(place, self.keys, line)
        else:
            self.keys += _parts(token)

    def _fill(self, token: re.Match[str], value: KeyPlace) -> None:
        if token[0] in ("[", "{"):
            self.open.append((value, "]" if token[0] == "[" else "}"))
        elif token["string"] is not None:
            value.text = _said(token[0])
        self.value = None
        self.keys.clear()

    def _head(self, token: re.Match[str], line: int) -> None:
        if token[0] == "[":
            self.header = 2
        elif token[0] != "]":
            self.keys += _parts(token)
        elif self.keys:
            self.open = [(self._table(line), "")]
            self.keys.clear()
            self.header -= 1
        else:
            self.header = 0

    def _table(self, line: int) -> KeyPlace:
        """The table that a header opens: one of a list where it has two brackets."""
        place = _down(self.top, self.keys[:-1], line)
        if self.header == 2:
            found = place.inside.setdefault(self.keys[-1], KeyPlace(line, tables=True))
            new = found.inside[len(found.inside)] = KeyPlace(line)
            return new
        found = place.inside.setdefault(self.keys[-1], KeyPlace(line))
        # It may have been named by the header of a table within it before.
        found.line = line
        return found


def _down(place: KeyPlace, keys: list[str], line: int) -> KeyPlace:
    for key in keys:
        place = place.inside.setdefault(key, KeyPlace(line))
        if place.tables:
            place = place.inside[len(place.inside) - 1]
    return place


def _parts(token: re.Match[str]) -> list[str]:
    if token["string"] is not None:
        return [_said(token[0])]
    return [part for part in token[0].split(".") if part]


def _said(string: str) -> str:
    """What a string of TOML says."""
    return str(tomllib.loads(f"said = {string}")["said"])


# ## A TOML file whose mistakes have a line
#
# > Each key is taken once and with its type; what is left over was misspelt.
#
# The line of a mistake is that of the key or the string in question, as far as it stands in this table, and
# otherwise that of the header of the table.


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
    if line := long_key(text):
        raise SidelitError("a key has more than 100 parts", path=shown, line=line)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        what = re.sub(r" \(at .*\)$", "", str(error))
        line = int(found[1]) if found else len(text.splitlines())
        raise SidelitError(f"not valid TOML: {what}", path=shown, line=line) from None
    except RecursionError:
        line = deep(text)
        raise SidelitError("its tables or lists are nested too deeply", path=shown, line=line) from None
    except ValueError as error:
        # A number with thousands of digits, which the parser leaves to Python.
        raise SidelitError(f"not valid TOML: {error}", path=shown, line=1) from None


def _text(path: Path, shown: str) -> str:
    try:
        return assets.text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SidelitError(f"cannot be read: {reason}", path=shown) from None


class _Text:
    """A text and the places in it, which most files are never asked for."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def top(self) -> KeyPlace:
        return read(self.text)


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
    def _place(self) -> KeyPlace:
        place = self._text.top
        for step in self._way:
            place = place.at(step)
        return place


_NAMES: dict[type, str] = {str: "string", list: "list", dict: "table", bool: "boolean", int: "number"}
