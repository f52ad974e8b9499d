"""Which tests a short run leaves to a longer one.

`make test` leaves those of the mark `full` to `.ci/run`, which leaves those of `matrix` to `make test-all`.

    [matrix]                                      # the table names the mark
    "tests/book/train/test_loop.py" = [           # the file
        "test_the_plan",                          # a test, with all its cases
        "test_a_step[3-bf16]",                    # one case of a test
        "test_values[late-*",                     # all cases that begin so; `*` alone is the whole file
    ]
    [now]
    "tests/book/train/test_loop.py" = ["test_the_plan[4]"]

What says more of a test's name wins: `make test` tries the case of `now` though the others of its test wait.
These are the tests that take time: the other cases of a claim, and single tests whose claim is then proved
by the longer run alone. A test that is quick stands in no table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Table = Mapping[str, Mapping[str, list[str]]]
MARKS = {"now": [], "full": ["full"], "matrix": ["full", "matrix"]}


def table() -> Table:
    """The table of this project."""
    return tomllib.loads(Path(__file__).with_name("later.toml").read_text("utf-8"))


def fits(name: str, test: str) -> bool:
    """Whether a name of the table names a test."""
    if name.endswith("*"):
        return test.startswith(name[:-1])
    return name in (test, test.partition("[")[0])


def marks(nodeid: str, table: Table) -> list[str]:
    """The marks of a test."""
    file, _, test = nodeid.partition("::")
    fitting = [(name, kind) for kind in table for name in table[kind].get(file, ()) if fits(name, test)]
    return MARKS[max(fitting, key=lambda each: len(each[0]))[1]] if fitting else []


def gone(nodeids: Iterable[str], table: Table) -> list[str]:
    """What the table names, and no test is called."""
    tests: dict[str, list[str]] = {}
    for file, _, test in (nodeid.partition("::") for nodeid in nodeids):
        tests.setdefault(file, []).append(test)
    return [
        f"{file}::{name}"
        for files in table.values()
        for file, every in files.items()
        for name in every
        if not any(fits(name, test) for test in tests.get(file, ()))
    ]
