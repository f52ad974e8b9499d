"""No training step has two accesses that nothing orders, and each wait in the book prevents some."""

from __future__ import annotations

import ast
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ranks
import shardbook
from book.races import Recorder, Stream, Trace, device, races, sites

STEPS, WIDTH, VOCABULARY = 3, 24, 16
BOOK = Path(shardbook.__file__).parent


class Block(nn.Module):
    """A unit; its parameters are of as many kinds as there are dtypes, and so are its flat vectors."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=dtype) for dtype in dtypes)

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.linears:
            x = x + linear(x.to(linear.weight.dtype)).to(x.dtype)
        return x


class Model(nn.Module):
    """Four blocks, and a root around them."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(*dtypes) for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.skipped: int | None = None
        self.broken: int | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            if number == self.broken:
                x.register_hook(fail)
            if number != self.skipped:
                x = block(x)
        y: Tensor = self.head(x)
        return y


def fail(gradient: Tensor) -> None:
    raise ArithmeticError("the backward pass ends here")


class Training:
    """A model in training."""

    def __init__(self, stage: int, *dtypes: torch.dtype) -> None:
        from shardbook import shard

        self.model = shard(Model(*dtypes or (torch.float32,)), stage=stage, units=Block)
        # A fused optimizer keeps its step counters on the device, too.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)
        self.generator = torch.Generator().manual_seed(1)

    def loss(self) -> Tensor:
        tokens = torch.randint(0, VOCABULARY, (2, 6), generator=self.generator)
        return F.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())

    def step(self, micro_batches: int = 1) -> None:
        for _ in range(micro_batches):
            self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def plain(stage: int) -> None:
    training = Training(stage)
    for _ in range(STEPS):
        training.step()


def accumulated(stage: int) -> None:
    """Two means add up in the gradients, for vectors of three kinds."""
    training = Training(stage, torch.float32, torch.bfloat16, torch.float16)
    for _ in range(STEPS):
        training.step(micro_batches=2)


def evaluated(stage: int) -> None:
    """Forward passes alone between the steps."""
    training = Training(stage)
    for _ in range(STEPS):
        training.step()
        with torch.no_grad():
            training.loss()


def skipped(stage: int) -> None:
    """A unit that runs in some steps only, and is gathered ahead for nothing in others."""
    training = Training(stage)
    for step in range(STEPS):
        training.model.skipped = 3 if step % 2 else None
        training.step()


def saved(stage: int) -> None:
    """The state is saved and loaded between the steps."""
    training = Training(stage)
    for _ in range(STEPS):
        training.step()
        training.model.load_state_dict(training.model.state_dict())


def failed(stage: int) -> None:
    """A backward pass raises while a reduction is under way, and training goes on.

    In the middle the next unit is under way, too. At the beginning of the model nothing else is.
    """
    training = Training(stage)
    for place in (2, 0):
        training.step()
        training.model.broken = place
        with pytest.raises(ArithmeticError):
            training.loss().backward()
        training.model.broken = None
        training.optimizer.zero_grad()
    training.step()


Mode = Callable[[int], None]
MODES: list[Mode] = [plain, accumulated, evaluated, skipped, saved, failed]
STAGES = [3]
Case = tuple[int, str]


def record() -> dict[Case, Trace]:
    """What this rank asks of its device, in each stage and mode."""
    traces = {}
    for stage, mode in product(STAGES, MODES):
        with Recorder() as recorder:
            mode(stage)
        traces[stage, mode.__name__] = recorder.trace
    return traces


@pytest.fixture(scope="module")
def recordings() -> dict[Case, Trace]:
    """What rank 0 of 2 asked of its device."""
    traces: dict[Case, Trace] = ranks.run(2, record)[0]
    return traces


@pytest.mark.parametrize("mode", [mode.__name__ for mode in MODES])
@pytest.mark.parametrize("stage", STAGES)
def test_nothing_races(recordings: dict[Case, Trace], stage: int, mode: str) -> None:
    assert not [str(race) for race in races(recordings[stage, mode])]


def test_each_wait_prevents_a_race(recordings: dict[Case, Trace]) -> None:
    """A wait whose absence nobody notices is either superfluous or has no test."""
    reached = {case: sites(trace) for case, trace in recordings.items()}
    idle = [
        site
        for site in dict.fromkeys(site for found in reached.values() for site in found)
        if not any(site in reached[case] and races(trace, site) for case, trace in recordings.items())
    ]
    assert not idle


def test_each_wait_in_the_book_was_recorded(recordings: dict[Case, Trace]) -> None:
    lines = {site.split(" in ")[0] for trace in recordings.values() for site in sites(trace)}
    assert not [wait for wait, places in waits_in_the_book().items() if not lines & places]


def waits_in_the_book() -> dict[str, set[str]]:
    """Every call in the sources that makes a stream wait, and the lines it stands on."""
    found = {}
    for file in sorted(BOOK.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="wait" | "wait_stream" | "wait_event")):
                    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                    name = f"{file.name}:{node.lineno} {ast.unparse(node)}"
                    found[name] = {f"{file.name}:{line}" for line in lines}
    return found


# The model itself: what it must find, and what it must not.


def side_stream(*, wait: bool = True, back: bool = True, tell: bool = False) -> list[Any]:
    """Memory that is taken and filled on a side stream, read on the compute stream, and taken again."""
    with Recorder() as recorder:
        side = Stream()
        compute = device.current_stream()
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
        x, side = torch.ones(8), Stream()
        side.wait_stream(device.current_stream())
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
        x, side = torch.empty(8), Stream()
        with device.stream(side):
            y = x.view(2, 4)[1].detach()
            torch.empty_like(y)
            y.fill_(1)
    assert races(recorder.trace) == []
