r"""# Loss scaling over ranks

> One rank overflows, and every rank skips the step.

A sharded gradient may be infinite in a single place, which lies in one rank's part.
[The scaler](loss_scaling.py) of this rank skips the step and halves $S$. The other
ranks have found nothing:

| | rank 0 | rank 1 |
|---|---|---|
| overflow | yes | no |
| the step | is skipped | trains this rank's part of the model |
| the next $S$ | 32768 | 65536 |
| the mean of the next gradients, $g$ on both ranks, as scaled | $49152\,g$ | $49152\,g$ |
| the same, unscaled | $1.5\,g$ | $0.75\,g$ |

Half of a step is taken. From then on the gradients are wrong, and no error is raised.
AdamW hides it in part, because it divides each gradient by its usual size.

So the ranks agree. Each has [a flag](unscaling.py) for the gradients of an optimizer, 1
for an overflow, and all ranks take the largest: one all-reduce of one number. Then all
of them skip the same steps and have the same $S$.

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

[Micro-batches](accumulate.py) are scaled one by one. They are exchanged as they are,
with their factor $S$, and unscaled once, after the last. Under `no_sync` an infinite
gradient stays on its rank until then. The mean takes it along, whatever the other ranks
add to it.

A model that [steps in its backward pass](step_in_backward.py) uses its gradients before
anybody can divide them, and its parameters would move $S$ times too far. So `scale`
looks for such parameters in autograd's graph, and refuses. What a [reentrant
checkpoint](reentrant.py) computes is not in the graph. If that hides all of them,
`unscale_` refuses, and by then the parameters have moved.

If several optimizers share a model, [clipping](clip.py) still takes one norm of all
gradients. An overflow in those of one optimizer makes it infinite or NaN, and the
finite gradients of the others become 0.

:notation $S$: `factor`, the loss scale
"""

# sidelit: hide
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
# sidelit: show


class ShardedGradScaler(GradScaler):
    """Scale losses, and skip a step on all ranks if one of them has to.

    It is used like [the scaler of one process](loss_scaling.py#GradScaler) and needs no
    group: a sharded parameter knows which ranks share it. All ranks use it in the same
    way, start from the same `init_scale`, and load the same state.

    `unscale_`, or `step` without it, is collective. Besides the errors of one process
    it can raise these:

    :raises ValueError: if an optimizer has no sharded parameter, or its ranks are not
        those of the other optimizers
    :raises RuntimeError: if gradients wait for their exchange, or were used up in the
        backward pass
    :raises Disagreement: on every rank, if one of them does not unscale
    """

    # The ranks that have the same $S$, once they are known.
    ranks: list[int] | None = None

    def divide(self, optimizer: Optimizer) -> Tensor | None:
        """Divide the gradients of an optimizer, and learn of an overflow on any rank.

        This happens in all stages. In stage 0 each rank has the whole gradient, and
        where a mesh repeats the model each row has the same one. So there the flags are
        equal anyway, unless a program has changed its gradients. Four bytes are a low
        price for not having to rely on it.
        """
        flats = vectors(optimizer)
        order = self.order_of(optimizer, flats)
        for flat in flats:
            refuse_waiting(flat)
        refuse_late(optimizer)
        flag = divide_and_check(optimizer, self.factor)
        # Gradients arrive on all ranks or on none. A rank whose part of a parameter is
        # empty has an empty gradient, and takes part.
        if flag is not None:
            take_largest(flag, order, flats[0])
        return flag

    # sidelit: depth Optimizers without sharded parameters, or on other ranks than the scaler's.

    def order_of(self, optimizer: Optimizer, flats: list[Flat]) -> Order:
        """The order of the exchanges among the ranks that share an optimizer's parameters.

        $S$ is one number for all optimizers of a scaler, so their parameters need to
        lie on the same ranks. Suppose one optimizer has parameters on ranks 0 and 1,
        and another on ranks 0 to 3. An overflow in the first would change $S$ on ranks
        0 and 1, and the second would divide by two different numbers.
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
                    f"this {name} trains on ranks {ranks}, and the scaler serves ranks "
                    f"{self.ranks}; use one scaler for each group of ranks"
                )
            self.ranks = ranks
        order: Order = flats[0].order
        return order


def vectors(optimizer: Optimizer) -> list[Flat]:
    """The flat vectors that an optimizer's parameters belong to."""
    parameters = (
        parameter for group in optimizer.param_groups for parameter in group["params"]
    )
    return list(dict.fromkeys(filter(None, map(owner_of, parameters))))


@torch.no_grad()
def take_largest(flag: Tensor, order: Order, flat: Flat) -> None:
    """Replace a flag by the largest of all ranks.

    A flag is 0 or 1 and never NaN, which a maximum can lose on some backends. The sum
    would not do: a fused optimizer skips its step if the flag *is* 1, and two overflows
    would make it 2.

    Over gloo each of two ranks sends 4 bytes, and of more ranks some send 8.
    """
    # A rank that does not unscale must not leave the others waiting.
    order.begin("unscaling")
    order.before("compare", "the overflow flags", flat.layout.slots[0].names[0])
    largest = all_reduce_max(flag, group=order.group)
    order.watch(largest.works)
    largest.wait()
