r"""# Norms and losses

> Under a 16-bit `param_dtype`, three tables name the norms, losses and long sums that are computed in FP32.

A processor's matrix units add up in FP32 even if they are given 16-bit numbers. (On a
GPU, PyTorch by default lets some products add partial sums in the dtype of the input.)
A norm and a loss contain sums of their own, and their intermediate results are rounded
to the dtype of the input. BF16 keeps 8 significant bits. Between 2 and 4 it has 128
numbers, so two losses that differ by less than a 64th can become the same number.

Under a [`param_dtype`](policy.py#Policy) four things are therefore done in FP32:

- The parameters that belong directly to a module of the table `NORMS` are gathered in
  FP32.
- Such a module gets its 16-bit inputs as FP32. Its result is cast back to the dtype of
  its first tensor input.
- A function of the table `NORM_FUNCTIONS` gets and returns its tensors in the same way.
- A function of the table `LOSSES` gets its 16-bit inputs as FP32, and its result stays
  FP32.

`NORM_FUNCTIONS` also lists the functions that add or multiply many values and round in
between, such as `logsumexp`, `cumsum` and `prod`. For example, the product of 4000
numbers near 1 is off by 7 % if each step is rounded to FP16.

**Functions that compute in 16 bits.** Every function that is in no table computes in
`param_dtype`. Some of them add up many values: `softmax`, `sum`, `mean`, `var` and the
norms of vectors. They add in FP32 internally and round the result once, so an entry in
`NORM_FUNCTIONS` would not change a bit. But the result has 16 bits. In FP16 the sum of
4000 hundreds is infinite, because 400,000 is larger than every FP16 number. If your
model needs such a sum, write `x.sum(dtype=torch.float32)`. Or let the policy name the
function among those whose result stays FP32:
`fp32_losses=(*LOSSES, torch.sum, torch.Tensor.sum)`. [Autocast](autocast.py) has a rule
for each of these functions.

The two rules for functions apply while the model's `forward` runs. A loss that the
training loop computes afterwards gets the output of the model. If that output has 16
bits, the loss has 16 bits, and under [loss scaling](loss_scaling.py) its gradient is
infinite in FP16. For such a loop set `output_dtype=torch.float32`.

When [activation checkpointing](checkpointing.py) runs a module again, the rules apply
again. For a plain function they apply again if this book's `checkpoint` runs it, or
`torch.utils.checkpoint` with [`use_reentrant=True`](reentrant_rules.py). With
`use_reentrant=False` PyTorch's checkpoint raises an error for such a function.

The price is memory. Such a function saves tensors for the backward pass, and they take
four bytes for each element instead of two. The norms' parameters are few: a block of a
transformer of width $d$ has some $12\,d^2$ parameters, of which $4\,d$ belong to its
norms.

The tables are defaults of the policy. A model with a custom norm adds its class, and
empty tables leave everything in 16 bits:

```python
Policy(param_dtype=torch.bfloat16, fp32_modules=(*NORMS, LlamaRMSNorm))
Policy(param_dtype=torch.bfloat16, fp32_modules=(), fp32_norms=(), fp32_losses=())
```

:notation $d$: the number of values in the vector of one position
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from shardbook.foundations.hook_context import map_tensors
from shardbook.foundations.reentrant_rules import carry_over
from shardbook.foundations.torch_private import tree_leaves, tree_map_only
from shardbook.foundations.torch_versions import NEWER_LOSSES

__all__ = [
    "LOSSES",
    "NORMS",
    "NORM_FUNCTIONS",
    "InFP32",
    "compute_in_fp32",
    "rules_in_force",
]

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

    def enter(self, *_: Any) -> None:
        """Begin a forward pass. Inside another one this changes nothing."""
        if not self.in_force:
            self.__enter__()
        active.rules.append(self)

    def leave(self, *_: Any) -> None:
        """End a forward pass. One that was interrupted may have been ended already."""
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
