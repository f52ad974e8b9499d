"""Scales and ticks, for any range."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sidelit.figures.pen import Band, Linear, Log, band, ceiling, linear, log

VALUES = st.floats(-1e12, 1e12, allow_nan=False)
COUNTS = st.integers(1, 12)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[float, float]:
    low, high = sorted((draw(VALUES), draw(VALUES)))
    # Between neighbours of a large number there is no room for a round one.
    assume(high - low > 1e-6 * max(abs(low), abs(high), 1e-3))
    return low, high


@given(ranges(), st.floats(0, 1))
def test_a_linear_scale_keeps_shares(bounds: tuple[float, float], share: float) -> None:
    scale = linear(*bounds, 10, 210)
    value = bounds[0] + share * (bounds[1] - bounds[0])
    assert scale(value) == pytest.approx(10 + 200 * share, abs=1e-3)


@given(ranges(), COUNTS, st.booleans())
def test_ticks_are_round_evenly_spaced_and_within_the_range(
    bounds: tuple[float, float], count: int, binary: bool
) -> None:
    low, high = bounds
    ticks = Linear(low, high, 0, 100).ticks(count, binary)
    assert len(ticks) <= count + 1
    slack = (high - low) * 1e-6
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    steps = [after - before for before, after in pairwise(ticks)]
    for step in steps:
        assert step == pytest.approx(steps[0], rel=1e-6)
        mantissa = 2 ** (math.log2(step) % 1) if binary else 10 ** (math.log10(step) % 1)
        assert min(abs(mantissa - each) for each in ((1, 2) if binary else (1, 2, 5, 10))) < 1e-6


@given(st.floats(1e-9, 1e12), COUNTS, st.booleans())
def test_a_ceiling_is_not_below_and_less_than_one_step_above(value: float, count: int, binary: bool) -> None:
    top = ceiling(value, count, binary)
    assert top >= value * (1 - 1e-9)
    # From one round step to the next it is at most two and a half times as far.
    assert top - value < 2.5 * value / count * (1 + 1e-6)
    assert len(Linear(0, top, 0, 1).ticks(count, binary)) >= 2


@given(st.integers(-60, 40), st.integers(1, 80), COUNTS, st.sampled_from([2, 10]))
def test_ticks_of_a_logarithm_are_powers(first: int, more: int, count: int, base: int) -> None:
    low, high = float(base) ** first, float(base) ** (first + more)
    ticks = Log(low, high, 0, 100, base).ticks(count)
    powers = [round(math.log(tick, base), 6) for tick in ticks]
    assert all(power == int(power) and first <= power <= first + more for power in powers)
    assert len(ticks) <= count + 1
    assert len({round(b - a, 6) for a, b in pairwise(powers)}) <= 1


def test_a_logarithmic_scale_gives_equal_ratios_equal_room() -> None:
    scale = log(1, 1000, 0, 300)
    assert [scale(value) for value in (1, 10, 100, 1000)] == pytest.approx([0, 100, 200, 300])


@given(st.lists(st.text(), min_size=1, max_size=9, unique=True), st.floats(0, 0.9))
def test_bands_fill_the_span_without_touching(names: list[str], gap: float) -> None:
    made = band(names, 20, 320, gap)
    assert made(names[0]) == pytest.approx(20)
    assert made(names[-1]) + made.size == pytest.approx(320)
    for before, after in pairwise(names):
        assert made(after) - made(before) - made.size == pytest.approx(made.step * gap, abs=1e-6)
    assert made.middle(names[0]) == pytest.approx(made(names[0]) + made.size / 2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: linear(1, 1, 0, 9), "1 is not below 1"),
        (lambda: log(0, 1, 0, 9), "0 < 0 < 1"),
        (lambda: ceiling(0), "above zero"),
        (lambda: Band(("a",), 0, 1)("b"), "not in tuple"),
    ],
)
def test_what_is_no_range_is_refused(make: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()  # type: ignore[operator]
