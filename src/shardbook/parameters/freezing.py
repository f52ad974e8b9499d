r"""# Freezing and unfreezing

> A program may change `requires_grad` while it trains, if it does so on all ranks alike.

Programs change `requires_grad` for many reasons. One unfreezes another layer in each
epoch, another freezes the discriminator of a GAN while the generator trains, and a
library of adapters turns some of them off and others on. In an unsharded program the
next forward pass follows such a change.

In a sharded model the forward pass computes with [the whole
parameters](flat.py#Flat.take), which are other objects than the model's own. So before
each use every whole parameter takes over the `requires_grad` of the model's own one.
After the use, [changes that were made meanwhile are copied back](#carry_over). A frozen
parameter gets no gradient, and a flat vector whose parameters are all frozen is not
exchanged.

The vectors themselves are [laid out when the model is sharded](layout.py#plan), with
trainable and frozen parameters in separate vectors. That does not change later:

| a vector of parameters that were | stage | costs, if they change |
|---|---|---|
| trainable, and some are frozen later | all | the exchange carries zeros in their places |
| trainable, and all are frozen later | all | nothing is exchanged |
| frozen, and trained later | 3 | nothing more: it is split already |
| frozen, and trained later | 0 | nothing more |
| frozen, and trained later | 1, 2 | every rank keeps the optimizer's state of the whole vector |

In the last case the gradients also cost the $2\,P_u\,(N_d-1)/N_d$ elements of stage 0.
So if a parameter is going to be trained for most of the time, make it trainable before
you shard the model. As without sharding, an optimizer trains only the parameters that
it was given: pass it `model.parameters()`, or add a group when a layer is unfrozen.

All ranks must change `requires_grad` alike, because a frozen vector takes no part in an
exchange. [The order](exchange_order.py) compares this at the start of each backward
pass.

:notation $N_d$: `world_size`, the number of ranks that share the vector
:notation $P_u$: `padded`, the length of the vector with its padding
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from zlib import crc32

from torch import Tensor

__all__ = ["carry_over", "changed_since_sharding", "trainable"]


def carry_over(
    parameters: Sequence[Tensor], whole: Sequence[Tensor], *, to_whole: bool
) -> None:
    """Copy `requires_grad` from the model's own parameters to the whole ones, or back.

    A module may freeze a parameter while it is whole: in its own `forward`, in a block
    of [`whole(model)`](whole.py), or after [an interrupted forward
    pass](interrupted.py). That change has to last. But the model's own parameters may
    have changed meanwhile, too. So only differences from the beginning of the use are
    copied back.

    :param parameters: the model's own parameters
    :param whole: the whole parameters, in the same order
    :param to_whole: whether the use of the whole parameters begins or ends
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
    """Make a parameter require gradients in the block.

    PyTorch accepts a hook on a gradient only if the tensor requires one. Once the hook
    is set it stays, whatever `requires_grad` becomes.

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
    """The parameters that were frozen or unfrozen since the model was sharded, as text.

    The text becomes part of the name of a backward pass. Ranks whose names differ [do
    not continue](exchange_order.py#Order.before), and the error of each rank names a
    parameter that it has changed. A program that alternates between two states has
    backward passes of two names, and the ranks agree on each name once.

    :param units: all units of the model
    :returns: the first parameter by name, the number of the others, and a checksum of
        all their names; an empty text if there are none
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
