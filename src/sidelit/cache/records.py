"""# Records and what keeps them small

> A site of a thousand pages is known while it is built, and most of it is not in memory.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import fields
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, TypeVar

# ## Records that are read quickly
#
# > A record is kept as the call that makes it.
#
# A build reads tens of thousands of them that an earlier one has kept. By itself, a dataclass with slots
# looks up its fields each time that one is read or written.


Record = TypeVar("Record")


def quick(kind: type[Record]) -> type[Record]:
    """Let `pickle` write a dataclass as a call with its values; it needs two fields at least, each of them an
    argument.
    """
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    values = attrgetter(*names)
    assert len(names) > 1, "attrgetter gives a tuple of two and more"

    def call(record: Any) -> tuple[Any, tuple[Any, ...]]:
        return kind, values(record)

    kind.__reduce__ = call  # type: ignore[method-assign, assignment]
    return kind


# ## What takes little room
#
# > Of each page a few things are known to all others, and of a thousand pages they fill the memory.
#
# So the ids of a page are a row of names and no table of them, and a record that is seldom asked for is kept
# as bytes.


Content = TypeVar("Content")

# How many records stay unpacked.
UNPACKED = 256


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


class Packed(Mapping[str, Content]):
    """Records by their names, each unpacked when it is asked for; the last ones stay at hand."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}
        self._unpacked = lru_cache(maxsize=UNPACKED)(self._unpack)

    def put(self, name: str, value: Content) -> None:
        """Take a record in; each name once."""
        self._known[name] = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)

    def _unpack(self, name: str) -> Any:
        return pickle.loads(self._known[name])

    def __getitem__(self, name: str) -> Content:
        found: Content = self._unpacked(name)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


# ## What is made when somebody looks


Key = TypeVar("Key")
Value = TypeVar("Value", covariant=True)


class Late(Mapping[Key, Value]):
    """A mapping that is made when somebody first looks into it."""

    def __init__(self, make: Callable[[], Mapping[Key, Value]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Mapping[Key, Value]:
        return self._make()

    @property
    def made(self) -> bool:
        """Whether somebody has looked into it."""
        return "_made" in self.__dict__

    def __getitem__(self, key: Key) -> Value:
        return self._made[key]

    def get(self, key: Key, default: Any = None) -> Any:
        """What is under a key."""
        return self._made.get(key, default)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)
