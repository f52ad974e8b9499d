r"""# Evaluating in full precision

> Inside `full_precision` a model under a 16-bit policy computes with its FP32 master weights.

[A policy](policy.py) lets a model compute in 16 bits. How many digits does that cost?
To find out, compute the same loss with the master weights. In this block each unit is
gathered in the dtype of the masters, so a gather sends as many bytes as it does without
a policy.

In stage 3 a unit is whole only while it is used, as always. In stages 1 and 2 every
unit has a second whole vector from the beginning of the block to its end, $4\,P_u$
bytes with FP32 masters. In stage 0 the masters are whole already, so a second vector is
needed only if they [are on the host](offload.py).

The block is for forward passes only. A backward pass after the block would need the
unit again, but then its vector has another dtype. So autograd is off in the block, and
a backward pass across its border [is refused](hooks.py#Hooks.before_backward).

[Saving](state_dict.py) needs no such block, because a `state_dict` always holds the
masters.

:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from shardbook.zero.conductor import conductor_of

__all__ = ["full_precision"]


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
    units = tuple(conductor_of(model).drivers)
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
