r"""# Tensor parallelism

> Each rank stores a part of every matrix and computes a part of every product, and the
> ranks add up what they have found.

ZeRO splits what is *stored*. Each rank still computes with whole matrices, so the
largest layer has to fit on one device for a moment. In a transformer of width 65,536 the
layer that widens each position fourfold has 17.2 billion weights: 34 GB in 16 bits, and
as much again for their gradient. Both must lie in one piece on a device of 80 GB. Tensor
parallelism splits the *computation* and never gathers a matrix. It is also called model
parallelism, and the split that this chapter builds is that of
[Megatron-LM](bib:shoeybi2019megatron).

Take two linear layers with a nonlinear function between them, $Y = f(XA)\,B$, on two
ranks. Cut $A$ by its columns and $B$ by its rows:

$$
f\left(X\,[A_0\ A_1]\right) \begin{bmatrix} B_0 \\ B_1 \end{bmatrix}
= f(XA_0)\,B_0 + f(XA_1)\,B_1
$$

Rank $r$ computes its term alone, because $f$ acts on each value by itself. One
all-reduce adds the terms. Attention can be cut the same way: a rank computes some of the
heads, and the matrix that merges the heads is cut by its rows.

What does that cost? Of one block each rank sends four all-reduces of the activations,
two in the forward pass and two in the backward pass. ZeRO-3 sends parameters instead:
two gathers and one reduce-scatter. The GPT of this book has $12\,d^2$ weights in a block,
and $BT$ positions of $d$ values pass through it:

| one block, values sent by a rank | amount | grows with |
|---|---|---|
| ZeRO-3 | $3 \cdot 12\,d^2\,(N-1)/N$ | the square of the width |
| tensor parallelism | $4 \cdot 2\,BTd\,(N-1)/N$ | the width, and the tokens of a batch |

The two are equal where $BT = 4.5\,d$. With a width of 4,096 that is 18,432 tokens: beyond
it ZeRO-3 sends less, below it tensor parallelism. The bytes alone do not decide, though.
A gather of ZeRO-3 can start early and hide behind the computation before it. An
all-reduce of tensor parallelism stands between two products, so the ranks wait for it.
It belongs on the fastest wires there are, those inside of one machine.

All ranks of a tensor-parallel group see the *same* batch. That is the other difference:
ZeRO is data parallelism, and more of its ranks mean a larger batch.

```sh
torchrun --standalone --nproc-per-node 2 -m shardbook.parallel tensor
```

:figure: columns_and_rows
:notation $N$: `world_size`, the number of ranks that share each matrix
:notation $d$: `config.width`, the number of values of one position
:notation $B$: the sequences in a batch
:notation $T$: the positions of a sequence
"""

# sidelit: hide
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardbook.foundations.collectives import all_reduce, world
from shardbook.models.gpt import Block

__all__ = ["ColumnLinear", "RowLinear", "split_block"]
# sidelit: show


class Enter(torch.autograd.Function):
    """The border into the split part: the value passes unchanged, and its gradients are added up.

    Every rank computes with the same input $X$, each with its own columns. So each rank
    has a part of the gradient of $X$, and the whole gradient is the sum of the parts.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # The gradient that autograd hands over may be read elsewhere, and `all_reduce`
        # writes into its argument.
        total = gradient.clone(memory_format=torch.contiguous_format)
        all_reduce(total, group=ctx.group)
        return total, None


class Leave(torch.autograd.Function):
    """The border out of the split part: the values are added up, and the gradient passes unchanged.

    Each term of the sum has the gradient of the sum. So the backward pass of this border
    sends nothing, as the forward pass of the other one does.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        # Nobody else reads the term of this rank, so the sum takes its place.
        ctx.mark_dirty(part)
        all_reduce(part, group=group)
        return part

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class ColumnLinear(nn.Module):
    """The first layer of a pair: this rank computes some of the output's values.

    PyTorch stores the matrix of a linear layer transposed, so columns of $A$ are rows of
    `weight`.

    :param whole: the layer to take the values from
    :param rows: which values of the output this rank computes; 1-D, int64
    :param group: the ranks that share the layer
    """

    def __init__(self, whole: nn.Linear, rows: Tensor, group: Any = None) -> None:
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(whole.weight.detach()[rows].clone())
        self.bias = nn.Parameter(whole.bias.detach()[rows].clone())

    def forward(self, x: Tensor) -> Tensor:
        entered = Enter.apply(x, self.group)
        return F.linear(entered, self.weight, self.bias)


class RowLinear(nn.Module):
    """The second layer of a pair: this rank computes one term of the sum for every value of the output.

    :param whole: the layer to take the values from
    :param columns: which values of the input this rank has; 1-D, int64
    :param group: the ranks that share the layer
    """

    def __init__(self, whole: nn.Linear, columns: Tensor, group: Any = None) -> None:
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(whole.weight.detach()[:, columns].clone())
        self.bias = nn.Parameter(whole.bias.detach().clone())

    def forward(self, part: Tensor) -> Tensor:
        term = F.linear(part, self.weight)
        total: Tensor = Leave.apply(term, self.group)
        # The bias comes after the sum, and so it counts once. Every rank has all of it,
        # and computes the same gradient for it.
        return total + self.bias


def split_block(block: Block, group: Any = None) -> Block:
    """Replace the four linear layers of a GPT's block by this rank's parts of them, and return the block.

    The two norms are not split. Every rank has them whole, sees the same input, and gets
    the same gradient, because `Enter` adds up the gradients that come back.

    :param block: holds the same values on all ranks of the group
    :param group: the ranks that share the block; all ranks when it is `None`
    :raises ValueError: if the ranks cannot share the heads evenly
    """
    rank, count = world(group)
    attention, width = block.attention, block.expand.in_features
    if attention.heads % count:
        raise ValueError(
            f"{count} ranks cannot share {attention.heads} heads; choose a number of ranks that divides it"
        )
    own = piece(width, rank, count)
    # One matrix makes queries, keys and values, one below the other. This rank needs
    # its heads of each of them.
    rows = torch.cat([own, width + own, 2 * width + own])
    attention.split = ColumnLinear(attention.split, rows, group)  # type: ignore[assignment]
    attention.merge = RowLinear(attention.merge, own, group)  # type: ignore[assignment]
    attention.heads //= count
    hidden = piece(block.expand.out_features, rank, count)
    block.expand = ColumnLinear(block.expand, hidden, group)  # type: ignore[assignment]
    block.contract = RowLinear(block.contract, hidden, group)  # type: ignore[assignment]
    return block


def piece(length: int, rank: int, count: int) -> Tensor:
    """The numbers of this rank's values, of `length` values in `count` equal pieces.

    >>> piece(8, 1, 2)
    tensor([4, 5, 6, 7])
    """
    return torch.arange(length).view(count, -1)[rank]
