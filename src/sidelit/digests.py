"""# Digests

> One short name stands for all that a piece of work was made from; where any of it differs, so does the name.

It is the same in every process: sets are put in order, and nothing depends on where an object lies in memory.
"""

from __future__ import annotations

import hashlib
import marshal
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import Any

# The version of the format that depends on values alone; later ones write what is the same object once.
_FORMAT = 2
# What is written as it is.
_PLAIN = {type(None), str, int, bool, float, bytes}


def digest(*values: object) -> str:
    """A digest of texts, numbers, paths, patterns, records, and of tuples, lists, mappings and sets of such.

    Raises `TypeError` for a value of another kind.
    """
    return _digest(tuple(_Walk().plain(value) for value in values)).hex()


def of_files(paths: Iterable[Path]) -> str:
    """A digest of files: their paths and what is in them. One that cannot be read counts as empty."""
    return digest([(path, _content(path)) for path in paths])


def of_folder(folder: Path, pattern: str = "*") -> str:
    """A digest of all files below a folder that match a pattern."""
    return of_files(path for path in sorted(folder.rglob(pattern)) if path.is_file())


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _digest(plain: Any) -> bytes:
    return hashlib.blake2b(marshal.dumps(plain, _FORMAT), digest_size=20).digest()


class _Walk:
    """Turns values into what `marshal` writes. A record that is met again is not walked again."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, bytes]] = {}

    def plain(self, value: Any) -> Any:
        kind: type = type(value)
        if kind in _PLAIN:
            return value
        if kind is tuple or kind is list:
            return tuple([each if type(each) is str else self.plain(each) for each in value])
        if _fields(kind) is not None:
            return self._record(value)
        if isinstance(value, Mapping):
            return "mapping", tuple([(self.plain(key), self.plain(each)) for key, each in value.items()])
        if isinstance(value, Set):
            if all(type(each) is str for each in value):
                return "set", tuple(sorted(value))
            return "set", tuple(sorted(_digest(self.plain(each)) for each in value))
        if isinstance(value, PurePath | str):
            return str(value)
        if isinstance(value, re.Pattern):
            return "pattern", value.pattern, value.flags
        if isinstance(value, Exception):
            return kind.__qualname__, str(value)
        raise TypeError(f"a {kind.__qualname__} has no digest")

    def _record(self, value: Any) -> bytes:
        if (known := self._known.get(id(value))) is not None:
            return known[1]
        kind: type = type(value)
        told = [self.plain(getattr(value, name)) for name in _fields(kind) or ()]
        made = _digest((kind.__qualname__, *told))
        # The record is kept as long as its number counts, so that no other one gets it.
        self._known[id(value)] = value, made
        return made


@cache
def _fields(kind: type) -> tuple[str, ...] | None:
    """The names of the fields of a record; `None` for what is none."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None
