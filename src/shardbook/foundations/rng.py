r"""# Restoring the random numbers

> A recomputation must generate the random numbers of the first run again, or its gradients are wrong.

[Activation checkpointing](checkpointing.py) runs a part of the forward pass twice.
Dropout draws a mask each time it runs. If the two masks differ, the gradient belongs to
another function than the loss, and no error is raised.

So the checkpoint captures the state of the generators before the first run and restores
it for the second. After the second run the generators get back the state that they had
before it, as if no number had been generated. Otherwise the same seed would train two
different models: with checkpoints a program would generate other numbers after a
backward pass than without.

## The generators that are captured

Each device has a generator of its own, and the checkpoint cannot know beforehand which
of them a function will use. The CPU's generator is always captured. The arguments
decide about the others:

| where the function generates random numbers | repeated? |
|---|---|
| on the CPU, from PyTorch's own generator | yes |
| on the device of a tensor among its arguments | yes |
| on a device with parameters or buffers of a module among its arguments | yes |
| on a device with parameters or buffers of the function, if it is a module | yes |
| on a `torch.device` or from a `torch.Generator` among its arguments | yes |
| on another device, to which the function moves a tensor itself | no |
| from a `torch.Generator` that the function finds elsewhere, such as in an attribute | no |
| from Python's `random` or from NumPy | no |
| while another thread uses the same generator, outside of any recomputation | no |

Why not capture the generators of all devices? That would not be enough, because the
last three rows would stay as they are. And it would not be safe, because autograd runs
the backward passes of different devices in different threads. While one thread
generates numbers on its device, a recomputation on another device would reset the first
device's generator.

So if a function generates random numbers on a device that none of its arguments is on,
pass that device as one more argument, which the function ignores:

```python
y = checkpoint(lambda x, _: f(x), x, torch.device("cuda:1"))
```
"""

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

# A source of random numbers: a generator, or a device that has one of its own.
Source = torch.Generator | torch.device


def capture(*args: Any) -> RNGState:
    """The present state of the CPU's generator and of those found in the arguments.

    :param args: the arguments of a function, and the function itself if it is a module:
        tensors, devices, generators and modules, also inside tuples, lists,
        dictionaries and other pytrees; other objects are not searched

    >>> state = capture()
    >>> first = torch.rand(3)
    >>> with state.restored():
    ...     again = torch.rand(3)
    >>> torch.equal(first, again)
    True
    """
    # Two arguments may be on the same device. Its state is read once.
    sources = dict.fromkeys([torch.default_generator, *sources_in(args)])
    return RNGState({source: read(source) for source in sources})


# All threads use the same generators. If blocks are nested, the same thread takes the
# lock again.
LOCK = RLock()


@dataclass(frozen=True, slots=True)
class RNGState:
    """The states of some generators at one moment.

    :param states: for each source the bytes of its state, `uint8` on the CPU; without
        any, [restoring](#RNGState.restored) does nothing
    """

    states: dict[Source, Tensor] = field(default_factory=dict)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Set the generators to this state inside the block, and back after it, even if
        the block raises an error.

        Only one thread at a time may be in such a block. Otherwise each of two threads
        that recompute would continue with the random numbers of the other.
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
    """The generators of some arguments, besides the CPU's.

    A bound method counts as the module to which it is bound. A `functools.partial`
    counts as its function and its arguments.
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

    The walk through them takes longer than all else in this chapter. On a machine with
    only a CPU it could not find anything, and is left out.
    """
    if torch.accelerator.current_accelerator() is None:
        return
    held = chain(module.parameters(), module.buffers())
    for device in {tensor.device for tensor in held}:
        yield from sources_on(device)


def read(source: Source) -> Tensor:
    """A copy of the state's bytes, which does not change when the generator is used."""
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
    """The device itself, if it has a state of its own to read.

    The CPU's state is captured anyway, and no number is generated on `meta`. A device
    that has not been initialised is left out, because a read of its state would
    initialise it. If a program uses a device for the first time inside a checkpoint,
    initialise the device before, for example with `torch.cuda.init()`.
    """
    if device.type in ("cpu", "meta"):
        return
    initialised = getattr(torch.get_device_module(device), "is_initialized", None)
    if initialised is not None and not initialised():
        return
    # "cuda" without an index means another device after the current one changes. A
    # tensor on the device knows the index.
    yield torch.empty(0, device=device).device if device.index is None else device


def which(device: torch.device) -> tuple[torch.device, ...]:
    """The device's name among the arguments of its module's functions.

    Apple's `mps` has one device, and its functions take no device.
    """
    return () if device.type == "mps" else (device,)
