r"""# The byte ledger

> The ledger counts the bytes that each rank sends. Tests compare it with the system's own counters.

The formulas of [the collectives](collectives.py) give the bytes that a collective must
move. A library may move more: gloo's reduce-scatter sends twice as much as the formula,
and its result is right all the same. Only a count shows the difference. On gloo, tests
compare the ledger with such counts. On NCCL its figures are those of a ring, computed
from the sizes and not counted.

The ledger counts the **payload that this process hands to the network**. Message
headers are left out, which are 48 bytes a message on gloo. Left out, too, are the few
short messages of [the check of the order](exchange_order.py), most of which are sent in
the first step. Two tests compare the ledger with the kernel. In a network namespace
without other traffic, the bytes of the loopback device must equal the sum of all ranks'
ledgers. And the bytes that the kernel has sent on one process's sockets must equal that
rank's ledger.

:notation $N_d$: `world_size`, the number of ranks in the process group
:notation $B$: `nbytes`, the size of a whole vector in bytes
:notation $k$: the number of a round of a broadcast, from 0
"""

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
    # A rank receives its copy in the round of its highest bit. After that, in each
    # round $k$, it sends a copy to the rank that is $2^k$ further.
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
    segments = max(2, _ceil(nbytes, world_size * 2**20))
    piece = segments * unit * _ceil(nbytes, world_size * segments * unit)
    starts = range(0, world_size * piece, piece)
    lengths = [min(max(nbytes - start, 0), piece) for start in starts]
    return 2 * nbytes - lengths[rank] - lengths[rank - 1]


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
