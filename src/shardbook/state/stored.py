r"""# What a rank stores

> Each parameter, buffer and entry of optimizer state by name, with the stretch of it that lies on this rank.

A checkpoint is made of named tensors in the shapes of the plain model. A rank knows a
few elements of each. So it describes what it has as *stretches*: a name, a shape, and
the elements from `start` on. With 3 ranks in stage 3, of a parameter of 20 elements:

| | rank 0 | rank 1 | rank 2 |
|---|---|---|---|
| has the elements | 0 to 6 | 7 to 13 | 14 to 19 |
| writes | 0 to 6 | 7 to 13 | 14 to 19 |

Where several ranks have the same elements, each writes its share of them, so that every
element is written once and the ranks write equally much. In stage 0:

| | rank 0 | rank 1 | rank 2 |
|---|---|---|---|
| has the elements | 0 to 19 | 0 to 19 | 0 to 19 |
| writes | 0 to 5 | 6 to 12 | 13 to 19 |

The names are those that PyTorch's own checkpoints have: `model.` before the name of a
parameter or buffer, and `optim.state.` before that of the parameter that an optimizer's
entry belongs to.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from shardbook.foundations.collectives import world
from shardbook.foundations.groups import Groups
from shardbook.foundations.torch_private import as_plain
from shardbook.state.boxes import Box, boxes
from shardbook.training.optimizer_state import Slice, keys_of_numbers
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
# sidelit: show

MODEL, OPTIMIZER = "model", "optim.state"


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Some elements of a tensor of the plain model, as they lie on this rank.

    :param names: under which the tensor is stored; a tied parameter has several
    :param shape: of the whole tensor
    :param start: the number of its first element here
    :param values: the elements themselves, of shape `(n,)`; a checkpoint is read into them
    :param share: which of how many ranks with the same elements this is
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    start: int
    values: Tensor
    share: tuple[int, int] = (0, 1)

    @property
    def name(self) -> str:
        """The first name, under which the bytes are written."""
        return self.names[0]

    @property
    def whole(self) -> Tensor:
        """The tensor in its shape, if all of its elements lie here."""
        return self.values.view(self.shape)

    @property
    def own(self) -> Stretch:
        """What this rank writes of it."""
        index, count = self.share
        size = self.values.numel()
        first, last = size * index // count, size * (index + 1) // count
        part = self.values[first:last]
        return Stretch(self.names, self.shape, self.start + first, part)

    def views(self) -> Iterator[tuple[Box, Tensor]]:
        """Its [boxes](boxes.py), each with the elements in the shape of the box."""
        at = 0
        for box in boxes(self.shape, self.start, self.start + self.values.numel()):
            yield box, self.values[at : at + box.numel].view(box.sizes)
            at += box.numel


def stretches(model: nn.Module, *, frozen: bool = True) -> Iterator[Stretch]:
    """The stretches of a sharded model's parameters, in the order of its units.

    Their values share memory with the model: to write into them is to load.

    :param frozen: whether those are among them that require no gradient
    """
    for place in places(model):
        if not frozen and not place.parameter.requires_grad:
            continue
        names = tuple(f"{MODEL}.{name}" for name in place.slot.names)
        with as_plain():
            yield stretch(place, names, place.parameter.detach())


def stretches_of_state(
    model: nn.Module, optimizer: Optimizer
) -> Iterator[tuple[int, str, Stretch]]:
    """The stretches of an optimizer's state.

    :returns: the number of the parameter in the optimizer, the entry's key, the stretch
    """
    state = optimizer.state_dict()["state"]
    alone = keys_of_numbers(state)
    for number, place in enumerate(places_in(model, optimizer)):
        for key, value in state.get(number, {}).items():
            if isinstance(value, Tensor):
                yield number, key, entry(place, key, value, alone=key in alone)


def entry(place: Slice, key: str, value: Tensor, *, alone: bool) -> Stretch:
    """An entry of the state of one parameter.

    It has an element for each of the parameter's, or it is one number for all of them,
    such as the count of steps, which is the same on all ranks.
    """
    names = (f"{OPTIMIZER}.{place.slot.names[0]}.{key}",)
    if not alone:
        return stretch(place, names, value)
    share = share_of(place.unit.groups, sliced=False)
    return Stretch(names, tuple(value.shape), 0, value.view(-1), share)


def stretch(place: Slice, names: tuple[str, ...], values: Tensor) -> Stretch:
    """The elements of a tensor that is shaped and cut like a parameter."""
    flat, slot = place.flat, place.slot
    # A rank whose part begins inside of the parameter has not its first elements.
    first = place.unit.rank * flat.layout.shard_numel if flat.sliced else 0
    start = min(max(0, first - slot.offset), slot.numel)
    share = share_of(place.unit.groups, sliced=flat.sliced)
    return Stretch(names, tuple(slot.shape), start, values.view(-1), share)


def share_of(groups: Groups, *, sliced: bool) -> tuple[int, int]:
    """Which of how many ranks with the same elements this is.

    A slice lies on one rank of each copy of the model. What is not cut lies on all.
    """
    copy, copies = (0, 1) if groups.replicas is None else world(groups.replicas)
    if sliced:
        return copy, copies
    rank, ranks = world(groups.shards)
    return rank * copies + copy, ranks * copies


def places(model: nn.Module) -> Iterator[Slice]:
    """Where each parameter of a model lies."""
    for unit in conductor_of(model).drivers:
        for flat in unit.flats:
            for index in range(len(flat.parameters)):
                yield Slice(unit, flat, index)


def places_in(model: nn.Module, optimizer: Optimizer) -> Iterator[Slice]:
    """Where an optimizer's parameters lie, in the order in which it numbers them."""
    found = {id(place.parameter): place for place in places(model)}
    for group in optimizer.param_groups:
        yield from (found[id(parameter)] for parameter in group["params"])
