r"""# Checking the steps, and ending the script

> The check compares steps and learning rates between ranks, and ends the script on all
> ranks at the same forward pass.

`python -m shardbook.check --steps 3` runs three steps of a script that may otherwise run
for days. The script is ended at the beginning of a forward pass, because the step before
is complete then, and no exchange is running. All ranks reach each forward pass
together. There they compare how often their optimizers have stepped, so either all
ranks stop or none.

The comparison also detects two faults. If one rank leaves out `optimizer.step()`, its
part of the model keeps its old values while the rest is trained, and in stages 1 to 3
there is no error. If the ranks have different learning rates, each part of the model is
trained with another rate.

The script is ended by an exception that is not an `Exception`. So a program that catches
every `Exception`, for example to write a log, does not catch this one.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from shardbook.check.place import Place, place
from shardbook.check.watches import Run, Watch

__all__ = ["Enough", "Steps"]


class Enough(BaseException):
    """Ends a script that has taken its steps."""


class Steps(Watch):
    """Compares steps and learning rates between ranks, and ends the script."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.rates: list[list[float]] = []
        self.line: Place | None = None

    def forward(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Compare the ranks at the beginning of a forward pass, and stop after the last step.

        :raises Enough: on every rank, if the steps were taken
        """
        run = self.run
        assert run.ranks is not None
        mine = [[*run.taken.values()], self.rates, run.taken_by_all]
        notes = run.ranks.compare(f"forward {run.forwards}", mine)
        present = [note for note in notes if note is not None]
        self.refuse_other_steps([note and note[0] for note in notes])
        self.refuse_other_rates([note and note[1] for note in notes])
        # The largest count decides, because a rank that leaves out its steps would never
        # reach the number.
        if max(note[2] for note in present) >= run.steps:
            raise Enough

    def after_step(self, optimizer: Optimizer) -> None:
        """Record the learning rates of the step.

        :raises Enough: if the script takes more steps without calling the model itself,
            for example if it calls only parts of the model
        """
        self.line = place()
        self.rates = [
            [float(group.get("lr", 0.0)), float(group.get("weight_decay", 0.0))]
            for one in self.run.taken
            for group in one.param_groups
        ]
        if self.run.taken_by_all > self.run.steps:
            raise Enough

    def refuse_other_steps(self, counts: list[Any]) -> None:
        """Report a rank whose optimizers have stepped more or less often than rank 0's."""
        for rank, taken in enumerate(counts):
            known = taken is None or counts[0] is None or taken == counts[0]
            if not known and not self.found.has("uneven-steps"):
                self.found.add(
                    "error",
                    "uneven-steps",
                    f"rank {rank} has taken {sum(taken)} steps and rank 0 {sum(counts[0])}, "
                    "so a part of the model stays behind the rest",
                    "call optimizer.step() equally often on every rank",
                    self.line,
                )

    def refuse_other_rates(self, rates: list[Any]) -> None:
        """Report a rank with another learning rate or weight decay than rank 0."""
        for rank, each in enumerate(rates):
            first = rates[0]
            if not (each and first) or each == first or len(each) != len(first):
                continue
            if self.found.has("uneven-rates"):
                return
            here, there = next(
                pair for pair in zip(each, first, strict=True) if pair[0] != pair[1]
            )
            self.found.add(
                "error",
                "uneven-rates",
                f"rank {rank} steps with learning rate {here[0]:g} and weight decay "
                f"{here[1]:g}, rank 0 with {there[0]:g} and {there[1]:g}, so each trains "
                "its part of the model in its own way",
                "compute them from what all ranks have in common",
                self.line,
            )
            return
