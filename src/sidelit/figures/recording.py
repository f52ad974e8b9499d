"""# Recordings

> A file of numbers that a program wrote, and how to make it again.

No number of a figure is typed by hand. It is read from a recording: a JSON object with the command that wrote
it, the commit, the machine and the versions it ran on, and under `data` what it found.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidelit import reading
from sidelit.errors import SidelitError


@dataclass(frozen=True, slots=True)
class Recording:
    """What one command found, and where; `versions` are pairs of a name and a version."""

    name: str
    command: str
    commit: str
    machine: str
    versions: tuple[tuple[str, str], ...]
    data: Any


def read(path: Path, shown: str) -> Recording:
    """Read a recording; every mistake in it is a `SidelitError` with its line."""
    found = reading.parsed(path, shown)
    if not isinstance(found, dict):
        raise SidelitError("a recording is an object with the key `data`", path=shown, line=1)
    for key, kind in (("command", str), ("commit", str), ("machine", str), ("versions", dict)):
        if not isinstance(found.get(key), kind):
            what = f"the key {key!r} is missing" if key not in found else f"{key!r} has the wrong type"
            raise SidelitError(what, path=shown, line=1, hint="record it again")
    if "data" not in found:
        raise SidelitError("the key 'data' is missing", path=shown, line=1, hint="record it again")
    versions = tuple((str(name), str(version)) for name, version in sorted(found["versions"].items()))
    return Recording(path.stem, found["command"], found["commit"], found["machine"], versions, found["data"])
