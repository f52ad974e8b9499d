"""A ring of four ranks: eight numbers are added up in three hops and handed round in three more."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from tools.record.frame import ranks

from shardbook.foundations.collectives import all_gather, ledger, reduce_scatter_mean, world

RANKS, NUMBERS = 4, 8


def record() -> Any:
    """What each rank holds before the first hop and after each, and the bytes that it sends."""
    found = ranks(RANKS, on_a_rank)
    return {"numbers": NUMBERS, "world_size": RANKS, "ranks": found}


def on_a_rank() -> Any:
    """One rank's view of the same sum, by a ring, by way of rank 0, and by the book's two collectives."""
    vector = contribution()
    hops = [*add_up(vector), *hand_round(vector)]
    return {
        "start": whole(contribution()),
        "hops": hops,
        "sent_in_the_ring": sum(hop["bytes"] for hop in hops),
        "sent_by_way_of_rank_0": by_way_of_rank_0(contribution()),
        "sent_by_the_book": by_the_book(contribution()),
    }


def contribution() -> torch.Tensor:
    """Rank 0 has ones, rank 1 tens, and so on: each digit of a sum shows which rank is in it."""
    rank, _ = world()
    return torch.arange(1.0, NUMBERS + 1) * 10**rank


def add_up(vector: torch.Tensor) -> list[Any]:
    """The reduce-scatter: pass a piece to the right, add what arrives. In the end rank r has piece r."""
    rank, size = world()
    pieces, hops = vector.view(size, -1), []
    for hop in range(size - 1):
        out, into = (rank - 1 - hop) % size, (rank - 2 - hop) % size
        arrived = pass_on(pieces[out])
        pieces[into] += arrived
        hops.append(seen("add", out, into, arrived, vector))
    return hops


def hand_round(vector: torch.Tensor) -> list[Any]:
    """The all-gather: pass a finished piece to the right, keep what arrives from the left."""
    rank, size = world()
    pieces, hops = vector.view(size, -1), []
    for hop in range(size - 1):
        out, into = (rank - hop) % size, (rank - 1 - hop) % size
        arrived = pass_on(pieces[out])
        pieces[into] = arrived
        hops.append(seen("keep", out, into, arrived, vector))
    return hops


def pass_on(piece: torch.Tensor) -> torch.Tensor:
    """Send a piece to the rank at the right, and receive one from the rank at the left."""
    rank, size = world()
    arrived = torch.empty_like(piece)
    sending = dist.isend(piece, (rank + 1) % size)
    dist.recv(arrived, (rank - 1) % size)
    sending.wait()
    return arrived


def seen(action: str, out: int, into: int, arrived: torch.Tensor, vector: torch.Tensor) -> Any:
    """What a hop has done on this rank."""
    return {
        "action": action,
        "sends": out,
        "receives": into,
        "bytes": arrived.nbytes,
        "holds": whole(vector),
    }


def by_way_of_rank_0(vector: torch.Tensor) -> int:
    """The bytes that this rank sends if rank 0 collects all vectors, adds them and sends the sum back."""
    rank, size = world()
    if rank:
        dist.send(vector, 0)
        dist.recv(vector, 0)
        return vector.nbytes
    for other in range(1, size):
        arrived = torch.empty_like(vector)
        dist.recv(arrived, other)
        vector += arrived
    for other in range(1, size):
        dist.send(vector, other)
    return (size - 1) * vector.nbytes


def by_the_book(vector: torch.Tensor) -> dict[str, int]:
    """What the ledger counts for the library's own two halves."""
    with ledger() as book:
        all_gather(vector, reduce_scatter_mean(vector).wait()).wait()
    return book.sent


def whole(vector: torch.Tensor) -> list[int]:
    """The numbers of a vector, which are whole ones."""
    return [int(number) for number in vector.tolist()]
