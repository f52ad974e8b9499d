"""# Where a TOML file says what

> TOML's parser keeps no positions, so the text is read once more for the lines of its tables and keys.

This happens for the sake of messages, and to a text that the parser has accepted. So nothing is judged here,
and a table of the parser finds its own place by the way that leads to it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

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
class Place:
    """A table, a list or a value: its line, its text if it is a string, and what is in it."""

    line: int = 1
    text: str | None = None
    inside: dict[str | int, Place] = field(default_factory=dict)
    tables: bool = False
    """Whether this is a list whose elements have headers of their own."""

    def at(self, key: str | int) -> Place:
        """What is in it under a key; itself, where the text has none."""
        return self.inside.get(key, self)

    def find(self, word: str) -> Place | None:
        """The key of that name, or else the first key or string inside that reads so."""
        own = self.inside.get(word)
        return own or next((each for key, each in self._every() if word in (key, each.text)), None)

    def _every(self) -> Iterator[tuple[str | int, Place]]:
        left = [*reversed(self.inside.items())]
        while left:
            key, place = left.pop()
            yield key, place
            left += reversed(place.inside.items())


def read(text: str) -> Place:
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
        self.top = Place()
        # The table of the last header, and the lists and tables within braces that are still open in it.
        self.open: list[tuple[Place, str]] = [(self.top, "")]
        self.keys: list[str] = []
        # What has a key or a place in a list, and waits for its value.
        self.value: Place | None = None
        self.header = 0

    def take(self, token: re.Match[str], line: int) -> None:
        sign = token[0]
        place, end = self.open[-1]
        if self.header:
            self._head(token, line)
        elif self.value is None and end == "]" and sign not in ("]", ",", "\n"):
            self.value = place.inside[len(place.inside)] = Place(line)
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

    def _fill(self, token: re.Match[str], value: Place) -> None:
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

    def _table(self, line: int) -> Place:
        """The table that a header opens: one of a list where it has two brackets."""
        place = _down(self.top, self.keys[:-1], line)
        if self.header == 2:
            found = place.inside.setdefault(self.keys[-1], Place(line, tables=True))
            new = found.inside[len(found.inside)] = Place(line)
            return new
        found = place.inside.setdefault(self.keys[-1], Place(line))
        # It may have been named by the header of a table within it before.
        found.line = line
        return found


def _down(place: Place, keys: list[str], line: int) -> Place:
    for key in keys:
        place = place.inside.setdefault(key, Place(line))
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
