r"""# Stage 1: the optimizer's state is split

> Each rank updates its own part of the parameters, and gathers the updated parts of the other ranks.

An optimizer such as AdamW stores two numbers for each parameter, which are needed only
where that parameter is updated. So each rank updates $1/N_d$ of a unit, and stores the
optimizer's state for this part alone. The table counts the bytes of a unit in FP32,
without a policy. Gradients are counted at the end of the backward pass, where they take
the most memory:

| | parameters | gradients | AdamW |
|---|---|---|---|
| stage 0 | $4\,\Psi_u$ | $4\,\Psi_u$ | $8\,\Psi_u$ |
| stage 1 | $4\,\Psi_u$ | $4\,\Psi_u$ | $8\,\Psi_u / N_d$ |

In FP32 a training step of stage 1 sends exactly as many bytes as one of stage 0. [Stage
0](replicate.py) averages the gradients in two halves: a reduce-scatter, which leaves
each rank its piece of the mean, and an all-gather of the pieces. A rank that updates
only its own part needs only its own piece of the mean. So stage 1 leaves the second
half out, and gathers the updated *parameters* instead, which are just as many elements.

Stage 1 sends more in two cases. [A policy](policy_bytes.py) may let gradients travel in
fewer bytes than parameters. And a forward pass without a backward pass, as in an
evaluation, gathers the parameters here, while stage 0 sends nothing.

The optimizer stays as it is. `model.parameters()` gives it this rank's slices, and it
updates these.

:figure: stage_homes
:notation $N_d$: `world_size`, the number of ranks
:notation $\Psi_u$: `numel`, the number of parameters of a unit
:notation $P_{os}$: the paper's name for this stage
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from shardbook.foundations.collectives import all_gather
from shardbook.parameters.flat import Flat
from shardbook.parameters.gradients import FlatWithGradients
from shardbook.zero.replicate import Replicated

__all__ = ["Zero1"]


class Zero1(Replicated):
    """A unit of whose parameters each rank updates a part.

    Source: [ZeRO](bib:rajbhandari2020zero), stage 1 ($P_{os}$).
    """

    stage: ClassVar[int] = 1

    def keep(self, flat: Flat) -> None:
        """Keep this rank's part of a trainable vector.

        If the unit computes with the parameters [as they are stored](masters.py), the
        part is a view into `full`. The optimizer then updates `full` in place, and no
        parameter is stored twice. With a `param_dtype` or offload the part is a vector
        of its own, the masters, and `full` holds copies.

        A frozen parameter has no optimizer state that could be split. It stays whole
        and is not exchanged, unless it [is trained later](freezing.py).
        """
        if flat.layout.trainable:
            flat.keep_part(self.rank, apart=False)
        else:
            flat.keep_whole()

    @property
    def shared(self) -> tuple[FlatWithGradients, ...]:
        """The vectors of which each rank keeps a part."""
        return tuple(flat for flat in self.flats if flat.sliced)

    def fetch(self) -> None:
        """Gather the parts of all ranks into `full`.

        This rank's own part is in `full` already, unless the masters are stored
        elsewhere. Then [a copy](masters.py#FlatWithMasters.piece) is first cast into
        its place.
        """
        super().fetch()
        if self.fresh or not self.shared:
            return
        self.order.before("gather", self.name, self.sites[0].name)
        # The gather stream must wait for the compute stream, for two reasons. First,
        # the optimizer's last write to the shard is queued there. Without this wait the
        # other ranks would receive the weights of the step before, and no error would
        # be raised. Second, an earlier computation may still read the memory that the
        # gather overwrites.
        self.gather_stream.wait_stream(self.compute_stream())
        with self.device.stream(self.gather_stream):
            for flat in self.shared:
                flat.gathering = all_gather(
                    flat.full, flat.piece(), group=self.groups.shards
                )

    def arrive(self) -> None:
        """Wait for the parts, once for each time they were gathered."""
        if self.fresh or not self.shared:
            super().arrive()
            return
        # The backend runs its exchanges on a stream of its own, and the gather stream
        # waits for that stream here. On gloo and a CPU there are no streams, so this
        # thread waits until the bytes have arrived.
        with self.device.stream(self.gather_stream):
            for flat in self.shared:
                assert flat.gathering is not None
                self.order.watch(flat.gathering.works)
                flat.gathering.wait()
        # Without this wait the computation could start on a vector that is still being
        # filled.
        self.compute_stream().wait_stream(self.gather_stream)
        super().arrive()

    def expire(self) -> None:
        """Gather again before the next use, because other ranks may have stepped.

        A rank cannot see the other ranks' steps. Suppose it kept the gathered
        parameters until its own optimizer steps. It would then compute with old weights
        whenever another rank steps alone. So every forward pass of the model gathers,
        and only the backward pass after it relies on the same parameters.
        [Micro-batches](accumulate.py) whose gradients are not exchanged are the
        exception.
        """
        self.fresh = False

    def kept_mean(self, flat: FlatWithGradients, piece: Tensor) -> Tensor:
        """Keep this rank's own piece of the mean, which is what the reduce-scatter
        left.

        A vector that was frozen when the model was sharded is kept whole. If it is
        [trained later](freezing.py), every rank needs the whole mean of it.
        """
        return piece if flat.sliced else super().kept_mean(flat, piece)
