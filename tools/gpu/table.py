"""What the kit has found, as a table to read, and its place in the book.

python -m tools.gpu.table          # print what was recorded on the page "On a GPU"
python -m tools.gpu.table --check  # end with an error if the page is not as the recordings say
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tools.gpu.kit import DIFFERS, HOLDS, NOT_TRIED, ROOT, SHOWS

PAGE, RECORDED = ROOT / "site" / "pages" / "gpu.md", ROOT / "site" / "recorded"
SECTION = re.compile(r"(?<=^## What did it find\?\n\n).*?(?=\n\n## )", re.DOTALL | re.MULTILINE)
NOT_YET = "The kit has not run on a GPU yet, so this page has no figures."
MARKS = {HOLDS: "holds", DIFFERS: "DIFFERS", SHOWS: "", NOT_TRIED: "not tried"}
WIDTH = 110


def table(parts: Sequence[dict[str, Any]], found: dict[str, Any] | None = None, *, head: bool = True) -> str:
    """Each part with its rows; above them, what they were found with."""
    lines = [*heading(found)] if found else []
    for part in parts:
        if head:
            lines += ["", part["name"]]
        lines += [line for row in part["rows"] for line in lines_of(row)]
    return "\n".join(lines)


def heading(found: dict[str, Any]) -> list[str]:
    """The card, the versions, the command, and the totals."""
    card, versions = found["card"], found["versions"]
    size = f", {card['bytes'] / 2**30:.0f} GiB" if "bytes" in card else ""
    lines = [
        f"{card['count']} x {card['name']}{size}; {found['machine']}",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        f"{found['command']}  ({found['commit'][:12]}, {found['date']})",
    ]
    if found["missing"]:
        lines.append(f"not installed: {', '.join(found['missing'])}")
    return [*lines, totals(found)]


def totals(found: dict[str, Any]) -> str:
    """How much holds, differs, and could not be tried."""
    count = Counter(row["status"] for part in found["parts"] for row in part["rows"])
    return (
        f"{count[HOLDS]} hold, {count[DIFFERS]} differ, {count[NOT_TRIED]} not tried, {count[SHOWS]} figures"
    )


def lines_of(row: dict[str, Any]) -> list[str]:
    """One row: its name, whether it holds, its figures; and the reason below it."""
    figures = ", ".join(
        f"{name.replace('_', ' ')} {said(value)}" for name, value in row.get("figures", {}).items()
    )
    first = f"  {row['name']:<44} {MARKS[row['status']]:<10}{figures}".rstrip()
    return [first, *([f"      {row['why']}"] if "why" in row else [])]


def said(value: Any) -> str:
    """A figure in few digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return " to ".join(map(said, value))
    return str(value)


def printed(page: str, recordings: Sequence[dict[str, Any]]) -> str:
    """The page with what these recordings say; without any, that the kit has not run."""
    blocks = ["```text\n" + table(found["parts"], found) + "\n```" for found in recordings]
    return SECTION.sub(lambda _: "\n\n".join(blocks) or NOT_YET, page, count=1)


def main(arguments: list[str]) -> int:
    """Print the recordings on the page, or check that they stand there."""
    page = PAGE.read_text("utf-8")
    found = [json.loads(path.read_text("utf-8")) for path in sorted(RECORDED.glob("gpu-*.json"))]
    wanted = printed(page, found)
    if "--check" in arguments:
        if page != wanted:
            print(f"{PAGE} is not as {RECORDED}/gpu-*.json say; run python -m tools.gpu.table")
        return int(page != wanted)
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
