"""Which tests, and which cases of a test, a short run tries.

`make test` leaves what is marked `full` to `.ci/run`, and this leaves what is marked `nightly` to `make
test-all`: what takes a second or more, alone or as many cases. What is quick has no mark.

    @pytest.mark.parametrize("stage", rows([0, 1, 2, 3], now=[3]))  # `make test` tries the hardest
    @pytest.mark.cases(now=1, ci=9)  # and of those that are left to a run, at most so many
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

GOLDEN = (5**0.5 - 1) / 2


def rows(every: Iterable[Any], *, now: Sequence[Any]) -> list[Any]:
    """The rows for `pytest.mark.parametrize`, of which `make test` tries those in `now`."""
    every = list(every)
    unknown = [row for row in now if row not in every]
    assert not unknown, f"{unknown} are no rows of {every}"
    return [
        row
        if row in now
        else pytest.param(*row if isinstance(row, tuple) else (row,), marks=pytest.mark.full)
        for row in every
    ]


def spread(count: int) -> list[int]:
    """The numbers below `count`, each as far as can be from those before it; 0 is the first."""
    return sorted(range(count), key=lambda number: number * GOLDEN % 1)


def wait(items: Iterable[pytest.Item]) -> None:
    """Mark those cases of each test that its `cases` leave to a longer run."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if is_marked(item, "cases") and not is_marked(item, "gpu"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        at_most: dict[str, int] = cases[0].get_closest_marker("cases").kwargs  # type: ignore[union-attr]
        chosen = [cases[number] for number in spread(len(cases)) if not is_marked(cases[number], "nightly")]
        early = [case for case in chosen if not is_marked(case, "full")]
        for case in early[at_most.get("now", len(early)) :]:
            case.add_marker("full")
        # What a shorter run tries, a longer one tries as well.
        chosen.sort(key=lambda case: is_marked(case, "full"))
        for case in chosen[at_most.get("ci", len(chosen)) :]:
            case.add_marker("nightly")


def is_marked(item: pytest.Item, mark: str) -> bool:
    """Whether a test has this mark."""
    return item.get_closest_marker(mark) is not None
