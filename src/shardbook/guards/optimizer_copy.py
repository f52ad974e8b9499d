r"""# Copying an optimizer

> A copy of an optimizer has the same options, other parameters, and no state.

[The trial of an optimizer](optimizer_trial.py) must not touch the optimizer itself, its
state or its parameters. So it needs a second optimizer that is the same in everything
else. A call of the class cannot make one: the arguments of its constructor are not
known, and later changes by the program would be missing. So the object is copied,
attribute by attribute.

Three kinds of references need care:

- A parameter in the object is replaced by a *stand-in*, a small parameter.
- An inner optimizer, around which the object is a wrapper, is copied together with it.
- Hooks are left out, because they belong to the program, which may count the steps by
  them.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shardbook.foundations.torch_private import (
    GLOBAL_OPTIMIZER_HOOKS,
    OPTIMIZER_HOOKS,
    optimizer_module,
)

__all__ = ["StandIns", "copied", "no_hooks"]

# sidelit: hide
# The small parameters that replace those of one group.
StandIns = list[nn.Parameter]
# sidelit: show


def copied(
    optimizer: Optimizer,
    groups: Sequence[dict[str, Any]],
    stand_ins: Sequence[StandIns],
    *,
    filled: bool,
) -> Optimizer:
    """A copy of an optimizer that trains other parameters.

    The constructor is not called, because its arguments are not known. The copy gets a
    copy of every attribute, in which a stand-in replaces each parameter.

    :param filled: whether the copy starts with state
    """
    memo: dict[int, Any] = {}
    for group, own in zip(groups, stand_ins, strict=True):
        memo[id(group["params"])] = own
        memo.update((id(p), own[i % len(own)]) for i, p in enumerate(group["params"]))
    shells = empty_copies(optimizer, memo)
    tried = [copy.deepcopy(group, memo) for group in groups]
    for group in tried:
        start_moving(group)
    # If an optimizer is a wrapper around another, the two share their groups.
    memo.update((id(old.param_groups), tried) for old, _ in shells)
    for old, new in shells:
        for name, value in vars(old).items():
            if name.endswith(OPTIMIZER_HOOKS):
                vars(new)[name] = OrderedDict()
            elif name not in LEFT_OUT:
                vars(new)[name] = duplicate(value, memo)
    if filled:
        for group, own in zip(groups, stand_ins, strict=True):
            fill(memo[id(optimizer.state)], own, optimizer, group["params"])
    return shells[0][1]


# A scheduler sets a `step` of its own on the object. A scaler sets two flags there, one
# of which would make the copy skip the step.
LEFT_OUT = ("step", "found_inf", "grad_scale")


def empty_copies(
    optimizer: Optimizer, memo: dict[int, Any]
) -> list[tuple[Optimizer, Optimizer]]:
    """An optimizer and its inner optimizers, each with an object of the same class that
    has no attributes yet.
    """
    memo[id(optimizer)] = new = object.__new__(type(optimizer))
    memo[id(optimizer.state)] = defaultdict(dict)
    found = [(optimizer, new)]
    for value in vars(optimizer).values():
        for inner in value if isinstance(value, list | tuple) else [value]:
            if isinstance(inner, Optimizer) and id(inner) not in memo:
                found += empty_copies(inner, memo)
    return found


@contextmanager
def no_hooks() -> Iterator[None]:
    """A block in which no hook of all optimizers is called, ours or others'.

    PyTorch keeps these hooks in two private dictionaries. They are replaced and not
    emptied, because PyTorch may be iterating over them.
    """
    kept = {name: getattr(optimizer_module, name) for name in GLOBAL_OPTIMIZER_HOOKS}
    try:
        for name in GLOBAL_OPTIMIZER_HOOKS:
            setattr(optimizer_module, name, OrderedDict())
        yield
    finally:
        for name, hooks in kept.items():
            setattr(optimizer_module, name, hooks)


# sidelit: depth A warm-up, attributes that cannot be copied, and state that a constructor makes.


def start_moving(group: dict[str, Any]) -> None:
    """Replace a learning rate of 0, with which a warm-up often starts and nothing moves."""
    rate = group.get("lr")
    if isinstance(rate, Tensor):
        rate.masked_fill_(rate == 0, 1e-3)
    elif rate == 0:
        group["lr"] = 1e-3


def duplicate(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of an attribute, or the value itself if it is a module or cannot be copied."""
    if isinstance(value, nn.Module):
        return value
    try:
        return copy.deepcopy(value, memo)
    except Exception:
        return value


def fill(
    state: dict[Tensor, Any],
    stand_ins: StandIns,
    optimizer: Optimizer,
    parameters: Sequence[Tensor],
) -> None:
    """Give stand-ins the entries of state that the parameters have.

    Adagrad creates its state in its constructor. A slice of that state may be empty on
    one rank and not on another, so its values are replaced by ones.
    """
    example = next((p for p in parameters if optimizer.state.get(p)), None)
    if example is None:
        return
    for stand_in in stand_ins:
        for name, value in optimizer.state[example].items():
            if isinstance(value, Tensor) and value.shape == example.shape:
                value = torch.ones_like(stand_in, dtype=value.dtype).detach()
            state[stand_in][name] = copy.deepcopy(value)
