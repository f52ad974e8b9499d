"""The tables of the page on moving that say what to write instead of another library's names.

    python tools/tables.py          # write them into site/pages/moving.md from site/peers.toml
    python tools/tables.py --check  # end with an error if they are not as the data says

Each table stands below the heading that its source names, and takes the place of the first table there. What
is above the table stays as it is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
DATA, PAGE = ROOT / "site" / "peers.toml", ROOT / "site" / "pages" / "moving.md"


def sources() -> list[dict[str, Any]]:
    """The sources of the data, each with its rows."""
    found: list[dict[str, Any]] = tomllib.loads(DATA.read_text("utf-8"))["sources"]
    return found


def table(source: dict[str, Any]) -> str:
    """The table of a source.

    >>> row = {"theirs": "`a`", "verdict": "refused", "here": "`b`"}
    >>> print(table({"label": "Theirs", "rows": [row]}))
    | Theirs | verdict | Shardbook |
    |---|---|---|
    | `a` | refused | `b` |
    """
    rows = [f"| {row['theirs']} | {row['verdict']} | {row['here']} |" for row in source["rows"]]
    return "\n".join([f"| {source['label']} | verdict | Shardbook |", "|---|---|---|", *rows])


def written(page: str, found: list[dict[str, Any]]) -> str:
    """The page with the tables of these sources.

    >>> row = {"theirs": "`a`", "verdict": "same", "here": "`a`"}
    >>> page = "## H\\n\\nText.\\n\\n| x |\\n|---|\\n| y |\\n\\nEnd"
    >>> print(written(page, [{"heading": "H", "label": "T", "rows": [row]}]))
    ## H
    <BLANKLINE>
    Text.
    <BLANKLINE>
    | T | verdict | Shardbook |
    |---|---|---|
    | `a` | same | `a` |
    <BLANKLINE>
    End

    :raises ValueError: if the page has no such heading with a table
    """
    for source in found:
        start = page.find(f"## {source['heading']}\n")
        match = re.compile(r"^\|.*\n(?:\|.*(?:\n|\Z))+", re.MULTILINE).search(page, max(start, 0))
        end = page.find("\n## ", start + 1)
        if start < 0 or match is None or -1 < end < match.start():
            raise ValueError(f"{PAGE.name} has no heading '{source['heading']}' with a table below it")
        page = f"{page[: match.start()]}{table(source)}\n{page[match.end() :]}"
    return page


def main(arguments: list[str]) -> int:
    page = PAGE.read_text("utf-8")
    wanted = written(page, sources())
    if "--check" in arguments:
        if page != wanted:
            print(f"{PAGE} is not as {DATA} says; run python tools/tables.py")
        return int(page != wanted)
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
