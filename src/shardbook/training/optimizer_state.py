r"""# Saving and loading optimizer state

> The state of an optimizer, put together from all ranks, and cut into slices again.

AdamW keeps two numbers for each element of a parameter. In stages 1 to 3 a rank has
them only for its slices, so `optimizer.state_dict()` holds a part that no other number
of ranks could use. [As for the parameters](state_dict.py), the whole is what can be
saved and read elsewhere:

```python
whole = optimizer_state_dict(model, optimizer)  # on all ranks
if torch.distributed.get_rank() == 0:
    torch.save(whole, "optimizer.pt")
...
load_optimizer_state_dict(model, optimizer, torch.load("optimizer.pt"))
```

The result looks like `optimizer.state_dict()` of the plain model: the same numbers for
the parameters, the same entries, the same shapes. A plain program can load it, and what
a plain program has saved can be loaded here, at any stage and on any number of ranks.

Each entry of each [flat vector](flat.py) is gathered by itself. So beside the result a
rank holds one vector of $P_u$ elements at a time.

:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shardbook.foundations.agreement import Disagreement
from shardbook.foundations.collectives import all_gather, world
from shardbook.foundations.layout import Slot, views
from shardbook.parameters.flat import owner_of
from shardbook.parameters.gradients import FlatWithGradients
from shardbook.zero.conductor import conductor_of
from shardbook.zero.unit import Unit

__all__ = ["load_optimizer_state_dict", "optimizer_state_dict"]

StateDict = dict[str, Any]
# sidelit: show


@torch.no_grad()
def optimizer_state_dict(model: nn.Module, optimizer: Optimizer) -> StateDict:
    """The state of an optimizer as that of the plain model: whole, on the CPU.

    Collective: all ranks call it, and each gets the whole.

    :param model: a model that was sharded
    :param optimizer: trains parameters of the model, all of them or some
    :returns: a new dictionary in the form of `optimizer.state_dict()`; a parameter that
        has never been stepped has no entry
    :raises ValueError: if the model is not sharded, or a parameter belongs to another
    :raises Disagreement: on every rank, if the ranks hold different state
    """
    found = optimizer.state_dict()
    slices = slices_of(model, optimizer)
    state = {
        number: {key: copied(value, "cpu") for key, value in entries.items()}
        for number, entries in found["state"].items()
    }
    entries = list(entries_of_slices(found["state"], slices))
    refuse_different(model, entries)
    for unit, flat, key, dtype in dict.fromkeys(entry.vector for entry in entries):
        here = [e for e in entries if e.vector == (unit, flat, key, dtype)]
        part = torch.zeros(flat.layout.shard_numel, dtype=dtype, device=flat.device)
        for entry in here:
            start, stop, _ = flat.places[entry.place.index]
            part[start:stop] = entry.value
        whole = gathered(unit, part, f"the optimizer's {key}").cpu()
        shaped = views(flat.layout, whole)
        for entry in here:
            # A view would keep the whole vector alive.
            state[entry.number][key] = shaped[entry.place.index].clone()
    return {**found, "state": state}


def load_optimizer_state_dict(
    model: nn.Module, optimizer: Optimizer, state_dict: StateDict
) -> None:
    """Load the state of the plain model's optimizer, of which each rank keeps its part.

    Nothing is exchanged: every rank is given the whole.

    :param model: a model that was sharded
    :param optimizer: trains parameters of the model in the order in which the saved
        optimizer did
    :param state_dict: as `optimizer_state_dict` returns it, or the `state_dict` of an
        unsharded optimizer; it stays as it is
    :raises ValueError: if the shape of an entry is not that of the whole parameter, and
        whatever `optimizer.load_state_dict` raises
    """
    slices = slices_of(model, optimizer)
    alone = keys_of_numbers(state_dict["state"])
    state = {
        number: {
            key: cut(value, slices[number], key)
            if number in slices and isinstance(value, Tensor) and key not in alone
            else copied(value)
            for key, value in entries.items()
        }
        for number, entries in state_dict["state"].items()
    }
    optimizer.load_state_dict({**state_dict, "state": state})


@dataclass(frozen=True, slots=True)
class Slice:
    """A parameter of which this rank has a slice.

    :param index: its number in the flat vector
    """

    unit: Unit
    flat: FlatWithGradients
    index: int

    @property
    def slot(self) -> Slot:
        """Its place in the flat vector."""
        return self.flat.layout.slots[self.index]

    @property
    def parameter(self) -> nn.Parameter:
        """The model's own parameter."""
        return self.flat.parameters[self.index]


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of state that has a value for each element of a slice.

    :param number: of the parameter in the optimizer
    """

    number: int
    place: Slice
    key: str
    value: Tensor

    @property
    def vector(self) -> tuple[Unit, FlatWithGradients, str, torch.dtype]:
        """What is gathered together with it."""
        return self.place.unit, self.place.flat, self.key, self.value.dtype


def slices_of(model: nn.Module, optimizer: Optimizer) -> dict[int, Slice]:
    """The slices among an optimizer's parameters, each under the number that PyTorch
    gives to the parameter: in the order of the groups.
    """
    found = {
        id(parameter): Slice(unit, flat, index)
        for unit in conductor_of(model).drivers
        for flat in unit.flats
        for index, parameter in enumerate(flat.parameters)
    }
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    refuse_strangers(optimizer, [p for p in ordered if id(p) not in found])
    return {
        number: found[id(parameter)]
        for number, parameter in enumerate(ordered)
        if id(parameter) in found and found[id(parameter)].flat.sliced
    }


def entries_of_slices(
    state: dict[int, StateDict], slices: dict[int, Slice]
) -> Iterator[Entry]:
    """The entries of state that are to be put together.

    An entry has the shape of the slice, or it is one number for the whole parameter,
    such as the count of its steps. Such a number is the same on all ranks.
    """
    for number, place in slices.items():
        shape = place.flat.parameters[place.index].shape
        for key, value in state.get(number, {}).items():
            if isinstance(value, Tensor) and value.shape == shape:
                yield Entry(number, place, key, value)


def gathered(unit: Unit, part: Tensor, what: str) -> Tensor:
    """The parts of all ranks, side by side."""
    group = unit.groups.shards
    whole = part.new_empty(part.numel() * world(group)[1])
    unit.order.before("gather", what, unit.sites[0].name)
    gathering = all_gather(whole, part, group=group)
    unit.order.watch(gathering.works)
    gathering.wait()
    return whole


def cut(value: Tensor, place: Slice, key: str) -> Tensor:
    """This rank's slice of an entry."""
    slot, flat = place.slot, place.flat
    refuse_shape(value, slot, key)
    start, stop, _ = flat.places[place.index]
    # A rank whose part begins inside of the parameter has not its first elements.
    first = max(0, place.unit.rank * flat.layout.shard_numel - slot.offset)
    return value.flatten()[first : first + stop - start].clone()


def copied(value: Any, device: str | None = None) -> Any:
    """A copy of a tensor, so that the next step does not change what was saved."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(device or value.device, copy=True)


# sidelit: depth Parameters without dimensions, and state that differs between ranks or from the model.


def keys_of_numbers(state: dict[int, StateDict]) -> set[str]:
    """The entries that are one number for the whole parameter, such as `step`.

    They have no dimensions, whatever shape the parameter has. For a parameter without
    dimensions this cannot be seen from its own entries, so those of the others decide.

    >>> keys_of_numbers({0: {"step": torch.tensor(1.0), "mean": torch.ones(2)},
    ...                  1: {"step": torch.tensor(1.0), "mean": torch.tensor(1.0)}})
    {'step'}
    """
    dimensions: dict[str, int] = {"step": 0}
    for entries in state.values():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                dimensions[key] = max(dimensions.get(key, 0), value.dim())
    return {key for key, most in dimensions.items() if most == 0}


def refuse_different(model: nn.Module, entries: list[Entry]) -> None:
    """Make sure that all ranks are about to gather the same.

    Ranks compare one number, which stands for the names of all entries.

    :raises Disagreement: on every rank
    """
    names = [(e.number, e.key, str(e.value.dtype)) for e in entries]
    digest = int.from_bytes(sha256(repr(names).encode()).digest()[:7], "big")
    unit = next(iter(conductor_of(model).drivers), None)
    if unit is None:
        return
    mine = torch.tensor([digest], device=unit.flats[0].device)
    unit.order.begin("optimizer state")
    if gathered(unit, mine, "the names of the optimizer's state").unique().numel() > 1:
        raise Disagreement(
            "ranks hold different optimizer state; step the optimizer equally often on "
            "every rank, and load the same state"
        )


def refuse_strangers(optimizer: Optimizer, others: list[nn.Parameter]) -> None:
    """Refuse an optimizer that also trains another sharded model.

    :param others: the parameters that are not of this model
    :raises ValueError: if one of them is sharded
    """
    if any(owner_of(parameter) is not None for parameter in others):
        raise ValueError(
            f"this {type(optimizer).__name__} trains parameters of another sharded "
            "model; use one optimizer for each model"
        )


def refuse_shape(value: Tensor, slot: Slot, key: str) -> None:
    """Refuse an entry that is not of the whole parameter, such as one rank's part.

    :raises ValueError: naming the parameter and both shapes
    """
    if value.shape != slot.shape:
        raise ValueError(
            f"{key} of {slot.names[0]} has shape {tuple(value.shape)}, and the whole "
            f"parameter {tuple(slot.shape)}; load what optimizer_state_dict() returned, "
            "or the state of an unsharded optimizer"
        )
