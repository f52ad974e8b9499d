"""The first and the last check of lab 2: a message to the next rank, and the bytes of a whole ring."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardbook.labs.checks import check, expect
from shardbook.labs.lessons.messages import (
    RANKS,
    Sent,
    on_ranks,
    place,
    portable,
    refuse_collectives,
    refuse_other_bytes,
    refuse_what_is_no_tensor,
)
from shardbook.labs.words import tell

__all__ = ["pass_on", "ring_bytes"]


@check
def pass_on(given: Callable[[Tensor], Tensor]) -> str:
    """Each rank gets what the rank before has sent."""
    found = on_ranks("pass_on", around, given)
    for rank, (arrived, own_tensor, changed, sent) in enumerate(found):
        refuse_what_is_no_tensor("pass_on", arrived)
        before, after = (rank - 1) % RANKS, (rank + 1) % RANKS
        expect(
            not changed,
            tell("On rank {rank} the tensor of the caller has changed.", rank=rank),
            look=tell(
                "Receive into a tensor of its own, such as `torch.empty_like(tensor)`. While a "
                "tensor is being sent, nothing may write into it."
            ),
        )
        expect(
            not torch.equal(arrived, own_tensor),
            tell("Rank {rank} returned what it had sent itself.", rank=rank),
            look=tell(
                "A message fills the tensor that is given to `recv` or `irecv`. Return that one."
            ),
        )
        expect(
            not torch.equal(arrived, found[after][1]),
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
            torch.equal(arrived, found[before][1]),
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


def around(given: Callable[[Tensor], Tensor]) -> tuple[Any, Tensor, bool, int]:
    """On a rank: call the answer with a tensor that no other rank has."""
    rank = dist.get_rank()
    tensor = torch.full((5,), 10.0 + rank, device=place())
    before = tensor.clone()
    # Rank 1 returns before rank 0 has sent if it does not wait for the message.
    if rank == 0:
        time.sleep(0.2)
    with Sent() as sent:
        arrived = given(tensor)
        refuse_collectives(sent)
        # What arrives later does not count.
        arrived = portable(arrived)
    return arrived, before.cpu(), not torch.equal(tensor, before), sent.nbytes


@check
def ring_bytes(given: Callable[[int, float], float]) -> str:
    """Twice all hops of one piece."""
    found = given(4, 32)
    expect(
        isinstance(found, int | float),
        tell(
            "{name} returned {found!r}, which is no number.",
            name="ring_bytes",
            found=found,
        ),
        look=tell("Does the function end with `return`?"),
    )
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
    expect(
        given(8, 32) == 56,
        tell("On 8 ranks it is 56 bytes, and not {found:g}.", found=given(8, 32)),
        look=tell("Does the function use the number of ranks that it is given?"),
    )
    expect(
        given(4, 64) == 96,
        tell("A vector of twice the size takes twice the bytes."),
        look=tell("Does the function use the size that it is given?"),
    )
    return tell("However many ranks there are, each sends less than two vectors.")
