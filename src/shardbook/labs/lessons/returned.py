"""What the checks share: a call that leaves its arguments as they were, and the kinds of its result."""

from __future__ import annotations

import copy
import math
import numbers
import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.labs.notebook import expect
from shardbook.labs.words import tell

__all__ = ["called", "expect_dtype", "number", "plain", "tensor", "whole_number"]


def called(
    name: str, given: Callable[..., Any], *arguments: Any, look: str = ""
) -> Any:
    """The result of an answer that does not change its arguments.

    :param look: where to look for the reason of a change
    """
    before = copy.deepcopy(arguments)
    found = given(*arguments)
    expect(
        same(arguments, before),
        tell("{name} has changed an argument of its caller.", name=name),
        look=look or tell("The caller still needs it. Write into memory of your own."),
    )
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two arguments have the same values, and their tensors the same dtypes."""
    if isinstance(one, nn.Module):
        return same(dict(one.state_dict()), dict(other.state_dict()))
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping):
        return list(one) == list(other) and same([*one.values()], [*other.values()])
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    # An argument that is a function is called, and one that is an iterator is read.
    return one == other or callable(one) or hasattr(one, "__next__")


def plain(found: Any) -> Any:
    """Python's own value of a tensor or an array without dimensions."""
    return found.item() if getattr(found, "ndim", None) == 0 else found


def number(name: str, found: object) -> float:
    """The number that an answer has returned: an `int` or a `float`."""
    value = plain(found)
    real = isinstance(value, numbers.Real | Decimal) and not isinstance(value, bool)
    expect(
        real and not (isinstance(value, float | Decimal) and math.isnan(value)),
        tell("{name} returned {found!r}, which is no number.", name=name, found=found),
        look=look_at_return(name, found),
    )
    return (
        operator.index(value) if isinstance(value, numbers.Integral) else float(value)
    )


def whole_number(found: object) -> int | None:
    """The whole number that an answer has returned; `None` for anything else."""
    value = plain(found)
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return operator.index(value)
    return None


def tensor(name: str, found: object) -> Tensor:
    """The tensor that an answer has returned."""
    expect(
        isinstance(found, Tensor),
        tell("{name} returned {found!r}, which is no tensor.", name=name, found=found),
        look=look_at_return(name, found),
    )
    assert isinstance(found, Tensor)
    return found


def expect_dtype(name: str, found: Tensor, wanted: torch.dtype, look: str = "") -> None:
    """Refuse values in another format than that of the argument."""
    expect(
        found.dtype == wanted,
        tell(
            "{name} returned values in {dtype}, but they should be in {wanted}.",
            name=name,
            dtype=found.dtype,
            wanted=wanted,
        ),
        look=look
        or tell("New tensors get the dtype of the argument: `dtype=argument.dtype`."),
    )


def look_at_return(name: str, found: object) -> str:
    """Where to look if a result is of the wrong kind: a function may also print it."""
    if found is None:
        return tell("Does the function end with `return`?")
    return tell("What should {name} return, and what does it return?", name=name)
