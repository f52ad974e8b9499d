r"""# Stage 2: the gradients are split

> A gradient leaves as soon as it is complete, and only this rank's piece of the mean stays.

[Stage 1](zero1.py) needs only its piece of the mean gradient, but it keeps all
gradients until the end of the backward pass. The backward pass computes them one unit
after the other. So each unit's gradients can be exchanged as soon as its own backward
pass has ended, while the next unit computes:

| | parameters | gradients | AdamW |
|---|---|---|---|
| stage 1 | $4\,\Psi_u$ | $4\,\Psi_u$ | $8\,\Psi_u / N_d$ |
| stage 2 | $4\,\Psi_u$ | $4\,\Psi_u / N_d$ | $8\,\Psi_u / N_d$ |

The same bytes are sent, at another time. In a chain of units at most two have a whole
vector of gradients at any moment: one whose gradients are being computed, and one whose
gradients are on their way. A unit around the chain, which is used at both of its ends,
keeps its vector during the whole backward pass. The exchange hides behind the
computation of the next unit, if that takes as long.

A program that adds up the gradients of several micro-batches has a choice. It can
exchange those of each micro-batch, and store only its pieces of the sum. Or it can keep
them whole under [`no_sync`](accumulate.py#no_sync) and exchange them once, and then
this stage saves nothing.

:notation $N_d$: `world_size`, the number of ranks
:notation $\Psi_u$: `numel`, the number of parameters of a unit
"""

# sidelit: hide
from __future__ import annotations

from typing import ClassVar

from shardbook.zero.zero1 import Zero1

__all__ = ["Zero2"]
# sidelit: show


class Zero2(Zero1):
    """A unit of whose gradients each rank keeps a part.

    All that changes is the moment. [The conductor](conductor.py#Conductor.reduce) reads
    it here.

    Source: [ZeRO](bib:rajbhandari2020zero), stage 2 ($P_{os+g}$).
    """

    stage: ClassVar[int] = 2
    reduces_early: ClassVar[bool] = True
