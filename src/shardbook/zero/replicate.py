r"""# Stage 0: every rank keeps everything

> Plain data parallelism, the point from which the other stages start.

Every rank holds the whole model and computes with its own data. After the backward pass
the ranks average their gradients, and since all of them then take the same step, their
models stay equal.

In the other stages all ranks run the same units in the same order, because each gather
needs all of them. In stage 0 nothing is gathered. So each rank may drop layers of its
own, and at the end of the backward pass the ranks [compare which units any of them has
used](unused.py).

Nothing is saved. With AdamW in FP32 a rank stores 16 bytes for each parameter: 4 for
the parameter, 4 for its gradient, and 8 for the two moments of the optimizer. With 64
ranks all of it is stored 64 times. The next chapters take one term after the other
away.

An average over all ranks costs one all-reduce of the gradients:

$$2\,P_u\,\frac{N_d - 1}{N_d}$$

elements are sent by each rank for a unit.

:notation $N_d$: `world_size`, the number of ranks
:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from shardbook.foundations.collectives import all_gather
from shardbook.parameters.flat import Flat
from shardbook.parameters.gradients import FlatWithGradients
from shardbook.parameters.parameter_sites import Site
from shardbook.zero.unit import Unit

__all__ = ["Replicated"]
# sidelit: show


class Replicated(Unit):
    """A unit that every rank stores whole."""

    stage: ClassVar[int] = 0
    # Gradients are exchanged when all of them are there. PyTorch's
    # `DistributedDataParallel` starts earlier, to hide the exchange behind the rest of
    # the backward pass; here [stage 2](zero2.py) does so.
    reduces_early: ClassVar[bool] = False

    def __init__(self, name: str, sites: Sequence[Site], **options: Any) -> None:
        # Whether `full` holds what may be computed with.
        self.fresh = False
        super().__init__(name, sites, **options)

    def keep(self, flat: Flat) -> None:
        """The parameters keep their shapes, so any optimizer can train them."""
        flat.keep_whole()

    @property
    def copied(self) -> tuple[FlatWithGradients, ...]:
        """The vectors that are stored whole, in [another form](masters.py) than they are
        computed with. Without a policy there are none.
        """
        return tuple(flat for flat in self.flats if flat.converts and not flat.sliced)

    def fetch(self) -> None:
        """The unit is whole already. Where modules compute with a copy, it is made."""
        if self.fresh or not self.copied:
            return
        # The masters are there when the optimizer's last write is done, which is queued
        # on the compute stream. An earlier computation there may still read the copy.
        self.gather_stream.wait_stream(self.compute_stream())
        with self.device.stream(self.gather_stream):
            for flat in self.copied:
                flat.piece()

    def arrive(self) -> None:
        """Wait for the copies."""
        if self.copied and not self.fresh:
            self.compute_stream().wait_stream(self.gather_stream)
        self.fresh = True

    def empty(self) -> None:
        """Nothing is given back: [the copy](masters.py), too, stays until the next
        forward pass.
        """

    def expire(self) -> None:
        """Every rank takes the same steps, so what it stores is always right. A copy of it
        is made anew for each forward pass of the model, whoever has changed the
        masters.
        """
        self.fresh = False

    def kept_mean(self, flat: FlatWithGradients, piece: Tensor) -> Tensor:
        """The second half of the all-reduce: the pieces of the mean are gathered.

        The vector that was sent is no longer needed, so it receives the mean.
        """
        assert flat.sending is not None
        all_gather(flat.sending, piece, group=self.groups.shards).wait()
        # A thread of the backend may hold on to that vector for a moment. With memory
        # of its own the gradient is free as soon as `zero_grad` forgets it.
        return flat.sending.clone()
