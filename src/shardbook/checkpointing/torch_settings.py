r"""# The blocks of PyTorch that change checkpoints

> Three blocks of `torch.utils.checkpoint` change these checkpoints in the same way as PyTorch's own.

PyTorch has three blocks, all in `torch.utils.checkpoint`, that apply to every
checkpoint inside them. A program may open such a block far away from the call of a
checkpoint, for example to get more information about an error in one run:

| block | effect | around |
|---|---|---|
| `set_checkpoint_early_stop(False)` | second runs go on to their end | the forward pass |
| `set_checkpoint_debug_enabled(True)` | messages list all operations | the forward pass |
| `GraphExecGroup()` | backward passes share one recomputation | those backward passes |

The first two blocks override the options `early_stop` and `debug`.

The last block is for a backward pass in parts, as in pipeline parallelism:
`autograd.grad` first computes the gradients of the inputs, and later those of the
weights. Without the block each part runs the function again. Inside the block the
tensors of the first recomputation stay until their nodes unpack them. [A
reentrant](reentrant.py) checkpoint runs its function to the end and compares nothing,
so these blocks do not change it.

PyTorch has no public functions that read these settings, so [private
ones](torch_private.py) do.
"""

from __future__ import annotations

from shardbook.foundations.torch_private import (
    checkpoint_debug_block,
    early_stop_block,
)

__all__ = ["debug_in_force", "early_stop_in_force"]


def early_stop_in_force(option: bool) -> bool:
    """Whether a second run ends early.

    :param option: what holds outside of all blocks
    """
    block = early_stop_block()
    return option if block is None else block


def debug_in_force(option: bool) -> bool:
    """Whether messages list all operations.

    :param option: what holds outside of all blocks
    """
    block = checkpoint_debug_block()
    return option if block is None else block
