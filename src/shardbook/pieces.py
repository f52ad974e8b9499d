r"""# Equal values, kept in pieces

> Ranks that hold the same values keep one piece each, and gather the pieces when they need the whole.

Sharding splits what every rank would otherwise store. [Parameters](zero3.py) are one
case. Another is the input of a layer in tensor parallel training without sequence
parallelism, which is the same on every rank of the group. It is a new tensor in each
step, so no layout can be made in advance. A vector of $n$ values is cut into $N$ pieces,
one for each rank, and the number of values in a piece is

$$\left\lceil \frac{n}{N} \right\rceil$$

One all-gather puts the vector together again.

If the ranks hold different values, the all-gather does not notice. Each rank gets a
vector that is put together from different ones, and training goes on with wrong
numbers. So the ranks can compare their values first, by [a
digest](operations.py#digest).

:notation $N$: `world_size`, the number of ranks that hold the same values
:notation $n$: `numel`, the number of values
"""

# sidelit: hide
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from shardbook.check import Disagreement
from shardbook.collectives import all_gather, world
from shardbook.operations import digest

__all__ = ["Sharing", "piece_numel"]
# sidelit: show


@dataclass(frozen=True, slots=True)
class Sharing:
    """The ranks that hold the same values, and what each keeps of them."""

    group: Any
    check: bool

    def piece(self, vector: Tensor) -> Tensor:
        """A copy of this rank's piece. A view would keep the whole vector in memory.

        Pieces must be of one length, so those at the end are filled up with zeros.
        """
        if self.check:
            self.compare(vector)
        rank, world_size = world(self.group)
        size = piece_numel(vector.numel(), world_size)
        piece, mine = vector.new_zeros(size), vector[rank * size : (rank + 1) * size]
        piece[: len(mine)] = mine
        return piece

    def whole(self, piece: Tensor, numel: int) -> Tensor:
        """The vector, gathered from all ranks, without what it was filled up with."""
        full = piece.new_empty(piece.numel() * world(self.group)[1])
        all_gather(full, piece, group=self.group).wait()
        return full[:numel]

    def compare(self, vector: Tensor) -> None:
        """Raise on every rank if one of them holds other values than the first.

        :raises Disagreement: naming that rank
        """
        answers: list[Any] = [None] * world(self.group)[1]
        mine = (vector.numel(), str(vector.dtype), digest(vector))
        dist.all_gather_object(answers, mine, group=self.group)
        for rank, theirs in enumerate(answers):
            if theirs != answers[0]:
                raise Disagreement(
                    f"rank {rank} of the group saves {theirs[0]} values of "
                    f"{theirs[1]} for the backward pass, and they are not those of "
                    "rank 0; use partition only where all ranks of the group compute "
                    "the same, such as around a checkpointed layer"
                )


def piece_numel(numel: int, world_size: int) -> int:
    """The length of a piece. All pieces together have fewer than $N$ elements of padding.

    >>> checkpoint = 4 * 2048 * 12288
    >>> [96 * 2 * piece_numel(checkpoint, world_size) for world_size in (1, 8)]
    [19327352832, 2415919104]
    """
    return -(-numel // world_size)
