r"""# Collectives

> Four ways for ranks to exchange tensors, and what each of them costs in bytes.

Sharding saves memory and costs messages. A rank that keeps a quarter of the parameters
fetches the other three quarters each time it computes with them. Whether that pays is a
question of bytes, so this chapter counts bytes before the next ones save any.

A **collective** is an operation that every rank of a process group calls: the same
calls, in the same order, with tensors of the same size. Four of them matter here. In
the table, $N_d$ ranks work on a vector of $B$ bytes; a piece is $1/N_d$ of it.

| collective | before | after | bytes sent by one rank |
|---|---|---|---|
| broadcast | one rank holds the vector | every rank holds it | $B$ for each copy it passes on |
| all-gather | rank $r$ holds piece $r$ | every rank holds all pieces | $\frac{N_d-1}{N_d}B$ |
| reduce-scatter | every rank holds its vector | rank $r$ holds piece $r$ of the sum | $\frac{N_d-1}{N_d}B$ |
| all-reduce | every rank holds its vector | every rank holds the whole sum | $2\frac{N_d-1}{N_d}B$ |

**The naive picture.** Four ranks each hold a gradient of 4 MB and all need the sum.
Rank 0 could collect the gradients, add them and send the sum back. The others send 4 MB
each, but rank 0 sends 12 MB, one copy to each of the three, and everyone waits for its
link.

**The ring.** Place the four ranks in a circle and cut each gradient into four pieces of
1 MB. In every step each rank passes one piece to its right, and adds the piece that
arrives from its left to its own copy of it. After three steps every rank holds one
finished piece, and has sent 3 MB: that was a reduce-scatter. In three more steps the
finished pieces travel round the circle: that was an all-gather, another 3 MB. The total
of all ranks is 24 MB in both pictures. The busiest rank sends 12 MB in the first and 6
MB in the second. The figures of the table are those of such a ring. On gloo the tests
count that each rank sends exactly these bytes. NCCL chooses between rings and trees by
itself, so there the figures are computed and not counted.

**An all-reduce is a reduce-scatter and then an all-gather.** Ordinary data parallel
training runs the two halves without a pause, and so does [stage 0](replicate.py) of
this book. ZeRO pauses in the middle: each rank holds one finished piece of the
gradient, updates that piece of the parameters, and only then do the ranks gather the
result. The [ZeRO paper](bib:rajbhandari2020zero) counts, for $\Psi$ parameters and many
ranks, about $2\Psi$ elements a step in both cases. When the parameters are sharded too,
it counts $3\Psi$: one all-gather for the forward pass, one for the backward pass, one
reduce-scatter for the gradients.

:figure: collectives_before_after
:notation $N_d$: `world_size`, the number of ranks in the process group
:notation $r$: `rank`, the number of one rank, from 0 to $N_d - 1$
:notation $B$: `nbytes`, the size of a whole vector in bytes
:notation $\Psi$: `numel`, the number of parameters
"""

# sidelit: hide
from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from shardbook.foundations.exchange import exchange
from shardbook.foundations.layout import shares_storage
from shardbook.foundations.ledger import (
    all_reduce_bytes,
    broadcast_copies,
    ledger,
    record,
)

__all__ = [
    "PendingGather",
    "PendingReduce",
    "all_gather",
    "all_reduce",
    "all_reduce_max",
    "broadcast",
    "ledger",
    "reduce_scatter_mean",
    "world",
]
# sidelit: show


def all_gather(
    full: Tensor, shard: Tensor, *, group: ProcessGroup | None = None
) -> PendingGather:
    r"""All-gather: every rank contributes a piece, every rank receives the whole. The call returns at
    once, so that the ranks compute while the pieces travel; `full` may be read after
    `wait()`.

    The example, like all in this chapter, runs on two ranks at once.

    >>> rank, world_size = world()
    >>> full = torch.empty(2)
    >>> all_gather(full, torch.tensor([rank + 1.0])).wait()
    >>> full
    tensor([1., 2.])

    :param full: receives the pieces in rank order; 1-D, contiguous, $N_d$ times as long
        as `shard`.
    :param shard: this rank's piece, of the dtype of `full`; any dtype. Leave it
        unchanged until `wait()`.
    :param group: the process group; the default group when it is `None`.
    :returns: a handle. Each rank sends $\frac{N_d-1}{N_d}B$ bytes.
    :raises ValueError: if the sizes or dtypes do not fit
    """
    rank, world_size = world(group)
    full, shard = full.detach(), shard.detach()
    _refuse_misfit(full, shard, world_size)
    piece = shard.reshape(-1)
    if world_size == 1:
        # One rank has nobody to send to. So it issues no exchange, and the ledger has
        # no line for it.
        _put(full, piece)
        return PendingGather([])
    record("all-gather", world_size, full.nbytes, (world_size - 1) * shard.nbytes)
    if not full.numel():
        return PendingGather([])
    if not _on_gloo(full, group):
        take_turn(group)
        work = dist.all_gather_single(full, piece, group=group, async_op=True)
        return PendingGather(under_way(group, [work]))
    # On gloo the ranks take turns: rank $r$ broadcasts piece $r$, straight into its
    # place in `full`. gloo's own all-gather first collects the pieces in a second
    # vector of $B$ bytes and then copies them over. The bytes sent are the same,
    # because each rank is the source exactly once.
    places = full.view(world_size, -1)
    _put(places[rank], piece)
    works = []
    for source, place in enumerate(map(_as_bytes, places)):
        work = dist.broadcast(place, group=group, group_src=source, async_op=True)
        works.append(work)
    return PendingGather(works)


@dataclass(slots=True)
class PendingGather:
    """An all-gather under way. On gloo `wait` blocks the calling thread until the last piece has arrived.
    On CUDA it blocks no thread: it makes the current *stream* wait, so that kernels
    queued after it find `full` complete. Code that reads `full` on another stream needs
    a wait of its own.
    """

    works: list[Work]

    def wait(self) -> None:
        """Wait before the first read. On CUDA, without this wait, the layer would compute with whatever the
        buffer held before: wrong numbers, and no error. On gloo [the
        order](exchange_order.py#Order.watch) has waited already, and this wait returns
        at once.
        """
        for work in self.works:
            work.wait()
        self.works = []


def reduce_scatter_mean(
    full: Tensor, *, group: ProcessGroup | None = None
) -> PendingReduce:
    r"""Reduce-scatter: every rank contributes a whole gradient, each rank receives its piece of the mean.
    The mean, not the sum: with the sum, SGD on 4 ranks would take steps four times too
    long.

    >>> rank, world_size = world()
    >>> gradient = torch.tensor([1.0, 10.0]) * (rank + 1)  # rank 0: [1, 10], rank 1: [2, 20]
    >>> piece = reduce_scatter_mean(gradient).wait()
    >>> piece.tolist() == [[1.5], [15.0]][rank]
    True

    :param full: this rank's gradient of the whole vector; floating point, its number of
        elements a multiple of $N_d$. Leave it unchanged until `wait()`.
    :param group: the process group; the default group when it is `None`.
    :returns: a handle whose `wait()` gives the piece: 1-D, $\Psi/N_d$ elements, the
        dtype of `full`. Each rank sends $\frac{N_d-1}{N_d}B$ bytes.
    :raises TypeError: if `full` is not floating point
    :raises ValueError: if `full` cannot be cut into equal pieces
    """
    _, world_size = world(group)
    _refuse_uneven(full, world_size)
    dtype, flat = full.dtype, full.detach().reshape(-1)
    if world_size == 1:
        return PendingReduce([], [flat], flat, world_size, dtype)
    sent = (world_size - 1) * flat.nbytes // world_size
    record("reduce-scatter", world_size, flat.nbytes, sent)
    # gloo's own reduce-scatter sends twice as many bytes as [an exchange of the
    # pieces](exchange.py). That also moves 16-bit values as they are, and leaves the
    # order of the sum to us.
    if _on_gloo(flat, group):
        works, rows = exchange(flat, group)
        return PendingReduce(works, rows, flat, world_size, dtype)
    take_turn(group)
    # NCCL adds in the dtype it is given. In FP16, $40000 + 40000$ is infinite although
    # the mean is not: the largest finite value is 65504. In BF16 each addition of a
    # ring would round. To send FP32 instead would double the bytes. So 16-bit gradients
    # are exchanged in pieces here, too, and added in FP32.
    if dtype.itemsize < 4:
        works, rows = exchange(flat, group)
        under_way(group, works)
        return PendingReduce(works, rows, flat, world_size, dtype)
    result, works = flat.new_empty(flat.numel() // world_size), []
    if flat.numel():
        work = dist.reduce_scatter_single(result, flat, group=group, async_op=True)
        works = under_way(group, [work])
    return PendingReduce(works, [result], flat, world_size, dtype)


@dataclass(slots=True)
class PendingReduce:
    """A reduce-scatter under way. It keeps the gradient alive, because the sender still reads it: on CUDA
    the allocator would otherwise hand the memory to the next layer. PyTorch's `Work`
    keeps the tensor, too, but only until somebody waits for it.
    """

    works: list[Work]
    rows: list[Tensor]  # one for each rank, or one that is summed already
    sent: Tensor | None
    world_size: int
    dtype: torch.dtype

    def wait(self) -> Tensor:
        """Add the rows in rank order, then divide. Floating-point addition is not associative, so the
        order decides the last bits. On gloo, and for 16-bit values everywhere, it is
        the same on every run, and a reference on one process can repeat it exactly.
        Values of 32 bits and more are added by NCCL, which chooses its order itself: a
        ring starts each piece's sum at another rank.

        :returns: this rank's piece of the mean.
        :raises RuntimeError: if called a second time
        """
        if self.sent is None:
            once = "a reduce-scatter gives its result once; keep the tensor"
            raise RuntimeError(once)
        for work in self.works:
            work.wait()
        first, *others = self.rows
        # The sum gets memory of its own: a view of the first row would keep all $N_d$
        # rows alive.
        copy = bool(others) or shares_storage(first, self.sent)
        total: Tensor = first.to(_wide(self.dtype), copy=copy)
        for row in others:
            total += row
        # The backend may still refer to the rows. Shrunk, they are free all the same.
        for row in self.rows:
            if copy and not shares_storage(row, self.sent):
                row.untyped_storage().resize_(0)
        self.works = []
        self.rows = []
        self.sent = None
        total /= self.world_size
        return total.to(self.dtype)


def broadcast(
    tensor: Tensor, *, source: int = 0, group: ProcessGroup | None = None
) -> None:
    """Broadcast: one rank's values overwrite everyone's. Training starts with it, so that all ranks start
    from the same parameters.

    >>> rank, world_size = world()
    >>> seed = torch.tensor([7, 7]) if rank == 0 else torch.zeros(2, dtype=torch.int64)
    >>> broadcast(seed)
    >>> seed
    tensor([7, 7])

    :param tensor: the values on `source`, overwritten in place elsewhere; contiguous,
        any dtype.
    :param source: the rank, numbered within `group`, whose values win.
    :raises ValueError: if `source` is no rank of the group, or `tensor` is not
        contiguous
    """
    rank, world_size = world(group)
    if not 0 <= source < world_size:
        raise ValueError(f"rank {source} is not one of the group's {world_size} ranks")
    if not tensor.is_contiguous():
        raise ValueError("broadcast needs a contiguous tensor; copy it first")
    distance, tree = (rank - source) % world_size, _on_gloo(tensor, group)
    copies = broadcast_copies(distance, world_size, tree=tree)
    if world_size == 1:
        return
    record("broadcast", world_size, tensor.nbytes, copies * tensor.nbytes)
    if tensor.numel():
        start = partial(dist.broadcast, _as_bytes(tensor), group_src=source)
        _in_turn(start, tensor, group).wait()


def all_reduce(tensor: Tensor, *, group: ProcessGroup | None = None) -> None:
    """All-reduce: every rank ends with the sum. The order of the sum is the backend's, not rank order, also
    on gloo. So the stages train without it, and average [in another
    way](groups.py#all_reduce_mean) that keeps rank order on gloo. It serves for single
    numbers, such as a loss to print.

    :param tensor: replaced by the sum over all ranks; contiguous, of a numeric dtype.
    """
    rank, world_size = world(group)
    unit = tensor.element_size() if _on_gloo(tensor, group) else None
    sent = all_reduce_bytes(rank, world_size, tensor.nbytes, unit)
    if world_size == 1:
        return
    record("all-reduce", world_size, tensor.nbytes, sent)
    if tensor.numel():
        _in_turn(partial(dist.all_reduce, tensor), tensor, group).wait()


def all_reduce_max(
    tensor: Tensor, *, group: ProcessGroup | None = None
) -> PendingGather:
    """All-reduce of the largest values, started and not waited for. It serves for a few numbers on which all
    ranks have to act alike, such as [whether anybody has used a parameter](unused.py).

    >>> rank, world_size = world()
    >>> used = torch.tensor([rank, 0])
    >>> all_reduce_max(used).wait()
    >>> used
    tensor([1, 0])

    :param tensor: replaced by the largest value of any rank, element by element, by the
        time that `wait()` returns; contiguous, without NaN, since some backends lose a
        NaN here.
    :returns: a handle. Each rank sends what it sends [in an all-reduce](#all_reduce).
    """
    rank, world_size = world(group)
    if world_size == 1 or not tensor.numel():
        return PendingGather([])
    unit = tensor.element_size() if _on_gloo(tensor, group) else None
    sent = all_reduce_bytes(rank, world_size, tensor.nbytes, unit)
    record("all-reduce", world_size, tensor.nbytes, sent)
    largest: Any = dist.ReduceOp.MAX
    return _in_turn(partial(dist.all_reduce, tensor, largest), tensor, group)


def world(group: ProcessGroup | None = None) -> tuple[int, int]:
    """Ask before assuming. A process that nobody told about other ranks does not train alone in silence:
    it stops here, before it allocates anything.

    :returns: this process's rank in the group, and the group's number of ranks.
    :raises RuntimeError: if there is no process group, or this process is not in it
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed is not initialised, so there is no world size; "
            "start with torchrun and call torch.distributed.init_process_group first"
        )
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0 or world_size < 1:
        raise RuntimeError(
            "this process is not in the process group; pass one that holds it"
        )
    return rank, world_size


# sidelit: depth Two process groups on NCCL whose exchanges would be under way at the same time.


def take_turn(group: ProcessGroup | None) -> None:
    """Exchanges of two groups must not be under way at once on NCCL: their kernels occupy the device while
    they wait for other ranks, and ranks that start them in different orders wait
    forever. PyTorch therefore asks for a wait in between. Here the current stream
    waits, and no thread. gloo needs no such care.

    :param group: the group whose exchange is about to start on the current stream
    """
    for other, reference in [*_under_way.items()]:
        work = reference()
        if work is not None and other is not group:
            work.wait()


def under_way(group: ProcessGroup | None, works: list[Work]) -> list[Work]:
    """Remember the last exchange of a group for the next turn of another. A group carries out one after the
    other. An exchange that was waited for is forgotten, since later streams come after
    that wait.
    """
    for work in works:
        _under_way[group] = weakref.ref(work)
    return works


_under_way: dict[Any, weakref.ref[Work]] = {}


def _in_turn(
    start: Callable[..., Any], tensor: Tensor, group: ProcessGroup | None
) -> PendingGather:
    """Start an exchange in the turn of its group. Small ones need it as much as large ones: two kernels that
    wait for other ranks in different orders wait forever, whatever they send.
    """
    if _on_gloo(tensor, group):
        return PendingGather([start(group=group, async_op=True)])
    take_turn(group)
    return PendingGather(under_way(group, [start(group=group, async_op=True)]))


# sidelit: core


def _on_gloo(tensor: Tensor, group: ProcessGroup | None) -> bool:
    """A group may have one backend for each kind of device (`cpu:gloo,cuda:nccl`): the tensor decides."""
    backends = dist.get_backend_config(group).split(",")
    return tensor.device.type == "cpu" and "cpu:gloo" in backends


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to add in: FP32 for the formats below it, which lose or overflow what the mean would keep."""
    return torch.float32 if dtype.itemsize < 4 else dtype


# sidelit: depth Sizes and dtypes that do not fit, and values that a backend cannot send as they are.


def _refuse_misfit(full: Tensor, shard: Tensor, world_size: int) -> None:
    """Refuse pieces that do not fill the vector."""
    # Sizes are compared before anything moves, and the error says what does not fit. A
    # rank that stopped later would leave the others waiting for its piece.
    fits = full.shape == (world_size * shard.numel(),) and full.dtype == shard.dtype
    if not (fits and full.is_contiguous()):
        raise ValueError(
            f"{world_size} pieces of {shard.numel()} {shard.dtype} elements do not fill "
            f"a tensor of shape {tuple(full.shape)} and {full.dtype}"
        )


def _refuse_uneven(full: Tensor, world_size: int) -> None:
    """Refuse a gradient that has no mean, or that cannot be cut into equal pieces."""
    if not full.is_floating_point():
        raise TypeError(f"a mean needs floating-point values, not {full.dtype}")
    if full.numel() % world_size:
        cut = f"{full.numel()} elements cannot be cut into {world_size} equal pieces"
        raise ValueError(f"{cut}; pad them first")


def _put(place: Tensor, piece: Tensor) -> None:
    """Copy a rank's own piece to its place, unless the piece is a view of that place."""
    lies = [(one.storage_offset(), one.stride()) for one in (place, piece)]
    if lies[0] != lies[1] or not shares_storage(place, piece):
        place.copy_(piece)


def _as_bytes(tensor: Tensor) -> Tensor:
    """Copying needs no arithmetic, so bytes travel: that serves the dtypes which a backend cannot add."""
    # A single element counts as contiguous whatever its stride, but only a stride of 1
    # can be seen as bytes.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
