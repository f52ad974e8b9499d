r"""# Rules in PyTorch's reentrant checkpoint

> A function that PyTorch's reentrant checkpoint runs again computes norms as it did before.

[The rules for norms and losses](norms.py) are in force while a sharded model's
`forward` runs. A checkpoint runs a part of that `forward` once more in the backward
pass. If the part is a module, the module's hooks put the rules in force again, and
[this book's checkpoint](autocast_state.py) carries them over for any function.
PyTorch's checkpoint knows nothing of them. With `use_reentrant=False` it compares the
two runs and raises an error, because the second run computes in 16 bits. With
`use_reentrant=True` it compares nothing, so the gradients would be those of another
result.

The reentrant checkpoint runs its function without gradients and keeps it in
`ctx.run_function` until the backward pass. A function that computes under a rule and
without gradients can find that object on the call stack. Then the kept function is
replaced by one that has the rules, too.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.utils.checkpoint import CheckpointFunction

from shardbook.foundations.nesting import frames_of

__all__ = ["carry_over"]

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
    """Let each reentrant checkpoint of PyTorch around this call run again under the rules.

    The walk along the call stack takes some microseconds. It is made only without
    gradients, since in this state a checkpoint runs its function.

    :param rules: gives a block in which the present rules are in force
    """
    for frame in frames_of(CHECKPOINTS_FORWARD):
        # `ctx` and `run_function` are PyTorch's names and may change.
        ctx = frame.f_locals["ctx"]
        if not isinstance(ctx.run_function, UnderRules):
            ctx.run_function = UnderRules(ctx.run_function, rules)


CHECKPOINTS_FORWARD = CheckpointFunction.forward.__code__
