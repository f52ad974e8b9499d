"""The figures of the home page are what its own formulas give."""

import re
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent / "site" / "pages" / "index.md"
PARAMETERS, RANKS = 7.5e9, 64


def rows() -> list[tuple[str, str, float]]:
    """Stage, formula and figure in GB of each row of the memory table."""
    row = re.compile(r"^\| ([\w -]+) \| [^|]+ \| \$([^$]+)\$ \| ([\d.]+) GB \|$", re.MULTILINE)
    return [
        (stage, formula, float(figure)) for stage, formula, figure in row.findall(HOME.read_text("utf-8"))
    ]


def test_the_table_has_all_stages() -> None:
    assert [stage for stage, *_ in rows()] == ["data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3"]


@pytest.mark.parametrize(("stage", "formula", "figure"), rows())
def test_each_figure_follows_from_its_formula(stage: str, formula: str, figure: float) -> None:
    terms = [re.fullmatch(r"(\d+)\\,\\Psi( / N_d)?", term) for term in formula.split(" + ")]
    assert all(terms), f"{stage}: a formula this test cannot read: {formula}"
    numbers = [int(term[1]) / (RANKS if term[2] else 1) for term in terms if term]
    assert round(sum(numbers) * PARAMETERS / 1e9, 1) == figure
    assert sum(int(term[1]) for term in terms if term) == 16, "the stages split the same 16 bytes"
