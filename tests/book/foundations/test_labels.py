"""A profile of a training step shows each label for each unit as often as the step was taken, or none."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import profile

import ranks
from shardbook import checkpoint, checkpoint_module, checkpoint_sequential, profiler_labels, shard
from shardbook.checkpointing.arguments import name_of
from shardbook.foundations import hook_context
from shardbook.foundations.hook_context import label
from shardbook.foundations.torch_private import TorchDispatchMode

ACTIONS = ("gather", "wait for", "wait for the mean of", "free", "reduce", "recompute")
BLOCKS = [f"blocks.{number}" for number in range(3)]
UNITS = ["the root", *BLOCKS]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.inner(x))


class Net(nn.Module):
    def __init__(self, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.call = call
        self.inlet, self.outlet = nn.Linear(4, 4), nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inlet(x)
        for block in self.blocks:
            x = self.call(block, x)
        y: Tensor = self.outlet(x)
        return y


def plain(block: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = block(x)
    return y


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x = torch.full((2, 4), 1.0 + dist.get_rank())
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


Call = Callable[[nn.Module, Tensor], Tensor]
Wrapped = dict[str, Any]
Event = tuple[str, list[str]]


def labels_in(trace: Any) -> list[Event]:
    """Each label of a trace, with the labels around it, the innermost first."""
    return [(event.name, list(around(event))) for event in trace.events() if is_label(event.name)]


def around(event: Any) -> Iterator[str]:
    while (event := event.cpu_parent) is not None:
        if is_label(event.name):
            yield event.name


def is_label(name: str) -> bool:
    return name.startswith(tuple(f"{action} " for action in ACTIONS))


def traced(
    stage: int, depth: int = 1, call: Call = plain, *, wrapped: Wrapped | None = None, compiled: bool = False
) -> list[Event]:
    """The labels of the second step, which knows what comes next."""
    model = Net(call)
    if wrapped is not None:
        checkpoint_module(model, units=Block, **wrapped)
    shard(model, stage=stage, units=Block, prefetch=depth)
    if compiled:
        for block in model.blocks:
            block.compile(backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with warnings.catch_warnings():
        # The compiler looks at `.grad` of tensors that have none.
        warnings.simplefilter("ignore" if compiled else "error", UserWarning)
        step(model, optimizer)
    with profile() as trace:
        step(model, optimizer)
    return labels_in(trace)


def reentrant(block: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = checkpoint(block, x, use_reentrant=True)
    return y


def with_a_function(block: nn.Module, x: Tensor) -> Tensor:
    def residual(x: Tensor) -> Tensor:
        y: Tensor = block(x)
        return y

    z: Tensor = checkpoint(residual, x)
    return z


def off(stage: int) -> list[Event]:
    """What is left when labels are off, and what comes when they are on again."""
    profiler_labels(False)
    found = traced(stage, wrapped={})
    profiler_labels(True)
    return [*found, ("again", []), *traced(stage, wrapped={})]


def apart() -> list[Event]:
    """Checkpoints of a model that nothing shards: modules by their names, and functions by theirs."""
    model = checkpoint_module(Net(plain), units=Block)
    chain = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    with profile() as trace:
        model(torch.ones(2, 4)).sum().backward()
        checkpoint_sequential(chain, 2, torch.ones(2, 4, requires_grad=True)).sum().backward()
        checkpoint(torch.sin, torch.ones(2, requires_grad=True)).sum().backward()
        checkpoint(nn.Tanh(), torch.ones(2, requires_grad=True)).sum().backward()
    return labels_in(trace)


def untraced() -> list[Event]:
    """Where no profiler runs, no operation is made for a label, and no name is looked for."""

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found.append((str(func), []))
            return func(*args, **(kwargs or {}))

    found: list[Event] = []
    with Seen(), label("recompute", pytest.fail):
        torch.ones(())
    with profile(), Seen(), label("recompute", lambda: "x"):
        torch.zeros(())
    return found


GRID = list(product((1, 2, 3), (0, 1, 2), (False, True)))
RUNS: dict[Any, Callable[[], list[Event]]] = {
    **{case: partial(traced, *case[:2], wrapped={} if case[2] else None) for case in GRID},
    "no split": partial(traced, 0),
    "reentrant": partial(traced, 3, 0, reentrant),
    "reentrant inside": partial(traced, 3, wrapped={"use_reentrant": True}),
    "function": partial(traced, 3, 0, with_a_function),
    "off": partial(off, 3),
    "apart": apart,
    "untraced": untraced,
}


def trace_all() -> dict[Any, list[Event]]:
    return {name: run() for name, run in RUNS.items()}


@pytest.fixture(scope="module")
def traces() -> dict[Any, list[Event]]:
    """The labels of all runs, which two ranks agree about."""
    first, second = ranks.run(2, trace_all, timeout=240)
    assert first == second
    found: dict[Any, list[Event]] = first
    return found


def expected(recomputed: list[str], again: int = 2, first: str = "") -> Counter[str]:
    """The labels of one step.

    :param again: how often each block is gathered; the root is gathered twice
    :param first: the first unit, if all exchange their gradients at once, as small ones do in stages 0 and 1
    """
    counts: Counter[str] = Counter()
    for unit in UNITS:
        for action in ("gather", "wait for", "free"):
            counts[f"{action} {unit}"] = again if unit in BLOCKS else 2
    for unit in [f"{first} and 3 more"] if first else UNITS:
        for action in ("reduce", "wait for the mean of"):
            counts[f"{action} {unit}"] = 1
    counts.update(f"recompute {name}" for name in recomputed)
    return counts


def counted(events: list[Event]) -> Counter[str]:
    return Counter(name for name, _ in events)


def nested(events: list[Event]) -> list[Event]:
    return [event for event in events if event[1]]


@pytest.mark.nightly
@pytest.mark.parametrize(("stage", "depth", "wrapped"), GRID)
def test_each_step_of_each_unit_has_a_label(traces: Any, stage: int, depth: int, wrapped: bool) -> None:
    events = traces[stage, depth, wrapped]
    assert counted(events) == expected(BLOCKS if wrapped else [], first="blocks.2" if stage < 2 else "")
    # None of these steps is a part of another.
    assert nested(events) == []


@pytest.mark.nightly
def test_stage_0_has_the_same_labels(traces: Any) -> None:
    assert counted(traces["no split"]) == expected([], first="the root")


def compiled() -> list[Event]:
    return traced(3, compiled=True)


@pytest.mark.nightly
def test_compiled_units_have_the_same_labels() -> None:
    for events in ranks.run(2, compiled, timeout=240):
        assert counted(events) == expected([])


@pytest.mark.nightly
def test_the_backward_pass_of_a_unit_reads_as_the_chapter_says(traces: Any) -> None:
    names = [name for name, _ in traces[3, 1, True]]
    start = names.index("recompute blocks.1") - 1
    assert names[start : start + 6] == [
        "wait for blocks.1",
        "recompute blocks.1",
        "gather blocks.0",
        "free blocks.1",
        "wait for the mean of blocks.2",
        "reduce blocks.1",
    ]


def test_what_a_recomputation_gathers_stands_under_its_label(traces: Any) -> None:
    """A reentrant checkpoint around the call of a unit gathers it for the second run."""
    assert counted(traces["reentrant"]) == expected(BLOCKS, again=3)
    actions = ("gather", "wait for", "free")
    assert nested(traces["reentrant"]) == [
        (f"{action} {block}", [f"recompute {block}"]) for block in BLOCKS[::-1] for action in actions
    ]
    assert counted(traces["reentrant inside"]) == expected(BLOCKS)
    assert nested(traces["reentrant inside"]) == []


def test_a_recomputation_has_the_name_of_what_it_runs(traces: Any) -> None:
    function = "with_a_function.<locals>.residual"
    assert counted(traces["function"]) == expected([function] * 3)
    assert [name for name, _ in traces["apart"]] == [
        *(f"recompute {block}" for block in BLOCKS[::-1]),
        "recompute Linear",
        "recompute _VariableFunctionsClass.sin",
        "recompute Tanh",
    ]


def test_several_modules_are_named_by_the_first_and_the_last() -> None:
    assert name_of(partial(print, [nn.Tanh(), nn.ReLU(), nn.GELU()])) == "Tanh to GELU"


def test_off_means_none_and_on_means_all(traces: Any) -> None:
    (name, _), *after = traces["off"]
    assert name == "again"
    assert counted(after) == expected(BLOCKS)


def test_without_a_profiler_a_label_does_nothing(traces: Any) -> None:
    """Other programs may watch each operation. They see those of a label only beside a profiler."""
    ones, enter, zeros, leave = (name for name, _ in traces["untraced"])
    assert (ones, zeros) == ("aten.ones.default", "aten.zeros.default")
    assert enter.startswith("profiler._record_function_enter")
    assert leave.startswith("profiler._record_function_exit")


def test_the_choice_is_true_or_false() -> None:
    with pytest.raises(TypeError, match=r"profiler_labels\(1\) is no choice; pass True or False"):
        profiler_labels(1)  # type: ignore[arg-type]
    assert hook_context.Labelled.on


def test_an_error_ends_its_label() -> None:
    with profile() as trace, pytest.raises(ZeroDivisionError), label("gather", "a unit"):
        _ = 1 / 0
    with profile() as trace, label("free", "a unit"):
        pass
    assert labels_in(trace) == [("free a unit", [])]
