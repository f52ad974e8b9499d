"""# A TOML file whose mistakes have a line

> Each key is taken once and with its type; what is left over was misspelt.

TOML's parser keeps no positions, so the line of a mistake is looked up in the text: the first line that
mentions the word in question.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from sidelit import reading
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


# What a word goes on with.
_PART = re.compile(r"[\w-]")
# The parser takes memory for each pair of a key's parts.
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){100}""")


def _parse(text: str, shown: str) -> dict[str, Any]:
    if (long := _LONG_KEY.search(text)) is not None:
        line = text.count("\n", 0, long.start()) + 1
        raise SidelitError("a key has more than 100 parts", path=shown, line=line)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        what = re.sub(r" \(at .*\)$", "", str(error))
        line = int(found[1]) if found else len(text.splitlines())
        raise SidelitError(f"not valid TOML: {what}", path=shown, line=line) from None
    except RecursionError:
        raise SidelitError("its tables or lists are nested too deeply", path=shown, line=1) from None
    except ValueError as error:
        # A number with thousands of digits, which the parser leaves to Python.
        raise SidelitError(f"not valid TOML: {error}", path=shown, line=1) from None


def _text(path: Path, shown: str) -> str:
    try:
        return reading.text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SidelitError(f"cannot be read: {reason}", path=shown) from None


class Table:
    """One table of the file: hands out keys with their types checked, and refuses what nobody asked for."""

    def __init__(self, data: dict[str, Any], shown: str, text: str) -> None:
        self.data = dict(data)
        self.shown = shown
        self.text = text

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
        return Table(cast("dict[str, Any]", entry), self.shown, self.text)

    def tables(self, key: str) -> tuple[Table, ...]:
        entries = self.take(key, list, [])
        if not all(isinstance(entry, dict) for entry in entries):
            raise self.error(f"`{key}` must be a list of tables", key)
        return tuple(Table(cast("dict[str, Any]", entry), self.shown, self.text) for entry in entries)

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

    def line(self, near: str | None, start: int = 1) -> int:
        """The first line from `start` on that mentions a word: the parser keeps no positions.

        Where none does, it is `start`.
        """
        if not near:
            return start
        first = _start_of(self.text, start)
        # A path in quotes is meant as a whole: `unit.py` is no mention in `zero/unit.py`.
        quoted = (self.text.find(f"{quote}{near}{quote}", first) for quote in "\"'")
        place = min((each for each in quoted if each >= 0), default=None)
        place = next(_mentions(self.text, near, first), None) if place is None else place
        return start if place is None else start + self.text.count("\n", first, place)


def _start_of(text: str, line: int) -> int:
    """Where a line begins."""
    place = 0
    for _ in range(line - 1):
        place = text.find("\n", place) + 1 or len(text)
    return place


def _mentions(text: str, word: str, first: int) -> Iterator[int]:
    """The places of a word that is no part of a longer one."""
    place = text.find(word, first)
    while place >= 0:
        end = place + len(word)
        before, after = text[max(place - 1, 0) : place], text[end : end + 1]
        if not (before == "." or _PART.match(before) or _PART.match(after)):
            yield place
        place = text.find(word, place + 1)


_NAMES: dict[type, str] = {str: "string", list: "list", dict: "table", bool: "boolean", int: "number"}
