r"""# Autocast

> Each operation runs in the dtype that suits it, and the model's code does not say so.

[Sixteen bits](formats.py) are enough for matrix products, and a sum of exponentials needs
[more](rounding.py). A model written by hand for both would consist of casts. So the
casts happen where operations are called:

```python
from shardbook.autocast import autocast

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

**Why the backward pass is outside.** Its operations are not chosen anew. Each reads what
its forward operation saved, and receives a gradient in the dtype of that operation's
result. So it runs in the dtype of the forward pass by itself, and no context has to tell
it. Under `torch.autocast` it would be wrong to put it inside. That context also casts
what the backward pass computes, so an operation that an inner context had kept in FP32
would have its gradients computed in 16 bits. The context of this chapter sees no
operation of the backward pass that is not called from Python.

**What it costs.** The casts of the parameters are kept until the outermost context ends,
and by autograd until the backward pass. So a layer's parameters exist in 16 bits, too,
and whole: [stage 3](zero3.py) splits the parameters, but not these copies.

It does what `torch.autocast` does. Our tests compare every operation of its list for
CPUs and whole models, results and gradients. `torch.autocast` acts one level deeper, in
the dispatcher of PyTorch, so it also sees operations that other operations call in C++.
[The rules](autocast_rules.py) say where that makes a difference. In three things this
context differs on purpose:

- A parameter is cast again after it was changed in place, by an optimizer or by hand. So
  a context may last for many steps. PyTorch does not count a write to
  `parameter.data`, and that one is not seen.
- One parameter can be used in nested contexts of two dtypes.
- Operations of the backward pass are not cast.
"""

# sidelit: hide
from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager

import torch

from shardbook.autocast_rules import RULES
from shardbook.casting import Casting, Setting

__all__ = ["autocast", "current", "restored"]
# sidelit: show


class autocast(ContextDecorator):
    """Inside of it, each operation runs in the dtype that suits it.

    It also decorates functions. Contexts can be nested: the innermost one decides for
    its type of device. One object can be entered many times.

    A context holds for the thread that entered it, and a thread that is started inside
    starts without it. `nn.DataParallel` runs each replica's forward pass in a thread of
    its own, so a context around the model does nothing there. The model's `forward` has
    to enter it, most easily decorated with it.

    :param device_type: whose tensors are cast, `"cpu"` or `"cuda"`
    :param dtype: `torch.bfloat16` or `torch.float16`; by default, as in PyTorch, BF16 on
        a CPU and FP16 on a GPU
    :param enabled: `False` lets every operation run in the dtype of its inputs
    :param cache_enabled: whether a parameter that was cast once is kept in its new dtype
    :raises ValueError: there are no rules for this type of device, or the dtype does not
        have 16 bits although the context is enabled
    """

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        *,
        enabled: bool = True,
        cache_enabled: bool = True,
    ) -> None:
        if device_type not in RULES:
            raise ValueError(
                f"there are no rules for device type {device_type!r}; "
                f"choose one of {', '.join(RULES)}"
            )
        dtype = dtype or RULES[device_type].dtype
        if enabled and dtype not in (torch.bfloat16, torch.float16):
            raise ValueError(
                f"autocast cannot run in {dtype}; "
                "choose torch.bfloat16 or torch.float16, or enabled=False"
            )
        self.device_type = device_type
        self.setting = Setting(enabled, dtype, cache_enabled)

    def __enter__(self) -> autocast:
        thread.enter({**current(), self.device_type: self.setting})
        return self

    def __exit__(self, *exception: object) -> None:
        thread.leave()


def current() -> dict[str, Setting]:
    """This thread's settings; a type of device that is missing has none.

    A computation that is repeated later, as [checkpointing](ambient.py) does, takes them
    along and runs under [the same ones](#restored) again.
    """
    return thread.casting.settings


@contextmanager
def restored(settings: dict[str, Setting]) -> Iterator[None]:
    """Inside of the block the settings are these, whatever they are around it."""
    thread.enter(settings)
    try:
        yield
    finally:
        thread.leave()


class Thread(threading.local):
    """What one thread has entered.

    All contexts share one function mode. If each had its own, the outer one would see
    what the inner one has left alone, and cast it.
    """

    def __init__(self) -> None:
        self.casting = Casting()
        self.surrounding: list[dict[str, Setting]] = []

    def enter(self, settings: dict[str, Setting]) -> None:
        if not self.surrounding:
            self.casting.__enter__()  # type: ignore[no-untyped-call]
        self.surrounding.append(self.casting.settings)
        self.casting.settings = settings

    def leave(self) -> None:
        """After the outermost context, the mode goes, and the casts go.

        Without this, their memory would stay until the thread ends.
        """
        self.casting.settings = self.surrounding.pop()
        if not self.surrounding:
            self.casting.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.casting.kept.clear()


thread = Thread()
