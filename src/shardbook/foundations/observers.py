r"""# Observers

> A program that watches a run learns when a model is sharded and when a unit acts.

`python -m shardbook.check` [watches a script](checked_run.py) for a few steps. It has to know
which models were sharded, and for which unit each byte is sent. The library itself says
so, in two places: around [`shard`](model.py#shard), and in [the labels](labels.py) that
stand around the acts of a unit already.

In a normal run the list below is empty. Then a call asks whether a list is empty, and
that is all that it costs.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

__all__ = ["Observer", "observed", "observers"]

P = ParamSpec("P")
R = TypeVar("R")
# sidelit: show


class Observer(Protocol):
    """Who is told what begins and what ends. The calls nest as the acts do."""

    def begins(self, act: str, about: Any) -> None:
        """An act begins, such as `"gather"`.

        :param about: the name of the unit; of a call, its arguments
        """

    def ends(self, act: str, about: Any) -> None:
        """The same act has ended.

        :param about: the name of the unit; of a call, what it has returned
        """


# Whoever watches this process.
observers: list[Observer] = []


def observed(function: Callable[P, R]) -> Callable[P, R]:
    """Let observers know of each call. A call that raises does not end.

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
