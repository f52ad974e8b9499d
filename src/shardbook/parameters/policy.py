r"""# The policy

> A policy chooses the dtypes of computation and exchange, and whether the host stores
> the parameters.

A model is stored in the dtype that it has when it is sharded. The policy chooses the
dtype of the computation, the dtype of the gradients' exchange, and the place of
storage. With `param_dtype` the modules [compute with a copy](masters.py) in another
dtype, and the stored parameters become *master weights*. With `offload` the masters
[stay in the host's memory](offload.py).

```python
shard(model, policy=Policy(param_dtype=torch.bfloat16))
```

The exchange of the gradients can have a dtype of its own. Suppose gradients are
computed in FP32 and exchanged in BF16. That takes half the bytes, but each value loses
16 of its 24 significant bits before it is averaged. The mean is formed in FP32 and then
rounded to BF16 once more. In the other direction, BF16 gradients that are exchanged as
FP32 lose nothing on the way.

By default a gradient is exchanged in the dtype in which it was computed, because a
wider one would double the bytes and add no digit. Every backend sends 16-bit values as
they are: the ranks [send each other pieces](exchange.py) and add them up themselves.
NCCL's own reduce-scatter would add in 16 bits.

The dtype of the exchange is not the dtype of the sum. The ranks' values are
[added](collectives.py#reduce_scatter_mean) in FP32 or in a wider dtype. In FP16 the sum
$40000 + 40000$ would be infinite, although the mean is not.

Other libraries add in 16 bits, and divide a part before the sum: a *pre-divide factor*
such as $\sqrt{N_d}$, and the rest of $N_d$ as a *post-divide factor* after it. On 64
ranks both are 8. A gradient of 2000 on each rank then adds up to 16000 instead of
128000, which is no FP16 number. But dividing first loses digits of small gradients:

>>> torch.tensor(2000.0).half() * 64
tensor(inf, dtype=torch.float16)
>>> torch.tensor(2000.0).half() / 8 * 64 / 8
tensor(2000., dtype=torch.float16)
>>> small = torch.tensor(3e-7).half()
>>> small, small / 8 * 64 / 8
(tensor(2.9802e-07, dtype=torch.float16), tensor(4.7684e-07, dtype=torch.float16))

Here the sum is in FP32, so one division after it is enough, and there is no setting for
such factors. If the mean should have another factor, multiply the loss by it.

NVIDIA's older library apex numbered such choices from O0 to O3. O0 is FP32 and O3 is
FP16 throughout. O1 casts at each operation, as [autocast](autocast.py) does. O2 casts
the model and keeps masters and norms in FP32, as a policy does.

The policy also chooses the device of the masters, because one copy changes both device
and dtype. If modules compute in 16 bits, the host casts its FP32 masters before they
are sent to the device, so only half the bytes cross.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from shardbook.parameters.norms import LOSSES, NORM_FUNCTIONS, NORMS

__all__ = ["Policy"]


@dataclass(frozen=True, slots=True, repr=False)
class Policy:
    """The dtypes of a sharded model. `None` leaves a dtype as it is.

    :param param_dtype: the floating-point dtype in which modules compute with their
        parameters
    :param reduce_dtype: the floating-point dtype in which gradients are exchanged;
        `None` means the dtype in which they were computed
    :param buffer_dtype: the floating-point dtype to which floating-point buffers are
        cast when the model is sharded
    :param output_dtype: the floating-point dtype of the model's outputs; choose FP32
        for a loss that is computed outside of the model
    :param cast_inputs: whether floating-point inputs of the model are cast to
        `param_dtype`
    :param fp32_modules: the modules that [compute in FP32](norms.py) under a
        `param_dtype`
    :param fp32_norms: functions that compute in FP32 and return the dtype of their
        input
    :param fp32_losses: functions that compute in FP32 and return FP32
    :param offload: whether the parameters, their mean gradients and the optimizer's
        state are stored in the host's memory
    :raises TypeError: if a dtype is not a floating-point dtype of 16 bits or more, a
        table is not a tuple of classes or functions, or a switch is no `bool`
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    buffer_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_inputs: bool = True
    fp32_modules: tuple[type[nn.Module], ...] = NORMS
    fp32_norms: tuple[Callable[..., Any], ...] = NORM_FUNCTIONS
    fp32_losses: tuple[Callable[..., Any], ...] = LOSSES
    offload: bool = False

    def computes_in(self, dtype: torch.dtype, *, in_fp32: bool = False) -> torch.dtype:
        """The dtype in which modules compute with parameters that are stored in
        `dtype`.

        :param dtype: the dtype of the stored parameter
        :param in_fp32: whether the parameter belongs to one of the `fp32_modules`
        """
        if self.param_dtype is None or not dtype.is_floating_point:
            return dtype
        if in_fp32:
            return torch.promote_types(self.param_dtype, torch.float32)
        return self.param_dtype

    def collects_in(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which gradients are collected before they are exchanged.

        It is the narrowest dtype that holds all values of two others, those of the
        computation and of the exchange. [Micro-batches](accumulate.py) that are
        exchanged together are added up in FP32 or in a wider dtype.

        If a parameter is used several times in one forward pass, autograd has added the
        gradients of these uses before they are collected. That addition is in the dtype
        of the computation, whatever `reduce_dtype` is.

        :param dtype: the dtype of the computation
        """
        return torch.promote_types(dtype, self.sends_in(dtype))

    def sends_in(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which gradients are exchanged, if they are computed in `dtype`."""
        return self.reduce_dtype or dtype

    # sidelit: depth Settings that are no dtypes or tables, and the text by which ranks compare them.

    def __post_init__(self) -> None:
        for name, needs in NEEDS.items():
            wanted = getattr(self, name)
            if wanted is None:
                continue
            # For dtypes of 8 bits PyTorch has conversions and scaled products
            # (`torch.nn.functional.scaled_mm`), but no other arithmetic.
            if not (
                isinstance(wanted, torch.dtype)
                and wanted.is_floating_point
                and wanted.itemsize > 1
            ):
                raise TypeError(
                    f"{name}={wanted!r} cannot hold {needs}; "
                    "choose a floating-point dtype of 16 bits or more, such as torch.float32"
                )
        for name, what in TABLES.items():
            table = getattr(self, name)
            fits = is_class if what == "classes" else is_function
            if not isinstance(table, tuple) or not all(map(fits, table)):
                raise TypeError(
                    f"{name}={told(table)} is not a tuple of {what}; "
                    f"write {name}=(first, second), or () for none"
                )
        for name in ("cast_inputs", "offload"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r} must be True or False")

    def __repr__(self) -> str:
        """The settings that differ from the default, as the same text on every rank.

        The ranks compare this text. Python's own text of a function contains an
        address, which differs from rank to rank.

        >>> Policy(param_dtype=torch.bfloat16, fp32_modules=(nn.LayerNorm,))
        Policy(param_dtype=torch.bfloat16, fp32_modules=(LayerNorm))
        """
        changed = [
            f"{field.name}={told(getattr(self, field.name))}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"Policy({', '.join(changed)})"


# sidelit: depth The kinds of values that settings have, and their text in a message.


def is_class(value: Any) -> bool:
    """Whether `isinstance` accepts the value as a class."""
    return isinstance(value, type)


def is_function(value: Any) -> bool:
    """Whether the value is a function that a forward pass may call. A module or its class is not."""
    return callable(value) and not isinstance(value, type | nn.Module)


def told(value: Any) -> str:
    """A setting as text, with the names of classes and functions."""
    if isinstance(value, tuple):
        return f"({', '.join(told(each) for each in value)})"
    return str(getattr(value, "__qualname__", repr(value)))


NEEDS = {
    "param_dtype": "parameters",
    "reduce_dtype": "a mean",
    "buffer_dtype": "buffers",
    "output_dtype": "outputs",
}


TABLES = {
    "fp32_modules": "classes",
    "fp32_norms": "functions",
    "fp32_losses": "functions",
}
