r"""# Unequal numbers of batches

> A rank that has no more batches repeats its last one with the weight zero, until all ranks are through.

Each forward and backward pass of a sharded model is made by all ranks together. If rank
0 has three batches and rank 1 has two, rank 0 would [wait](leaving.py) in its third
step for a rank that never comes. Either rank 0 leaves its last batch out, or rank 1
takes part without one. `join` does both, in the loop itself:

```python
for batch, weight in join(batches):
    loss = weight * loss_fn(model(batch))
    loss.backward()
    clip_grad_norm_(model, 1.0)
    optimizer.step()
    optimizer.zero_grad()
```

| | step 1 | step 2 | step 3 |
|---|---|---|---|
| rank 0 | batch 1, weight 1 | batch 2, weight 1 | batch 3, weight 1 |
| rank 1 | batch 1, weight 1 | batch 2, weight 1 | batch 2, weight 0 |

Before each step the ranks add up how many of them still have a batch: one number of
eight bytes travels. A rank without one repeats its last batch, so it makes the same
exchanges as the others, steps its optimizer, and clips by the same norm. Its loss has
the weight zero, and so has its gradient. In the last step above the mean gradient is

$$\frac{1}{N_d}\,(g_0 + 0 \cdot g_1)$$

as under PyTorch's `Join` with `DistributedDataParallel`, which divides by all ranks,
too. Divided by the ranks that have a batch it is larger, and that is the option
`divide_by_initial_world_size=False`.

PyTorch's `Join` is a context around the loop: a rank that leaves the loop repeats the
exchanges of the others from inside of the context. Only exchanges can be repeated so,
and no clipping, no schedule of learning rates and no step of an optimizer that a
sharded rank has to take for its own slices. A loop that all ranks walk to the end needs
no such repetition.

A repeated batch is not nothing. It counts in the running statistics of a batch norm on
its rank. A parameter that only this batch uses gets the gradient zero. And zero times a
loss that is infinite or NaN is NaN.

:notation $N_d$: `world_size`, the number of ranks
:notation $g_r$: the gradient of rank $r$
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from shardbook.foundations.collectives import all_reduce, world

__all__ = ["join"]

B = TypeVar("B")
# sidelit: show


def join(
    batches: Iterable[B],
    *,
    group: Any = None,
    divide_by_initial_world_size: bool = True,
    shortest: bool = False,
) -> Iterator[tuple[B, float]]:
    """Walk through unequal numbers of batches on all ranks together.

    All ranks walk to the end of the loop. A `break` has to be taken on all of them in
    the same step.

    :param batches: what this rank has, such as a `DataLoader`
    :param group: the ranks that share the model; `None` means all
    :param divide_by_initial_world_size: `True` averages the gradients over all ranks,
        so a rank without a batch counts as a gradient of zero; `False` averages over
        those that have one
    :param shortest: end with the rank that is through first, and leave the batches out
        that the others have left
    :returns: in each step a batch and the number to multiply its loss by
    :raises ValueError: on every rank, if one of them has no batch at all and others do
    :raises RuntimeError: if there is no process group
    """
    _, world_size = world(group)
    remaining, nothing = iter(batches), object()
    last: Any = nothing
    while True:
        batch = next(remaining, nothing)
        active = count(batch is not nothing, group)
        if active == 0 or (shortest and active < world_size):
            return
        if last is nothing and active < world_size:
            raise ValueError(
                f"{world_size - active} of {world_size} ranks have no batch at all, so "
                "they have none to repeat; give each rank at least one"
            )
        weight = 1.0 if divide_by_initial_world_size else world_size / active
        last = last if batch is nothing else batch
        yield last, 0.0 if batch is nothing else weight


def count(here: bool, group: Any) -> int:
    """On how many ranks something is so."""
    number = torch.tensor([int(here)], device=device_of(group))
    all_reduce(number, group=group)
    return int(number.item())


def device_of(group: Any) -> torch.device:
    """A device on which the ranks of a group can exchange."""
    kinds = [pair.split(":")[0] for pair in dist.get_backend_config(group).split(",")]
    return torch.device("cpu" if "cpu" in kinds else kinds[0])
