r"""# Offload

> The host stores the master weights and runs the optimizer; the device holds only what modules compute with.

With AdamW in FP32, each parameter takes 16 bytes in a step: 4 are its gradient, and 12
are the parameter itself and the two moments. Modules that compute in 16 bits need none
of these 12 bytes, and the memory of the host is often larger than that of the device.
So the [master weights](masters.py) can be kept on the host. The mean gradients are
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
[ledger](ledger.py#Ledger) counts both kinds separately from the bytes that go to the
network.

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
refuses](stale_backward.py) a step between a forward pass and its backward pass. If the
step on the host takes too long, use the fused optimizer, more ranks, or [more
micro-batches](accumulate.py) for each step.

## Equality

The numbers do not change. The same values are added and cast in the same order. So a
step gives the same bits as without offload, if the optimizer computes on the host as it
does on the device. If the device is a CPU, it does.

On a CPU there is no second memory. The copies are still made, so the same code runs and
the same bytes are counted, and the tensors on the "host" are other tensors than those
that the modules compute with.

[Other copies to the host](host.py) run on a stream of their own. The copies of this
chapter belong to an exchange, so they run on the stream of that exchange, in its order.

:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part of it
:notation $b$: `computed`, the bytes of a number as modules compute with it
:notation $s$: `sent`, the bytes of a number of the mean gradient, in the dtype of the exchange
:notation $i$: the number of a step
"""

from __future__ import annotations

from torch import Tensor

from shardbook.foundations.ledger import record_move
from shardbook.foundations.streams import host_waits_for_current_stream
from shardbook.parameters.host import host_memory

__all__ = ["move_in", "move_out", "put_away"]


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
    [waits](unit.py#Unit.finish_reduce) for all work of the compute stream, which
    includes the backward pass of the next unit, because a mean is finished only [when
    the next exchange begins](conductor.py#Conductor.exchange). So the device computes
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
