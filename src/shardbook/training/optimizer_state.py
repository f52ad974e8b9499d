r"""# Saving and loading optimizer state

> The optimizer's state is gathered from all ranks for saving, and cut into slices again for loading.

AdamW keeps two numbers for each element of a parameter. In stages 1 to 3 a rank has
these numbers only for its slices. So `optimizer.state_dict()` would be useless on
another number of ranks. As [for the parameters](state_dict.py), you therefore save the
whole state:

```python
whole = optimizer_state_dict(model, optimizer)  # on all ranks
if torch.distributed.get_rank() == 0:
    torch.save(whole, "optimizer.pt")
...
load_optimizer_state_dict(model, optimizer, torch.load("optimizer.pt"))
```

The result looks like `optimizer.state_dict()` of the plain model: the same numbers for
the parameters, the same entries, the same shapes. A plain program can load this result.
In the other direction, state from a plain program can be loaded here, at any stage and
on any number of ranks.

The ranks gather one entry of one [flat vector](flat.py) at a time. So beside the result
a rank needs memory for a single vector of $P_u$ elements. The state of a parameter that
[is not cut](layout.py#uncut_offsets) is on one rank, which sends it to the others as it
is.

:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from shardbook.foundations.agreement import Disagreement
from shardbook.foundations.collectives import all_gather, world
from shardbook.foundations.layout import Slot, views
from shardbook.foundations.torch_private import tree_leaves, tree_map_only
from shardbook.zero.flat import Flat, owner_of
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.unit import Unit

__all__ = [
    "groups_as_text",
    "kept_by_absent",
    "load_optimizer_state_dict",
    "optimizer_state_dict",
    "refuse_in_parts",
]

# sidelit: hide
StateDict = dict[str, Any]
# sidelit: show


@torch.no_grad()
def optimizer_state_dict(model: nn.Module, optimizer: Optimizer) -> StateDict:
    """Gather the state of an optimizer, in the form of the plain model's, on the CPU.

    Collective: all ranks call this function, and each gets the whole state.

    :param model: a model that was sharded
    :param optimizer: an optimizer of some or all parameters of the model
    :returns: a new dictionary in the form of `optimizer.state_dict()`; a parameter that
        the optimizer has never stepped has no entry
    :raises ValueError: if the model is not sharded, a parameter belongs to another
        sharded model, or the state of a slice holds tensors of another shape
    :raises Disagreement: on every rank, if the ranks hold different state
    """
    found = optimizer.state_dict()
    slices = slices_of(model, optimizer)
    state = {
        number: {key: copied(value, "cpu") for key, value in entries.items()}
        for number, entries in found["state"].items()
    }
    in_parts = {n: place for n, place in slices.items() if place.cut}
    entries = list(entries_of_slices(found["state"], in_parts))
    refuse_different(model, optimizer, entries)
    for unit, flat, key, dtype in dict.fromkeys(entry.vector for entry in entries):
        here = [e for e in entries if e.vector == (unit, flat, key, dtype)]
        part = torch.zeros(flat.layout.shard_numel, dtype=dtype, device=flat.device)
        for entry in here:
            start, stop, _ = flat.places[entry.place.index]
            part[start:stop] = entry.value
        whole = gathered(unit, part, f"the optimizer's {key}").cpu()
        shaped = views(flat.layout, whole)
        for entry in here:
            # A view instead of a clone would keep the whole vector in memory.
            state[entry.number][key] = shaped[entry.place.index].clone()
    for number in sorted(slices.keys() - in_parts.keys()):
        there = from_home(slices[number], state.pop(number, {}))
        if there:
            state[number] = there
    return {**found, "state": dict(sorted(state.items()))}


def load_optimizer_state_dict(
    model: nn.Module, optimizer: Optimizer, state_dict: StateDict
) -> None:
    """Load the whole state of an optimizer; each rank keeps its part.

    The ranks exchange nothing, because every rank passes the whole state.

    :param model: a model that was sharded
    :param optimizer: an optimizer with the same parameters in the same order as the
        saved one
    :param state_dict: as `optimizer_state_dict` returns it, or the `state_dict` of an
        unsharded optimizer; it is not changed
    :raises ValueError: if an entry of a parameter that is cut has not the shape of the
        whole parameter, or for an error of `optimizer.load_state_dict`
    """
    slices = slices_of(model, optimizer)
    alone = keys_of_numbers(state_dict["state"])
    in_parts = {n: place for n, place in slices.items() if place.cut}
    state = {
        number: {
            key: cut(value, in_parts[number], key)
            if number in in_parts and isinstance(value, Tensor) and key not in alone
            else copied(value)
            for key, value in entries.items()
        }
        for number, entries in state_dict["state"].items()
        if number not in slices or not slices[number].absent
    }
    state |= kept_by_absent(optimizer, slices)
    optimizer.load_state_dict({**state_dict, "state": state})


@dataclass(frozen=True, slots=True)
class Slice:
    """This rank's slice of a parameter.

    :param index: the parameter's number in the flat vector
    """

    unit: Unit
    flat: Flat
    index: int

    @property
    def slot(self) -> Slot:
        """The parameter's slot in the flat vector."""
        return self.flat.layout.slots[self.index]

    @property
    def parameter(self) -> nn.Parameter:
        """The model's own parameter."""
        return self.flat.parameters[self.index]

    @property
    def cut(self) -> bool:
        """Whether each rank has state for a part of the parameter."""
        return self.flat.sliced and not self.flat.layout.uncut

    @property
    def apart(self) -> bool:
        """Whether one rank has all of the parameter, and of its state."""
        return self.flat.sliced and self.flat.layout.uncut

    @property
    def absent(self) -> bool:
        """Whether that is another rank than this one."""
        return self.apart and self.parameter.numel() < self.slot.numel

    @property
    def home(self) -> int:
        """The rank that has all of a parameter that is not cut."""
        layout = self.flat.layout
        return min(
            self.slot.offset // max(1, layout.shard_numel), layout.world_size - 1
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of state that has a value for each element of a slice.

    :param number: the parameter's number in the optimizer
    """

    number: int
    place: Slice
    key: str
    value: Tensor

    @property
    def vector(self) -> tuple[Unit, Flat, str, torch.dtype]:
        """The key of the vector in which this entry is gathered, shared by all entries
        of one unit, name and dtype.
        """
        return self.place.unit, self.place.flat, self.key, self.value.dtype


def slices_of(model: nn.Module, optimizer: Optimizer) -> dict[int, Slice]:
    """The slices among an optimizer's parameters. Each has the number that PyTorch
    gives to its parameter, in the order of the groups.
    """
    found = {
        id(parameter): Slice(unit, flat, index)
        for unit in scheduler_of(model).units
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
    """The entries of state that have to be gathered.

    An entry either has the shape of the slice, or is one number for the whole
    parameter, such as the count of its steps. Such a number is equal on all ranks, so
    it is not gathered.
    """
    for number, place in slices.items():
        shape = place.parameter.shape
        for key, value in state.get(number, {}).items():
            refuse_in_parts(place, key, value)
            if isinstance(value, Tensor) and value.shape == shape:
                yield Entry(number, place, key, value)


def gathered(unit: Unit, part: Tensor, what: str) -> Tensor:
    """Gather the parts of all ranks into one vector."""
    group = unit.groups.shards
    whole = part.new_empty(part.numel() * world(group)[1])
    unit.order.before("gather", what, unit.sites[0].name)
    gathering = all_gather(whole, part, group=group)
    unit.order.watch(gathering.works)
    gathering.wait()
    return whole


def from_home(place: Slice, entries: StateDict) -> StateDict:
    """The state of a parameter that is not cut, from the one rank that has it."""
    unit, name = place.unit, place.slot.names[0]
    unit.order.before("gather", f"the optimizer's state of {name}", unit.sites[0].name)
    shared: list[Any] = [None]
    if not place.absent:
        try:
            shared = [pickle.dumps(entries)]
        except Exception as error:
            shared = [f"the optimizer's state of {name} cannot be sent ({error})"]
    dist.broadcast_object_list(shared, group=unit.groups.shards, group_src=place.home)
    if isinstance(shared[0], str):
        raise ValueError(shared[0])
    state: StateDict = pickle.loads(shared[0])
    return state


def kept_by_absent(
    optimizer: Optimizer, slices: dict[int, Slice]
) -> dict[int, StateDict]:
    """The state without elements that a rule has made for parameters of other ranks."""
    state = optimizer.state_dict()["state"]
    absent = [number for number, place in slices.items() if place.absent]
    return {number: state[number] for number in absent if number in state}


def cut(value: Tensor, place: Slice, key: str) -> Tensor:
    """Cut this rank's slice from an entry of the whole state."""
    slot, flat = place.slot, place.flat
    refuse_shape(value, slot, key)
    start, stop, _ = flat.places[place.index]
    # If this rank's part begins inside the parameter, its first elements are on an
    # earlier rank.
    first = max(0, place.unit.rank * flat.layout.shard_numel - slot.offset)
    return value.flatten()[first : first + stop - start].clone()


def copied(value: Any, device: str | None = None) -> Any:
    """Copy all tensors of an entry, so that the next step does not change the saved state."""
    return tree_map_only(
        Tensor,
        lambda each: each.detach().to(device or each.device, copy=True),
        value,
    )


# sidelit: depth Parameters without dimensions, and state that differs between ranks or from the model.


def keys_of_numbers(state: dict[int, StateDict]) -> set[str]:
    """The entries that are one number for the whole parameter, such as `step`.

    Such entries have no dimensions, whatever the shape of the parameter is. If the
    parameter itself has no dimensions, its own entries do not show the difference, so
    the entries of other parameters decide.

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


def refuse_different(
    model: nn.Module, optimizer: Optimizer, entries: list[Entry]
) -> None:
    """Check that all ranks are about to gather the same entries, and have the same groups.

    The ranks compare one number, a digest of the names of all entries and of the groups.

    :raises Disagreement: on every rank
    """
    names: list[Any] = [(e.number, e.key, str(e.value.dtype)) for e in entries]
    names.append(groups_as_text(model, optimizer))
    digest = int.from_bytes(sha256(repr(names).encode()).digest()[:7], "big")
    unit = next(iter(scheduler_of(model).units), None)
    if unit is None:
        return
    mine = torch.tensor([digest], device=unit.flats[0].device)
    unit.order.begin("optimizer state")
    if gathered(unit, mine, "the names of the optimizer's state").unique().numel() > 1:
        raise Disagreement(
            "ranks hold different optimizer state; step the optimizer equally often on "
            "every rank, load the same state, and make the same groups"
        )


def groups_as_text(model: nn.Module, optimizer: Optimizer) -> str:
    """An optimizer's groups, with the names of their parameters, for the ranks to compare.

    Suppose a program makes groups by `p.numel()` after sharding. They then differ
    between the ranks.
    """
    names = {
        id(parameter): slot.names[0]
        for unit in scheduler_of(model).units
        for flat in unit.flats
        for slot, parameter in zip(flat.layout.slots, flat.parameters, strict=True)
    }
    return repr(
        [
            [names.get(id(p)) for p in group["params"]]
            + [(key, as_text(group[key])) for key in group if key != "params"]
            for group in optimizer.param_groups
        ]
    )


def as_text(option: Any) -> str:
    """An option of a group as text; of an object only its class, which ranks can compare."""
    if isinstance(option, Tensor):
        return str(option.tolist())
    if isinstance(option, tuple | list):
        return f"({', '.join(map(as_text, option))})"
    known = option is None or isinstance(option, int | float | str)
    return repr(option) if known else type(option).__name__


def refuse_in_parts(place: Slice, key: str, value: Any) -> None:
    """Refuse state of a slice that cannot be put together into the parameter's state.

    :raises ValueError: naming the entry
    """
    if isinstance(value, Tensor):
        wrong = value.dim() > 0 and value.shape != place.parameter.shape
        what = f"a tensor of shape {tuple(value.shape)}"
    else:
        wrong = any(isinstance(each, Tensor) for each in tree_leaves(value))
        what = f"tensors in a {type(value).__name__}"
    if wrong:
        raise ValueError(
            f"the optimizer's {key} of {place.slot.names[0]} is {what}, and of a slice "
            "only tensors with its shape and single numbers can be saved; train with "
            "stage=0, or save without the optimizer"
        )


def refuse_strangers(optimizer: Optimizer, others: list[nn.Parameter]) -> None:
    """Refuse an optimizer that also has parameters of another sharded model.

    :param others: the parameters that do not belong to this model
    :raises ValueError: if one of them is sharded
    """
    if any(owner_of(parameter) is not None for parameter in others):
        raise ValueError(
            f"this {type(optimizer).__name__} trains parameters of another sharded "
            "model; use one optimizer for each model"
        )


def refuse_shape(value: Tensor, slot: Slot, key: str) -> None:
    """Refuse an entry without the shape of the whole parameter, such as one rank's
    part.

    :raises ValueError: naming the parameter and both shapes
    """
    if value.shape != slot.shape:
        raise ValueError(
            f"{key} of {slot.names[0]} has shape {tuple(value.shape)}, and the whole "
            f"parameter {tuple(slot.shape)}; load what optimizer_state_dict() returned, "
            "or the state of an unsharded optimizer"
        )
