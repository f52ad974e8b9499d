"""# Who wrote it

> `CITATION.cff` names the authors for every tool that reads one, so the press reads them there too.

The configuration may name them instead (`authors`), for a project without such a file. Without either they
are "The … authors".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sidelit import reading
from sidelit.config import Config
from sidelit.errors import SidelitError

FILE = "CITATION.cff"


@dataclass(frozen=True, slots=True)
class Author:
    """A person, with a family name, or a group, whose whole name is `name`."""

    name: str
    family: str = ""
    given: str = ""


@dataclass(frozen=True, slots=True)
class Credits:
    """Who wrote a project, and what else its `CITATION.cff` says of the whole of it."""

    authors: tuple[Author, ...]
    doi: str = ""
    version: str = ""
    date: str = ""


def read(config: Config) -> Credits:
    """Read the authors of a project.

    Raises `SidelitError` with the line when `CITATION.cff` is not what its format asks for.
    """
    path = config.project / FILE
    said = _parsed(path) if path.is_file() else {}
    date = _text(said.get("date-released", ""))
    if date and not re.fullmatch(r"\d{4}(-\d{2}){0,2}", date):
        raise _wrong(path, f"{date[:40]!r} in `date-released` is no day; write it as 2026-01-31")
    named = tuple(map(_named, config.authors)) or tuple(
        _author(each, path) for each in said.get("authors", ())
    )
    return Credits(
        authors=named or (Author(f"The {config.title} authors"),),
        doi=_text(said.get("doi", "")),
        version=_text(said.get("version", "")),
        date=date,
    )


def _parsed(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(reading.text(path))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SidelitError(f"not valid YAML: {error.problem}", path=FILE, line=line) from None
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        raise SidelitError("cannot be read as YAML", path=FILE, line=1) from None
    if not isinstance(data, dict) or not isinstance(data.get("authors", []), list):
        raise _wrong(path, "not a citation file: it needs a list of `authors`")
    return data


def _author(said: object, path: Path) -> Author:
    """An entry of the list: a person has `family-names` and `given-names`, anything else a `name`."""
    given = {str(key): _text(value) for key, value in said.items()} if isinstance(said, dict) else {}
    family = " ".join(filter(None, (given.get("name-particle"), given.get("family-names"))))
    if not family:
        name = given.get("name") or given.get("given-names") or given.get("alias")
        if not name:
            raise _wrong(path, "an author needs a `name`, or `family-names` and `given-names`")
        return Author(name)
    first = given.get("given-names", "")
    return Author(f"{first} {family}".strip(), family, first)


def _text(value: object) -> str:
    """A word, a number or a day; a list has no place there, and one of aliases could be without an end."""
    return "" if isinstance(value, (list, dict)) else str(value)


def _named(name: str) -> Author:
    """A name of the configuration: `Family, Given` is a person, all else is taken as it is."""
    family, comma, given = (part.strip() for part in name.partition(","))
    return Author(f"{given} {family}", family, given) if comma and given else Author(name)


def _wrong(path: Path, what: str) -> SidelitError:
    lines = reading.text(path).splitlines()
    line = next((number for number, text in enumerate(lines, 1) if re.match("authors", text)), 1)
    return SidelitError(what, path=FILE, line=line, hint="see https://citation-file-format.github.io")
