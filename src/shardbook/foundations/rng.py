r"""# Restoring the random numbers

> A recomputation that draws other random numbers computes another function.

[Activation checkpointing](checkpointing.py) runs a part of the forward pass twice.
Dropout draws a mask each time it runs. If the two masks differ, the gradient belongs to
another function than the loss does. No error is raised.

So the state of the generators is captured before the first run and restored for the
second. After the second run the generators get back the state they had before it, as if
nothing had been drawn. Otherwise a program would draw other numbers after a backward
pass with checkpoints than after one without, and the same seed would train two
different models.

## Which generators?

Each device has a generator of its own, and which of them a function will use is not
known beforehand. The CPU's is always captured, and the arguments decide about the
others:

| where the function draws | repeated? |
|---|---|
| on the CPU, from PyTorch's own generator | yes |
| on the device of a tensor among its arguments | yes |
| on a device with parameters or buffers of a module among its arguments | yes |
| on a device with parameters or buffers of the function, if it is a module | yes |
| on a `torch.device` or from a `torch.Generator` among its arguments | yes |
| on another device, to which it moves a tensor by itself | no |
| from a `torch.Generator` that it finds elsewhere, as in an attribute | no |
| from Python's `random` or from NumPy | no |
| while another thread draws from the same generator, outside of any recomputation | no |

To capture the generators of all devices would be neither enough nor safe. It would not
be enough, because the last three rows would stay. It would not be safe, because
autograd runs the backward passes of different devices in different threads. While one
of them draws on its device, a recomputation on another device would set the first one's
generator back.

So if a function draws on a device that none of its arguments is on, pass that device as
one more argument, which the function ignores:

```python
y = checkpoint(lambda x, _: f(x), x, torch.device("cuda:1"))
```
"""

# sidelit: hide
from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.foundations.torch_private import tree_is_leaf, tree_leaves

__all__ = ["RNGState", "Source", "capture"]
# sidelit: show

# Where random numbers come from: a generator of its own, or the one that a device has.
Source = torch.Generator | torch.device


def capture(*args: Any) -> RNGState:
    """The present state of the CPU's generator and of those found among the arguments.

    :param args: what a function is given, and the function itself if it is a module:
        tensors, devices, generators and modules, also inside of tuples, lists,
        dictionaries and other pytrees; in anything else no generator is looked for

    >>> state = capture()
    >>> first = torch.rand(3)
    >>> with state.restored():
    ...     again = torch.rand(3)
    >>> torch.equal(first, again)
    True
    """
    # Two arguments may show the same device. Its state is read once.
    sources = dict.fromkeys([torch.default_generator, *sources_in(args)])
    return RNGState({source: read(source) for source in sources})


# All threads draw from the same generators. A block inside of another takes the lock
# again in the same thread.
LOCK = RLock()


@dataclass(frozen=True, slots=True)
class RNGState:
    """The states of some generators at one moment.

    :param states: for each source the bytes from which it goes on, `uint8` on the CPU;
        without any, [restoring](#RNGState.restored) does nothing
    """

    states: dict[Source, Tensor] = field(default_factory=dict)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Inside of the block the generators go on from here; after it, from where they
        were before the block, even if it raises.

        One thread at a time is in such a block. Otherwise each of two threads that
        recompute would go on with the random numbers of the other.
        """
        if not self.states:
            yield
            return
        with LOCK:
            surrounding = {source: read(source) for source in self.states}
            try:
                for source, state in self.states.items():
                    write(source, state)
                yield
            finally:
                for source, state in surrounding.items():
                    write(source, state)


def sources_in(args: Sequence[Any]) -> Iterator[Source]:
    """The generators that some arguments show, besides the CPU's.

    A bound method shows the module that it is bound to. A `functools.partial` shows
    what its function and its arguments show.
    """
    for value in args:
        if isinstance(value, Tensor):
            yield from sources_on(value.device)
        elif isinstance(value, nn.Module):
            yield from sources_of(value)
        elif isinstance(value, torch.Generator):
            yield value
        elif isinstance(value, torch.device):
            yield from sources_on(value)
        elif isinstance(value, functools.partial):
            yield from sources_in((value.func, value.args, value.keywords))
        elif isinstance(owner := getattr(value, "__self__", None), nn.Module):
            yield from sources_of(owner)
        elif not tree_is_leaf(value):
            yield from sources_in(tree_leaves(value))


def sources_of(module: nn.Module) -> Iterator[torch.device]:
    """The devices of a module's parameters and buffers.

    To walk through them takes longer than all else in this chapter. On a machine that
    has nothing but a CPU there is nothing to find.
    """
    if torch.accelerator.current_accelerator() is None:
        return
    held = chain(module.parameters(), module.buffers())
    for device in {tensor.device for tensor in held}:
        yield from sources_on(device)


def read(source: Source) -> Tensor:
    """A copy of the state's bytes, so the generator may go on."""
    if isinstance(source, torch.Generator):
        return source.get_state()
    state: Tensor = torch.get_device_module(source).get_rng_state(*which(source))
    return state


def write(source: Source, state: Tensor) -> None:
    if isinstance(source, torch.Generator):
        source.set_state(state)
    else:
        torch.get_device_module(source).set_rng_state(state, *which(source))


# sidelit: depth A device that was not used yet or has no number, and Apple's `mps`.


def sources_on(device: torch.device) -> Iterator[torch.device]:
    """The device itself, if there is a state of its own to read.

    The CPU's is captured in any case, and on `meta` nothing is drawn. A device that has
    not been initialised is left out, because to read its state would initialise it. So
    a program whose very first use of a device is inside of a checkpoint has to
    initialise it before, as with `torch.cuda.init()`.
    """
    if device.type in ("cpu", "meta"):
        return
    initialised = getattr(torch.get_device_module(device), "is_initialized", None)
    if initialised is not None and not initialised():
        return
    # "cuda" without a number means another device as soon as the current one changes. A
    # tensor knows the number.
    yield torch.empty(0, device=device).device if device.index is None else device


def which(device: torch.device) -> tuple[torch.device, ...]:
    """How a device is named to its module. Apple's `mps` has one device, and its
    functions take no device.
    """
    return () if device.type == "mps" else (device,)
