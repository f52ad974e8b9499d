r"""# Loss scaling

> The loss is multiplied before the backward pass, so that small gradients stay above
> zero in FP16.

The smallest positive number in FP16 is $2^{-24}$, about $6 \cdot 10^{-8}$. A gradient
of half this size or less becomes zero. Between the layers of a small GPT [11% of the
gradients](rounding.py) do. At the other end there is room, because FP16 reaches 65504.

So the loss is multiplied by a number $S$, the *loss scale*. By the chain rule every
gradient of the backward pass is then $S$ times as large. Before the optimizer steps,
the gradients are divided by $S$, in FP32. For example, a gradient of $10^{-8}$ becomes
zero in FP16, but survives with $S = 2^{16}$:

>>> gradient = torch.tensor(1e-8)
>>> gradient.half()
tensor(0., dtype=torch.float16)
>>> (gradient * 2.0**16).half().float() / 2.0**16
tensor(9.9972e-09)

Which $S$ is right? If $S$ is too small, gradients become zero at the lower end, and no
error shows it. If $S$ is too large, gradients become infinite at the upper end, and
this can be detected. So a scaler starts with a large $S$. Whenever a gradient is
infinite or NaN, the scaler skips the step and halves $S$. After 2000 steps without an
overflow it doubles $S$.

```python
from shardbook.precision.autocast import autocast

scaler = GradScaler()
for inputs, targets in batches:
    with autocast("cpu", torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
```

In `step` one operation [divides and
checks](#module/dividing-and-checking-the-gradients) the gradients. If they are split
over ranks, one rank may hold the only infinite element. So [a scaler for
ranks](#module/loss-scaling-over-ranks) compares the results of the checks, and all
ranks skip the same steps.

**Several losses and optimizers.** One scaler serves all of them. Each loss is scaled,
the scaler steps each optimizer, and `update` is called once, at the end. Two losses
that share an encoder also share its graph, so the first backward pass has to keep it:

```python
code = encoder(inputs)
words, image = loss_words(head_words(code)), loss_image(head_image(code))
scaler.scale(words).backward(retain_graph=True)
scaler.scale(image).backward()
scaler.step(optimizer_words)
scaler.step(optimizer_image)
scaler.update()
```

If no code reads the gradients between the two, one backward pass of `words + image`
gives the same gradients in half the time. For sharded models the loop is the same, with
[a scaler that compares all ranks](loss_scaling.py#module/loss-scaling-over-ranks). Each
of the two backward passes then sends the gradients of the encoder, and one backward
pass of the sum sends them once.

An overflow skips only the optimizer whose gradients overflowed. With the usual 2000
steps between two attempts to double $S$, about one step in 2001 is skipped once the
scale has settled, so the optimizers' steps rarely drift apart.

**A skipped step and the learning rate.** A learning-rate scheduler that is called in
each iteration also counts a skipped step. One step in 2001 changes nothing that can be
seen. If the scale is still falling, for example in the first steps, call the scheduler
only if the scale did not fall in `update`.

**A constant scale** is the older recipe: choose $S$ so that $S$ times the largest
gradient stays below 65504, and never change it. For that, call `scaler.update(1024.0)`
in each step: a step with an overflow is still skipped, and $S$ stays at 1024. [A count
of the gradients](rounding.py#census) shows which $S$ fits. It fits only as long as the
gradients keep their size, so the dynamic scale is the better default.

The smallest scale here is the smallest normal number of FP32, $2^{-126}$. In [PyTorch's
scaler](https://docs.pytorch.org/docs/stable/amp.html) the scale falls to zero in the
end. A scale that falls so far means that something else is wrong. If a gradient is NaN
at each scale, the scaler skips each step, and the model does not train. So a scaler
reads $S$ once in 64 steps, and warns if $S$ has fallen below 1. From $S = 65536$ this
takes 17 skipped steps.

Scales that are powers of two change only the exponents of the gradients, and no digit,
as long as no gradient becomes subnormal or infinite.

:figure: loss_scale
:notation $S$: `factor`, the loss scale
:notation $g$: the gradients before they are scaled
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from shardbook.foundations.collectives import all_reduce_max
from shardbook.foundations.exchange_order import Order
from shardbook.foundations.torch_private import reads_found_inf, unscale_
from shardbook.training.accumulate import refuse_late, refuse_to_scale
from shardbook.zero.flat import Flat, owner_of
from shardbook.zero.optimizer_guard import refuse_waiting

__all__ = [
    "GradScaler",
    "ShardedGradScaler",
    "any_of",
    "divide_and_check",
    "refuse_closure",
    "refuse_parts",
    "refuse_twice",
    "step_unless",
]


class GradScaler:
    """Scale losses, divide gradients, and skip the steps whose gradients are not finite.

    One scaler serves all models, losses and optimizers of a program. It computes the
    same scales and skips the same steps as `torch.amp.GradScaler`, and their states are
    interchangeable. A sharded model needs [a scaler that compares all
    ranks](loss_scaling.py#module/loss-scaling-over-ranks).

    :param device: the type of the losses' device, such as `"cuda"`; `None` takes that
        of the first loss. As in PyTorch, a scaler for CUDA on a machine without CUDA
        warns and is disabled
    :param init_scale: the first $S$
    :param growth_factor: the factor for $S$ after `growth_interval` steps in a row
        without an overflow
    :param backoff_factor: the factor for $S$ after an overflow
    :param growth_interval: a number of steps
    :param enabled: with `False` losses and steps pass through unchanged, so that the
        same program can run in FP32
    :raises ValueError: if one of the numbers would make $S$ useless
    :raises TypeError: if `device` is a number
    """

    def __init__(
        self,
        device: str | torch.device | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        refuse_number(device)
        self.enabled = enabled and is_there(device)
        if self.enabled:
            refuse_unless(SMALLEST <= init_scale < math.inf, "init_scale", init_scale)
            self.set_growth_factor(growth_factor)
            self.set_backoff_factor(backoff_factor)
            self.set_growth_interval(growth_interval)
        # The scale below which a warning is due, the number of calls of `update`, and
        # whether the warning was given.
        self.low = min(1.0, init_scale)
        self.updates = 0
        self.warned = False
        # $S$, and the number of steps since $S$ last changed. Both move to the device
        # of the first loss and stay there, so the host need not wait for them. On
        # `meta` they take no memory.
        with torch.device("cpu" if self.enabled else "meta"):
            self.factor = torch.full((), init_scale, dtype=torch.float32)
            self.calm, self.in_use = torch.zeros((), dtype=torch.int32), False
        # Since the last `update`: the flag of each optimizer whose gradients were
        # divided, and the optimizers whose `step` was called.
        self.found: dict[Optimizer, Tensor | None] = {}
        self.stepped: set[Optimizer] = set()

    def scale(self, outputs: Any) -> Any:
        """Multiply a loss, or each of several losses, by $S$.

        Compute the loss in FP32. The gradient of the loss is $S$ itself, and in FP16
        the first $S$, 65536, would be infinite.

        :param outputs: a tensor, or tensors in lists, tuples and dictionaries, nested
            as you like; any other iterable comes back as a list
        :returns: the same structure
        :raises ValueError: if it holds anything but tensors
        :raises RuntimeError: if a model would [step in the backward
            pass](accumulate.py#module/stepping-inside-the-backward-pass)
        """
        if not self.enabled:
            return outputs
        if not isinstance(outputs, Tensor):
            return self.scale_each(outputs)
        refuse_to_scale(outputs)
        if not self.in_use:
            self.factor = self.factor.to(outputs.device)
            self.calm, self.in_use = self.calm.to(outputs.device), True
        return outputs * self.factor.to(outputs.device)

    @torch.no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide an optimizer's gradients by $S$, and record whether all are finite.

        `step` calls this method, unless you have called it before. Call it before any
        code that needs the true gradients, such as clipping. Otherwise the limit for
        the norm would be compared with a norm that is $S$ times too large.

        If gradients are added up over several micro-batches, divide them once, after
        the last one. If they were divided earlier, the gradients of a later micro-batch
        would still have the factor $S$ when they are added to gradients that have lost
        it.

        :raises RuntimeError: if the method is called a second time before `update`, or
            after `step`, or if no loss was scaled
        :raises ValueError: if a gradient is FP16, or this rank holds only a part of it
        """
        if not self.enabled:
            return
        self.refuse_unscaled("unscale_")
        refuse_twice(optimizer, self.stepped, self.found)
        self.found[optimizer] = self.divide(optimizer)

    def divide(self, optimizer: Optimizer) -> Tensor | None:
        """Divide the gradients and return [the flag](loss_scaling.py#divide_and_check)."""
        refuse_parts(optimizer)
        return divide_and_check(optimizer, self.factor)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Call the optimizer's step if all its gradients are finite; otherwise skip the
        step.

        If a program has several optimizers, only the gradients of this one decide.

        :returns: what the optimizer returns; `None` if the step was skipped
        :raises RuntimeError: if the method is called a second time before `update`, if
            no loss was scaled, if there are no gradients, or for a closure, because a
            closure computes new, unchecked gradients
        """
        if not self.enabled:
            return optimizer.step(*args, **kwargs)
        self.refuse_unscaled("step")
        refuse_closure(optimizer, *args, *kwargs.values())
        name = type(optimizer).__name__
        if optimizer in self.stepped:
            raise RuntimeError(f"this {name} has stepped already; call update() first")
        if optimizer not in self.found:
            self.unscale_(optimizer)
        overflow = self.found[optimizer]
        if overflow is None:
            raise RuntimeError(
                f"no parameter of this {name} has a gradient; "
                "run a backward pass before step"
            )
        result = step_unless(overflow, optimizer, *args, **kwargs)
        self.stepped.add(optimizer)
        return result

    @torch.no_grad()
    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Choose the next $S$. Call this method once in each step, after all
        optimizers.

        An overflow of any optimizer counts, because all losses share one $S$. Between
        two calls $S$ does not change. The gradients of micro-batches are added up, and
        a sum of gradients with different factors could not be divided by one number.

        :param new_scale: a value to set instead, as a number or a tensor of one element
        :raises RuntimeError: if no gradients were checked since the last call
        :raises ValueError: if the new value is not finite and positive
        """
        if not self.enabled:
            return
        self.refuse_unscaled("update")
        overflow = any_of([f for f in self.found.values() if f is not None])
        if new_scale is not None:
            new_scale = float(new_scale)
            refuse_unless(SMALLEST <= new_scale < math.inf, "new_scale", new_scale)
            self.factor.fill_(new_scale)
        elif overflow is not None:
            self.adapt(overflow > 0)
        else:
            raise RuntimeError(
                "no optimizer has stepped since the last update(); "
                "call step for each optimizer first"
            )
        self.found = {}
        self.stepped = set()
        self.updates += 1
        # Reading $S$ makes the host wait for the device, so this happens rarely.
        if self.updates % 64 == 0 and not self.warned:
            self.warn_if_low()

    def adapt(self, overflow: Tensor) -> None:
        """Change $S$ on its device, because a branch on the host would have to wait for
        the device.
        """
        current = self.factor.double()
        smaller = (current * self.backoff_factor).float().clamp(min=SMALLEST)
        larger = (current * self.growth_factor).float()
        # An infinite $S$ would make every later gradient infinite. At the other end,
        # with $S = 0$ every gradient would be zero, and NaN once it is divided.
        larger = torch.where(larger.isfinite(), larger, self.factor)
        calm = torch.where(overflow, 0, self.calm + 1)
        due = calm >= self.growth_interval
        changed = torch.where(due, larger, self.factor)
        # This writes in place. Autograd has saved $S$ for the backward pass of each
        # scaled loss and compares its version there. So if a loss was
        # scaled before this line, its backward pass after this line raises an error.
        # Otherwise the gradients would be divided by another number than they were multiplied by.
        self.factor.copy_(torch.where(overflow, smaller, changed))
        self.calm.copy_(torch.where(due, 0, calm))

    # sidelit: depth Losses in lists and dictionaries, calls out of order, and a scale that is too low.

    def scale_each(self, outputs: Any) -> Any:
        """Scale all tensors in a list, tuple or dictionary.

        :raises ValueError: if it holds anything but tensors
        """
        if isinstance(outputs, Mapping):
            return {key: self.scale(value) for key, value in outputs.items()}
        if isinstance(outputs, Iterable) and not isinstance(outputs, str | bytes):
            # An iterator is consumed now, because later $S$ may have changed.
            scaled = [self.scale(output) for output in outputs]
            if isinstance(outputs, tuple):
                return getattr(outputs, "_make", tuple)(scaled)
            return scaled
        raise ValueError(
            f"a {type(outputs).__name__} cannot be scaled; "
            "pass a tensor, or lists, tuples or dictionaries of tensors"
        )

    def refuse_unscaled(self, method: str) -> None:
        """Refuse a call before any loss was scaled, since the true gradients would be
        divided by $S$.

        :raises RuntimeError: if no loss was ever scaled
        """
        if not self.in_use:
            raise RuntimeError(
                f"{method} was called and no loss was scaled; "
                "call scaler.scale(loss).backward() first"
            )

    def warn_if_low(self) -> None:
        """Warn once if the scale has fallen too low, since then nearly all steps were
        skipped.
        """
        scale = self.get_scale()
        if scale < self.low:
            self.warned = True
            warnings.warn(
                f"the loss scale has fallen to {scale:.3g}, since step after step was "
                "skipped: a gradient is infinite or NaN at any scale, so the model does "
                "not train; torch.autograd.set_detect_anomaly(True) finds where NaN begins",
                stacklevel=3,
            )

    # sidelit: core
    # sidelit: depth Reading, changing and saving the settings between steps.

    def get_scale(self) -> float:
        """Return $S$ as a number; 1 if the scaler is disabled. The host waits for the
        device.
        """
        return self.factor.item() if self.enabled else 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save, after `update`; empty if the scaler is disabled."""
        if not self.enabled:
            return {}
        settings = {name: getattr(self, name) for name in SETTINGS}
        counted = {"scale": self.get_scale(), "_growth_tracker": int(self.calm.item())}
        return {**counted, **settings}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a scaler, of this class or of PyTorch's.

        :raises RuntimeError: if the state is empty, because its scaler was disabled
        """
        if not self.enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "this state is empty, so it comes from a scaler that was not enabled; "
                "start with a new one"
            )
        for name in SETTINGS:
            setattr(self, name, state_dict[name])
        self.factor.fill_(state_dict["scale"])
        self.calm.fill_(state_dict["_growth_tracker"])

    def is_enabled(self) -> bool:
        """Whether the scaler is enabled."""
        return self.enabled

    def get_growth_factor(self) -> float:
        """The factor for $S$ after `growth_interval` steps without an overflow."""
        return self.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the growth factor, to more than 1.

        :raises ValueError: if the number is out of range
        """
        refuse_unless(1 < new_factor < math.inf, "growth_factor", new_factor)
        self.growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """The factor for $S$ after an overflow."""
        return self.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the backoff factor, to a number between 0 and 1."""
        refuse_unless(0 < new_factor < 1, "backoff_factor", new_factor)
        self.backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """The number of steps without an overflow after which $S$ grows."""
        return self.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the growth interval, to 1 or more."""
        refuse_unless(new_interval >= 1, "growth_interval", new_interval)
        self.growth_interval = new_interval


SETTINGS = ("growth_factor", "backoff_factor", "growth_interval")
# The smallest normal number of FP32. Smaller numbers have fewer digits, and their
# inverse can be infinite.
SMALLEST = torch.finfo(torch.float32).tiny


# sidelit: depth Settings that would make the scale useless, and a machine without CUDA.


def is_there(device: str | torch.device | None) -> bool:
    """Whether this machine has the type of device; if CUDA is missing, warn."""
    if device is None or torch.device(device).type != "cuda":
        return True
    if not torch.cuda.is_available():
        warnings.warn(
            "this scaler is for CUDA, which is not available, so it is not enabled; "
            "leave the device out, or name that of the losses",
            stacklevel=3,
        )
        return False
    return True


def refuse_unless(sensible: bool, name: str, value: float) -> None:
    """Refuse a number that would make $S$ useless, before anything is trained with it.

    :raises ValueError: if the number is out of range
    """
    if not sensible:
        raise ValueError(
            f"{name}={value} makes no sense; use a finite positive scale, growth by more "
            "than 1, backoff by a number between 0 and 1, and an interval of 1 or more"
        )


def refuse_number(device: object) -> None:
    """Refuse a number as the first argument, which was meant as $S$.

    :raises TypeError: if the argument is a number
    """
    if isinstance(device, int | float):
        raise TypeError(
            f"the first argument of a scaler is the device, as in PyTorch; "
            f"write init_scale={device}"
        )


# sidelit: core


# ## Dividing and checking the gradients
#
# > Each gradient is read once: it is divided by the loss scale and checked for infinity and NaN.
#
# [The scaler](loss_scaling.py) has to check every gradient before an optimizer steps. It
# has to divide them as well, so one operation does both. The result of the check is one
# number, the *flag*: 1 if any gradient is infinite or NaN, else 0. On a GPU the flag
# stays on the device, so the host need not wait for it here.


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

    With a scaler for each rank, [one rank would skip a
    step](loss_scaling.py#module/loss-scaling-over-ranks) that the others take.

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


# sidelit: core


# ## Loss scaling over ranks
#
# > If the gradients of one rank overflow, all ranks skip the step and halve the scale
# > together.
#
# A sharded gradient may be infinite in a single element, and that element lies in the
# part of one rank. Suppose each rank used [the scaler of one process](loss_scaling.py).
# Then this rank would skip the step and halve $S$, while the other ranks find only finite
# gradients:
#
# | | rank 0 | rank 1 |
# |---|---|---|
# | overflow | yes | no |
# | the step | is skipped | trains this rank's part of the model |
# | the next $S$ | 32768 | 65536 |
# | the mean of the next gradients, which are $g$ on both ranks, scaled | $49152\,g$ | $49152\,g$ |
# | the same mean, unscaled by each rank's $S$ | $1.5\,g$ | $0.75\,g$ |
#
# Only a part of the model has taken the step. From then on the gradients are wrong, and
# no error is raised. AdamW partly hides the fault, because it divides each gradient by
# its usual size.
#
# So the ranks have to agree. Each rank has [a
# flag](loss_scaling.py#module/dividing-and-checking-the-gradients) for the gradients of
# an optimizer, with 1 for an overflow. One all-reduce of this number gives all ranks
# the largest flag. Then all of them skip the same steps and have the same $S$.
#
# Which scaler a program needs depends on where the gradients are after their exchange:
#
# | gradients | examples | scaler |
# |---|---|---|
# | whole on all ranks | stage 0; DDP, even with a sharded optimizer | [that of one process](loss_scaling.py)
# | split over the ranks | stages 1 to 3; FairScale's ShardedDDP | one that compares ranks |
#
# In the first row all ranks have the same gradients, so all of them find the same
# overflow.
#
# ```python
# policy = Policy(param_dtype=torch.float16, output_dtype=torch.float32)
# model = shard(model, policy=policy)
# scaler = ShardedGradScaler()
# for inputs, targets in batches:
#     scaler.scale(loss_fn(model(inputs), targets)).backward()
#     scaler.unscale_(optimizer)
#     clip_grad_norm_(model, 1.0)
#     scaler.step(optimizer)
#     scaler.update()
#     optimizer.zero_grad()
# ```
#
# The losses of [micro-batches](accumulate.py) are scaled one by one. The ranks exchange
# the scaled gradients, and unscale them once, after the last micro-batch. Under `no_sync`
# an infinite gradient stays on its rank until the exchange. The mean is then infinite or
# NaN, whatever the other ranks contribute.
#
# A model that [steps in its backward
# pass](accumulate.py#module/stepping-inside-the-backward-pass) uses its gradients
# before the scaler can divide them, so its parameters would move $S$ times too far.
# Therefore `scale` searches autograd's graph for such parameters, and refuses them. The
# inside of a [reentrant checkpoint](reentrant.py) is not in the graph. If it hides all
# such parameters, only `unscale_` refuses, and by then the parameters have moved.
#
# If several optimizers share a model, [clipping](clip.py) still computes one norm of all
# gradients. An overflow in the gradients of one optimizer makes this norm infinite or
# NaN, and then clipping sets the finite gradients of the other optimizers to 0.


class ShardedGradScaler(GradScaler):
    """Scale losses, and skip a step on all ranks if the gradients of one rank overflow.

    This scaler is used like [that of one process](loss_scaling.py#GradScaler). It needs
    no process group, because each sharded parameter refers to its own. All ranks must
    make the same calls, start from the same `init_scale`, and load the same state.

    `unscale_` is collective, and so is a `step` that calls it. Both can raise these
    errors in addition to those of one process:

    :raises ValueError: if an optimizer has no sharded parameter, or its parameters lie
        on other ranks than those of the scaler's other optimizers
    :raises RuntimeError: if gradients still wait for their exchange, or a step in the
        backward pass has consumed them
    :raises Disagreement: on every rank, if one rank does not unscale
    """

    # The ranks that share this $S$; `None` before the first `unscale_`.
    ranks: list[int] | None = None

    def divide(self, optimizer: Optimizer) -> Tensor | None:
        """Divide the gradients of an optimizer, and return whether any rank has an
        overflow.

        The ranks compare their flags in all stages. In stage 0 each rank has the whole
        gradient, and where a mesh replicates the model each replica has the same one.
        So in these cases the flags are equal already, unless a program has changed its
        gradients. The comparison costs four bytes, which is cheaper than relying on
        that.
        """
        flats = vectors(optimizer)
        order = self.order_of(optimizer, flats)
        for flat in flats:
            refuse_waiting(flat)
        refuse_late(optimizer)
        flag = divide_and_check(optimizer, self.factor)
        # Gradients arrive on all ranks or on none. A rank whose part of a parameter is
        # empty has an empty gradient, so it takes part, too.
        if flag is not None:
            take_largest(flag, order, flats[0])
        return flag

    # sidelit: depth Optimizers without sharded parameters, or on other ranks than the scaler's.

    def order_of(self, optimizer: Optimizer, flats: list[Flat]) -> Order:
        """Find the order of exchanges among the ranks that share an optimizer's
        parameters.

        A scaler has one $S$ for all its optimizers, so their parameters must lie on the
        same ranks. Suppose one optimizer has parameters on ranks 0 and 1, and another
        on ranks 0 to 3. An overflow in the first would change $S$ on ranks 0 and 1, and
        the second would divide by two different numbers.
        """
        name = type(optimizer).__name__
        if not flats:
            raise ValueError(
                f"this {name} has no sharded parameter, so the scaler cannot know which "
                "ranks to ask; shard the model, or use GradScaler for this optimizer"
            )
        for flat in flats:
            ranks = dist.get_process_group_ranks(flat.order.group)
            if self.ranks not in (None, ranks):
                raise ValueError(
                    f"this {name} has parameters on ranks {ranks}, and the scaler serves "
                    f"ranks {self.ranks}; use one scaler for each group of ranks"
                )
            self.ranks = ranks
        order: Order = flats[0].order
        return order


def vectors(optimizer: Optimizer) -> list[Flat]:
    """The flat vectors that hold an optimizer's parameters."""
    parameters = (
        parameter for group in optimizer.param_groups for parameter in group["params"]
    )
    return list(dict.fromkeys(filter(None, map(owner_of, parameters))))


@torch.no_grad()
def take_largest(flag: Tensor, order: Order, flat: Flat) -> None:
    """Replace a flag by the largest flag of all ranks.

    A flag is 0 or 1 and never NaN, because on some backends a maximum loses a NaN. A
    sum would be wrong: a fused optimizer skips its step only if the flag is exactly 1,
    and two overflows would add up to 2.

    Over gloo, each of two ranks sends 4 bytes; with more ranks, some send 8.
    """
    # If a rank does not unscale, the others raise an error instead of waiting forever.
    order.begin("unscaling")
    order.before("compare", "the overflow flags", flat.layout.slots[0].names[0])
    largest = all_reduce_max(flag, group=order.group)
    order.watch(largest.works)
    largest.wait()
