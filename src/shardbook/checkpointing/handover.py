r"""# Tensors that cross streams

> A stream that reads a recomputed tensor first waits for the stream that computed it.

Autograd runs the backward pass of each operation on [the stream](streams.py) on which
the operation ran forward. Where a gradient crosses from one stream to another, autograd
makes the second stream wait. But a tensor that [a checkpoint](saved_tensors.py) hands
out is no gradient, so autograd inserts no wait for it.

The recomputation of a function runs on one stream, namely that of the first node which
needs one of its tensors. Take a checkpoint with one branch on a side stream:

| stream | what runs on it | what could go wrong |
|---|---|---|
| main | the last operation's backward pass, with the recomputation of both branches | |
| side | the branch's backward pass, with a tensor of that recomputation | it reads too early |
| main | an operation that allocates new memory | it gets that tensor's memory while the side stream reads |

So a checkpoint records an event after the recomputation. Another stream that takes one
of the tensors waits for the event, and `record_stream` tells the allocator that this
stream uses the memory, too. The arguments cross in the same way, from the stream of the
forward pass to that of the recomputation. A CPU has no streams, so nothing is recorded
there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Ready"]


class Ready:
    """An event that is queued after the computation of some tensors, for each device that holds one.

    :param tensors: tensors whose computation is queued on the current streams
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
        """Make the current stream wait for one of the tensors, and return it.

        Without the wait, the stream could read memory before the values are written.
        Without `record_stream`, the allocator could give the memory to another tensor
        while the stream still reads it.
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
    """Whether a tensor's computation may be queued on one of several streams. Apple's
    `mps` has a single stream.
    """
    return not tensor.is_cpu and tensor.device.type not in ("meta", "mps")
