r"""# The bytes of a watched run

> What each unit has sent, beside what the formula says.

[The ledger](ledger.py) counts each call, and does not know what it was for. [The
labels](labels.py) know which unit gathers or reduces at the moment. Together they give
the bytes by unit and kind. What is sent under no label is small: the numbers of [the used
parameters](unused.py), and the norms of [clipping](clip.py).

The formula is that of [the plan](policy_bytes.py). One vector of a unit with $P_u$ elements
sends, for each time,

$$\text{gather} = b\,(P_u - S_u) \qquad \text{reduce} = s\,(P_u - S_u)$$

and in stage 0 the exchange of gradients goes both ways and counts twice. In stage 3 a
unit is gathered once for each forward pass and once for each backward pass; in stages 1
and 2 once for each forward pass that follows a step. A unit that was gathered more often
than that shows here: most often a checkpoint lies around several units.

The first step differs from the others, because the ranks agree on their order and an
optimizer makes its state. So counting begins after it, and with `--steps 1` there is
nothing to compare.

:notation $P_u$: `padded`, the elements of one flat vector of unit $u$ with its padding
:notation $S_u$: `shard_numel`, a rank's part of them
:notation $b$: `computed`, the bytes of a number as modules compute with it
:notation $s$: `sent`, the bytes of a number as it travels in the exchange of gradients
"""

# sidelit: hide
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from shardbook.check.watches import Run, Watch
from shardbook.foundations.ledger import ledger
from shardbook.zero.conductor import conductor_of
from shardbook.zero.unit import Unit

__all__ = ["Bytes", "Row"]
# sidelit: show

KINDS = {
    "gather": "gather",
    "wait for": "gather",
    "reduce": "reduce",
    "wait for the mean of": "reduce",
}


@dataclass(frozen=True, slots=True)
class Row:
    """The bytes that this rank has sent for one unit; `planned` is `None` where no formula holds."""

    unit: str
    kind: str
    counted: int
    planned: int | None


class Bytes(Watch):
    """Counts what is sent, from the end of the first step to the end of the last."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.counting = ExitStack()
        self.book = self.counting.enter_context(ledger())
        # How many calls of the ledger have been assigned, and the acts under way.
        self.seen = 0
        self.under_way: list[tuple[str, str]] = []
        # Bytes by unit and kind, and how often each model was called, was called while
        # gradients waited, began a backward pass, and exchanged gradients.
        self.sent: Counter[tuple[str, str]] = Counter()
        self.times: Counter[str] = Counter()
        self.start: tuple[Counter[Any], Counter[str]] | None = None
        self.end: tuple[Counter[Any], Counter[str]] | None = None

    def begins(self, act: str, unit: str) -> None:
        """What was sent so far belongs to the act around this one."""
        self.assign()
        self.under_way.append((act, unit))

    def ends(self, act: str, unit: str) -> None:
        """What was sent since belongs to this act."""
        self.assign()
        if (act, unit) in self.under_way:
            while self.under_way.pop() != (act, unit):
                pass

    def assign(self) -> None:
        """Add the calls that are new in the ledger to the innermost unit that sends."""
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
        """A pass in which units are gathered; in stages 1 and 2 they are not while gradients wait."""
        units = conductor_of(model).drivers
        self.times["forward"] += 1
        self.times["waiting"] += any(
            flat.waits for unit in units for flat in unit.trainable
        )

    def backward(self, losses: Sequence[Tensor]) -> None:
        """A pass in which units are gathered again, and gradients exchanged."""
        self.times["backward"] += 1
        self.times["exchanges"] += all(
            conductor_of(model).syncing for model in self.run.models
        )

    def after_step(self, optimizer: Optimizer) -> None:
        """The first step begins the count, each later one may end it."""
        self.assign()
        now = self.sent.copy(), self.times.copy()
        if self.start is None:
            self.start = now
        else:
            self.end = now

    def rows(self) -> list[Row]:
        """The table: a row for each unit and kind, and at the end what belongs to no unit."""
        self.counting.close()
        if self.start is None or self.end is None:
            return []
        sent, times = self.end[0] - self.start[0], self.end[1] - self.start[1]
        # With several models, or several optimizers, passes belong to some of the units.
        known = len(self.run.models) == 1 and len(self.run.taken) == 1
        rows = []
        for unit in self.run.units():
            plans = planned(unit, times) if known and unit.groups.copies == 1 else {}
            for kind in ("gather", "reduce"):
                count = sent.pop((unit.name, kind), 0)
                if count or plans.get(kind):
                    rows.append(Row(unit.name, kind, count, plans.get(kind)))
        rest: Counter[str] = Counter()
        for (_, kind), count in sent.items():
            rest[kind] += count
        return rows + [
            Row("no unit", kind, count, None) for kind, count in rest.items()
        ]


def planned(unit: Unit, times: Counter[str]) -> dict[str, int]:
    """What a unit sends by the formula, for so many passes."""
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
