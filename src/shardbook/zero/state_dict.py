r"""# Saving and loading a sharded model

> `state_dict` gives every rank the whole parameters, and `load_state_dict` takes them.

A model saves its parameters one by one, and a sharded model has only slices of them. A
file of slices is of no use to a program with another number of ranks, or to one that
does not shard. So the `state_dict` of a sharded model looks like that of the plain one:
the same keys, the same shapes. PyTorch calls hooks before and after a module saves what
is inside of it. Before, the unit is gathered. After, what was saved is copied to the
host and the unit is freed. So only one unit and the root are whole at a time on a
device. A model that trains on 64 GPUs, and fits on none of them, can be saved.

Both calls are collective. Every rank has to make them, even if only one writes the
file. The copies of eight ranks on one machine take eight times the model in its
memory. If only rank 0 writes, only rank 0 needs a copy:

```python
with rank0_only(model):
    state = model.state_dict()
if rank == 0:
    torch.save(state, "model.pt")
```
"""

# sidelit: hide
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
# sidelit: show


def keep_state_dict_whole(unit: Unit, module: nn.Module) -> None:
    """Let `module.state_dict()` give whole parameters, and `module.load_state_dict()`
    take them.

    :param unit: the unit whose parameters are below `module`
    :param module: the module that drives the unit
    """

    # A backward pass that failed may have left the unit whole, with the values from
    # before the last step. So it is gathered afresh.
    def gather(*_: Any) -> None:
        refuse_in_block(unit)
        unit.free()
        unit.switch(True)
        unit.expire()
        unit.order.begin(f"{unit.name.removeprefix('the ')} state_dict")
        unit.wait()
        unit.show()

    # The saved tensors are views into `full`, which stage 3 empties right after, and
    # into which the other stages go on writing. Without the copy the values in the
    # dictionary would be gone, or change with the next step.
    def copy_and_free(
        _: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any
    ) -> None:
        # A tied weight stands under several keys. One copy for all of them keeps it
        # tied, and a file holds it once.
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

    # `load_state_dict` has copied the new values into the whole parameters. Each rank
    # keeps its part of them.
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
    """A copy of a whole parameter for a `state_dict`, in the host's memory.

    It holds the values when this function returns, so the unit may be freed.
    """
    return value.detach().to("cpu", copy=True)


@contextmanager
def rank0_only(model: nn.Module) -> Iterator[None]:
    """In this block `model.state_dict()` holds parameters on rank 0 of the model's ranks only.

    All ranks call it. On the others it holds no sharded parameter, and takes no memory
    beyond the unit that is gathered.

    :param model: a model that was sharded
    :raises ValueError: if the model is not sharded
    """
    conductor = conductor_of(model)
    rank, _ = world(conductor.order.group)
    # A block inside of another ends nothing but itself.
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
    """Refuse to save or load a unit that [a block](whole.py) keeps whole."""
    if unit.held:
        raise RuntimeError(
            f"{unit.name} is whole for a block; leave whole(model) before "
            "state_dict() or load_state_dict()"
        )


# A part of the unit has no shard of its own, so it cannot gather by itself. Asked
# directly, it would save slices.
def refuse_part(unit: Unit, part: nn.Module, *_: Any) -> None:
    refuse_in_block(unit)
    if unit.state is not State.WHOLE:
        raise RuntimeError(
            f"a {type(part).__name__} inside {unit.name} has no state_dict of its "
            "own; call state_dict() on the unit or on the model"
        )


def refuse_assigned(unit: Unit) -> None:
    """Refuse parameters that `load_state_dict` has put in the place of the whole ones."""
    for site in unit.sites:
        if (
            getattr(site.module, site.attribute)
            is not unit.counterpart[id(site.parameter)]
        ):
            raise RuntimeError(
                f"{site.name} was replaced, not loaded; "
                "call load_state_dict without assign=True"
            )
