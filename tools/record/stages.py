"""The four stages on 2 and 4 ranks: what a rank stores by kind, at home and in a step, and what it sends."""

from __future__ import annotations

import gc
from dataclasses import asdict
from typing import Any

from tools.record.bytes_in_a_step import BATCH, CONFIG, Watched, run_of
from tools.record.frame import ranks

from shardbook.foundations.collectives import ledger
from shardbook.models.gpt import parameters
from shardbook.planning.planner import layouts_of, own_bytes
from shardbook.train.loop import step

RANKS = (2, 4)
STAGES = (0, 1, 2, 3)
PLANNED = ("parameters", "gradients", "state", "sent")


def record() -> Any:
    """For 2 and 4 ranks and each stage: the bytes at home of all ranks, and the step of rank 0."""
    return {
        "model": {**asdict(CONFIG), "batch": BATCH, "parameters": parameters(CONFIG)},
        "ranks": {world_size: on_ranks(world_size) for world_size in RANKS},
    }


def on_ranks(world_size: int) -> Any:
    """All stages, with what the planner says of each."""
    found = {}
    for stage, of_rank in enumerate(zip(*ranks(world_size, stages), strict=True)):
        planned = own_bytes(layouts_of(CONFIG, world_size), stage, "adamw")
        found[stage] = {
            "home": [one["home"] for one in of_rank],
            "sent": [one["sent"] for one in of_rank],
            "planned": {name: getattr(planned, name) for name in PLANNED},
            "step": of_rank[0]["step"],
        }
    return found


def stages() -> list[Any]:
    """On a rank: one model after the other."""
    return [one_stage(stage) for stage in STAGES]


def one_stage(stage: int) -> Any:
    """Train three steps. By the third, the order of the units is known and the optimizer has its state."""
    gc.collect()
    run = run_of(f"--stage {stage} --steps 4")
    step(run)
    step(run)
    watched = Watched(run)
    with ledger() as book, watched:
        watched.note("begin")
        step(run)
        watched.note("end")
    return {"home": home(watched, stage), "sent": book.sent, "step": watched.columns()}


def home(watched: Watched, stage: int) -> dict[str, int]:
    """What is stored of each kind while no unit is under way.

    Gradients are counted where they are most: in stages 0 and 1 when the backward pass has computed all of
    them and exchanged none, in stages 2 and 3 when it has exchanged all of them.
    """
    rows = {moment: kinds for moment, kinds, _ in watched.rows}
    collected = max(kinds.get("grad_full", 0) for kinds in rows.values())
    return {
        "parameters": rows["end"]["shard"],
        "optimizer state": rows["end"]["optimizer state"],
        "gradients": rows["backward micro-batch 0"]["gradients"] if stage > 1 else collected,
    }
