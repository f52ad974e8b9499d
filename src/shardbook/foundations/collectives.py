r"""# Collectives

> Four operations with which ranks exchange tensors, and the bytes that each rank sends in them.

Sharding saves memory and costs messages. A rank that keeps a quarter of the parameters
must fetch the other three quarters each time it computes with them. Whether that pays
is a question of bytes, so this chapter counts the bytes before the next chapters save
memory.

A **collective** is an operation that every rank of a process group calls. All ranks
make the same calls, in the same order, with tensors of the same size. Four collectives
matter in this book. In the table, $N_d$ ranks work on a vector of $B$ bytes, and a
piece is $1/N_d$ of it.

| collective | before | after | bytes sent by one rank |
|---|---|---|---|
| broadcast | one rank holds the vector | every rank holds it | $B$ for each copy it passes on |
| all-gather | rank $r$ holds piece $r$ | every rank holds all pieces | $\frac{N_d-1}{N_d}B$ |
| reduce-scatter | every rank holds its vector | rank $r$ holds piece $r$ of the sum | $\frac{N_d-1}{N_d}B$ |
| all-reduce | every rank holds its vector | every rank holds the whole sum | $2\frac{N_d-1}{N_d}B$ |

**A sum through one rank.** Four ranks each hold a gradient of 4 MB, and all of them
need the sum. Rank 0 could collect the gradients, add them and send the sum back. The
other ranks send 4 MB each, but rank 0 sends 12 MB, one copy to each of the three.
Everyone waits for the link of rank 0.

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
this book. ZeRO computes between the two halves. After the first half each rank holds
one finished piece of the gradient, and updates that piece of the parameters. Only then
do the ranks gather the result. The [ZeRO paper](bib:rajbhandari2020zero) counts, for
$\Psi$ parameters and many ranks, about $2\Psi$ elements a step in both cases. If the
parameters are sharded, too, it counts $3\Psi$: one all-gather for the forward pass, one
for the backward pass, and one reduce-scatter for the gradients.

:figure: collectives_before_after
:notation $N_d$: `world_size`, the number of ranks in the process group
:notation $r$: `rank`, the number of one rank, from 0 to $N_d - 1$
:notation $B$: `nbytes`, the size of a whole vector in bytes
:notation $\Psi$: `numel`, the number of parameters
"""

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
from shardbook.foundations.torch_versions import (
    start_all_gather,
    start_reduce_scatter,
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


def all_gather(
    full: Tensor, shard: Tensor, *, group: ProcessGroup | None = None
) -> PendingGather:
    r"""Start an all-gather, in which every rank contributes a piece and receives the
    whole vector.

    The call returns at once, so the ranks compute while the pieces are sent. Read
    `full` only after `wait()`.

    The example, like all in this chapter, runs on two ranks at once.

    >>> rank, world_size = world()
    >>> full = torch.empty(2)
    >>> all_gather(full, torch.tensor([rank + 1.0])).wait()
    >>> full
    tensor([1., 2.])

    :param full: receives the pieces in rank order; 1-D, contiguous, $N_d$ times as long
        as `shard`
    :param shard: this rank's piece, of the dtype of `full`; any dtype. Do not change it
        before `wait()`
    :param group: the process group; `None` means the default group
    :returns: a handle. Each rank sends $\frac{N_d-1}{N_d}B$ bytes.
    :raises ValueError: if the sizes or dtypes do not fit
    """
    rank, world_size = world(group)
    full, shard = full.detach(), shard.detach()
    _refuse_misfit(full, shard, world_size)
    piece = shard.reshape(-1)
    if world_size == 1:
        # A single rank has no partner. So it issues no exchange, and the ledger has no
        # line for it.
        _put(full, piece)
        return PendingGather([])
    record("all-gather", world_size, full.nbytes, (world_size - 1) * shard.nbytes)
    if not full.numel():
        return PendingGather([])
    if not _on_gloo(full, group):
        take_turn(group)
        work = start_all_gather(full, piece, group=group)
        return PendingGather(under_way(group, [work]))
    # On gloo the ranks take turns: rank $r$ broadcasts piece $r$, straight into its
    # place in `full`. gloo's own all-gather would first collect the pieces in a second
    # vector of $B$ bytes and then copy them. The bytes sent are the same, because each
    # rank is the source exactly once.
    places = full.view(world_size, -1)
    _put(places[rank], piece)
    works = []
    for source, place in enumerate(map(_as_bytes, places)):
        work = dist.broadcast(place, group=group, group_src=source, async_op=True)
        works.append(work)
    return PendingGather(works)


@dataclass(slots=True)
class PendingGather:
    """An all-gather under way.

    On gloo `wait` blocks the calling thread until the last piece has arrived. On CUDA
    it blocks no thread. It makes the current *stream* wait, so that kernels that are
    queued later find `full` complete. Code that reads `full` on another stream needs a
    wait of its own.
    """

    works: list[Work]

    def wait(self) -> None:
        """Wait for the pieces, before the first read of `full`.

        On CUDA, without this wait, a layer would compute with the previous content of
        `full`: wrong numbers, and no error. On gloo [the order
        check](exchange_order.py#Order.watch) has waited already, so this wait returns
        at once.
        """
        for work in self.works:
            work.wait()
        self.works = []


def reduce_scatter_mean(
    full: Tensor, *, group: ProcessGroup | None = None
) -> PendingReduce:
    r"""Start a reduce-scatter, in which every rank contributes a whole gradient and
    receives its piece of the mean.

    It gives the mean, not the sum: with the sum, SGD on 4 ranks would take steps four
    times too long.

    >>> rank, world_size = world()
    >>> gradient = torch.tensor([1.0, 10.0]) * (rank + 1)  # rank 0: [1, 10], rank 1: [2, 20]
    >>> piece = reduce_scatter_mean(gradient).wait()
    >>> piece.tolist() == [[1.5], [15.0]][rank]
    True

    :param full: this rank's gradient of the whole vector; floating point, its number of
        elements a multiple of $N_d$. Do not change it before `wait()`
    :param group: the process group; `None` means the default group
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
    # pieces](exchange.py). The exchange also sends 16-bit values as they are, and lets
    # this rank choose the order of the sum.
    if _on_gloo(flat, group):
        works, rows = exchange(flat, group)
        return PendingReduce(works, rows, flat, world_size, dtype)
    take_turn(group)
    # NCCL adds in the dtype that it is given. In FP16, $40000 + 40000$ is infinite
    # although the mean is not, since the largest finite value is 65504. In BF16 a ring
    # would round after each addition. FP32 would avoid both, but it would double the
    # bytes. So 16-bit gradients are exchanged in pieces here, too, and added in FP32.
    if dtype.itemsize < 4:
        works, rows = exchange(flat, group)
        under_way(group, works)
        return PendingReduce(works, rows, flat, world_size, dtype)
    result, works = flat.new_empty(flat.numel() // world_size), []
    if flat.numel():
        work = start_reduce_scatter(result, flat, group=group)
        works = under_way(group, [work])
    return PendingReduce(works, [result], flat, world_size, dtype)


@dataclass(slots=True)
class PendingReduce:
    """A reduce-scatter under way.

    It keeps the gradient in memory while the exchange still reads it. Otherwise on CUDA
    the allocator would give the gradient's memory to the next layer. PyTorch's `Work`
    keeps the tensor, too, but only until `wait` is called.
    """

    works: list[Work]
    rows: list[Tensor]  # one for each rank, or one that is summed already
    sent: Tensor | None
    world_size: int
    dtype: torch.dtype

    def wait(self) -> Tensor:
        """Wait for the rows, add them in rank order, and divide by the number of ranks.

        Floating-point addition is not associative, so the order decides the last bits.
        On gloo, and for 16-bit values everywhere, the order is the same in every run,
        and a reference on one process can repeat it exactly. Values of 32 bits and more
        are added by NCCL, which chooses the order itself: a ring starts each piece's
        sum at another rank.

        :returns: this rank's piece of the mean
        :raises RuntimeError: if called a second time
        """
        if self.sent is None:
            once = "a reduce-scatter gives its result once; keep the tensor"
            raise RuntimeError(once)
        for work in self.works:
            work.wait()
        first, *others = self.rows
        # The sum gets memory of its own, because a view of the first row would keep all
        # $N_d$ rows in memory.
        copy = bool(others) or shares_storage(first, self.sent)
        total: Tensor = first.to(_wide(self.dtype), copy=copy)
        for row in others:
            total += row
        # The backend may still refer to the rows. Shrinking their storage frees the
        # memory all the same.
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
    """Broadcast the values of one rank to all others.

    Training starts with a broadcast, so that all ranks start from the same parameters.

    >>> rank, world_size = world()
    >>> seed = torch.tensor([7, 7]) if rank == 0 else torch.zeros(2, dtype=torch.int64)
    >>> broadcast(seed)
    >>> seed
    tensor([7, 7])

    :param tensor: the values on `source`, which overwrite those of the other ranks in
        place; contiguous, any dtype
    :param source: the rank whose values are sent, numbered within `group`
    :param group: the process group; `None` means the default group
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
    """Replace a tensor on every rank by the sum over all ranks.

    The backend chooses the order of the sum, which is not rank order even on gloo. So
    the stages do not train with this function. They average [in another
    way](groups.py#all_reduce_mean), which keeps rank order on gloo. This one is for
    single numbers, such as a loss to print.

    :param tensor: replaced by the sum over all ranks; contiguous, of a numeric dtype
    :param group: the process group; `None` means the default group
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
    """Start an all-reduce that keeps the largest value of any rank.

    It serves for a few numbers on which all ranks must act alike, such as [whether any
    rank has used a parameter](unused.py).

    >>> rank, world_size = world()
    >>> used = torch.tensor([rank, 0])
    >>> all_reduce_max(used).wait()
    >>> used
    tensor([1, 0])

    :param tensor: replaced by the largest value of any rank, element by element, by the
        time that `wait()` returns; contiguous, without NaN, since some backends lose a
        NaN here
    :returns: a handle. Each rank sends as much as [in an all-reduce](#all_reduce).
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
    """This process's rank in a group, and the group's number of ranks.

    Without a process group this function raises an error. A script that was started
    without torchrun would otherwise train alone, and nothing would say so.

    :returns: the rank and the number of ranks
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
    """Wait for other groups on NCCL before an exchange of this group starts.

    On NCCL, exchanges of two groups must not be under way at once. Their kernels occupy
    the device while they wait for other ranks, so ranks that start them in different
    orders wait forever. PyTorch therefore asks programs to wait in between. Here the
    current stream waits, and no thread does. gloo needs no such wait.

    :param group: the group whose exchange is about to start on the current stream
    """
    for other, reference in [*_under_way.items()]:
        work = reference()
        if work is not None and other is not group:
            work.wait()


def under_way(group: ProcessGroup | None, works: list[Work]) -> list[Work]:
    """Record the last exchange of a group, for which other groups wait.

    A group runs its exchanges one after the other, so the last one is enough. An
    exchange that was waited for is dropped from the record, since later work comes
    after that wait.
    """
    for work in works:
        _under_way[group] = weakref.ref(work)
    return works


_under_way: dict[Any, weakref.ref[Work]] = {}


def _in_turn(
    start: Callable[..., Any], tensor: Tensor, group: ProcessGroup | None
) -> PendingGather:
    """Start an exchange after those of other groups.

    Small exchanges need that as much as large ones: two kernels that wait for other
    ranks in different orders wait forever, whatever they send.
    """
    if _on_gloo(tensor, group):
        return PendingGather([start(group=group, async_op=True)])
    take_turn(group)
    return PendingGather(under_way(group, [start(group=group, async_op=True)]))


# sidelit: core


def _on_gloo(tensor: Tensor, group: ProcessGroup | None) -> bool:
    """Whether gloo exchanges a tensor.

    A group may have one backend for each kind of device (`cpu:gloo,cuda:nccl`), so the
    tensor's device decides.
    """
    backends = dist.get_backend_config(group).split(",")
    return f"{tensor.device.type}:gloo" in backends


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a sum: FP32 for narrower dtypes, in which the sum could overflow or lose digits."""
    return torch.float32 if dtype.itemsize < 4 else dtype


# sidelit: depth Sizes and dtypes that do not fit, and values that a backend cannot send as they are.


def _refuse_misfit(full: Tensor, shard: Tensor, world_size: int) -> None:
    """Refuse pieces that do not fill the vector."""
    # Sizes are compared before anything is sent, and the error says what does not fit.
    # If a rank stopped later, the others would wait for its piece.
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
    """A tensor as bytes, so that a backend can send dtypes that it cannot add."""
    # A single element counts as contiguous whatever its stride, but only with a stride
    # of 1 can it be viewed as bytes.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
