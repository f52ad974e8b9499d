r"""# Loss scaling

> Gradients that FP16 would round to zero survive if the loss is multiplied first.

The smallest positive number in FP16 is $2^{-24}$, about $6 \cdot 10^{-8}$, and a
gradient of half of it or less becomes zero. Of those that pass between the layers of a
small GPT, [11 % do](rounding.py). At the other end there is room: FP16 reaches 65504.

So the loss is multiplied by a number $S$, the *loss scale*. By the chain rule every
gradient of the backward pass is then $S$ times as large. Before the optimizer steps,
the gradients are divided by $S$, in FP32:

>>> gradient = torch.tensor(1e-8)
>>> gradient.half()
tensor(0., dtype=torch.float16)
>>> (gradient * 2.0**16).half().float() / 2.0**16
tensor(9.9972e-09)

Which $S$ is right? If it is too small, gradients are lost at the lower end. If it is
too large, they become infinite at the upper end, and that can be seen. So a scaler
starts with a large $S$. Whenever a gradient is infinite or NaN, it skips the step and
halves $S$. After 2000 steps without an overflow it tries the double.

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

The smallest scale here is the smallest normal number of FP32, $2^{-126}$. At
[torch's](https://docs.pytorch.org/docs/stable/amp.html) lower end the scale becomes
zero. Both mean that something else is wrong: a gradient that is NaN at each scale makes
the scaler skip each step, and the model does not train. So a scaler reads $S$ once in
64 steps and warns if it has fallen below 1, which takes 17 skipped steps from $S =
65536$.

Powers of two change the exponents of the gradients and no digit, as long as nothing
becomes subnormal or infinite.

:notation $S$: `factor`, the loss scale
"""

# sidelit: hide
from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from shardbook.precision import unscaling
from shardbook.training.step_in_backward import refuse_to_scale

__all__ = ["GradScaler"]
# sidelit: show


class GradScaler:
    """Scale losses, divide gradients, and skip the steps whose gradients are not finite.

    One scaler serves all models, losses and optimizers of a program. It does what
    `torch.amp.GradScaler` does, step by step, and their states are interchangeable. A
    sharded model needs [a scaler that asks all ranks](sharded_scaler.py).

    :param device: the type of the losses' device, such as `"cuda"`; `None` takes that
        of the first loss. As in PyTorch, a scaler for CUDA where there is none warns
        and is not enabled
    :param init_scale: the first $S$
    :param growth_factor: what $S$ is multiplied by after `growth_interval` steps in a
        row without an overflow
    :param backoff_factor: what $S$ is multiplied by after an overflow
    :param growth_interval: a number of steps
    :param enabled: `False` passes losses and steps through unchanged, so that one
        program runs in FP32, too
    :raises ValueError: if one of the numbers makes no sense
    :raises TypeError: if the device is a number
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
        # Below this $S$ something is wrong. How often `update` was called, and whether
        # the user knows.
        self.low = min(1.0, init_scale)
        self.updates = 0
        self.warned = False
        # $S$, and the steps since it last changed. Both move to the device of the first
        # loss and stay there, so the host need not wait. On `meta` they take no memory.
        with torch.device("cpu" if self.enabled else "meta"):
            self.factor = torch.full((), init_scale, dtype=torch.float32)
            self.calm, self.in_use = torch.zeros((), dtype=torch.int32), False
        # Since the last `update`: the flag of each optimizer whose gradients were
        # divided, and the optimizers that were asked to step.
        self.found: dict[Optimizer, Tensor | None] = {}
        self.stepped: set[Optimizer] = set()

    def scale(self, outputs: Any) -> Any:
        """Multiply a loss by $S$, or each of several.

        Compute the loss in FP32. The gradient of the loss is $S$ itself, and that of an
        FP16 loss would be infinite at the first $S$.

        :param outputs: a tensor, or tensors in lists, tuples and dictionaries, nested
            as you like; any other iterable comes back as a list
        :returns: the same structure
        :raises ValueError: if there is something else in it
        :raises RuntimeError: if a model would [step in the backward
            pass](step_in_backward.py)
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
        """Divide an optimizer's gradients by $S$, and note whether all are finite.

        `step` does it, unless it was done before. Call it for whatever needs the true
        gradients, such as clipping: a limit for the norm would otherwise be compared
        with a norm that is $S$ times too large.

        Gradients that are added up over several micro-batches are divided once, after
        the last. If they were divided earlier, the gradients of a later micro-batch
        would still have the factor $S$ when they are added to gradients that have lost
        it.

        :raises RuntimeError: if it is called a second time before `update`, or after
            `step`, or if nothing was scaled
        :raises ValueError: if a gradient is FP16, or a part of a sharded one
        """
        if not self.enabled:
            return
        self.refuse_unscaled("unscale_")
        unscaling.refuse_twice(optimizer, self.stepped, self.found)
        self.found[optimizer] = self.divide(optimizer)

    def divide(self, optimizer: Optimizer) -> Tensor | None:
        """Divide the gradients and return [the flag](unscaling.py#divide_and_check)."""
        unscaling.refuse_parts(optimizer)
        return unscaling.divide_and_check(optimizer, self.factor)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Let the optimizer step if all its gradients are finite, else skip this step.

        Each optimizer is judged by its own gradients alone.

        :returns: what the optimizer returns; `None` if the step was skipped
        :raises RuntimeError: if it is called a second time before `update`, if nothing was
            scaled, if there are no gradients, and for a closure: it would compute new
            gradients, which nobody has checked
        """
        if not self.enabled:
            return optimizer.step(*args, **kwargs)
        self.refuse_unscaled("step")
        unscaling.refuse_closure(optimizer, *args, *kwargs.values())
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
        result = unscaling.step_unless(overflow, optimizer, *args, **kwargs)
        self.stepped.add(optimizer)
        return result

    @torch.no_grad()
    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Choose the next $S$. Call it once for each step, after all optimizers.

        Any optimizer's overflow counts, because all losses share one $S$. Between two
        calls $S$ does not change: the gradients of micro-batches are added up, and no
        number divides a sum of gradients with different factors.

        :param new_scale: a value to set instead, as a number or a tensor of one element
        :raises RuntimeError: if no gradients were checked since the last time
        :raises ValueError: if the new value makes no sense
        """
        if not self.enabled:
            return
        self.refuse_unscaled("update")
        overflow = unscaling.any_of([f for f in self.found.values() if f is not None])
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
        # The host waits for the device here, so it looks rarely.
        if self.updates % 64 == 0 and not self.warned:
            self.warn_if_low()

    def adapt(self, overflow: Tensor) -> None:
        """Change $S$ on its device: to branch on the host would mean to wait."""
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
        # scaled loss and compares its version there. So the backward pass of a loss
        # that was scaled before this line raises an error. Otherwise the gradients
        # would be divided by another number than they were multiplied by.
        self.factor.copy_(torch.where(overflow, smaller, changed))
        self.calm.copy_(torch.where(due, 0, calm))

    # sidelit: depth Losses in structures, calls out of order, and a scale that has fallen too low.

    def scale_each(self, outputs: Any) -> Any:
        """Scale all tensors in a structure.

        :raises ValueError: if there is something else in it
        """
        if isinstance(outputs, Mapping):
            return {key: self.scale(value) for key, value in outputs.items()}
        if isinstance(outputs, Iterable) and not isinstance(outputs, str | bytes):
            # An iterator is used up now. Later $S$ may be another one.
            scaled = [self.scale(output) for output in outputs]
            if isinstance(outputs, tuple):
                return getattr(outputs, "_make", tuple)(scaled)
            return scaled
        raise ValueError(
            f"a {type(outputs).__name__} cannot be scaled; "
            "pass a tensor, or lists, tuples or dictionaries of tensors"
        )

    def refuse_unscaled(self, method: str) -> None:
        """Without a scaled loss the gradients are true, and would be divided all the same.

        :raises RuntimeError: if nothing was ever scaled
        """
        if not self.in_use:
            raise RuntimeError(
                f"{method} was called and no loss was scaled; "
                "call scaler.scale(loss).backward() first"
            )

    def warn_if_low(self) -> None:
        """Warn once if hardly any step was taken for some time."""
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
    # sidelit: depth Settings that are read, changed or saved between steps.

    def get_scale(self) -> float:
        """$S$ as a number; 1 if the scaler is not enabled. The host waits for the device."""
        return self.factor.item() if self.enabled else 1.0

    def state_dict(self) -> dict[str, Any]:
        """What has to be saved, after `update`; empty if the scaler is not enabled."""
        if not self.enabled:
            return {}
        settings = {name: getattr(self, name) for name in SETTINGS}
        counted = {"scale": self.get_scale(), "_growth_tracker": int(self.calm.item())}
        return {**counted, **settings}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a scaler stood, this one or PyTorch's.

        :raises RuntimeError: if the state is empty, as that of a scaler that was not
            enabled
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
        """Whether losses are scaled at all."""
        return self.enabled

    def get_growth_factor(self) -> float:
        """What $S$ is multiplied by after `growth_interval` good steps."""
        return self.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set it, to more than 1.

        :raises ValueError: if the number makes no sense, here and in the next two
        """
        refuse_unless(1 < new_factor < math.inf, "growth_factor", new_factor)
        self.growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """What $S$ is multiplied by after an overflow."""
        return self.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set it, to a number between 0 and 1."""
        refuse_unless(0 < new_factor < 1, "backoff_factor", new_factor)
        self.backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """After how many good steps in a row $S$ grows."""
        return self.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set it, to 1 or more."""
        refuse_unless(new_interval >= 1, "growth_interval", new_interval)
        self.growth_interval = new_interval


SETTINGS = ("growth_factor", "backoff_factor", "growth_interval")
# Below this number FP32 has fewer digits, and an inverse can be infinite.
SMALLEST = torch.finfo(torch.float32).tiny


# sidelit: depth Settings that would make the scale useless, and a machine without CUDA.


def is_there(device: str | torch.device | None) -> bool:
    """Whether losses can be on this type of device; without CUDA a warning says so."""
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

    :raises ValueError: if it is not sensible
    """
    if not sensible:
        raise ValueError(
            f"{name}={value} makes no sense; use a finite positive scale, growth by more "
            "than 1, backoff by a number between 0 and 1, and an interval of 1 or more"
        )


def refuse_number(device: object) -> None:
    """Refuse a first argument that was meant as $S$.

    :raises TypeError: if it is a number
    """
    if isinstance(device, int | float):
        raise TypeError(
            f"the first argument of a scaler is the device, as in PyTorch; "
            f"write init_scale={device}"
        )
