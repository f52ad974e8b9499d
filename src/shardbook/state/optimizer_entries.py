r"""# Parameters and optimizer state in checkpoints

> A checkpoint stores parameters and optimizer state by name, and each rank describes
> which elements it has.

An optimizer numbers its parameters in the order of its groups. Two runs with other
groups give the same weight other numbers. So a checkpoint uses names: the first moment
of `norm.bias` is `optim.state.norm.bias.exp_avg`, whatever its number.

A name belongs to a whole tensor, but a rank has only some of its elements. So each rank
describes [what it stores](#module/what-a-rank-stores-in) by the tensor's name, its
shape, and a range of its elements.

A new optimizer has no state before its first step. So when a checkpoint is loaded, each
entry first needs memory to be read into. The checkpoint's index lists the entries with
their shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from shardbook.foundations.collectives import Groups, world
from shardbook.foundations.torch_private import as_plain
from shardbook.state.file_formats import Box, boxes, plain, restored
from shardbook.training.optimizer_state import (
    Slice,
    kept_by_absent,
    keys_of_numbers,
    refuse_in_parts,
)
from shardbook.zero.scheduler import scheduler_of

__all__ = [
    "MODEL",
    "OPTIMIZER",
    "Stretch",
    "entry",
    "groups_from",
    "groups_of",
    "numbered",
    "places_in",
    "refuse_other_settings",
    "settings_of",
    "share_of",
    "stretches",
    "stretches_of_state",
    "wanted_state",
    "with_rest",
]


def wanted_state(
    index: Metadata, model: nn.Module, optimizer: Optimizer
) -> Iterator[tuple[int, str, Tensor, Stretch]]:
    """Allocate memory for each entry in a checkpoint that belongs to an optimizer's parameter.

    :returns: the number of the parameter, the entry's key, the memory, and the stretch
        to read into it
    """
    found: dict[str, dict[str, TensorStorageMetadata]] = {}
    for name, there in index.state_dict_metadata.items():
        if isinstance(there, TensorStorageMetadata):
            parameter, _, key = name.rpartition(".")
            while key.partition(".")[0].isdigit():
                # A part of an entry: `optim.state.weight.old_dirs.0`.
                parameter, _, before = parameter.rpartition(".")
                key = f"{before}.{key}"
            found.setdefault(parameter, {})[key] = there
    places = list(places_in(model, optimizer))
    keys = [found.get(f"{OPTIMIZER}.{place.slot.names[0]}", {}) for place in places]
    numbers = {"step"} | {key for entries in keys for key in entries}
    numbers -= {
        key
        for entries in keys
        for key, there in entries.items()
        if key != "step" and len(there.size)
    }
    for number, (place, entries) in enumerate(zip(places, keys, strict=True)):
        for key, there in () if place.absent else entries.items():
            alone = key in numbers or "." in key
            whole = alone or not place.cut
            shape = there.size if whole else place.parameter.shape
            device = "cpu" if alone else place.parameter.device
            room = torch.empty(shape, dtype=there.properties.dtype, device=device)
            yield number, key, room, entry(place, key, room, alone=alone)


def with_rest(
    entries: dict[int, dict[str, Tensor]],
    rest: Mapping[str, Mapping[str, Any]],
    model: nn.Module,
    optimizer: Optimizer,
) -> dict[int, dict[str, Any]]:
    """An optimizer's state, made of the tensors of a checkpoint and of what is no tensor.

    :param entries: the tensors, by the parameter's number and the entry's key
    :param rest: what `stretches_of_state` gave, by the parameter's name
    """
    places = dict(enumerate(places_in(model, optimizer)))
    found: dict[int, dict[str, Any]] = kept_by_absent(optimizer, places)
    for number, place in places.items():
        if place.absent:
            continue
        here = entries.get(number, {})
        state: dict[str, Any] = {k: each for k, each in here.items() if "." not in k}
        for key, value in rest.get(place.slot.names[0], {}).items():
            state[key] = restored(value, here)
        if state:
            found[number] = state
    return found


def groups_of(model: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
    """The settings of each parameter group, with the names of its parameters."""
    names = iter([place.slot.names[0] for place in places_in(model, optimizer)])
    return [
        {**group, "params": [next(names) for _ in group["params"]]}
        for group in optimizer.param_groups
    ]


def groups_from(
    saved: list[dict[str, Any]], model: nn.Module, optimizer: Optimizer
) -> list[dict[str, Any]]:
    """The saved settings, with the numbers of this optimizer's parameters.

    :raises ValueError: if a group holds other parameters than each saved group
    """
    now = groups_of(model, optimizer)
    before = {frozenset(group["params"]): group for group in saved}
    numbered = optimizer.state_dict()["param_groups"]
    found = []
    for place, (group, numbers) in enumerate(zip(now, numbered, strict=True)):
        settings = before.get(frozenset(group["params"]))
        if settings is None:
            raise ValueError(
                f"group {place} of the optimizer, with {group['params'][0]}, holds other "
                "parameters than each group of the checkpoint; make the groups as before"
            )
        for key, value in settings.items():
            if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
                settings[key] = value.to(group[key].device)
        found.append({**settings, "params": numbers["params"]})
    refuse_other_settings(found, optimizer)
    return found


def numbered(
    state: Mapping[Any, Any], model: nn.Module, optimizer: Optimizer
) -> dict[int, Any]:
    """Replace the parameters' names in an optimizer's state by their numbers."""
    numbers = {
        name: number
        for number, place in enumerate(places_in(model, optimizer))
        for name in place.slot.names
    }
    return {numbers.get(key, key): entries for key, entries in state.items()}


def settings_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """The settings under the names that PyTorch's own programs use."""
    return {
        f"optim.param_groups.{number}.{key}": value
        for number, group in enumerate(groups_of(model, optimizer))
        for key, value in group.items()
    }


# sidelit: depth Settings of another kind.


def refuse_other_settings(saved: list[dict[str, Any]], optimizer: Optimizer) -> None:
    """Refuse a setting that is missing, or a text, for example, where a number belongs.

    Flags such as `foreach` differ between versions of PyTorch and are not compared.

    :raises ValueError: naming the setting
    """
    for group, before in zip(optimizer.param_groups, saved, strict=False):
        for key in optimizer.defaults:
            now, then = kind(group.get(key)), kind(before.get(key))
            if now != then and not {now, then} <= {"bool", "NoneType"}:
                raise ValueError(
                    f"{key} of the optimizer is a {then} in the checkpoint and a {now} here"
                )
        if not 0 <= float(before.get("lr", 0)) < float("inf"):
            raise ValueError(
                f"lr of the optimizer is {before['lr']} in the checkpoint; a learning rate "
                "is a finite number from 0 on"
            )


def kind(value: Any) -> str:
    """The kind of a setting. All numbers are of one kind, also those in a tensor."""
    if isinstance(value, list | tuple):
        return f"({', '.join(map(kind, value))})"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    alone = isinstance(value, Tensor) and value.numel() == 1
    return "number" if alone else type(value).__name__


# sidelit: core


# ## What a rank stores in a checkpoint
#
# > A rank describes its part of each tensor as a stretch: the tensor's name, its shape,
# > and a range of its elements.
#
# A checkpoint consists of named tensors with the shapes of the plain model. A rank has a
# few elements of each tensor. So it describes them as *stretches*: a name, a shape, and
# the elements from `start` on. Take 3 ranks in stage 3, and a parameter of 20 elements:
#
# | | rank 0 | rank 1 | rank 2 |
# |---|---|---|---|
# | has the elements | 0 to 6 | 7 to 13 | 14 to 19 |
# | writes | 0 to 6 | 7 to 13 | 14 to 19 |
#
# If several ranks have the same elements, each writes its share. So each element is
# written once, and all ranks write equally much. In stage 0:
#
# | | rank 0 | rank 1 | rank 2 |
# |---|---|---|---|
# | has the elements | 0 to 19 | 0 to 19 | 0 to 19 |
# | writes | 0 to 5 | 6 to 12 | 13 to 19 |
#
# The names are those of PyTorch's own checkpoints: `model.` before the name of a parameter
# or buffer, as in `model.norm.bias`. For optimizer state, `optim.state.` comes before the
# parameter's name and the entry after it: `optim.state.norm.bias.exp_avg`.


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
        """The [boxes](file_formats.py#module/cutting-a-slice-into-boxes) of the stretch, each with
        its elements in the shape of the box.
        """
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
    for unit in scheduler_of(model).units:
        for flat in unit.flats:
            for index in range(len(flat.parameters)):
                yield Slice(unit, flat, index)


def places_in(model: nn.Module, optimizer: Optimizer) -> Iterator[Slice]:
    """The slices of an optimizer's parameters, in the order of their numbers."""
    found = {id(place.parameter): place for place in places(model)}
    for group in optimizer.param_groups:
        yield from (found[id(parameter)] for parameter in group["params"])
