"""# What is kept elsewhere

> A long text is needed for a moment, and memory is not: so it is made or read again where it is asked for.

A site may have more pages than memory has room for. What a page consists of is read from a file, or
translated, when the page is made; what was asked for last is at hand.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar, overload

Item = TypeVar("Item", covariant=True)
Key = TypeVar("Key")
Value = TypeVar("Value", covariant=True)

# A page takes sections from a few others.
AT_HAND = 16


class Kept(Sequence[Item]):
    """A sequence of a known length that `make` makes whenever it is not at hand.

    `name` is what `asking` calls it.
    """

    __slots__ = ("_length", "_make", "name")

    def __init__(self, make: Callable[[], tuple[Item, ...]], length: int, name: str = "") -> None:
        self._make, self._length, self.name = make, length, name

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> Item: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Item, ...]: ...

    def __getitem__(self, place: int | slice) -> Item | tuple[Item, ...]:
        return self._whole()[place]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._whole())

    def _whole(self) -> tuple[Item, ...]:
        note(self.name)
        whole: tuple[Item, ...] = _made(self)
        return whole


@lru_cache(maxsize=AT_HAND)
def _made(kept: Kept[Any]) -> tuple[Any, ...]:
    return kept._make()


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


class Noted(Mapping[Key, Value]):
    """A mapping that `asking` knows by a name as soon as anything is looked up in it."""

    def __init__(self, known: Mapping[Key, Value], name: str) -> None:
        self._known, self._name = known, name

    def __getitem__(self, key: Key) -> Value:
        note(self._name)
        return self._known[key]

    def __iter__(self) -> Iterator[Key]:
        note(self._name)
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


# The sets of those who want to know what is asked for.
_asked: list[set[str]] = []


def note(name: str) -> None:
    """Tell `asking` that something of this name is looked at."""
    for names in _asked:
        names.add(name)


@contextmanager
def asking() -> Iterator[set[str]]:
    """The names of all sequences that are asked for in this block, at hand or not, when it is done."""
    names: set[str] = set()
    _asked.append(names)
    try:
        yield names
    finally:
        _asked.pop()


@contextmanager
def as_one(name: str) -> Iterator[None]:
    """Let `asking` know all that is looked at in this block by one name."""
    note(name)
    others = _asked[:]
    _asked.clear()
    try:
        yield
    finally:
        _asked[:] = others


def in_file(items: tuple[Item, ...], path: Path) -> Kept[Item]:
    """Keep a sequence in a file of a folder of one's own.

    It is written as a pickle, so nobody else may write into that folder.
    """
    path.write_bytes(pickle.dumps(items, protocol=pickle.HIGHEST_PROTOCOL))
    return Kept(partial(_read, path), len(items))


def _read(path: Path) -> Any:
    return pickle.loads(path.read_bytes())
