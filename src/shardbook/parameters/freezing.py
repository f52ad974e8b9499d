r"""# Freezing and unfreezing

> `requires_grad` may change while a model trains, on all ranks alike.

A program may unfreeze one layer more in each epoch, or freeze the discriminator of a
GAN while the generator trains. A library of adapters turns some of them off and others
on. Each does so by `requires_grad`, and in an unsharded program the next forward pass
obeys.

In a sharded one the forward pass computes with [the whole
parameters](flat.py#Flat.take), which are other objects than the model's own. So before
each use every whole parameter takes over the `requires_grad` of its counterpart, and
after it [what was changed meanwhile is carried back](#carry_over). What is frozen gets
no gradient, and a flat vector of which all parameters are frozen is not exchanged.

The vectors themselves are [cut when the model is sharded](layout.py#plan), trainable
and frozen parameters apart, and stay as they are:

| a vector of parameters that were | stage | costs, if they change |
|---|---|---|
| trainable, and some are frozen later | all | the exchange carries zeros in their places |
| trainable, and all are frozen later | all | nothing is exchanged |
| frozen, and trained later | 3 | nothing more: it is split already |
| frozen, and trained later | 0 | nothing more |
| frozen, and trained later | 1, 2 | every rank keeps the optimizer's state of the whole vector |

In the last case the gradients cost the $2\,P_u\,(N_d-1)/N_d$ elements of stage 0, too.
So a parameter that is going to be trained for most of the time had better be trainable
when the model is sharded. An optimizer needs to have a parameter to train it, as
without sharding: pass it `model.parameters()`, or add a group when a layer is unfrozen.

All ranks have to change `requires_grad` alike, because a frozen vector takes no part in
an exchange. [The order](exchange_order.py) compares that at the start of each backward
pass.

:notation $N_d$: `world_size`, the number of ranks that share the vector
:notation $P_u$: `padded`, the length of the vector with its padding
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from zlib import crc32

from torch import Tensor

__all__ = ["carry_over", "changed_since_sharding", "trainable"]
# sidelit: show


def carry_over(
    parameters: Sequence[Tensor], whole: Sequence[Tensor], *, to_whole: bool
) -> None:
    """Let the whole parameters require gradients as the model's own do, or the other way.

    A module may freeze a parameter while it is whole: in its own `forward`, in a block
    of [`whole(model)`](whole.py), or after [an interrupted pass](interrupted.py). That
    has to last. But the model's own may have changed meanwhile, too. So only what
    differs from the beginning is carried back.

    :param to_whole: whether the whole parameters begin to be used, or end
    """
    for own, one in zip(parameters, whole, strict=True):
        if to_whole:
            vars(one)[_BEGAN] = own.requires_grad
            if one.requires_grad is not own.requires_grad:
                one.requires_grad_(own.requires_grad)
        elif one.requires_grad is not vars(one).get(_BEGAN, one.requires_grad):
            own.requires_grad_(one.requires_grad)


_BEGAN = "_shardbook_requires_grad"


@contextmanager
def trainable(parameter: Tensor) -> Iterator[None]:
    """Let a parameter require gradients in the block.

    PyTorch takes a hook on a gradient only from a tensor that requires one. A hook that
    is there stays there, whatever `requires_grad` becomes.

    >>> import torch
    >>> frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    >>> with trainable(frozen):
    ...     handle = frozen.register_hook(print)
    >>> frozen.requires_grad
    False
    """
    before = parameter.requires_grad
    parameter.requires_grad_()
    try:
        yield
    finally:
        parameter.requires_grad_(before)


# sidelit: depth Ranks that have frozen or unfrozen different parameters.


def changed_since_sharding(units: Iterable[Any]) -> str:
    """Which parameters were frozen or unfrozen since the model was sharded, as text.

    It becomes part of the name of a backward pass. Ranks that differ in it [do not go
    on](exchange_order.py#Order.before), and each says which parameter it has changed. A
    program that goes back and forth between two states has two passes with two names,
    and each is agreed once.

    :param units: all units of the model
    :returns: the first parameter by name, the number of the others, and a checksum of
        all their names; nothing if there are none
    """
    names = [
        slot.names[0]
        for unit in units
        for flat in unit.trainable
        for slot, parameter in zip(flat.layout.slots, flat.parameters, strict=True)
        if parameter.requires_grad is not flat.layout.trainable
    ]
    if not names:
        return ""
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    checksum = crc32("\n".join(names).encode())
    return f"(requires_grad of {names[0]}{others} changed, {checksum:08x}) "
