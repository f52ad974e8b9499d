r"""# Optimizer state in a checkpoint

> A checkpoint stores optimizer state by parameter name, and the settings of each
> parameter group.

An optimizer numbers its parameters in the order of its groups. Two runs with other
groups give the same weight other numbers. So a checkpoint uses names: the first moment
of `norm.bias` is `optim.state.norm.bias.exp_avg`, whatever its number.

A new optimizer has no state before its first step. So when a checkpoint is loaded, each
entry first needs memory to be read into. The checkpoint's index lists the entries with
their shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from shardbook.state.plain_data import restored
from shardbook.state.stored import OPTIMIZER, Stretch, entry, places_in
from shardbook.training.optimizer_state import kept_by_absent

__all__ = [
    "groups_from",
    "groups_of",
    "numbered",
    "refuse_other_settings",
    "settings_of",
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
