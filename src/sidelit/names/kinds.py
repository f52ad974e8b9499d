"""# What a value is

> As much of its type as is needed to say what a dot after it means.

What is not known is `None`, and nothing follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from sidelit.names.scopes import Binding


@dataclass(frozen=True, slots=True)
class Class:
    """A class itself: one of the project's, or one from outside by its dotted name."""

    what: Binding | str


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of a class.

    :param parts: of a container, what it holds: keys and values of a `dict`, elements of the others; of a
        tuple, that of each place.
    :param fixed: whether it is a tuple with as many places as `parts`.
    """

    what: Binding | str
    parts: tuple[Known | None, ...] = ()
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the project; `receiver` is what it is called on."""

    what: Binding
    receiver: Known | None = None


@dataclass(frozen=True, slots=True)
class Outside:
    """A module, a function or a class from outside, by its dotted name; `receiver` is what a method is called
    on.
    """

    name: str
    receiver: Known | None = None


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the project."""

    name: str


@dataclass(frozen=True, slots=True)
class Above:
    """What `super()` gives in a class: the classes above it, for an object or for a class."""

    what: Binding
    receiver: Known


@dataclass(frozen=True, slots=True)
class Either:
    """One of several."""

    kinds: tuple[Known, ...]


Known: TypeAlias = Class | Instance | Function | Outside | Module | Above | Either

NOTHING = Instance("builtins.None")


def either(kinds: Iterable[Known | None]) -> Known | None:
    """What a value is that is one of these. `None` is left out: who goes on with a dot has excluded it."""
    found: dict[Known, None] = {}
    for kind in kinds:
        if kind is None:
            return None
        for each in kind.kinds if isinstance(kind, Either) else (kind,):
            if each != NOTHING:
                found[each] = None
    if len(found) < 2:
        return next(iter(found), NOTHING)
    return Either(tuple(found))
