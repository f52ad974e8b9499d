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
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from sidelit.config.config import Config
from sidelit.errors import SidelitError
from sidelit.figures import figure
from sidelit.site.data_pages import Around, DataTable
from sidelit.site.edition import Page
from sidelit.site.model import TocEntry
from sidelit.site.search.places import WORDS, SearchPlace

FILE = "commands.json"
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


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a program, or one of its arguments."""

    id: str
    names: tuple[str, ...]
    value: str
    """What stands for its value."""
    choices: tuple[str, ...]
    kind: str
    """`whole` or `number`; empty where its value is another one, or none."""
    limits: tuple[str, ...]
    default: str
    help: str
    required: bool
    repeats: bool


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options that belong together."""

    label: str
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A program or a subcommand, and its options. The texts are in the language of the sources."""

    id: str
    name: str
    call: str
    about: str
    example: str
    depth: int
    """0 for a program, 1 for its subcommands."""
    groups: tuple[OptionGroup, ...]


@dataclass(frozen=True, slots=True)
class Programs(DataTable):
    """The programs of a project, each before its subcommands."""

    programs: tuple[Program, ...]

    def ids(self) -> Iterator[str]:
        """One for each program, and one for each of its options."""
        for program in self.programs:
            yield program.id
            yield from (option.id for group in program.groups for option in group.options)

    def entries(self, around: Around) -> tuple[Program, ...]:
        """The programs, on every page the same."""
        return self.programs

    def places(self, shown: Page) -> Iterator[SearchPlace]:
        """Programs by their names, and options by theirs.

        The program of an option is no second name of it.
        """
        foreign = shown.source_lang != shown.lang
        for program in self.programs:
            yield SearchPlace(program.id, program.name, WORDS, program.about, program.example, foreign)
            for option in (option for group in program.groups for option in group.options):
                title = " · ".join((*option.names, f"{program.name} …"))
                yield SearchPlace(
                    option.id, title, WORDS, " ".join((option.help, *option.choices)), "", foreign
                )

    def toc(self) -> Iterator[TocEntry]:
        """The programs by their names."""
        for each in self.programs:
            yield TocEntry(each.id, Markup("<code>{}</code>").format(each.name), each.depth)


def programs(config: Config) -> Programs:
    """Read the programs of a project.

    Raises `SidelitError` if the recording is not there, or is not as it should be.
    """
    path = config.folder / figure.RECORDED / FILE
    shown = config.shown(path)
    if not path.is_file():
        (listing, *_) = (page for page in config.prose if page.append == "commands")
        what = f"the page {listing.name} lists commands, and there is no {shown}"
        raise SidelitError(what, path=listing.source, line=1, hint="record them")
    found = figure.read_recording(path, shown).data
    if not isinstance(found, list):
        raise _wrong(shown, "`data` is a list of programs")
    made = Programs(tuple(_program(each, shown) for each in found))
    if twice := [one for one, count in Counter(made.ids()).items() if count > 1]:
        raise _wrong(shown, f"there are two of {', '.join(twice)}")
    return made


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
