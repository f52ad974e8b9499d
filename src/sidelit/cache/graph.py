"""# The build graph

> A task is done again when something that it read has changed, and what it reads is noted while it reads.

A build is a few thousand tasks: read a source, put a page into a language, find what the names in a file
mean, print a page. Each has a kind and a key, and the result is kept in the store for the next build.

| a task | its key | asked for by |
|---|---|---|
| that follows from few things, all of them at hand | stands for all of them | `of`, `alone` |
| that looks around in the whole site | stands for itself, and for what all such tasks read | `recalled` |

What the second kind reads of other pages it reads by a name: the words of a page, what its title is, whether
it has a section. Each look at a name is noted, so nobody keeps a list. The names are kept beside the result
with what stood for each. The next build takes the result if the same still stands for every one of them (the
verifying traces of Mokhov, Mitchell and Peyton Jones, *Build Systems à la Carte*, 2018, section 4.2.2).

If pages begin to read something, the next build has to hear of it, or a page of yesterday stands for that of
today. What is small, and the same for every page, is a plain field of the build context. Anything else is
read through `Noted`, `LazySequence` or `note`, by a name whose kind has a digest in `making.inputs`, and its
field is marked as noted.
"""

from __future__ import annotations

import pickle
from collections import UserString
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Generic, TypeVar, overload

from sidelit import workers
from sidelit.cache import store
from sidelit.cache.store import Store
from sidelit.errors import SidelitError

Value = TypeVar("Value")
Item = TypeVar("Item")
Key = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Traced:
    """What is known of a result: what was read for it, and what stands for its content, if it has some."""

    value: Any
    read: Mapping[str, str]
    content: str = ""


@dataclass(frozen=True)
class Task(Generic[Value]):
    """What `make` makes follows from what `key` stands for, and from the `kind` of it."""

    kind: str
    key: Key
    make: Callable[[], Value]


class Graph:
    """The tasks of a build, and the results of earlier ones.

    `keep` hands the results to the next build. One that was kept comes back as another object, equal to the
    first. Nobody changes one.
    """

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or Store(None)
        self._known: dict[str, dict[Key, bytes]] = {}
        self._used: dict[str, dict[Key, bytes]] = {}
        self._inputs: dict[str, Callable[[str], str]] = {}
        self._digests: dict[str, str] = {}
        # What a process of `shared` has asked for; of what was known before, the key alone.
        self._asked: list[tuple[str, Key, bytes | None]] | None = None

    @property
    def keeps(self) -> bool:
        """Whether anything is kept for the next build."""
        return self.store.keeps

    def knows(self, kind: str, key: Key) -> bool:
        """Whether `of` would make nothing; it counts as a question, so that the next build knows, too."""
        kept = self._used.get(kind, {}).get(key) or (self.keeps and self._of_kind(kind).get(key))
        if kept:
            self._use(kind, key, kept)
        return bool(kept)

    def of(self, kind: str, key: Key, make: Callable[[], Value]) -> Value:
        """What `make` returns; it follows from what `key` stands for. Nothing is kept under an empty key.

        All results of one kind lie in one entry of the store. One that a build does not ask for is not kept
        for the next one.
        """
        if not key or not self.keeps:
            return make()
        known = self._of_kind(kind)
        if (kept := self._used.get(kind, {}).get(key) or known.get(key)) is not None:
            value: Value = pickle.loads(kept)
        else:
            value = make()
            kept = _written(value)
        self._use(kind, key, kept)
        return value

    def do(self, task: Task[Value]) -> Value:
        """What a task makes, as `of` returns it."""
        return self.of(task.kind, task.key, task.make)

    def ahead(self, tasks: Iterable[Task[Any]], jobs: int | None = None) -> None:
        """Let several processes do what nobody has done yet; whoever asks next is told what is wrong."""
        missing = [task for task in tasks if self.keeps and task.key and not self.knows(task.kind, task.key)]
        if workers.number(missing, jobs) > 1:
            for _ in self.shared(self._attempted, missing, jobs):
                pass

    def _attempted(self, task: Task[Any]) -> None:
        with suppress(SidelitError):
            self.do(task)

    def shared(
        self, function: Callable[[Item], Value], items: Sequence[Item], jobs: int | None = None
    ) -> Iterator[Value]:
        """The result of a function for each item, by several processes; what they ask for counts here."""

        def told(item: Item) -> tuple[Value, list[tuple[str, Key, bytes | None]]]:
            asked: list[tuple[str, Key, bytes | None]] = []
            self._asked = asked
            try:
                return function(item), asked
            finally:
                self._asked = None

        for value, asked in workers.shared(told, items, jobs):
            for kind, key, kept in asked:
                known = self._of_kind(kind)
                self._use(kind, key, known[key] if kept is None else kept)
            yield value

    def _use(self, kind: str, key: Key, kept: bytes) -> None:
        self._used.setdefault(kind, {})[key] = kept
        if self._asked is not None:
            self._asked.append((kind, key, None if self._known.get(kind, {}).get(key) is kept else kept))

    def alone(self, kind: str, key: Key, make: Callable[[], Value]) -> Value:
        """The same for what is large and seldom asked for: it is read by itself."""
        if not key or not self.keeps:
            return make()
        name = store.digest(_name(kind), key)
        if (kept := self.store.get(name)) is None:
            value = make()
            self.store.put(name, _written(value))
        else:
            value = pickle.loads(kept)
        return value

    def input(self, kind: str, digest: Callable[[str], str]) -> None:
        """Say what stands for an input of a kind, by the name that tasks `note` after `kind:`.

        An empty digest stands for nothing, and what has read such an input is not kept.
        """
        self._inputs[kind] = digest

    def recalled(self, kind: str, key: Key) -> Traced | None:
        """The result of a task that was remembered, if all that it has read is what it was."""
        if not key or not self.keeps or (kept := self.store.about(store.digest(_name(kind), key))) is None:
            return None
        found: Traced = pickle.loads(kept)
        return found if all(self._digest(name) == was for name, was in found.read.items()) else None

    def content(self, kind: str, key: Key) -> bytes | None:
        """The content of a result; nothing where the store has lost it."""
        return self.store.get(store.digest(_name(kind), key))

    def remember(
        self, kind: str, key: Key, value: object, read: set[str], content: bytes = b""
    ) -> Traced | None:
        """Keep the result of a task that has read so much; its content is read when it is asked for."""
        if not key or not self.keeps:
            return None
        digests = {name: self._digest(name) for name in sorted(read)}
        if not all(digests.values()):
            return None
        made = Traced(value, digests, store.digest(content))
        self.store.put(store.digest(_name(kind), key), content, _written(made))
        return made

    def left(self, kind: str, key: Key) -> Any:
        """What the build before this one, or this one, has left under a key; `None` if it left nothing."""
        if not self.keeps or (kept := self._of_kind(kind).get(key)) is None:
            return None
        self._use(kind, key, kept)
        return pickle.loads(kept)

    def leave(self, kind: str, key: Key, value: object) -> None:
        """Leave something for the next build that does not follow from its key."""
        if self.keeps:
            self._of_kind(kind)
            self._use(kind, key, _written(value))

    def _digest(self, name: str) -> str:
        if name not in self._digests:
            kind, _, rest = name.partition(":")
            try:
                self._digests[name] = self._inputs[kind](rest)
            except KeyError:
                self._digests[name] = ""  # It is not there any more, or nobody has said what stands for it.
        return self._digests[name]

    def __reduce__(self) -> tuple[type[Graph], tuple[()]]:
        """What refers to it does not take it along to another process or into another result."""
        return Graph, ()

    def keep(self) -> None:
        """Write all that was asked for, where it is not what was read."""
        for kind, used in self._used.items():
            if used != self._known[kind]:
                self.store.put(_name(kind), _written(used))

    def trim(self, most: int) -> None:
        """Remove the results that were not used for longest until all have at most so many bytes."""
        self.store.trim(most)

    def _of_kind(self, kind: str) -> dict[Key, bytes]:
        if kind not in self._known:
            kept = self.store.get(_name(kind))
            self._known[kind] = {} if kept is None else pickle.loads(kept)
        return self._known[kind]


def _written(value: object) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


@cache
def _name(kind: str) -> str:
    """A kind of this version of the press, of Python, and of all that is installed beside it."""
    return store.digest(kind, store.program(), store.environment())


# ## What is read is noted
#
# > A task looks at the site through mappings and sequences that note what is looked at.
#
# They also save room: a site may have more pages than memory has. What a page consists of is read from the
# store, or translated, when it is asked for; what was asked for last is at hand.


# The sets of those who want to know what is read.
_reading: list[set[str]] = []


def note(name: str) -> None:
    """Tell `noting` that something of this name is read."""
    for names in _reading:
        names.add(name)


@contextmanager
def noting() -> Iterator[set[str]]:
    """The names of all that is read in this block, when it is done."""
    names: set[str] = set()
    _reading.append(names)
    try:
        yield names
    finally:
        _reading.pop()


@contextmanager
def as_one(name: str) -> Iterator[None]:
    """Let `noting` know all that is read in this block by one name."""
    note(name)
    others = _reading[:]
    _reading.clear()
    try:
        yield
    finally:
        _reading[:] = others


Part = TypeVar("Part", covariant=True)
Name = TypeVar("Name")
Held = TypeVar("Held", covariant=True)

# A page takes sections from a few others.
AT_HAND = 16


class LazySequence(Sequence[Part]):
    """A sequence of a known length that `make` makes whenever it is not at hand; `name` is what is noted."""

    __slots__ = ("_length", "_make", "name")

    def __init__(self, make: Callable[[], tuple[Part, ...]], length: int, name: str = "") -> None:
        self._make, self._length, self.name = make, length, name

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> Part: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Part, ...]: ...

    def __getitem__(self, place: int | slice) -> Part | tuple[Part, ...]:
        return self._whole()[place]

    def __iter__(self) -> Iterator[Part]:
        return iter(self._whole())

    def _whole(self) -> tuple[Part, ...]:
        note(self.name)
        whole: tuple[Part, ...] = _made(self)
        return whole


@lru_cache(maxsize=AT_HAND)
def _made(kept: LazySequence[Any]) -> tuple[Any, ...]:
    return kept._make()


class Noted(Mapping[Name, Held]):
    """A mapping of which each look is noted by `name`, with the place that is looked at for `{}`."""

    def __init__(self, known: Mapping[Name, Held], name: str) -> None:
        self._known, self._name = known, name

    def __getitem__(self, place: Name) -> Held:
        note(self._name.format(place))
        return self._known[place]

    def __contains__(self, place: object) -> bool:
        # Which places there are is part of every key.
        return place in self._known

    def __iter__(self) -> Iterator[Name]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class NotedText(UserString):
    """A text that is noted when somebody reads it."""

    def __init__(self, text: str, name: str) -> None:
        self._text, self._name = text, name

    def _told(self) -> str:
        note(self._name)
        return self._text

    data: Any = property(_told)
