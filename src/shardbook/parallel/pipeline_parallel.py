r"""# Pipeline parallelism

> Each rank has some of the layers, and the batch passes through the ranks in small pieces.

A model is a chain of layers. Cut the chain into as many stages as there are ranks, and
give each rank one stage. Only activations cross a cut: the output of one stage in the
forward pass, and its gradient in the backward pass. For a sequence of 1,024 positions
and a width of 4,096 that is 16.8 MB in FP32, for any number of layers on each side. Of
all ways to split a model this one sends the least, so it suits slow wires between
machines.

**One batch at a time.** Rank 0 computes its stage and waits until the gradient comes
back. Meanwhile the other ranks compute, one after the other. With four ranks each of
them works a quarter of the time.

**Micro-batches.** Cut the batch into $m$ pieces. As soon as rank 0 has sent the first
piece, it begins with the second. Each rank still waits for the first piece at the
beginning, and for the last gradient at the end. With $p$ stages these waits, the
**bubble**, are

$$ \frac{p - 1}{m + p - 1} $$

of the time. On four ranks that is 75% for one piece, 43% for four and 16% for
sixteen. [GPipe](bib:huang2019gpipe) is the schedule with all forward passes first.

**One forward, one backward.** With all forward passes first, a rank keeps the
activations of all $m$ pieces. But the last rank could run the first backward pass at
once. In the schedule [1F1B](bib:narayanan2021megatron) each rank first runs only as
many forward passes as there are stages after it. Then it alternates between one forward
pass and one backward pass. The bubble is the same, but rank $r$ keeps at most $p - r$
pieces, for any $m$.

**Further costs.** The stages must take equally long, and you must cut the model so.
Layers that share a weight, such as the first and the last layer of many models, should
not be on two ranks. And small pieces use a GPU less well.

```sh
torchrun --standalone --nproc-per-node 4 -m shardbook.parallel pipeline
```

:figure: pipeline_schedules
:notation $p$: `stages`, the number of stages and of ranks
:notation $m$: `pieces`, the number of micro-batches
:notation $r$: `rank`, the place of a stage in the chain
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardbook.foundations.collectives import world

__all__ = ["Action", "Stage", "all_forward_first", "bubble", "cut", "one_by_one"]


class Action(NamedTuple):
    """One pass of one micro-batch through one stage."""

    kind: Literal["forward", "backward"]
    piece: int


Schedule = Callable[[int, int, int], list[Action]]


def all_forward_first(rank: int, stages: int, pieces: int) -> list[Action]:
    """GPipe's schedule: all forward passes, then all backward passes.

    >>> [f"{kind[0]}{piece}" for kind, piece in all_forward_first(0, 2, 3)]
    ['f0', 'f1', 'f2', 'b0', 'b1', 'b2']
    """
    forward = [Action("forward", piece) for piece in range(pieces)]
    return forward + [Action("backward", piece) for piece in range(pieces)]


def one_by_one(rank: int, stages: int, pieces: int) -> list[Action]:
    """The 1F1B schedule: some forward passes first, then forward and backward in turn.

    Rank 0 of two is one piece ahead of rank 1. So it keeps two pieces, and rank 1 keeps
    one.

    >>> [f"{kind[0]}{piece}" for kind, piece in one_by_one(0, 2, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    >>> [f"{kind[0]}{piece}" for kind, piece in one_by_one(1, 2, 3)]
    ['f0', 'b0', 'f1', 'b1', 'f2', 'b2']
    """
    ahead = min(stages - rank - 1, pieces)
    actions = [Action("forward", piece) for piece in range(ahead)]
    for piece in range(pieces):
        if ahead + piece < pieces:
            actions.append(Action("forward", ahead + piece))
        actions.append(Action("backward", piece))
    return actions


def bubble(stages: int, pieces: int) -> float:
    """The share of a step in which a rank waits, if every pass of every stage takes equally long.

    >>> bubble(4, 1), bubble(4, 16)
    (0.75, 0.15789473684210525)
    """
    return (stages - 1) / (pieces + stages - 1)


def cut(layers: Sequence[nn.Module], rank: int, stages: int) -> nn.Sequential:
    """The layers of one stage, as equally divided as possible.

    >>> [len(cut([nn.Identity()] * 6, rank, 4)) for rank in range(4)]
    [1, 2, 1, 2]
    """
    first, last = (len(layers) * place // stages for place in (rank, rank + 1))
    return nn.Sequential(*layers[first:last])


class Stage:
    """One rank's part of the pipeline.

    It runs the passes of a schedule, and exchanges the activations and gradients at its
    cuts.

    :param layers: this rank's layers
    :param shape: the shape of one micro-batch's activations at every cut, FP32
    :param loss: the loss of a micro-batch from the last layer's output and the targets
    :param group: the ranks of the pipeline in the order of the chain; `None` means all
        ranks
    :param alone: makes the context of every backward pass except the last, such as
        [`no_sync`](accumulate.py#no_sync)
    """

    def __init__(
        self,
        layers: nn.Module,
        shape: Sequence[int],
        loss: Callable[[Tensor, Tensor], Tensor],
        group: Any = None,
        alone: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.layers, self.shape, self.loss = layers, shape, loss
        self.group, self.alone = group, alone
        self.rank, self.stages = world(group)
        self.most_kept = 0
        self.sends: list[tuple[dist.Work | None, Tensor]] = []

    def step(
        self,
        inputs: Sequence[Tensor],
        targets: Sequence[Tensor],
        schedule: Schedule = one_by_one,
    ) -> float:
        """Run the forward and backward passes of one step, which leave gradients in `.grad`.

        :param inputs: the micro-batches; other ranks than the first read only their
            number
        :param targets: the targets, which only the last rank reads
        :returns: the mean loss on the last rank, and 0 on the others
        """
        # For each piece under way: its input, and its output or its loss.
        kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.sends.clear()
        total, pieces = 0.0, len(inputs)
        for kind, piece in schedule(self.rank, self.stages, pieces):
            if kind == "forward":
                x, out = self.forward(inputs[piece], targets[piece], pieces)
                kept[piece] = x, out
                total += out.item() if self.is_last else 0.0
            else:
                with nullcontext() if piece == pieces - 1 else self.alone():
                    self.backward(*kept.pop(piece))
            self.most_kept = max(self.most_kept, len(kept))
        for work, _ in self.sends:
            if work is not None:
                work.wait()
        return total

    def forward(self, x: Tensor, target: Tensor, pieces: int) -> tuple[Tensor, Tensor]:
        """The forward pass of one piece."""
        if not self.is_first:
            # Autograd begins anew at a cut. So the received tensor is a leaf, and its
            # gradient is sent to the rank before.
            x = self.receive(self.rank - 1).requires_grad_()
        out: Tensor = self.layers(x)
        if self.is_last:
            # The gradients of the pieces are added up, so the loss of each is divided
            # by their number. The sum is then the gradient of the mean.
            return x, self.loss(out, target) / pieces
        self.send(out.detach(), self.rank + 1)
        return x, out

    def backward(self, x: Tensor, out: Tensor) -> None:
        """The backward pass of one piece."""
        if self.is_last:
            out.backward()
        else:
            out.backward(self.receive(self.rank + 1))
        if not self.is_first:
            assert x.grad is not None
            self.send(x.grad, self.rank - 1)

    def send(self, tensor: Tensor, to: int) -> None:
        """Start a message and continue. The tensor is kept until the message has gone."""
        tensor = tensor.contiguous()
        work = dist.isend(tensor, group=self.group, group_dst=to)
        self.sends.append((work, tensor))

    def receive(self, source: int) -> Tensor:
        """Wait for the next message of a neighbour; they arrive in the order of its sends."""
        tensor = torch.empty(*self.shape)
        dist.recv(tensor, group=self.group, group_src=source)
        return tensor

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.stages - 1
