r"""# Saving and loading a sharded model

> `state_dict` gives every rank the whole parameters, and `load_state_dict` takes them.

A file should hold whole parameters. A sharded model has only slices of them, and slices
are of no use to a program with another number of ranks, or to one that does not shard.
So the `state_dict` of a sharded model looks like that of the plain model: the same
keys, the same shapes.

PyTorch calls hooks before and after a module saves its parameters. Before, the unit is
gathered. After, its parameters are copied to the host and the unit is freed. So only
one unit and the root are whole on a device at any time. A model that trains on 64 GPUs,
and fits on none of them, can be saved.

Saving and loading are collective: every rank makes the same calls, even if only one
rank writes the file. If eight ranks on one machine all copy the model, the copies take
eight times the model in the machine's memory. If only rank 0 writes, only rank 0 needs
a copy:

```python
with rank0_only(model):
    state = model.state_dict()
if rank == 0:
    torch.save(state, "model.pt")
```
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.foundations.collectives import world
from shardbook.foundations.torch_private import storage_id
from shardbook.zero.conductor import conductor_of
from shardbook.zero.unit import State, Unit

__all__ = ["keep_state_dict_whole", "on_the_host", "rank0_only"]


def keep_state_dict_whole(unit: Unit, module: nn.Module) -> None:
    """Set hooks so that `module.state_dict()` gives whole parameters, and
    `module.load_state_dict()` takes them.

    :param unit: the unit whose parameters are below `module`
    :param module: the module to which the unit belongs
    """

    # A backward pass that failed may have left the unit whole, with the values from
    # before the last step. So the unit is freed and gathered again.
    def gather(*_: Any) -> None:
        refuse_in_block(unit)
        unit.free()
        unit.switch(True)
        unit.expire()
        unit.order.begin(f"{unit.name.removeprefix('the ')} state_dict")
        unit.wait()
        unit.show()

    # The saved tensors are views into `full`. Stage 3 empties `full` right after, and
    # the other stages write into it later. Without the copy the values in the
    # dictionary would be lost, or change with the next step.
    def copy_and_free(
        _: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any
    ) -> None:
        # A tied weight has several keys. All of them get one copy, so the weight stays
        # tied and is written to a file once.
        copies: dict[tuple[Any, ...], Tensor] = {}
        for key, value in list(state_dict.items()):
            if isinstance(value, Tensor) and unit.owns(value):
                storage = storage_id(value.untyped_storage())
                place = (storage, value.storage_offset(), value.shape)
                if unit in spared:
                    del state_dict[key]
                    continue
                if place not in copies:
                    copies[place] = on_the_host(value)
                state_dict[key] = copies[place]
        unit.free()

    # `load_state_dict` has copied the new values into the whole parameters, and each
    # rank now keeps its part of them.
    def store_and_free(_: nn.Module, keys: Any) -> None:
        refuse_assigned(unit)
        with torch.no_grad():
            for flat in unit.flats:
                flat.store()
        unit.free()

    for part in {site.module for site in unit.sites} - {module}:
        part.register_state_dict_pre_hook(partial(refuse_part, unit))
    module.register_state_dict_pre_hook(gather)
    module.register_state_dict_post_hook(copy_and_free)
    module.register_load_state_dict_pre_hook(gather)
    module.register_load_state_dict_post_hook(store_and_free)


def on_the_host(value: Tensor) -> Tensor:
    """Copy a whole parameter into the host's memory, for a `state_dict`.

    The copy is complete when this function returns, so the unit may be freed.
    """
    return value.detach().to("cpu", copy=True)


@contextmanager
def rank0_only(model: nn.Module) -> Iterator[None]:
    """In this block `model.state_dict()` holds parameters on rank 0 of the model's
    ranks only.

    All ranks must still call it. On the other ranks the dictionary holds no sharded
    parameter, and they need no memory beyond that of the gathered unit.

    :param model: a model that was sharded
    :raises ValueError: if the model is not sharded
    """
    conductor = conductor_of(model)
    rank, _ = world(conductor.order.group)
    # A block inside another one must not end the outer one, so each removes only the
    # units that it added.
    added = {unit for unit in conductor.drivers if rank > 0} - spared
    spared.update(added)
    try:
        yield
    finally:
        spared.difference_update(added)


# The units whose parameters this rank leaves out of a `state_dict`.
spared: set[Unit] = set()


# sidelit: depth Blocks of `whole(model)`, parts of a unit, and loading with `assign=True`.


def refuse_in_block(unit: Unit) -> None:
    """Raise an error if a unit to be saved or loaded is kept whole by [a block](whole.py)."""
    if unit.held:
        raise RuntimeError(
            f"{unit.name} is whole for a block; leave whole(model) before "
            "state_dict() or load_state_dict()"
        )


# A part of a unit has no shard of its own, so it cannot gather. If its `state_dict`
# were called directly, it would save slices.
def refuse_part(unit: Unit, part: nn.Module, *_: Any) -> None:
    refuse_in_block(unit)
    if unit.state is not State.WHOLE:
        raise RuntimeError(
            f"a {type(part).__name__} inside {unit.name} has no state_dict of its "
            "own; call state_dict() on the unit or on the model"
        )


def refuse_assigned(unit: Unit) -> None:
    """Raise an error if `load_state_dict` has replaced parameters instead of copying into them."""
    for site in unit.sites:
        if (
            getattr(site.module, site.attribute)
            is not unit.counterpart[id(site.parameter)]
        ):
            raise RuntimeError(
                f"{site.name} was replaced, not loaded; "
                "call load_state_dict without assign=True"
            )
