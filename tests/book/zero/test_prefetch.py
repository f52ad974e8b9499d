"""Gathering ahead, piece by piece: what is asked for, how far, in which order, and whom a warning names."""

from __future__ import annotations

import dataclasses
import warnings
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import ranks
from shardbook import Policy
from shardbook.zero import scheduler
from shardbook.zero.scheduler import MOST, Prefetch, Route, Scheduler
from shardbook.zero.unit import STAGES, State, bundles, gather_together


class Fake(SimpleNamespace):
    """Units are keys of dictionaries."""

    __hash__ = object.__hash__


def unit(name: str, nbytes: int = 100, state: State = State.SHARDED) -> Any:
    made = Fake(name=name, nbytes=nbytes, state=state, stage=3, filled=(name,))

    def gather() -> None:
        made.state = State.GATHERING

    made.gather = gather
    return made


def gathered(prefetch: Prefetch, following: list[Any], others: tuple[Any, ...] = ()) -> list[str]:
    """Which of the units that follow are gathered."""
    before = {each.name for each in following if each.state is State.GATHERING}
    prefetch.start(following, [*following, *others])
    now = [each.name for each in following if each.state is State.GATHERING]
    return [name for name in now if name not in before]


def test_one_unit_is_gathered_ahead_unless_the_program_says_otherwise() -> None:
    assert Prefetch() == Prefetch(1, None, 0)
    assert hash(Prefetch()) == hash(Prefetch(1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Prefetch().depth = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *product(("depth", "limit", "together"), (-1, 1.5, True, "1")),
        ("depth", None),
        ("together", None),
    ],
)
def test_what_a_prefetch_is_given_are_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"the {name} of a prefetch is {value!r}, but it must be a whole"):
        Prefetch(**{name: value})
    assert getattr(Prefetch(**{name: 0}), name) == 0


def test_no_limit_stops_nothing() -> None:
    huge = [unit(name, 2**50) for name in "abc"]
    assert gathered(Prefetch(3), huge) == ["a", "b", "c"]


@pytest.mark.parametrize(("limit", "expected"), [(0, 0), (99, 0), (100, 1), (199, 1), (200, 2), (399, 3)])
def test_what_fits_to_the_byte_is_gathered(limit: int, expected: int) -> None:
    assert gathered(Prefetch(9, limit), [unit(name) for name in "abcd"]) == list("abcd")[:expected]


def test_what_is_on_the_way_counts_and_what_has_arrived_does_not() -> None:
    for there, expected in ((State.GATHERING, ["b"]), (State.WHOLE, ["b", "c"])):
        following = [unit("a", state=there), unit("b"), unit("c")]
        assert gathered(Prefetch(9, 200), following) == expected
    # Nor is it gathered again.
    assert gathered(Prefetch(9), [unit("a", state=State.WHOLE), unit("b")]) == ["b"]
    # A unit on the way counts also if it does not follow.
    assert gathered(Prefetch(9, 200), [unit("b"), unit("c")], (unit("a", state=State.GATHERING),)) == ["b"]


def test_a_small_unit_does_not_overtake_a_large_one() -> None:
    assert gathered(Prefetch(9, 150), [unit("a"), unit("large", 100), unit("small", 10)]) == ["a"]


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The units of each gather."""
    made: list[str] = []

    def gather(units: list[Any]) -> None:
        made.append("".join(unit.name for unit in units))
        for each in units:
            each.gather()

    monkeypatch.setattr(scheduler, "gather_together", gather)
    monkeypatch.setattr(scheduler, "gathered_alike", lambda unit: (unit.name.islower() or None, unit.nbytes))
    return made


@pytest.mark.parametrize(
    ("prefetch", "expected"),
    [
        (Prefetch(0, together=300), []),
        (Prefetch(1, together=99), ["a"]),
        (Prefetch(1, together=300), ["abc"]),
        (Prefetch(2, together=300), ["abc"]),
        (Prefetch(4, together=300), ["abc", "de"]),
        (Prefetch(5, together=200), ["ab", "cd", "e"]),
        (Prefetch(1, together=999), ["abcde"]),
        (Prefetch(5, together=999), ["abcde"]),
        (Prefetch(6, together=999), ["abcde", "F"]),
        (Prefetch(9, together=999), ["abcde", "F", "g"]),
        (Prefetch(1, 200, together=999), ["ab"]),
        (Prefetch(9, 300, together=200), ["ab", "c"]),
    ],
)
def test_small_units_are_gathered_with_the_one_that_is_due(
    prefetch: Prefetch, expected: list[str], exchanges: list[str]
) -> None:
    """`F` is of a kind that is gathered by itself."""
    following = [unit(name) for name in "abcdeFg"]
    prefetch.start(following, following)
    assert exchanges == expected
    # Nothing more is due until one of those is used that were asked for.
    prefetch.start(following, following)
    assert exchanges == expected


def test_one_unit_alone_is_gathered_by_itself() -> None:
    gather_together([only := unit("a")])
    assert only.state is State.GATHERING


def test_without_a_number_of_bytes_each_unit_is_gathered_by_itself(exchanges: list[str]) -> None:
    following = [unit(name) for name in "abc"]
    assert gathered(Prefetch(2), following) == ["a", "b"]
    assert exchanges == []


def test_a_unit_that_follows_twice_is_gathered_once(exchanges: list[str]) -> None:
    a, b = unit("a"), unit("b")
    Prefetch(1, together=999).start([a, b, a, b], [a, b])
    assert exchanges == ["ab"]


def test_what_is_gathered_together_waits_until_the_nearest_is_due(exchanges: list[str]) -> None:
    there, b = unit("a", state=State.GATHERING), unit("b")
    Prefetch(1, together=999).start([there, b], [there, b])
    assert exchanges == []


def gathered_in_one(stage: int, policy: Policy) -> list[Any]:
    """The exchanges of two steps, their bytes, and what was learnt; with and without `together`."""
    from shardbook import shard
    from shardbook.foundations.collectives import ledger

    found: list[Any] = []
    for prefetch in (Prefetch(), Prefetch(1, together=2**16)):
        torch.manual_seed(0)
        layers = [torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()) for _ in range(8)]
        model = torch.nn.Sequential(*layers)
        model = shard(model, units=torch.nn.Sequential, stage=stage, prefetch=prefetch, policy=policy)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.ones(3, 6) + torch.distributed.get_rank()
        for _ in range(2):
            with ledger() as sent:
                model(x).float().square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            kinds = [call.collective for call in sent.calls]
            counts = kinds.count("all-gather"), kinds.count("reduce-scatter")
            found.append((*counts, sum(call.sent for call in sent.calls)))
        found.append([p.detach().clone() for p in model.parameters()])
    *one, learnt = found[:3]
    *other, same = found[3:]
    assert all(torch.equal(a, b) for a, b in zip(learnt, same, strict=True))
    return [one, other]


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("policy", [Policy(), Policy(param_dtype=torch.bfloat16), Policy(offload=True)])
def test_units_that_are_exchanged_together_give_the_same_in_fewer_exchanges(
    stage: int, policy: Policy, world_size: int
) -> None:
    passes = 2 if stage == 3 else 1
    for one, other in ranks.run(world_size, gathered_in_one, stage, policy):
        # In the first forward pass the order is not known yet.
        assert one[1][0] == 8 * passes
        assert other[1][0] <= 2 * passes
        # The gradients of small units are exchanged together in stage 1 always.
        assert [counts[1] for counts in one] == [1, 1] if stage == 1 else [8, 8]
        assert [counts[1] for counts in other] == [1, 1]
        assert [counts[-1] for counts in one] == [counts[-1] for counts in other]


@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from([None, "a", "b"])), min_size=1),
    st.integers(1, 12),
)
def test_gradients_wait_for_those_of_the_next_units_as_far_as_there_is_room(
    kinds: list[tuple[int, str | None]], most: int
) -> None:
    """Each unit is asked twice: its second backward pass may come while it waits."""
    units = [unit(str(number), nbytes) for number, (nbytes, _) in enumerate(kinds)]
    like = {each: (kind, each.nbytes) for each, (_, kind) in zip(units, kinds, strict=True)}
    sent: list[list[Any]] = []
    one = Scheduler(None, Prefetch(together=most))  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one, "exchange", lambda *units: sent.append([*units]))
        patch.setattr(scheduler, "reduced_alike", like.__getitem__)
        for each in units:
            each.trainable, each.pending, each.splits = [], [None], STAGES[3]
            one.reduce(each)
            if each in one.late:
                one.reduce(each)
            kind, nbytes = like[each]
            # What no other joins does not wait.
            assert (each in one.late) == (kind is not None and nbytes <= most)
            assert sum(waits.nbytes for waits in one.late) <= most
    assert [*sent, *([[*one.late]] if one.late else [])] == [*bundles(units, most, like.__getitem__)]


class Repeated(torch.nn.Module):
    """A small layer that runs eight times, each time recomputed by itself, and one behind it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh())
        self.head = torch.nn.Sequential(torch.nn.Linear(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = checkpoint(self.layer, x, use_reentrant=True)
        y: torch.Tensor = self.head(x)
        return y


def repeated_in_16_bits(stage: int) -> None:
    """The means of all uses are added up in the dtype of the masters, even where units wait for others."""
    from shardbook import shard

    found = []
    for prefetch in (Prefetch(), Prefetch(together=2**16)):
        policy = Policy(param_dtype=torch.bfloat16)
        kind = torch.nn.Sequential
        model = shard(Repeated(), units=kind, stage=stage, prefetch=prefetch, policy=policy)
        x = torch.linspace(-1, 1, 18).view(3, 6) + torch.distributed.get_rank()
        model(x.requires_grad_()).float().square().sum().backward()
        found.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("stage", [2, 3])
def test_a_unit_that_runs_again_does_not_wait(stage: int) -> None:
    ranks.run(2, repeated_in_16_bits, stage)


def frozen_between(stage: int) -> list[int]:
    from shardbook import shard
    from shardbook.foundations.collectives import ledger

    layers = [torch.nn.Linear(6, 6).requires_grad_(number % 2 == 0) for number in range(8)]
    model = shard(torch.nn.Sequential(*layers), stage=stage, prefetch=Prefetch(together=2**16))
    with ledger() as sent:
        model(torch.ones(3, 6)).square().sum().backward()
    return [call.payload for call in sent.calls if call.collective == "reduce-scatter"]


@pytest.mark.parametrize("stage", [2, 3])
def test_a_frozen_unit_does_not_part_those_around_it(stage: int) -> None:
    assert [len(each) for each in ranks.run(2, frozen_between, stage)] == [1, 1]


def test_a_route_is_followed_left_and_taken_up_again() -> None:
    route: Any = Route("abcabc")  # type: ignore[arg-type]
    assert list(route.ahead(2)) == ["a", "b"]
    assert [route.reach(each) for each in "ab"] == [None, None]
    # Left out: the route goes on behind the next occurrence.
    assert route.reach("a") == "c"
    assert list(route.ahead(9)) == ["b", "c"]
    # On no part of the way ahead: nothing changes but the record.
    assert route.reach("x") == "b"
    assert list(route.ahead(1)) == ["b"]
    assert [route.reach(each) for each in "bc"] == [None, None]
    assert list(route.ahead(1)) == []
    assert route.reach("a") is None
    assert route.seen == list("abaxbca")
    assert list(Route().ahead(1)) == []


def warned(before: str, levels: int = 0) -> warnings.WarningMessage:
    """The warning about `b`, when a program calls the model through so many of PyTorch's own functions."""
    chain, units = Scheduler(None, Prefetch()), {name: unit(name) for name in "abcd"}  # type: ignore[arg-type]
    act: Any = chain.warn
    for module in ["torch.nn.modules"] * levels + ["program"]:
        space: dict[str, Any] = {"__name__": module, "act": act}
        exec(compile("def call(*arguments):\n    act(*arguments)", f"{module}.py", "exec"), space)
        act = space["call"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            act(units["b"], "another ran", [units[name] for name in before])
    (only,) = caught
    return only


@pytest.mark.parametrize(("before", "after"), [("", "the start"), ("a", "a"), ("da", "a"), ("aad", "d")])
def test_a_surprise_is_told_with_the_unit_before_it(before: str, after: str) -> None:
    assert f"after {after} b was expected, but another ran" in str(warned(before).message)


class Cut(torch.nn.Sequential):
    """Runs only some of its layers."""

    def forward(self, x: torch.Tensor, *which: int) -> torch.Tensor:
        for number in which:
            x = self[number](x)
        return x


def surprises(*which: int) -> list[str]:
    """What is told if the layers 0 to 4 are expected and these run."""
    from shardbook import shard

    model = shard(Cut(*(torch.nn.Linear(2, 2) for _ in range(5))), units=torch.nn.Linear)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(torch.ones(1, 2), *range(5))
        model(torch.ones(1, 2), *which)
    return [str(each.message) for each in caught]


def states_in(layer: int, *which: int) -> tuple[list[str], list[str]]:
    """The layers that are on the way while one computes, and those after the backward pass."""
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of

    warnings.simplefilter("ignore")
    model = shard(Cut(*(torch.nn.Linear(2, 2) for _ in range(6))), units=torch.nn.Linear, prefetch=2)
    units = scheduler_of(model).units

    def ahead() -> list[str]:
        return [unit.name for unit in units if unit.state is State.GATHERING]

    x, found = torch.ones(1, 2, requires_grad=True), []
    model(x, *range(5))
    model[layer].register_forward_hook(lambda *_: found.append(ahead()))
    model(x, *which).sum().backward()
    return found[0], ahead()


@pytest.mark.parametrize(
    ("layer", "which", "expected"),
    [
        (2, (0, 2, 3, 4), ["3", "4"]),  # 1 is given back.
        (5, (0, 5, 1, 2), ["1", "2"]),  # 5 is a surprise, and 1 and 2 are still expected.
    ],
)
def test_after_a_surprise_only_what_is_still_expected_is_on_its_way(
    layer: int, which: tuple[int, ...], expected: list[str]
) -> None:
    assert ranks.run(1, states_in, layer, *which) == [(expected, [])]


@pytest.mark.parametrize(
    ("which", "told"),
    [
        ((0, 1, 2), "after 2 3 was expected, but the pass ended"),
        ((0, 1, 2, 4), "after 2 3 was expected, but 4 ran"),
        ((1,), "after the start 0 was expected, but 1 ran"),
        ((), "after the start 0 was expected, but the pass ended"),
    ],
)
def test_a_pass_that_ends_early_is_told_with_its_last_unit(which: tuple[int, ...], told: str) -> None:
    ((message,),) = ranks.run(1, surprises, *which)
    assert told in message


@pytest.mark.parametrize("levels", range(6))
def test_a_warning_names_the_line_of_the_program(levels: int) -> None:
    assert warned("ac", levels).filename == "program.py"


def test_where_nothing_is_gathered_ahead_nothing_is_told() -> None:
    for prefetch, stage in ((Prefetch(0), 3), (Prefetch(1), 0)):
        chain, surprise = Scheduler(None, prefetch), unit("b")  # type: ignore[arg-type]
        surprise.stage = stage
        chain.warn(surprise, "another ran", [])


def test_a_program_that_only_evaluates_is_remembered_for_some_passes() -> None:
    chain, units = Scheduler(None, Prefetch()), [unit(name) for name in "abc"]  # type: ignore[arg-type]
    chain.ended.extend(units[count % 3] for count in range(MOST + 1))
    assert len(chain.ended) == MOST
    assert chain.ended[-1] is units[MOST % 3]


def orders() -> list[list[str]]:
    """The order of the units of a model that has registered its layers in another one, in each stage."""
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.first = (torch.nn.Linear(2, 2) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.last(self.first(x))
            return result

    found = []
    for stage in range(4):
        model = shard(Model(), units=torch.nn.Linear, stage=stage)
        model(torch.ones(1, 2))
        found.append([unit.name for unit in scheduler_of(model).orders[True]])
    return found


def test_the_order_of_the_units_is_known_in_each_stage_also_where_nothing_is_gathered() -> None:
    """Messages tell by it which unit comes first in the backward pass."""
    (found,) = ranks.run(1, orders)
    assert found == [["first", "last"]] * 4
