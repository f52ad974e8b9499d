"""Lints for symbols: unbound ones, names that no code has, rows that no formula needs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from press.project import SAMPLE, edit, sidelit
from sidelit.lint import lint
from sidelit.text import code, markup

PROGRAM = lint.program(
    line.html for line in code.highlighted("def f(size, plan):\n    count = 3\n    return plan.peak\n")
)


def found(text: str) -> list[tuple[str, int]]:
    tokens = markup.parse(text, path="page.md")
    return [(rule, error.line or 0) for rule, error in lint.lint_symbols(tokens, PROGRAM)]


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        ("Let $x$ be.\n", []),
        ("Let $x$ be.\n\n:notation $x$: a number\n", []),
        ("Let $x + y$ be.\n\n:notation $x$: a number\n", [("unbound-symbol", 1)]),
        ("All.\n\n$$\nx\n+ y_1\n$$\n\n:notation $x$: a number\n", [("unbound-symbol", 3)]),
        ("$x$\n\n:notation $x$: less than $z$\n", [("unbound-symbol", 3)]),
        (r"$\sum_i x_i + \max_{j} x_j$ and $O(x)$" + "\n\n:notation $x$: numbers\n", []),
        ("$x + y + y y$\n\n:notation $x$: a number\n", [("unbound-symbol", 1)]),
        (r"$e^x + \int x\,dx$ and $x^T$ in $\mathbb{R}^x$" + "\n\n:notation $x$: numbers\n", []),
        (r"$e x + d x + x_T$" + "\n\n:notation $x$: numbers\n", [("unbound-symbol", 1)] * 3),
        ("$x_k$ of step $k$\n\n:notation $x_k$: numbers\n", []),
        ("Let it be.\n\n:notation $x$: a number\n", [("unused-symbol", 3)]),
        ("$x$\n\n:notation $x$: one\n:notation $x$: two\n", [("symbol-twice", 4)]),
        ("$x$\n\n:notation $x$: `size`, a number\n", []),
        ("$x$\n\n:notation $x$: `plan.peak`, a number\n", []),
        ("$x$\n\n:notation $x$: `count`, a number that begins a line\n", []),
        ("$x$\n\n:notation $x$: `Plan.peak`, a number\n", []),
        ("$x$\n\n:notation $x$: `width`, a number\n", [("unknown-name", 3)]),
        ("$x$\n\n:notation $x$: `plan.size`, a number\n", [("unknown-name", 3)]),
        ("$x$\n\n:notation $x$: a number, see `width`\n", []),
    ],
)
def test_what_is_found(text: str, findings: list[tuple[str, int]]) -> None:
    assert found(text) == findings


def test_the_command_says_where_and_what_to_do(tmp_path: Path) -> None:
    sample = Path(shutil.copytree(SAMPLE, tmp_path / "sample"))
    edit(
        sample / "site/pages/index.md",
        "# The sample\n",
        "# The sample\n\nLet $x$ and $y$ be.\n\n:notation $x$: one\n",
    )
    done = sidelit("lint", cwd=sample, code=1)
    place = "site/pages/index.md:3: unbound-symbol: no `:notation` of this page says what $y$ means"
    assert f"{place}; add `:notation $y$: what it means`" in done.stderr
