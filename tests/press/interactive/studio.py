"""A small project with one stepper, `put`: a recorded run of two ranks, and the same run without a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from press.project import edit, sidelit

Change = Callable[[Path], None]

WORDS = """\
title = "Putting an item"
caption = "A ring of `Ring`."
data = "put.json"

[kinds]
"items" = "items of the ring"
"rest" = "all else"

[states]
EMPTY = "empty"
ASKED = "asked for"
FULL = "full"

[notes]
sum = "the sum is {rank_0} and {rank_1}"
lost = "{count} items are lost, first {what}"

[scenes]
make = "A ring is made."
put = "An item goes round."

[twins.no_put]
data = "no_put.json"
label = "Without the item"
about = "Nothing is put: {missing} items are missing."
"""
LESSON = """\
# Steps of a ring
> A ring is filled.
:minutes: 5
:aim: say what a ring holds

::: stepper put
:::

::: moment put make
:::
"""
COURSE = """[course]
label = "Course"
lessons = [{ source = "lessons/steps.md" }]

[[parts]]
number"""
MAKE = "sample/ring.py#Ring.__init__"
PUT = "sample/ring.py#Ring.put"
APPEND = "self._items.append(item)"
DEQUE = "self._items: deque[object] = deque(maxlen=size)"
STEPS: list[dict[str, Any]] = [
    {"at": MAKE, "line": DEQUE, "unit": None, "states": ["EMPTY", "EMPTY"], "bytes": [[0, 10], [0, 20]]},
    {"at": MAKE, "line": DEQUE, "unit": "b", "states": ["EMPTY", "ASKED"], "bytes": [[0, 10], [0, 20]]},
    {"at": PUT, "line": APPEND, "unit": "b", "states": ["EMPTY", "ASKED"], "bytes": [[50, 10], [0, 20]]},
    {"at": PUT, "line": APPEND, "unit": "a", "states": ["FULL", "FULL"], "bytes": [[50, 10], [80, 20]]},
]
STEPS[2] |= {"payload": {"bytes": 1500, "from": 1}, "sum": [3, 4]}
STEPS[3] |= {"payload": {"bytes": 900, "both": True}}


def run() -> dict[str, Any]:
    """What is recorded, to be changed as a test wants it."""
    return {
        "kinds": ["items", "rest"],
        "units": [{"name": "b"}, {"name": "a"}],
        "scenes": [{"name": "make", "first": 0}, {"name": "put", "first": 2}],
        "events": [dict(event) for event in STEPS],
    }


def broken() -> dict[str, Any]:
    """The same run without the line that puts an item."""
    found = {**run(), "values": {"missing": 2}}
    found["events"][2] |= {"removed": True, "sum": [6, 8], "lost": {"count": 2, "what": "x"}}
    return found


def furnish(project: Path) -> Path:
    """Give a project the stepper `put` in a lesson of its own; return the folder of its site."""
    site = project / "site"
    for name in ("steppers", "recorded", "lessons"):
        (site / name).mkdir(exist_ok=True)
    (site / "steppers" / "put.toml").write_text(WORDS, "utf-8")
    (site / "lessons" / "steps.md").write_text(LESSON, "utf-8")
    edit(site / "sidelit.toml", "[[parts]]\nnumber", COURSE)
    record(site, "put", run())
    record(site, "no_put", broken())
    return site


QUESTION = """\
title = "How much a ring keeps"
caption = "Counted in `Ring`."
data = "rings.json"

[axes]
size = "places of the ring"
puts = "items that were put"

[rows]
kept = "kept"
lost = "forgotten"
share = "part that is kept"

[parts]
old = "older items"
new = "the newest item"

[formats]
size = "number"
puts = "number"
rows = "bytes"
share = "percent"
"""


def table() -> dict[str, Any]:
    """The answers for two sizes and three numbers of items."""
    return {
        "axes": [
            {"name": "size", "values": [1, 4], "start": 1},
            {"name": "puts", "values": [1, 2, 9], "start": 0},
        ],
        "rows": ["kept", "lost", "share"],
        "parts": ["old", "new"],
        "answers": [
            [[[0, 1], [0, 0], [0, 1]], [[0, 1], [1, 0], [0, 0.5]], [[0, 1], [8, 0], [0, 0.111]]],
            [[[0, 1], [0, 0], [0, 1]], [[1, 1], [0, 0], [0.5, 0.5]], [[3, 1], [5, 0], [0.333, 0.111]]],
        ],
    }


def ask(project: Path) -> Path:
    """Give a project the sliders `rings` on a page of prose; return the folder of its site."""
    site = project / "site"
    for name in ("sliders", "recorded"):
        (site / name).mkdir(exist_ok=True)
    (site / "sliders" / "rings.toml").write_text(QUESTION, "utf-8")
    record(site, "rings", table())
    with (site / "pages" / "notes" / "reading.md").open("a", encoding="utf-8") as notes:
        notes.write("\n::: sliders rings\n:::\n")
    return site


def record(site: Path, name: str, data: object) -> None:
    """Write a recording."""
    head = {"command": f"make record ARGS={name}", "commit": "0" * 40, "machine": "two cores"}
    text = json.dumps({**head, "versions": {"python": "3.11"}, "data": data}, sort_keys=True)
    (site / "recorded" / f"{name}.json").write_text(text, "utf-8")


def built(project: Path, page: str) -> str:
    """A page of the project, which is built for that."""
    sidelit("build", cwd=project)
    return (project / "build/site" / page).read_text(encoding="utf-8")


def refused(project: Path) -> str:
    """What the build says of a mistake; the linter says the same."""
    told = sidelit("build", cwd=project, code=1).stderr.strip()
    assert told in sidelit("lint", cwd=project, code=1).stderr.replace(": directive: ", ": ")
    return told


def change(name: str, how: Callable[[dict[str, Any]], object]) -> Change:
    """Change a recording."""

    def changed(project: Path) -> None:
        path = project / "site/recorded" / f"{name}.json"
        found = json.loads(path.read_text("utf-8"))
        how(found["data"])
        path.write_text(json.dumps(found), "utf-8")

    return changed


def words(usual: str, old: str, new: str, file: str = "") -> Change:
    """Change what is written, in the usual file or in another."""
    return lambda project: edit(project / (file or usual), old, new)
