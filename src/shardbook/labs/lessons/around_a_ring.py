"""The first and the last check of lab 2: a message to the next rank, and the bytes of a whole ring."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from shardbook.labs.lessons.messages import RANKS, on_ranks, refuse_other_bytes
from shardbook.labs.lessons.returned import expect_dtype, number, tensor
from shardbook.labs.notebook import check, expect
from shardbook.labs.words import tell

__all__ = ["pass_on", "ring_bytes"]


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
