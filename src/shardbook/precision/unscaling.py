r"""# Dividing and checking the gradients

> Each gradient is read once: it is divided by the loss scale and checked for infinity and NaN.

[The scaler](loss_scaling.py) has to check every gradient before an optimizer steps. It
has to divide them as well, so one operation does both. The result of the check is one
number, the *flag*: 1 if any gradient is infinite or NaN, else 0. On a GPU the flag
stays on the device, so the host need not wait for it here.

:notation $S$: `factor`, the loss scale
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from shardbook.foundations.torch_private import reads_found_inf, unscale_
from shardbook.parameters.flat import owner_of

__all__ = [
    "any_of",
    "divide_and_check",
    "refuse_closure",
    "refuse_parts",
    "refuse_twice",
    "step_unless",
]


@torch.no_grad()
def divide_and_check(optimizer: Optimizer, factor: Tensor) -> Tensor | None:
    """Divide all gradients of an optimizer by $S$, in place.

    >>> parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    >>> parameters[0].grad = torch.tensor([65536.0, 98304.0])
    >>> parameters[1].grad = torch.tensor([65536.0, float("inf")])
    >>> divide_and_check(torch.optim.SGD(parameters), torch.tensor(65536.0))
    tensor(1.)
    >>> parameters[0].grad
    tensor([1.0000, 1.5000])

    :param factor: 0-dim, FP32
    :returns: the flag, 0-dim and FP32, on the device of `factor`; `None` if there is no
        gradient
    :raises ValueError: if a gradient is FP16
    """
    # The operation below multiplies by the inverse, which is exact if $S$ is a power of
    # two.
    inverse = factor.double().reciprocal().float()
    flags: dict[torch.device, Tensor] = {}
    for values in gradients(optimizer):
        device = values[0].device
        flag = flags.setdefault(device, torch.zeros((), device=device))
        # This operation reads each value once, multiplies it, and sets the flag if the
        # value is not finite. Its name is private in PyTorch, but public operations
        # would read each gradient twice.
        unscale_(values, flag, inverse.to(device))
    return any_of([flag.to(factor.device) for flag in flags.values()])


def gradients(optimizer: Optimizer) -> list[list[Tensor]]:
    """The gradients of an optimizer, in one list for each device and dtype.

    With such a list a GPU starts one kernel for many gradients, instead of one for
    each.

    :raises ValueError: if a gradient is FP16
    """
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.dtype is torch.float16:
                refuse_half(optimizer)
            if gradient.is_sparse:
                gradient = added_up(parameter)
            kinds[gradient.device, gradient.dtype].append(gradient)
    return list(kinds.values())


def any_of(flags: list[Tensor]) -> Tensor | None:
    """Combine flags into one that is 1 if any of them is; `None` without flags."""
    return torch.stack(flags).amax() if flags else None


def step_unless(overflow: Tensor, optimizer: Optimizer, *args: Any, **kw: Any) -> Any:
    """Call an optimizer's step, unless the flag is 1.

    A fused optimizer reads the flag on the device, and changes nothing if it is set. The
    host only queues its step, and does not wait. For any other optimizer the host has to
    decide, so `item` waits until the device has computed all gradients. No other line of
    a step makes the host wait.

    A fused optimizer reads two attributes of its own: `found_inf`, the flag, and
    `grad_scale`, a number by which it divides. Here the gradients are divided already,
    so `grad_scale` is `None`, unless the program has set one. Both attributes are
    deleted after the step.

    :returns: what the optimizer returns; `None` if the host skipped the step
    :raises TypeError: if the optimizer's step takes the scaler as an argument
    """
    # An attribute of PyTorch's optimizers shows whether they read `found_inf`.
    if not reads_found_inf(optimizer):
        return None if overflow.item() else optimizer.step(*args, **kw)
    refuse_old_step(optimizer)
    own = getattr(optimizer, "grad_scale", None)
    vars(optimizer).update(found_inf=overflow, grad_scale=own)
    try:
        return optimizer.step(*args, **kw)
    finally:
        for name in ("found_inf", "grad_scale"):
            del vars(optimizer)[name]


# sidelit: depth Sparse gradients, and gradients or steps that a scaler cannot check.


def added_up(parameter: Any) -> Tensor:
    """Return the values of a sparse gradient, one for each element."""
    # Several values can stand for one element, and their sum can be infinite although
    # each of them is finite. So they are added before the check.
    parameter.grad = parameter.grad.coalesce()
    values: Tensor = parameter.grad.values()
    return values


def refuse_half(optimizer: Optimizer) -> None:
    """Refuse an FP16 gradient, because the division would round small values to zero
    after all.

    >>> (torch.tensor(1e-8) * 2.0**16).half() / 2.0**16
    tensor(0., dtype=torch.float16)

    A gradient has the dtype of its parameter. So the parameters have to be FP32, and
    [autocast](autocast.py) or [a policy](policy.py) makes FP16 copies for the
    computation.

    :raises ValueError: always
    """
    raise ValueError(
        f"a gradient of this {type(optimizer).__name__} is FP16 and would underflow "
        "when it is unscaled; keep the parameters in FP32, and compute in FP16 under "
        "autocast or by a policy"
    )


def refuse_parts(optimizer: Optimizer) -> None:
    """Refuse a sharded gradient, because one rank cannot check the parts of the others.

    With a scaler for each rank, [one rank would skip a step](sharded_scaler.py) that
    the others take.

    :raises ValueError: if a parameter is split over the ranks
    """
    for group in optimizer.param_groups:
        for flat in filter(None, map(owner_of, group["params"])):
            if flat.sliced:
                raise ValueError(
                    f"this {type(optimizer).__name__} trains this rank's part of a "
                    "sharded model; use ShardedGradScaler, which asks all ranks"
                )


def refuse_twice(
    optimizer: Optimizer, stepped: Container[Optimizer], found: Container[Optimizer]
) -> None:
    """Refuse to divide gradients twice, since they would be too small and no error
    would follow.

    :param stepped: the optimizers that have stepped
    :param found: the optimizers whose gradients are divided already
    :raises RuntimeError: if the optimizer is among either
    """
    name = type(optimizer).__name__
    if optimizer in stepped:
        raise RuntimeError(f"this {name} has stepped; call unscale_ before step")
    if optimizer in found:
        raise RuntimeError(
            f"the gradients of this {name} are unscaled already; "
            "call update() before the next step"
        )


def refuse_closure(optimizer: Optimizer, *arguments: Any) -> None:
    """Refuse a closure, because it computes gradients inside the step, where they are
    not checked.

    :raises RuntimeError: if one of the arguments of a step is a closure
    """
    if any(map(callable, arguments)):
        raise RuntimeError(
            f"this {type(optimizer).__name__} gets a closure, whose gradients would not "
            "be checked; compute them before step, without a closure"
        )


def refuse_old_step(optimizer: Optimizer) -> None:
    """Refuse an optimizer whose step takes the scaler as an argument.

    :raises TypeError: naming the attributes to read instead
    """
    if "grad_scaler" in signature(optimizer.step).parameters:
        raise TypeError(
            f"the step of this {type(optimizer).__name__} takes grad_scaler=, which "
            "PyTorch has given up; let it read self.found_inf and self.grad_scale"
        )
