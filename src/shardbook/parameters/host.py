r"""# To the host and back

> Two functions carry tensors between a device and the host, and count the bytes.

The memory of the machine, the *host*, is often larger than that of a device, and what
the device does not need now can wait there. The price is the time of the copies. The
link between the two is far slower than the device's own memory, so a copy must not keep
the device from computing.

On CUDA the copies run on two streams of their own, beside the *compute stream*: one for
each direction, since a link can carry both at the same time. Four things make that
right, and each line below that waits belongs to one of them:

| who reads or writes | may do so only after |
|---|---|
| the copy, reading its source | the computation that wrote the source |
| the copy, writing its target | every earlier computation on the target's memory |
| whoever uses the target | the copy |
| the copy that goes back to the device | the copy that brought its source to the host |

The host's side must be *pinned*, that is, at an address that cannot move. From other
memory the driver copies by way of a buffer of its own, and the caller waits meanwhile.
PyTorch's allocator of pinned memory rounds each block up to a power of two, so a vector
of 1.1 GiB takes 2 GiB of the host. [The plan](planner.py) counts 1.1 GiB.

Where the device is a CPU, there is no second memory. Both functions then make a real
copy all the same: what is measured, counted and tested on a CPU has the same number of
bytes in the same places as on a GPU.
"""

# sidelit: hide
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
# sidelit: show


def to_host(values: Tensor, what: str) -> Crossing:
    """Start to copy a tensor from its device to the host.

    >>> from shardbook.foundations.ledger import ledger
    >>> values, device = torch.tensor([1.0, 2.0]), torch.device("cpu")
    >>> with ledger() as book:
    ...     there = to_host(values, "activations").arrive()
    ...     back = to_device(there, device, "activations").wait()
    >>> back.tolist(), book.moved
    ([1.0, 2.0], {'activations to the host': 8, 'activations to the device': 8})

    :param values: any shape and dtype, on any device; leave it unchanged until the copy
        is waited for
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

    The memory is taken on the compute stream, from which it will be used. The copy
    waits for that stream, since the block may have belonged to a computation that is
    queued but has not run.

    A narrower dtype is made on the host, so that its bytes alone are moved.

    :param values: any shape and dtype, on the CPU; leave it unchanged until the copy is
        waited for. What may still be on its way to the host goes
        [back](#Crossing.back).
    :param device: where the copy will be
    :param what: the name under which the ledger counts the bytes
    :param dtype: the dtype of the copy; values that are not floating-point keep theirs,
        and so do all if it is `None`
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
    """Queue the copy behind all that the compute stream has been given so far.

    A pinned block that is dropped before it was read is safe, because the allocator of
    pinned memory asks the stream before it gives a block away.
    """
    module, stream = torch.get_device_module(device), road(device, direction)
    stream.wait_stream(current_stream(device))
    with module.stream(stream):
        copy.copy_(values, non_blocking=True)
    # The caller may drop either tensor before the copy has run. Without this line the
    # allocator would give the memory to a computation while the copy still uses it.
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
    """Memory on the host, of the shape of a tensor, and laid out like it.

    It is pinned, unless its values never leave the host.

    :param like: on any device
    :param device: where the values come from or will go; by default that of `like`
    :param dtype: that of `like` if it is `None`
    """
    other = device or like.device
    pinned = other.type != "cpu"
    return torch.empty_like(like, dtype=dtype, device="cpu", pin_memory=pinned)


@dataclass(frozen=True, slots=True)
class Crossing:
    """A copy under way.

    :param copy: the target, which may be read only after one of the two waits
    :param done: the moment at which the copy has ended
    :param device: the one of its two ends that is not the host
    """

    copy: Tensor
    done: Any
    device: torch.device

    def wait(self) -> Tensor:
        """Let the current stream wait. The calling thread goes on.

        Without this line a kernel would read what the memory held before.
        """
        self.done.wait(current_stream(self.device))
        return self.copy

    def arrive(self) -> Tensor:
        """Let the calling thread wait. Code that runs on the host needs this one, since
        it does not run on any stream.
        """
        self.done.synchronize()
        return self.copy

    def back(self, device: torch.device, what: str) -> Crossing:
        """Start to copy the target to the device again. The calling thread goes on.

        The way back is another stream. Without the wait it would read what the host's
        memory held before the first copy.
        """
        self.done.wait(road(device, "to the device"))
        return to_device(self.copy, device, what)


@cache
def road(device: torch.device, direction: str) -> Any:
    """The stream of all copies between this device and the host in one direction."""
    return torch.get_device_module(device).Stream(device)


# sidelit: depth Streamed models, whose parameters and gradients wait on the host.


def pin(tensors: Iterable[Tensor]) -> None:
    """Put tensors of the host into pinned memory, as the objects that they are.

    What shared memory before, such as two views of one vector, shares it afterwards.

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
    """The wait for gradients on their way to the host, as a node of its own in the graph.

    From parameters on the host its `forward` makes a *token*, a tensor whose value
    nobody reads. What is computed on a device depends on the token in the graph.
    Autograd runs the nodes of each GPU in a thread of the GPU's, and those of the host
    in the thread that called `backward`. So the wait below holds up no computation.
    """

    @classmethod
    def of(cls, own: Mapping[str, Tensor], gradients: dict[str, Crossing]) -> Tensor:
        """The token of some parameters.

        :param gradients: in the backward pass it holds those that were sent, by name
        """
        token: Tensor = cls.apply(gradients, [*own], *own.values())  # type: ignore[no-untyped-call]
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
        """Give autograd what has arrived. It adds to `.grad` at once, on the host. Without
        the wait it would add what the memory held before.
        """
        found: list[Tensor | None] = [None, None]
        for name, dtype in zip(ctx.names, ctx.dtypes, strict=True):
            crossing = ctx.gradients.pop(name, None)
            found.append(crossing and crossing.arrive().to(dtype))
        return tuple(found)
