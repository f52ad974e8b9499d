r"""# The policy

> A policy chooses the dtypes of computation and exchange, and whether the host stores
> the parameters.

A model is stored in the dtype that it has when it is sharded. The policy chooses the
dtype of the computation, the dtype of the gradients' exchange, and the place of
storage. With `param_dtype` the modules [compute with a copy](flat.py#Flat/master-weights) in another
dtype, and the stored parameters become *master weights*. If that dtype has 16 bits,
[norms and losses](#module/norms-and-losses) still compute in FP32. With `offload` the
masters [stay in the host's memory](offload.py).

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
they are: the ranks [send each other
pieces](collectives.py#module/all-to-all-instead-of) and add them up themselves. NCCL's
own reduce-scatter would add in 16 bits.

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

:notation $N_d$: `world_size`, the number of ranks that share the unit
:notation $d$: the number of values in the vector of one position
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from shardbook.foundations.hook_context import carry_over, map_tensors
from shardbook.foundations.torch_private import NEWER_LOSSES, tree_leaves, tree_map_only

__all__ = [
    "LOSSES",
    "NORMS",
    "NORM_FUNCTIONS",
    "InFP32",
    "Policy",
    "compute_in_fp32",
    "rules_in_force",
]


# The tables of [what computes in FP32](#InFP32), the defaults of a policy.
NORMS: tuple[type[nn.Module], ...] = (
    *(nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.SyncBatchNorm),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
NORM_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(F.layer_norm, F.rms_norm, F.group_norm, F.batch_norm, F.instance_norm),
    *(F.local_response_norm, F.normalize),
    *(torch.layer_norm, torch.rms_norm, torch.group_norm),
    *(torch.batch_norm, torch.instance_norm),
    # Long sums and products. A method and the function of the same name are two
    # entries.
    *(F.log_softmax, torch.log_softmax, Tensor.log_softmax),
    *(torch.logsumexp, Tensor.logsumexp, torch.logcumsumexp, Tensor.logcumsumexp),
    *(torch.cumsum, Tensor.cumsum, torch.cumprod, Tensor.cumprod),
    *(torch.prod, Tensor.prod),
)
LOSSES: tuple[Callable[..., Any], ...] = (
    *(F.cross_entropy, F.nll_loss, F.ctc_loss, F.kl_div, F.binary_cross_entropy),
    *(F.binary_cross_entropy_with_logits, F.mse_loss, F.l1_loss, F.smooth_l1_loss),
    *(F.huber_loss, F.poisson_nll_loss, F.gaussian_nll_loss, F.cosine_embedding_loss),
    *(F.hinge_embedding_loss, F.margin_ranking_loss, F.soft_margin_loss),
    *(F.multi_margin_loss, F.multilabel_margin_loss, F.multilabel_soft_margin_loss),
    *(F.triplet_margin_loss, F.triplet_margin_with_distance_loss),
    *NEWER_LOSSES,
    *(
        torch.binary_cross_entropy_with_logits,
        torch.cosine_embedding_loss,
        torch.kl_div,
    ),
    *(torch.hinge_embedding_loss, torch.margin_ranking_loss, torch.poisson_nll_loss),
    *(torch.ctc_loss, torch.triplet_margin_loss),
)


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
    :param fp32_modules: the modules that [compute in FP32](policy.py#module/norms-and-losses) under a
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


# sidelit: core


# ## Norms and losses
#
# > Under a 16-bit `param_dtype`, three tables name the norms, losses and long sums that are computed in FP32.
#
# A processor's matrix units add up in FP32 even if they are given 16-bit numbers. (On a
# GPU, PyTorch by default lets some products add partial sums in the dtype of the input.)
# A norm and a loss contain sums of their own, and their intermediate results are rounded
# to the dtype of the input. BF16 keeps 8 significant bits. Between 2 and 4 it has 128
# numbers, so two losses that differ by less than a 64th can become the same number.
#
# Under a [`param_dtype`](policy.py#Policy) four things are therefore done in FP32:
#
# - The parameters that belong directly to a module of the table `NORMS` are gathered in
#   FP32.
# - Such a module gets its 16-bit inputs as FP32. Its result is cast back to the dtype of
#   its first tensor input.
# - A function of the table `NORM_FUNCTIONS` gets and returns its tensors in the same way.
# - A function of the table `LOSSES` gets its 16-bit inputs as FP32, and its result stays
#   FP32.
#
# `NORM_FUNCTIONS` also lists the functions that add or multiply many values and round in
# between, such as `logsumexp`, `cumsum` and `prod`. For example, the product of 4000
# numbers near 1 is off by 7% if each step is rounded to FP16.
#
# **Functions that compute in 16 bits.** Every function that is in no table computes in
# `param_dtype`. Some of them add up many values: `softmax`, `sum`, `mean`, `var` and the
# norms of vectors. They add in FP32 internally and round the result once, so an entry in
# `NORM_FUNCTIONS` would not change a bit. But the result has 16 bits. In FP16 the sum of
# 4000 hundreds is infinite, because 400,000 is larger than every FP16 number. If your
# model needs such a sum, write `x.sum(dtype=torch.float32)`. Or let the policy name the
# function among those whose result stays FP32:
# `fp32_losses=(*LOSSES, torch.sum, torch.Tensor.sum)`. [Autocast](autocast.py) has a rule
# for each of these functions.
#
# The two rules for functions apply while the model's `forward` runs. A loss that the
# training loop computes afterwards gets the output of the model. If that output has 16
# bits, the loss has 16 bits, and under [loss scaling](loss_scaling.py) its gradient is
# infinite in FP16. For such a loop set `output_dtype=torch.float32`.
#
# When [activation checkpointing](checkpointing.py) runs a module again, the rules apply
# again. For a plain function they apply again if this book's `checkpoint` runs it, or
# `torch.utils.checkpoint` with
# [`use_reentrant=True`](hook_context.py#module/rules-in-pytorchs-reentrant-checkpoint).
# With `use_reentrant=False` PyTorch's checkpoint raises an error if a plain function
# computes a norm or a loss.
#
# The price is memory. Such a function saves tensors for the backward pass, and they take
# four bytes for each element instead of two. The norms' parameters are few: a block of a
# transformer of width $d$ has some $12\,d^2$ parameters, of which $4\,d$ belong to its
# norms.
#
# The tables are defaults of the policy. A model with a custom norm adds its class, and
# empty tables leave everything in 16 bits:
#
# ```python
# Policy(param_dtype=torch.bfloat16, fp32_modules=(*NORMS, LlamaRMSNorm))
# Policy(param_dtype=torch.bfloat16, fp32_modules=(), fp32_norms=(), fp32_losses=())
# ```


class InFP32(TorchFunctionMode):
    """A mode in which some functions compute in FP32.

    PyTorch calls a function mode before it runs one of its own functions, whether a
    module or a line of `forward` calls that function. It does not call the mode for
    functions inside that function, so no value is cast twice.

    :param norms: functions that return the dtype of their input
    :param losses: functions whose result stays in FP32
    """

    def __init__(
        self, norms: Sequence[Callable[..., Any]], losses: Sequence[Callable[..., Any]]
    ) -> None:
        super().__init__()
        # Tuples are used because `torch.compile` cannot look into a set that a mode
        # holds.
        self.norms = tuple(norms)
        self.functions = (*norms, *losses)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # A caller that passes a dtype, or memory for the result, has chosen the dtype.
        chosen = kwargs.get("dtype") or kwargs.get("out") is not None
        if func not in self.functions or chosen:
            return func(*args, **kwargs)
        if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            carry_over(rules_in_force())
        if func in WRITERS:
            result = write_back(func, args, kwargs)
        else:
            wide, more = tree_map_only(Tensor, widen, (args, kwargs))
            result = func(*wide, **more)
        # Only the first input decides. An FP32 input with a 16-bit weight gives an FP32
        # result.
        given = narrow_dtype(args or kwargs.get("input"))
        return result.to(given) if given and func in self.norms else result

    @property
    def in_force(self) -> bool:
        """Whether a forward pass under this mode has begun in this thread and not ended."""
        return self in active.rules

    def enter(self, *_: object) -> None:
        """Begin a forward pass. Inside another one this changes nothing."""
        if not self.in_force:
            self.__enter__()
        active.rules.append(self)

    def leave(self, *_: object) -> None:
        """End a forward pass. An interrupted one may have been ended already."""
        if self.in_force:
            active.cut(len(active.rules) - 1 - active.rules[::-1].index(self))

    # sidelit: depth An interrupt from the keyboard, after which no hook is called.

    def forget(self) -> None:
        """End all forward passes in the list. An interrupt from the keyboard calls no
        hook, so it may have left some.
        """
        if self.in_force:
            active.cut(active.rules.index(self))


def compute_in_fp32(module: nn.Module) -> None:
    """Give a module FP32 inputs, and cast its result back to the dtype of its input.

    A custom norm may call no function of the tables. Its parameters are in FP32, so its
    result on 16-bit inputs would be FP32, and the next matrix product would raise an
    error about two dtypes.
    """
    given: list[torch.dtype | None] = [None]

    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        given[0] = narrow_dtype((args, kwargs))
        return map_tensors(widen, (args, kwargs))

    def after(_: nn.Module, args: Any, result: Any) -> Any:
        if given[0] is None:
            return result
        return map_tensors(partial(narrow, given[0]), result)

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after)


def narrow_dtype(given: Any) -> torch.dtype | None:
    """The dtype of the first tensor, if it has 16 bits.

    >>> narrow_dtype([torch.ones(1, dtype=torch.bfloat16), torch.ones(1)])
    torch.bfloat16
    """
    for value in tree_leaves(given):
        if isinstance(value, Tensor):
            return value.dtype if value.dtype in NARROW else None
    return None


NARROW = (torch.float16, torch.bfloat16)


def widen(value: Tensor) -> Tensor:
    """A 16-bit tensor as FP32; any other tensor unchanged."""
    return value.float() if value.dtype in NARROW else value


def narrow(dtype: torch.dtype, value: Tensor) -> Tensor:
    """An FP32 tensor in a narrower dtype; any other tensor unchanged."""
    return value.to(dtype) if value.dtype == torch.float32 else value


class Active(threading.local):
    """The rules that apply in this thread, one entry for each forward pass under a rule."""

    def __init__(self) -> None:
        self.rules: list[InFP32] = []

    def cut(self, length: int) -> None:
        """End the latest forward passes, so that a number of entries is left."""
        while len(self.rules) > length:
            rule = self.rules.pop()
            if rule not in self.rules:
                rule.__exit__(None, None, None)


active = Active()

# sidelit: depth Functions that a checkpoint runs again, and norms that write running statistics.


def rules_in_force() -> Callable[[], AbstractContextManager[None]]:
    """The rules that a recomputation must apply again.

    A backward pass runs outside of every forward pass, perhaps in another thread.

    :returns: a function that gives a block in which the present rules apply
    """
    rules = tuple(dict.fromkeys(active.rules))
    if not rules:
        return nullcontext

    @contextmanager
    def restored() -> Iterator[None]:
        before = len(active.rules)
        for rule in rules:
            rule.enter()
        try:
            yield
        finally:
            # A recomputation stops as soon as it has its last tensor, and then calls no
            # hook of the modules that it leaves.
            active.cut(before)

    return restored


# Norms that also write into two of their arguments, the running statistics. In PyTorch's
# Python functions these are the second and the third argument, in the C++ functions the
# fourth and the fifth.
WRITERS = (F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm)


def write_back(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function with FP32 copies, and copy back the running mean and variance.

    Without the copy back, a norm whose buffers have 16 bits would update FP32 copies of
    them. In an evaluation it would then use its initial values.
    """
    wide, more = tree_map_only(Tensor, widen, (args, kwargs))
    result = func(*wide, **more)
    places = slice(1, 3) if func in WRITERS[:2] else slice(3, 5)
    pairs = [*zip(args, wide, strict=True)][places]
    names = ("running_mean", "running_var")
    pairs += [(kwargs.get(name), more.get(name)) for name in names]
    with torch.no_grad():
        for value, written in pairs:
            if value is not written:
                value.copy_(written)
    return result
