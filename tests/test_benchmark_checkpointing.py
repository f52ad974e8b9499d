"""The comparison of checkpoints is never run as a test; its counts and its arithmetic are."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ranks
from warm import start

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.checkpointing import compare, in_turns, medians, relative  # noqa: E402
from benchmarks.launch import Size  # noqa: E402
from benchmarks.recompute import CONTENDERS, Step, beside, measure  # noqa: E402

SMALL = Size(layers=3, width=20, heads=2, context=10, vocabulary=30, batch=2, steps=1, warm_up=0)
CHECKPOINT = 4 * SMALL.batch * SMALL.context * SMALL.width


@pytest.mark.full
def test_it_explains_its_options() -> None:
    run = start("-m", "benchmarks.checkpointing", "--help", cwd=ROOT)
    assert run.returncode == 0, run.stderr
    for option in ("--json", "--pairs", "--beside", "--steps", "--vocabulary"):
        assert option in run.stdout


def measured() -> dict[str, Step]:
    return {name: measure(name, SMALL) for name in CONTENDERS}


@pytest.mark.full
def test_the_blocks_leave_behind_their_inputs() -> None:
    """And the output of the last one; the input of the first one was there before."""
    (found,) = ranks.run(1, measured)
    # What a checkpoint keeps beside its input: a generator's state of 5056 bytes at most.
    for name in ("shardbook", "torch", "shardbook_reentrant", "torch_reentrant"):
        beside = found[name].saved - SMALL.layers * CHECKPOINT
        assert 0 <= beside <= SMALL.layers * 5056, name
        assert found[name].saved < found["plain"].saved
    assert found["shardbook"].saved <= found["torch"].saved
    assert found["shardbook_reentrant"].saved <= found["torch_reentrant"].saved


@pytest.mark.nightly
def test_two_are_trained_in_turns_in_one_process() -> None:
    pairs = replace(SMALL, steps=3, warm_up=1)
    assert len(beside("shardbook", "torch", pairs)) == 3
    figures = in_turns(2, SMALL)
    assert set(figures) == {
        f"checkpoint{variant}_step_beside_ratio{place}"
        for variant in ("", "_reentrant")
        for place in ("", "_low", "_high")
    }
    assert all(float(figure or 0) > 0 for figure in figures.values())


def test_ratios_are_taken_round_by_round_and_have_their_names() -> None:
    # The machine is three times as slow in one round, which says nothing about the programs.
    runs = {
        name: [Step(slow * (index + 2), 100 + index, 200 + index) for slow in (1.0, 3.0, 1.0)]
        for index, name in enumerate(CONTENDERS)
    }
    figures = {**compare(runs), **medians(runs)}
    assert figures["checkpoint_step_ratio"] == pytest.approx(2 / 3)
    assert figures["checkpoint_step_ratio_high"] == pytest.approx(2 / 3)
    assert figures["checkpoint_saved_ratio"] == pytest.approx(100 / 101)
    assert figures["checkpoint_reentrant_step_ratio"] == pytest.approx(4 / 5)
    assert figures["checkpoint_reentrant_saved_ratio"] == pytest.approx(102 / 103)
    assert figures["checkpoint_step_over_plain"] == pytest.approx(2 / 6)
    assert figures["checkpoint_saved_bytes_torch"] == 101
    assert "checkpoint_reentrant_peak_ratio" in relative(figures)
