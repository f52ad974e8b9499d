"""The cheapest plan: against every plan there is, and against what a real chain saves and computes."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shardbook.checkpointing import saved_tensors
from shardbook.checkpointing.budget import (
    Chain,
    FlopCounter,
    Layer,
    Plan,
    SavedBytes,
    cheapest,
    evaluate,
    least,
    measure,
    worth_having,
)
from shardbook.checkpointing.checkpointing import Span, cut
from shardbook.models.gpt import GPT, Config, loss


def by_hand(chain: Chain, segments: list[Span]) -> tuple[float, int, int]:
    """Cost, saved bytes and peak of a plan, from sets of named pieces of memory.

    It plays both passes and knows nothing of steps or of tensors that are counted already.
    """
    sizes: dict[Any, int] = {"x": chain.input}
    # The memory between the layers: a layer that passes its input on hands on the same piece.
    places = ["x"]
    for index, layer in enumerate(chain.layers):
        places.append(places[-1] if layer.passes else f"y{index}")
        sizes.setdefault(places[-1], layer.output)
        sizes[f"inner{index}"] = layer.inner

    def saved(segment: Span, source: str, again: str) -> set[str]:
        """What the layers of a segment save, its input being at `source`."""
        found, place = set(), source
        for index in range(segment.start, segment.stop):
            layer = chain.layers[index]
            if layer.inner:
                found.add(f"inner{index}")
            if layer.saves_input:
                found.add(place)
            if not layer.passes:
                place = f"y{index}{again}"
                sizes[place] = layer.output
            if layer.saves_output:
                found.add(place)
        return found

    def weigh(pieces: set[str]) -> int:
        return sum(sizes[piece] for piece in pieces)

    kept: list[set[str]] = []
    for segment in segments:
        source = places[segment.start]
        if not segment.recompute:
            # Walk from the real input, whose name may be that of an earlier layer's output.
            kept.append(saved(segment, source, ""))
        else:
            lazy = all(layer.replay is None for layer in chain.layers[segment.start : segment.stop])
            kept.append(set() if lazy else {source})
    total = weigh(set().union(*kept))
    cost, peak = 0.0, total
    for number, segment in reversed(list(enumerate(segments))):
        if not segment.recompute:
            continue
        layers = chain.layers[segment.start : segment.stop]
        while layers and layers[-1].replay is None:
            layers = layers[:-1]
        if not layers:
            continue
        cost += sum(layer.cost for layer in layers[:-1]) + (layers[-1].replay or 0)
        alive = set().union(*kept[: number + 1]) | saved(segment, places[segment.start], "'")
        peak = max(peak, weigh(alive))
    return cost, total, peak


def can_start(chain: Chain, index: int) -> bool:
    for layer in chain.layers[index:]:
        if layer.overwrites:
            return False
        if not layer.passes:
            break
    return True


def all_plans(chain: Chain) -> Iterator[list[Span]]:
    """Every cut of the chain, with every segment kept or checkpointed."""
    length = len(chain.layers)
    for borders in itertools.product([False, True], repeat=length - 1):
        stops = [index + 1 for index, border in enumerate(borders) if border] + [length]
        starts = [0, *stops[:-1]]
        for choice in itertools.product([False, True], repeat=len(stops)):
            plan = [Span(*both, recompute=r) for *both, r in zip(starts, stops, choice, strict=True)]
            saves = [any(la.replay is not None for la in chain.layers[s.start : s.stop]) for s in plan]
            if all(
                not s.recompute or not saving or can_start(chain, s.start)
                for s, saving in zip(plan, saves, strict=True)
            ):
                yield plan


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    cost = draw(st.integers(0, 9))
    reads, writes, inner = draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 5))
    passes = draw(st.integers(0, 4)) == 0
    if passes:
        writes = reads
    saves = bool(reads or writes or inner)
    return Layer(
        cost=cost,
        replay=draw(st.integers(0, cost)) if saves else None,
        inner=inner,
        output=draw(st.integers(1, 5)),
        saves_input=reads,
        saves_output=writes,
        passes=passes,
        overwrites=passes and draw(st.booleans()),
    )


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    found = draw(st.lists(layers(), min_size=1, max_size=6))
    size = first = draw(st.integers(1, 5))
    # What is passed on has the size that it had.
    for index, layer in enumerate(found):
        if layer.passes:
            found[index] = replace(layer, output=size)
        size = found[index].output
    return Chain(first, tuple(found))


@pytest.mark.full
@settings(max_examples=150, deadline=None)
@given(chains())
def test_a_plan_takes_what_playing_it_takes(chain: Chain) -> None:
    for segments in itertools.islice(all_plans(chain), 0, None, 3):
        plan = evaluate(chain, segments)
        assert (plan.cost, plan.saved, plan.peak) == by_hand(chain, segments)


@pytest.mark.full
@settings(max_examples=100, deadline=None)
@given(chains())
def test_no_plan_is_cheaper_for_any_budget(chain: Chain) -> None:
    """The brute force over all plans, for all budgets at which anything changes."""
    found = [by_hand(chain, segments) for segments in all_plans(chain)]
    smallest = min(peak for _, _, peak in found)
    assert least(chain) == smallest
    for budget in sorted({peak for _, _, peak in found}):
        plan = cheapest(chain, budget)
        assert plan.peak <= budget
        assert plan.cost == min(cost for cost, _, peak in found if peak <= budget)
        assert (plan.cost, plan.saved, plan.peak) == by_hand(chain, list(plan.segments))
    with pytest.raises(ValueError, match=f"the smallest budget for which there is one is {smallest} bytes"):
        cheapest(chain, smallest - 1)


def gpt(layers: int = 6) -> tuple[GPT, Tensor, Chain]:
    torch.manual_seed(0)
    model = GPT(Config(layers=layers, width=16, heads=2, context=8, vocabulary=32))
    tokens = torch.randint(0, 32, (2, 8))
    return model, tokens, measure(model, tokens)


def budgets(chain: Chain) -> list[int]:
    low, high = least(chain), evaluate(chain, []).peak
    return [low, low + (high - low) // 4, low + (high - low) // 2, high]


def dropping() -> tuple[nn.Sequential, Tensor, Chain]:
    """Layers of many kinds, with views, random numbers and a write in place."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Conv2d(8, 4, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Identity(),
        nn.Linear(4 * 6 * 6, 32),
        nn.GELU(),
        nn.LayerNorm(32),
        nn.Linear(32, 8),
        nn.Softmax(-1),
    )
    x = torch.randn(3, 2, 8, 8)
    return model, x, measure(model, x)


def error_of(model: nn.Module, output: Tensor, tokens: Tensor) -> Tensor:
    # Neither saves the output itself, which would then be counted for the chain.
    return loss(output, tokens) if isinstance(model, GPT) else (output * torch.linspace(0, 1, 8)).sum()


class Filled:
    """The storages that recomputations bring back, beside those of a block that counts."""

    def __init__(self) -> None:
        self.storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self.known: set[torch.UntypedStorage] = set()
        self.saved: SavedBytes | None = None
        self.peak = 0

    def fill(self, tensor: Tensor) -> None:
        assert self.saved is not None
        storage = tensor.untyped_storage()
        if storage not in self.known:
            self.storages.add(storage)
        together = set(self.storages) | set(self.saved.storages)
        self.peak = max(self.peak, sum(storage.nbytes() for storage in together))


@pytest.mark.parametrize("make", [gpt, dropping])
def test_a_real_chain_takes_exactly_what_its_plan_says(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, chain = make()
    filled = Filled()
    known = [*model.parameters(), *model.buffers()]
    filled.known = {tensor.untyped_storage() for tensor in known}
    original = saved_tensors.Placeholder.fill

    def fill(placeholder: Any, tensor: Tensor) -> None:
        original(placeholder, tensor)
        filled.fill(tensor)

    torch.manual_seed(1)
    with FlopCounter() as counter:
        error_of(model, model(x), x).backward()
    plain = counter.get_total_flops()
    expected = [p.grad for p in model.parameters()]
    monkeypatch.setattr(saved_tensors.Placeholder, "fill", fill)
    peaks = set()
    for budget in budgets(chain):
        plan = cheapest(chain, budget)
        peaks.add(plan.peak)
        filled.storages.clear()
        model.zero_grad()
        torch.manual_seed(1)
        with SavedBytes(known) as saved:
            output = plan.apply(model, x)
        assert saved.bytes == plan.saved
        filled.saved, filled.peak = saved, saved.bytes
        error = error_of(model, output, x)
        # Whoever holds the output holds what the last layer saved of it.
        del output
        error.backward()
        assert filled.peak == plan.peak <= budget
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))
        # The counter of FLOPs keeps tensors alive, so it has a step of its own.
        with FlopCounter() as counter:
            error_of(model, plan.apply(model, x), x).backward()
        assert counter.get_total_flops() - plain == plan.cost
    assert len(peaks) >= 3


def test_no_segment_starts_where_its_input_is_written_over() -> None:
    _, _, chain = dropping()
    assert chain.layers[1].overwrites
    for budget in budgets(chain):
        plan = cheapest(chain, budget)
        assert not any(segment.recompute and segment.start == 1 for segment in plan.segments)
    with pytest.raises(ValueError, match="layers 1 to 3 cannot be checkpointed: their input is written over"):
        evaluate(chain, [Span(1, 4, recompute=True)])


def test_the_rule_of_the_root_is_never_better() -> None:
    for layers in (2, 7, 14):
        _, _, chain = gpt(layers)
        for segments in range(1, layers + 3):
            for last in (False, True):
                rule = evaluate(chain, cut(layers + 2, segments, last=last, balanced=True))
                plan = cheapest(chain, rule.peak)
                assert plan.peak <= rule.peak
                assert plan.cost <= rule.cost
    # Four segments of 16 layers compute a third more than has to be, and take no less memory.
    rule = evaluate(chain, cut(16, 4, balanced=True))
    assert rule.cost > 1.3 * cheapest(chain, rule.peak).cost


def test_equal_layers_lead_to_the_rule_of_the_root() -> None:
    """Layers that save what they return: nobody does better than k + n / k tensors."""
    tanh = Layer(1, 1, 0, 1, saves_input=True, saves_output=True)
    for n, smallest in ((4, 4), (9, 6), (16, 8), (25, 10)):
        chain = Chain(1, (tanh,) * n)
        assert evaluate(chain, cut(n, round(n**0.5), last=True)).peak == smallest
        # Segments that get shorter towards the end do better than equal ones.
        assert least(chain) <= smallest


def test_seconds_are_as_good_as_flops() -> None:
    _, _, chain = gpt(3)
    timed = Chain(
        chain.input, tuple(replace(la, cost=0.25, replay=la.replay and 0.125) for la in chain.layers)
    )
    plan = cheapest(timed, least(timed))
    assert 0 < plan.cost <= 0.25 * 5
    assert plan.peak == cheapest(chain, least(chain)).peak


@pytest.mark.parametrize(
    "segments",
    [
        [Span(0, 9, recompute=True)],
        [Span(2, 4, recompute=True), Span(3, 5, recompute=True)],
        [Span(3, 2, recompute=True)],
        [Span(-1, 2, recompute=False)],
    ],
)
def test_segments_that_are_no_cut_are_refused(segments: list[Span]) -> None:
    _, _, chain = gpt(3)
    with pytest.raises(ValueError, match="does not follow layer"):
        evaluate(chain, segments)


def test_a_segment_that_saves_nothing_never_runs_again() -> None:
    nothing = Layer(5, None, 0, 4, saves_input=False, saves_output=False)
    plan = evaluate(Chain(4, (nothing, nothing)), [Span(0, 2, recompute=True)])
    assert plan == Plan((Span(0, 2, recompute=True),), 0, 0, 0)
    with SavedBytes() as saved:
        y = plan.apply([torch.sin, torch.cos], torch.zeros(3))
    assert saved.bytes == 0
    assert not y.requires_grad


def test_the_plans_that_the_chapter_prints_are_made_as_it_says() -> None:
    model = GPT(Config(layers=16, width=32, heads=4, context=32))
    chain = measure(model, torch.zeros(2, 32, dtype=torch.long))
    rule = evaluate(chain, cut(18, 4, balanced=True)).peak
    for budget, kept in ((rule, 4), (rule // 2, 1), (least(chain), 0)):
        plan = cheapest(chain, budget).segments
        assert [(s.start, s.stop) for s in plan] == [(0, 2), *((i, i + 1) for i in range(2, 18))]
        assert [s.recompute for s in plan] == [True] * (16 - kept) + [False] * kept + [True]
    assert chain.layers[0].cost == chain.layers[-1].replay == 0


def test_a_plan_may_have_more_segments_than_python_has_calls() -> None:
    # Its input is written over, so no layer can do anything but keep what it saves.
    fixed = Layer(1, 1, 1, 4, saves_input=False, saves_output=False, overwrites=True)
    plan = cheapest(Chain(4, (fixed,) * 1100), 1100)
    assert plan == Plan(tuple(Span(i, i + 1, recompute=False) for i in range(1100)), 0, 1100, 1100)


def test_few_ways_are_worth_having_where_the_layers_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which decides how long the search takes."""
    counts: list[int] = []

    def counted(ways: Any) -> Any:
        found = worth_having(ways)
        counts.append(len(found))
        return found

    monkeypatch.setattr("shardbook.checkpointing.budget.worth_having", counted)
    _, _, chain = gpt(30)
    full = evaluate(chain, []).peak
    for share in (2, 4, 8):
        cheapest(chain, full // share)
        assert 1 < max(counts) <= 3 * 32
    # Many more if no two layers are alike.
    counts.clear()
    chance = Random(0)
    unlike = [
        Layer(c := chance.random(), c, chance.randrange(10**6), 1, saves_input=True, saves_output=False)
        for _ in range(18)
    ]
    different = Chain(1, tuple(unlike))
    cheapest(different, evaluate(different, []).peak // 2)
    assert max(counts) > 5 * 18
    # Where nothing costs anything, the way that keeps the least is enough.
    counts.clear()
    least(chain)
    assert max(counts) == 1
