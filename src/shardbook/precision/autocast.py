r"""# Autocast

> Inside `autocast`, matrix products run in 16 bits and sensitive operations in FP32;
> the model's code stays as it is.

[Sixteen bits](formats.py) are enough for matrix products, but a sum of exponentials
needs [more digits](rounding.py). If you wrote the casts for both by hand, the model
would be full of them. So `autocast` casts the inputs of each operation at its call:

```python
from shardbook.precision.autocast import autocast

with autocast("cpu", torch.bfloat16):
    logits = model(tokens)
    loss = loss_fn(logits, targets)
loss.backward()
```

The parameters stay in FP32. If an operation has [a rule](autocast_rules.py), its inputs
are cast, and its result keeps the resulting dtype. So the 16-bit result of one matrix
product goes into the next product without another cast.

**The gradients come back in FP32.** A cast is an operation like any other, so autograd
records it. The cast's backward pass casts the gradient back to the dtype of its input.
So the gradient of a parameter is FP32, although each of its contributions has only the
digits of 16 bits.

**Why the backward pass is outside the context.** An operation of the backward pass
reads the tensors that its forward operation saved, and receives a gradient in the dtype
of that operation's result. So it runs in the dtype of the forward pass, without any
context. Inside `torch.autocast` a backward pass would go wrong. That context casts the
operations of the backward pass as well, so the gradients of an operation that an inner
context had kept in FP32 would be computed in 16 bits. The context of this chapter
intercepts only operations that are called from Python, and autograd calls its own from
C++.

**What autocast costs.** The context keeps the casts of the parameters until the
outermost context ends, and autograd keeps them until the backward pass. So a layer's
parameters also exist in 16 bits, and as a whole: [stage 3](zero3.py) splits the
parameters, but not these copies.

**Compared with `torch.autocast`.** The results are the same. Our tests compare results
and gradients of whole models, and of every operation in PyTorch's list for CPUs. But
`torch.autocast` acts one level deeper, in the dispatcher of PyTorch, so it also casts
for operations that other operations call in C++.

**Both contexts can be nested in each other**, and the innermost one decides, because
both set the same state of the thread. So in a model that runs a part under
`torch.autocast(device_type, enabled=False)` that part runs in FP32.
`torch.is_autocast_enabled` returns the right value, and everything that reads this
state works: `torch.amp.custom_fwd`, `torch.utils.checkpoint` in both variants, and
`nn.DataParallel`, which passes the state on to the threads of its replicas. In these
threads, and in a recomputation of `torch.utils.checkpoint`, `torch.autocast` does the
casting.

Some differences follow from the level, and [the rules](autocast_rules.py) list them. In
three points this context differs on purpose:

- A parameter is cast again after an optimizer or the program has changed it in place,
  so a context may last for many steps. Two changes go undetected: a write to
  `parameter.data`, which PyTorch does not count, and a write by the program where
  PyTorch itself casts the parameter, inside a C++ function such as `tensordot`.
- One parameter can be used in nested contexts of two dtypes.
- Operations of a backward pass that starts inside the context are not cast.

And for a dtype that autocast cannot use, `torch.autocast` warns and casts nothing,
while this context raises an error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from dataclasses import replace

import torch

from shardbook.precision.autocast_rules import RULES
from shardbook.precision.casting import Casting, Setting, setting_of

__all__ = ["autocast", "current", "restored"]


class autocast(ContextDecorator):
    """A context in which each operation runs in the dtype that suits it.

    The context can also decorate a function. Contexts can be nested, and the innermost
    one decides for its type of device. One object can be entered many times.

    A context applies only to the thread that entered it. A thread that is started
    inside the context runs without it, so a function for such a thread has to enter the
    context itself. The easiest way is to decorate the function.

    :param device_type: the type of device whose tensors are cast, `"cpu"` or `"cuda"`
    :param dtype: `torch.bfloat16` or `torch.float16`; by default, as in PyTorch, BF16
        on a CPU and FP16 on a GPU
    :param enabled: with `False` every operation runs in the dtype of its inputs
    :param cache_enabled: whether a parameter that was cast once is kept in its new
        dtype
    :raises ValueError: if there are no rules for this type of device, or the context is
        enabled and the dtype does not have 16 bits
    """

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        *,
        enabled: bool = True,
        cache_enabled: bool = True,
    ) -> None:
        refuse_device(device_type)
        dtype = dtype or RULES[device_type].dtype
        if enabled:
            refuse_wide(dtype)
        self.device_type = device_type
        self.setting = Setting(enabled, dtype, cache_enabled)

    def __enter__(self) -> autocast:
        thread.enter({self.device_type: self.setting})
        # PyTorch counts the blocks that surround one of its own, and clears its casts
        # after the outermost block.
        torch.autocast_increment_nesting()
        return self

    def __exit__(self, *exception: object) -> None:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        thread.leave()


class Thread(threading.local):
    """The contexts that one thread has entered.

    All contexts share one function mode. If each had its own mode, the outer mode would
    get the calls that the inner one left unchanged, and cast their inputs.
    """

    def __init__(self) -> None:
        self.casting = Casting()
        self.surrounding: list[tuple[bool, dict[str, Setting]]] = []

    def enter(self, settings: dict[str, Setting], on: bool = True) -> None:
        if not self.surrounding:
            self.casting.__enter__()
        self.surrounding.append((self.casting.on, present()))
        self.casting.on = on
        put_in_force(settings)

    def leave(self) -> None:
        """Leave a context; after the outermost one, drop the mode and the casts.

        Otherwise the memory of the casts would stay until the thread ends.
        """
        self.casting.on, before = self.surrounding.pop()
        put_in_force(before)
        if not self.surrounding:
            self.casting.__exit__(None, None, None)
            self.casting.kept.clear()


def put_in_force(settings: dict[str, Setting]) -> None:
    """Set PyTorch's state. PyTorch has a single switch for keeping casts, for all types
    of device.
    """
    for device_type, setting in settings.items():
        torch.set_autocast_enabled(device_type, setting.enabled)
        torch.set_autocast_dtype(device_type, setting.dtype)
        torch.set_autocast_cache_enabled(setting.cache_enabled)


def present() -> dict[str, Setting]:
    """Read PyTorch's state for each type of device that has rules."""
    return {device_type: setting_of(device_type) for device_type in RULES}


thread = Thread()


# sidelit: depth Recomputations under the same settings, and settings that autocast cannot have.


def current() -> dict[str, Setting]:
    """Return this thread's setting for each type of device; empty outside all contexts.

    [Checkpointing](autocast_state.py) captures these settings with the forward pass,
    and [restores](#restored) them for the recomputation.
    """
    return present() if thread.casting.on else {}


@contextmanager
def restored(settings: dict[str, Setting]) -> Iterator[None]:
    """A block with these settings, whatever the settings around the block are.

    :param settings: the result of `current`; if it is empty, nothing is cast
    """
    nothing = {name: replace(now, enabled=False) for name, now in present().items()}
    thread.enter(settings or nothing, on=bool(settings))
    try:
        yield
    finally:
        thread.leave()


def refuse_device(device_type: str) -> None:
    """Refuse a type of device that has no rules.

    :raises ValueError: naming the types that have rules
    """
    if device_type not in RULES:
        raise ValueError(
            f"there are no rules for device type {device_type!r}; "
            f"choose one of {', '.join(RULES)}"
        )


def refuse_wide(dtype: torch.dtype) -> None:
    """Refuse a dtype that does not have 16 bits.

    :raises ValueError: naming the two dtypes of 16 bits
    """
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"autocast cannot run in {dtype}; "
            "choose torch.bfloat16 or torch.float16, or enabled=False"
        )
