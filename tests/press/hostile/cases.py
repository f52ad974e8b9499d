"""The hostile inputs: files of data that say what is typed, and where.

A text of a case is `text`, or it is put together: `begin`, then `again` so many `times`, then `end`, then
`close` as often as `again`, then `after`. `numbered` stands for `again` with a number in it, `growing` for
one that is longer each time, `stair` for lines of which each begins with one `step` more. `parts` are several
of these.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parents[1] / "data" / "hostile"

Case = dict[str, Any]


def read(name: str) -> dict[str, Case]:
    """The cases of one file, by their names."""
    found = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))["case"]
    cases = {str(case["name"]): case for case in found}
    assert len(cases) == len(found), f"two cases of {name} have one name"
    return cases


def file_names() -> list[str]:
    """The names of files."""
    return list(tomllib.loads((FOLDER / "files.toml").read_text(encoding="utf-8"))["names"])


def text(case: Case) -> str:
    """What is typed."""
    if "text" in case:
        return str(case["text"])
    if "parts" in case:
        return "".join(part["again"] * part["times"] for part in case["parts"])
    times = case.get("times", 1)
    if "stair" in case:
        lines = [case.get("step", "    ") * number + case["stair"] for number in range(times)]
        return "\n".join([*lines, case.get("step", "    ") * times + case.get("last", case["stair"])]) + "\n"
    if "numbered" in case:
        middle = "".join(case["numbered"].replace("{}", str(number)) for number in range(times))
    elif "growing" in case:
        middle = "a".join(case["growing"] * number for number in range(times))
    else:
        middle = case.get("again", "") * times
    ends = case.get("end", "") + case.get("close", "") * times + case.get("after", "")
    return str(case.get("begin", "") + middle + ends)
