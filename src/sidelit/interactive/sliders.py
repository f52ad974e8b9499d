"""# Sliders

> A table of answers that a program gave, and the sentences that name its rows and columns.

A recording that sliders can move through holds under `data`:

| key | what it is |
|---|---|
| `axes` | what a reader chooses: objects with a `name`, the `values` in order, and the place of the `start` |
| `rows` | the names of the numbers in an answer |
| `parts` | the names of what each number is the sum of |
| `answers` | a list for each axis inside of the one before; in the innermost one a list of rows of parts |

`sliders/NAME.toml` has a sentence for each of these names. Under `formats` it says how the values of an axis,
of a row, or of all other `rows` are written. The rows that are written like the first one are drawn as bars
on one scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sidelit.config import Config
from sidelit.errors import SidelitError
from sidelit.figures import figure, quantities
from sidelit.figures.recording import Recording
from sidelit.interactive.words import Script, one, several
from sidelit.tables import Table, read_table

FOLDER = "sliders"
FORMATS: Mapping[str, Callable[[float], str]] = MappingProxyType(
    {
        "number": quantities.number,
        "billions": quantities.scaled(1e9),
        "bytes": quantities.size,
        "seconds": quantities.duration,
        "percent": quantities.percent,
        "FLOP/s": lambda value: quantities.size(value, "FLOP/s"),
        "B/s": lambda value: quantities.size(value, "B/s"),
    }
)
Answer = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """What one slider chooses; `values` are written as a reader sees them."""

    name: str
    values: tuple[str, ...]
    start: int


@dataclass(frozen=True, slots=True)
class Row:
    """One number of an answer, as it is written; `widths` are those of its bar, in percent, if it has one."""

    text: str
    widths: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Sliders:
    """Sliders as they were written; `points` are in the order of the axes' values, the last axis first."""

    name: str
    script: Script
    recording: Recording
    axes: tuple[Axis, ...]
    rows: tuple[str, ...]
    parts: tuple[str, ...]
    points: tuple[tuple[Row, ...], ...]

    @property
    def start(self) -> tuple[Row, ...]:
        """The answer that is shown first."""
        place = 0
        for axis in self.axes:
            place = place * len(axis.values) + axis.start
        return self.points[place]


def names(config: Config) -> list[str]:
    """The sliders of a site."""
    return sorted(path.stem for path in (config.folder / FOLDER).glob("*.toml"))


def read(config: Config, name: str) -> Sliders:
    """Read sliders; every mistake in them is a `SidelitError` with its line."""
    path = config.folder / FOLDER / f"{name}.toml"
    table = read_table(path, config.shown(path))
    file = table.take("data", str)
    recording = figure.recorded(config, table, file)
    said = dict([one(table, "title"), one(table, "caption")])
    for part in ("axes", "rows", "parts"):
        said.update(several(table, part))
    formats = table.take("formats", dict)
    table.finish()
    try:
        made = _made(
            name, Script(f"{FOLDER}/{name}", table.shown, MappingProxyType(said)), recording, formats
        )
    except (KeyError, TypeError, ValueError) as error:
        what = f"`data` is no table of answers: {error!r}" if isinstance(error, KeyError) else str(error)
        shown = config.shown(config.folder / figure.RECORDED / file)
        raise SidelitError(what, path=shown, line=1, hint="record it again") from None
    _check(made, table, formats)
    return made


def _made(name: str, script: Script, recording: Recording, formats: Mapping[str, Any]) -> Sliders:
    data = recording.data
    lengths = [len(axis["values"]) for axis in data["axes"]]
    shape = [*lengths, len(data["rows"]), len(data["parts"])]
    writers = [_writer(formats, row, "rows") for row in data["rows"]]
    bars = [writer == writers[0] for writer in writers]
    axes = tuple(
        Axis(axis["name"], tuple(map(_writer(formats, axis["name"]), axis["values"])), axis["start"])
        for axis in data["axes"]
    )
    if not all(0 <= axis.start < len(axis.values) for axis in axes):
        raise ValueError("an axis starts outside of its values")
    points = tuple(tuple(_rows(answer, writers, bars)) for answer in _answers(data["answers"], shape))
    return Sliders(name, script, recording, axes, tuple(data["rows"]), tuple(data["parts"]), points)


def _writer(formats: Mapping[str, Any], *keys: str) -> Callable[[float], str]:
    named = next((formats[key] for key in keys if key in formats), None)
    # What is named wrongly, or not at all, is told with its line later on.
    return FORMATS.get(str(named), quantities.number)


def _answers(given: Any, shape: Sequence[int]) -> Iterator[Answer]:
    if len(given) != shape[0]:
        raise ValueError(f"a list of the answers has {len(given)} entries and not {shape[0]}")
    if len(shape) > 2:
        for each in given:
            yield from _answers(each, shape[1:])
    elif any(len(row) != shape[1] for row in given):
        raise ValueError("a row of an answer has another number of parts than there are")
    else:
        yield tuple(tuple(row) for row in given)


def _rows(answer: Answer, writers: Sequence[Callable[[float], str]], bars: Sequence[bool]) -> Iterator[Row]:
    most = max(math.fsum(row) for row, bar in zip(answer, bars, strict=True) if bar)
    for row, writer, bar in zip(answer, writers, bars, strict=True):
        widths = (round(100 * part / most, 2) if most else 0.0 for part in row)
        yield Row(writer(math.fsum(row)), tuple(widths) if bar else ())


def _check(made: Sliders, table: Table, formats: Mapping[str, Any]) -> None:
    """The words, the formats and the recording are about the same."""
    axes = [axis.name for axis in made.axes]
    for part, keys in (("axes", axes), ("rows", made.rows), ("parts", made.parts)):
        for key in keys:
            if f"{part}/{key}" not in made.script.said:
                raise table.error(f"[{part}] has no sentence for {key!r}", part)
        for context in made.script.said:
            if context.startswith(f"{part}/") and context.partition("/")[2] not in keys:
                raise table.error(f"the recording has no {context!r}", context.partition("/")[2])
    for key in (*axes, "rows"):
        if key not in formats:
            raise table.error(f"[formats] does not say how {key!r} is written", "formats")
    for key, value in formats.items():
        if key not in (*axes, *made.rows, "rows"):
            raise table.error(f"the recording has no {key!r}", key)
        if value not in FORMATS:
            raise table.error(
                f"there is no format {value!r}", str(value), hint=f"there is {', '.join(FORMATS)}"
            )
