r"""# What an optimizer may do

> Every optimizer is looked at before it steps on sharded parameters.

A sharded parameter looks like any other, so any optimizer accepts it. Not every
optimizer can train it. Some compute with a parameter's shape, which a slice has lost.
And any optimizer that steps too early trains with gradients that were not averaged. In
each case the numbers would be wrong and no error would be raised, so this chapter
raises one.

PyTorch calls a hook before each step of each optimizer. It costs a loop over the
parameters, and no message.
"""

# sidelit: hide
from __future__ import annotations

import re
from functools import cache
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from shardbook.flat import Flat, owner_of

__all__ = ["before_step", "refuse_copies_of", "refuse_waiting", "register_guard"]
# sidelit: show


@cache
def register_guard() -> None:
    """Let every optimizer of this process be looked at. One hook serves all models."""
    register_optimizer_step_pre_hook(before_step)


def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Stop an optimizer that would silently train something else, and count the steps
    of the others.

    Adafactor factors matrices, and a slice has no rows. L-BFGS takes inner products
    over all parameters, LAMB and LARS take the norm of each, and a rank has only a part
    of them. None would raise by itself. Gradients that wait for their exchange would
    miss the step, and after an interrupted pass gradients are missing. The steps are
    counted because a backward pass [must not find other
    weights](layer.py#Hooks.before_backward) than its forward pass had.

    :raises TypeError: if the optimizer depends on shapes, and the shapes are gone
    :raises RuntimeError: if gradients were collected and not averaged, or a pass was
        interrupted while the parameters were in use
    :raises Disagreement: if the ranks have [left the common order](order.py)
    """
    parameters = (
        parameter for group in optimizer.param_groups for parameter in group["params"]
    )
    # A dictionary keeps the order, so that every rank names the same parameter.
    for flat in dict.fromkeys(filter(None, map(owner_of, parameters))):
        if flat.sliced and depends_on_shapes(type(optimizer)):
            raise TypeError(
                f"{type(optimizer).__name__} depends on a parameter's shape; "
                "use an elementwise optimizer such as AdamW"
            )
        flat.order.check()
        if flat.in_use:
            raise RuntimeError(
                f"{flat.layout.slots[0].names[0]} is in the middle of a forward or "
                "backward pass that did not end; call the model once more before the "
                "optimizer steps"
            )
        refuse_waiting(flat)
        flat.changes += 1


def refuse_waiting(flat: Flat) -> None:
    """Stop whoever would use gradients of which [a part still waits](accumulate.py)."""
    if flat.waits:
        raise RuntimeError(
            f"the gradient of {flat.layout.slots[0].names[0]} has not been averaged "
            "yet; run a backward pass to its end, outside of no_sync()"
        )


def depends_on_shapes(kind: type[torch.optim.Optimizer]) -> bool:
    """Whether an optimizer computes with a parameter's shape, its norm, or an inner
    product.

    Only its name can tell, or that of a class it is derived from. Other libraries
    derive classes of their own, and add to the name.

    >>> [depends_on_shapes(type(name, (), {})) for name in ("FusedLAMB", "LambdaSGD")]
    [True, False]
    """
    return any(_SHAPE_DEPENDENT.search(base.__name__.lower()) for base in kind.__mro__)


_SHAPE_DEPENDENT = re.compile(
    "adafactor|^came|dadapt|galore|lamb(?!da)|larc|lars|lbfgs|muon|novograd|prodigy|"
    "shampoo|sm3|soap"
)


def refuse_copies_of(module: nn.Module) -> None:
    """Let `deepcopy` and `torch.save` of a module fail in one sentence.

    A copy's parameters would belong to no unit, and it would train on one rank alone.
    Both look for this method on the object itself.
    """
    vars(module).update(__reduce_ex__=refuse_copy)


def refuse_copy(protocol: Any) -> NoReturn:
    """Say what to do instead.

    :raises TypeError: always
    """
    raise TypeError(
        "a sharded model cannot be copied or pickled; "
        "load its state_dict() into a plain model"
    )
