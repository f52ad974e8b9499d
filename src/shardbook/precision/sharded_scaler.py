r"""# Loss scaling over ranks

> If the gradients of one rank overflow, all ranks skip the step and halve the scale
> together.

A sharded gradient may be infinite in a single element, and that element lies in the
part of one rank. Suppose each rank used [the scaler of one process](loss_scaling.py).
Then this rank would skip the step and halve $S$, while the other ranks find only finite
gradients:

| | rank 0 | rank 1 |
|---|---|---|
| overflow | yes | no |
| the step | is skipped | trains this rank's part of the model |
| the next $S$ | 32768 | 65536 |
| the mean of the next gradients, which are $g$ on both ranks, scaled | $49152\,g$ | $49152\,g$ |
| the same mean, unscaled by each rank's $S$ | $1.5\,g$ | $0.75\,g$ |

Only a part of the model has taken the step. From then on the gradients are wrong, and
no error is raised. AdamW partly hides the fault, because it divides each gradient by
its usual size.

So the ranks have to agree. Each rank has [a flag](unscaling.py) for the gradients of an
optimizer, with 1 for an overflow. One all-reduce of this number gives all ranks the
largest flag. Then all of them skip the same steps and have the same $S$.

Which scaler a program needs depends on where the gradients are after their exchange:

| gradients | examples | scaler |
|---|---|---|
| whole on all ranks | stage 0; DDP, even with a sharded optimizer | [that of one process](loss_scaling.py) |
| split over the ranks | stages 1 to 3; FairScale's ShardedDDP | one that compares ranks |

In the first row all ranks have the same gradients, so all of them find the same
overflow.

```python
policy = Policy(param_dtype=torch.float16, output_dtype=torch.float32)
model = shard(model, policy=policy)
scaler = ShardedGradScaler()
for inputs, targets in batches:
    scaler.scale(loss_fn(model(inputs), targets)).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model, 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
```

The losses of [micro-batches](accumulate.py) are scaled one by one. The ranks exchange
the scaled gradients, and unscale them once, after the last micro-batch. Under `no_sync`
an infinite gradient stays on its rank until the exchange. The mean is then infinite or
NaN, whatever the other ranks contribute.

A model that [steps in its backward pass](step_in_backward.py) uses its gradients before
the scaler can divide them, so its parameters would move $S$ times too far. Therefore
`scale` searches autograd's graph for such parameters, and refuses them. The inside of a
[reentrant checkpoint](reentrant.py) is not in the graph. If it hides all such
parameters, only `unscale_` refuses, and by then the parameters have moved.

If several optimizers share a model, [clipping](clip.py) still computes one norm of all
gradients. An overflow in the gradients of one optimizer makes this norm infinite or
NaN, and then clipping sets the finite gradients of the other optimizers to 0.

:notation $S$: `factor`, the loss scale
:notation $g$: the gradients before they are scaled
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from shardbook.foundations.collectives import all_reduce_max
from shardbook.foundations.exchange_order import Order
from shardbook.guards.optimizer_guard import refuse_waiting
from shardbook.parameters.flat import Flat, owner_of
from shardbook.precision.loss_scaling import GradScaler
from shardbook.precision.unscaling import divide_and_check
from shardbook.training.step_in_backward import refuse_late

__all__ = ["ShardedGradScaler"]


class ShardedGradScaler(GradScaler):
    """Scale losses, and skip a step on all ranks if the gradients of one rank overflow.

    This scaler is used like [that of one process](loss_scaling.py#GradScaler). It needs
    no process group, because each sharded parameter refers to its own. All ranks must
    make the same calls, start from the same `init_scale`, and load the same state.

    `unscale_` is collective, and so is a `step` that calls it. Both can raise these
    errors in addition to those of one process:

    :raises ValueError: if an optimizer has no sharded parameter, or its parameters lie
        on other ranks than those of the scaler's other optimizers
    :raises RuntimeError: if gradients still wait for their exchange, or a step in the
        backward pass has consumed them
    :raises Disagreement: on every rank, if one rank does not unscale
    """

    # The ranks that share this $S$; `None` before the first `unscale_`.
    ranks: list[int] | None = None

    def divide(self, optimizer: Optimizer) -> Tensor | None:
        """Divide the gradients of an optimizer, and return whether any rank has an
        overflow.

        The ranks compare their flags in all stages. In stage 0 each rank has the whole
        gradient, and where a mesh replicates the model each replica has the same one.
        So in these cases the flags are equal already, unless a program has changed its
        gradients. The comparison costs four bytes, which is cheaper than relying on
        that.
        """
        flats = vectors(optimizer)
        order = self.order_of(optimizer, flats)
        for flat in flats:
            refuse_waiting(flat)
        refuse_late(optimizer)
        flag = divide_and_check(optimizer, self.factor)
        # Gradients arrive on all ranks or on none. A rank whose part of a parameter is
        # empty has an empty gradient, so it takes part, too.
        if flag is not None:
            take_largest(flag, order, flats[0])
        return flag

    # sidelit: depth Optimizers without sharded parameters, or on other ranks than the scaler's.

    def order_of(self, optimizer: Optimizer, flats: list[Flat]) -> Order:
        """Find the order of exchanges among the ranks that share an optimizer's
        parameters.

        A scaler has one $S$ for all its optimizers, so their parameters must lie on the
        same ranks. Suppose one optimizer has parameters on ranks 0 and 1, and another
        on ranks 0 to 3. An overflow in the first would change $S$ on ranks 0 and 1, and
        the second would divide by two different numbers.
        """
        name = type(optimizer).__name__
        if not flats:
            raise ValueError(
                f"this {name} has no sharded parameter, so the scaler cannot know which "
                "ranks to ask; shard the model, or use GradScaler for this optimizer"
            )
        for flat in flats:
            ranks = dist.get_process_group_ranks(flat.order.group)
            if self.ranks not in (None, ranks):
                raise ValueError(
                    f"this {name} has parameters on ranks {ranks}, and the scaler serves "
                    f"ranks {self.ranks}; use one scaler for each group of ranks"
                )
            self.ranks = ranks
        order: Order = flats[0].order
        return order


def vectors(optimizer: Optimizer) -> list[Flat]:
    """The flat vectors that hold an optimizer's parameters."""
    parameters = (
        parameter for group in optimizer.param_groups for parameter in group["params"]
    )
    return list(dict.fromkeys(filter(None, map(owner_of, parameters))))


@torch.no_grad()
def take_largest(flag: Tensor, order: Order, flat: Flat) -> None:
    """Replace a flag by the largest flag of all ranks.

    A flag is 0 or 1 and never NaN, because on some backends a maximum loses a NaN. A
    sum would be wrong: a fused optimizer skips its step only if the flag is exactly 1,
    and two overflows would add up to 2.

    Over gloo, each of two ranks sends 4 bytes; with more ranks, some send 8.
    """
    # If a rank does not unscale, the others raise an error instead of waiting forever.
    order.begin("unscaling")
    order.before("compare", "the overflow flags", flat.layout.slots[0].names[0])
    largest = all_reduce_max(flag, group=order.group)
    order.watch(largest.works)
    largest.wait()
