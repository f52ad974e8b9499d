"""What the planner answers for many sizes of a model, numbers of ranks and each stage: a slider's table."""

from __future__ import annotations

from typing import Any

from shardbook.memory import parse, planned

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PARAMETERS = (
    *(125_000_000, 350_000_000, 1_300_000_000, 2_700_000_000, 7_500_000_000, 13_000_000_000),
    *(30_000_000_000, 70_000_000_000, 175_000_000_000, 400_000_000_000, 1_000_000_000_000),
)
STAGES = ("stage_0", "stage_1", "stage_2", "stage_3")
KINDS = ("parameters", "gradients", "state")


def record() -> Any:
    """The bytes of each kind on each rank, by parameters, ranks and stage, in mixed precision with AdamW."""
    return {
        "axes": [
            {"name": "parameters", "values": list(PARAMETERS), "start": PARAMETERS.index(7_500_000_000)},
            {"name": "ranks", "values": list(RANKS), "start": RANKS.index(64)},
        ],
        "rows": list(STAGES),
        "parts": list(KINDS),
        "answers": [[answer(numel, world_size) for world_size in RANKS] for numel in PARAMETERS],
    }


def answer(numel: int, world_size: int) -> list[list[int]]:
    """The planner's figures for the four stages."""
    figures = planned(parse(["--params", str(numel), "--ranks", str(world_size)]))
    return [[stage[kind] for kind in KINDS] for stage in figures["zero"]]
