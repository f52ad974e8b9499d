"""The checks of lab 2: a message around a ring, all-gather, reduce-scatter, and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shardbook.labs.lessons.around_a_ring import pass_on, ring_bytes
from shardbook.labs.lessons.messages import (
    RANKS,
    Sent,
    on_ranks,
    refuse_other_bytes,
)
from shardbook.labs.lessons.returned import expect_dtype, tensor
from shardbook.labs.notebook import check, expect
from shardbook.labs.words import tell

__all__ = ["Sent", "all_gather", "pass_on", "reduce_scatter", "ring_bytes"]


@check
def all_gather(given: Callable[[Tensor], Tensor]) -> str:
    """Every rank has all pieces, in the order of the ranks."""
    for rank, (whole, sent) in enumerate(on_ranks("all_gather", given, piece_of)):
        expect(
            not isinstance(whole, list | tuple),
            tell("all_gather returned a list of pieces."),
            look=tell("`torch.cat` joins them in one vector."),
        )
        expect_dtype("all_gather", tensor("all_gather", whole), torch.float32)
        expect(
            whole.shape == (2 * RANKS,),
            tell(
                "Three pieces of 2 numbers are 6 numbers, but rank {rank} returned a tensor of "
                "shape {shape}.",
                rank=rank,
                shape=tuple(whole.shape),
            ),
            look=tell(
                "Each hop brings one piece. Is there a place for the pieces of all ranks?"
            ),
        )
        owners = [owner(part) for part in whole.chunk(RANKS)]
        expect(
            owners == list(range(RANKS)),
            tell(
                "Rank {rank} returned the pieces of the ranks {found}, and not those of 0, 1, 2.",
                rank=rank,
                found=", ".join("?" if each is None else str(each) for each in owners),
            ),
            look=look_at(owners),
        )
        refuse_other_bytes(rank, sent, 8 * (RANKS - 1))
    return tell("Every rank has all pieces, and has sent as many as it was lacking.")


def piece_of(rank: int) -> Tensor:
    """Two numbers that say whose they are."""
    return torch.tensor([10.0 * rank + 1, 10.0 * rank + 2])


def owner(part: Tensor) -> int | None:
    """Whose piece this is; `None` for one that no rank has given."""
    return next(
        (rank for rank in range(RANKS) if torch.equal(part, piece_of(rank))), None
    )


def look_at(owners: Sequence[int | None]) -> str:
    """Where to look for the reason of a wrong order."""
    if None in owners:
        return tell(
            "After as many hops as there are other ranks, every piece has been here. Is one hop "
            "missing, or a place that was never filled?"
        )
    if len(set(owners)) < RANKS:
        return tell(
            "In each hop but the first a rank passes on the piece that has just arrived, and not "
            "its own one again."
        )
    return tell(
        "All pieces are there. After hop number `hop` the piece belongs to rank `(rank - hop) % "
        "ranks`, and it needs the place of that rank."
    )


@check
def reduce_scatter(given: Callable[[Tensor], Tensor]) -> str:
    """Each rank has its piece of the sum."""
    for rank, (piece, sent) in enumerate(on_ranks("reduce_scatter", given, vector_of)):
        expect_dtype("reduce_scatter", tensor("reduce_scatter", piece), torch.float32)
        expect(
            piece.shape == (2,),
            tell(
                "Of 6 numbers on three ranks each rank gets 2, but rank {rank} returned a tensor "
                "of shape {shape}.",
                rank=rank,
                shape=tuple(piece.shape),
            ),
            look=tell("Only the piece of this rank is returned."),
        )
        refuse_wrong_sum(rank, *piece.tolist())
        refuse_other_bytes(rank, sent, 8 * (RANKS - 1))
    return tell("Each rank has its piece of the sum, and no message was larger.")


def vector_of(rank: int) -> Tensor:
    """The numbers 1 to 6, times 1, 10 or 100, so that each digit of a sum comes from one rank."""
    return torch.arange(1.0, 2 * RANKS + 1).mul(10**rank)


def refuse_wrong_sum(rank: int, first: float, second: float) -> None:
    """Say which piece of which ranks the two numbers are."""
    expect(
        second - first != 37,
        tell(
            "Rank {rank} returned the mean, but here it should be the sum.", rank=rank
        ),
        look=tell("The division by the number of ranks comes later."),
    )
    sums = [(111 * (2 * owner + 1), 111 * (2 * owner + 2)) for owner in range(RANKS)]
    others = [owner for owner in range(RANKS) if sums[owner] == (first, second)]
    expect(
        others in ([], [rank]),
        tell(
            "Rank {rank} returned the piece of rank {other}.",
            rank=rank,
            other=others[0] if others else rank,
        ),
        look=tell(
            "A rank adds its own piece last. With which piece does it have to begin?"
        ),
    )
    expect(
        others,
        tell(
            "Rank {rank} returned {first:g} and {second:g}, but the sum over three ranks is "
            "{wanted} and {wanted_next}.",
            rank=rank,
            first=first,
            second=second,
            wanted=sums[rank][0],
            wanted_next=sums[rank][1],
        ),
        look=tell(
            "The check gives the numbers 1 to 6 to rank 0, ten times that to rank 1, and a "
            "hundred times to rank 2. So each digit comes from one of the ranks. Does each "
            "rank add its own numbers to what arrives, of the same piece, and pass on the sum?"
        ),
    )
