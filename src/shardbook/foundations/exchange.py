r"""# All-to-all instead of reduce-scatter

> On gloo, and for 16-bit values everywhere, ranks send each other pieces, and each adds up its own.

A [reduce-scatter](collectives.py#reduce_scatter_mean) leaves each rank its piece of the
sum of all ranks' vectors. gloo has a reduce-scatter, but it runs a whole all-reduce and
throws most of the result away. So it sends $2\frac{N_d-1}{N_d}B$ bytes, twice as many
as needed. An **all-to-all** sends only what is needed. Each rank cuts its vector into
$N_d$ pieces, one for each rank, and sends every other rank the piece that belongs to
it. The receiver adds the pieces up. It can add them in rank order, so the result is the
same in every run.

The receiver can also choose the dtype of the sum. NCCL's reduce-scatter adds in the
dtype of the values that are sent. With 16-bit gradients it would add in 16 bits, or
need twice the bytes to send FP32. In an all-to-all the values are sent in 16 bits and
added in FP32. The price is memory: the rows that arrive take as many bytes as the
vector, while a reduce-scatter needs only the result.

One of the $N_d$ pieces belongs to the rank itself and need not be sent. An all-to-all
would copy it into the memory of the received rows. With two ranks, this copy would be
half of these rows, so it is avoided where possible.

:notation $N_d$: `world_size`, the number of ranks in the process group
:notation $B$: `nbytes`, the size of a whole vector in bytes
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from shardbook.foundations.huge_pages import ask_for_large_pages

__all__ = ["exchange"]


def exchange(
    flat: Tensor, group: ProcessGroup | None
) -> tuple[list[Work], list[Tensor]]:
    """Start to exchange the pieces of a vector.

    :param flat: 1-D, $N_d$ equal pieces; do not change it before the exchange has ended
    :param group: the process group; `None` means the default group
    :returns: the exchange to wait for, and every rank's version of this rank's piece,
        in rank order; this rank's own version is a view of `flat`, or a copy of it
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    size = flat.numel() // world_size
    sizes, going = [size] * world_size, flat
    # The pieces that are sent must lie in one stretch of memory. On the first and the
    # last rank the own piece is at one end of the vector, so the rest is such a
    # stretch. On the other ranks the own piece lies in between, so they send it to
    # themselves instead.
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
