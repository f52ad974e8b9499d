r"""# Norms and losses

> Norms, losses and a few long sums are computed in FP32, by a rule that stands in three tables.

The units of a processor that multiply matrices add up in FP32 even if they are given
16-bit numbers. (On a GPU, PyTorch by default lets some products add partial sums in the
format of the input.) A norm and a loss have sums of their own, and what is done with
them in between is rounded to the format of the input. BF16 keeps 8 significant bits:
between 2 and 4 it has 128 numbers, so two losses that differ by less than a 64th can be
the same number.

Under a [`param_dtype`](policy.py#Policy) four things are therefore done in FP32:

- The parameters that stand directly in a module of the table `NORMS` are gathered in
  FP32.
- Such a module gets its 16-bit inputs as FP32. Its result is cast back to the dtype of
  the first tensor that it was given.
- A function of the table `NORM_FUNCTIONS` does the same.
- A function of the table `LOSSES` gets its 16-bit inputs as FP32, and its result stays
  FP32.

`NORM_FUNCTIONS` also lists the functions that add or multiply many values and round in
between, such as `logsumexp`, `cumsum` and `prod`. The product of 4000 numbers near 1 is
off by 7 % if each step is rounded to FP16.

**What computes in 16 bits all the same.** Each function that stands in no table
computes in `param_dtype`. Of those that add up many values, `softmax`, `sum`, `mean`,
`var` and the norms of vectors add in FP32 inside and round the result once, so an entry
in a table would not change a bit. But the result has 16 bits. The sum of 4000 hundreds
is infinite in FP16, because 400,000 is no FP16 number. Where a model needs such a
number, it writes `x.sum(dtype=torch.float32)`, or the policy names the function among
those whose result stays FP32: `fp32_losses=(*LOSSES, torch.sum, torch.Tensor.sum)`.
[Autocast](autocast.py) has a rule for each of these functions.

The two rules for functions hold while the model's `forward` runs. A loss that the
training loop computes afterwards gets what the model returns. If that has 16 bits, so
has the loss, and under [loss scaling](loss_scaling.py) its gradient is infinite in
FP16. For such a loop set `output_dtype=torch.float32`.

A module that [activation checkpointing](checkpointing.py) runs again has the rules
again. A plain function has them if this book's `checkpoint` runs it, or
`torch.utils.checkpoint` with [`use_reentrant=True`](reentrant_rules.py). With
`use_reentrant=False` PyTorch's checkpoint raises an error for such a function.

The price is memory: what such a function saves for the backward pass takes four bytes
an element and not two. The parameters are few: of some $12\,d^2$ in a block of a
transformer of width $d$, $4\,d$ stand in its norms.

The tables are defaults of the policy. A model with a custom norm adds its class, and
empty tables leave everything in 16 bits:

```python
Policy(param_dtype=torch.bfloat16, fp32_modules=(*NORMS, LlamaRMSNorm))
Policy(param_dtype=torch.bfloat16, fp32_modules=(), fp32_norms=(), fp32_losses=())
```

:notation $d$: the number of values that stand for one position
"""

# sidelit: hide
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

__all__ = [
    "LOSSES",
    "NORMS",
    "NORM_FUNCTIONS",
    "InFP32",
    "compute_in_fp32",
    "rules_in_force",
]
# sidelit: show

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
    # Long sums and products. A call of a method and one of a function are two entries.
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
    # With it the product of a model's head is in FP32, too.
    F.linear_cross_entropy,
    *(
        torch.binary_cross_entropy_with_logits,
        torch.cosine_embedding_loss,
        torch.kl_div,
    ),
    *(torch.hinge_embedding_loss, torch.margin_ranking_loss, torch.poisson_nll_loss),
    *(torch.ctc_loss, torch.triplet_margin_loss),
)


class InFP32(TorchFunctionMode):
    """While it is in force, some functions compute in FP32.

    PyTorch asks a function mode before it carries out one of its own functions, whether
    a module or a line of `forward` calls it. What that function calls inside of itself
    is not asked about, so no value is cast twice.

    :param norms: functions that give back the dtype that they were given
    :param losses: functions whose result stays in FP32
    """

    def __init__(
        self, norms: Sequence[Callable[..., Any]], losses: Sequence[Callable[..., Any]]
    ) -> None:
        super().__init__()
        # Tuples, because `torch.compile` cannot look into a set that a mode holds.
        self.norms = tuple(norms)
        self.functions = (*norms, *losses)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # A caller that names a dtype, or brings the memory of the result, has chosen.
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
        # Not that of a weight: who passes FP32 values wants them back.
        given = narrow_dtype(args or kwargs.get("input"))
        return result.to(given) if given and func in self.norms else result

    @property
    def in_force(self) -> bool:
        """Whether a forward pass under it has begun in this thread and not ended."""
        return self in active.rules

    def enter(self, *_: Any) -> None:
        """A forward pass begins. Inside of another it changes nothing."""
        if not self.in_force:
            self.__enter__()  # type: ignore[no-untyped-call]
        active.rules.append(self)

    def leave(self, *_: Any) -> None:
        """A forward pass has ended. One that was left early may have ended already."""
        if self.in_force:
            active.cut(len(active.rules) - 1 - active.rules[::-1].index(self))

    # sidelit: depth An interrupt from the keyboard, after which no hook is called.

    def forget(self) -> None:
        """No forward pass is under way. An interrupt from the keyboard, after which no hook
        is called, may have left one in the list.
        """
        if self.in_force:
            active.cut(active.rules.index(self))


def compute_in_fp32(module: nn.Module) -> None:
    """Let a module get FP32 inputs, and give back the dtype that it was given.

    A custom norm may call no function of the tables. Its parameters are in FP32,
    and in its code they would meet 16-bit inputs. The result would be FP32, and the
    next matrix product would refuse it.
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
    """A 16-bit tensor as FP32; any other as it is."""
    return value.float() if value.dtype in NARROW else value


def narrow(dtype: torch.dtype, value: Tensor) -> Tensor:
    """An FP32 tensor in a narrower dtype; any other as it is."""
    return value.to(dtype) if value.dtype == torch.float32 else value


class Active(threading.local):
    """The rules in force in this thread, once for each forward pass that wants one."""

    def __init__(self) -> None:
        self.rules: list[InFP32] = []

    def cut(self, length: int) -> None:
        """Forget the latest forward passes."""
        while len(self.rules) > length:
            rule = self.rules.pop()
            if rule not in self.rules:
                rule.__exit__(None, None, None)  # type: ignore[no-untyped-call]


active = Active()

# sidelit: depth Functions that a checkpoint runs again, and norms that write their running mean.


def rules_in_force() -> Callable[[], AbstractContextManager[None]]:
    """What a recomputation needs to have the rules of the forward pass.

    A backward pass runs when no forward pass does, perhaps in another thread.

    :returns: a function that gives a block in which the present rules are in force
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
            # A recomputation ends as soon as it has what it is for, and no hook of the
            # modules that it leaves is called.
            active.cut(before)

    return restored


# These also write into two tensors that they are given, of which PyTorch's own
# functions expect the second place and the third, and those in C++ the fourth and the
# fifth.
WRITERS = (F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm)


def write_back(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function with FP32 copies, and copy back the running mean and variance.

    Without this a norm whose buffers have 16 bits would update copies of them, and
    evaluate with the values that it started from.
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
