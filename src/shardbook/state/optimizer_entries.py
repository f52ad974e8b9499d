r"""# What an optimizer goes on from

> The entries of its state by the names of parameters, and the settings of its groups.

An optimizer numbers its parameters, in the order of its groups. A checkpoint names them,
so that another program may group them in another order. Before a checkpoint is read,
there has to be room for the entries: a new optimizer has none. The checkpoint's index
says which there are, of what shape and dtype.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from shardbook.state.stored import OPTIMIZER, Stretch, entry, places_in

__all__ = ["groups_from", "groups_of", "numbered", "settings_of", "wanted_state"]
# sidelit: show


def wanted_state(
    index: Metadata, model: nn.Module, optimizer: Optimizer
) -> Iterator[tuple[int, str, Tensor, Stretch]]:
    """Room for each entry of a checkpoint that belongs to a parameter of an optimizer.

    :returns: the number of the parameter, the entry's key, the room, and what to read
        into it
    """
    found = {
        name: there
        for name, there in index.state_dict_metadata.items()
        if name.startswith(f"{OPTIMIZER}.") and isinstance(there, TensorStorageMetadata)
    }
    places = list(places_in(model, optimizer))
    keys = [
        {
            name.removeprefix(prefix): there
            for name, there in found.items()
            if name.startswith(prefix) and "." not in name.removeprefix(prefix)
        }
        for prefix in (f"{OPTIMIZER}.{place.slot.names[0]}." for place in places)
    ]
    numbers = {"step"} | {key for entries in keys for key in entries}
    numbers -= {
        key
        for entries in keys
        for key, there in entries.items()
        if key != "step" and len(there.size)
    }
    for number, (place, entries) in enumerate(zip(places, keys, strict=True)):
        for key, there in entries.items():
            alone = key in numbers
            shape = there.size if alone else place.parameter.shape
            device = "cpu" if alone else place.parameter.device
            room = torch.empty(shape, dtype=there.properties.dtype, device=device)
            yield number, key, room, entry(place, key, room, alone=alone)


def groups_of(model: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
    """The settings of each group, with the names of its parameters."""
    names = iter([place.slot.names[0] for place in places_in(model, optimizer)])
    return [
        {**group, "params": [next(names) for _ in group["params"]]}
        for group in optimizer.param_groups
    ]


def groups_from(
    saved: list[dict[str, Any]], model: nn.Module, optimizer: Optimizer
) -> list[dict[str, Any]]:
    """The settings that were saved, with the numbers of this optimizer's parameters.

    :raises ValueError: if the groups hold other parameters than they did
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
        found.append({**settings, "params": numbers["params"]})
    return found


def numbered(
    state: Mapping[Any, Any], model: nn.Module, optimizer: Optimizer
) -> dict[int, Any]:
    """State by the numbers of an optimizer's parameters, if it is by their names."""
    numbers = {
        name: number
        for number, place in enumerate(places_in(model, optimizer))
        for name in place.slot.names
    }
    return {numbers.get(key, key): entries for key, entries in state.items()}


def settings_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """The settings once more, under the names by which PyTorch's own programs look for them."""
    return {
        f"optim.param_groups.{number}.{key}": value
        for number, group in enumerate(groups_of(model, optimizer))
        for key, value in group.items()
    }
