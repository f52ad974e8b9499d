r"""# Offload

> The host stores the master weights and runs the optimizer; the device holds only what modules compute with.

With AdamW in FP32, each parameter takes 16 bytes in a step: 4 are its gradient, and 12
are the parameter itself and the two moments. Modules that compute in 16 bits need none
of these 12 bytes, and the memory of the host is often larger than that of the device.
So the [master weights](flat.py#Flat/master-weights) can be kept on the host. The mean gradients are
copied to the host, too. The optimizer then makes its state on the host and runs there.

```python
shard(model, policy=Policy(param_dtype=torch.bfloat16, offload=True))
```

Two things cross the link between host and device. Let $b$ be the bytes of a number as
modules compute with it, and $s$ the bytes of a number of the mean gradient, in the
dtype of the exchange. For one micro-batch in stages 1 to 3, these bytes cross:

| what | when | bytes for a unit |
|---|---|---|
| this rank's part of the parameters | before each gather, in stage 3 twice | $b\,S_u$ each |
| this rank's piece of the mean gradient | after each exchange of gradients | $s\,S_u$ |

The parameters are cast on the host before they cross, and the mean gradient is cast
after it has crossed. So a 16-bit `param_dtype` halves the bytes of both. With a wider
`reduce_dtype` it halves only those of the parameters. In stage 0 each rank has a whole
copy, so $P_u$ takes the place of $S_u$, and the parameters cross once. The
[ledger](collectives.py#Ledger) counts both kinds separately from the bytes that go to the
network.

[Activations](residual.py) and the parts of [a streamed model](streaming.py) are also
copied to the host. [Their copies](#module/copies-between-device-and-host) run on
streams of their own. The copies of a unit belong to an exchange, so they run on the
stream of that exchange, in its order.

## The optimizer on the host

The bytes are not the whole price. The optimizer runs on the host's processor while the
device waits, and for a large model that often takes longer than the copies. In FP32 a
step of AdamW reads four numbers for each parameter and writes three, 28 bytes in all.
For 1 billion parameters that is 28 GB, and a host that moves 50 GB/s needs 0.56 s, if
each number is read only once. By default PyTorch's AdamW on a CPU runs several
operations one after the other, and each of them reads its numbers anew. The fused
optimizer makes one pass:

```python
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
```

| AdamW on one core of an AMD EPYC, 20 million parameters | one step |
|---|---|
| one tensor after the other, the default | 47 ms |
| `foreach=True`, lists of tensors | 80 ms |
| `fused=True` | 10 ms |

`python -m benchmarks.host_adam --threads 1` measures the three on your machine. Each
time is the best of twenty steps, since this machine had other work. The fused optimizer
trains slices as it trains whole parameters, to the same bits. More ranks shorten the
step, too, since each of them updates only its slices.

## ZeRO-Offload

[ZeRO-Offload](bib:ren2021offload) divides the work of stage 2 between device and host
in the same way. In stage 2 this chapter moves the same bytes: for each parameter of a
rank's slices two for the gradient and two for the new value, if both have 16 bits and
the step has one micro-batch. The two differ in three points:

| | ZeRO-Offload | this chapter |
|---|---|---|
| copies of gradients | hide behind the backward pass | the thread [waits](#move_out) once a unit |
| Adam | written for the host, over 5 times as fast as PyTorch's then | PyTorch's, fused if you choose it |
| the optimizer's step | may run one step late | ends before the next forward pass |

**The delayed update is not done.** Without it the device waits while the host updates
the parameters. With it the device starts the next forward pass at once, with the
parameters of the step before. So the host has a whole step of time. The authors report
1.12 to 1.59 times the throughput at a micro-batch of 8. But the gradient of step $i+1$
then belongs to weights without the update of step $i$, which is another algorithm than
the unsharded training. The authors begin with it after 40 steps, because the gradients
of the first steps change quickly, and their GPT-2 learns a little more slowly between
steps 2,000 and 5,000. This library has one rule for all its techniques: the sharded
model trains like the unsharded one, to the same bits. So [it
refuses](optimizer_guard.py#module/weights-that-change-before-the) a step between a
forward pass and its backward pass. If the step on the host takes too long, use the
fused optimizer, more ranks, or [more micro-batches](accumulate.py) for each step.

## Equality

The numbers do not change. The same values are added and cast in the same order. So a
step gives the same bits as without offload, if the optimizer computes on the host as it
does on the device. If the device is a CPU, it does.

On a CPU there is no second memory. The copies are still made, so the same code runs and
the same bytes are counted, and the tensors on the "host" are other tensors than those
that the modules compute with.

:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part of it
:notation $b$: `computed`, the bytes of a number as modules compute with it
:notation $s$: `sent`, the bytes of a number of the mean gradient, in the dtype of the exchange
:notation $i$: the number of a step
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from shardbook.foundations.collectives import record_move
from shardbook.foundations.streams import current_stream, host_waits_for_current_stream
from shardbook.foundations.torch_private import storage_id

__all__ = [
    "PendingCopy",
    "PendingGradients",
    "host_memory",
    "move_in",
    "move_out",
    "pin",
    "put_away",
    "to_device",
    "to_host",
]


def put_away(values: Tensor) -> Tensor:
    """Copy masters to the host, once, when a unit is cut."""
    return host_memory(values).copy_(values)


def move_in(masters: Tensor, place: Tensor) -> None:
    """Start to copy masters from the host to their place on the device.

    The calling thread does not wait for the copy. Meanwhile the optimizer on the host
    may change the masters, so the copy must not read them directly. It reads a second
    copy in *pinned* memory, whose address is fixed, so that a GPU can read it without
    the help of the thread.

    This function drops the pinned copy at its end. The allocator of pinned memory keeps
    it until the stream has read it.

    :param masters: 1-D, on the host
    :param place: as many elements on the device, in the dtype of the computation
    """
    staged = host_memory(place)
    staged.copy_(masters)
    record_move("parameters to the device", staged.nbytes)
    place.copy_(staged, non_blocking=True)


def move_out(mean: Tensor) -> Tensor:
    """Copy a mean gradient from the device to the host, after the work of the current
    stream.

    This thread waits for the copy. The current stream
    [waits](unit.py#Unit.advance) for all work of the compute stream, which
    includes the backward pass of the next unit, because a mean is finished only [when
    the next exchange begins](scheduler.py#Scheduler.exchange). So the device computes
    while this thread waits, but it has no queued work when the wait ends. This is a
    price of offload beside the bytes.

    :param mean: 1-D, on the device
    """
    arrived = host_memory(mean)
    record_move("gradients to the host", mean.nbytes)
    arrived.copy_(mean, non_blocking=True)
    # The host adds the mean to a gradient next, and no stream orders that. Without this
    # wait it would add the previous content of the memory.
    host_waits_for_current_stream(mean.device)
    return arrived


# ## Copies between device and host
#
# > Two functions copy tensors between a device and the host, while both go on computing.
#
# The memory of the machine, the *host*, is often larger than that of a device. So tensors
# that the device does not need now can be kept on the host. The price is the time of the
# copies: the link between the two is far slower than the device's own memory. So a copy
# must not keep the device from computing.
#
# On CUDA the copies run on two streams beside the *compute stream*, one for each
# direction, since a link can carry both directions at the same time. Four rules make that
# right, and each wait in the code below belongs to one of them:
#
# | who reads or writes | may do so only after |
# |---|---|
# | the copy, reading its source | the computation that wrote the source |
# | the copy, writing its target | every earlier computation on the target's memory |
# | a computation that uses the target | the copy |
# | a copy back to the device | the copy that brought its source to the host |
#
# The host's memory must be *pinned*, that is, at an address that cannot change. From
# other memory the driver copies through a buffer of its own, and the calling thread waits
# meanwhile. PyTorch's allocator of pinned memory rounds each block up to a power of two,
# so a vector of 1.1 GiB takes 2 GiB of the host. [The plan](planner.py) counts 1.1 GiB.
#
# If the device is a CPU, there is no second memory. Both functions then still make a real
# copy. So a measurement, a count or a test on a CPU sees the same number of bytes in the
# same places as on a GPU.


def to_host(values: Tensor, what: str) -> PendingCopy:
    """Start to copy a tensor from its device to the host.

    >>> from shardbook.foundations.collectives import ledger
    >>> values, device = torch.tensor([1.0, 2.0]), torch.device("cpu")
    >>> with ledger() as book:
    ...     there = to_host(values, "activations").arrive()
    ...     back = to_device(there, device, "activations").wait()
    >>> back.tolist(), book.moved
    ([1.0, 2.0], {'activations to the host': 8, 'activations to the device': 8})

    :param values: any shape and dtype, on any device; do not change it before you have
        waited for the copy
    :param what: the name under which [the ledger](collectives.py#module/the-byte-ledger) counts the bytes
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
) -> PendingCopy:
    """Start to copy a tensor from the host to a device.

    The target is allocated on the compute stream, on which it will be used. Its memory
    may have belonged to a computation that is queued there and has not run. So the copy
    waits for the compute stream.

    If a narrower dtype is wanted, the host casts first, so that fewer bytes are moved.

    :param values: any shape and dtype, on the CPU; do not change it before you have
        waited for the copy. A tensor that may still be on its way to the host is copied
        by [`back`](#PendingCopy.back) instead.
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
) -> PendingCopy:
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
    return PendingCopy(copy, done, device)


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
class PendingCopy:
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

    def back(self, device: torch.device, what: str) -> PendingCopy:
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


class PendingGradients(torch.autograd.Function):
    """The wait for gradients on their way to the host, as a node of its own in the
    graph.

    Its `forward` takes parameters on the host and makes a *token*, a tensor whose value
    is never read. The outputs of a computation on the device are connected to the token
    in the graph. Autograd runs the nodes of each GPU in a thread for that GPU, and
    nodes of the host in the thread that called `backward`. So the wait below holds up
    no computation on a GPU.
    """

    @classmethod
    def of(cls, own: Mapping[str, Tensor], gradients: dict[str, PendingCopy]) -> Tensor:
        """The token of some parameters.

        :param own: the parameters, by name
        :param gradients: in the backward pass it holds the gradients that were sent, by
            name
        """
        token: Tensor = cls.apply(gradients, [*own], *own.values())
        return token

    @staticmethod
    def forward(
        ctx: Any, gradients: dict[str, PendingCopy], names: list[str], *own: Tensor
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
