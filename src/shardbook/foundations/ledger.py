r"""# The byte ledger

> What each rank sends, written down call by call, and held against the operating system's own counters.

The formulas of [the collectives](collectives.py) say what a collective has to move. A
library may move more: gloo's reduce-scatter sends twice what its name promises, and its
result is right all the same. Only a count shows it. On gloo the ledger is held against
such counts. On NCCL its figures are those of a ring, computed from the sizes and not
counted.

The ledger counts **payload that this process hands to the network**. Message headers
are left out: 48 bytes a message on gloo. So are the few short questions that ranks [ask
each other](exchange_order.py) through the store, most of them in the first step. Two
tests hold the figures against the kernel. In a network namespace where nothing else
talks, the bytes of the loopback device must equal the sum of all ranks' ledgers. And
for each rank alone, the bytes that the kernel sent on that process's sockets must equal
that rank's own ledger.

:notation $N_d$: `world_size`, the number of ranks in the process group
:notation $r$: `rank`, the number of one rank, from 0 to $N_d - 1$
:notation $B$: `nbytes`, the size of a whole vector in bytes
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = [
    "Call",
    "Ledger",
    "all_reduce_bytes",
    "broadcast_copies",
    "ledger",
    "record",
    "record_move",
]
# sidelit: show


@contextmanager
def ledger() -> Iterator[Ledger]:
    r"""The ledger counts what this process sends while the block runs. Ledgers may nest; each counts all
    calls of its own block.

    On two ranks, an all-reduce of 1000 FP32 values sends $2 \cdot \frac{1}{2} \cdot
    4000$ bytes:

    >>> from shardbook.foundations.collectives import all_reduce
    >>> with ledger() as book:
    ...     all_reduce(torch.ones(1000))
    >>> book.sent, book.total
    ({'all-reduce': 4000}, 4000)
    """
    # Backward hooks may run in a thread that autograd owns. A ledger bound to the
    # thread that opened it would miss every gradient, so the open ledgers are a list
    # that the whole process shares.
    book = Ledger()
    _open_ledgers.append(book)
    try:
        yield book
    finally:
        _open_ledgers[:] = [other for other in _open_ledgers if other is not book]


@dataclass(slots=True)
class Ledger:
    """The calls, in order, and their sums. The order matters as much as the bytes: whether a gather was
    issued before or after a computation is how prefetching is told from waiting.
    """

    calls: list[Call] = field(default_factory=list)
    moves: list[tuple[str, int]] = field(default_factory=list)

    @property
    def sent(self) -> dict[str, int]:
        """Bytes sent by this process, for each collective it called."""
        sums: dict[str, int] = {}
        for call in self.calls:
            sums[call.collective] = sums.get(call.collective, 0) + call.sent
        return sums

    @property
    def total(self) -> int:
        """Bytes sent by this process, over all collectives."""
        return sum(self.sent.values())

    @property
    def moved(self) -> dict[str, int]:
        """Bytes [moved between host and device](offload.py), for each kind. They are no part of `total`,
        since they never reach the network.
        """
        sums: dict[str, int] = {}
        for kind, nbytes in self.moves:
            sums[kind] = sums.get(kind, 0) + nbytes
        return sums


@dataclass(frozen=True, slots=True)
class Call:
    """One line of the ledger. `payload` is $B$, the size of the whole vector; `sent` is what this rank
    sends of it, in bytes, under the dtype in which the values travel.
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
    """How many copies a rank passes on in a broadcast depends on its distance from the source. gloo
    doubles the number of ranks that know in every round: of four ranks, the source
    tells 1 and 2, and 1 tells
    3. Other backends are counted as a chain, in which every rank but the last passes on
       one copy.

    >>> [broadcast_copies(distance, 4, tree=True) for distance in range(4)]
    [2, 1, 0, 0]
    >>> [broadcast_copies(distance, 4, tree=False) for distance in range(4)]
    [1, 1, 1, 0]
    """
    if not tree:
        return int(distance + 1 < world_size)
    # A rank joins in the round of its highest bit. From then on it tells, in each round
    # $k$, the rank $2^k$ further.
    rounds = range(distance.bit_length(), (world_size - 1).bit_length())
    return sum(distance + 2**k < world_size for k in rounds)


def all_reduce_bytes(rank: int, world_size: int, nbytes: int, unit: int | None) -> int:
    r"""A ring's all-reduce sends $2\frac{N_d-1}{N_d}B$ bytes, exactly so when the pieces are equal. gloo
    cuts each piece into two segments or more, of at most 1 MiB, to add one while the
    next travels, and rounds them up to whole elements. So the last pieces may be short,
    or empty for a single number. In each of the two halves a rank sends every piece but
    one.

    >>> [all_reduce_bytes(rank, 4, 4096, 4) for rank in range(4)]
    [6144, 6144, 6144, 6144]
    >>> [all_reduce_bytes(rank, 4, 4, 4) for rank in range(4)]  # a single FP32 value
    [4, 4, 8, 8]

    :param unit: bytes of one element on gloo, which cuts no element in two; `None` on
        other backends.
    """
    if not nbytes or unit is None:
        return 2 * (world_size - 1) * nbytes // world_size
    segments = max(2, _ceil(nbytes, world_size * 2**20))
    piece = segments * unit * _ceil(nbytes, world_size * segments * unit)
    starts = range(0, world_size * piece, piece)
    lengths = [min(max(nbytes - start, 0), piece) for start in starts]
    return 2 * nbytes - lengths[rank] - lengths[rank - 1]


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
