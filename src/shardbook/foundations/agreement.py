r"""# The ranks compare their models

> Before the ranks exchange any parameter, they compare the names, shapes and settings of their models.

Every rank runs the same program, and each builds the model for itself. Suppose one of
them reads another configuration. Its vectors then have another layout, and a collective
does not detect that. If the total sizes are equal, the values of two parameters swap
places, and no error is raised. If the sizes differ, the process aborts, or all ranks
wait until the time limit of their process group. After the exchange nothing can tell
which parameter was wrong.

So the ranks compare descriptions before the first exchange. A description takes about a
hundred bytes for each parameter, whatever the parameter's size. All ranks get all
descriptions, so each comes to the same result. If one rank has to raise an error, every
rank raises the same error, and no rank is left waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch.distributed as dist
from torch import Tensor

from shardbook.foundations.collectives import world

__all__ = ["Description", "Disagreement", "agree"]


class Disagreement(ValueError):
    """An error that all ranks raise, because they differ.

    They hold different modules, or one of them holds a module that cannot be sharded,
    or [one leaves the common order](exchange_order.py) of exchanges.
    """


@dataclass(frozen=True, slots=True)
class Description:
    """The properties of one parameter or buffer that must be equal on all ranks.

    The device's type is one of them. Its index is not, since each rank has a device of
    its own.
    """

    unit: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    requires_grad: bool
    tied_to: str | None = None


def describe(parameters: Sequence[tuple[str, str, Tensor]]) -> list[Description]:
    """The descriptions of parameters and buffers.

    A tied parameter is stored once. If it is tied on one rank only, names and shapes
    still agree, but the vectors have different lengths. So a description says to which
    name it is tied.
    """
    first: dict[int, str] = {}
    return [
        description(*parameter, first.setdefault(id(parameter[2]), parameter[1]))
        for parameter in parameters
    ]


def description(unit: str, name: str, parameter: Tensor, first: str) -> Description:
    """The description of one parameter.

    :param first: the first name under which the parameter was found
    """
    return Description(
        unit=unit,
        name=name,
        shape=tuple(parameter.shape),
        dtype=str(parameter.dtype).removeprefix("torch."),
        device=parameter.device.type,
        requires_grad=parameter.requires_grad,
        tied_to=None if first == name else first,
    )


def agree(
    parameters: Sequence[tuple[str, str, Tensor]],
    group: Any = None,
    *,
    settings: str = "",
    objection: str | None = None,
) -> None:
    """Return if all ranks agree, and raise the same error on all ranks if one does not.

    :param parameters: unit, name and parameter or buffer, in the order in which this
        rank will lay them out
    :param group: the ranks that must agree; `None` means all
    :param settings: further settings that must be equal on every rank, as text
    :param objection: the reason why this rank cannot continue, if there is one; every
        rank then raises it
    :raises Disagreement: on every rank, naming the first rank that differs from rank 0,
        the parameter, and the difference
    :raises RuntimeError: if there is no process group yet
    """
    _, world_size = world(group)
    # In a simulated group of one process, as the planner uses it, there are no other
    # ranks.
    if dist.get_backend(group) == "fake":
        if objection is not None:
            raise Disagreement(objection)
        return
    # A rank with an objection still takes part in this exchange. If it raised an error
    # before it, the other ranks would wait here until their time limit.
    mine = [] if objection else describe(parameters)
    answers: list[Any] = [None] * world_size
    dist.all_gather_object(answers, (objection, settings, mine), group=group)
    for rank, (objected, _, _) in enumerate(answers):
        if objected is not None:
            raise Disagreement(f"rank {rank}: {objected}")
    _, agreed, expected = answers[0]
    for rank, (_, theirs, found) in enumerate(answers):
        if theirs != agreed:
            raise Disagreement(
                f"rank {rank} shards with {theirs}, rank 0 with {agreed}; "
                "call shard with the same arguments on every rank"
            )
        difference = compare(expected, found)
        if difference is not None:
            raise Disagreement(
                f"rank {rank} differs from rank 0: {difference}; "
                "build the same module on every rank"
            )


def compare(
    expected: Sequence[Description], found: Sequence[Description]
) -> str | None:
    """The first difference between rank 0's parameters and another rank's, or `None`.

    >>> a = Description("block 0", "weight", (4, 4), "float32", "cpu", True)
    >>> b = Description("block 0", "weight", (4, 8), "float32", "cpu", True)
    >>> compare([a], [b])
    'weight in block 0 has shape (4, 8) instead of (4, 4)'
    >>> compare([a], [])
    'weight in block 0 is missing'
    """
    if (tied := tied_otherwise(expected, found)) is not None:
        return tied
    for theirs, ours in zip(expected, found, strict=False):
        here = f"{ours.name} in {ours.unit}"
        for field in fields(Description):
            wanted, got = getattr(theirs, field.name), getattr(ours, field.name)
            if wanted != got:
                if field.name in ("unit", "name"):
                    expected_here = f"{theirs.name} in {theirs.unit}"
                    return f"{here} stands where {expected_here} is expected"
                return f"{here} has {field.name} {got} instead of {wanted}"
    if len(found) < len(expected):
        missing = expected[len(found)]
        return f"{missing.name} in {missing.unit} is missing"
    if len(found) > len(expected):
        extra = found[len(expected)]
        return f"{extra.name} in {extra.unit} is one parameter too many"
    return None


# sidelit: depth A parameter that is tied on one rank and not on another.


def tied_otherwise(
    expected: Sequence[Description], found: Sequence[Description]
) -> str | None:
    """The first parameter that is tied on only one of two ranks, as a message, or `None`."""
    # A tie can move a parameter into another unit, and then the two lists no longer
    # match item by item. So ties are compared first, by name.
    ties = {theirs.name: theirs.tied_to for theirs in expected}
    for ours in found:
        wanted = ties.get(ours.name, ours.tied_to)
        if wanted != ours.tied_to:
            return (
                f"{ours.name} in {ours.unit} is tied to {ours.tied_to or 'nothing'}, "
                f"on rank 0 to {wanted or 'nothing'}"
            )
    return None
