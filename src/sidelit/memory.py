"""# Work that is done already

> What follows from one file is worked out again when that file changes, and not before.

Each piece of work has a kind, and a key that stands for everything it was made from. All of one kind lies in
one entry of the [store](store.py), whose name stands for the press, for Python, and for all that is installed
beside it. What a build did not ask for is not kept for the next one.
"""

from __future__ import annotations

import pickle
import platform
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from sidelit import digests
from sidelit.store import Store

Value = TypeVar("Value")
Key = str | tuple[str, ...]


class Memory:
    """The work of earlier builds; `keep` hands it to the next one, with that of this build.

    A value that was kept comes back as another object, equal to the first. Nobody changes one.
    """

    def __init__(self, store: Store | None = None) -> None:
        self._store = store or Store(None)
        self._known: dict[str, dict[Key, bytes]] = {}
        self._used: dict[str, dict[Key, bytes]] = {}

    @property
    def keeps(self) -> bool:
        """Whether anything is kept for the next build."""
        return self._store.keeps

    def knows(self, kind: str, key: Key) -> bool:
        """Whether `of` would make nothing; it counts as a question, so that the next build knows, too."""
        kept = self._used.get(kind, {}).get(key) or (self._store.keeps and self._of_kind(kind).get(key))
        if kept:
            self._used.setdefault(kind, {})[key] = kept
        return bool(kept)

    def of(self, kind: str, key: Key, make: Callable[[], Value]) -> Value:
        """What `make` returns; it follows from what `key` stands for. Nothing is kept under an empty key."""
        if not key or not self._store.keeps:
            return make()
        known = self._of_kind(kind)
        used = self._used.setdefault(kind, {})
        if (kept := used.get(key) or known.get(key)) is not None:
            used[key] = kept
            value: Value = pickle.loads(kept)
            return value
        value = make()
        used[key] = _written(value)
        return value

    def alone(self, kind: str, key: Key, make: Callable[[], Value]) -> Value:
        """The same for what is large and seldom asked for: it is read by itself."""
        if not key or not self._store.keeps:
            return make()
        name = digests.digest(_name(kind), key)
        if (kept := self._store.get(name)) is None:
            value = make()
            self._store.put(name, _written(value))
        else:
            value = pickle.loads(kept)
        return value

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        """What remembers it does not take it along to another process or into another memory."""
        return Memory, ()

    def keep(self) -> None:
        """Write all that was asked for, where it is not what was read."""
        for kind, used in self._used.items():
            if used.keys() != self._known[kind].keys():
                self._store.put(_name(kind), _written(used))

    def _of_kind(self, kind: str) -> dict[Key, bytes]:
        if kind not in self._known:
            kept = self._store.get(_name(kind))
            self._known[kind] = {} if kept is None else pickle.loads(kept)
        return self._known[kind]


def _written(value: object) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


@cache
def _name(kind: str) -> str:
    return digests.digest(kind, program(), environment())


@cache
def program() -> str:
    """The version of the press, which stays what it is while it runs, unlike its templates."""
    return digests.of_folder(Path(__file__).parent, "*.py")


@cache
def environment() -> str:
    """The version of Python, and of everything that is installed beside it."""
    folders = (Path(each) for each in sys.path if Path(each).is_dir())
    installed = sorted({path.name for each in folders for path in each.glob("*.dist-info")})
    return digests.digest(sys.version, platform.platform(), installed)
