"""# The pen

> What a template draws with: scales that turn values into places, and marks with words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from markupsafe import Markup, escape

from sidelit.figures import words
from sidelit.figures.words import Said

# ## Scales
#
# > A scale turns a value into a place on the drawing, and says which round values deserve a tick.
#
# Libraries for charts (Altair with vl-convert: 88 MB with a JavaScript engine inside; matplotlib: 25 MB and
# numpy; pygal) write colours, fonts and sizes into the picture, so neither the theme nor the language of a
# page reaches it. Of small ones leather has linear ticks, but no logarithms and no powers of two, which half
# of our axes have, so the drawings are templates and their arithmetic is this module.


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


# ## The pen
#
# > What the templates of figures draw with: bars, lines, arrows, axes and words, in classes instead of
# > colours.
#
# Kinds are numbers. Each has a colour, a lightness and a hatching of its own in the stylesheet, so that two
# kinds differ in grey as well. Nothing here has an id, a colour or a size of letters: a drawing may stand
# twice on a page, and follows its theme.


Point = Sequence[float]
# The size of the letters in units of the drawing, as in the stylesheet, and from one line to the next.
LETTERS = 13.0
LEADING = 16.5
# Half the height of a capital: what lifts a line so that its letters are centred on a place.
CENTRED = 4.6


def label(
    x: float,
    y: float,
    text: object,
    *,
    at: str = "start",
    width: float | None = None,
    look: str = "",
    from_below: bool = False,
) -> Markup:
    """Words whose first line stands on `y`; `at` says what of them stands at `x`: start, middle or end.

    Given a `width` they break into lines, which run down from `y`, or with `from_below` end on it.

    Raises `TypeError` for a string that comes from no catalogue.
    """
    what = words.of(text)
    rows = words.lines(what, None if width is None else width / LETTERS)
    top = y - LEADING * (len(rows) - 1) if from_below else y
    spans = Markup("").join(_row(row, x, number, len(rows)) for number, row in enumerate(rows))
    given = {"x": _short(x), "y": _short(top), "class": f"{look} {at}".replace("start", "").strip()}
    return _element("text", {**given, "lang": what.lang}, spans)


def _row(row: Iterable[words.Run], x: float, number: int, count: int) -> Markup:
    runs = Markup("").join(
        Markup('<tspan class="code">{}</tspan>').format(run.text) if run.code else escape(run.text)
        for run in row
    )
    if count == 1:
        return runs
    return Markup('<tspan x="{}"{}>{}</tspan>').format(
        _short(x), Markup(f' dy="{LEADING}"') if number else "", runs
    )


def bar(x: float, y: float, width: float, height: float, kind: int, look: str = "") -> Markup:
    """A rectangle of a kind: its colour, and over it its hatching. One without width is not drawn."""
    if width <= 0 or height <= 0:
        return Markup("")
    box = {"x": _short(x), "y": _short(y), "width": _short(width), "height": _short(height)}
    plain = _element("rect", {"class": f"kind-{kind} {look}".strip(), **box})
    return (
        plain + _element("rect", {"class": "hatch", "fill": f"url(#hatch-{kind})", **box})
        if kind > 1
        else plain
    )


def box(x: float, y: float, width: float, height: float, look: str = "box", round: float = 3) -> Markup:
    """A frame that holds words."""
    given = {
        "x": _short(x),
        "y": _short(y),
        "width": _short(width),
        "height": _short(height),
        "rx": _short(round),
    }
    return _element("rect", {"class": look, **given})


def dot(x: float, y: float, kind: int = 1, radius: float = 4) -> Markup:
    """A point of a kind; kinds differ in their form, too."""
    if kind == 1:
        given = {"cx": _short(x), "cy": _short(y), "r": _short(radius)}
        return _element("circle", {"class": f"dot kind-{kind}", **given})
    if kind == 2:
        corners = [(0, -1.3), (1.2, 0.9), (-1.2, 0.9)]
    elif kind == 3:
        corners = [(-1, -1), (1, -1), (1, 1), (-1, 1)]
    else:
        corners = [(0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)]
    points = [(x + radius * dx, y + radius * dy) for dx, dy in corners]
    return _element("path", {"class": f"dot kind-{kind}", "d": _path(points) + "z"})


def line(points: Iterable[Point], kind: int | str = 1) -> Markup:
    """A line through points. A kind has a colour and dashes; a name instead of a number is a class."""
    return _element("path", {"class": _line(kind), "d": _path(points)})


def staircase(points: Iterable[Point], kind: int | str = 1) -> Markup:
    """A line that keeps each value until the next one begins."""
    return _element("path", {"class": _line(kind), "d": _stairs(thinned(points))})


def area(points: Iterable[Point], base: float, kind: int = 1, stairs: bool = False) -> Markup:
    """What lies between a line and a base, in the colour and the hatching of a kind."""
    above = thinned(points)
    first, last = above[0][0], above[-1][0]
    closed = f"M{_short(first)} {_short(base)}{(_stairs if stairs else _path)(above).replace('M', 'L')}"
    closed += f"L{_short(last)} {_short(base)}z"
    plain = _element("path", {"class": f"area kind-{kind}", "d": closed})
    if kind == 1:
        return plain
    return plain + _element("path", {"class": "hatch", "fill": f"url(#hatch-{kind})", "d": closed})


def thinned(points: Iterable[Point], step: float = 0.5) -> list[Point]:
    """Of points within half a unit of each other only the first, the lowest, the highest and the last.

    No screen shows the others, and a recording may have thousands.
    """
    kept: list[Point] = []
    for _, group in groupby(points, key=lambda point: math.floor(point[0] / step)):
        near = list(enumerate(group))
        by_height = sorted(near, key=lambda each: each[1][1])
        places = sorted({near[0][0], by_height[0][0], by_height[-1][0], near[-1][0]})
        kept += [near[place][1] for place in places]
    return kept


def arrow(points: Sequence[Point], look: str = "arrow", head: float = 7) -> Markup:
    """A line through points with a head at its last one."""
    (x0, y0), (x1, y1) = points[-2], points[-1]
    length = math.hypot(x1 - x0, y1 - y0) or 1.0
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    foot = (x1 - ux * head, y1 - uy * head)
    wings = [(foot[0] - uy * head * 0.45, foot[1] + ux * head * 0.45), (x1, y1)]
    wings.append((foot[0] + uy * head * 0.45, foot[1] - ux * head * 0.45))
    shaft = _element("path", {"class": look, "d": _path([*points[:-1], foot])})
    return shaft + _element("path", {"class": f"{look} head", "d": _path(wings) + "z"})


def axis_below(
    scale: Linear | Log,
    y: float,
    write: Callable[[float], object] = words.number,
    *,
    ticks: Iterable[float] | None = None,
    top: float | None = None,
    count: int = 5,
) -> Markup:
    """An axis under a chart: its line, its ticks with their values, and faint lines up to `top`."""
    parts = [line([(scale.start, y), (scale.end, y)], "axis")]
    for value in scale.ticks(count) if ticks is None else ticks:
        x = scale(value)
        if top is not None:
            parts.append(line([(x, top), (x, y)], "grid"))
        parts.append(line([(x, y), (x, y + 4)], "axis"))
        parts.append(label(x, y + 18, _written(write(value)), at="middle", look="tick"))
    return Markup("").join(parts)


def axis_left(
    scale: Linear | Log,
    x: float,
    write: Callable[[float], object] = words.number,
    *,
    ticks: Iterable[float] | None = None,
    right: float | None = None,
    count: int = 5,
) -> Markup:
    """An axis beside a chart: the values of its ticks, and up to `right` faint lines across."""
    parts = []
    for value in scale.ticks(count) if ticks is None else ticks:
        y = scale(value)
        parts.append(line([(x, y), (x + 4 if right is None else right, y)], "grid"))
        parts.append(label(x - 7, y + CENTRED, _written(write(value)), at="end", look="tick"))
    return Markup("").join(parts)


def _written(value: object) -> Said:
    return value if isinstance(value, Said) else words.plain(value)


def _line(kind: int | str) -> str:
    return f"line line-{kind}" if isinstance(kind, int) else kind


def _stairs(points: Sequence[Point]) -> str:
    """A path that goes to the right first and then to the next value."""
    x, y = points[0]
    return f"M{_short(x)} {_short(y)}" + "".join(f"H{_short(x)}V{_short(y)}" for x, y in points[1:])


def _path(points: Iterable[Point]) -> str:
    return "".join(f"{'L' if number else 'M'}{_short(x)} {_short(y)}" for number, (x, y) in enumerate(points))


def _element(name: str, given: dict[str, Any], inner: Markup | None = None) -> Markup:
    attributes = "".join(
        f' {key}="{escape(value)}"' for key, value in given.items() if value not in (None, "")
    )
    return Markup(f"<{name}{attributes}/>" if inner is None else f"<{name}{attributes}>{inner}</{name}>")


def _short(value: float) -> str:
    """A tenth of a unit is finer than any screen shows, and a short number keeps a page small."""
    return f"{round(value, 1):g}" if abs(value) < 1e5 else f"{value:.0f}"


# What every template may call.
TOOLS: dict[str, object] = {
    tool.__name__: tool
    for tool in (label, bar, box, dot, line, staircase, area, arrow, axis_below, axis_left)
}
