r"""# Tensor parallelism

> Each rank stores a part of every matrix and computes a part of every product. The ranks add up the
> results.

ZeRO splits what is *stored*. Each rank still computes with whole matrices, so the
largest layer must fit on one device for a moment. In a transformer of width 65,536 the
layer that widens each position fourfold has 17.2 billion weights. They take 34 GB in 16
bits, and their gradient as much again. Both must fit on a device of 80 GB, each in one
piece. Tensor parallelism splits the *computation* and never gathers a matrix. It is
also called model parallelism. This chapter splits a model as
[Megatron-LM](bib:shoeybi2019megatron) does.

Take two linear layers with a nonlinear function between them, $Y = f(XA)\,B$, on two
ranks. Cut $A$ by its columns and $B$ by its rows:

$$
f\left(X\,[A_0\ A_1]\right) \begin{bmatrix} B_0 \\ B_1 \end{bmatrix}
= f(XA_0)\,B_0 + f(XA_1)\,B_1
$$

Rank $r$ computes its term alone, because $f$ acts on each value independently. One
all-reduce adds the terms. Attention can be cut in the same way: each rank computes some
of the heads, and the matrix that merges the heads is cut by its rows.

**Costs.** In each block the ranks run four all-reduces of activations, two in the
forward pass and two in the backward pass. ZeRO-3 sends parameters instead, in two
gathers and one reduce-scatter. In a block the GPT of this book has $12\,d^2$ weights,
and $n$ positions of $d$ values pass through it:

| one block, values sent by a rank | amount | grows with |
|---|---|---|
| ZeRO-3 | $3 \cdot 12\,d^2\,(N-1)/N$ | the square of the width |
| tensor parallelism | $4 \cdot 2\,nd\,(N-1)/N$ | the width, and the tokens of a batch |

The two are equal where $n = 4.5\,d$. With a width of 4,096 that is 18,432 tokens. With
more tokens ZeRO-3 sends less, and with fewer tensor parallelism does. But the bytes
alone do not decide. A gather of ZeRO-3 can start early and hide behind the computation
before it. An all-reduce of tensor parallelism is between two products that need its
result, so the ranks wait for it. It belongs on the fastest wires, those inside one
machine.

All ranks of a tensor-parallel group read the *same* batch. That is the other
difference: ZeRO is data parallelism, so more of its ranks mean a larger batch.

```sh
torchrun --standalone --nproc-per-node 2 -m shardbook.parallel tensor
```

:figure: columns_and_rows
:notation $N$: `world_size`, the number of ranks that share each matrix
:notation $d$: `config.width`, the number of values of one position
:notation $n$: the number of positions in a batch
:notation $X$: the input of the first layer, one row for each position
:notation $A$: the matrix of the first layer
:notation $B$: the matrix of the second layer
:notation $f$: the function between the layers
:notation $Y$: the output of the second layer
:notation $r$: `rank`, the number of one rank
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardbook.foundations.collectives import all_reduce, world
from shardbook.models.gpt import Block

__all__ = ["ColumnLinear", "RowLinear", "split_block"]


class Enter(torch.autograd.Function):
    """The border into the split part, which adds up the gradients in the backward pass.

    Every rank computes with the same input $X$, each with its own columns. So each rank
    has a part of the gradient of $X$, and the whole gradient is the sum of the parts.
    In the forward pass the value passes unchanged.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # Autograd may use the gradient elsewhere, too, and `all_reduce` writes into its
        # argument. So the sum is computed in a copy.
        total = gradient.clone(memory_format=torch.contiguous_format)
        all_reduce(total, group=ctx.group)
        return total, None


class Leave(torch.autograd.Function):
    """The border out of the split part, which adds up the values in the forward pass.

    Each term of a sum has the gradient of the sum. So in the backward pass the gradient
    passes unchanged, and nothing is sent.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        # The term of this rank has no other reader, so the sum takes its place.
        ctx.mark_dirty(part)
        all_reduce(part, group=group)
        return part

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class ColumnLinear(nn.Module):
    """The first layer of a pair: this rank computes some values of the output.

    PyTorch stores the matrix of a linear layer transposed, so columns of $A$ are rows
    of `weight`.

    :param whole: the layer from which the values are copied
    :param rows: the values of the output that this rank computes; 1-D, int64
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
    """The second layer of a pair: this rank computes one term of every output value.

    :param whole: the layer from which the values are copied
    :param columns: the values of the input that this rank has; 1-D, int64
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
        # The bias is added after the sum, so it counts once. Every rank has all of it,
        # and computes the same gradient for it.
        return total + self.bias


def split_block(block: Block, group: Any = None) -> Block:
    """Replace the four linear layers of a GPT's block by this rank's parts of them.

    The two norms are not split. Every rank has them whole, reads the same input, and
    gets the same gradient, because `Enter` adds up the gradients.

    :param block: holds the same values on all ranks of the group
    :param group: the ranks that share the block; `None` means all ranks
    :returns: the block
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
    # its heads of each of the three.
    rows = torch.cat([own, width + own, 2 * width + own])
    attention.split = ColumnLinear(attention.split, rows, group)  # type: ignore[assignment]
    attention.merge = RowLinear(attention.merge, own, group)  # type: ignore[assignment]
    attention.heads //= count
    hidden = piece(block.expand.out_features, rank, count)
    block.expand = ColumnLinear(block.expand, hidden, group)  # type: ignore[assignment]
    block.contract = RowLinear(block.contract, hidden, group)  # type: ignore[assignment]
    return block


def piece(length: int, rank: int, count: int) -> Tensor:
    """The indices of this rank's values, of `length` values in `count` equal pieces.

    >>> piece(8, 1, 2)
    tensor([4, 5, 6, 7])
    """
    return torch.arange(length).view(count, -1)[rank]
