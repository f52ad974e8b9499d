"""The checks of lab 2: a message around a ring, all-gather, reduce-scatter, and their bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from shardbook.labs.lessons.messages import (
    RANKS,
    Sent,
    on_ranks,
    refuse_other_bytes,
)
from shardbook.labs.lessons.returned import expect_dtype, number, tensor
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


@check
def pass_on(given: Callable[[Tensor], Tensor]) -> str:
    """Each rank gets what the rank before has sent."""
    for rank, (arrived, sent) in enumerate(on_ranks("pass_on", given, tensor_of)):
        own_tensor = tensor_of(rank)
        before, after = (rank - 1) % RANKS, (rank + 1) % RANKS
        expect_dtype("pass_on", tensor("pass_on", arrived), own_tensor.dtype)
        expect(
            not torch.equal(arrived, own_tensor),
            tell("Rank {rank} returned what it had sent itself.", rank=rank),
            look=tell(
                "A message fills the tensor that is given to `recv` or `irecv`. Return that one."
            ),
        )
        expect(
            not torch.equal(arrived, tensor_of(after)),
            tell(
                "Rank {rank} returned what rank {after} has sent, but it should be that of rank "
                "{before}.",
                rank=rank,
                after=after,
                before=before,
            ),
            look=tell(
                "Send to `(rank + 1) % ranks`, and receive from `(rank - 1) % ranks`."
            ),
        )
        expect(
            arrived.shape == own_tensor.shape,
            tell(
                "Rank {rank} returned a tensor of shape {shape}, and not of {wanted}.",
                rank=rank,
                shape=tuple(arrived.shape),
                wanted=tuple(own_tensor.shape),
            ),
            look=tell("What arrives has the shape of what was sent."),
        )
        expect(
            torch.equal(arrived, tensor_of(before)),
            tell(
                "Rank {rank} did not return what rank {before} has sent.",
                rank=rank,
                before=before,
            ),
            look=tell(
                "`irecv` returns before the message has arrived. Call `wait()` of its handle before "
                "you return the tensor."
            ),
        )
        refuse_other_bytes(rank, sent, own_tensor.nbytes)
    return tell("Each of three ranks has what the rank before has sent.")


def tensor_of(rank: int) -> Tensor:
    """A tensor that no other rank has."""
    # On its rank, rank 1 returns before rank 0 has sent if it does not wait for the message.
    if dist.is_initialized() and rank == 0:
        time.sleep(0.2)
    return torch.full((5,), 10.0 + rank)


@check
def ring_bytes(given: Callable[[int, float], float]) -> str:
    """Twice all hops of one piece."""
    found = number("ring_bytes", given(4, 32))
    reasons: dict[float, str] = {
        24: tell(
            "That is one half, such as the reduce-scatter. The all-gather follows."
        ),
        64: tell("A rank does not send its own piece, in neither half."),
        96: tell("That is what rank 0 sends if all vectors go through it."),
        192: tell("In each hop a rank sends one piece, and not the whole vector."),
        6: tell(
            "That is the number of hops. How many bytes has the piece of each hop?"
        ),
        12: tell("Three hops are one half, and each carries a piece of 8 bytes."),
    }
    expect(
        found == 48,
        tell(
            "On 4 ranks a vector of 32 bytes takes 48 bytes from each rank, and not {found:g}.",
            found=found,
        ),
        look=reasons.get(
            found, tell("How many hops are there, and how many bytes has a piece?")
        ),
    )
    found = number("ring_bytes", given(8, 32))
    expect(
        found == 56,
        tell("On 8 ranks it is 56 bytes, and not {found:g}.", found=found),
        look=tell("Does the function use the number of ranks that it is given?"),
    )
    expect(
        number("ring_bytes", given(4, 64)) == 96,
        tell("A vector of twice the size takes twice the bytes."),
        look=tell("Does the function use the size that it is given?"),
    )
    return tell("However many ranks there are, each sends less than two vectors.")
