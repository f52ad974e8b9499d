"""# A stepper

> A recorded run, the sentences that tell it, and the same run of a program with a line removed.

`steppers/NAME.toml` names the recording and has a sentence for each scene, each kind of what is stored and
each state of a unit, in this order: a rank has only its own piece, the others are on their way, the unit is
whole. A *twin* is a second recording, of the same program without one line. It has the same events, and what
it shows is where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from markdown_it.token import Token

from sidelit import digests
from sidelit.config import Config
from sidelit.errors import SidelitError
from sidelit.figures import figure
from sidelit.interactive import replay
from sidelit.interactive.words import Script, filled, one, several
from sidelit.tables import Table, read_table

FOLDER = "steppers"


@dataclass(frozen=True, slots=True)
class Stepper:
    """A stepper as it was written; `states` are the names that the recording gives them, in order."""

    name: str
    script: Script
    run: replay.Run
    states: tuple[str, ...]
    twins: Mapping[str, replay.Run]


def names(config: Config) -> list[str]:
    """The steppers of a site."""
    return sorted(path.stem for path in (config.folder / FOLDER).glob("*.toml"))


def read(config: Config, name: str) -> Stepper:
    """Read one stepper; every mistake in it is a `SidelitError` with its line."""
    # Each moment of it on a page asks again.
    made_of = (config.folder / FOLDER, config.folder / figure.RECORDED)
    key = (str(config.folder), name, *map(digests.of_folder, made_of))
    if key not in _known:
        while len(_known) >= _MOST:
            _known.pop(next(iter(_known)))
        _known[key] = _read(config, name)
    return _known[key]


_known: dict[tuple[str, ...], Stepper] = {}
# How many steppers stay at hand.
_MOST = 32


def _read(config: Config, name: str) -> Stepper:
    path = config.folder / FOLDER / f"{name}.toml"
    table = read_table(path, config.shown(path))
    run = _run(config, table)
    said = dict([one(table, "title"), one(table, "caption")])
    for part in ("kinds", "states", "scenes", "notes"):
        said.update(several(table, part))
    twins: dict[str, replay.Run] = {}
    for key, given in table.take("twins", dict, {}).items():
        twin = table.inside(given, "twins", key)
        twins[key] = _run(config, twin)
        said.update((f"twins/{key}/{word}", tokens) for word, tokens in _about(twin))
        twin.finish()
    table.finish()
    states = tuple(context.partition("/")[2] for context in said if context.startswith("states/"))
    script = Script(f"{FOLDER}/{name}", table.shown, MappingProxyType(said))
    made = Stepper(name, script, run, states, MappingProxyType(twins))
    _check(made, table)
    return made


def _run(config: Config, table: Table) -> replay.Run:
    file = table.take("data", str)
    return replay.run(
        figure.recorded(config, table, file), config.shown(config.folder / figure.RECORDED / file)
    )


def _about(table: Table) -> Iterator[tuple[str, tuple[Token, ...]]]:
    yield one(table, "label")
    yield one(table, "about")


def _check(made: Stepper, table: Table) -> None:
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
    for context, values in _values(made):
        filled(made.script.said[context], values)
    for name, twin in made.twins.items():
        pairs = zip(made.run.events, twin.events, strict=False)
        number = next((n for n, (each, other) in enumerate(pairs) if each.moment != other.moment), None)
        if number is not None or len(twin.events) != len(made.run.events):
            what = f"the twin {name!r} goes another way from event {number or 0} on"
            raise SidelitError(what, path=table.shown, line=table.line(name), hint="record both again")


def _values(made: Stepper) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Each sentence with what can be put into its blanks, wherever it will be said."""
    for run in (made.run, *made.twins.values()):
        for event in run.events:
            yield from ((f"notes/{note}", values) for note, values in event.notes.items())
    for context in made.script.said:
        part, _, name = context.partition("/")
        if part != "notes":
            yield context, (made.twins[name.partition("/")[0]] if part == "twins" else made.run).values
