"""# Collectives"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

_LOW = (torch.float16, torch.bfloat16)
_open_ledgers: list[Ledger] = []


def world(group: ProcessGroup | None = None) -> tuple[int, int]:
    """This process's rank in the group, and the number of ranks."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "torch.distributed is not initialised, so there is no world size; "
            "start the script with torchrun and call init_process_group first"
        )
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0 or size < 1:
        raise RuntimeError(
            "this process is not a rank of the given process group; pass a group it belongs to"
        )
    return rank, size


def broadcast(tensor: Tensor, *, source: int = 0, group: ProcessGroup | None = None) -> None:
    """Copy `tensor` of group rank `source` to every rank."""
    rank, size = world(group)
    if not tensor.numel():
        return
    _record(
        "broadcast",
        size,
        tensor.nbytes,
        _copies_sent(rank, size, source, _backend(tensor, group)) * tensor.nbytes,
    )
    dist.broadcast(tensor, group=group, group_src=source)


def all_gather(full: Tensor, shard: Tensor, *, group: ProcessGroup | None = None) -> Work | None:
    """Start writing every rank's `shard`, in rank order, into `full`."""
    _, size = world(group)
    if full.numel() != size * shard.numel() or full.dtype != shard.dtype:
        raise ValueError(
            f"all_gather of {size} shards of {shard.numel()} {shard.dtype} does not fit "
            f"a buffer of {full.numel()} {full.dtype}"
        )
    if not shard.numel():
        return None
    _record("all-gather", size, full.nbytes, (size - 1) * shard.nbytes)
    work: Work | None = dist.all_gather_single(full, shard, group=group, async_op=True)
    return work


@dataclass(slots=True)
class PendingReduce:
    """A reduce-scatter under way."""

    work: Work | None
    received: Tensor | None
    size: int
    dtype: torch.dtype
    pieces: int
    sent: Tensor | None

    def wait(self) -> Tensor:
        """Return this rank's piece of the mean."""
        if self.received is None:
            raise RuntimeError("this reduce-scatter has already been waited for")
        if self.work is not None:
            self.work.wait()
        pieces = self.received.view(self.pieces, -1)
        total = pieces[0].to(_accumulator(self.dtype), copy=True)
        for piece in pieces[1:]:
            total.add_(piece)
        self.work = self.received = self.sent = None
        return total.div_(self.size).to(self.dtype)


def reduce_scatter_mean(full: Tensor, *, group: ProcessGroup | None = None) -> PendingReduce:
    """Start averaging `full` over the ranks; each rank gets one piece."""
    _, size = world(group)
    if not full.is_floating_point():
        raise TypeError(f"a mean needs floating-point values, not {full.dtype}")
    if full.numel() % size:
        raise ValueError(f"{full.numel()} values do not split into {size} equal pieces; pad the vector first")
    full, dtype = full.detach().reshape(-1), full.dtype
    if _backend(full, group) == "gloo":
        received, pieces = torch.empty_like(full), size
    else:
        full = full.to(_accumulator(full.dtype))
        received, pieces = full.new_empty(full.numel() // size), 1
    work = None
    if full.numel():
        _record("reduce-scatter", size, full.nbytes, (size - 1) * full.nbytes // size)
        if pieces == size:
            work = dist.all_to_all_single(received, full, group=group, async_op=True)
        else:
            work = dist.reduce_scatter_single(received, full, group=group, async_op=True)
    return PendingReduce(work, received, size, dtype, pieces, full)


def all_reduce(tensor: Tensor, *, group: ProcessGroup | None = None) -> None:
    """Replace `tensor` on every rank by the sum over ranks."""
    _, size = world(group)
    if not tensor.numel():
        return
    _record("all-reduce", size, tensor.nbytes, 2 * (size - 1) * tensor.nbytes // size)
    dist.all_reduce(tensor, group=group)


@dataclass(frozen=True, slots=True)
class Call:
    """One collective."""

    collective: str
    group_size: int
    payload: int
    sent: int


@dataclass(slots=True)
class Ledger:
    """Bytes this process sent."""

    calls: list[Call] = field(default_factory=list)

    @property
    def sent(self) -> dict[str, int]:
        """Bytes by collective."""
        totals: dict[str, int] = {}
        for call in self.calls:
            totals[call.collective] = totals.get(call.collective, 0) + call.sent
        return totals

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(call.sent for call in self.calls)


@contextmanager
def ledger() -> Iterator[Ledger]:
    """Count what this process sends inside the block."""
    book = Ledger()
    _open_ledgers.append(book)
    try:
        yield book
    finally:
        _open_ledgers[:] = [other for other in _open_ledgers if other is not book]


def _record(collective: str, group_size: int, payload: int, sent: int) -> None:
    for book in _open_ledgers:
        book.calls.append(Call(collective, group_size, payload, sent))


def _backend(tensor: Tensor, group: ProcessGroup | None) -> str:
    pairs = (pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return dict(pairs)[tensor.device.type]


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _LOW else dtype


def _copies_sent(rank: int, size: int, source: int, backend: str) -> int:
    virtual = (rank - source) % size
    if backend != "gloo":
        return int(virtual + 1 < size)
    steps = range(virtual.bit_length(), (size - 1).bit_length())
    return sum(virtual + (1 << step) < size for step in steps)
