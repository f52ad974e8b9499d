"""The four collectives on small numbers: what each rank holds before and after, and what it sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tools.record.frame import ranks

from shardbook.foundations.collectives import (
    all_gather,
    all_reduce,
    broadcast,
    ledger,
    reduce_scatter_mean,
    world,
)

RANKS = (2, 4)
NUMBERS = 8


def record() -> Any:
    """For 2 and 4 ranks: each collective, rank by rank."""
    found = {}
    for world_size in RANKS:
        of_rank = ranks(world_size, on_a_rank)
        found[world_size] = {
            name: {part: [one[name][part] for one in of_rank] for part in ("before", "after", "sent")}
            for name in COLLECTIVES
        }
    return found


def on_a_rank() -> Any:
    """One rank's part in each of the four."""
    return {name: one(call) for name, call in COLLECTIVES.items()}


def one(call: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Call a collective with this rank's numbers: 1 to 8 on rank 0, 9 to 16 on rank 1, and so on."""
    rank, size = world()
    mine = torch.arange(1.0, NUMBERS + 1) + NUMBERS * rank
    if call is gather:
        # Each rank brings a piece, and all pieces together are as long as the other vectors.
        mine = mine.view(size, -1)[rank].clone()
    before = whole(mine)
    with ledger() as book:
        after = call(mine)
    return {"before": before, "after": whole(after), "sent": book.total}


def gather(piece: torch.Tensor) -> torch.Tensor:
    """The pieces of all ranks."""
    full = torch.empty(NUMBERS)
    all_gather(full, piece).wait()
    return full


def scatter(vector: torch.Tensor) -> torch.Tensor:
    """This rank's piece of the mean."""
    return reduce_scatter_mean(vector).wait()


def reduce(vector: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' vectors."""
    all_reduce(vector)
    return vector


def spread(vector: torch.Tensor) -> torch.Tensor:
    """The vector of rank 0."""
    broadcast(vector)
    return vector


def whole(vector: torch.Tensor) -> list[int]:
    """The numbers of a vector, which are whole ones."""
    return [int(number) for number in vector.tolist()]


COLLECTIVES = {"broadcast": spread, "all-gather": gather, "reduce-scatter": scatter, "all-reduce": reduce}
