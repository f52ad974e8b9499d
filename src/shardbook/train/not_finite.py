r"""# Losses and gradients that are not finite

> A NaN is found before the optimizer takes a step with it, and the unit that made it is named.

One NaN among the gradients is in all parameters after a few steps: the step writes it
into a weight, the next forward pass spreads it. The run goes on without an error,
saves, and removes its older checkpoints, and all that it leaves behind is NaN.

So before each step the ranks exchange one number each. It is the sum of the squares of
a rank's part of the gradient. If the sum of all of them is finite, so is each gradient,
and its root is [the norm](clip.py) that clipping needs anyway. A loss can be infinite
while the gradients are finite. So a rank with such a loss sends a negative number
instead, which no sum of squares is:

| rank | its losses | its part of the gradient | sends |
|---|---|---|---|
| 0 | 2.1, 2.3 | $(3, 4)$ | 25 |
| 1 | 2.2, inf | $(1, 2)$ | −2: its second micro-batch |
| 2 | 2.0, 2.2 | (1, NaN) | NaN |

All ranks see the same numbers, so all of them decide alike. `--not-finite` says what
they do:

- `stop`, the default: the program ends with one sentence and exit code 1, and its newest
  checkpoint is from before. Started again, it comes to the same step with the same
  numbers, so it takes other options to get further.
- `skip`: the gradients are dropped, and the optimizer keeps its state. The schedule
  and the text move on, as if the step had been taken. A run that [goes on](saving.py)
  after a skipped step does so to the same bit, and knows how many there were.
- `continue`: nothing is looked at, and the step is taken, as in plain PyTorch.

In FP16 [the scaler](sharded_scaler.py) skips a step whose gradients overflow, and makes
its factor $S$ smaller. That is no fault. It is one if $S$ is 1 already, since then the
gradients are infinite or NaN without any help from $S$. A loss that is not finite is
always a fault, because $S$ is applied after it.

Only after a fault do the ranks exchange more: which units have gradients that are not
finite. A NaN travels with the backward pass, from the loss to the first layer. [The
record](prefetch.py) of the forward pass says in which order the units ran, so of those
units the one that ran last has made it. If a loss itself is not finite, the parameters
may be to blame, and the first unit whose parameters are not finite is named beside it.

:notation $S$: `scale`, the loss scale, 1 without a scaler
"""

# sidelit: hide
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardbook.command import Mistake
from shardbook.foundations.collectives import world
from shardbook.foundations.groups import Groups
from shardbook.foundations.torch_private import as_plain
from shardbook.training.clip import (
    combine,
    gradients_of,
    of_all_ranks,
    sum_of_powers,
)
from shardbook.zero.conductor import conductor_of
from shardbook.zero.prefetch import PrefetchingConductor
from shardbook.zero.unit import Unit

__all__ = ["NotFinite", "not_finite"]
# sidelit: show


class NotFinite:
    """What a run does about a loss or a gradient that is not finite.

    :param policy: `"stop"`, `"skip"` or `"continue"`
    """

    def __init__(self, policy: str = "continue") -> None:
        self.policy = policy
        # The steps that this run has left out, those before it was restored included.
        self.skipped = 0

    @property
    def looks(self) -> bool:
        """Whether steps are looked at."""
        return self.policy != "continue"

    @torch.no_grad()
    def look(
        self, model: nn.Module, losses: Sequence[float], scale: Callable[[], float]
    ) -> tuple[Tensor, str | None]:
        """Look at a step before it is taken. Collective.

        :param model: with its gradients, which have lost the factor of the loss
        :param losses: of this rank, one for each micro-batch
        :param scale: the factor that the gradients have lost; called only if one of
            them is not finite
        :returns: the norm of the gradient, 0-dim, FP64, and what is wrong, if anything
            is. Both are the same on every rank; the norm is of no use if a loss is not
            finite.
        """
        own = sum_of_powers(model, 2.0)
        bad = [micro for micro, loss in enumerate(losses) if not math.isfinite(loss)]
        if bad:
            own.fill_(-1 - bad[0])
        sums = of_all_ranks(model, own.view(1), "checking the gradients", copies=True)
        first = next(iter(conductor_of(model).drivers))
        # In stage 0 each rank has the whole gradient, and sends the same sum.
        rows = rows_of(first.groups) if first.stage else [first.rank]
        total = combine(2.0)(sums[rows])
        return total.sqrt(), fault(model, sums.tolist(), scale)

    def act(self, number: int, found: str) -> None:
        """Stop or skip a step, as the policy says.

        :param number: of the step, counted from 1
        :raises Mistake: on every rank, if the policy is to stop
        """
        if self.policy == "stop":
            raise Mistake(
                f"step {number} was not taken, because {found}; what was saved is from "
                "before; go on from there with other options, such as a smaller --lr, or "
                "leave such steps out with --not-finite skip"
            )
        self.skipped += 1

    def state_dict(self) -> dict[str, Any]:
        """How many steps were skipped."""
        return {"skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting."""
        self.skipped = state["skipped"]


def rows_of(groups: Groups) -> list[int]:
    """The places, among all ranks, of those that share this rank's copy of the model.

    [Other copies](groups.py) have the same gradients, and add up to the same norm.
    """
    if groups.copies == 1:
        return list(range(world(groups.everyone)[1]))
    everyone = dist.get_process_group_ranks(groups.everyone)
    sharing = dist.get_process_group_ranks(groups.shards)
    return [everyone.index(rank) for rank in sharing]


def fault(
    model: nn.Module, sums: list[float], scale: Callable[[], float]
) -> str | None:
    """What is wrong with a step, in words; the same on every rank. Collective after a fault.

    :param sums: what the ranks have sent, in their order
    """
    losses = [(-1 - int(sent), rank) for rank, sent in enumerate(sums) if sent < 0]
    if losses:
        micro, rank = min(losses)
        said = (
            f"the loss itself, of rank {rank}, micro-batch {micro}, is infinite or NaN"
        )
        # The first in the order of the forward pass.
        units = list(reversed(in_backward_order(model)))
        guilty = first_bad(model, units, parameters_of)
        return f"{said}, as are parameters of {guilty.name}" if guilty else said
    # Smaller factors are for the scaler to try.
    if all(map(math.isfinite, sums)) or scale() > 1:
        return None
    guilty = first_bad(model, in_backward_order(model), gradients_of)
    where = guilty.name if guilty else "the model"
    return f"the gradients of {where} became infinite or NaN, while the loss was finite"


def in_backward_order(model: nn.Module) -> list[Unit]:
    """The units, the one nearest to the loss first."""
    conductor = conductor_of(model)
    seen: list[Unit] = []
    if isinstance(conductor, PrefetchingConductor):
        seen = conductor.orders[True]
    # Units that the last forward pass has not used may have gradients from before.
    return list(dict.fromkeys([*reversed(seen), *reversed(conductor.drivers)]))


def first_bad(
    model: nn.Module, units: list[Unit], tensors: Callable[[Unit], Iterable[Tensor]]
) -> Unit | None:
    """The first unit with a tensor that is not finite on any rank. Collective."""
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
    """What a rank keeps of the parameters of a unit."""
    return (flat.shard for flat in unit.flats)


def finite(tensor: Tensor) -> bool:
    """Whether all elements of a tensor are numbers."""
    # An element by itself takes a byte of memory here; a norm would take none, but the
    # square of a large number can be infinite.
    return bool(tensor.isfinite().all())


def not_finite(add: Callable[..., Any]) -> None:
    """What becomes of a step whose loss or gradient is not finite."""
    add(
        "--not-finite",
        choices=["stop", "skip", "continue"],
        default="stop",
        help="what to do before a step whose loss or gradient is infinite or NaN: end the run, "
        "leave the step out, or nothing",
    )
