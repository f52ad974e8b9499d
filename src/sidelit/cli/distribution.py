"""# What a distribution says of itself

> Its name, its description and where its packages lie, in whichever of three files says so.

Nothing is run: of `setup.py` counts what it says in so many words.
"""

from __future__ import annotations

import ast
import configparser
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from sidelit.config.toml import read_toml
from sidelit.errors import SidelitError
from sidelit.files import assets
from sidelit.source import decoding, syntax


def told(folder: Path) -> Mapping[str, object]:
    """Its metadata: in `pyproject.toml`, else in `setup.cfg`, else in `setup.py`."""
    said = _pyproject(folder)
    for table in (said.get("project"), _table(said, "tool", "poetry")):
        if isinstance(table, dict) and "name" in table:
            return table
    old = _setup_cfg(folder)
    if old.has_option("metadata", "name"):
        return dict(old["metadata"])
    plain = {name: _constant(value) for name, value in _set_up(folder).items()}
    return {name: value for name, value in plain.items() if isinstance(value, str)}


def source_root(folder: Path) -> str:
    """The folder that setuptools looks for packages in, where it is told of one; `.` is the project's.

    Nothing is said where there are several, or none of them is in the project.
    """
    said = {PurePosixPath(each).as_posix() for each in _places(folder) if isinstance(each, str) and each}
    found = [each for each in said if each == "." or (assets.stays_inside(each) and (folder / each).is_dir())]
    return found[0] if len(found) == 1 else ""


def _places(folder: Path) -> Iterator[object]:
    """What is said of it. A mapping names the folder of each package, and under no name that of all."""
    setuptools = _table(_pyproject(folder), "tool", "setuptools")
    yield _table(setuptools, "package-dir").get("")
    yield from _listed(_table(setuptools, "packages", "find").get("where"))
    old = _setup_cfg(folder)
    pairs = (line.partition("=") for line in old.get("options", "package_dir", fallback="").splitlines())
    yield from (place.strip() for name, _, place in pairs if not name.strip())
    yield from old.get("options.packages.find", "where", fallback="").split()
    given = _set_up(folder)
    places = _constant(given.get("package_dir"))
    yield places.get("") if isinstance(places, dict) else None
    found = given.get("packages")
    if isinstance(found, ast.Call):
        yield from (_constant(each) for each in found.args[:1])
        yield from (_constant(each.value) for each in found.keywords if each.arg == "where")


def _table(said: Any, *names: str) -> Mapping[str, Any]:
    for name in names:
        said = said.get(name) if isinstance(said, dict) else None
    return said if isinstance(said, dict) else {}


def _listed(said: object) -> list[object]:
    return said if isinstance(said, list) else [said]


def _pyproject(folder: Path) -> Mapping[str, Any]:
    path = folder / "pyproject.toml"
    return read_toml(path, path.name) if path.is_file() else {}


def _setup_cfg(folder: Path) -> configparser.RawConfigParser:
    old = configparser.RawConfigParser()
    with contextlib.suppress(configparser.Error, OSError, UnicodeDecodeError):
        old.read(folder / "setup.cfg", "utf-8")
    return old


def _set_up(folder: Path) -> Mapping[str, ast.expr]:
    """What `setup.py` gives to `setup`."""
    path = folder / "setup.py"
    try:
        tree = syntax.tree(decoding.read_source(path, path.name)[0])
    except (SidelitError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    called = next((each for each in calls if ast.unparse(each.func).rpartition(".")[2] == "setup"), None)
    return {each.arg: each.value for each in called.keywords if each.arg} if called else {}


def _constant(value: ast.expr | None) -> object:
    try:
        return ast.literal_eval(value) if value else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
