"""# A recorded run

> Moments of a run in their order, each at a line of a chapter, with what was stored then.

A recording that can be replayed holds under `data`:

| key | what it is |
|---|---|
| `kinds` | the names of what is stored, in the order in which it is stacked |
| `units` | what is cut into one piece a rank, in the order of an event's `states`: objects with a `name` |
| `scenes` | objects with a `name` and the number of their `first` event |
| `values` | numbers for the blanks of sentences; may be left out |
| `events` | the moments |

An event says `at` which definition (`package/file.py#Class.method`) and at which `line` of it, as that line
is written; what is stored, as `bytes` of each kind for each rank; the `states` of all units; and perhaps the
`unit` it is about, a `payload` (`bytes` sent by the rank `from`, or by `both`), whether its line was
`removed`, and more, for which the file of words has a sentence under `notes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidelit.errors import SidelitError
from sidelit.figures.recording import Recording

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
        {key: _values(value) for key, value in given.items() if key not in _OWN},
    )


def _values(given: Any) -> Mapping[str, object]:
    if isinstance(given, list):
        return {f"rank_{rank}": value for rank, value in enumerate(given)}
    return given if isinstance(given, dict) else {"value": given}
