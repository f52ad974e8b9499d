"""When each rank computes, waits and exchanges in a step of stage 3, with 0, 1 and 2 units gathered ahead.

Two ranks run on two network namespaces with a wire of limited speed between them (`benchmarks/nodes.py`), so
an exchange takes as long as on a real network. Times differ from step to step, since other programs take
their share of the processors. They can only make a step longer. So of the timed steps the one in which the
slower rank was fastest is kept, and the times of all of them beside it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.nodes import Missing, command
from tools.record.frame import ROOT

from shardbook import shard
from shardbook.foundations.hook_context import label, observers
from shardbook.models import corpus, gpt
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.unit import Unit

CONFIG = gpt.Config(layers=4, width=256, heads=4, context=128, vocabulary=256)
BATCH, RATE = 2, "1gbit"
DEPTHS = (0, 1, 2)
WARM_UP, STEPS = 3, 41
PORT = 29500


def record() -> Any:
    """Both ranks' spans and bytes at each depth, as the ranks have printed them."""
    try:
        words = command(sys.executable, "-m", "tools.record.timeline", rate=RATE)
    except Missing as missing:
        sys.exit(str(missing))
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def exact(data: Any) -> Any:
    """The order of the acts and the bytes that are whole after each; no times."""
    depths = {
        depth: [
            {"acts": [span[:2] for span in rank["host"]], "whole": [nbytes for _, nbytes in rank["whole"]]}
            for rank in found["ranks"]
        ]
        for depth, found in data["depths"].items()
    }
    return {"model": data["model"], "units": data["units"], "depths": depths}


def on_a_node() -> None:
    """One rank: train with each depth in turn, and let rank 0 print what both have seen."""
    torch.set_num_threads(1)
    rank, first = int(os.environ["NODE"]), os.environ["FIRST"]
    store = dist.TCPStore(first, PORT, 2, is_master=rank == 0, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    depths = {depth: at_depth(depth) for depth in DEPTHS}
    ranks: list[Any] = [None, None]
    dist.all_gather_object(ranks, depths)
    if rank == 0:
        chosen = {depth: fastest_step([one[depth]["steps"] for one in ranks]) for depth in DEPTHS}
        found = {
            "model": {**asdict(CONFIG), "batch": BATCH},
            "rate": RATE,
            "timed_steps": STEPS,
            "units": ranks[0][0]["units"],
            "depths": chosen,
        }
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def fastest_step(ranks: list[list[Any]]) -> Any:
    """The step in which the slower rank was fastest, with times in microseconds since it began."""
    seconds = [
        max(one["end"] for one in both) - min(one["begin"] for one in both)
        for both in zip(*ranks, strict=True)
    ]
    number = min(range(STEPS), key=seconds.__getitem__)
    both = [steps[number] for steps in ranks]
    begin = min(one["begin"] for one in both)

    def since(moment: float) -> int:
        return round((moment - begin) * 1e6)

    return {
        "microseconds": [round(one * 1e6) for one in sorted(seconds)],
        "ranks": [
            {
                "begin": since(one["begin"]),
                "end": since(one["end"]),
                "host": [[act, about, since(start), since(stop)] for act, about, start, stop in one["host"]],
                "wire": [[act, about, since(start), since(stop)] for act, about, start, stop in one["wire"]],
                "whole": [[since(moment), nbytes] for moment, nbytes in one["whole"]],
            }
            for one in both
        ],
    }


def at_depth(depth: int) -> Any:
    """Train a model that gathers so many units ahead."""
    gc.collect()
    torch.manual_seed(0)
    model = shard(gpt.GPT(CONFIG), stage=3, prefetch=depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    reader = corpus.Reader(
        corpus.read(), context=CONFIG.context, batch=BATCH, rank=dist.get_rank(), world_size=2
    )
    units = list(scheduler_of(model).units)
    steps = []
    for number in range(WARM_UP + STEPS):
        inputs, targets = reader[number]
        dist.barrier()
        with Clock(units) as clock:
            loss = gpt.loss(model(inputs), targets)
            loss.backward()
            with label("step", "optimizer"):
                optimizer.step()
            optimizer.zero_grad()
        # The exchanges end before the step does, but the thread that says so may come later.
        dist.barrier()
        steps.append(clock.seen())
    return {"units": {unit.name: unit.nbytes for unit in units}, "steps": steps[WARM_UP:]}


@dataclass
class Clock(contextlib.AbstractContextManager["Clock"]):
    """The times of one step on this rank.

    `host` are the spans of the thread that trains. It computes a unit from the end of its wait until it is
    freed.
    `wire` are the exchanges, from their start until the last message has arrived.
    """

    units: list[Unit]
    begin: float = 0.0
    end: float = 0.0
    host: list[tuple[str, str, float, float]] = field(default_factory=list)
    wire: list[tuple[str, str, float, list[float]]] = field(default_factory=list)
    whole: list[tuple[float, int]] = field(default_factory=list)
    began: dict[str, float] = field(default_factory=dict)
    computing: tuple[str, float] = ("", 0.0)
    forward: bool = True

    def __enter__(self) -> Clock:
        observers.append(self)
        self.begin = time.perf_counter()
        self.whole.append((self.begin, self.held()))
        return self

    def __exit__(self, *error: Any) -> None:
        self.end = time.perf_counter()
        observers.remove(self)

    def held(self) -> int:
        """The bytes of the vectors that have their memory now."""
        return sum(flat.full.untyped_storage().nbytes() for unit in self.units for flat in unit.flats)

    def begins(self, act: str, about: Any) -> None:
        """A unit is about to act: what was computed until now has ended, if this frees it."""
        now = time.perf_counter()
        self.began[act] = now
        if act == "free" and about == self.computing[0]:
            pass_ = "forward" if self.forward else "backward"
            self.host.append((pass_, about, self.computing[1], now))
            # The head computes last in the forward pass and first in the backward pass.
            self.forward = self.forward and about != self.units[-1].name
            self.computing = ("", now)

    def ends(self, act: str, about: Any) -> None:
        """A unit has acted."""
        now = time.perf_counter()
        if act == "wait for":
            self.computing = (about, now)
        if act in ("wait for", "wait for the mean of", "step"):
            self.host.append((act, about, self.began[act], now))
        if act in ("gather", "reduce"):
            self.follow(act, about)
        if act in ("gather", "free"):
            self.whole.append((now, self.held()))

    def follow(self, act: str, about: str) -> None:
        """Note when each message of an exchange has arrived."""
        (unit,) = (unit for unit in self.units if unit.name == about)
        arrivals: list[float] = []
        self.wire.append((act, about, self.began[act], arrivals))
        for work in works_of(act, unit):
            work.get_future().add_done_callback(lambda _: arrivals.append(time.perf_counter()))

    def seen(self) -> Any:
        """All of it as plain values."""
        wire = [(act, about, start, max(arrivals)) for act, about, start, arrivals in self.wire]
        return {
            "begin": self.begin,
            "end": self.end,
            "host": self.host,
            "wire": wire,
            "whole": self.whole,
        }


def works_of(act: str, unit: Unit) -> Iterator[Any]:
    """The messages of the exchange that a unit has just started."""
    for flat in unit.flats:
        under_way: Iterable[Any] = [flat.gathering] if act == "gather" else [flat.reducing]
        for exchange in under_way:
            if exchange is not None:
                yield from exchange.works


if __name__ == "__main__":
    on_a_node()
