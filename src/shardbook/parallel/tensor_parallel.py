r"""# Tensor parallelism and ZeRO

> Each rank stores a part of every matrix and computes a part of every product. The ranks add up the
> results.

ZeRO splits what is *stored*. Each rank still computes with whole matrices, so the
largest layer must fit on one device for a moment. In a transformer of width 65,536 the
layer that widens each position fourfold has 17.2 billion weights. They take 34 GB in 16
bits, and their gradient as much again. Both must fit on a device of 80 GB, each in one
piece. Tensor parallelism splits the *computation* and never gathers a matrix. It is
also called model parallelism. This chapter splits a model as
[Megatron-LM](bib:shoeybi2019megatron) does.

The largest models use ZeRO and tensor parallelism together, so two sections combine
them. The ranks that share a matrix keep the same activation checkpoints, and
[ZeRO-R](#module/zero-r) divides these among the ranks. [A mesh of three
dimensions](#module/three-dimensions-of-parallelism) adds a pipeline.

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
:notation $T$: the number of positions of a sequence
:notation $P_a$: the paper's name for partitioned activations
:notation $P_{a+\text{cpu}}$: the same with the pieces on the host
:notation $C_B$: the paper's name for buffers of a constant size
:notation $M_D$: the paper's name for memory without gaps
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from shardbook.checkpointing.checkpointing import checkpoint
from shardbook.foundations.collectives import all_reduce, world
from shardbook.models import gpt
from shardbook.models.gpt import Block
from shardbook.parallel.pipeline_parallel import Stage, cut
from shardbook.streaming.residual import piece_numel
from shardbook.training.accumulate import no_sync
from shardbook.zero.model import shard

__all__ = [
    "AXES",
    "ColumnLinear",
    "RowLinear",
    "checkpoint_bytes",
    "logits",
    "split_block",
    "stage_of",
]


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


# ## ZeRO-R: activations, buffers and fragmentation
#
# > ZeRO-R shrinks the memory besides parameters, gradients and optimizer state.
#
# A model of 1.5 billion parameters takes 24 GB of [model states](memory.py) in mixed
# precision. The [ZeRO paper](bib:rajbhandari2020zero) counts what else its training
# takes, for 32 sequences of 1024 positions: 60 GB of activations, or 8 GB with activation
# checkpointing, and 6 GB for one FP32 vector of all gradients. In extreme cases the
# authors saw a job run out of memory while more than 30% of it was free. The paper calls
# this memory the *residual states*. The three stages do not touch it. ZeRO-R, the paper's
# other half, has four techniques for it:
#
# | | ZeRO-R | in this book |
# |---|---|---|
# | $P_a$ | each rank keeps a piece of a common checkpoint | [`partition`](residual.py#partition), used below
# | $P_{a+\text{cpu}}$ | they are kept on the host | [`partition(offload=True)`](residual.py#partition) |
# | $C_B$ | buffers have a constant size | the flat vectors of [units](unit.py) |
# | $M_D$ | memory is allocated in advance | not done, for the reasons below |
#
# **Partitioned activations.** Let two ranks [share every matrix](tensor_parallel.py) of a
# block. Both read the same input of $BTd$ values. With [a
# checkpoint](checkpointing.py) around the block both keep this input until the backward
# pass, so it is stored twice. With `partition` each rank keeps one half. Before the block
# is recomputed, the ranks gather the whole input. In this program a rank keeps for the
# block
#
# $$\frac{4\,BTd}{N} \text{ bytes instead of } 4\,BTd$$
#
# The price is an all-gather, beside the all-reduces that tensor parallelism sends anyway.
# An all-reduce sends twice as much as an all-gather of the same vector:
#
# | one block with a checkpoint | all-reduces | all-gathers | values sent by a rank |
# |---|---|---|---|
# | forward pass | 2 | | $4\,BTd\,(N-1)/N$ |
# | recomputation | 1 | 1 | $3\,BTd\,(N-1)/N$ |
# | backward pass | 2 | | $4\,BTd\,(N-1)/N$ |
#
# The recomputation needs one all-reduce and not two, because it [stops
# early](segment.py#Enough): nothing in the backward pass reads the sum at the
# block's end. So `partition` sends 11 parts instead of 10.
#
# Ranks of plain data parallel training read different batches, so they have no equal
# checkpoints to share. `partition` would mix their values, and `partition(check=True)`
# refuses that. For such ranks the checkpoint can [be kept on the
# host](residual.py#offload) until the backward pass.
#
# **Buffers of constant size.** One vector for the gradients of the whole model makes the
# largest messages, but it grows with the model. The paper's buffers keep one size for
# every model. In this book each unit has vectors of its own, so the buffers have the size
# of the largest unit. The planner's column *in flight* counts them. A GPT of 96 layers
# has the same 252 MB there as one of 12 layers:
#
# >>> from shardbook.planning.planner import layouts_of, own_bytes
# >>> for layers in (12, 96):
# ...     config = gpt.Config(layers=layers, width=1024, heads=16, context=1024)
# ...     own = own_bytes(layouts_of(config, 8), 3, "adamw", extra=0)
# ...     print(f"{own.in_flight / 1e6:.0f} MB")
# 252 MB
# 252 MB
#
# You choose the size with the argument `units` of [`shard`](model.py#shard). There is no
# option for a number of bytes.
#
# **Defragmentation.** A checkpoint is stored until the backward pass, and the activations
# around it are freed at once. If an allocator places them in turns, only small gaps
# become free, and a large request fails although their sum would be enough. The paper
# therefore copies each checkpoint and each gradient into memory that was allocated in
# advance. This book does not, for three reasons. The blocks of a transformer request the
# same sizes again and again, so freed memory fits a later request. A copy costs time, and
# the number and sizes of all checkpoints would have to be known before the first step.
# And PyTorch's allocator for CUDA has its own remedy since then: with
# `PYTORCH_ALLOC_CONF=expandable_segments:True` it maps free pages into one range of
# addresses, so gaps of pages can be used together. Try it if `memory_reserved` is far
# above `memory_allocated`.
#
# ```sh
# torchrun --standalone --nproc-per-node 2 -m shardbook.parallel zero-r
# ```


def logits(
    model: gpt.GPT, tokens_BT: Tensor, keeping: AbstractContextManager[object]
) -> Tensor:
    """A forward pass with a checkpoint around each block.

    The context is entered around the call of a block only. Autograd saves one tensor
    there, the block's input. The embedding and the head are outside, so their saved
    tensors stay as they are.

    :param tokens_BT: the same on all ranks that share the matrices
    :param keeping: decides how the inputs of the blocks are kept, such as
        [`partition()`](residual.py#partition) or `nullcontext()`
    :returns: the logits, which do not depend on `keeping`
    """
    x: Tensor = tokens_BT
    for layer in model:
        if isinstance(layer, gpt.Block):
            with keeping:
                x = checkpoint(layer, x)
        else:
            x = layer(x)
    return x


def checkpoint_bytes(config: gpt.Config, sequences: int, ranks: int) -> int:
    """The bytes that a rank keeps for the inputs of all blocks, in FP32.

    >>> config = gpt.Config(layers=4, width=64, heads=4, context=32)
    >>> [checkpoint_bytes(config, 8, ranks) for ranks in (1, 2, 4)]
    [262144, 131072, 65536]

    :param sequences: the number of sequences in a batch
    :param ranks: the number of ranks that share each input
    """
    numel = sequences * config.context * config.width
    return config.layers * 4 * piece_numel(numel, ranks)


# ## Three dimensions of parallelism
#
# > ZeRO, tensor and pipeline parallelism in one job, in which each rank has a place on three axes.
#
# The three ways to split a model can be combined. Number the ranks by three coordinates:
# the stage of the pipeline, the part of the data, and the part of each matrix. Take eight
# ranks, with two parts on each axis. Rank 5 has the coordinates $(1, 0, 1)$: the second
# half of the layers, the first half of the data, the second half of each matrix.
#
# The product of the three sizes is the number of ranks. Reports of a model with a trillion
# parameters name 4,096 GPUs: 8 parts of each matrix, 64 pipeline stages, and 8 parts of
# the data.
#
# A group of ranks with two equal coordinates works along the third axis. Rank 5 adds up
# its terms with rank 4, exchanges parameters and gradients by ZeRO with rank 7, and
# receives activations from rank 1. With ZeRO-3 each rank stores $1/N$ of the model
# states, however the $N$ ranks are arranged.
#
# **Which dimension on which wires?** The answer follows from what each of them sends, and
# from what waits for it:
#
# | dimension | sends | hides behind computation | wires |
# |---|---|---|---|
# | tensor | activations, four times a block | no | the fastest, inside one machine |
# | data, by ZeRO-3 | parameters and gradients of each layer | yes, if gathered early | fast |
# | data, repeated | gradients once a step | yes | slower |
# | pipeline | activations, once a cut | yes, except in the bubble | the slowest, between machines |
#
# So neighbouring ranks share a matrix, and the stages of the pipeline are furthest apart.
# A mesh whose *last* dimension is the tensor dimension has this order. Its neighbouring
# ranks differ in the last coordinate first, and `torchrun` gives the ranks of one machine
# consecutive numbers.
#
# **ZeRO beside a pipeline.** Each micro-batch of a stage is a forward and a backward
# pass, and stage 3 gathers the parameters for each of them. In stage 1 the gradients of
# the micro-batches [are added up first](accumulate.py) and averaged once a step. From the
# first backward pass of the step on, gradients wait, and [no forward pass
# gathers](unit.py#Unit.expire). So under 1F1B [a unit is gathered much less
# often](unit.py#module/how-often-a-unit-is) than in stage 3, in the last stage of the
# pipeline once a step. A pipeline is therefore usually combined with stage 1. `stage_of`
# takes the stage as an argument, and the trained model is the same.
#
# A fourth dimension could split the sequence, and a fifth one the experts of a mixture.
# [Optimus](bib:xu2021optimus) cuts the tensor dimension differently. It arranges the
# ranks of a group as a square and cuts activations and matrices both ways, so that no
# rank has whole activations either.
#
# ```sh
# torchrun --standalone --nproc-per-node 8 -m shardbook.parallel three
# ```
#
# :figure: three_dimensions


AXES = ("pipeline", "data", "tensor")


def stage_of(
    config: gpt.Config, mesh: DeviceMesh, *, sequences: int, stage: int = 1
) -> Stage:
    """This rank's part of a GPT, split along all three axes.

    First the chain is cut, so that no rank computes on the layers of others. Then each
    block is split, and its remaining parameters are this rank's own. ZeRO comes last,
    and shards them over the ranks that hold the same ones.

    :param config: the whole model's shape
    :param mesh: three dimensions with the names of `AXES`
    :param sequences: the number of sequences in one micro-batch
    :param stage: ZeRO's stage along the data dimension
    :returns: its layers are sharded, and its parameters are for an optimizer
    """
    layers = list(gpt.GPT(config))
    group = mesh["tensor"].get_group()
    mine = cut(layers, mesh["pipeline"].get_local_rank(), mesh["pipeline"].size())
    for layer in mine:
        if isinstance(layer, gpt.Block):
            split_block(layer, group)
    shard(mine, stage=stage, mesh=mesh["data"])
    return Stage(
        mine,
        (sequences, config.context, config.width),
        gpt.loss,
        mesh["pipeline"].get_group(),
        alone=partial(no_sync, mine) if stage < 3 else nullcontext,
    )
