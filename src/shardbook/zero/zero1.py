r"""# Stage 1: the optimizer's state is split

> Each rank trains its own part of the parameters, and gets the rest from the others.

An optimizer such as AdamW stores two numbers for each parameter, and they are of use
only to whoever updates that parameter. So each rank updates $1/N_d$ of a unit and
stores the optimizer's state for that part alone. The table counts the bytes of a unit
in FP32, without a policy. Gradients are counted at the end of the backward pass, where
they are largest:

| | parameters | gradients | AdamW |
|---|---|---|---|
| stage 0 | $4\,\Psi_u$ | $4\,\Psi_u$ | $8\,\Psi_u$ |
| stage 1 | $4\,\Psi_u$ | $4\,\Psi_u$ | $8\,\Psi_u / N_d$ |

In FP32 a training step of stage 1 sends exactly as many bytes as one of stage 0. [Stage
0](replicate.py) averaged the gradients in two halves: a reduce-scatter, which left each
rank its piece of the mean, and an all-gather of the pieces. A rank that updates only
its own part needs only its own piece, so the second half can be left out. Instead the
updated *parameters* are gathered, as many elements as the mean would have been. Where
[a policy](policy_bytes.py) lets gradients travel in fewer bytes than parameters, stage
1 sends more. So does a forward pass without a backward pass, as in an evaluation: it
gathers the parameters, and in stage 0 it sends nothing.

The optimizer need not know of it. The model's parameters, as it sees them, are this
rank's slices.

:figure: stage_homes
:notation $N_d$: `world_size`, the number of ranks
:notation $\Psi_u$: `numel`, the number of parameters of a unit
"""

# sidelit: hide
from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from shardbook.foundations.collectives import all_gather
from shardbook.parameters.flat import Flat
from shardbook.parameters.gradients import FlatWithGradients
from shardbook.zero.replicate import Replicated

__all__ = ["Zero1"]
# sidelit: show


class Zero1(Replicated):
    """A unit of whose parameters each rank trains a part.

    Source: [ZeRO](bib:rajbhandari2020zero), stage 1 ($P_{os}$).
    """

    stage: ClassVar[int] = 1

    def keep(self, flat: Flat) -> None:
        """Keep this rank's part of a trainable vector.

        Without [another form](masters.py) to compute in, the part is a view into
        `full`. The optimizer then updates it in place, and no parameter is stored
        twice. With a `param_dtype` or offload the part is a vector of its own, the
        masters, and `full` holds copies.

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
        """Gather all ranks' parts into `full`.

        This rank's own part is there already, unless the masters are stored apart. Then
        [a copy](masters.py#FlatWithMasters.piece) is cast into its place first.
        """
        super().fetch()
        if self.fresh or not self.shared:
            return
        self.order.before("gather", self.name, self.sites[0].name)
        # The gather stream must wait for the compute stream, for two reasons. The
        # optimizer's last write to the shard is queued there: without this line the
        # other ranks receive the weights of the step before, and no error is ever
        # raised. And an earlier computation may still read what is about to be
        # overwritten.
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
        # The backend exchanges on a stream of its own, and here the gather stream waits
        # for that one. On gloo and a CPU there are no streams, and this thread waits
        # here until the bytes have arrived.
        with self.device.stream(self.gather_stream):
            for flat in self.shared:
                assert flat.gathering is not None
                self.order.watch(flat.gathering.works)
                flat.gathering.wait()
        # Without this line the computation would start on a vector that is still being
        # filled.
        self.compute_stream().wait_stream(self.gather_stream)
        super().arrive()

    def expire(self) -> None:
        """Gather again before the next use, because the other ranks may have stepped.

        A rank cannot see what the others did. If it kept what it has gathered until
        *it* steps, it would compute with old weights as soon as another rank steps
        alone. So every forward pass of the model gathers anew, and only the backward
        pass after it relies on what is there. [Micro-batches](accumulate.py) that are
        not exchanged are the exception.
        """
        self.fresh = False

    def kept_mean(self, flat: FlatWithGradients, piece: Tensor) -> Tensor:
        """The first half of the all-reduce is enough.

        A vector that was frozen when the model was sharded is kept whole. If it is
        [trained later](freezing.py), every rank needs its whole mean.
        """
        return piece if flat.sliced else super().kept_mean(flat, piece)
