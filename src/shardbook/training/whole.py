r"""# Whole parameters and full precision

> Inside `whole` a program can read whole parameters outside the forward pass; inside
> `full_precision` the model computes with its FP32 master weights.

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

Under [a 16-bit policy](policy.py) these parameters have 16 bits. Inside a second block,
[`full_precision`](#module/evaluating-in-full-precision), units are gathered as FP32
master weights, so you can evaluate the model with them.

A block of `whole` is one more use of each unit. At its beginning the units are
gathered, and the attributes of the modules are the whole parameters, as in a forward
pass. Autograd records the operations in the block, and their gradients are averaged
together with those of the model's own forward pass. At the end of the block the units
are freed. The backward pass may come after the block: when autograd [unpacks a saved
parameter](demand.py), its unit is gathered again.

All units of `model` are whole at the same time, so in stage 3 a rank needs the memory
of the whole model. With `whole(model.text_model)` only units with a parameter in that
part are gathered. A gather needs all ranks, so either all ranks enter the block or
none.

A whole parameter is valid only inside the block, so keep a clone if you need its values
later. A write would be lost, because a rank stores only its slice. So the end of the
block refuses a write. To write parameters, use [`load_state_dict`](state_dict.py).

:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from shardbook.foundations.hook_context import in_backward, machinery
from shardbook.foundations.torch_private import (
    next_number,
    saving_forbidden,
    storage_id,
    top_saving,
)
from shardbook.zero.demand import Handed, Pair, outermost
from shardbook.zero.flat import flat_of
from shardbook.zero.hooks import Hooks, Use
from shardbook.zero.optimizer_guard import Computed
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.whole_parameter import refuse_writes

__all__ = ["full_precision", "whole"]


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """A block in which the parameters of a model are whole, in their original shapes.

    Collective: all ranks enter the block, or none. In the block a program can read the
    parameters, use them in a loss, call methods of units other than `forward`, and call
    single modules inside units. Under a [policy](policy.py) the parameters have the
    dtype in which the model computes; inside
    [`full_precision`](whole.py#module/evaluating-in-full-precision) they have that of
    the masters.

    :param model: a sharded model, or a part of one; all units with a parameter in it
        are gathered
    :raises ValueError: if the model has no sharded parameter
    :raises TypeError: if `model` is no module
    :raises RuntimeError: at the end of the block, if the program wrote to a parameter
        that [is not stored whole](whole_parameter.py#refuse_writes)
    :raises Disagreement: on every rank, if one rank makes another call
    """
    every = hooks_of(model)
    held: list[Hooks] = []
    try:
        for hooks in every:
            begin(hooks)
            held.append(hooks)
        with announced(every):
            yield
    finally:
        for hooks in held:
            end(hooks)
    for hooks in every:
        for flat in hooks.unit.flats:
            refuse_writes(flat, hooks.unit.name)


def hooks_of(model: nn.Module) -> list[Hooks]:
    """[The hooks](hooks.py#Hooks) of the units that have a parameter in a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"pass the model itself, not a {type(model).__name__}")
    flats = [flat for flat in map(flat_of, model.parameters()) if flat is not None]
    # A dictionary keeps the order, so that every rank gathers the units in the same
    # order.
    found = list(dict.fromkeys(filter(None, (flat.hooks() for flat in flats))))
    if not found:
        raise ValueError(
            f"this {type(model).__name__} is not sharded; call shard(model) first"
        )
    return found


@machinery
def begin(hooks: Hooks) -> None:
    """Gather a unit for the block, unless it is in use already."""
    unit = hooks.unit
    if not unit.pins and not in_use(hooks):
        hooks.scheduler.forward_begins(unit)
    unit.wait()
    unit.show()
    unit.pins += 1


def end(hooks: Hooks) -> None:
    """Free a unit after the block, unless it is still in use elsewhere."""
    unit = hooks.unit
    unit.pins -= 1
    if not unit.pins and not in_use(hooks):
        unit.free()


@contextmanager
def announced(every: list[Hooks]) -> Iterator[None]:
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
    reads = Reads(every, below, outer)
    with saved_tensors_hooks(reads.pack, reads.unpack):
        yield


class Reads:
    """The saved tensor hooks of the block.

    :param every: the hooks of the block's units
    :param below: the pair of saved tensor hooks that was current before the block
    :param outer: the outer hooks to which [every tensor is handed on](demand.py#Handed)
    """

    def __init__(self, every: list[Hooks], below: Any, outer: Any) -> None:
        # Inside a unit's forward pass, a tensor that belongs to none of the block's
        # units may belong to that unit.
        owner = None if below is None else getattr(below[0], "__self__", None)
        self.others = owner if isinstance(owner, Pair) else None
        # The storage of a flat vector stays the same object when its memory is freed
        # and allocated again.
        self.of = {
            storage_id(flat.full.untyped_storage()): Read(hooks)
            for hooks in every
            for flat in hooks.unit.flats
        }
        # The pair that keeps the tensors has no unit of its own to gather.
        self.kept = Pair(no_hooks, NO_USE, None)
        if outer is not None:
            self.kept = Handed(no_hooks, NO_USE, None, outer)

    def pack(self, tensor: Tensor) -> Any:
        """Keep a tensor together with the unit that it belongs to."""
        read = self.others
        if tensor.layout is torch.strided:
            read = self.of.get(storage_id(tensor.untyped_storage()), read)
        return read, self.kept.pack(tensor)

    def unpack(self, saved: Any) -> Tensor:
        """Gather the tensor's unit, and return the tensor."""
        read, packed = saved
        hooks = None if read is None else read.hooks()
        if hooks is not None:
            read.open(hooks)
        return self.kept.unpack(packed)


class Read(Pair):
    """The use of one unit by the block."""

    def __init__(self, hooks: Hooks) -> None:
        start = next_number()
        use = Use(start, computed=Computed.of(hooks.unit))
        super().__init__(weakref.ref(hooks), use, None)

    def open(self, hooks: Hooks) -> None:
        """Gather the unit, and count one more backward pass that it has to wait for."""
        if hooks.backward_use is None and in_backward():
            # The use is counted only here. Most units of a block get no backward pass
            # through it, and their gradients are exchanged as early as without the
            # block.
            hooks.expected += 1
        super().open(hooks)


# sidelit: depth A block inside a forward or backward pass, and tensors that belong to no unit.


def in_use(hooks: Hooks) -> bool:
    """Whether the unit's forward pass or its backward pass is under way."""
    if hooks.backward_use is not None and in_backward():
        return True
    return hooks.uses.under_way()


NO_USE = Use(0)


def no_hooks() -> None:
    """Stand in for a unit, for tensors that need no gather."""


# sidelit: core


# ## Evaluating in full precision
#
# > Inside `full_precision` a model under a 16-bit policy computes with its FP32 master weights.
#
# [A policy](policy.py) lets a model compute in 16 bits. How many digits does that cost?
# To find out, compute the same loss with the master weights. In this block each unit is
# gathered in the dtype of the masters, so a gather sends as many bytes as it does without
# a policy.
#
# In stage 3 a unit is whole only while it is used, as always. In stages 1 and 2 every
# unit has a second whole vector from the beginning of the block to its end, $4\,P_u$
# bytes with FP32 masters. In stage 0 the masters are whole already, so a second vector is
# needed only if they [are on the host](offload.py).
#
# The block is for forward passes only. A backward pass after the block would need the
# unit again, but then its vector has another dtype. So autograd is off in the block, and
# a backward pass across its border [is refused](hooks.py#Hooks.before_backward).
#
# [Saving](state_dict.py) needs no such block, because a `state_dict` always holds the
# masters.


@contextmanager
def full_precision(model: nn.Module) -> Iterator[None]:
    """Forward passes in this block compute with the master weights, without gradients.

    ```python
    with full_precision(model):
        loss = model(batch)
    ```

    Inputs are not cast. Outputs are still cast to an `output_dtype`, and buffers keep
    the dtype to which [the policy](policy.py#Policy) has cast them. Either all ranks
    enter the block or none.

    :param model: a sharded model; without a `param_dtype` the block only turns autograd
        off
    :raises ValueError: if the model is not sharded
    :raises RuntimeError: if a forward or backward pass of the model is under way
    """
    units = tuple(scheduler_of(model).units)
    for unit in units:
        if unit.shown:
            raise RuntimeError(
                f"{unit.name} is in use; enter full_precision() before the model is called"
            )
    before = [unit.precise for unit in units]
    try:
        for unit in units:
            unit.free()
            unit.precise = True
            unit.switch(True)
        with torch.no_grad():
            yield
    finally:
        for unit, precise in zip(units, before, strict=True):
            unit.free()
            unit.precise = precise
            unit.switch(precise)
