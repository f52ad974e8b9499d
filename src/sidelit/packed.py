"""# What takes little room

> Of each page a few things are known to all others, and of a thousand pages they fill the memory.

So the ids of a page are a row of names and no table of them, and a record that is seldom asked for is kept as
bytes.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import lru_cache
from typing import Any, TypeVar

Value = TypeVar("Value")

# How many records stay unpacked.
AT_HAND = 256


class Ids(Set[str]):
    """A set of names that never changes, in an eighth of the room that `frozenset` takes."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = tuple(sorted(set(names)))

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        place = bisect_left(self._names, name)
        return place < len(self._names) and self._names[place] == name

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __hash__(self) -> int:
        return self._hash()


class Packed(Mapping[str, Value]):
    """Records by their names, each unpacked when it is asked for; the last ones stay at hand."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}
        self._unpacked = lru_cache(maxsize=AT_HAND)(self._unpack)

    def put(self, name: str, value: Value) -> None:
        """Take a record in; each name once."""
        self._known[name] = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)

    def _unpack(self, name: str) -> Any:
        return pickle.loads(self._known[name])

    def __getitem__(self, name: str) -> Value:
        found: Value = self._unpacked(name)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
