r"""# Stage 0: every rank keeps everything

> Plain data parallelism: each rank stores the whole model, and the ranks average their gradients.

Every rank holds the whole model and computes with its own data. After the backward pass
the ranks average their gradients. Since all of them then take the same step, their
models stay equal.

The ranks of stage 0 need not run the same units. In the other stages they must, because
each gather needs all ranks, but in stage 0 nothing is gathered. So each rank may drop
layers of its own. At the end of the backward pass the ranks [compare which units any of
them has used](unused.py).

Stage 0 saves no memory. With AdamW in FP32 a rank stores 16 bytes for each parameter: 4
for the parameter, 4 for its gradient, and 8 for the two moments of the optimizer. With
64 ranks the same 16 bytes are stored 64 times. The next three stages split one of these
terms after the other.

An average over all ranks costs one all-reduce of the gradients. For each unit, a rank
sends

$$2\,P_u\,\frac{N_d - 1}{N_d}$$

elements.

:notation $N_d$: `world_size`, the number of ranks
:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
"""

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


class Replicated(Unit):
    """A unit that every rank stores whole."""

    stage: ClassVar[int] = 0
    # Gradients are exchanged when all of them are there. PyTorch's
    # `DistributedDataParallel` starts earlier, to hide the exchange behind the rest of
    # the backward pass. In this book [stage 2](zero2.py) does so.
    reduces_early: ClassVar[bool] = False

    def __init__(self, name: str, sites: Sequence[Site], **options: Any) -> None:
        # Whether `full` holds the values of the current parameters.
        self.fresh = False
        super().__init__(name, sites, **options)

    def keep(self, flat: Flat) -> None:
        """The parameters keep their shapes, so any optimizer can train them."""
        flat.keep_whole()

    @property
    def copied(self) -> tuple[FlatWithGradients, ...]:
        """The vectors that are stored in [another dtype or place](masters.py) than
        modules compute with. Without a policy there are none.
        """
        return tuple(flat for flat in self.flats if flat.converts and not flat.sliced)

    def fetch(self) -> None:
        """Copy the masters into `full`, where modules compute with a copy.

        Without a policy there is nothing to do, since every rank stores the whole unit.
        """
        if self.fresh or not self.copied:
            return
        # The optimizer's last write to the masters is queued on the compute stream, and
        # an earlier computation there may still read the copy. So the gather stream
        # waits for both.
        self.gather_stream.wait_stream(self.compute_stream())
        with self.device.stream(self.gather_stream):
            for flat in self.copied:
                flat.piece()

    def arrive(self) -> None:
        """Wait until the copies are made."""
        if self.copied and not self.fresh:
            self.compute_stream().wait_stream(self.gather_stream)
        self.fresh = True

    def empty(self) -> None:
        """Give nothing back: [the copy](masters.py), too, stays until the next forward pass."""

    def expire(self) -> None:
        """Renew the copies of the masters before the next forward pass.

        The masters themselves are always current, because every rank takes the same
        steps.
        """
        self.fresh = False

    def kept_mean(self, flat: FlatWithGradients, piece: Tensor) -> Tensor:
        """Gather the pieces of the mean, which is the second half of the all-reduce.

        The vector that was sent is no longer needed, so it receives the mean.
        """
        assert flat.sending is not None
        all_gather(flat.sending, piece, group=self.groups.shards).wait()
        # A thread of the backend may refer to that vector a little longer. The gradient
        # gets memory of its own, which is free as soon as `zero_grad` drops the
        # gradient.
        return flat.sending.clone()
