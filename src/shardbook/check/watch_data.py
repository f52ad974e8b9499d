r"""# Checking batches, modes and random numbers

> The check compares the batches of all ranks, and detects a model in `eval()` mode and
> equal dropout masks.

A data loader without a `DistributedSampler` gives every rank the same batches. With 8
ranks, all of them compute the same gradient, and the mean is the gradient of one rank
alone. The loss falls as usual, but seven ranks have done nothing useful. So the ranks
compare the tensors with which they call the model. If all ranks had equal tensors in
every forward pass of the run, the check reports an error. Equal tensors in a single
forward pass are allowed, because a batch may repeat at the end of
[`join`](uneven.py).

Two more faults are visible at the beginning of a forward pass. A model that was left in
`eval()` mode trains without dropout and does not update the statistics of its norms.
And ranks with equal seeds draw equal dropout masks. The second is only a note: the
masks repeat, but the gradients are correct.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from shardbook.check.place import Place, place
from shardbook.check.watch_parameters import digest
from shardbook.check.watches import Run, Watch
from shardbook.foundations.hook_context import tensors_in

__all__ = ["Data"]


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
