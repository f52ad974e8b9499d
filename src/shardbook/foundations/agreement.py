r"""# Do the ranks agree?

> Ranks compare what they are about to share before they share anything.

Every rank runs the same program, and each builds the model for itself. If one of them
reads another configuration, its vectors have other lengths. A collective does not
detect that. With equal total sizes the values of two parameters swap places, and no
error is raised; with unequal sizes the process aborts, or all ranks wait until the time
limit of their process group. After the exchange it is too late to say which parameter
it was.

So the ranks compare descriptions first. A description is small: about a hundred bytes a
parameter, whatever its size. All ranks get all descriptions, and each draws the same
conclusion. If one rank has to raise, every rank raises, with the same sentence, and
none is left waiting.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch.distributed as dist
from torch import Tensor

from shardbook.foundations.collectives import world

__all__ = ["Description", "Disagreement", "agree"]
# sidelit: show


class Disagreement(ValueError):
    """Ranks hold different modules, one holds a module that cannot be sharded, or [one
    leaves the common order](exchange_order.py).
    """


@dataclass(frozen=True, slots=True)
class Description:
    """What all ranks must have in common about one parameter or buffer.

    The device's number is not part of it, since each rank has a device of its own. Its
    type is.
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
    still agree, but the vectors have different lengths.
    """
    first: dict[int, str] = {}
    return [
        description(*parameter, first.setdefault(id(parameter[2]), parameter[1]))
        for parameter in parameters
    ]


def description(unit: str, name: str, parameter: Tensor, first: str) -> Description:
    """The description of one parameter, which was first met under the name `first`."""
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
    """Return if all ranks agree; raise the same error on all ranks if one does not.

    :param parameters: unit, name and parameter or buffer, in the order in which this
        rank will lay them out
    :param group: the ranks that must agree; `None` means all
    :param settings: what else has to be the same on every rank, as text
    :param objection: why this rank cannot go on, if it cannot; the other ranks then
        learn it, too
    :raises Disagreement: on every rank, naming the first rank that differs from rank 0,
        the parameter, and how
    :raises RuntimeError: if there is no process group yet
    """
    _, world_size = world(group)
    # A simulated group of one process, as the planner uses it, has nobody to ask.
    if dist.get_backend(group) == "fake":
        if objection is not None:
            raise Disagreement(objection)
        return
    # A rank with an objection still takes part in this exchange. If it raised before,
    # the others would wait here until their time limit.
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
    """The first parameter that is tied on only one of two ranks, or `None`."""
    # A tie can move a parameter into another unit, and then the lists no longer match
    # item by item. So ties are looked at first, by name.
    ties = {theirs.name: theirs.tied_to for theirs in expected}
    for ours in found:
        wanted = ties.get(ours.name, ours.tied_to)
        if wanted != ours.tied_to:
            return (
                f"{ours.name} in {ours.unit} is tied to {ours.tied_to or 'nothing'}, "
                f"on rank 0 to {wanted or 'nothing'}"
            )
    return None
