"""No training step has two accesses that nothing orders, and each wait in the book prevents some."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ranks
from book import programs
from book.waits import waits_in_the_book
from shardbook.check.race_recorder import Recorder, Stream, device, recording
from shardbook.check.race_replay import Trace, Wait, races
from shardbook.foundations.streams import compute_stream, give_back, streams
from shardbook.streaming import residual
from shardbook.zero.offload import move_out, to_device, to_host

# All tests wait for the same recordings, whatever limit the command line sets for one test.
pytestmark = pytest.mark.timeout(600)


def overwritten() -> None:
    """A tensor is written to while it is copied to the host. That races, and the pass is refused."""
    x = torch.ones(8, requires_grad=True) * 1
    with residual.offload(least=0):
        y = x.sin()
    x.add_(1)
    with pytest.raises(RuntimeError, match="was changed in place after autograd had saved it"):
        y.sum().backward()


def streamed() -> None:
    """Parameters and buffers come from the host slice by slice, and gradients and buffers go there."""
    programs.streamed(older)


def streamed_low() -> None:
    """Parameters and gradients travel in 16 bits; the inputs of the slices stay on the device."""
    programs.streamed_low(older)


def older(make: Callable[[], nn.Module]) -> nn.Module:
    """A model on the host, older than the recording."""
    with recording().paused():
        model = make()
    recording().keep_on_host([*model.parameters(), *model.buffers()])
    return model


RUNS: dict[str, Callable[[], None]] = {**programs.RUNS, "streamed": streamed, "streamed_low": streamed_low}


# In these each wait of the book prevents a race; the others are for `make test-all`.
WITNESSES = [
    *("3-stepped", "3-scattered", "3-rerouted", "3-together", "2-repeated", "1-scaled", "1-gathered"),
    *(
        "0-offloaded",
        "0-evaluated",
        "0-separate",
        "0-paired",
        "1-paired",
        "0-saved",
        "1-alternated_low",
        "failed_on_a_mesh",
        "parted",
        "streamed",
    ),
]


def record(names: list[str]) -> dict[str, Trace]:
    """What this rank asks of its device in some of the runs."""
    traces = {}
    for name in names:
        with Recorder() as recorder:
            RUNS[name]()
        traces[name] = recorder.trace
    return traces


@pytest.fixture(scope="module")
def recordings(request: pytest.FixtureRequest) -> dict[str, Trace]:
    """What rank 0 of 2 asked of its device, in the runs that are asked for."""
    wanted = {item.callspec.params["run"] for item in request.session.items if is_run(item)}
    if any(item.name == test_each_wait_prevents_a_race.__name__ for item in request.session.items):
        wanted.update(WITNESSES)
    names = [name for name in RUNS if name in wanted]
    traces: dict[str, Trace] = ranks.run(2, record, names, timeout=240)[0]
    return traces


def is_run(item: Any) -> bool:
    """Whether a test that was collected is about one of the runs."""
    return "run" in getattr(getattr(item, "callspec", None), "params", ()) and item.path == Path(__file__)


OTHERS = [pytest.param(name, marks=pytest.mark.nightly) for name in RUNS if name not in WITNESSES]


@pytest.mark.cases(now=11)
@pytest.mark.parametrize("run", [*WITNESSES, *OTHERS])
def test_nothing_races(recordings: dict[str, Trace], run: str) -> None:
    assert not [str(race) for race in races(recordings[run])]


def test_each_wait_prevents_a_race(recordings: dict[str, Trace]) -> None:
    """A wait whose absence nobody notices is either superfluous or has no test."""
    idle = [
        wait
        for wait, lines in waits_in_the_book().items()
        if not any(
            races(trace, without=lines)
            for trace in sorted(recordings.values(), key=len)
            if any(isinstance(event, Wait) and lines & {*event.lines} for event in trace)
        )
    ]
    assert not idle


# The model itself: what it must find, and what it must not.


def side_stream(*, wait: bool = True, back: bool = True, tell: bool = False) -> list[Any]:
    """Memory that is taken and filled on a side stream, read on the compute stream, and taken again."""
    with Recorder() as recorder:
        side = Stream("cpu")
        compute = device.current_stream("cpu")
        with device.stream(side):
            x = torch.ones(8)
        if wait:
            compute.wait_stream(side)
        x.sum()
        if tell:
            x.record_stream(compute)
        del x
        if back:
            side.wait_stream(compute)
        with device.stream(side):
            torch.ones(16)
    return races(recorder.trace)


def test_the_model_finds_a_read_that_comes_too_early() -> None:
    (race,) = side_stream(wait=False)
    assert str(race) == (
        "read on the compute stream by sum, the training loop\n"
        "    is not ordered after\n"
        f"    write on stream {Stream.made} by ones, the training loop"
    )


def test_the_model_finds_memory_that_is_taken_too_early() -> None:
    assert side_stream() == []
    assert len(side_stream(back=False)) == 1
    assert side_stream(back=False, tell=True) == []


@pytest.mark.parametrize("end", ["resize", "del"])
def test_the_model_takes_a_shrunk_storage_for_a_free_one(end: str) -> None:
    with Recorder() as recorder:
        x, side = torch.ones(8), Stream("cpu")
        side.wait_stream(device.current_stream("cpu"))
        with device.stream(side):
            x.add_(1)
        if end == "resize":
            x.untyped_storage().resize_(0)
        else:
            del x
        torch.ones(2)
    assert len(races(recorder.trace)) == 1


def test_the_model_lets_views_and_empty_memory_alone() -> None:
    with Recorder() as recorder:
        x, side = torch.empty(8), Stream("cpu")
        with device.stream(side):
            y = x.view(2, 4)[1].detach()
            torch.empty_like(y)
            y.fill_(1)
    assert races(recorder.trace) == []


@pytest.mark.parametrize("wait", [False, True])
def test_the_model_lets_the_thread_and_then_the_device_read_what_the_thread_waited_for(wait: bool) -> None:
    found = []
    for away in (False, True):
        with Recorder() as recorder:
            there = to_host(torch.ones(8), "x")
            crossing = there.back(torch.device("cpu"), "x") if away else there
            assert there.copy.is_cpu
            assert crossing.copy.is_cpu is not away
            if wait:
                crossing.arrive()
            crossing.copy.sum()
        found.append([str(race).split(",")[0] for race in races(recorder.trace)])
    expected = ["read on the host by sum"], ["read on the compute stream by sum"]
    assert found == ([[], []] if wait else [*expected])


def test_the_model_finds_a_copy_to_the_device_that_does_not_wait_for_the_one_to_the_host() -> None:
    with Recorder() as recorder:
        there = to_host(torch.ones(8), "x")
        to_device(there.copy, torch.device("cpu"), "x").wait()
    (race,) = races(recorder.trace)
    assert str(race).startswith(f"read on stream {Stream.made} by copy_")


def test_the_model_takes_a_stream_without_a_device_for_one_of_another_device() -> None:
    for named in (None, "cpu"):
        with Recorder() as recorder:
            x, side = torch.ones(8), Stream("cpu")
            side.wait_stream(device.current_stream(named))
            with device.stream(side):
                x.sum()
        assert len(races(recorder.trace)) == (named is None), named
        with Recorder() as recorder:
            x = torch.ones(8)
            # A block with a stream of another device does not change where `x` is computed.
            with device.stream(Stream(named)):
                x.add_(1)
        assert len(races(recorder.trace)) == (named is not None), named


def test_every_copy_and_wait_names_the_device_of_its_tensor() -> None:
    cpu = torch.device("cpu")
    with Recorder() as recorder:
        assert all(stream.at_home for stream in streams(cpu))
        there = to_host(torch.ones(8), "x")
        there.arrive().sum()
        to_device(there.copy, cpu, "x").wait().sum()
        there.back(cpu, "x").wait().sum()
        move_out(torch.ones(8)).sum()
    assert not [str(race) for race in races(recorder.trace)]


def test_who_computes_on_another_stream_comes_after_the_one_before() -> None:
    cpu = torch.device("cpu")
    found = []
    for ordered in (True, False):
        with Recorder() as recorder:
            compute_stream(cpu)
            x, other = torch.ones(8), Stream("cpu")
            with device.stream(other):
                if ordered:
                    compute_stream(cpu)
                x.add_(1)
                x.untyped_storage().resize_(0)
                if ordered:
                    give_back(cpu)
            torch.ones(8)
        found.append(len(races(recorder.trace)))
    assert found == [0, 2]


def test_a_write_that_may_overtake_a_copy_to_the_host_is_found_and_refused() -> None:
    with Recorder() as recorder:
        overwritten()
    (race,) = races(recorder.trace)
    assert str(race).startswith("write on the compute stream by add_")
