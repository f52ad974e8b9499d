"""# What a reader can move

> A recorded run to step through, and a table of answers behind sliders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from markdown_it.token import Token

from sidelit.catalog import sync
from sidelit.config.config import Config
from sidelit.config.toml import Table, read_table
from sidelit.errors import SidelitError
from sidelit.figures import figure, words
from sidelit.figures.figure import Recording, sentence
from sidelit.figures.words import BLANK
from sidelit.text import markup

# ## The words of what moves
#
# > Sentences in a TOML file, which reach the catalogues, and the numbers that are put into their blanks.


@dataclass(frozen=True, slots=True)
class Script:
    """The sentences of one file by their contexts; `page` is the name of its catalogue."""

    page: str
    path: str
    said: Mapping[str, tuple[Token, ...]]

    def units(self) -> sync.PageUnits:
        """What of it is to be translated."""
        sections = (sync.extract(context, tokens) for context, tokens in self.said.items())
        return sync.PageUnits(self.page, tuple(each for each in sections if each.msgids))


def one(table: Table, key: str) -> tuple[str, tuple[Token, ...]]:
    """A sentence that the file must have, with its context."""
    return key, sentence(table, table.take(key, str), table.line(key))


def several(table: Table, name: str) -> Iterator[tuple[str, tuple[Token, ...]]]:
    """The sentences of a table of the file, each with its context."""
    words = table.inside(table.take(name, dict), name)
    for key, text in words.data.items():
        if not isinstance(text, str):
            raise words.error(f"the word `{key}` of [{name}] must be a string", key)
        yield f"{name}/{key}", sentence(words, text, words.line(key))


def filled(tokens: Sequence[Token], values: Mapping[str, object]) -> tuple[Token, ...]:
    """A sentence with its blanks filled: numbers rounded, and text as code.

    Raises `SidelitError` at the sentence if a blank has no value.
    """
    opening, inline, closing = tokens
    missing = sorted(set(BLANK.findall(inline.content)) - values.keys())
    if missing:
        path, line = markup.path_of(inline), markup.line_of(inline)
        what, hint = (
            f"nothing is put into the blank {{{missing[0]}}}",
            f"there is {', '.join(values) or 'none'}",
        )
        raise SidelitError(what, path=path, line=line, hint=hint)
    text = BLANK.sub(lambda blank: _written(values[blank[1]]), inline.content)
    return opening, markup.reinline(inline, text) if text != inline.content else inline, closing


def _written(value: object) -> str:
    if isinstance(value, (int, float)):
        return words.number(value)
    return f"`{value}`"


# ## A recorded run
#
# > Moments of a run in their order, each at a line of a chapter, with what was stored then.
#
# A recording that can be replayed holds under `data`:
#
# | key | what it is |
# |---|---|
# | `kinds` | the names of what is stored, in the order in which it is stacked |
# | `units` | what is cut into one piece a rank, in the order of an event's `states`: objects with a `name` |
# | `scenes` | objects with a `name` and the number of their `first` event |
# | `values` | numbers for the blanks of sentences; may be left out |
# | `events` | the moments |
#
# An event says `at` which definition (`package/file.py#Class.method`) and at which `line` of it, as that line
# is written; what is stored, as `bytes` of each kind for each rank; the `states` of all units; and perhaps
# the
# `unit` it is about, a `payload` (`bytes` sent by the rank `from`, or by `both`), whether its line was
# `removed`, and more, for which the file of words has a sentence under `notes`.


_OWN = {"at", "line", "unit", "bytes", "states", "payload", "rank", "removed"}


@dataclass(frozen=True, slots=True)
class Payload:
    """What travels: `source` is the rank that sends, `None` if each does."""

    nbytes: int
    source: int | None


@dataclass(frozen=True, slots=True)
class Event:
    """One moment of a run."""

    path: str
    definition: str
    line: str
    unit: str | None
    nbytes: tuple[tuple[int, ...], ...]
    """For each rank the bytes of each kind."""
    states: tuple[str, ...]
    payload: Payload | None
    removed: bool
    notes: Mapping[str, Mapping[str, object]]
    """What else is known, each with the values for the blanks of its sentence."""

    @property
    def moment(self) -> tuple[Any, ...]:
        """What two versions of a program must have in common to be shown as one."""
        return self.path, self.definition, self.line, self.unit, self.nbytes, self.states, self.payload


@dataclass(frozen=True, slots=True)
class Run:
    """A run that can be replayed; `scenes` are pairs of a name and the number of the first event."""

    recording: Recording
    kinds: tuple[str, ...]
    units: tuple[str, ...]
    scenes: tuple[tuple[str, int], ...]
    values: Mapping[str, object]
    events: tuple[Event, ...]

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.events[0].nbytes)

    @property
    def most(self) -> int:
        """The most bytes that a rank ever stores."""
        return max(sum(kinds) for event in self.events for kinds in event.nbytes)

    def scene(self, number: int) -> range:
        """The events of a scene."""
        firsts = [first for _, first in self.scenes] + [len(self.events)]
        return range(firsts[number], firsts[number + 1])


def run(recording: Recording, path: str) -> Run:
    """Take a recording for a run.

    Raises `SidelitError` at `path` if it is none.
    """
    try:
        data = recording.data
        made = Run(
            recording,
            tuple(data["kinds"]),
            tuple(str(unit["name"]) for unit in data["units"]),
            tuple((str(scene["name"]), int(scene["first"])) for scene in data["scenes"]),
            data.get("values", {}),
            tuple(_event(each) for each in data["events"]),
        )
        firsts = [first for _, first in made.scenes]
        shapes = {(len(kinds), len(event.states)) for event in made.events for kinds in event.nbytes}
        if not firsts or firsts[0] or firsts != sorted({*firsts}) or firsts[-1] >= len(made.events):
            raise ValueError("its scenes do not follow each other from the first event on")
        if not {event.unit for event in made.events} <= {None, *made.units}:
            raise ValueError("an event is about a unit that the run has not")
        if shapes != {(len(made.kinds), len(made.units))}:
            raise ValueError("an event has another number of kinds or units than the run")
    except (KeyError, TypeError, ValueError) as error:
        what = (
            f"`data` is no run that can be replayed: {error!r}" if isinstance(error, KeyError) else str(error)
        )
        raise SidelitError(what, path=path, line=1, hint="record it again") from None
    return made


def _event(given: Mapping[str, Any]) -> Event:
    path, _, definition = given["at"].partition("#")
    sent = given.get("payload")
    return Event(
        path,
        definition,
        given["line"],
        given.get("unit"),
        tuple(tuple(kinds) for kinds in given["bytes"]),
        tuple(given["states"]),
        Payload(sent["bytes"], sent.get("from")) if sent else None,
        bool(given.get("removed")),
        {key: _by_rank(value) for key, value in given.items() if key not in _OWN},
    )


def _by_rank(given: Any) -> Mapping[str, object]:
    if isinstance(given, list):
        return {f"rank_{rank}": value for rank, value in enumerate(given)}
    return given if isinstance(given, dict) else {"value": given}


# ## A stepper
#
# > A recorded run, the sentences that tell it, and the same run of a program with a line removed.
#
# `steppers/NAME.toml` names the recording and has a sentence for each scene, each kind of what is stored and
# each state of a unit, in this order: a rank has only its own piece, the others are on their way, the unit is
# whole. A *twin* is a second recording, of the same program without one line. It has the same events, and
# what it shows is where they differ.


STEPPERS = "steppers"


@dataclass(frozen=True, slots=True)
class Stepper:
    """A stepper as it was written; `states` are the names that the recording gives them, in order."""

    name: str
    script: Script
    run: Run
    states: tuple[str, ...]
    twins: Mapping[str, Run]


def stepper_names(config: Config) -> list[str]:
    """The steppers of a site."""
    return sorted(path.stem for path in (config.folder / STEPPERS).glob("*.toml"))


def read_stepper(config: Config, name: str) -> Stepper:
    """Read one stepper; every mistake in it is a `SidelitError` with its line."""
    # Each moment of it on a page asks again, so this looks at the times of the files alone.
    key = (
        str(config.folder),
        name,
        *_times(config.folder / STEPPERS),
        *_times(config.folder / figure.RECORDED),
    )
    if key not in _known:
        while len(_known) >= _MOST:
            _known.pop(next(iter(_known)))
        _known[key] = _read(config, name)
    return _known[key]


def _times(folder: Path) -> Iterator[tuple[str, int, int]]:
    """The files below a folder, and when somebody wrote to them last."""
    for path in sorted(folder.rglob("*")):
        # What an editor keeps beside a file may be gone in the next moment.
        with suppress(OSError):
            state = path.stat()
            yield path.relative_to(folder).as_posix(), state.st_mtime_ns, state.st_size


_known: dict[tuple[object, ...], Stepper] = {}
# How many steppers stay at hand.
_MOST = 32


def _read(config: Config, name: str) -> Stepper:
    path = config.folder / STEPPERS / f"{name}.toml"
    table = read_table(path, config.shown(path))
    run = _run(config, table)
    said = dict([one(table, "title"), one(table, "caption")])
    for part in ("kinds", "states", "scenes", "notes"):
        said.update(several(table, part))
    twins: dict[str, Run] = {}
    for key, given in table.take("twins", dict, {}).items():
        twin = table.inside(given, "twins", key)
        twins[key] = _run(config, twin)
        said.update((f"twins/{key}/{word}", tokens) for word, tokens in _about(twin))
        twin.finish()
    table.finish()
    states = tuple(context.partition("/")[2] for context in said if context.startswith("states/"))
    script = Script(f"{STEPPERS}/{name}", table.shown, MappingProxyType(said))
    made = Stepper(name, script, run, states, MappingProxyType(twins))
    _check_stepper(made, table)
    return made


def _run(config: Config, table: Table) -> Run:
    file = table.take("data", str)
    return run(figure.recorded(config, table, file), config.shown(config.folder / figure.RECORDED / file))


def _about(table: Table) -> Iterator[tuple[str, tuple[Token, ...]]]:
    yield one(table, "label")
    yield one(table, "about")


def _check_stepper(made: Stepper, table: Table) -> None:
    """The words and the recording are about the same."""
    notes = [note for run in (made.run, *made.twins.values()) for event in run.events for note in event.notes]
    wanted = {
        "scenes": [name for name, _ in made.run.scenes],
        "kinds": list(made.run.kinds),
        "states": list(dict.fromkeys(state for event in made.run.events for state in event.states)),
        "notes": notes,
    }
    for part, keys in wanted.items():
        for key in dict.fromkeys(keys):
            if f"{part}/{key}" not in made.script.said:
                raise table.error(f"[{part}] has no sentence for {key!r}", part)
        for context in made.script.said:
            if context.startswith(f"{part}/") and context.partition("/")[2] not in keys:
                raise table.error(f"the recording has no {context!r}", context.partition("/")[2])
    for context, values in _values_of_runs(made):
        filled(made.script.said[context], values)
    for name, twin in made.twins.items():
        pairs = zip(made.run.events, twin.events, strict=False)
        number = next((n for n, (each, other) in enumerate(pairs) if each.moment != other.moment), None)
        if number is not None or len(twin.events) != len(made.run.events):
            what = f"the twin {name!r} goes another way from event {number or 0} on"
            raise SidelitError(what, path=table.shown, line=table.line(name), hint="record both again")


def _values_of_runs(made: Stepper) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Each sentence with what can be put into its blanks, wherever it will be said."""
    for run in (made.run, *made.twins.values()):
        for event in run.events:
            yield from ((f"notes/{note}", values) for note, values in event.notes.items())
    for context in made.script.said:
        part, _, name = context.partition("/")
        if part != "notes":
            yield context, (made.twins[name.partition("/")[0]] if part == "twins" else made.run).values


# ## Sliders
#
# > A table of answers that a program gave, and the sentences that name its rows and columns.
#
# A recording that sliders can move through holds under `data`:
#
# | key | what it is |
# |---|---|
# | `axes` | what a reader chooses: objects with a `name`, the `values`, and the place of the `start` |
# | `rows` | the names of the numbers in an answer |
# | `parts` | the names of what each number is the sum of |
# | `answers` | a list for each axis inside of the one before; in the innermost one a list of rows of parts |
#
# `sliders/NAME.toml` has a sentence for each of these names. Under `formats` it says how the values of an
# axis, of a row, or of all other `rows` are written. The rows that are written like the first one are drawn
# as bars on one scale.


SLIDERS = "sliders"
FORMATS: Mapping[str, Callable[[float], str]] = MappingProxyType(
    {
        "number": words.number,
        "billions": words.scaled(1e9),
        "bytes": words.size,
        "seconds": words.duration,
        "percent": words.percent,
        "FLOP/s": lambda value: words.size(value, "FLOP/s"),
        "B/s": lambda value: words.size(value, "B/s"),
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


def slider_names(config: Config) -> list[str]:
    """The sliders of a site."""
    return sorted(path.stem for path in (config.folder / SLIDERS).glob("*.toml"))


def read_sliders(config: Config, name: str) -> Sliders:
    """Read sliders; every mistake in them is a `SidelitError` with its line."""
    path = config.folder / SLIDERS / f"{name}.toml"
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
            name, Script(f"{SLIDERS}/{name}", table.shown, MappingProxyType(said)), recording, formats
        )
    except (KeyError, TypeError, ValueError) as error:
        what = f"`data` is no table of answers: {error!r}" if isinstance(error, KeyError) else str(error)
        shown = config.shown(config.folder / figure.RECORDED / file)
        raise SidelitError(what, path=shown, line=1, hint="record it again") from None
    _check_sliders(made, table, formats)
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
    return FORMATS.get(str(named), words.number)


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


def _check_sliders(made: Sliders, table: Table, formats: Mapping[str, Any]) -> None:
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
