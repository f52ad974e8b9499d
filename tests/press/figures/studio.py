"""A small project with one figure, to draw and to break."""

from __future__ import annotations

import json
from pathlib import Path

from sidelit.catalog import catalog
from sidelit.config import config
from sidelit.figures import drawing, figure
from sidelit.figures.drawing import Drawing

WORDS = """\
title = "Ring holds {most} at most"
description = "Two bars, one for each size."
caption = "The second ring is {ratio} times as large. See `Ring`."
data = ["rings.json"]
table = ["Size", "Bytes"]

[words]
size = "size {n}"
bytes = "bytes of a `Ring`"
"""

DRAWING = """\
{# Two bars. -#}
<svg viewBox="0 0 {{ width }} 120">
{% set x = linear(0, ceiling(data.rings[1].bytes), 80, width - 10) %}
{{ label(80, 14, word("bytes")) }}
{% for ring in data.rings %}
{% set y = 20 + 30 * loop.index0 %}
{{ label(70, y + 15, word("size", n=ring.size), at="end") }}
{{ bar(x(0), y, x(ring.bytes) - x(0), 20, loop.index) }}
{{ row(ring.size, size(ring.bytes)) }}
{% endfor %}
{{ axis_below(x, 90, size) }}
{{ say(most=size(data.rings[1].bytes), ratio=data.rings[1].bytes / data.rings[0].bytes) }}
{{ holds(data.rings[1].bytes > data.rings[0].bytes, "the second ring is larger") }}
</svg>
"""

RECORDED = {
    "command": "python -m sample.ring",
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "machine": "two cores",
    "versions": {"python": "3.11"},
    "data": [{"size": 4, "bytes": 400}, {"size": 9, "bytes": 900}],
}


def furnish(project: Path) -> Path:
    """Give a project the figure `bars`; return the folder of its site."""
    site = project / "site"
    for name in ("figures", "recorded"):
        (site / name).mkdir(exist_ok=True)
    (site / "figures" / "bars.toml").write_text(WORDS, "utf-8")
    (site / "figures" / "bars.svg").write_text(DRAWING, "utf-8")
    (site / "figures" / "bars.narrow.svg").write_text('{% include "bars.svg" %}\n', "utf-8")
    record(site, RECORDED)
    return site


def record(site: Path, recorded: object) -> None:
    """Write the recording that the figure is drawn from."""
    (site / "recorded" / "rings.json").write_text(json.dumps(recorded, indent=1), "utf-8")


def draw(project: Path, lang: str = "en") -> Drawing:
    """Draw the figure `bars` of a project in one language."""
    made = config.load(project / "site" / "sidelit.toml")
    figures = figure.read_all(made)
    catalogs = catalog.load([each.units() for each in figures], made.folder / "locale", made.languages[1:])
    return drawing.gallery(made, figures, catalogs).draw("bars", lang)
