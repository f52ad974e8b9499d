r"""# Several micro-batches

> Gradients can be added up before they are exchanged, for the price of storing them whole.

A batch that does not fit into memory is cut into micro-batches, whose gradients add up
to one step. By default each backward pass exchanges its own gradients, and the mean is
[added](gradients.py#FlatWithGradients.accumulate) to that of the micro-batches before.
That sends as many gradients for each micro-batch as for a whole step. The alternative
is to add up on each rank first, and to exchange once:

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
batch. If the micro-batches differ in size, each loss is weighted by its share instead.

Gradients that are not exchanged are whole: $4\,\Psi_u$ bytes for a unit instead of
$4\,\Psi_u/N_d$. That is so under a [16-bit policy](policy.py), too: what waits is added
up in FP32, because in BF16 [a sum of ones stops at 256](rounding.py).

In stage 3 the parameters are gathered for each micro-batch all the same. Stages 1 and 2
gather them once, for the first: while gradients wait, no optimizer may step. They
gather again if something else [changes the parameters](fresh_start.py#expire),
which has to happen on all ranks.

The order of the additions changes, too. `DistributedDataParallel` under its own
`no_sync` also adds up first and averages once. With `no_sync` here, too, the results on
two ranks equal it bit for bit; with an exchange for each micro-batch the last bits may
differ.

:notation $N_d$: `world_size`, the number of ranks that share the unit
:notation $\Psi_u$: `numel`, the number of parameters of the unit
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from shardbook.zero.conductor import conductor_of

__all__ = ["no_sync"]
# sidelit: show


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Backward passes in this block keep their gradients on this rank, whole.

    The next backward pass outside of the block adds its own and exchanges the sum. An
    optimizer that steps before is [refused](optimizer_guard.py#before_step). As in an
    unsharded program, [`zero_grad`](gradients.py#FlatWithGradients.hold) drops what has
    been added up. Any other change of a gradient before that exchange [is
    refused](waiting.py) by it, with a RuntimeError on every rank. Either all ranks
    enter the block or none.

    :param model: a model that was sharded, as a whole: its units exchange together
    :raises ValueError: if the model is not sharded, or is only a part of what was
    """
    conductor = conductor_of(model)
    before, conductor.syncing = conductor.syncing, False
    try:
        yield
    finally:
        conductor.syncing = before
