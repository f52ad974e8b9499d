r"""# Autocast

> Each operation runs in the dtype that suits it, and the model's code does not say so.

[Sixteen bits](formats.py) are enough for matrix products, and a sum of exponentials
needs [more](rounding.py). A model written by hand for both would consist of casts. So
the casts happen where operations are called:

```python
from shardbook.precision.autocast import autocast

with autocast("cpu", torch.bfloat16):
    logits = model(tokens)
    loss = loss_fn(logits, targets)
loss.backward()
```

The parameters stay in FP32. An operation that has [a rule](autocast_rules.py) gets its
inputs cast, and its result keeps the dtype that this gives. So a 16-bit result of one
matrix product goes into the next one as it is.

**The gradients come back in FP32.** A cast is an operation like others, so autograd
records it. Its backward pass casts the gradient back to the dtype that its input had.
So the gradient of a parameter is FP32, though each of its contributions has only the
digits of 16 bits.

**Why the backward pass is outside.** Its operations are not chosen anew. Each reads
what its forward operation saved, and receives a gradient in the dtype of that
operation's result. So it runs in the dtype of the forward pass by itself, and no
context has to tell it. Under `torch.autocast` it would be wrong to put it inside. That
context also casts what the backward pass computes, so an operation that an inner
context had kept in FP32 would have its gradients computed in 16 bits. The context of
this chapter sees no operation of the backward pass that is not called from Python.

**What it costs.** The casts of the parameters are kept until the outermost context
ends, and by autograd until the backward pass. So a layer's parameters exist in 16 bits,
too, and whole: [stage 3](zero3.py) splits the parameters, but not these copies.

It does what `torch.autocast` does. Our tests compare every operation of its list for
CPUs and whole models, results and gradients. `torch.autocast` acts one level deeper, in
the dispatcher of PyTorch, so it also sees operations that other operations call in C++.

**Both contexts can be nested in each other**, and the innermost one decides, because
both set the same state of the thread. So a model that runs a part under
`torch.autocast(device_type, enabled=False)` gets FP32 there,
`torch.is_autocast_enabled` answers truly, and what reads that state works:
`torch.amp.custom_fwd`, `torch.utils.checkpoint` in both forms, and `nn.DataParallel`,
which hands the state on to the threads of its replicas. In these threads, and where
`torch.utils.checkpoint` computes again, it is `torch.autocast` that casts.

In three things this context differs on purpose:

- A parameter is cast again after it was changed in place, by an optimizer or by hand.
  So a context may last for many steps. PyTorch does not count a write to
  `parameter.data`, and that one is not seen. Neither is a change by hand where PyTorch
  casts the parameter, inside of a function in C++ such as `tensordot`.
- One parameter can be used in nested contexts of two dtypes.
- Operations of a backward pass that starts inside are not cast.

And one setting is refused: `torch.autocast` answers a dtype that it cannot use with a
warning and casts nothing, and this context raises an error.
"""

# sidelit: hide
from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from dataclasses import replace

import torch

from shardbook.precision.autocast_rules import RULES
from shardbook.precision.casting import Casting, Setting, setting_of

__all__ = ["autocast", "current", "restored"]
# sidelit: show


class autocast(ContextDecorator):
    """Inside of it, each operation runs in the dtype that suits it.

    It also decorates functions. Contexts can be nested: the innermost one decides for
    its type of device. One object can be entered many times.

    A context holds for the thread that entered it, and a thread that is started inside
    starts without it. A function that is to run in such a thread enters the context
    itself, most easily decorated with it.

    :param device_type: whose tensors are cast, `"cpu"` or `"cuda"`
    :param dtype: `torch.bfloat16` or `torch.float16`; by default, as in PyTorch, BF16
        on a CPU and FP16 on a GPU
    :param enabled: `False` lets every operation run in the dtype of its inputs
    :param cache_enabled: whether a parameter that was cast once is kept in its new
        dtype
    :raises ValueError: if there are no rules for this type of device, or the dtype does
        not have 16 bits although the context is enabled
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
        # PyTorch counts the blocks that surround one of its own, and drops its casts
        # after the outermost.
        torch.autocast_increment_nesting()
        return self

    def __exit__(self, *exception: object) -> None:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        thread.leave()


class Thread(threading.local):
    """What one thread has entered.

    All contexts share one function mode. If each had its own, the outer one would see
    the calls that the inner one has left alone, and cast them.
    """

    def __init__(self) -> None:
        self.casting = Casting()
        self.surrounding: list[tuple[bool, dict[str, Setting]]] = []

    def enter(self, settings: dict[str, Setting], on: bool = True) -> None:
        if not self.surrounding:
            self.casting.__enter__()  # type: ignore[no-untyped-call]
        self.surrounding.append((self.casting.on, present()))
        self.casting.on = on
        put_in_force(settings)

    def leave(self) -> None:
        """After the outermost context, the mode and the casts are dropped.

        Without this, their memory would stay until the thread ends.
        """
        self.casting.on, before = self.surrounding.pop()
        put_in_force(before)
        if not self.surrounding:
            self.casting.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.casting.kept.clear()


def put_in_force(settings: dict[str, Setting]) -> None:
    """Set PyTorch's state. Whether casts are kept holds for all types of device."""
    for device_type, setting in settings.items():
        torch.set_autocast_enabled(device_type, setting.enabled)
        torch.set_autocast_dtype(device_type, setting.dtype)
        torch.set_autocast_cache_enabled(setting.cache_enabled)


def present() -> dict[str, Setting]:
    """PyTorch's state for each type of device that has rules."""
    return {device_type: setting_of(device_type) for device_type in RULES}


thread = Thread()


# sidelit: depth Computations that are repeated later, and settings that autocast cannot have.


def current() -> dict[str, Setting]:
    """This thread's setting for each type of device; empty outside of all contexts.

    A computation that is repeated later, as [checkpointing](autocast_state.py) does,
    takes them along and runs under [the same ones](#restored) again.
    """
    return present() if thread.casting.on else {}


@contextmanager
def restored(settings: dict[str, Setting]) -> Iterator[None]:
    """Inside of the block the settings are these, whatever they are around it.

    :param settings: what `current` gave; if it is empty, nothing is cast
    """
    nothing = {name: replace(now, enabled=False) for name, now in present().items()}
    thread.enter(settings or nothing, on=bool(settings))
    try:
        yield
    finally:
        thread.leave()


def refuse_device(device_type: str) -> None:
    """Refuse a type of device that has no rules.

    :raises ValueError: naming those that have
    """
    if device_type not in RULES:
        raise ValueError(
            f"there are no rules for device type {device_type!r}; "
            f"choose one of {', '.join(RULES)}"
        )


def refuse_wide(dtype: torch.dtype) -> None:
    """Refuse a dtype that does not have 16 bits.

    :raises ValueError: naming the two that have
    """
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"autocast cannot run in {dtype}; "
            "choose torch.bfloat16 or torch.float16, or enabled=False"
        )
