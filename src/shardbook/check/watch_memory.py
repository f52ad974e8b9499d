r"""# Checking the stored and sent bytes

> The checks count the bytes that a rank stores and the bytes that it sends, and compare
> them with the plan.

[The plan](forecast.py#module/the-bytes-of-a-policy) gives the bytes of each unit that a
rank stores between two steps. In stage 3 these are its part of the parameters, in
stages 1 and 2 the whole vector as well. The optimizer state is counted, but has no
plan: AdamW stores two numbers for each parameter, plain SGD none, and your optimizer is
unknown to the library.

The check counts the bytes of tensors, and not the blocks of the allocator. It does not
compare the peak, because the peak depends on the activations that your model's
operations save.

The plan also gives the bytes that a rank sends for each unit. [A second
check](#module/checking-the-sent-bytes) counts them, and shows for example a unit that
is gathered more often than planned.

:notation $P_u$: `padded`, the elements of one flat vector of unit $u$ with its padding
:notation $S_u$: `shard_numel`, the elements of a rank's part
:notation $b$: `computed`, the bytes of a number as modules compute with it
:notation $s$: `sent`, the bytes of a number in the exchange of gradients
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from shardbook.check.watches import Run, Watch
from shardbook.foundations.collectives import ledger
from shardbook.foundations.torch_private import storage_id
from shardbook.planning.forecast import kinds_of
from shardbook.zero.flat import Flat, owner_of
from shardbook.zero.policy import Policy
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.unit import Unit

__all__ = ["Bytes", "Memory", "Row"]


class Memory(Watch):
    """Counts the bytes that this rank stores after each step. The last count is printed."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        # The policy of each model, in the order of the models.
        self.policies: list[Policy] = []
        self.rows: list[Row] = []

    def sharding(self, model: nn.Module, options: dict[str, Any]) -> None:
        """Keep the policy, because the plan depends on it."""
        self.policies.append(options.get("policy") or Policy())

    def after_step(self, optimizer: Optimizer) -> None:
        """Count, unless this is a step in the middle of a backward pass."""
        flats = [flat for unit in self.run.units() for flat in unit.flats]
        if optimizer not in self.run.taken or any(flat.waits for flat in flats):
            return
        kept = [tensor for flat in flats for tensor in (flat.full, flat.shard)]
        state = [
            value
            for one in self.run.taken
            for parameter, values in one.state.items()
            if owner_of(parameter) is not None
            for value in values.values()
            if isinstance(value, Tensor)
        ]
        self.rows = [
            Row("stored", "parameters", nbytes(kept), self.planned()),
            Row("stored", "optimizer's state", nbytes(state), None),
        ]

    def planned(self) -> int | None:
        """The planned bytes of the model's parameters; `None` with several models."""
        if len(self.policies) != 1 or len(self.run.models) != 1:
            return None
        (policy,) = self.policies
        return sum(
            planned_bytes(flat, unit.stage, policy)
            for unit in self.run.units()
            for flat in unit.flats
        )


def planned_bytes(flat: Flat, stage: int, policy: Policy) -> int:
    """The planned bytes of one vector. In stages 1 and 2 a frozen vector stays whole."""
    if not flat.layout.trainable and stage in (1, 2):
        return kinds_of(flat.layout, 0, policy).parameters
    kinds = kinds_of(flat.layout, stage, policy)
    return kinds.parameters + kinds.masters_on_host


def nbytes(tensors: list[Tensor]) -> int:
    """The bytes of tensors, counting each storage once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage_id(one): one.nbytes() for one in storages}.values())


# ## Checking the sent bytes
#
# > The check counts the bytes that each unit sends, and compares them with the formula.
#
# [The ledger](collectives.py#module/the-byte-ledger) counts the bytes of each
# collective, but not for which unit it was. [The
# labels](hook_context.py#module/labels-for-a-profiler) say which unit is gathering or
# reducing. Together they give the bytes by unit and kind. Few bytes are sent outside of
# all labels: the flags of [the used parameters](unused.py), and the norms of
# [clipping](clip.py).
#
# The formula is that of [the plan](forecast.py#module/the-bytes-of-a-policy). A flat
# vector with $P_u$ elements sends for each gather and each reduction
#
# $$\text{gather} = b\,(P_u - S_u) \qquad \text{reduce} = s\,(P_u - S_u)$$
#
# For example, on 2 ranks a vector of 25,344 FP32 numbers sends $4 \cdot 12{,}672 =
# 50{,}688$ bytes for a gather. In stage 0 a reduction counts twice, because an all-reduce
# consists of a reduce-scatter and an all-gather.
#
# In stage 3 a unit is gathered once for each forward pass and once for each backward
# pass. In stages 1 and 2 it is gathered once for each forward pass that finds no waiting
# gradients. If a unit was gathered more often, this table shows it. The usual cause is a
# checkpoint around several units.
#
# The first step is not counted, because the ranks then agree on their order and an
# optimizer creates its state. So with `--steps 1` there is nothing to compare.


KINDS = {
    "gather": "gather",
    "wait for": "gather",
    "reduce": "reduce",
    "wait for the mean of": "reduce",
}


@dataclass(frozen=True, slots=True)
class Row:
    """The bytes that this rank has sent for one unit; `planned` is `None` if no formula applies."""

    unit: str
    kind: str
    counted: int
    planned: int | None


class Bytes(Watch):
    """Counts the sent bytes from the end of the first step to the end of the last step."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.counting = ExitStack()
        self.book = self.counting.enter_context(ledger())
        # How many of the ledger's calls were assigned to a unit, and the units that act
        # now.
        self.seen = 0
        self.under_way: list[tuple[str, str]] = []
        # `sent` holds the bytes by unit and kind. `times` counts forward passes, forward
        # passes with waiting gradients, backward passes, and exchanges of gradients.
        self.sent: Counter[tuple[str, str]] = Counter()
        self.times: Counter[str] = Counter()
        self.start: tuple[Counter[Any], Counter[str]] | None = None
        self.end: tuple[Counter[Any], Counter[str]] | None = None

    def begins(self, act: str, unit: str) -> None:
        """Assign the bytes so far to the surrounding act, and begin a new one."""
        self.assign()
        self.under_way.append((act, unit))

    def ends(self, act: str, unit: str) -> None:
        """Assign the bytes since the beginning to this act, and end it."""
        self.assign()
        if (act, unit) in self.under_way:
            while self.under_way.pop() != (act, unit):
                pass

    def assign(self) -> None:
        """Add the new calls in the ledger to the innermost unit that sends."""
        kind, unit = next(
            (
                (KINDS[act], name)
                for act, name in reversed(self.under_way)
                if act in KINDS
            ),
            ("", ""),
        )
        for call in self.book.calls[self.seen :]:
            self.sent[unit, kind or call.collective] += call.sent
        self.seen = len(self.book.calls)

    def forward(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Count a forward pass. In stages 1 and 2 units are not gathered while gradients wait."""
        units = scheduler_of(model).units
        self.times["forward"] += 1
        self.times["waiting"] += any(
            flat.waits for unit in units for flat in unit.trainable
        )

    def backward(self, losses: Sequence[Tensor]) -> None:
        """Count a backward pass, and whether gradients are exchanged in it."""
        self.times["backward"] += 1
        self.times["exchanges"] += all(
            scheduler_of(model).syncing for model in self.run.models
        )

    def after_step(self, optimizer: Optimizer) -> None:
        """Begin counting after the first step. Each later step may be the last one."""
        self.assign()
        now = self.sent.copy(), self.times.copy()
        if self.start is None:
            self.start = now
        else:
            self.end = now

    def rows(self) -> list[Row]:
        """The table: a row for each unit and kind, and at the end the bytes of no unit."""
        self.counting.close()
        if self.start is None or self.end is None:
            return []
        sent, times = self.end[0] - self.start[0], self.end[1] - self.start[1]
        # With several models or optimizers, a forward pass may gather only some of the
        # units. Then no formula applies.
        known = len(self.run.models) == 1 and len(self.run.taken) == 1
        # Small units exchange their gradients together, under a name of their own.
        plans: dict[tuple[str, str], int | None] = {}
        for unit in self.run.units():
            plan = planned(unit, times) if known and unit.groups.copies == 1 else {}
            for kind, name in (("gather", unit.name), ("reduce", unit.exchanged_as)):
                if kind in plan:
                    plans[name, kind] = (plans.get((name, kind)) or 0) + plan[kind]
                else:
                    plans[name, kind] = None
        rows = []
        for (name, kind), expected in plans.items():
            count = sent.pop((name, kind), 0)
            if count or expected:
                rows.append(Row(name, kind, count, expected))
        rest: Counter[str] = Counter()
        for (_, kind), count in sent.items():
            rest[kind] += count
        return rows + [
            Row("no unit", kind, count, None) for kind, count in rest.items()
        ]


def planned(unit: Unit, times: Counter[str]) -> dict[str, int]:
    """The bytes that a unit sends by the formula, for so many forward and backward passes."""
    forwards, backwards = times["forward"], times["backward"]
    gathers = {0: 0, 3: forwards + backwards}.get(
        unit.stage, forwards - times["waiting"]
    )
    reduces = times["exchanges"] * (1 if unit.stage else 2)
    found = {"gather": 0, "reduce": 0}
    for flat in unit.flats:
        numbers = flat.layout.padded - flat.layout.shard_numel
        if flat.sliced:
            found["gather"] += gathers * numbers * flat.full.itemsize
        if flat.learns and flat.trains:
            found["reduce"] += reduces * numbers * flat.sends_in.itemsize
    return found
