"""# Chapters by pattern

> A list of chapters may say `"*.py"` where it would name every file.

    [[parts]]
    label = "Layers"
    folder = "src/nets/layers"
    chapters = ["base.py", "**/*.py", "!old/*.py"]

A pattern stands for the files that it matches in the folder of its part: `__init__.py` first, the others by
their names, and those of subfolders behind them. What is listed already, here or in another part, it leaves
out, and so it does with what a pattern behind an exclamation mark matches. The page of such a file has its
path below the source root, so that many folders may each have their `utils.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath

from sidelit.tables import Table

_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Tree:
    """Where sources lie: the folder of the project, and what is listed by name or was matched already."""

    project: Path
    root: str
    """The source root, below the project."""
    taken: set[str] = field(default_factory=set)


def tree(project: Path, root: str, top: Table) -> Tree:
    """The sources of a project, with what its parts list by name."""
    found = Tree(project, root)
    # What has another form than it should have is refused by whoever takes it.
    parts = top.data.get("parts", [])
    for part in parts if isinstance(parts, list) else ():
        folder, entries = (
            (part.get("folder", root), part.get("chapters")) if isinstance(part, dict) else ("", [])
        )
        for entry in entries if isinstance(entries, list) else ():
            given = entry.get("source") if isinstance(entry, dict) else entry
            if isinstance(given, str) and not _PATTERN.search(given) and not given.startswith("!"):
                found.taken.add(str(PurePosixPath(str(folder).strip("/"), given)))
    return found


def chapters(table: Table, folder: str, tree: Tree) -> Iterator[Table]:
    """The entries of a part, each pattern as those that it stands for, at the place of the pattern.

    Raises `SidelitError` at a pattern that matches nothing, and at what is neither a table nor a string.
    """
    entries = table.take("chapters", list, [])
    not_these = [entry[1:] for entry in entries if isinstance(entry, str) and entry.startswith("!")]
    for number, entry in enumerate(entries):
        if isinstance(entry, dict):
            yield table.inside(entry, "chapters", number)
        elif not isinstance(entry, str):
            raise table.error("`chapters` must be a list of tables and patterns", "chapters")
        elif not entry.startswith("!"):
            for found in _matched(entry, folder, not_these, tree, table):
                yield table.inside(found, "chapters", number)


def _matched(
    entry: str, folder: str, not_these: Iterable[str], tree: Tree, table: Table
) -> Iterator[dict[str, str]]:
    base = tree.project / folder
    if not _PATTERN.search(entry):
        yield _entry(entry, folder, tree.root)
        return
    found = _below(base, entry, table)
    for each in not_these:
        found -= _below(base, each, table)
    seen = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    if not seen:
        hint = "a pattern is matched below the part's `folder`"
        raise table.error(f"no Python file in {folder}/ is matched by {entry!r}", entry, hint=hint)
    for path in sorted(seen, key=_order):
        place = str(PurePosixPath(folder, path.as_posix()))
        if place not in tree.taken:
            tree.taken.add(place)
            _check_name(place, table, entry)
            yield _entry(path.as_posix(), folder, tree.root)


def _below(folder: Path, pattern: str, table: Table) -> set[Path]:
    """The Python files that a pattern matches, by their paths below a folder."""
    if PurePath(pattern).anchor:
        hint = "a pattern is matched below the part's `folder`"
        raise table.error(f"{pattern!r} is no pattern: it begins at the root of the disk", pattern, hint=hint)
    try:
        found = [path for path in folder.glob(pattern) if path.suffix == ".py" and path.is_file()]
    except ValueError as error:
        raise table.error(f"{pattern!r} is no pattern: {error}", pattern) from None
    return {path.relative_to(folder) for path in found}


def _order(path: Path) -> list[tuple[bool, str]]:
    """What lies in a folder comes before what lies in its subfolders, and `__init__` before all."""
    *folders, name = path.parts
    return [*((True, each) for each in folders), (False, "" if name == "__init__.py" else name)]


def _entry(given: str, folder: str, root: str) -> dict[str, str]:
    """The entry that would name a file: its page has the path below the source root."""
    source = PurePosixPath(folder, given)
    below = source.relative_to(root) if source.is_relative_to(root) else source
    inside = below.with_suffix("")
    # The package is a part of the name already.
    name = PurePosixPath(*inside.parts[1:]) if len(inside.parts) > 1 else inside
    return {"source": given, "name": str(name), "output": f"{inside}.html"}


def _check_name(place: str, table: Table, entry: str) -> None:
    try:
        place.encode()
    except UnicodeEncodeError:
        what = f"the name of the file {ascii(place)[1:-1]} is not UTF-8"
        raise table.error(what, entry, hint="give it another name") from None
