r"""# Losses and gradients that are not finite

> A NaN or infinity is detected before the optimizer steps with it, and the message
> names the unit that it came from.

One NaN among the gradients is in all parameters after a few steps: the optimizer writes
it into a weight, and the next forward pass spreads it. The run raises no error. It
saves new checkpoints and removes the older ones, until every checkpoint contains NaN.

So before each step, each rank sends one number to the others: the sum of the squares of
its part of the gradient. If the sum over all ranks is finite, so is every gradient. The
root of this sum is [the norm](clip.py), which clipping needs anyway. A loss can be
infinite while the gradients are finite. In this case a rank sends a negative number
instead, which no sum of squares can be:

| rank | its losses | its part of the gradient | sends |
|---|---|---|---|
| 0 | 2.1, 2.3 | $(3, 4)$ | 25 |
| 1 | 2.2, inf | $(1, 2)$ | −2: its second micro-batch |
| 2 | 2.0, 2.2 | (1, NaN) | NaN |

All ranks receive the same numbers, so all of them make the same decision.
`--not-finite` chooses what they do:

- `stop`, the default: the program ends with one sentence and exit code 1. Its newest
  checkpoint is from before this step. If you start it again with the same options, it
  computes the same numbers and stops at the same step.
- `skip`: the gradients are dropped, and the optimizer keeps its state. The learning-rate
  schedule and the text move on as if the step had been taken. The number of skipped
  steps is saved, so [a resumed run](saving.py) takes the same steps bit for bit.
- `continue`: nothing is checked, and the step is taken, as in plain PyTorch.

In FP16 [the scaler](loss_scaling.py#module/loss-scaling-over-ranks) skips a step whose
gradients overflow, and lowers the loss scale $S$. Such an overflow is expected, so it
does not count as a fault. But if $S$ is already 1, the gradients are infinite or NaN
without the scale, which is a fault. An infinite loss is always a fault, because it was
computed before $S$ multiplies it.

Only after a fault, the ranks exchange which units have gradients that are not finite. A
NaN spreads with the backward pass, from the loss towards the first layer. [The
record](scheduler.py#module/prefetching-the-next-unit) of the forward pass gives the
order of the units. So among the units with a NaN, it came from the unit that ran last
in the forward pass. If a loss itself is not finite, its cause may be the parameters.
Then the message also names the first unit whose parameters are not finite.

:notation $S$: `scale`, the loss scale, 1 without a scaler
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardbook.command import Failure
from shardbook.foundations.collectives import Groups, world
from shardbook.foundations.torch_private import as_plain
from shardbook.training.clip import (
    combine,
    gradients_of,
    of_all_ranks,
    sum_of_powers,
)
from shardbook.zero.scheduler import Scheduler, scheduler_of
from shardbook.zero.unit import Unit

__all__ = ["NotFinite", "not_finite"]


class NotFinite:
    """Detects a loss or a gradient that is not finite, and stops the run or skips the step.

    :param policy: `"stop"`, `"skip"` or `"continue"`
    """

    def __init__(self, policy: str = "continue") -> None:
        self.policy = policy
        # The skipped steps of this run, including those before it was resumed.
        self.skipped = 0

    @property
    def looks(self) -> bool:
        """Whether steps are checked."""
        return self.policy != "continue"

    @torch.no_grad()
    def look(
        self, model: nn.Module, losses: Sequence[float], scale: Callable[[], float]
    ) -> tuple[Tensor, str | None]:
        """Check a step before it is taken. Collective.

        :param model: the model with its gradients, already divided by the loss scale
        :param losses: the losses of this rank, one for each micro-batch
        :param scale: returns the loss scale; called only if a gradient is not finite
        :returns: the norm of the gradient, 0-dim, FP64, and a description of the fault,
            or `None`. Both are the same on every rank. The norm is meaningless if a
            loss is not finite.
        """
        own = sum_of_powers(model, 2.0)
        bad = [micro for micro, loss in enumerate(losses) if not math.isfinite(loss)]
        if bad:
            own.fill_(-1 - bad[0])
        sums = of_all_ranks(model, own.view(1), "checking the gradients", copies=True)
        first = next(iter(scheduler_of(model).units))
        # In stage 0 each rank has the whole gradient, and sends the same sum.
        rows = rows_of(first.groups) if first.stage else [first.rank]
        total = combine(2.0)(sums[rows])
        return total.sqrt(), fault(model, sums.tolist(), scale)

    def act(self, number: int, found: str) -> None:
        """Stop the run or skip the step, according to the policy.

        :param number: the number of the step, counted from 1
        :param found: the description of the fault
        :raises Failure: on every rank, if the policy is to stop
        """
        if self.policy == "stop":
            raise Failure(
                f"step {number} was not taken, because {found}; what was saved is from "
                "before; go on from there with other options, such as a smaller --lr, or "
                "leave such steps out with --not-finite skip"
            )
        self.skipped += 1

    def state_dict(self) -> dict[str, Any]:
        """The number of skipped steps."""
        return {"skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the number of skipped steps."""
        self.skipped = state["skipped"]


def rows_of(groups: Groups) -> list[int]:
    """The indices, among all ranks, of those that share this rank's copy of the model.

    [Other copies](collectives.py#module/ranks-that-share-a-model) have the same
    gradients and the same norm, so adding them would count the gradient twice.
    """
    if groups.copies == 1:
        return list(range(world(groups.everyone)[1]))
    everyone = dist.get_process_group_ranks(groups.everyone)
    sharing = dist.get_process_group_ranks(groups.shards)
    return [everyone.index(rank) for rank in sharing]


def fault(
    model: nn.Module, sums: list[float], scale: Callable[[], float]
) -> str | None:
    """Describe what is wrong with a step, or return `None`. Collective after a fault.

    :param sums: the numbers that the ranks sent, in rank order
    :param scale: returns the loss scale
    """
    losses = [(-1 - int(sent), rank) for rank, sent in enumerate(sums) if sent < 0]
    if losses:
        micro, rank = min(losses)
        said = (
            f"the loss itself, of rank {rank}, micro-batch {micro}, is infinite or NaN"
        )
        # The units are searched in the order of the forward pass.
        units = list(reversed(in_backward_order(model)))
        guilty = first_bad(model, units, parameters_of)
        return f"{said}, as are parameters of {guilty.name}" if guilty else said
    # An overflow with a scale above 1 is left to the scaler, which lowers the scale.
    if all(map(math.isfinite, sums)) or scale() > 1:
        return None
    parts = partial(gradients_of, once=False)
    guilty = first_bad(model, in_backward_order(model), parts)
    where = guilty.name if guilty else "the model"
    return f"the gradients of {where} became infinite or NaN, while the loss was finite"


def in_backward_order(model: nn.Module) -> list[Unit]:
    """The units in the order of the backward pass: the one nearest to the loss comes first."""
    scheduler = scheduler_of(model)
    seen: list[Unit] = []
    if isinstance(scheduler, Scheduler):
        seen = scheduler.orders[True]
    # A unit that the last forward pass did not use may have a gradient from an earlier
    # micro-batch. So all other units are appended.
    return list(dict.fromkeys([*reversed(seen), *reversed(scheduler.units)]))


def first_bad(
    model: nn.Module, units: list[Unit], tensors: Callable[[Unit], Iterable[Tensor]]
) -> Unit | None:
    """The first unit that has a tensor with NaN or infinity on some rank. Collective."""
    with as_plain():
        bad = [not all(map(finite, tensors(unit))) for unit in units]
    device = units[0].flats[0].full.device
    own = torch.tensor(bad, dtype=torch.float64, device=device)
    found = of_all_ranks(model, own, "checking the units", copies=True)
    found = found.view(-1, len(units))
    anywhere = found.amax(dim=0).tolist()
    return next(
        (unit for unit, there in zip(units, anywhere, strict=True) if there), None
    )


def parameters_of(unit: Unit) -> Iterator[Tensor]:
    """This rank's part of a unit's parameters."""
    return (flat.shard for flat in unit.flats)


def finite(tensor: Tensor) -> bool:
    """Whether all elements of a tensor are finite."""
    # The result takes one byte of memory for each element. A norm would take none, but
    # the square of a large finite number can be infinite.
    return bool(tensor.isfinite().all())


def not_finite(add: Callable[..., Any]) -> None:
    """Add the option for losses and gradients that are not finite."""
    add(
        "--not-finite",
        choices=["stop", "skip", "continue"],
        default="stop",
        help="what to do before a step whose loss or gradient is infinite or NaN: end the run, "
        "leave the step out, or nothing",
    )
