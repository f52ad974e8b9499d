r"""# Stage 3: the parameters are split

> A rank stores its part of each unit, and holds a whole unit only while the unit
> computes.

[Stage 2](zero2.py) has split everything but the parameters themselves, and with 64
ranks they are most of what is left. A parameter is used twice in a step: in the forward
pass of its unit and in the backward pass. For the rest of the step the other ranks'
parts need not be stored:

| | parameters | gradients | AdamW |
|---|---|---|---|
| stage 2 | $4\,\Psi_u$ | $4\,\Psi_u / N_d$ | $8\,\Psi_u / N_d$ |
| stage 3 | $4\,\Psi_u / N_d$ | $4\,\Psi_u / N_d$ | $8\,\Psi_u / N_d$ |

So before each use the unit allocates `full`, and after the use it frees `full`. This
time the saving has a price. The parameters that were freed after the forward pass must
be gathered again for the backward pass. In a step a rank sends for each unit

$$3\,P_u\,\frac{N_d - 1}{N_d}$$

elements: two all-gathers and one reduce-scatter. The other stages send two thirds of
that.

:figure: bytes_over_a_step
:notation $N_d$: `world_size`, the number of ranks that share the unit
:notation $\Psi_u$: `numel`, the number of parameters of the unit
:notation $P_u$: `padded`, the length of its flat vector with its padding
:notation $P_{os+g+p}$: the paper's name for this stage
"""

from __future__ import annotations

from typing import ClassVar

from shardbook.parameters.flat import Flat, resize
from shardbook.parameters.whole_form import Freed, set_class
from shardbook.zero.zero2 import Zero2

__all__ = ["Zero3"]


class Zero3(Zero2):
    """A unit of whose parameters each rank stores a part.

    Source: [ZeRO](bib:rajbhandari2020zero), stage 3 ($P_{os+g+p}$).
    """

    stage: ClassVar[int] = 3

    def keep(self, flat: Flat) -> None:
        """Give the shard a vector of its own, because `full` is emptied.

        Frozen parameters are split, too, since they take as much memory as others.
        """
        flat.keep_part(self.rank, apart=True)
        resize(flat.full, 0)
        set_class(flat.whole, Freed)

    def fetch(self) -> None:
        """Allocate the unit's memory, then gather.

        The memory is allocated on the compute stream. The allocator hands out a block
        at once, although an earlier computation that is queued on this stream may still
        read it. For work on the same stream that is safe, because a stream keeps its
        order. But [the gather](zero1.py#Zero1.fetch) writes from another stream, so it
        first waits for the compute stream.
        """
        for flat in self.flats:
            resize(flat.full, flat.layout.padded)
        super().fetch()

    def arrive(self) -> None:
        """Wait for the gather, and let the whole parameters be read."""
        super().arrive()
        for flat in self.flats:
            set_class(flat.whole)

    def empty(self) -> None:
        """Free the unit's memory, and keep its tensors.

        Dropping the reference to the vector would free nothing, because the autograd
        graph keeps views of it for the backward pass. Shrinking the storage under those
        views to zero bytes frees it. When the unit is gathered again, the same storage
        grows again, and the graph's views show the parameters as before.

        DeepSpeed instead points each parameter at a tensor with one element. This frees
        the memory only if the graph has no view of it, such as a transposed weight.
        """
        for flat in self.flats:
            set_class(flat.whole, Freed)
            resize(flat.full, 0)
        self.expire()
