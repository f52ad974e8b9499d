r"""# Stage 3: the parameters are split

> A unit exists in full only while it is used.

[Stage 2](zero2.py) has split everything but the parameters themselves, and with 64
ranks they are most of what is left. A parameter is used twice in a step, in the forward
pass of its unit and in the backward pass. The rest of the time it need not be there:

| | parameters | gradients | AdamW |
|---|---|---|---|
| stage 2 | $4\,\Psi_u$ | $4\,\Psi_u / N_d$ | $8\,\Psi_u / N_d$ |
| stage 3 | $4\,\Psi_u / N_d$ | $4\,\Psi_u / N_d$ | $8\,\Psi_u / N_d$ |

So before each use the unit allocates `full`, and afterwards it frees it. This time
there is a price: what was given back after the forward pass has to be gathered again
for the backward pass. A rank sends

$$3\,P_u\,\frac{N_d - 1}{N_d}$$

elements for a unit in a step: two all-gathers and one reduce-scatter. The other stages
send two thirds of that.

:figure: bytes_over_a_step
:notation $N_d$: `world_size`, the number of ranks that share the unit
:notation $\Psi_u$: `numel`, the number of parameters of the unit
:notation $P_u$: `padded`, the length of its flat vector with its padding
"""

# sidelit: hide
from __future__ import annotations

from typing import ClassVar

from shardbook.parameters.flat import Flat, resize
from shardbook.zero.zero2 import Zero2

__all__ = ["Zero3"]
# sidelit: show


class Zero3(Zero2):
    """A unit of whose parameters each rank stores a part.

    Source: [ZeRO](bib:rajbhandari2020zero), stage 3 ($P_{os+g+p}$).
    """

    stage: ClassVar[int] = 3

    def keep(self, flat: Flat) -> None:
        """The shard becomes a vector of its own, because `full` is emptied.

        Frozen parameters are split, too, since they take as much memory as others.
        """
        flat.keep_part(self.rank, apart=True)
        resize(flat.full, 0)

    def fetch(self) -> None:
        """Take the unit's memory, then gather.

        It is taken on the compute stream. The allocator hands out a block at once, even
        if an earlier computation that is queued on that stream will still read it, and
        relies on the order of the stream. [The gather](zero1.py#Zero1.fetch) writes
        from another stream. It waits for the compute stream, and so does not write into
        a block that is still read.
        """
        for flat in self.flats:
            resize(flat.full, flat.layout.padded)
        super().fetch()

    def empty(self) -> None:
        """Give the memory back.

        To drop the reference to the vector would free nothing, because the autograd
        graph keeps views of it for the backward pass. To shrink the storage under those
        views frees it. When the unit is gathered again, the same storage grows again,
        and the graph's views show the parameters as before.
        """
        for flat in self.flats:
            resize(flat.full, 0)
        self.expire()
