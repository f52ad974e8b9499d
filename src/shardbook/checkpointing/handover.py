r"""# Tensors that cross streams

> A tensor that was computed on one stream is waited for on every other stream that reads it.

Autograd runs the backward pass of each operation on [the stream](streams.py) on which
the operation ran forward. It lets a stream wait where a gradient crosses from another
one. A tensor that [a checkpoint](saved_tensors.py) hands out is no gradient, so
autograd does not wait for it.

The recomputation of a function runs on one stream, that of the first node which needs
one of its tensors. The example has one checkpoint with a branch on a side stream:

| stream | what runs on it | what could go wrong |
|---|---|---|
| main | the last operation's backward pass, with the recomputation of both branches | |
| side | the branch's backward pass, with a tensor of that recomputation | it reads too early |
| main | an operation that takes new memory | it gets the tensor's while the side stream reads |

So an event is recorded behind the recomputation. A stream that takes one of the tensors
later waits for the event, and the allocator is told that this stream uses the memory,
too. The arguments cross in the same way, from the stream of the forward pass to that of
the recomputation. On a CPU there is one stream, and this chapter does nothing.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Ready"]
# sidelit: show


class Ready:
    """The moment at which some tensors are computed, on each device that holds one.

    :param tensors: what has been queued on the current streams to be computed
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.moments: dict[torch.device, tuple[Any, Any]] = {}
        for tensor in tensors:
            if tensor.is_cpu or not queued(tensor):
                continue
            if tensor.device not in self.moments:
                module = torch.get_device_module(tensor.device)
                stream, done = module.current_stream(tensor.device), module.Event()
                done.record(stream)
                self.moments[tensor.device] = stream, done

    def hand_over(self, tensor: Tensor) -> Tensor:
        """Let the current stream read one of the tensors.

        Without the wait it could read memory that nothing was written to yet. Without
        the second line the allocator could give the memory away while it is read.
        """
        if self.moments and queued(tensor) and tensor.device in self.moments:
            stream, done = self.moments[tensor.device]
            module = torch.get_device_module(tensor.device)
            current = module.current_stream(tensor.device)
            if current != stream:
                done.wait(current)
                tensor.record_stream(current)
        return tensor


def queued(tensor: Tensor) -> bool:
    """Whether a tensor is computed on a stream. Apple's `mps` has a single one."""
    return not tensor.is_cpu and tensor.device.type not in ("meta", "mps")
