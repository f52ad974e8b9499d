"""What the planner answers for many sizes of a model, numbers of ranks and each stage: a slider's table."""

from __future__ import annotations

from typing import Any

from shardbook.memory import parse, planned

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PARAMETERS = (
    *(125_000_000, 350_000_000, 1_300_000_000, 2_700_000_000, 7_500_000_000, 13_000_000_000),
    *(30_000_000_000, 70_000_000_000, 175_000_000_000, 400_000_000_000, 1_000_000_000_000),
)
KINDS = ("parameters", "gradients", "state")


def record() -> Any:
    """The bytes of each kind on each rank, by parameters, ranks and stage, in mixed precision with AdamW."""
    return {
        "kinds": list(KINDS),
        "parameters": list(PARAMETERS),
        "ranks": list(RANKS),
        "start": {"parameters": 7_500_000_000, "ranks": 64},
        "bytes": [[answer(numel, world_size) for world_size in RANKS] for numel in PARAMETERS],
    }


def answer(numel: int, world_size: int) -> list[list[int]]:
    """The planner's figures for the four stages."""
    figures = planned(parse(["--params", str(numel), "--ranks", str(world_size)]))
    return [[stage[kind] for kind in KINDS] for stage in figures["zero"]]
