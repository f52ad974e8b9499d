"""Gathering ahead, piece by piece: what is asked for, how far, in which order, and whom a warning names."""

from __future__ import annotations

import dataclasses
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

import ranks
from shardbook.zero.scheduler import Prefetch, Route, Scheduler
from shardbook.zero.unit import State


def unit(name: str, nbytes: int = 100, state: State = State.SHARDED) -> Any:
    made = SimpleNamespace(name=name, nbytes=nbytes, state=state, stage=3, filled=(name,))

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
    assert Prefetch() == Prefetch(1, None)
    assert hash(Prefetch()) == hash(Prefetch(1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Prefetch().depth = 2  # type: ignore[misc]


@pytest.mark.parametrize("name", ["depth", "limit"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "1"])
def test_a_depth_and_a_limit_are_whole_numbers(name: str, value: Any) -> None:
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


def warned(seen: str, levels: int = 0) -> warnings.WarningMessage:
    """The warning about `b`, when a program calls the model through so many of PyTorch's own functions."""
    chain, units = Scheduler(None, Prefetch()), {name: unit(name) for name in "abcd"}  # type: ignore[arg-type]
    chain.route.seen = [units[name] for name in seen]
    act: Any = chain.warn
    for module in ["torch.nn.modules"] * levels + ["program"]:
        space: dict[str, Any] = {"__name__": module, "act": act}
        exec(compile("def call(*arguments):\n    act(*arguments)", f"{module}.py", "exec"), space)
        act = space["call"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act(units["b"], "another ran")
        act(units["b"], "another ran")
    (only,) = caught
    return only


@pytest.mark.parametrize(
    ("seen", "after"), [("", "the start"), ("c", "the start"), ("ac", "a"), ("dac", "a"), ("aadc", "d")]
)
def test_a_surprise_is_told_with_the_unit_before_it(seen: str, after: str) -> None:
    assert f"after {after} b was expected, but another ran" in str(warned(seen).message)


@pytest.mark.parametrize("levels", range(6))
def test_a_warning_names_the_line_of_the_program(levels: int) -> None:
    assert warned("ac", levels).filename == "program.py"


def test_where_nothing_is_gathered_ahead_nothing_is_told() -> None:
    for prefetch, stage in ((Prefetch(0), 3), (Prefetch(1), 0)):
        chain, surprise = Scheduler(None, prefetch), unit("b")  # type: ignore[arg-type]
        surprise.stage = stage
        chain.warn(surprise, "another ran")


def test_a_program_that_only_evaluates_is_remembered_for_64_passes() -> None:
    chain, units = Scheduler(None, Prefetch()), [unit(name) for name in "abc"]  # type: ignore[arg-type]
    chain.units = dict.fromkeys("ab")  # type: ignore[assignment,arg-type]
    for count in range(1, 401):
        chain.forward_ended(units[count % 3])
        assert len(chain.ended) == min(count, 128)
    assert chain.ended[-1] is units[400 % 3]


def orders() -> list[list[str]]:
    """The order of the units of a model that has registered its layers in another one, in each stage."""
    import torch

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
