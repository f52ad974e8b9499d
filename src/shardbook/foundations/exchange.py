r"""# All-to-all instead of reduce-scatter

> On gloo, and for 16-bit values everywhere, ranks send each other pieces, and each adds up its own.

A [reduce-scatter](collectives.py#reduce_scatter_mean) leaves each rank its piece of the
sum of all ranks' vectors. gloo offers one, but runs a whole all-reduce for it and
throws most of the result away, so it sends $2\frac{N_d-1}{N_d}B$ bytes, twice as many
as needed. An **all-to-all** sends what is needed: of its $N_d$ pieces each rank sends
every other rank the one that rank owns. The sum is left to the receiver. That is
welcome, since the receiver can add in rank order, and the result does not depend on
chance.

The receiver can also choose the dtype of the sum. NCCL's reduce-scatter adds in the
dtype that travels, so with 16-bit gradients it would either add in 16 bits or need
twice the bytes to send FP32. After an all-to-all the values have travelled in 16 bits
and are added in FP32. The price is memory: the rows that arrive take as many bytes as
the vector, where a reduce-scatter needs only the result.

One of the pieces has no way to go, because the rank owns it itself. An all-to-all would
copy it into the memory for what arrives. With two ranks that is half of this memory.

:notation $N_d$: `world_size`, the number of ranks in the process group
:notation $B$: `nbytes`, the size of a whole vector in bytes
"""

# sidelit: hide
from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from shardbook.foundations.huge_pages import ask_for_large_pages

__all__ = ["exchange"]
# sidelit: show


def exchange(
    flat: Tensor, group: ProcessGroup | None
) -> tuple[list[Work], list[Tensor]]:
    """Start to trade the pieces of a vector.

    :param flat: 1-D, $N_d$ equal pieces; leave it unchanged until the works are done
    :returns: what to wait for, and every rank's version of this rank's piece, in rank
        order; this rank's own is a view of `flat`, or a copy of it
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    size = flat.numel() // world_size
    sizes, going = [size] * world_size, flat
    # What goes out has to be one stretch of memory. On the first and on the last rank
    # the own piece stands at an end of the vector, and the rest is such a stretch. The
    # ranks between would have to close a gap, and send the piece to themselves instead.
    apart = rank in (0, world_size - 1)
    if apart:
        sizes[rank] = 0
        going = flat[size:] if rank == 0 else flat[:-size]
    received = flat.new_empty(world_size - apart, size)
    ask_for_large_pages(received)
    works = []
    if going.numel():
        into = received.view(-1)
        works = [
            dist.all_to_all_single(
                into, going, sizes, sizes, group=group, async_op=True
            )
        ]
    rows = list(received)
    if apart:
        rows.insert(rank, flat.view(world_size, -1)[rank])
    return works, rows
