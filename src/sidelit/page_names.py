"""# What a page is called

> A page keeps its name while its file moves, and its name decides its address.

The name of a page files its translations, its published ids and its citations. So it must outlast the folder
that its source lies in today. `site/sidelit.toml` gives it, or else it is the stem of the file:

| `source` | beside it | name | address |
|---|---|---|---|
| `unit.py` | | `book/unit` | `unit.html` |
| `zero/unit.py` | | `book/unit` | `unit.html` |
| `zero/hooks.py` | `name = "layer"` | `book/layer` | `layer.html` |
| `zero/hooks.py` | `output = "a/b.html"` | `book/hooks` | `a/b.html` |
| `zero/hooks.py` | `was = ["layer"]` | `book/hooks` | `hooks.html`; `layer.html` forwards there |

The first word is the package, here the folder `book` below the source root: two packages may have a chapter
of one name. A page of prose is not moved for the sake of imports, and readers know its folder; so its name is
its path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from sidelit import reading
from sidelit.tables import Table

# The folder of the pages of labs.
LABS = "labs"


@dataclass(frozen=True, slots=True)
class Former:
    """A name that a page had before, and the address that it had with it.

    :param told: true when `was` says so. Otherwise it is the name that the page's path would give, under
        which older sites have filed it.
    """

    name: str
    output: str
    told: bool = True


@dataclass(frozen=True, slots=True)
class Called:
    """What a page is called: its name, its address, and what it was called before."""

    name: str
    output: str
    former: tuple[Former, ...] = ()


def chapter(table: Table, source: PurePosixPath, given: str, below: PurePosixPath, folder: str) -> Called:
    """Name the page of a source.

    :param given: its path as the configuration writes it.
    :param below: its path below the source root.
    :param folder: the folder of the site that the pages of its part lie in.
    """
    package = below.parts[0] if len(below.parts) > 1 else ""
    name = _name(table, given, source.stem)
    own = _placed(name, folder)
    output = _output(table, given, own)
    called = str(PurePosixPath(package, name))
    told = [
        Former(str(PurePosixPath(package, old)), _placed(old, folder)) for old in _was(table, given, name)
    ]
    by_path = (
        Former(
            str(below.with_suffix("")), _placed(str(PurePosixPath(given).with_suffix("")), folder), told=False
        ),
        Former(called, own, told=False),
    )
    known = {(called, output), *((each.name, each.output) for each in told)}
    quiet = [each for each in by_path if (each.name, each.output) not in known]
    return Called(called, output, (*told, *quiet))


def prose(table: Table, given: str, folder: str) -> Called:
    """Name a page of Markdown, whose path below the folder of the pages is `given`."""
    name = _name(table, given, str(PurePosixPath(given).with_suffix("")))
    output = _output(table, given, _placed(name, ""))
    told = (Former(f"{folder}/{old}", _placed(old, "")) for old in _was(table, given, name))
    return Called(f"{folder}/{name}", output, tuple(told))


def lab(table: Table, stem: str) -> Called:
    """Name the page of a lab: the number that its file begins with is for the folder, not for the address."""
    name = _name(table, stem, re.sub(r"^\d+_", "", stem))
    told = (Former(f"{LABS}/{old}", _placed(old, LABS)) for old in _was(table, stem, name))
    return Called(f"{LABS}/{name}", _output(table, stem, _placed(name, LABS)), tuple(told))


def _placed(name: str, folder: str) -> str:
    """The address of a page of this name: a dot in it is a part of the name."""
    return str(PurePosixPath(folder, f"{name}.html"))


def _name(table: Table, given: str, stem: str) -> str:
    name = table.take("name", str, stem)
    # A file may be called anything; only a name that somebody chose is held to the rules.
    return name if name == stem else _sound(table, given, "name", name)


def _was(table: Table, given: str, name: str) -> list[str]:
    said = table.take("was", list, [])
    names = [_sound(table, given, "was", each if isinstance(each, str) else "") for each in said]
    for each in names:
        if each == name or names.count(each) > 1:
            what = f"the page {name!r} is called so now" if each == name else f"`was` names {each!r} twice"
            raise table.error(what, given, hint=f"remove {each!r} from `was`")
    return names


def _sound(table: Table, given: str, key: str, name: str) -> str:
    """Refuse what could not be a path without a suffix: the name is one, of the page and of its catalogue."""
    if not reading.stays_inside(name) or name.endswith((".html", ".py", ".md")):
        what = f"{name!r} in `{key}` is not the name of a page"
        hint = 'write a stem, as in "unit", or a path without a suffix, as in "zero/unit"'
        raise table.error(what, given, hint=hint)
    return name


def _output(table: Table, given: str, own: str) -> str:
    output = table.take("output", str, own)
    if output != own and not (reading.stays_inside(output) and output.endswith(".html")):
        what = f"{output!r} in `output` is not the address of a page"
        raise table.error(what, given, hint='write a path in the site, as in "zero/unit.html"')
    return output
