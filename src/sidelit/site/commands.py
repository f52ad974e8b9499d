"""# Commands and their options

> A page lists programs with their options, as a recording says that their parsers have them.

The press runs nothing of a project, so it does not ask a parser itself. A program of the project does, and
leaves `recorded/commands.json`, a [recording](../figures/figure.py) as figures have it. Under `data` is a
list of programs:

| key | what it is |
|---|---|
| `name` | what its ids begin with; a subcommand has the name of its program and its own, as in `git log` |
| `call` | how a reader starts it |
| `about` | what it does |
| `example` | a whole line; may be left out |
| `groups` | objects with a `label`, which may be empty, and a list of `options` |

An option has a list of `names`. All else may be left out: the `value` that stands behind the name, the
`choices`, what it `takes` (`whole` or `number`, and perhaps two limits), the `default`, the `help`, and
whether it is `required` or `repeats`. Texts are in the language of the sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from sidelit.config.config import Config
from sidelit.config.prose import Prose
from sidelit.errors import SidelitError
from sidelit.figures import figure
from sidelit.site.model import Option, OptionGroup, Program

KIND, FILE = "commands", "commands.json"
_TEXTS = ("value", "default", "help")
_OPTION = {
    "names": list,
    "choices": list,
    "takes": list,
    "required": bool,
    "repeats": bool,
    **dict.fromkeys(_TEXTS, str),
}
_PROGRAM = {"name": str, "call": str, "about": str, "example": str, "groups": list}
_GROUP = {"label": str, "options": list}


def programs(config: Config) -> tuple[Program, ...]:
    """Read the programs of a project; nothing is read where no page lists them.

    Raises `SidelitError` if the recording is not there, or is not as it should be.
    """
    listing = [page for page in config.prose if isinstance(page, Prose) and page.append == KIND]
    if not listing:
        return ()
    path = config.folder / figure.RECORDED / FILE
    shown = config.shown(path)
    if not path.is_file():
        what = f"the page {listing[0].name} lists commands, and there is no {shown}"
        raise SidelitError(what, path=listing[0].source, line=1, hint="record them")
    found = figure.read_recording(path, shown).data
    if not isinstance(found, list):
        raise _wrong(shown, "`data` is a list of programs")
    made = tuple(_program(each, shown) for each in found)
    if twice := [one for one, count in Counter(ids(made)).items() if count > 1]:
        raise _wrong(shown, f"there are two of {', '.join(twice)}")
    return made


def ids(found: tuple[Program, ...]) -> Iterator[str]:
    """What a link to the page may end in."""
    for program in found:
        yield program.id
        yield from (option.id for group in program.groups for option in group.options)


def _program(given: Any, shown: str) -> Program:
    said = _table(given, _PROGRAM, ("name", "call", "groups"), shown)
    name = said["name"]
    place = name.replace(" ", "/")
    groups = (_table(each, _GROUP, ("options",), shown) for each in said["groups"])
    return Program(
        id=place,
        name=name,
        call=said["call"],
        about=said.get("about", ""),
        example=said.get("example", ""),
        depth=name.count(" "),
        groups=tuple(
            OptionGroup(
                group.get("label", ""), tuple(_option(each, place, shown) for each in group["options"])
            )
            for group in groups
        ),
    )


def _option(given: Any, program: str, shown: str) -> Option:
    said = _table(given, _OPTION, ("names",), shown)
    names = tuple(map(str, said["names"]))
    if not names:
        raise _wrong(shown, f"an option of {program} has no name")
    kind, *limits = map(str, said.get("takes") or [""])
    if kind not in ("", "whole", "number") or len(limits) not in (0, 2):
        raise _wrong(shown, f"`takes` of {names[0]} is `whole` or `number`, and perhaps two limits")
    return Option(
        id=f"{program}/{names[0]}",
        names=names,
        choices=tuple(map(str, said.get("choices", ()))),
        kind=kind,
        limits=tuple(limits),
        required=said.get("required", False),
        repeats=said.get("repeats", False),
        **{key: said.get(key, "") for key in _TEXTS},
    )


def _table(given: Any, keys: Mapping[str, type], needed: tuple[str, ...], shown: str) -> dict[str, Any]:
    """A table with no other keys than these, each of its kind."""
    if not isinstance(given, dict):
        raise _wrong(shown, f"{given!r} is no object with the keys {', '.join(keys)}")
    for key, value in given.items():
        if key not in keys or not isinstance(value, keys[key]):
            raise _wrong(shown, f"the key {key!r} is not known, or has the wrong type")
    for key in needed:
        if key not in given:
            raise _wrong(shown, f"the key {key!r} is missing")
    return given


def _wrong(shown: str, what: str) -> SidelitError:
    return SidelitError(what, path=shown, line=1, hint="record it again")
