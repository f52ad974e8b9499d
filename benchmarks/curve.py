"""Draw the losses of `benchmarks.parity` as a picture.

The upper half shows the losses themselves, which lie on one another. The lower half shows how far each mode
is from FP32, as a mean over the last tenth of a run: of a single batch the loss varies too much.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

# One picture serves light and dark pages, so every colour stands out from both.
GREY = "#767676"
COLOURS = ("#3a7bd5", "#c8641b", "#2b8a57", "#a55cc4", "#c2415a", "#8a7a1c")
WIDTH, LEFT, RIGHT = 480.0, 52.0, 468.0
Losses = dict[str, list[list[float]]]


@dataclass(frozen=True)
class Panel:
    """A part of the picture: where it lies, and which values its edges stand for."""

    top: float
    bottom: float
    high: float
    low: float
    steps: int

    def x(self, step: float) -> float:
        """Where a step stands, from the left."""
        return LEFT + (RIGHT - LEFT) * step / self.steps

    def y(self, value: float) -> float:
        """Where a value stands, from the top; what is beyond an edge stands at the edge."""
        inside = min(self.high, max(self.low, value))
        return self.top + (self.bottom - self.top) * (self.high - inside) / (self.high - self.low)


def draw(losses: Losses, base: str, band: float) -> str:
    """The picture as SVG.

    :param losses: the losses step by step of each run of each mode, the same number of runs in all modes
    :param base: the mode that the others are compared with
    :param band: the largest distance that is allowed at the end, relative
    """
    means = {
        name: [statistics.fmean(step) for step in zip(*runs, strict=True)] for name, runs in losses.items()
    }
    steps = len(means[base])
    most = max(max(mean) for mean in means.values())
    least = min(min(mean) for mean in means.values())
    upper = Panel(26, 176, most, least, steps)
    lower = Panel(222, 352, 2 * band, -2 * band, steps)
    others = [name for name in means if name != base]
    svg = ElementTree.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:g} {396 + 18 * ((len(others) + 1) // 2)}",
        **{"font-family": "sans-serif", "font-size": "12", "fill": GREY},
    )
    title(svg, 14, f"loss, {base} and {len(others)} modes in 16 bits")
    frame(svg, upper, [most, least], "{:.1f}")
    title(svg, 210, f"distance from {base}, with the band of {band:.1%}")
    around = {"x": LEFT, "width": RIGHT - LEFT, "y": lower.y(band), "height": lower.y(-band) - lower.y(band)}
    add(svg, "rect", **around, **{"fill-opacity": 0.15})
    frame(svg, lower, [2 * band, band, 0, -band, -2 * band], "{:+.1%}")
    line(svg, upper, means[base], GREY)
    for place, (name, colour) in enumerate(zip(others, COLOURS, strict=False)):
        line(svg, upper, means[name], colour)
        window = max(1, steps // 10)
        apart = list(distances(means[name], means[base], window))
        line(svg, lower, apart, colour, first=window)
        entry(svg, place, name, colour)
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def distances(mean: Sequence[float], base: Sequence[float], window: int) -> Iterator[float]:
    """How far apart two curves are, relative, each as the mean over this many steps up to the present one."""
    for end in range(window, len(mean) + 1):
        part = slice(end - window, end)
        yield statistics.fmean(mean[part]) / statistics.fmean(base[part]) - 1


def frame(svg: ElementTree.Element, panel: Panel, values: Sequence[float], form: str) -> None:
    """The values at the left, a thin line for each, and the steps below."""
    for value in values:
        height = panel.y(value)
        add(svg, "line", x1=LEFT, x2=RIGHT, y1=height, y2=height, stroke=GREY, **{"stroke-opacity": 0.35})
        add(
            svg,
            "text",
            form.format(value) if value else "0",
            x=LEFT - 6,
            y=height + 4,
            **{"text-anchor": "end"},
        )
    middle = panel.steps // 2
    for step, text in ((0, "0"), (middle, f"step {middle}"), (panel.steps, str(panel.steps))):
        add(svg, "text", text, x=panel.x(step), y=panel.bottom + 16, **{"text-anchor": "middle"})


def title(svg: ElementTree.Element, height: float, text: str) -> None:
    """What a panel shows."""
    add(svg, "text", text, x=LEFT, y=height, **{"font-weight": "bold"})


def line(
    svg: ElementTree.Element, panel: Panel, values: Sequence[float], colour: str, first: int = 1
) -> None:
    """A curve. Its first value belongs to the step `first`, counted from 1."""
    points = " ".join(
        f"{panel.x(step):.1f},{panel.y(value):.1f}" for step, value in enumerate(values, start=first)
    )
    add(svg, "polyline", points=points, fill="none", stroke=colour, **{"stroke-width": 1.4})


def entry(svg: ElementTree.Element, place: int, name: str, colour: str) -> None:
    """A line of the legend; two stand side by side."""
    left, height = LEFT + 214 * (place % 2), 392 + 18 * (place // 2)
    add(svg, "line", x1=left, x2=left + 20, y1=height, y2=height, stroke=colour, **{"stroke-width": 2.5})
    add(svg, "text", name, x=left + 27, y=height + 4)


def add(svg: ElementTree.Element, kind: str, text: str | None = None, **attributes: str | float) -> None:
    """One more element of the picture."""
    values = {
        name: f"{value:g}" if isinstance(value, int | float) else value for name, value in attributes.items()
    }
    ElementTree.SubElement(svg, kind, values).text = text
