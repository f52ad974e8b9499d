r"""# Gradient accumulation over micro-batches

> Inside `no_sync` each rank adds up whole gradients, and all ranks exchange the sum
> once: less traffic, more memory.

If a batch does not fit into memory, you can cut it into micro-batches, and add up their
gradients before the optimizer steps. By default each backward pass exchanges its own
gradients, and the mean is [added](gradients.py#FlatWithGradients.accumulate) to the
mean of the earlier micro-batches. So 4 micro-batches send 4 times the gradients of one
step. Alternatively, each rank first adds up its own gradients, and the ranks exchange
the sum once:

```python
count = len(micro_batches)
for inputs, targets in micro_batches[:-1]:
    with no_sync(model):
        (loss_fn(model(inputs), targets) / count).backward()
inputs, targets = micro_batches[-1]
(loss_fn(model(inputs), targets) / count).backward()
optimizer.step()
```

Each loss is divided by the number of micro-batches. Most losses are means over their
batch, so the gradients of 4 micro-batches add up to 4 times the gradient of the whole
batch. If the micro-batches differ in size, weight each loss by its share of the batch
instead.

A gradient that is not exchanged yet is whole: a unit needs $4\,\Psi_u$ bytes for it
instead of $4\,\Psi_u/N_d$. Under a [16-bit policy](policy.py) the number is the same,
because waiting gradients are added up in FP32: in BF16 [a sum of ones stops at
256](rounding.py).

In stage 3 the parameters are still gathered for each micro-batch. Stages 1 and 2 gather
them once, for the first micro-batch, since no optimizer may step while gradients wait.
These stages gather again only if the program [changes the
parameters](fresh_start.py#expire) in another way, which has to happen on all ranks.

`no_sync` also changes the order of the additions. `DistributedDataParallel` under its
own `no_sync` adds up first and averages once, as this block does. So on two ranks the
results of both are equal bit for bit. With an exchange for each micro-batch the last
bits may differ.

:notation $N_d$: `world_size`, the number of ranks that share the unit
:notation $\Psi_u$: `numel`, the number of parameters of the unit
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from shardbook.zero.conductor import conductor_of

__all__ = ["no_sync"]


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """A block in which backward passes keep their whole gradients on this rank.

    The next backward pass outside the block adds its own gradients and exchanges the
    sum. An optimizer that steps before this exchange is
    [refused](optimizer_guard.py#before_step). As in an unsharded program,
    [`zero_grad`](gradients.py#FlatWithGradients.hold) drops the sum. If the program
    changes a waiting gradient in any other way, the exchange [refuses it](waiting.py)
    with a RuntimeError on every rank. Either all ranks enter the block or none.

    :param model: the whole sharded model, because its units exchange together
    :raises ValueError: if the model is not sharded, or is only a part of a sharded one
    """
    conductor = conductor_of(model)
    before, conductor.syncing = conductor.syncing, False
    try:
        yield
    finally:
        conductor.syncing = before
