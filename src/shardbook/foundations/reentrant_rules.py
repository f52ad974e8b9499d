r"""# Rules in PyTorch's reentrant checkpoint

> When PyTorch's reentrant checkpoint runs a function again, norms compute in FP32 as in the first run.

[The rules for norms and losses](norms.py) are in force while a sharded model's
`forward` runs. A checkpoint runs a part of that `forward` again in the backward pass.
If the part is a module, the module's hooks put the rules in force again. [This book's
checkpoint](autocast_state.py) carries the rules over for any function. PyTorch's
checkpoint does not carry them over, so its second run computes in 16 bits. With
`use_reentrant=False` it compares the two runs and raises an error. With
`use_reentrant=True` it compares nothing, so the gradients would belong to another
result.

The reentrant checkpoint runs its function without gradients and keeps the function in
`ctx.run_function` until the backward pass. A function that computes under a rule, and
without gradients, can find `ctx` on the call stack. The kept function is then replaced
by one that runs under the rules, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.utils.checkpoint import CheckpointFunction

from shardbook.foundations.nesting import frames_of

__all__ = ["carry_over"]

# sidelit: hide
Rules = Callable[[], AbstractContextManager[None]]
# sidelit: show


class UnderRules:
    """A function that runs under the rules that were in force when it first ran."""

    def __init__(self, function: Callable[..., Any], rules: Rules) -> None:
        self.function = function
        self.rules = rules

    def __call__(self, *args: Any) -> Any:
        with self.rules():
            return self.function(*args)


def carry_over(rules: Rules) -> None:
    """Make each of PyTorch's reentrant checkpoints around this call recompute under the
    rules.

    The walk along the call stack takes some microseconds. It is made only without
    gradients, since a reentrant checkpoint runs its function in that state.

    :param rules: gives a block in which the present rules are in force
    """
    for frame in frames_of(CHECKPOINTS_FORWARD):
        # `ctx` and `run_function` are PyTorch's names and may change.
        ctx = frame.f_locals["ctx"]
        if not isinstance(ctx.run_function, UnderRules):
            ctx.run_function = UnderRules(ctx.run_function, rules)


CHECKPOINTS_FORWARD = CheckpointFunction.forward.__code__
