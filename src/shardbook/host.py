r"""# To the host and back

> Two functions carry tensors between a device and the host, and count the bytes.

The memory of the machine, the *host*, is often larger than that of a device, and what
the device does not need now can wait there. The price is the way. The link between the
two is far slower than the device's own memory, so a copy must not keep the device from
computing.

On CUDA all copies share a stream of their own, beside the *compute stream*. Three things
make that right, and each line below that waits belongs to one of them:

| who reads or writes | may do so only after |
|---|---|
| the copy, reading its source | the computation that wrote the source |
| the copy, writing its target | every earlier computation on the target's memory |
| whoever uses the target | the copy |

The host's side must be *pinned*, that is, at an address that cannot move. From other
memory the driver copies by way of a buffer of its own, and the caller waits meanwhile.

Where the device is a CPU, there is no second memory. Both functions then make a real
copy all the same: what is measured, counted and tested on a CPU has the same number of
bytes in the same places as on a GPU.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from shardbook.ledger import record_move

__all__ = ["Crossing", "host_memory", "pin", "to_device", "to_host"]
# sidelit: show


def to_host(values: Tensor, what: str) -> Crossing:
    """Start to copy a tensor from its device to the host.

    >>> from shardbook.ledger import ledger
    >>> values, device = torch.tensor([1.0, 2.0]), torch.device("cpu")
    >>> with ledger() as book:
    ...     there = to_host(values, "activations").arrive()
    ...     back = to_device(there, device, "activations").wait()
    >>> back.tolist(), book.moved
    ([1.0, 2.0], {'activations to the host': 8, 'activations to the device': 8})

    :param values: any shape and dtype, on any device; leave it unchanged until the copy
        is waited for
    :param what: the name under which [the ledger](ledger.py) counts the bytes
    :returns: a copy under way; its tensor is on the CPU, pinned if `values` was not
    """
    values = values.detach()
    copy = host_memory(values)
    record_move(f"{what} to the host", values.nbytes)
    return start(copy, values, values.device)


def to_device(
    values: Tensor,
    device: torch.device,
    what: str,
    dtype: torch.dtype | None = None,
) -> Crossing:
    """Start to copy a tensor from the host to a device.

    The memory is taken on the compute stream, from which it will be used. The copy waits
    for that stream, since the block may have belonged to a computation that is queued
    but has not run.

    A narrower dtype is made on the host, so that its bytes alone are moved.

    :param values: any shape and dtype, on the CPU; leave it unchanged until the copy is
        waited for
    :param device: where the copy will be
    :param what: the name under which the ledger counts the bytes
    :param dtype: the dtype of the copy, that of `values` if it is `None`
    """
    values = values.detach()
    if dtype is not None and dtype != values.dtype:
        values = host_memory(values, device, dtype).copy_(values)
    copy = torch.empty_like(values, device=device)
    record_move(f"{what} to the device", values.nbytes)
    return start(copy, values, device)


def start(copy: Tensor, values: Tensor, device: torch.device) -> Crossing:
    """Queue the copy behind all that the compute stream has been given so far.

    One stream serves both directions. So what goes to the host and comes back needs no
    wait of its own: the second copy runs after the first. A pinned block that is dropped
    before it was read is safe, too, because the allocator of pinned memory asks the
    stream before it gives a block away.
    """
    module = torch.get_device_module(device)
    road(device).wait_stream(module.current_stream())
    with module.stream(road(device)):
        copy.copy_(values, non_blocking=True)
    # The caller may drop either tensor before the copy has run. Without this line the
    # allocator would give the memory to a computation while the copy still uses it.
    for tensor in (copy, values):
        if not tensor.is_cpu:
            tensor.record_stream(road(device))
    done = module.Event()
    done.record(road(device))
    return Crossing(copy, done)


def host_memory(
    like: Tensor,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Memory on the host, as much as a tensor has, and laid out like it.

    It is pinned, unless its values never leave the host.

    :param like: on any device
    :param device: where the values come from or will go; by default that of `like`
    :param dtype: that of `like` if it is `None`
    """
    other = device or like.device
    pinned = other.type != "cpu"
    return torch.empty_like(like, dtype=dtype, device="cpu", pin_memory=pinned)


def pin(tensors: Iterable[Tensor]) -> None:
    """Put tensors of the host into pinned memory, as the objects that they are.

    What shared memory before, such as two views of one vector, shares it afterwards.

    :param tensors: parameters and buffers on the CPU
    """
    pinned: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        old = tensor.untyped_storage()
        if old._cdata not in pinned:
            pinned[old._cdata] = old.pin_memory()
        place = tensor.storage_offset(), tensor.size(), tensor.stride()
        tensor.data = torch.empty(0, dtype=tensor.dtype).set_(
            pinned[old._cdata], *place
        )


@dataclass(frozen=True, slots=True)
class Crossing:
    """A copy under way.

    :param copy: the target, which may be read only after one of the two waits
    :param done: the moment at which the copy has ended
    """

    copy: Tensor
    done: Any

    def wait(self) -> Tensor:
        """Let the current stream wait. The calling thread goes on.

        Without this line a kernel would read what the memory held before.
        """
        self.done.wait()
        return self.copy

    def arrive(self) -> Tensor:
        """Let the calling thread wait. Code that runs on the host needs this one, since
        it does not run on any stream.
        """
        self.done.synchronize()
        return self.copy


@cache
def road(device: torch.device) -> Any:
    """The stream of all copies between this device and the host."""
    return torch.get_device_module(device).Stream()
