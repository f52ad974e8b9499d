r"""# Observers

> A program that watches a run is called when a model is sharded and when a unit acts.

`python -m shardbook.check` [watches a script](checked_run.py) for a few steps. It needs
to know which models were sharded, and for which unit each byte is sent. The library
calls it in two places: around [`shard`](model.py#shard), and in [the labels](labels.py)
that are around each action of a unit anyway.

In a normal run the list of observers is empty. A call then checks whether the list is
empty, and that is its whole cost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

__all__ = ["Observer", "observed", "observers"]

# sidelit: hide
P = ParamSpec("P")
R = TypeVar("R")
# sidelit: show


class Observer(Protocol):
    """An object that is called when an action begins and when it ends.

    These calls nest as the actions do.
    """

    def begins(self, act: str, about: Any) -> None:
        """An action begins, such as `"gather"`.

        :param about: the name of the unit; for a function call, its arguments
        """

    def ends(self, act: str, about: Any) -> None:
        """The same action has ended.

        :param about: the name of the unit; for a function call, its result
        """


# The observers of this process.
observers: list[Observer] = []


def observed(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function report each of its calls to the observers.

    A call that raises an error has a beginning and no end.

    >>> class Prints:
    ...     def begins(self, act, about):
    ...         print(act, *about)
    ...     def ends(self, act, about):
    ...         print(act, "gives", about)
    >>> observers.append(Prints())
    >>> observed(abs)(-1)
    abs -1
    abs gives 1
    1
    >>> _ = observers.pop()
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not observers:
            return function(*args, **kwargs)
        act = function.__name__
        for observer in observers:
            observer.begins(act, (*args, *kwargs.items()))
        result = function(*args, **kwargs)
        for observer in observers:
            observer.ends(act, result)
        return result

    return call
