"""The benchmark is never run as a test, but its command line and its arithmetic have to be there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import ranks
from warm import start

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import (  # noqa: E402
    small_units,
    two_nodes,
)
from benchmarks.__main__ import alone, compare, over_floor, sent, stored  # noqa: E402
from benchmarks.contender import CONTENDERS, CORE, LEVERS, Training, config_of  # noqa: E402
from benchmarks.floor import floor_bytes, lean_bytes, saved_by_blocks, without_exchanges  # noqa: E402
from benchmarks.guards import GUARDS, measure, table, table_of_labels  # noqa: E402
from benchmarks.launch import Run, Size, on_ranks  # noqa: E402
from benchmarks.steady import steady  # noqa: E402

import loopback  # noqa: E402
from shardbook.foundations.collectives import ledger  # noqa: E402
from shardbook.models.gpt import parameters  # noqa: E402
from shardbook.planning.forecast import Meter  # noqa: E402
from shardbook.planning.planner import peak_moments  # noqa: E402

SMALL = Size(layers=2, width=20, heads=2, context=10, vocabulary=30, batch=2, steps=1, warm_up=0)


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return start("-m", "benchmarks", *arguments, cwd=ROOT)


def test_the_benchmark_explains_its_options() -> None:
    run = benchmark("--help")
    assert run.returncode == 0, run.stderr
    for option in ("--json", "--pairs", "--lever-pairs", "--quick", "--steps", "--vocabulary"):
        assert option in run.stdout


def test_a_folder_that_is_missing_is_told_before_anything_runs() -> None:
    run = benchmark("--json", "nowhere/figures.json")
    assert run.returncode == 1
    assert run.stderr == "--json nowhere/figures.json: there is no folder nowhere; make it first\n"


def figures_of(seconds: float, peak: float) -> Run:
    known = {"wire": 1e6, "payload": 9e5, "checks": seconds / 100, "waits": seconds / 10}
    return Run(seconds, seconds / 2, peak, peak / 2, **known, stored={"parameters": 5})


def test_ratios_are_taken_round_by_round_and_their_median_counts() -> None:
    # The machine is three times as slow in one round, which says nothing about the programs.
    slow = (1.0, 3.0, 1.0)
    runs = {
        name: [figures_of((index + 1) * factor, 10.0 + index) for factor in slow]
        for index, name in enumerate(CORE)
    }
    runs["shardbook"][2] = figures_of(2.0, 10.0)
    figures = compare(runs)
    place = list(CORE).index("fsdp2_tuned")
    assert figures["step_ratio_fsdp2_tuned"] == pytest.approx(1 / (place + 1))
    assert figures["step_ratio_fsdp2_tuned_high"] == pytest.approx(1.5 / (place + 1))
    assert figures["peak_ratio_fsdp2_lean"] == pytest.approx(11 / 14)
    assert figures["peak_ratio_fsdp2_leanest"] == pytest.approx(12 / 14)
    assert "step_ratio_shardbook_lean" not in figures


def test_every_lever_is_compared_with_our_own_defaults_and_with_theirs() -> None:
    runs = {name: [figures_of(1.0, 10.0 + index)] for index, name in enumerate(LEVERS)}
    figures = alone(runs)
    peaks = {name: of_one[0].peak for name, of_one in runs.items()}
    for lever in ("chunked", "step_in_backward", "lazy", "checkpointed", "lean", "leanest"):
        ours = peaks[f"shardbook_{lever}"]
        assert figures[f"lever_{lever}_peak"] == ours / peaks["shardbook"]
        assert figures[f"lever_{lever}_peak_over_fsdp2"] == ours / peaks["fsdp2"]
    both = peaks["shardbook_checkpointed"] / peaks["fsdp2_checkpointed"]
    assert figures["checkpointed_peak_over_fsdp2_checkpointed"] == both


def test_the_figures_that_were_promised_have_their_names() -> None:
    runs = {name: [figures_of(1.0, 2.0)] * 2 for name in CORE}
    one = runs["shardbook"]
    figures = {
        **compare(runs),
        **sent(one, one[0], SMALL),
        **stored(one, SMALL),
        **over_floor(runs, SMALL),
    }
    assert {
        "step_ratio_floor",
        "peak_over_floor",
        "floor_bytes_of_saved_activations",
        "lean_least_over_fsdp2",
        "step_ratio_fsdp2_tuned",
        "peak_ratio_fsdp2",
        "peak_ratio_fsdp2_lean",
        "bytes_ratio_limit_n2",
        "bytes_ratio_limit_n4",
        "steady_bytes_of_parameters",
        "order_check_share",
    } <= set(figures)
    assert figures["order_check_share"] == pytest.approx(0.01)


def test_the_peak_is_compared_with_the_sum_and_the_time_with_the_step_that_exchanges_nothing() -> None:
    least, lean = sum(floor_bytes(SMALL, 2).values()), sum(lean_bytes(SMALL, 2).values())
    runs = {name: [figures_of(4.0, 2.0 * least)] * 2 for name in CORE}
    runs["floor"] = [figures_of(2.0, 0.0), figures_of(4.0, 0.0)]
    figures = {**compare(runs), **over_floor(runs, SMALL)}
    assert figures["step_ratio_floor"] == figures["cpu_ratio_floor"] == pytest.approx(1.5)
    assert "peak_ratio_floor" not in figures
    assert figures["peak_over_floor"] == pytest.approx(2)
    assert figures["lean_least_over_fsdp2"] == pytest.approx(lean / least / 2)
    assert figures["lean_peak_over_least"] == pytest.approx(2 * least / lean)
    assert (figures["over_floor_seconds"], figures["waiting_seconds"]) == (1.0, 0.4)


def test_the_saved_activations_are_those_of_the_forecast() -> None:
    one, two = (peak_moments(replace(config_of(SMALL), layers=layers), SMALL.batch)[0] for layers in (1, 2))
    assert saved_by_blocks(SMALL) == SMALL.layers * (two - one)


# Activations, parameters and logits all matter in it.
MIDDLE = Size(layers=3, width=64, heads=2, context=32, vocabulary=100, batch=2, steps=1, warm_up=0)


def at_the_peak(name: str) -> tuple[int, int]:
    """What a step takes at most, as the library's meter counts it, and what it sends at the floor."""
    training = Training(CONTENDERS[name], MIDDLE)
    training.step()
    training.step()
    with Meter() as meter:
        training.step()
    dist.barrier()
    before = loopback.socket_bytes()[0]
    with ledger() as book, without_exchanges():
        training.step()
    gone = loopback.socket_bytes()[0] - before
    dist.barrier()
    assert book.total > 10_000
    return meter.peak, gone


@pytest.mark.full
def test_no_step_takes_less_than_must_be_there_and_at_the_floor_nothing_is_sent() -> None:
    peaks = ranks.run(2, at_the_peak, "shardbook_lean")
    least = sum(lean_bytes(MIDDLE, 2).values())
    for peak, gone in peaks:
        assert least < peak < 1.5 * least
        # Only the short questions that ranks ask each other through the store are left.
        assert gone < 2_000
    whole = sum(floor_bytes(MIDDLE, 2).values())
    for peak, _ in ranks.run(2, at_the_peak, "shardbook"):
        assert 0.9 * whole < peak < 1.1 * whole


def what_is_stored(name: str) -> dict[str, Any]:
    training = Training(CONTENDERS[name], SMALL)
    for _ in range(2):
        training.step()
    slices = [parameter.nbytes for parameter in training.model.parameters()]
    named = steady(training.model, training.optimizers)
    assert named["parameters"] == sum(slices)
    assert named["moments"] == 2 * sum(slices)
    assert named["step counters"] == 4 * len(slices)
    # Nothing of an earlier run is left in this fresh process, so the names explain every byte.
    assert named["unexplained"] == 0
    return {**named, "rank": dist.get_rank()}


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("name", ["shardbook", "shardbook_lean", "shardbook_leanest"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_every_byte_between_two_steps_has_a_name(name: str, world_size: int) -> None:
    found = ranks.run(world_size, what_is_stored, name, timeout=120)
    numbers = parameters(config_of(SMALL))
    assert sum(each["parameters"] for each in found) == 4 * numbers
    assert sum(each["moments"] for each in found) == 8 * numbers
    # The shape was chosen so that nothing divides evenly.
    assert sum(each["alignment"] for each in found) > 0
    assert sum(each["padding"] for each in found) > 0


def test_a_mesh_is_compared_with_one_copy_round_by_round() -> None:
    assert two_nodes.wire_limit("mesh", SMALL) == 4 * parameters(config_of(SMALL))
    limit = two_nodes.wire_limit("flat", SMALL)
    flat = [two_nodes.Run(4.0, 2 * limit), two_nodes.Run(12.0, 2 * limit)]
    mesh = [two_nodes.Run(2.0, limit / 2), two_nodes.Run(6.0, limit / 2)]
    runs = {"flat": flat, "mesh": mesh}
    figures = two_nodes.compare(runs, SMALL)
    assert figures["step_ratio_mesh_flat"] == figures["step_ratio_mesh_flat_high"] == 0.5
    assert figures["wire_ratio_mesh_flat"] == 0.25
    assert figures["wire_over_limit_mesh"] == 1.0
    assert figures["wire_over_limit_flat"] == 2.0
    shown = two_nodes.report(runs, figures, SMALL, "10mbit")
    assert "at least" in shown.splitlines()[1]
    assert "step_ratio_mesh_flat" in shown


@pytest.mark.full
def test_small_units_are_measured_beside_their_peers() -> None:
    took = on_ranks(2, small_units.measure, 2, 1, 1)
    assert list(took) == ["ddp", "fsdp2", "stage_0", "stage_1", "stage_2", "stage_3", "together"]
    assert all(each > 0 for each in took.values())
    ratios = small_units.ratios(took)
    assert ratios["small_stage_0_ddp"] == took["stage_0"] / took["ddp"]
    assert ratios["small_together_fsdp2"] == took["together"] / took["fsdp2"]
    assert ratios["small_stage_2_stage_3"] == took["stage_2"] / took["stage_3"]
    assert len(ratios) == 13
    assert len(small_units.table(took).splitlines()) == 8


@pytest.mark.nightly
def test_every_guard_is_timed() -> None:
    found = measure(SMALL)
    assert list(found["guards"]) == list(GUARDS)
    idle = [guard for guard, (calls, _) in found["guards"].items() if calls == 0]
    # The rule is tried before the first step only, and threads are compared when another one calls a unit.
    assert {*idle} == {"an optimizer's rule needs the whole", "two threads call units"}
    assert found["trial"] > 0
    guards, _, labels = table(found).split("\n\n")
    rows = [row.split("  ")[0] for row in guards.splitlines()]
    assert rows == ["what a guard notices", *GUARDS, "all of them"]
    assert found["labels"]["count"] > 0
    assert all(0 < low <= middle <= high for low, middle, high in list(found["labels"].values())[1:])
    assert labels.splitlines() == table_of_labels(found["labels"])


def test_the_benchmark_of_the_host_prints_the_time_of_each_way() -> None:
    run = start(
        "-m", "benchmarks.host_adam", "--parameters", "2000", "--steps", "2", "--threads", "1", cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    first, *lines = run.stdout.splitlines()
    assert first == "2,000 parameters in FP32, 1 threads"
    assert [line[:28].strip() for line in lines] == ["one tensor after the other", "foreach", "fused"]
    for line in lines:
        assert float(line[28:].removesuffix(" ms")) >= 0
