"""One training step of two ranks, line by line: what runs, in which section, and what it does to the memory.

The training program trains a GPT of one block on two CPU ranks in stage 3. In its first two steps the order
of the units is learned and the optimizer makes its state; the third step is followed. Both ranks run the same
lines in the same order, and the recording holds each of them once; where only one of them sends, it says
which. Between two exchanges the ranks run at their own speed, and nothing here says which is ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from types import FrameType
from typing import Any

import torch
from tools.record.frame import ranks
from tools.record.lines import Lines, Point
from torch import Tensor

from shardbook.foundations.collectives import ledger, world
from shardbook.models import corpus
from shardbook.train.loop import step
from shardbook.train.options import parse
from shardbook.train.plan import Run, run_with, sharded_model
from shardbook.train.tracking import MemorySnapshot
from shardbook.zero.flat import Flat
from shardbook.zero.hooks import Hooks
from shardbook.zero.unit import Unit

ARGUMENTS = "--layers 1 --width 16 --heads 2 --context 8 --batch 1 --stage 3 --steps 4"
KINDS = (
    *("shard", "full", "grad_full", "sending", "gradients", "optimizer state"),
    "activations and temporaries",
)
# The lines at which the step is looked at, in the order in which a step first comes to them.
LINES = {
    "shardbook/train/loop.py#step": (
        "loss = gpt.loss(",
        "run.scaler.scale(loss).backward()",
        "run.scaler.step(run.optimizer)",
        "run.optimizer.zero_grad()",
    ),
    "shardbook/zero/scheduler.py#Scheduler.model_begins": ("self.route = Route(",),
    "shardbook/zero/hooks.py#Hooks.before_forward": ("self.unit.wait()", "self.unit.show()"),
    "shardbook/zero/unit.py#Unit.gather": ("self.state = State.GATHERING",),
    "shardbook/zero/unit.py#Unit.prepare": ("resize(flat.full, flat.layout.padded)",),
    "shardbook/foundations/collectives.py#all_gather": ("work = dist.broadcast(",),
    "shardbook/zero/unit.py#Unit.finish_fetch": (
        "flat.gathering.wait()",
        "compute_stream(self.home).wait_stream(self.gather_stream)",
    ),
    "shardbook/zero/unit.py#Unit.wait": ("self.state = State.WHOLE",),
    "shardbook/zero/scheduler.py#Scheduler.forward_began": ("self.prefetch.start(",),
    "shardbook/zero/hooks.py#Hooks.after_forward": ("self.unit.free()",),
    "shardbook/zero/unit.py#Unit.empty": ("resize(flat.full, 0)",),
    "shardbook/zero/unit.py#Unit.free": ("self.state = State.SHARDED",),
    "shardbook/zero/hooks.py#Hooks.before_backward": ("self.unit.wait()",),
    "shardbook/zero/scheduler.py#Scheduler.backward_began": ("self.prefetch.start(",),
    "shardbook/zero/flat.py#Flat.gradients": ("self.grad_full = torch.empty(",),
    "shardbook/zero/hooks.py#Hooks.after_backward": ("self.unit.free()",),
    "shardbook/zero/scheduler.py#Scheduler.exchange": ("self.advance()",),
    "shardbook/zero/flat.py#Flat.send": ("self.sending = ",),
    "shardbook/foundations/collectives.py#exchange": ("dist.all_to_all_single(",),
    "shardbook/foundations/collectives.py#PendingReduce.wait": ("total += row", "total /= self.world_size"),
    "shardbook/zero/flat.py#Flat.receive": (
        "resize(self.sending, 0)",
        "self.accumulate(",
    ),
    "shardbook/zero/scheduler.py#Scheduler.backward_ended": ("hooks.close()", "self.complete()"),
}
# Where a scene begins: its name, the definition and the unit of its first event.
SCENES = (
    ("start", "step", None),
    ("gather", "Hooks.before_forward", "embedding"),
    ("wait", "Unit.finish_fetch", "embedding"),
    ("ahead", "Scheduler.forward_began", "embedding"),
    ("free", "Hooks.after_forward", "embedding"),
    ("next", "Hooks.before_forward", "block0"),
    ("next_ahead", "Scheduler.forward_began", "block0"),
    ("next_free", "Hooks.after_forward", "block0"),
    ("last", "Hooks.before_forward", "head"),
    ("last_free", "Hooks.after_forward", "head"),
    ("backward", "step", None),
    ("again", "Unit.finish_fetch", "head"),
    ("gradient", "Flat.gradients", "head"),
    ("back_free", "Hooks.after_backward", "head"),
    ("send", "Scheduler.exchange", "head"),
    ("back_next", "Hooks.before_backward", "block0"),
    ("both", "Flat.gradients", "block0"),
    ("back_next_free", "Hooks.after_backward", "block0"),
    ("mean", "Scheduler.exchange", "block0"),
    ("receive", "Flat.receive", "head"),
    ("first", "Hooks.before_backward", "embedding"),
    ("close", "Scheduler.backward_ended", "head"),
    ("last_means", "Scheduler.exchange", "embedding"),
    ("optimizer", "step", None),
)


def record() -> Any:
    """The events of both ranks as one list, cut into scenes, and what the step sent and computed."""
    return together(ranks(2, on_a_rank))


def on_a_rank(spoil: Callable[[], None] | None = None) -> Any:
    """Follow the third step.

    :param spoil: breaks the library before the first step, in a process of its own
    """
    if spoil is not None:
        spoil()
    run = small_run()
    step(run)
    step(run)
    followed = Followed(run)
    with ledger() as book, followed.meter:
        before = values(run)
        with Lines(LINES, followed.look) as lines:
            taken = step(run)
    return {
        "model": {**asdict(parse(ARGUMENTS.split()).config), "batch": 1},
        "units": [{"name": unit.name, "bytes": unit.nbytes} for unit in followed.meter.units],
        "events": lines.events,
        "sent": book.sent,
        "loss": rounded(taken.loss),
        "moved": rounded(distance(before, values(run))),
    }


def small_run(optimizer: str = "adamw") -> Run:
    """The training program before its first step."""
    options = parse(f"{ARGUMENTS} --optimizer {optimizer}".split())
    rank, world_size = world()
    text = corpus.read()[:4096].clone()
    reader = corpus.Reader(
        text, context=options.config.context, batch=1, rank=rank, world_size=world_size, seed=options.seed
    )
    return run_with(sharded_model(options, torch.device("cpu")), options, reader)


class Followed:
    """What is so at a line: the unit that it is about, all units' states, the bytes of each kind."""

    def __init__(self, run: Run) -> None:
        self.meter = MemorySnapshot(run.model, run.optimizer, [run.batches.reader.text])
        self.passes: set[tuple[str, str, int]] = set()

    def look(self, point: Point, frame: FrameType) -> dict[str, Any] | None:
        """What the event at a point says."""
        unit = self.unit_of(frame)
        about = unit.name if unit else None
        # The training program looks whether the gradient is finite. That exchange belongs to no unit.
        if unit is None and "broadcast" in point.line:
            return None
        found = {"unit": about, "bytes": self.bytes(), "states": [one.state.name for one in self.meter.units]}
        local = frame.f_locals
        if "dist.broadcast" in point.line:
            found["payload"] = {
                "from": local["source"],
                "bytes": local["place"].nbytes,
                "place": local["source"],
            }
        if "dist.all_to_all" in point.line:
            found["payload"] = {"bytes": local["going"].nbytes, "both": True}
        if "total" in point.line and "total" in local:
            found["norm"] = rounded(norm(local["total"]))
        return found

    def bytes(self) -> list[int]:
        """What is stored now, by kind, without the text."""
        named, kinds = self.meter.named(), dict.fromkeys(KINDS, 0)
        for key, storage in list(self.meter.storages.items()):
            kind, _ = named.get(key, (KINDS[-1], ""))
            if kind != "text":
                kinds[kind] += storage.nbytes()
        return [*kinds.values()]

    def unit_of(self, frame: FrameType | None) -> Unit | None:
        """The unit that the innermost of the running functions is about."""
        while frame is not None:
            for value in (frame.f_locals.get(name) for name in ("self", "unit", "hooks", "flat")):
                if isinstance(value, Unit):
                    return value
                if isinstance(value, Hooks):
                    return value.unit
                if isinstance(value, Flat):
                    return next(unit for unit in self.meter.units if value in unit.flats)
            if frame.f_code.co_name == "step":
                return None
            frame = frame.f_back
        return None


def together(both: list[Any]) -> Any:
    """The lists of two ranks as one.

    :raises ValueError: if the ranks ran other lines, or were in other states
    """
    first, second = both
    if [key(event) for event in first["events"]] != [key(event) for event in second["events"]]:
        raise ValueError("the two ranks did not run the same lines")
    events = []
    for one, other in zip(first["events"], second["events"], strict=True):
        merged = {**one, "bytes": [one["bytes"], other["bytes"]]}
        if "norm" in one:
            merged["norm"] = [one["norm"], other["norm"]]
        if "from" in one.get("payload", {}):
            merged["rank"] = one["payload"]["from"]
        events.append(merged)
    return {
        "model": first["model"],
        "kinds": list(KINDS),
        "units": first["units"],
        "scenes": scenes(events),
        "sent": first["sent"],
        "loss": [one["loss"] for one in both],
        "moved": [one["moved"] for one in both],
        "events": events,
    }


def scenes(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The names of the scenes, each with the number of its first event.

    :raises ValueError: if a scene does not begin anywhere
    """
    found, number = [], 0
    for name, definition, unit in SCENES:
        while number < len(events) and (events[number]["at"].split("#")[1], events[number]["unit"]) != (
            definition,
            unit,
        ):
            number += 1
        if number == len(events):
            raise ValueError(f"the scene {name!r} does not begin: no {definition} of {unit}")
        found.append({"name": name, "first": number})
        number += 1
    return found


def key(event: dict[str, Any]) -> Any:
    """What must be the same on all ranks."""
    return event["at"], event["line"], event["unit"], event["states"], event.get("payload")


def values(run: Run) -> list[float]:
    """All that this rank trains, as numbers."""
    return [number for each in run.model.parameters() for number in each.detach().tolist()]


def distance(before: list[float], after: list[float]) -> float:
    """How far a vector has moved."""
    return math.dist(before, after)


def norm(vector: Tensor) -> float:
    """The length of a vector, computed without an operation that a meter would see."""
    return math.hypot(*vector.detach().tolist())


def rounded(number: float) -> float:
    """To three digits: processors round the last bits of a matrix product differently."""
    return float(f"{number:.3g}")
