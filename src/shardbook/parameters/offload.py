r"""# Offload

> The optimizer works on the host, and the device holds what it computes with.

With AdamW in FP32, 12 of the 16 bytes that a parameter takes in a step are the
parameter itself and the two moments. The modules need none of these while they compute
in 16 bits, and the memory of the host is often larger than that of the device. So the
[master weights](masters.py) can be kept on the host. The mean gradients are brought to
them, the optimizer makes its state where the parameters are, and it runs on the host.

```python
shard(model, policy=Policy(param_dtype=torch.bfloat16, offload=True))
```

Two things cross the link between host and device. With $b$ bytes for a number as
modules compute with it and $s$ bytes for a number of the mean gradient, in the dtype in
which gradients travel, these are in stages 1 to 3, for one micro-batch:

| what | when | bytes for a unit |
|---|---|---|
| this rank's part of the parameters | before each gather, in stage 3 twice | $b\,S_u$ each |
| this rank's piece of the mean gradient | after each exchange of gradients | $s\,S_u$ |

The parameters are cast on the host before they cross, and the mean gradient after it.
So a 16-bit `param_dtype` halves the bytes of both; with a wider `reduce_dtype` only
those of the parameters. In stage 0 each rank has a whole copy, so $P_u$ takes the place
of $S_u$, and the parameters cross once. The [ledger](ledger.py#Ledger) counts both
kinds, apart from what goes to the network.

The bytes are not the whole price. The optimizer runs on the host's processor, while the
device waits, and for a large model that often takes longer than the copies.

The numbers do not change. The same values are added and cast in the same order, so a
step gives the same bits as without offload, as long as the optimizer computes on the
host as it does on the device. On a CPU that is so.

Where the device is a CPU, there is no second memory. The copies are made all the same,
so the same code runs and the same bytes are counted, and the parts on the "host" are
other tensors than those that the modules compute with.

[Other copies to the host](host.py) run on a stream of their own. The copies here belong
to an exchange, so they run on the stream of that exchange and in its order.

:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part of it
:notation $b$: `computed`, the bytes of a number as modules compute with it
:notation $s$: `sent`, the bytes of a number of the mean gradient, in the dtype in which gradients travel
"""

# sidelit: hide
from __future__ import annotations

from torch import Tensor

from shardbook.foundations.ledger import record_move
from shardbook.foundations.streams import host_waits_for_current_stream
from shardbook.parameters.host import host_memory

__all__ = ["move_in", "move_out", "put_away"]
# sidelit: show


def put_away(values: Tensor) -> Tensor:
    """Masters on the host, made once when a unit is cut."""
    return host_memory(values).copy_(values)


def move_in(masters: Tensor, place: Tensor) -> None:
    """Start to copy masters from the host to their place on the device.

    The thread that calls does not wait for the copy. So the copy must not read the
    masters themselves: the optimizer runs on the host, and nothing would keep it from
    changing them meanwhile. What moves is a copy of this moment, in *pinned* memory,
    whose address is fixed, so that a GPU can read it without the thread's help.

    The copy is dropped here. The allocator of pinned memory keeps it until the stream
    has read it.

    :param masters: 1-D, on the host
    :param place: as many elements on the device, of the dtype that is computed with
    """
    staged = host_memory(place)
    staged.copy_(masters)
    record_move("parameters to the device", staged.nbytes)
    place.copy_(staged, non_blocking=True)


def move_out(mean: Tensor) -> Tensor:
    """Copy a mean gradient from the device to the host, behind what the current stream
    has been given.

    This thread waits for the copy. The stream it is queued on [waits
    itself](unit.py#Unit.finish_reduce) for all that the compute stream was given. That
    is the backward pass of the next unit, since a mean is asked for only [when the next
    exchange begins](conductor.py#Conductor.exchange). So the device computes while the
    thread waits, but finds nothing queued when the wait is over. This is a price of
    offload beside the bytes.

    :param mean: 1-D, on the device
    """
    arrived = host_memory(mean)
    record_move("gradients to the host", mean.nbytes)
    arrived.copy_(mean, non_blocking=True)
    # The host is about to add the mean up, and no stream orders that. Without this line
    # it would add whatever the memory held before.
    host_waits_for_current_stream(mean.device)
    return arrived
