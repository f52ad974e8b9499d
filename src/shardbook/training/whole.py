r"""# Whole parameters outside the forward pass

> Inside `whole(model)` a program can read whole parameters outside the model's forward pass.

A unit's parameters are whole while its module runs. Some programs also use parameters
elsewhere: the loss of CLIP multiplies by `model.logit_scale.exp()`, a penalty sums the
squares of all weights, a retrieval calls `model.get_text_features(...)`. Outside the
unit's forward pass [such a read is refused](access.py), because a rank has only a
slice. Inside `whole` the read works:

```python
image, text = model(batch)
with whole(model):
    loss = contrastive(image, text, model.logit_scale.exp())
loss.backward()
```

The block is one more use of each unit. At its beginning the units are gathered, and the
attributes of the modules are the whole parameters, as in a forward pass. Autograd
records the operations in the block, and their gradients are averaged together with
those of the model's own forward pass. At the end of the block the units are freed. The
backward pass may come after the block: when autograd [unpacks a saved
parameter](demand.py), its unit is gathered again.

All units of `model` are whole at the same time, so in stage 3 a rank needs the memory
of the whole model. With `whole(model.text_model)` only units with a parameter in that
part are gathered. A gather needs all ranks, so either all ranks enter the block or
none.

A whole parameter is valid only inside the block, so keep a clone if you need its values
later. A write would be lost, because a rank stores only its slice. So the end of the
block refuses a write. To write parameters, use [`load_state_dict`](state_dict.py).
"""

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


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """A block in which the parameters of a model are whole, in their original shapes.

    Collective: all ranks enter the block, or none. In the block a program can read the
    parameters, use them in a loss, call methods of units other than `forward`, and call
    single modules inside units. Under a [policy](policy.py) the parameters have the
    dtype in which the model computes; inside [`full_precision`](full_precision.py) they
    have that of the masters.

    :param model: a sharded model, or a part of one; all units with a parameter in it
        are gathered
    :raises ValueError: if the model has no sharded parameter
    :raises TypeError: if `model` is no module
    :raises RuntimeError: at the end of the block, if the program wrote to a parameter
        that [is not stored whole](flat_checks.py#refuse_writes)
    :raises Disagreement: on every rank, if one rank does something else
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
    # A dictionary keeps the order, so that every rank gathers the units in the same
    # order.
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
    """A block whose saved tensors gather their units again in the backward pass.

    In a unit's forward pass every saved tensor belongs to that unit. This block has
    many units, so a saved tensor belongs to the unit in whose memory it lies, if there
    is one.
    """
    # PyTorch has no public name for the current pair of saved tensor hooks; [gathering
    # on demand](demand.py) reads it in the same way.
    below = top_saving(True)
    refused = saving_forbidden()
    outer = outermost(below)
    # A recomputation inside a checkpoint records a graph that is dropped at once, so it
    # needs no hooks.
    if refused is not None or (in_backward() and outer is not None):
        yield
        return
    reads = Reads(drivers, below, outer)
    with saved_tensors_hooks(reads.pack, reads.unpack):
        yield


class Reads:
    """The saved tensor hooks of the block.

    :param drivers: the hooks of the block's units
    :param below: the pair of saved tensor hooks that was current before the block
    :param outer: the outer hooks to which [every tensor is handed on](demand.py#Handed)
    """

    def __init__(self, drivers: list[Hooks], below: Any, outer: Any) -> None:
        # Inside a unit's forward pass, a tensor that belongs to none of the block's
        # units may belong to that unit.
        owner = None if below is None else getattr(below[0], "__self__", None)
        self.others = owner if isinstance(owner, Pair) else None
        # The storage of a flat vector stays the same object when its memory is freed
        # and allocated again.
        self.of = {
            storage_id(flat.full.untyped_storage()): Read(driver)
            for driver in drivers
            for flat in driver.unit.flats
        }
        # The pair that keeps the tensors has no unit of its own to gather.
        nobody = Nobody()
        self.kept = Pair(nobody, None, None)
        if outer is not None:
            self.kept = Handed(nobody, None, None, outer)

    def pack(self, tensor: Tensor) -> Any:
        """Keep a tensor together with the unit that it belongs to."""
        read = self.others
        if tensor.layout is torch.strided:
            read = self.of.get(storage_id(tensor.untyped_storage()), read)
        return read, self.kept.pack(tensor)

    def unpack(self, saved: Any) -> Tensor:
        """Gather the tensor's unit, and return the tensor."""
        read, packed = saved
        if read is not None:
            read.open()
        return self.kept.unpack(packed)


class Read(Pair):
    """The use of one unit by the block."""

    def __init__(self, driver: Hooks) -> None:
        start = next_number()
        use = Use(start, computed=Computed.of(driver.unit))
        super().__init__(driver, use, None)

    def open(self) -> None:
        """Gather the unit, and count one more backward pass that it has to wait for."""
        driver = self.driver()
        if isinstance(driver, Hooks) and driver.in_backward is None and in_backward():
            # The use is counted only here. Most units of a block get no backward pass
            # through it, and their gradients are exchanged as early as without the
            # block.
            driver.expected += 1
        super().open()


# sidelit: depth A block inside a forward or backward pass, and tensors that belong to no unit.


def in_use(driver: Hooks) -> bool:
    """Whether the unit's forward pass or its backward pass is under way."""
    if driver.in_backward is not None and in_backward():
        return True
    return driver.uses.under_way()


class Nobody:
    """A stand-in for a unit, for tensors that need no gather."""

    unit: Any
    uses: Nesting[Any]
    in_backward: Any = True

    def reach(self, use: Any, number: int) -> None:
        """Gather nothing."""
