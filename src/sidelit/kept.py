"""# What is kept elsewhere

> A long text is needed for a moment, and memory is not: so it is made or read again where it is asked for.

A site may have more pages than memory has room for. What a page consists of is read from a file, or
translated, when the page is made; what was asked for last is at hand.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar, overload

Item = TypeVar("Item", covariant=True)

# A page takes sections from a few others.
AT_HAND = 16


class Kept(Sequence[Item]):
    """A sequence of a known length that `make` makes whenever it is not at hand."""

    __slots__ = ("_length", "_make")

    def __init__(self, make: Callable[[], tuple[Item, ...]], length: int) -> None:
        self._make, self._length = make, length

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
        whole: tuple[Item, ...] = _made(self)
        return whole


@lru_cache(maxsize=AT_HAND)
def _made(kept: Kept[Any]) -> tuple[Any, ...]:
    return kept._make()


def in_file(items: tuple[Item, ...], path: Path) -> Kept[Item]:
    """Keep a sequence in a file of a folder of one's own.

    It is written as a pickle, so nobody else may write into that folder.
    """
    path.write_bytes(pickle.dumps(items, protocol=pickle.HIGHEST_PROTOCOL))
    return Kept(partial(_read, path), len(items))


def _read(path: Path) -> Any:
    return pickle.loads(path.read_bytes())
