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


# What the home page says was measured, and the row of the page of measurements that says so too.
MEASURED = {
    "0.736": ("time of a step, over tuned FSDP2", ["0.699", "0.791"]),
    "0.965": ("peak memory over the base, over FSDP2", ["0.965", "0.966"]),
    "0.502": ("peak memory over the base, over DDP", ["0.501", "0.502"]),
    "1.028": ("time of a step, non-reentrant", ["0.975", "1.044"]),
}


def shown() -> dict[str, str]:
    """The items of the home page that begin with a figure, by that figure."""
    item = re.compile(r"^- \[\*\*([\d.]+)\*\*\]\(measured\.md#[\w-]+\) (.*)$", re.MULTILINE)
    return dict(item.findall(HOME.read_text("utf-8")))


def test_the_home_page_shows_four_measured_figures() -> None:
    assert list(shown()) == list(MEASURED)


@pytest.mark.parametrize("median", MEASURED)
def test_a_figure_of_the_home_page_stands_among_the_measurements_with_its_spread(median: str) -> None:
    name, spread = MEASURED[median]
    measured = HOME.with_name("measured.md").read_text("utf-8")
    assert f"| {name} | {median} | {'–'.join(spread)} |" in measured
    assert all(quartile in shown()[median] for quartile in spread)
