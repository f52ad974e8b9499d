r"""# Checking batches, modes and steps

> At each forward pass, the checks compare the batches and the steps of all ranks, and
> detect a model in `eval()` mode.

A data loader without a `DistributedSampler` gives every rank the same batches. With 8
ranks, all of them compute the same gradient, and the mean is the gradient of one rank
alone. The loss falls as usual, but seven ranks have done nothing useful. So the ranks
compare the tensors with which they call the model. If all ranks had equal tensors in
every forward pass of the run, the check reports an error. Equal tensors in a single
forward pass are allowed, because a batch may repeat at the end of
[`join`](accumulate.py#module/unequal-numbers-of-batches-on).

Two more faults are visible at the beginning of a forward pass. A model that was left in
`eval()` mode trains without dropout and does not update the statistics of its norms.
And ranks with equal seeds draw equal dropout masks. The second is only a note: the
masks repeat, but the gradients are correct.

The beginning of a forward pass is also where the ranks compare [their steps and
learning rates](#module/checking-the-steps-and-ending). After the last step, the script
is ended there on all ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from shardbook.check.watch_gradients import digest
from shardbook.check.watches import Place, Run, Watch, place
from shardbook.foundations.hook_context import tensors_in

__all__ = ["Data", "Enough", "Steps"]

DROPS = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout
KEEPS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm


class Data(Watch):
    """Checks the arguments of each forward pass, and the mode of the model."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        # For the forward passes that autograd records: the line of the last one, and for
        # each whether all ranks had equal tensors, and equal states of their generators
        # if the model has dropout.
        self.line: Place | None = None
        self.same: list[bool] = []
        self.same_masks: list[bool] = []
        # The line of the last forward pass in `eval()` mode.
        self.evaluating: Place | None = None

    def forward(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Compare the inputs of this forward pass on all ranks."""
        if not self.run.records:
            return
        self.line = place()
        self.evaluating = self.line if ignores_training(model) else None
        given = [
            tensor
            for tensor in tensors_in((args, kwargs))
            if not (tensor.is_nested or tensor.is_meta) and tensor.numel() > 1
        ]
        mine = [digest(given) if given else None, state() if drops(model) else None]
        assert self.run.ranks is not None
        notes = self.run.ranks.compare(f"data {self.run.forwards}", mine)
        self.same.append(equal([note and note[0] for note in notes]))
        self.same_masks.append(equal([note and note[1] for note in notes]))

    def after_step(self, optimizer: Optimizer) -> None:
        """Warn if the optimizer steps after a forward pass in `eval()` mode."""
        if self.evaluating is not None:
            self.found.add(
                "warning",
                "evaluating",
                "the model was trained in eval() mode, without dropout and with fixed norms",
                "call model.train() before the training loop, and after each evaluation",
                self.evaluating,
            )

    def judge(self, facts: list[Any]) -> None:
        """Report equal data or equal masks. All ranks have compared the same notes, so rank 0 reports."""
        if self.same and all(self.same):
            self.found.add(
                "error",
                "same-data",
                f"all {len(facts)} ranks have trained on the same batches",
                "give each rank its own part of the data, for instance by a DistributedSampler",
                self.line,
            )
        elif self.same_masks and all(self.same_masks):
            self.found.add(
                "note",
                "same-masks",
                "all ranks draw the same random numbers, so their dropout masks are equal",
                "torch.manual_seed(seed + rank) after shard()",
                self.line,
            )


def equal(notes: list[Any]) -> bool:
    """Whether several ranks wrote equal notes. A rank without a note counts as different."""
    return len(notes) > 1 and None not in notes and len({*notes}) == 1


def state() -> str:
    """A digest of the generators that dropout draws from."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return digest(states)


def drops(model: nn.Module) -> bool:
    """Whether the model has an active dropout."""
    return any(isinstance(m, DROPS) and m.training and m.p > 0 for m in model.modules())


def ignores_training(model: nn.Module) -> bool:
    """Whether a model is in `eval()` mode, and has modules that act differently in `train()` mode."""
    if model.training or any(module.training for module in model.modules()):
        return False
    return any(
        (isinstance(m, DROPS) and m.p > 0)
        or (isinstance(m, KEEPS) and m.track_running_stats)
        for m in model.modules()
    )


# ## Checking the steps, and ending the script
#
# > The check compares steps and learning rates between ranks, and ends the script on all
# > ranks at the same forward pass.
#
# `python -m shardbook.check --steps 3` runs three steps of a script that may otherwise run
# for days. The script is ended at the beginning of a forward pass, because the step before
# is complete then, and no exchange is running. All ranks reach each forward pass
# together. There they compare how often their optimizers have stepped, so either all
# ranks stop or none.
#
# The comparison also detects two faults. If one rank leaves out `optimizer.step()`, its
# part of the model keeps its old values while the rest is trained, and in stages 1 to 3
# there is no error. If the ranks have different learning rates, each part of the model is
# trained with another rate.
#
# The script is ended by an exception that is not an `Exception`. So a program that catches
# every `Exception`, for example to write a log, does not catch this one.


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
