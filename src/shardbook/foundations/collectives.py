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

A backend may send more than the table says. gloo's reduce-scatter sends twice as much,
so on gloo the ranks [send each other pieces](#module/all-to-all-instead-of) instead. [A
ledger](#module/the-byte-ledger) counts what each rank sends. If the links between
machines are slow, [groups of ranks](#module/ranks-that-share-a-model) can each hold a
copy of the model, so that less is sent over these links.

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
training runs the two halves without a pause, and so does [stage 0](unit.py#module/stage-0) of
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
:notation $R$: `copies`, the number of replicas
:notation $k$: the number of a round of a broadcast, from 0
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work
from torch.distributed.device_mesh import DeviceMesh

from shardbook.foundations.streams import ask_for_large_pages
from shardbook.foundations.torch_private import (
    shares_storage,
    start_all_gather,
    start_reduce_scatter,
)

__all__ = [
    "Call",
    "Groups",
    "Ledger",
    "Mean",
    "PendingGather",
    "PendingPart",
    "PendingReduce",
    "all_gather",
    "all_gather_together",
    "all_reduce",
    "all_reduce_bytes",
    "all_reduce_max",
    "all_reduce_mean",
    "broadcast",
    "broadcast_copies",
    "exchange",
    "groups_of",
    "ledger",
    "record",
    "record_move",
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
    # Sizes are compared before anything is sent. If a rank stopped later, the others
    # would wait for its piece.
    fits = full.shape == (world_size * shard.numel(),) and full.dtype == shard.dtype
    if not (fits and full.is_contiguous()):
        refuse_misfit(full, shard, world_size)
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
    for source, place in enumerate(_as_bytes(full).view(world_size, -1)):
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


def all_gather_together(
    fulls: Sequence[Tensor],
    shards: Sequence[Tensor],
    *,
    group: ProcessGroup | None = None,
) -> list[PendingPart]:
    r"""Start one all-gather for several vectors.

    [Small units](unit.py#gather_together) are gathered this way. Each rank puts its
    pieces side by side and sends them at once. Until the last vector has been filled,
    the pieces exist twice.

    >>> rank, world_size = world()
    >>> fulls = [torch.empty(2), torch.empty(4)]
    >>> shards = [torch.tensor([rank]), torch.tensor([rank, rank + 10])]
    >>> for part in all_gather_together(fulls, [shard.float() for shard in shards]):
    ...     part.wait()
    >>> [full.tolist() for full in fulls]
    [[0.0, 1.0], [0.0, 10.0, 1.0, 11.0]]

    :param fulls: the vectors, each as for [`all_gather`](#all_gather), all of one dtype
    :param shards: this rank's piece of each
    :param group: the process group; `None` means the default group
    :returns: a handle for each vector, to be waited for in any order. Together each rank
        sends as many bytes as in separate exchanges.
    """
    rank, world_size = world(group)
    flat = [shard.detach().reshape(-1) for shard in shards]
    places = [full.detach().view(world_size, -1) for full in fulls]
    for place, piece in zip(places, flat, strict=True):
        _put(place[rank], piece)
    pieces = torch.cat(flat)
    whole = pieces.new_empty(world_size * pieces.numel())
    exchange = all_gather(whole, pieces, group=group)
    sizes = [piece.numel() for piece in flat]
    columns = whole.view(world_size, -1).split(sizes, dim=1)
    # This rank's own row is in its place already. A second copy could come too late:
    # where `shard` is a view into `full`, a program may have changed it by then.
    others = [slice(0, rank), slice(rank + 1, world_size)]
    return [
        PendingPart(exchange, [(place[rows], column[rows]) for rows in others])
        for place, column in zip(places, columns, strict=True)
    ]


@dataclass(slots=True)
class PendingPart:
    """One vector of an all-gather of several that is under way.

    :param exchange: the all-gather
    :param copies: the places of the other ranks' pieces, and where they arrive
    """

    exchange: PendingGather
    copies: list[tuple[Tensor, Tensor]]

    @property
    def works(self) -> list[Work]:
        """What is still to be waited for."""
        return self.exchange.works

    def wait(self) -> None:
        """Wait [for all of the pieces](#PendingGather.wait), and fill the vector."""
        self.exchange.wait()
        for place, arrived in self.copies:
            place.copy_(arrived)
        self.copies = []


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
    if not full.is_floating_point() or full.numel() % world_size:
        refuse_uneven(full, world_size)
    dtype, flat = full.dtype, full.detach().reshape(-1)
    if world_size == 1:
        return PendingReduce([], [flat], flat, world_size, dtype)
    sent = (world_size - 1) * flat.nbytes // world_size
    record("reduce-scatter", world_size, flat.nbytes, sent)
    # gloo's own reduce-scatter sends twice as many bytes as [an exchange of the
    # pieces](collectives.py#module/all-to-all-instead-of). The exchange also sends
    # 16-bit values as they are, and lets this rank choose the order of the sum.
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
        # In a narrower dtype than FP32 the sum could overflow or lose digits.
        wide = torch.float32 if self.dtype.itemsize < 4 else self.dtype
        total: Tensor = first.to(wide, copy=copy)
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
    way](collectives.py#all_reduce_mean), which keeps rank order on gloo. This one is for
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


# sidelit: depth Sizes and dtypes that do not fit, and values that a backend cannot send as they are.


def refuse_misfit(full: Tensor, shard: Tensor, world_size: int) -> NoReturn:
    """Refuse pieces that do not fill the vector."""
    raise ValueError(
        f"{world_size} pieces of {shard.numel()} {shard.dtype} elements do not fill "
        f"a tensor of shape {tuple(full.shape)} and {full.dtype}"
    )


def refuse_uneven(full: Tensor, world_size: int) -> NoReturn:
    """Refuse a gradient that has no mean, or that cannot be cut into equal pieces."""
    if not full.is_floating_point():
        raise TypeError(f"a mean needs floating-point values, not {full.dtype}")
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


# sidelit: core


# ## All-to-all instead of reduce-scatter
#
# > On gloo, and for 16-bit values everywhere, ranks send each other pieces, and each adds up its own.
#
# A [reduce-scatter](collectives.py#reduce_scatter_mean) leaves each rank its piece of the
# sum of all ranks' vectors. gloo has a reduce-scatter, but it runs a whole all-reduce and
# throws most of the result away. So it sends $2\frac{N_d-1}{N_d}B$ bytes, twice as many
# as needed. An **all-to-all** sends only what is needed. Each rank cuts its vector into
# $N_d$ pieces, one for each rank, and sends every other rank the piece that belongs to
# it. The receiver adds the pieces up. It can add them in rank order, so the result is the
# same in every run.
#
# The receiver can also choose the dtype of the sum. NCCL's reduce-scatter adds in the
# dtype of the values that are sent. With 16-bit gradients it would add in 16 bits, or
# need twice the bytes to send FP32. In an all-to-all the values are sent in 16 bits and
# added in FP32. The price is memory: the rows that arrive take as many bytes as the
# vector, while a reduce-scatter needs only the result.
#
# One of the $N_d$ pieces belongs to the rank itself and need not be sent. An all-to-all
# would copy it into the memory of the received rows. With two ranks, this copy would be
# half of these rows, so it is avoided where possible.


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


# ## Ranks that share a model, and ranks that repeat it
#
# > All ranks can share one copy of a model, or groups of ranks can each hold a copy.
#
# Eight ranks on one machine exchange vectors faster than eight machines do. In stage 3 a
# unit is gathered twice in a step, so the ranks that share it should be on one machine.
# For that you pass a mesh of two dimensions. The ranks of one row share one copy of the
# model, and the ranks of one column hold the same part of different copies, the
# *replicas*. In this example each row is a machine:
#
# | | shard 0 | shard 1 |
# |---|---|---|
# | **replica 0** | rank 0 | rank 1 |
# | **replica 1** | rank 2 | rank 3 |
#
# A gradient is averaged along the row first, which leaves each rank $1/N_d$ of it, and
# then along the column. Only this part is sent between the machines. For a vector of $B$
# bytes and $R$ replicas a rank sends in each step
#
# $$2\,\frac{R-1}{R}\,\frac{B}{N_d}$$
#
# bytes to other machines. One copy over all ranks would instead send every gather over
# the slow links between the machines. The replicas cost memory, too: each machine stores
# a whole copy.
#
# The mean takes three exchanges: a reduce-scatter along the row, then a reduce-scatter
# and an all-gather along the column. If a rank waited for each of them at once, no
# computation would hide the last two. So [the scheduler](scheduler.py#Scheduler.advance)
# starts each one when the next unit's gradients are ready, and the rank computes
# meanwhile.
#
# One group may reduce while another gathers. On NCCL that is safe only if all ranks run
# the exchanges of both groups in one order. So [the order](exchange_order.py) covers all
# exchanges of a mesh and is the same on each of its ranks. And an exchange of one group
# [waits for that of the other](collectives.py#take_turn).


@dataclass(frozen=True, slots=True)
class Groups:
    """The process groups to which one rank of a sharded model belongs.

    As everywhere in `torch.distributed`, `None` is the group of all ranks.

    :param shards: the ranks that share one copy of the model: a row of the mesh
    :param everyone: the ranks of all copies
    :param replicas: the ranks that hold the same part of other copies: a column of the
        mesh; `None` if there is one copy only
    :param copies: the number of copies of the model
    """

    shards: Any = None
    everyone: Any = None
    replicas: Any = None
    copies: int = 1

    def repeated(self) -> Groups:
        """The same ranks in groups that share nothing, so that every rank holds a copy of the model."""
        return Groups(shards=self.everyone, everyone=self.everyone)

    def partners(self) -> dict[str, Sequence[int]]:
        """The ranks that take part in an exchange with this one, where these are not
        all ranks.

        :returns: the ranks, by [the action](exchange_order.py#Order.before) of the
            exchange
        """
        if self.copies == 1:
            return {}
        row = dist.get_process_group_ranks(self.shards)
        column = dist.get_process_group_ranks(self.replicas)
        return {**dict.fromkeys(IN_ROWS, row), **dict.fromkeys(BETWEEN_COPIES, column)}

    def copy_from_first(self, tensor: Tensor) -> None:
        """Overwrite a tensor on every rank with the values of the first rank.

        The values are sent down the first column and then along each row.
        """
        if self.replicas is not None:
            broadcast(tensor, source=0, group=self.replicas)
        broadcast(tensor, source=0, group=self.shards)

    def mean(self, vector: Tensor) -> Mean:
        """Start to average a gradient over the rows and over all copies of the model.

        :param vector: as for
            [`reduce_scatter_mean`](collectives.py#reduce_scatter_mean)
        """
        exchanges = self.exchanges(vector)
        later = BETWEEN_COPIES if self.copies > 1 else ()
        return Mean(exchanges, list(later), next(exchanges))

    def exchanges(self, vector: Tensor) -> Generator[list[Work], None, Tensor]:
        """The exchanges of a mean, one after the other.

        Each one is started before the generator yields. The generator waits for its end
        only when it is resumed.
        """
        row = reduce_scatter_mean(vector, group=self.shards)
        yield row.works
        piece = row.wait()
        if self.copies > 1:
            yield from all_reduce_mean(piece, group=self.replicas)
        return piece


# The actions of a mesh's exchanges, as they are named in the common order.
IN_ROWS = ("gather", "reduce")
BETWEEN_COPIES = ("average the copies of", "gather the average of")


@dataclass(slots=True)
class Mean:
    """A mean under way.

    :param exchanges: its exchanges, of which the first one is started
    :param later: the actions of the others [in the common
        order](exchange_order.py#Order.before)
    :param works: the exchange under way
    """

    exchanges: Generator[list[Work], None, Tensor]
    later: list[str]
    works: list[Work]

    def advance(self) -> Tensor | None:
        """Wait for the exchange under way, and start the next, if there is one.

        :returns: the mean after the last exchange, else `None`
        """
        del self.later[:1]
        try:
            self.works = next(self.exchanges)
        except StopIteration as end:
            self.works = []
            mean: Tensor = end.value
            return mean
        return None

    # sidelit: depth A backward pass that failed while its mean was under way.

    def abandon(self) -> None:
        """Wait for the exchange under way, and start no other."""
        for work in self.works:
            work.wait()


def groups_of(mesh: Any) -> Groups:
    """The groups of a process group or of a mesh.

    :param mesh: `None`, a process group, or a `DeviceMesh`. Of two dimensions the first
        repeats the model and the second shards it, as in PyTorch's `fully_shard`.
    :raises ValueError: if the mesh has more than two dimensions, or its ranks are in
        another order than PyTorch numbers them
    :raises TypeError: if it is neither a mesh nor a group
    """
    refuse_unfit_mesh(mesh)
    if not isinstance(mesh, DeviceMesh):
        return Groups(shards=mesh, everyone=mesh)
    if mesh.ndim == 1:
        return Groups(shards=mesh.get_group(), everyone=mesh.get_group())
    # If the mesh holds all ranks, the default group serves for them. If it holds only
    # some, these ranks alone form a group, because no other rank calls this function.
    everyone = None
    if mesh.size() < dist.get_world_size():
        everyone = dist.new_group(
            mesh.mesh.flatten().tolist(), use_local_synchronization=True
        )
    replicas = mesh.get_group(0)
    return Groups(mesh.get_group(1), everyone, replicas, copies=world(replicas)[1])


def all_reduce_mean(
    vector: Tensor, *, group: Any = None
) -> Generator[list[Work], None, None]:
    r"""The two exchanges that replace a vector by its mean over the ranks, on every
    rank.

    A reduce-scatter averages the vector piece by piece. An all-gather then puts the
    pieces together, straight into the vector that was sent. On gloo the values are
    added in rank order, as in
    [`reduce_scatter_mean`](collectives.py#reduce_scatter_mean).

    :param vector: 1-D, floating point, its number of elements a multiple of the number
        of ranks
    :param group: the process group; `None` means the default group
    """
    reducing = reduce_scatter_mean(vector, group=group)
    yield reducing.works
    gathering = all_gather(vector, reducing.wait(), group=group)
    yield gathering.works
    gathering.wait()


# sidelit: depth A mesh of more than two dimensions, or one whose ranks are not in order.


def refuse_unfit_mesh(mesh: Any) -> None:
    """Refuse a mesh that names no groups of ranks."""
    if not isinstance(mesh, DeviceMesh | dist.ProcessGroup | None):
        raise TypeError(
            f"mesh={mesh!r} is neither a DeviceMesh nor a process group; "
            "pass one of them, or None for all ranks"
        )
    if not isinstance(mesh, DeviceMesh) or mesh.ndim == 1:
        return
    if mesh.ndim > 2:
        raise ValueError(
            f"a mesh of {mesh.ndim} dimensions is not supported; "
            "pass the two of them that replicate and shard the model"
        )
    # PyTorch sorts the ranks of each group. In a mesh that is not sorted, the ranks of
    # one column would hold different parts, and would average these with each other.
    ranks = mesh.mesh
    if any((ranks.diff(dim=dim) < 0).any() for dim in (0, 1)):
        raise ValueError(
            f"the ranks of the mesh {ranks.tolist()} are not in order; "
            "let them grow along each row and down each column"
        )


# sidelit: core


# ## The byte ledger
#
# > The ledger counts the bytes that each rank sends. Tests compare it with the system's own counters.
#
# The formulas of [the collectives](collectives.py) give the bytes that a collective must
# move. A library may move more: gloo's reduce-scatter sends twice as much as the formula,
# and its result is right all the same. Only a count shows the difference. On gloo, tests
# compare the ledger with such counts. On NCCL its figures are those of a ring, computed
# from the sizes and not counted.
#
# The ledger counts the **payload that this process hands to the network**. Message
# headers are left out, which are 48 bytes a message on gloo. Left out, too, are the few
# short messages of [the check of the order](exchange_order.py), most of which are sent in
# the first step. Two tests compare the ledger with the kernel. In a network namespace
# without other traffic, the bytes of the loopback device must equal the sum of all ranks'
# ledgers. And the bytes that the kernel has sent on one process's sockets must equal that
# rank's ledger.


@contextmanager
def ledger() -> Iterator[Ledger]:
    r"""Count the bytes that this process sends while the block runs.

    Ledgers may nest. Each of them counts all calls of its own block. On two ranks, an
    all-reduce of 1000 FP32 values sends $2 \cdot \frac{1}{2} \cdot 4000$ bytes:

    >>> from shardbook.foundations.collectives import all_reduce
    >>> with ledger() as book:
    ...     all_reduce(torch.ones(1000))
    >>> book.sent, book.total
    ({'all-reduce': 4000}, 4000)
    """
    # Backward hooks may run in a thread of autograd's. A ledger of the thread that
    # opened it would miss every gradient. So the list of open ledgers is shared by the
    # whole process.
    book = Ledger()
    _open_ledgers.append(book)
    try:
        yield book
    finally:
        _open_ledgers[:] = [other for other in _open_ledgers if other is not book]


@dataclass(slots=True)
class Ledger:
    """The calls, in order, and their sums.

    The order matters as much as the bytes. Whether a gather was issued before or after
    a computation shows whether it was prefetched or waited for.
    """

    calls: list[Call] = field(default_factory=list)
    moves: list[tuple[str, int]] = field(default_factory=list)

    @property
    def sent(self) -> dict[str, int]:
        """The bytes that this process has sent, for each collective."""
        sums: dict[str, int] = {}
        for call in self.calls:
            sums[call.collective] = sums.get(call.collective, 0) + call.sent
        return sums

    @property
    def total(self) -> int:
        """The bytes that this process has sent, over all collectives."""
        return sum(self.sent.values())

    @property
    def moved(self) -> dict[str, int]:
        """The bytes [moved between host and device](offload.py), for each kind of move.

        They are no part of `total`, since they never reach the network.
        """
        sums: dict[str, int] = {}
        for kind, nbytes in self.moves:
            sums[kind] = sums.get(kind, 0) + nbytes
        return sums


@dataclass(frozen=True, slots=True)
class Call:
    """One line of the ledger.

    `payload` is $B$, the size of the whole vector in bytes. `sent` is the number of
    bytes that this rank sends, in the dtype in which the values are sent.
    """

    collective: str
    world_size: int
    payload: int
    sent: int


_open_ledgers: list[Ledger] = []


def record(collective: str, world_size: int, payload: int, sent: int) -> None:
    for book in _open_ledgers:
        book.calls.append(Call(collective, world_size, payload, sent))


def record_move(kind: str, nbytes: int) -> None:
    for book in _open_ledgers:
        book.moves.append((kind, nbytes))


def broadcast_copies(distance: int, world_size: int, *, tree: bool) -> int:
    """The number of copies that a rank sends on in a broadcast.

    It depends on the rank's distance from the source. On gloo the number of ranks that
    hold the values doubles in every round: of four ranks, the source sends to 1 and 2,
    and 1 sends to 3. Other backends are counted as a chain, in which every rank but the
    last sends one copy.

    >>> [broadcast_copies(distance, 4, tree=True) for distance in range(4)]
    [2, 1, 0, 0]
    >>> [broadcast_copies(distance, 4, tree=False) for distance in range(4)]
    [1, 1, 1, 0]
    """
    if not tree:
        return int(distance + 1 < world_size)
    # A rank receives its copy in the round given by the highest bit of its distance.
    # After that, in each round $k$, it sends a copy to the rank that is $2^k$ further.
    rounds = range(distance.bit_length(), (world_size - 1).bit_length())
    return sum(distance + 2**k < world_size for k in rounds)


def all_reduce_bytes(rank: int, world_size: int, nbytes: int, unit: int | None) -> int:
    r"""The bytes that a rank sends in an all-reduce.

    In a ring these are $2\frac{N_d-1}{N_d}B$ bytes, exactly so if the pieces are equal.
    gloo cuts each piece into two or more segments of at most 1 MiB, so that it can add
    one segment while the next is sent. The segments are rounded up to whole elements.
    So the last pieces may be short, or empty if the tensor is a single number. In each
    of the two halves a rank sends every piece but one.

    >>> [all_reduce_bytes(rank, 4, 4096, 4) for rank in range(4)]
    [6144, 6144, 6144, 6144]
    >>> [all_reduce_bytes(rank, 4, 4, 4) for rank in range(4)]  # a single FP32 value
    [4, 4, 8, 8]

    :param unit: the bytes of one element on gloo, which cuts no element in two; `None`
        on other backends
    """
    if not nbytes or unit is None:
        return 2 * (world_size - 1) * nbytes // world_size
    segments = max(2, -(-nbytes // (world_size * 2**20)))
    piece = segments * unit * -(-nbytes // (world_size * segments * unit))
    starts = range(0, world_size * piece, piece)
    lengths = [min(max(nbytes - start, 0), piece) for start in starts]
    return 2 * nbytes - lengths[rank] - lengths[rank - 1]
