"""Where the memory goes: the numbers of the lesson are those of the planner."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from shardbook.memory import parse, planned

LESSON = (Path(__file__).parents[3] / "site" / "lessons" / "where_memory_goes.md").read_text("utf-8")
SMALL = "--layers 12 --width 768 --heads 12 --context 1024 --vocabulary 50257"
LARGE = "--layers 36 --width 4096 --heads 32 --context 1024 --vocabulary 50257 --ranks 64"


def cells(row: str) -> list[str]:
    """What stands in the row of a table that begins so."""
    (found,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", LESSON, re.MULTILINE)
    return str(found).split(" | ")


def rows(line: str) -> Any:
    return planned(parse(line.split()))["own"]


def gb(count: float, places: int = 1) -> str:
    return f"{count / 1e9:.{places}f}"


def test_a_step_on_one_gpu() -> None:
    own = rows(f"{SMALL} --ranks 1 --batch 8")[0]
    named = {
        "parameters": "parameters",
        "gradients": "gradients",
        "AdamW's two moving averages": "state",
        "activations": "activations",
        "being gathered, used or exchanged": "in_flight",
    }
    assert {row: cells(row)[0] for row in named} == {row: gb(own[kind], 2) for row, kind in named.items()}
    assert f"a step of {gb(own['step'])} GB" in LESSON
    assert f"up to {gb(rows(f'{SMALL} --ranks 1 --batch 16')[0]['step'])} GB" in LESSON


def test_which_of_the_two_first() -> None:
    models = [f"{SMALL} --ranks 8 --batch 8", LARGE]
    plain, checkpointed = (
        [rows(model) for model in models],
        [rows(f"{model} --checkpointing") for model in models],
    )
    states = [own[0]["steady"] + own[0]["gradients"] for own in plain]
    assert cells("model states, whole") == [gb(each) for each in states]
    assert cells("activations of the batch") == [gb(own[0]["activations"]) for own in plain]
    for stage in (0, 3):
        assert cells(f"stage {stage}") == [gb(own[stage]["step"]) for own in plain]
        assert cells(f"stage {stage}, each block checkpointed") == [
            gb(own[stage]["step"]) for own in checkpointed
        ]


@pytest.mark.parametrize(("more", "batch"), [("", 5), (" --checkpointing", 10)])
def test_the_largest_batch_that_fits(more: str, batch: int) -> None:
    fits, exceeds = (
        rows(f"{SMALL} --ranks 8 --batch {each}{more}")[3]["step"] for each in (batch, batch + 1)
    )
    assert fits < 8e9 < exceeds
    assert f"a batch of {batch}" in LESSON
