r"""# Unequal numbers of batches on the ranks

> A rank without further batches repeats its last one with weight zero, until all ranks have finished.

All ranks run each forward and backward pass of a sharded model together. If rank 0 has
three batches and rank 1 has two, rank 0 would [wait](leaving.py) in its third step for
a rank that never comes. Either rank 0 leaves out its last batch, or rank 1 takes part
in the third step without a batch of its own. `join` offers both, in the training loop
itself:

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

Before each step the ranks count how many of them still have a batch, by an all-reduce
of one number of eight bytes. A rank without a batch repeats its last one, so it makes
the same exchanges as the others, clips by the same norm, and steps its optimizer. Its
loss has weight zero, so its gradient is zero. In step 3 above the mean gradient is

$$\frac{1}{N_d}\,(g_0 + 0 \cdot g_1)$$

PyTorch's `Join` with `DistributedDataParallel` also divides by all ranks. With
`divide_by_initial_world_size=False` both divide by the number of ranks that have a
batch, and the mean is larger.

PyTorch's `Join` is a context around the loop: a rank that has left the loop repeats the
exchanges of the others inside the context. In this way only exchanges can be repeated.
But a sharded rank also has to clip, to change its learning rate, and to step the
optimizer for its own slices. So here all ranks run the loop to its end.

A repeated batch still has three effects. It counts in the running statistics of a batch
norm on its rank. A parameter that only this batch uses gets a gradient of zero instead
of none. And zero times an infinite loss is NaN.

:notation $N_d$: `world_size`, the number of ranks
:notation $g_r$: the gradient of rank $r$
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from shardbook.foundations.collectives import all_reduce, world

__all__ = ["join"]

# sidelit: hide
B = TypeVar("B")
# sidelit: show


def join(
    batches: Iterable[B],
    *,
    group: Any = None,
    divide_by_initial_world_size: bool = True,
    shortest: bool = False,
) -> Iterator[tuple[B, float]]:
    """Iterate over unequal numbers of batches on all ranks together.

    All ranks run the loop to its end. If a program leaves the loop by `break`, all
    ranks have to do so in the same step.

    :param batches: the batches of this rank, such as a `DataLoader`
    :param group: the ranks that share the model; `None` means all
    :param divide_by_initial_world_size: `True` averages the gradients over all ranks,
        so a rank without a batch counts as a gradient of zero; `False` averages over
        the ranks that have a batch
    :param shortest: whether the loop ends as soon as one rank has no more batches; the
        remaining batches of the others are left out
    :returns: in each step a batch and the factor for its loss
    :raises ValueError: on every rank, if some ranks have batches and others have none
        at all
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
    """Count the ranks on which a condition holds."""
    number = torch.tensor([int(here)], device=device_of(group))
    all_reduce(number, group=group)
    return int(number.item())


def device_of(group: Any) -> torch.device:
    """A device whose tensors the backend of a group can exchange."""
    kinds = [pair.split(":")[0] for pair in dist.get_backend_config(group).split(",")]
    return torch.device("cpu" if "cpu" in kinds else kinds[0])
