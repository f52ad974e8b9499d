r"""# Whole parameters in a block

> In a block of the program, parameters are whole outside of the forward pass, too.

A unit is whole while its module runs. Some programs compute with parameters elsewhere:
the loss of CLIP multiplies by `model.logit_scale.exp()`, a penalty sums the squares of
all weights, a retrieval calls `model.get_text_features(...)`. Outside of the unit's
forward pass [such a read is refused](access.py), because a rank has only a slice there.
In the block below it works:

```python
image, text = model(batch)
with whole(model):
    loss = contrastive(image, text, model.logit_scale.exp())
loss.backward()
```

The block is one more use of each unit. At its beginning the units are gathered, and the
modules name the whole parameters, as in a forward pass. What is computed in the block
is recorded by autograd, and the gradients are averaged with those of the model's own
forward pass. At the end of the block the units are freed. The backward pass may come
after it: [what autograd has saved](demand.py) gathers its unit again when it is read.

All units of `model` are whole at the same time, so in stage 3 a rank needs the memory
of the whole model. With `whole(model.text_model)` only the units are gathered that have
a parameter in that part. A read by one rank alone would leave the others waiting, so
all ranks enter the block, or none.

A parameter that is read in the block lives in the block. To keep its values, keep a
clone. A write would be lost, because a rank stores only its slice, so a write is
refused at the end of the block. [`load_state_dict`](state_dict.py) writes parameters.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from shardbook.foundations.hook_context import in_backward, machinery
from shardbook.foundations.nesting import Nesting
from shardbook.foundations.torch_private import (
    next_number,
    saving_forbidden,
    storage_id,
    top_saving,
)
from shardbook.guards.stale_backward import Computed
from shardbook.parameters.flat import flat_of
from shardbook.parameters.flat_checks import refuse_writes
from shardbook.zero.demand import Handed, Pair, outermost
from shardbook.zero.hooks import Hooks, Use

__all__ = ["whole"]
# sidelit: show


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """In this block the parameters of a model are whole, in their old shapes.

    Collective: all ranks enter the block, or none. They read the parameters, also in a
    loss, call methods of units other than `forward`, and call modules inside of units
    by themselves. Under a [policy](policy.py) the parameters have the dtype in which
    the model computes, and inside of [`full_precision`](full_precision.py) that of the
    masters.

    :param model: a sharded model, or a part of one; the units are gathered that have a
        parameter in it
    :raises ValueError: if the model has no sharded parameter
    :raises TypeError: if it is no module
    :raises RuntimeError: at the end of the block, if a parameter was written to that
        [is not stored whole](flat_checks.py#refuse_writes)
    :raises Disagreement: on every rank, if one of them does something else
    """
    drivers = drivers_of(model)
    held: list[Hooks] = []
    try:
        for driver in drivers:
            begin(driver)
            held.append(driver)
        with announced(drivers):
            yield
    finally:
        for driver in held:
            end(driver)
    for driver in drivers:
        for flat in driver.unit.flats:
            refuse_writes(flat, driver.unit.name)


def drivers_of(model: nn.Module) -> list[Hooks]:
    """[The hooks](hooks.py#Hooks) of the units that have a parameter in a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"pass the model itself, not a {type(model).__name__}")
    flats = [flat for flat in map(flat_of, model.parameters()) if flat is not None]
    # A dictionary keeps the order, so that every rank gathers in the same one.
    found = list(dict.fromkeys(flat.driver() for flat in flats))
    if not found:
        raise ValueError(
            f"this {type(model).__name__} is not sharded; call shard(model) first"
        )
    return found


@machinery()
def begin(driver: Hooks) -> None:
    """Gather a unit for the block, unless it is in use already."""
    unit = driver.unit
    if not unit.held and not in_use(driver):
        driver.conductor.forward_begins(unit)
    unit.wait()
    unit.show()
    unit.held += 1


@machinery()
def end(driver: Hooks) -> None:
    """Free a unit after the block, unless it is still in use elsewhere."""
    unit = driver.unit
    unit.held -= 1
    if not unit.held and not in_use(driver):
        unit.free()


@contextmanager
def announced(drivers: list[Hooks]) -> Iterator[None]:
    """Let the backward pass of what is computed in the block gather the units again.

    In a unit's forward pass every saved tensor announces that unit. Here there are many
    units, and a tensor announces the one in whose memory it lies, if there is one.
    """
    # PyTorch has no public name for the pair of hooks in force; [the chapter on
    # gathering on demand](demand.py) uses the same two.
    below = top_saving(True)
    refused = saving_forbidden()
    outer = outermost(below)
    # A recomputation under the hooks that collect its tensors records a graph that is
    # dropped at once.
    if refused is not None or (in_backward() and outer is not None):
        yield
        return
    reads = Reads(drivers, below, outer)
    with saved_tensors_hooks(reads.pack, reads.unpack):
        yield


class Reads:
    """What autograd saves in the block.

    :param drivers: the hooks of the block's units
    :param below: the saved tensor hooks in force before
    :param outer: those of them that [every tensor is handed on to](demand.py#Handed)
    """

    def __init__(self, drivers: list[Hooks], below: Any, outer: Any) -> None:
        # Inside of a unit's forward pass what belongs to none of these units may belong
        # to that one.
        owner = None if below is None else getattr(below[0], "__self__", None)
        self.others = owner if isinstance(owner, Pair) else None
        # The memory of a vector stays the same object when it is emptied and filled.
        self.of = {
            storage_id(flat.full.untyped_storage()): Read(driver)
            for driver in drivers
            for flat in driver.unit.flats
        }
        # What keeps the tensors gathers nothing by itself.
        nobody = Nobody()
        self.kept = Pair(nobody, None, None)
        if outer is not None:
            self.kept = Handed(nobody, None, None, outer)

    def pack(self, tensor: Tensor) -> Any:
        """Keep a tensor, and which unit it belongs to."""
        read = self.others
        if tensor.layout is torch.strided:
            read = self.of.get(storage_id(tensor.untyped_storage()), read)
        return read, self.kept.pack(tensor)

    def unpack(self, saved: Any) -> Tensor:
        """Give the tensor back, with its unit whole."""
        read, packed = saved
        if read is not None:
            read.open()
        return self.kept.unpack(packed)


class Read(Pair):
    """The block as a use of one unit."""

    def __init__(self, driver: Hooks) -> None:
        start = next_number()
        use = Use(start, computed=Computed.of(driver.unit))
        super().__init__(driver, use, None)

    def open(self) -> None:
        """Let the unit be whole, and expect the end of this use."""
        driver = self.driver()
        if isinstance(driver, Hooks) and driver.in_backward is None and in_backward():
            # It is counted only now. Most units of a block get no backward pass by it,
            # and their gradients are exchanged as early as without the block.
            driver.expected += 1
        super().open()


# sidelit: depth A block inside of a forward or backward pass, and tensors that belong to no unit.


def in_use(driver: Hooks) -> bool:
    """Whether the unit's forward pass or its backward pass is under way."""
    if driver.in_backward is not None and in_backward():
        return True
    return driver.uses.under_way()


class Nobody:
    """Stands where a unit is expected, for tensors that need none to be gathered."""

    unit: Any
    uses: Nesting[Any]
    in_backward: Any = True

    def reach(self, use: Any, number: int) -> None:
        """Gather nothing."""
