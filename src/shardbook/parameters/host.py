r"""# Copies between device and host

> Two functions copy tensors between a device and the host, while both go on computing.

The memory of the machine, the *host*, is often larger than that of a device. So tensors
that the device does not need now can be kept on the host. The price is the time of the
copies: the link between the two is far slower than the device's own memory. So a copy
must not keep the device from computing.

On CUDA the copies run on two streams beside the *compute stream*, one for each
direction, since a link can carry both directions at the same time. Four rules make that
right, and each wait in the code below belongs to one of them:

| who reads or writes | may do so only after |
|---|---|
| the copy, reading its source | the computation that wrote the source |
| the copy, writing its target | every earlier computation on the target's memory |
| a computation that uses the target | the copy |
| a copy back to the device | the copy that brought its source to the host |

The host's memory must be *pinned*, that is, at an address that cannot change. From
other memory the driver copies through a buffer of its own, and the calling thread waits
meanwhile. PyTorch's allocator of pinned memory rounds each block up to a power of two,
so a vector of 1.1 GiB takes 2 GiB of the host. [The plan](planner.py) counts 1.1 GiB.

If the device is a CPU, there is no second memory. Both functions then still make a real
copy. So a measurement, a count or a test on a CPU sees the same number of bytes in the
same places as on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from shardbook.foundations.ledger import record_move
from shardbook.foundations.streams import current_stream
from shardbook.foundations.torch_private import storage_id

__all__ = ["Crossing", "Landing", "host_memory", "pin", "to_device", "to_host"]


def to_host(values: Tensor, what: str) -> Crossing:
    """Start to copy a tensor from its device to the host.

    >>> from shardbook.foundations.ledger import ledger
    >>> values, device = torch.tensor([1.0, 2.0]), torch.device("cpu")
    >>> with ledger() as book:
    ...     there = to_host(values, "activations").arrive()
    ...     back = to_device(there, device, "activations").wait()
    >>> back.tolist(), book.moved
    ([1.0, 2.0], {'activations to the host': 8, 'activations to the device': 8})

    :param values: any shape and dtype, on any device; do not change it before you have
        waited for the copy
    :param what: the name under which [the ledger](ledger.py) counts the bytes
    :returns: a copy under way; its tensor is on the CPU, and pinned if `values` is on
        another device
    """
    values = values.detach()
    copy = host_memory(values)
    record_move(f"{what} to the host", values.nbytes)
    return start(copy, values, values.device, "to the host")


def to_device(
    values: Tensor,
    device: torch.device,
    what: str,
    dtype: torch.dtype | None = None,
) -> Crossing:
    """Start to copy a tensor from the host to a device.

    The target is allocated on the compute stream, on which it will be used. Its memory
    may have belonged to a computation that is queued there and has not run. So the copy
    waits for the compute stream.

    If a narrower dtype is wanted, the host casts first, so that only the narrower bytes
    are moved.

    :param values: any shape and dtype, on the CPU; do not change it before you have
        waited for the copy. A tensor that may still be on its way to the host is copied
        by [`back`](#Crossing.back) instead.
    :param device: the device of the copy
    :param what: the name under which the ledger counts the bytes
    :param dtype: the dtype of the copy; values that are not floating-point keep theirs,
        and if it is `None`, all do
    """
    values = values.detach()
    if dtype is not None and values.is_floating_point() and dtype != values.dtype:
        values = host_memory(values, device, dtype).copy_(values)
    copy = torch.empty_like(values, device=device)
    record_move(f"{what} to the device", values.nbytes)
    return start(copy, values, device, "to the device")


def start(
    copy: Tensor, values: Tensor, device: torch.device, direction: str
) -> Crossing:
    """Queue a copy behind all that the compute stream has been given so far.

    A pinned block may be dropped before it was read, because the allocator of pinned
    memory waits for the stream before it reuses a block.

    :param copy: the target
    :param values: the source
    :param device: the one of the two ends that is not the host
    :param direction: `"to the host"` or `"to the device"`
    """
    module, stream = torch.get_device_module(device), road(device, direction)
    stream.wait_stream(current_stream(device))
    with module.stream(stream):
        copy.copy_(values, non_blocking=True)
    # The caller may drop either tensor before the copy has run. Without `record_stream`
    # the allocator would give the memory to a computation while the copy still uses it.
    for tensor in (copy, values):
        if not tensor.is_cpu:
            tensor.record_stream(stream)
    done = module.Event()
    done.record(stream)
    return Crossing(copy, done, device)


def host_memory(
    like: Tensor,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Allocate memory on the host, of the shape and the layout of a tensor.

    The memory is pinned, unless its values never leave the host.

    :param like: on any device
    :param device: the device that the values come from or go to; by default that of
        `like`
    :param dtype: the dtype; `None` means that of `like`
    """
    other = device or like.device
    pinned = other.type != "cpu"
    return torch.empty_like(like, dtype=dtype, device="cpu", pin_memory=pinned)


@dataclass(frozen=True, slots=True)
class Crossing:
    """A copy under way.

    :param copy: the target, which may be read only after one of the two waits
    :param done: the event that marks the end of the copy
    :param device: the one of its two ends that is not the host
    """

    copy: Tensor
    done: Any
    device: torch.device

    def wait(self) -> Tensor:
        """Make the current stream wait for the copy. The calling thread continues.

        Without this wait a kernel would read the previous content of the memory.
        """
        self.done.wait(current_stream(self.device))
        return self.copy

    def arrive(self) -> Tensor:
        """Make the calling thread wait for the copy.

        Code that runs on the host needs this wait, since it does not run on any stream.
        """
        self.done.synchronize()
        return self.copy

    def back(self, device: torch.device, what: str) -> Crossing:
        """Start to copy the target to the device again. The calling thread continues.

        This copy runs on another stream than the first one. Without the wait it would
        read the content that the host's memory had before the first copy.
        """
        self.done.wait(road(device, "to the device"))
        return to_device(self.copy, device, what)


@cache
def road(device: torch.device, direction: str) -> Any:
    """The stream of all copies between this device and the host in one direction."""
    return torch.get_device_module(device).Stream(device)


# sidelit: depth Streamed models, whose parameters and gradients are kept on the host.


def pin(tensors: Iterable[Tensor]) -> None:
    """Move tensors of the host into pinned memory. They remain the same objects.

    Tensors that shared memory, such as two views of one vector, share it afterwards,
    too.

    :param tensors: parameters and buffers on the CPU
    """
    pinned: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        old = tensor.untyped_storage()
        if storage_id(old) not in pinned:
            pinned[storage_id(old)] = old.pin_memory()
        place = tensor.storage_offset(), tensor.size(), tensor.stride()
        tensor.data = torch.empty(0, dtype=tensor.dtype).set_(
            pinned[storage_id(old)], *place
        )


class Landing(torch.autograd.Function):
    """The wait for gradients on their way to the host, as a node of its own in the
    graph.

    Its `forward` takes parameters on the host and makes a *token*, a tensor whose value
    is never read. The outputs of a computation on the device are connected to the token
    in the graph. Autograd runs the nodes of each GPU in a thread for that GPU, and
    nodes of the host in the thread that called `backward`. So the wait below holds up
    no computation on a GPU.
    """

    @classmethod
    def of(cls, own: Mapping[str, Tensor], gradients: dict[str, Crossing]) -> Tensor:
        """The token of some parameters.

        :param own: the parameters, by name
        :param gradients: in the backward pass it holds the gradients that were sent, by
            name
        """
        token: Tensor = cls.apply(gradients, [*own], *own.values())
        return token

    @staticmethod
    def forward(
        ctx: Any, gradients: dict[str, Crossing], names: list[str], *own: Tensor
    ) -> Tensor:
        ctx.gradients, ctx.names = gradients, names
        ctx.dtypes = [parameter.dtype for parameter in own]
        return torch.zeros((), device="cpu")

    @staticmethod
    def backward(ctx: Any, token: Tensor) -> tuple[Tensor | None, ...]:
        """Give autograd the gradients that have arrived.

        Autograd adds them to `.grad` at once, on the host. Without the wait it would
        add the previous content of the memory.
        """
        found: list[Tensor | None] = [None, None]
        for name, dtype in zip(ctx.names, ctx.dtypes, strict=True):
            crossing = ctx.gradients.pop(name, None)
            found.append(crossing and crossing.arrive().to(dtype))
        return tuple(found)
