"""A step of four pipeline stages in both schedules, on a clock that counts passes.

Two cores do not compute four stages at once, so seconds would show the machine and not the schedule. Here
each rank counts: a forward pass takes one unit, a backward pass two. Every message over gloo is followed by
the time at which its pass ended. The receiver puts its clock forward to that time, and what it skips is what
it has waited.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from tools.record.frame import ranks
from torch import Tensor

from shardbook.foundations.collectives import world
from shardbook.models import gpt
from shardbook.parallel.pipeline_parallel import (
    Action,
    Schedule,
    Stage,
    all_forward_first,
    bubble,
    cut,
    one_by_one,
)

STAGES, PIECES, SEQUENCES = 4, 6, 2
CONFIG = gpt.Config(layers=6, width=8, heads=2, context=8, vocabulary=16)
TAKES = {"forward": 1, "backward": 2}
SCHEDULES: dict[str, Schedule] = {"all_forward_first": all_forward_first, "one_by_one": one_by_one}


class Clocked(Stage):
    """A stage that notes when each of its passes begins and ends."""

    now = 0
    takes = 0
    sent = 0
    """The bytes of activations and of their gradients that this rank has sent."""

    def noted(self, schedule: Schedule) -> Schedule:
        """The same schedule; each pass is noted when the next one is asked for."""
        self.passes: list[dict[str, Any]] = []

        def one_after_the_other(rank: int, stages: int, pieces: int) -> Iterator[Action]:
            for action in schedule(rank, stages, pieces):
                self.takes = TAKES[action.kind]
                yield action
                # What was received has moved the clock to the begin of the pass.
                self.passes.append({"kind": action.kind, "piece": action.piece, "begin": self.now})
                self.now += self.takes

        return one_after_the_other  # type: ignore[return-value]

    def send(self, tensor: Tensor, to: int) -> None:
        super().send(tensor, to)
        self.sent += tensor.nbytes
        end = torch.tensor([float(self.now + self.takes)])
        self.sends.append((dist.isend(end, group_dst=to), end))

    def receive(self, source: int) -> Tensor:
        tensor = super().receive(source)
        end = torch.empty(1)
        dist.recv(end, group_src=source)
        self.now = max(self.now, int(end.item()))
        return tensor


def record() -> Any:
    """For each schedule and rank: its passes, what it kept, and what it sent."""
    of_rank = ranks(STAGES, on_a_rank)
    return {
        "stages": STAGES,
        "pieces": PIECES,
        "takes": TAKES,
        "bubble": bubble(STAGES, PIECES),
        "schedules": {name: [one[name] for one in of_rank] for name in SCHEDULES},
    }


def on_a_rank() -> Any:
    """One rank's step in each schedule."""
    return {name: one_step(schedule) for name, schedule in SCHEDULES.items()}


def one_step(schedule: Schedule) -> Any:
    """A step of the same model and batch."""
    torch.manual_seed(0)
    layers = list(gpt.GPT(CONFIG))
    tokens = torch.randint(CONFIG.vocabulary, (PIECES * SEQUENCES, CONFIG.context + 1))
    inputs, targets = (half.chunk(PIECES) for half in (tokens[:, :-1], tokens[:, 1:]))
    stage = Clocked(cut(layers, *world()), (SEQUENCES, CONFIG.context, CONFIG.width), gpt.loss)
    stage.step(inputs, targets, stage.noted(schedule))
    return {
        "layers": len(stage.layers),
        "most_kept": stage.most_kept,
        "sent": stage.sent,
        "passes": stage.passes,
    }
