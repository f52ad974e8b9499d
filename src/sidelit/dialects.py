"""# What docstrings are written in

> Markdown, reST, the sections of Google or NumPy: said for a site, or for a part of it.
"""

from __future__ import annotations

from sidelit.tables import Table

# `auto` looks at each docstring.
DIALECTS = ("markdown", "rest", "google", "numpy", "auto")


def read(table: Table, usual: str) -> str:
    """The `dialect` of a table of the configuration; `usual` where it names none."""
    said: str = table.take("dialect", str, usual)
    if said not in DIALECTS:
        hint = f"the press reads {', '.join(DIALECTS)}"
        raise table.error(f"unknown dialect {said!r}", "dialect", hint=hint)
    return said
