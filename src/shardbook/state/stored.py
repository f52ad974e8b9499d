r"""# What a rank stores in a checkpoint

> A rank describes its part of each tensor as a stretch: the tensor's name, its shape,
> and a range of its elements.

A checkpoint consists of named tensors with the shapes of the plain model. A rank has a
few elements of each tensor. So it describes them as *stretches*: a name, a shape, and
the elements from `start` on. Take 3 ranks in stage 3, and a parameter of 20 elements:

| | rank 0 | rank 1 | rank 2 |
|---|---|---|---|
| has the elements | 0 to 6 | 7 to 13 | 14 to 19 |
| writes | 0 to 6 | 7 to 13 | 14 to 19 |

If several ranks have the same elements, each writes its share. So each element is
written once, and all ranks write equally much. In stage 0:

| | rank 0 | rank 1 | rank 2 |
|---|---|---|---|
| has the elements | 0 to 19 | 0 to 19 | 0 to 19 |
| writes | 0 to 5 | 6 to 12 | 13 to 19 |

The names are those of PyTorch's own checkpoints: `model.` before the name of a parameter
or buffer, as in `model.norm.bias`. For optimizer state, `optim.state.` comes before the
parameter's name and the entry after it: `optim.state.norm.bias.exp_avg`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from shardbook.foundations.collectives import world
from shardbook.foundations.groups import Groups
from shardbook.foundations.torch_private import as_plain
from shardbook.state.boxes import Box, boxes
from shardbook.state.plain_data import plain
from shardbook.training.optimizer_state import Slice, keys_of_numbers, refuse_in_parts
from shardbook.zero.conductor import conductor_of

__all__ = [
    "MODEL",
    "OPTIMIZER",
    "Stretch",
    "entry",
    "places_in",
    "share_of",
    "stretches",
    "stretches_of_state",
]

MODEL, OPTIMIZER = "model", "optim.state"


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """A range of elements of a tensor of the plain model, on this rank.

    :param names: the names under which the tensor is stored; a tied parameter has
        several
    :param shape: the shape of the whole tensor
    :param start: the number of the first element
    :param values: the elements, of shape `(n,)`; loading writes into them
    :param share: `(i, n)`: this is rank `i` of the `n` ranks with the same elements
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    start: int
    values: Tensor
    share: tuple[int, int] = (0, 1)

    @property
    def name(self) -> str:
        """The first name. The bytes are written under this name."""
        return self.names[0]

    @property
    def whole(self) -> Tensor:
        """The tensor in its shape, if this rank has all of its elements."""
        return self.values.view(self.shape)

    @property
    def own(self) -> Stretch:
        """The share of the stretch that this rank writes."""
        index, count = self.share
        size = self.values.numel()
        first, last = size * index // count, size * (index + 1) // count
        part = self.values[first:last]
        return Stretch(self.names, self.shape, self.start + first, part)

    def views(self) -> Iterator[tuple[Box, Tensor]]:
        """The [boxes](boxes.py) of the stretch, each with its elements in the shape of the box."""
        at = 0
        for box in boxes(self.shape, self.start, self.start + self.values.numel()):
            yield box, self.values[at : at + box.numel].view(box.sizes)
            at += box.numel


def stretches(model: nn.Module, *, frozen: bool = True) -> Iterator[Stretch]:
    """The stretches of a sharded model's parameters, in the order of its units.

    The values share memory with the model, so a value written into a stretch is loaded.

    :param frozen: whether to include parameters that require no gradient
    """
    for place in places(model):
        if not frozen and not place.parameter.requires_grad:
            continue
        names = tuple(f"{MODEL}.{name}" for name in place.slot.names)
        with as_plain():
            yield stretch(place, names, place.parameter.detach())


def stretches_of_state(
    model: nn.Module, optimizer: Optimizer
) -> tuple[list[Stretch], dict[str, dict[str, Any]]]:
    """The stretches of an optimizer's state, and what is no tensor by the names of the
    parameter and the entry.

    :raises ValueError: naming an entry that a checkpoint has no place for
    """
    state = optimizer.state_dict()["state"]
    alone = keys_of_numbers(state)
    found: list[Stretch] = []
    rest: dict[str, dict[str, Any]] = {}
    for number, place in enumerate(places_in(model, optimizer)):
        name = place.slot.names[0]
        for key, value in () if place.absent else state.get(number, {}).items():
            if place.cut:
                refuse_in_parts(place, key, value)
            if isinstance(value, Tensor):
                found.append(entry(place, key, value, alone=key in alone))
                continue
            kept: dict[str, Tensor] = {}
            rest.setdefault(name, {})[key] = plain(value, key, kept)
            found += [entry(place, k, each, alone=True) for k, each in kept.items()]
    return found, rest


def entry(place: Slice, key: str, value: Tensor, *, alone: bool) -> Stretch:
    """The stretch of one entry of a parameter's state.

    Most entries have an element for each element of the parameter, such as `exp_avg`.
    Others are one number for the whole parameter, such as the count of steps, and are
    the same on all ranks. If a rank has the whole parameter, it may also have state of
    another shape, such as Adafactor's rows and columns.

    :param alone: whether the entry is not cut like the parameter
    """
    names = (f"{OPTIMIZER}.{place.slot.names[0]}.{key}",)
    other = not place.cut and value.shape != place.slot.shape
    if not alone and not other:
        return stretch(place, names, value)
    share = share_of(place.unit.groups, sliced=place.apart)
    return Stretch(names, tuple(value.shape), 0, value.reshape(-1), share)


def stretch(place: Slice, names: tuple[str, ...], values: Tensor) -> Stretch:
    """The stretch of a tensor that has the shape of a parameter and is cut like it."""
    flat, slot = place.flat, place.slot
    # If this rank's part begins inside the parameter, its first elements are on a lower
    # rank.
    first = place.unit.rank * flat.layout.shard_numel if flat.sliced else 0
    start = min(max(0, first - slot.offset), slot.numel)
    share = share_of(place.unit.groups, sliced=flat.sliced)
    return Stretch(names, tuple(slot.shape), start, values.view(-1), share)


def share_of(groups: Groups, *, sliced: bool) -> tuple[int, int]:
    """The number of this rank among those with the same elements, and how many there are.

    A slice is on one rank of each copy of the model. A tensor that is not cut is on all
    ranks.
    """
    copy, copies = (0, 1) if groups.replicas is None else world(groups.replicas)
    if sliced:
        return copy, copies
    rank, ranks = world(groups.shards)
    return rank * copies + copy, ranks * copies


def places(model: nn.Module) -> Iterator[Slice]:
    """The slices of a model's parameters."""
    for unit in conductor_of(model).drivers:
        for flat in unit.flats:
            for index in range(len(flat.parameters)):
                yield Slice(unit, flat, index)


def places_in(model: nn.Module, optimizer: Optimizer) -> Iterator[Slice]:
    """The slices of an optimizer's parameters, in the order of their numbers."""
    found = {id(place.parameter): place for place in places(model)}
    for group in optimizer.param_groups:
        yield from (found[id(parameter)] for parameter in group["params"])
