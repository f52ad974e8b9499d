r"""# ZeRO-R: activations, buffers and fragmentation

> ZeRO-R shrinks the memory besides parameters, gradients and optimizer state.

A model of 1.5 billion parameters takes 24 GB of [model states](memory.py) in mixed
precision. The [ZeRO paper](bib:rajbhandari2020zero) counts what else its training
takes, for 32 sequences of 1024 positions: 60 GB of activations, or 8 GB with activation
checkpointing, and 6 GB for one FP32 vector of all gradients. In extreme cases the
authors saw a job run out of memory while more than 30 % of it was free. The paper calls
this memory the *residual states*. The three stages do not touch it. ZeRO-R, the paper's
other half, has four techniques for it:

| | ZeRO-R | in this book |
|---|---|---|
| $P_a$ | each rank keeps a piece of a common checkpoint | [`partition`](residual.py#partition), used below |
| $P_{a+\text{cpu}}$ | these pieces wait on the host | [`partition(offload=True)`](residual.py#partition) |
| $C_B$ | buffers have a constant size | the flat vectors of [units](unit.py) |
| $M_D$ | memory is allocated in advance | not done, for the reasons below |

**Partitioned activations.** Let two ranks [share every matrix](tensor_parallel.py) of a
block. Both read the same input of $BTd$ values. With [a
checkpoint](checkpointing.py) around the block both keep this input until the backward
pass, so it is stored twice. With `partition` each rank keeps one half. Before the block
is recomputed, the ranks gather the whole input. In this program a rank keeps for the
block

$$\frac{4\,BTd}{N} \text{ bytes instead of } 4\,BTd$$

The price is an all-gather, beside the all-reduces that tensor parallelism sends anyway.
An all-reduce sends twice as much as an all-gather of the same vector:

| one block with a checkpoint | all-reduces | all-gathers | values sent by a rank |
|---|---|---|---|
| forward pass | 2 | | $4\,BTd\,(N-1)/N$ |
| recomputation | 1 | 1 | $3\,BTd\,(N-1)/N$ |
| backward pass | 2 | | $4\,BTd\,(N-1)/N$ |

The recomputation needs one all-reduce and not two, because it [stops
early](recomputation.py#Enough): nothing in the backward pass reads the sum at the
block's end. So `partition` sends 11 parts instead of 10.

Ranks of plain data parallel training read different batches, so they have no equal
checkpoints to share. `partition` would mix their values, and `partition(check=True)`
refuses that. For such ranks the checkpoint can [wait on the host](residual.py#offload).

**Buffers of constant size.** One vector for the gradients of the whole model makes the
largest messages, but it grows with the model. The paper's buffers keep one size for
every model. In this book each unit has vectors of its own, so the buffers have the size
of the largest unit. The planner's column *in flight* counts them. A GPT of 96 layers
has the same 252 MB there as one of 12 layers:

>>> from shardbook.planning.planner import layouts_of, own_bytes
>>> for layers in (12, 96):
...     config = gpt.Config(layers=layers, width=1024, heads=16, context=1024)
...     own = own_bytes(layouts_of(config, 8), 3, "adamw", extra=0)
...     print(f"{own.in_flight / 1e6:.0f} MB")
252 MB
252 MB

You choose the size with the argument `units` of [`shard`](model.py#shard). There is no
option for a number of bytes.

**Defragmentation.** A checkpoint is stored until the backward pass, and the activations
around it are freed at once. If an allocator places them in turns, only small gaps
become free, and a large request fails although their sum would be enough. The paper
therefore copies each checkpoint and each gradient into memory that was allocated in
advance. This book does not, for three reasons. The blocks of a transformer request the
same sizes again and again, so freed memory fits a later request. A copy costs time, and
the number and sizes of all checkpoints would have to be known before the first step.
And PyTorch's allocator for CUDA has its own remedy since then: with
`PYTORCH_ALLOC_CONF=expandable_segments:True` it maps free pages into one range of
addresses, so gaps of pages can be used together. Try it if `memory_reserved` is far
above `memory_allocated`.

```sh
torchrun --standalone --nproc-per-node 2 -m shardbook.parallel zero-r
```

:notation $N$: `world_size`, the number of ranks that share each matrix
:notation $d$: `config.width`, the number of values of one position
:notation $B$: the number of sequences in a batch
:notation $T$: the number of positions of a sequence
:notation $P_a$: the paper's name for partitioned activations
:notation $P_{a+\text{cpu}}$: the same with the pieces on the host
:notation $C_B$: the paper's name for buffers of a constant size
:notation $M_D$: the paper's name for memory without gaps
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import Tensor

from shardbook.checkpointing.checkpointing import checkpoint
from shardbook.models import gpt
from shardbook.streaming.residual import piece_numel

__all__ = ["checkpoint_bytes", "logits"]


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
