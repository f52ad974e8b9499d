"""# The tests that prove a chapter

> A chapter names its tests, as pytest would be told to run them.

    proves = ["tests/ring.py", "tests/ring.py::test_put", "tests/many.py::TestMany::test_last"]

Here the names are read; [another stage](site/proved.py) finds the tests.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from sidelit.tables import Table


@dataclass(frozen=True, slots=True)
class Proof:
    """One test, or all tests of a file.

    :param path: the file, from the project folder.
    :param name: a function, a class, or `Class::method`; empty for the whole file.
    :param line: where the configuration names it.
    """

    path: str
    name: str = ""
    line: int = 1

    def __str__(self) -> str:
        """The name by which pytest runs it."""
        return f"{self.path}::{self.name}" if self.name else self.path


def read(table: Table) -> tuple[Proof, ...]:
    """Take `proves` from the entry of a chapter."""
    return tuple(_proofs(table))


def _proofs(table: Table) -> Iterator[Proof]:
    seen: set[str] = set()
    for said in table.take("proves", list, []):
        if not isinstance(said, str):
            raise table.error("`proves` must be a list of strings", "proves")
        path, _, name = said.partition("::")
        place = PurePosixPath(path)
        line = table.line(said)
        if place.suffix != ".py" or str(place) != path or place.is_absolute() or ".." in place.parts:
            hint = 'name a file from the project folder, as in "tests/test_ring.py::test_put"'
            raise table.at(line, f"{said!r} in `proves` is not the name of a test", hint)
        if said in seen:
            raise table.at(line, f"`proves` names {said!r} twice")
        seen.add(said)
        yield Proof(path, name, line)


def left_out(run: str | None, proofs: Sequence[Proof]) -> str:
    """The first file that a command gives to pytest without its being among the proofs, if there is one."""
    try:
        words = shlex.split(run or "")
    except ValueError:
        return ""
    files = [word.partition("::")[0] for word in words if "pytest" in words]
    known = {proof.path for proof in proofs}
    return next((path for path in files if path.endswith(".py") and path not in known), "")
