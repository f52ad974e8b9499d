"""Lines, tables and drawings as a reader sees them: nothing is cut, broken, or lies on something else.

`python tools/layout_faults.py` looks at all pages; here a handful stands for them: the widest tables, code,
formulas, figures beside words, and the headings of Japanese and Chinese.
"""

from __future__ import annotations

import pytest

import layout_faults
from built import NARROW, WIDE, Open, show

pytestmark = pytest.mark.full

PAGES = [
    *("api.html", "moving.html", "measured.html", "unit.html", "one_step.html", "labs/fifty_lines.html"),
    *("ja/index.html", "ja/api.html", "ja/checkpointing.html", "ja/pay_with_time.html"),
    *("zh/index.html", "zh/api.html", "zh/formats.html"),
]
# The lists of a chapter have lines of a few words.
FEW = 0.03


@pytest.mark.cases(ci=5)
@pytest.mark.parametrize("name", PAGES)
def test_no_table_is_cut_and_no_line_is_broken_where_it_hurts(visit: Open, name: str) -> None:
    page = visit(name)
    for width in (WIDE, NARROW):
        found = layout_faults.faults(show(page, width))
        wrong = [(kind, text) for kind, text in found if kind not in layout_faults.ALLOWED]
        assert wrong == [], width
        assert layout_faults.short_share(found) < FEW, width


def test_what_is_wrong_is_seen(visit: Open) -> None:
    page = visit("ja/index.html", width=NARROW)
    page.evaluate(
        """() => {
            const main = document.querySelector("main");
            main.insertAdjacentHTML("beforeend", `
                <p><b style="display: block">x</b>：後ろの言葉が続きます</p>
                <pre class="sample" style="white-space: pre-wrap">${"    word ".repeat(30)}</pre>
                <div class="scroll" style="background: none"><p style="width: 999px">x</p></div>
                <table><tr><td style="width: 1px">0.699–0.791</td></tr></table>`);
        }"""
    )
    kinds = {kind for kind, _ in layout_faults.faults(page)}
    assert kinds >= {"line begins with a sign", "sample at column 0", "table cut", "number broken"}
