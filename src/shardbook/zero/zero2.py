r"""# Stage 2: the gradients are split

> Each unit's gradients are exchanged as soon as they are complete, and a rank keeps its piece of the mean.

[Stage 1](zero1.py) needs only its piece of the mean gradient, but keeps all gradients
until the end of the backward pass. That is not necessary, because the backward pass
computes them one unit after the other. In stage 2 each unit's gradients are exchanged
when its own backward pass has ended, while the next unit computes:

| | parameters | gradients | AdamW |
|---|---|---|---|
| stage 1 | $4\,\Psi_u$ | $4\,\Psi_u$ | $8\,\Psi_u / N_d$ |
| stage 2 | $4\,\Psi_u$ | $4\,\Psi_u / N_d$ | $8\,\Psi_u / N_d$ |

Stage 2 sends the same bytes as stage 1, at an earlier time. In a chain of units at most
two hold a whole vector of gradients at any moment: one unit computes its gradients, and
those of another are on their way. A unit around the chain, such as an embedding that is
also the output layer, is used at both ends and keeps its vector during the whole
backward pass. The exchange hides behind the computation of the next unit, if that
computation takes at least as long.

A program that adds up the gradients of several micro-batches has a choice. It can
exchange the gradients of each micro-batch, and store only its pieces of the sum. Or it
can keep whole gradients under [`no_sync`](accumulate.py#no_sync) and exchange them
once, but then stage 2 saves no memory.

:notation $N_d$: `world_size`, the number of ranks
:notation $\Psi_u$: `numel`, the number of parameters of a unit
:notation $P_{os+g}$: the paper's name for this stage
"""

from __future__ import annotations

from typing import ClassVar

from shardbook.zero.zero1 import Zero1

__all__ = ["Zero2"]


class Zero2(Zero1):
    """A unit of whose gradients each rank keeps a part.

    Stage 2 differs from stage 1 only in the moment of the exchange, which [the
    conductor](conductor.py#Conductor.reduce) chooses by `reduces_early`.

    Source: [ZeRO](bib:rajbhandari2020zero), stage 2 ($P_{os+g}$).
    """

    stage: ClassVar[int] = 2
    reduces_early: ClassVar[bool] = True
