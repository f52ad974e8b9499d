r"""# Full precision on demand

> For an evaluation, a model computes with its master weights.

[A policy](policy.py) lets a model compute in 16 bits. What that costs in digits is seen
when the same is computed in full precision. In the block below each unit is gathered in
the masters' own format, so a gather sends as many bytes as without a policy.

In stage 3 a unit still exists in full only while it is used. In stages 1 and 2 every
unit has a second whole vector from the beginning of the block to its end, $4\,P_u$
bytes with FP32 masters. In stage 0 the masters are whole already, and a second vector
is needed only if they [are on the host](offload.py).

The block is for forward passes. A backward pass would need the unit again, after the
block, when its vector has another format. So no gradients are computed in it, and a
backward pass from one side of its border to the other [is
refused](hooks.py#Hooks.before_backward).

[Saving](state_dict.py) needs no such block. A `state_dict` always holds the masters.

:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from shardbook.zero.conductor import conductor_of

__all__ = ["full_precision"]
# sidelit: show


@contextmanager
def full_precision(model: nn.Module) -> Iterator[None]:
    """Forward passes in this block compute with the master weights, without gradients.

    ```python
    with full_precision(model):
        loss = model(batch)
    ```

    Inputs stay as they are. Outputs are still cast to an `output_dtype`, and buffers
    stay as [the policy](policy.py#Policy) has cast them. Either all ranks enter the
    block or none.

    :param model: a model that was sharded; without a `param_dtype` only gradients are
        turned off
    :raises ValueError: if the model is not sharded
    :raises RuntimeError: if it is in the middle of a pass
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
