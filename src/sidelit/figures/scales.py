"""# Scales

> A scale turns a value into a place on the drawing, and says which round values deserve a tick.

Libraries for charts (Altair with vl-convert: 88 MB with a JavaScript engine inside; matplotlib: 25 MB and
numpy; pygal) write colours, fonts and sizes into the picture, so neither the theme nor the language of a page
reaches it. Of small ones leather has linear ticks, but no logarithms and no powers of two, which half of our
axes have, so the drawings are templates and their arithmetic is this module.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

# What a step between ticks may begin with, in the decimal system.
STEPS = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class Linear:
    """Equal distances for equal differences: values from `low` to `high`, places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"a scale needs a range: {self.low} is not below {self.high}")

    def __call__(self, value: float) -> float:
        """The place of a value; a value outside the range lies outside the span."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, count: int = 5, binary: bool = False) -> tuple[float, ...]:
        """Round values of the range, at most `count + 1` and at least two apart from each other alike.

        With `binary` the step is a power of two, otherwise 1, 2 or 5 times a power of ten.
        """
        step = _step((self.high - self.low) / count, binary)
        slack = step * 1e-9
        first, last = math.ceil((self.low - slack) / step), math.floor((self.high + slack) / step)
        return tuple(_clean(number * step) for number in range(first, last + 1))


@dataclass(frozen=True, slots=True)
class Log:
    """Equal distances for equal ratios; `base` is what lies between two ticks at least."""

    low: float
    high: float
    start: float
    end: float
    base: float = 10

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise ValueError(f"a logarithmic scale needs 0 < {self.low} < {self.high}")

    def __call__(self, value: float) -> float:
        """The place of a value above zero."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> tuple[float, ...]:
        """Powers of the base, every one, every second, or every so many that at most `count + 1` are left."""
        first = math.ceil(math.log(self.low, self.base) - 1e-9)
        last = math.floor(math.log(self.high, self.base) + 1e-9)
        every = max(1, math.ceil((last - first) / count))
        # What remains lies on multiples of the stride: two axes side by side then have the same ticks.
        powers = (power for power in range(first, last + 1) if power % every == 0)
        return tuple(float(self.base) ** power for power in powers)


@dataclass(frozen=True, slots=True)
class Band:
    """A place for each of several names, as wide as the next, with a gap between two of them."""

    names: tuple[Hashable, ...]
    start: float
    end: float
    gap: float = 0.25

    @property
    def step(self) -> float:
        """From the beginning of one place to that of the next."""
        return (self.end - self.start) / (len(self.names) - self.gap)

    @property
    def size(self) -> float:
        """How wide each place is."""
        return self.step * (1 - self.gap)

    def __call__(self, name: Hashable) -> float:
        """Where the place of a name begins."""
        return self.start + self.names.index(name) * self.step

    def middle(self, name: Hashable) -> float:
        """The middle of the place of a name."""
        return self(name) + self.size / 2


def linear(low: float, high: float, start: float, end: float) -> Linear:
    """A linear scale from a range of values to a span of the drawing."""
    return Linear(low, high, start, end)


def log(low: float, high: float, start: float, end: float, base: float = 10) -> Log:
    """A logarithmic scale."""
    return Log(low, high, start, end, base)


def band(names: Sequence[Hashable], start: float, end: float, gap: float = 0.25) -> Band:
    """A place for each name; `gap` is the share of a step that stays empty."""
    return Band(tuple(names), start, end, gap)


def ceiling(value: float, count: int = 5, binary: bool = False) -> float:
    """The first round value that is not below `value`: the end of an axis that begins at zero."""
    step = _step(value / count, binary)
    return _clean(math.ceil(value / step - 1e-9) * step)


def _step(rough: float, binary: bool) -> float:
    """The smallest round step that is not smaller than `rough`."""
    if not rough > 0:
        raise ValueError(f"a step between ticks is above zero, not {rough}")
    if binary:
        return float(2 ** math.ceil(math.log2(rough) - 1e-9))
    unit = 10 ** math.floor(math.log10(rough))
    return float(next(each * unit for each in STEPS if each * unit >= rough * (1 - 1e-9)))


def _clean(value: float) -> float:
    """Without the last digits that multiplication leaves: 0.30000000000000004 is 0.3."""
    return float(f"{value:.12g}")
