"""The home page and the README: what they print runs, and their figures are those of the book."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import jinja2
import pytest
from packaging.requirements import Requirement

from shardbook.memory import cost_of, zero_table
from sidelit.config import toml
from warm import TORCHRUN, start

ROOT = Path(__file__).parent.parent
HOME = ROOT / "site" / "pages" / "index.md"
README = ROOT / "README.md"
FIGURE = ROOT / "site" / "templates" / "memory_figure.html"
# Appended to the lines that a page prints: what such a program goes on to do.
STEP = """
if "optimizer" not in globals():
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.randn(3, 2, 512)
    model(words, words).square().mean().backward()
    optimizer.step()
numbers = sum(parameter.numel() for parameter in model.parameters())
print("rank", torch.distributed.get_rank(), "stores", numbers, flush=True)
"""


def text(path: Path) -> str:
    return path.read_text("utf-8")


# ---- What they print runs ----


def code(path: Path, language: str) -> str:
    """The first sample of a language on a page."""
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", text(path))[0]


@pytest.mark.parametrize(("path", "stored"), [(HOME, 44_140_544 // 2), (README, 15_780_864 // 2)])
def test_the_lines_that_a_page_opens_with_train_on_two_ranks(path: Path, stored: int, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(code(path, "python") + STEP, "utf-8")
    run = start(*TORCHRUN, "2", str(program))
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.splitlines()) == [f"rank {rank} stores {stored}" for rank in (0, 1)]


@pytest.mark.parametrize("path", [HOME, README])
def test_the_line_that_installs_names_extras_that_bring_torch(path: Path) -> None:
    extras = toml.read_toml(ROOT / "pyproject.toml", "pyproject.toml")["project"]["optional-dependencies"]
    lines = [shlex.split(line, comments=True) for line in code(path, "sh").splitlines()]
    (target,) = [line[2] for line in lines if line[:2] == ["pip", "install"]]
    (named,) = re.findall(r"^\.\[(\w+)\]$", target)
    assert "torch" in {Requirement(each).name for each in extras[named]}


# ---- The picture ----


def test_the_picture_shows_the_papers_table_and_no_page_beside_it_repeats_the_totals() -> None:
    picture = jinja2.Template(text(FIGURE)).render(own=Words())
    totals = [f"{row.total / 1e9:.1f}" for row in zero_table(7_500_000_000, 64, cost_of("bf16", "adamw"))]
    assert re.findall(r"<td>([\d.]+) <span>", picture) == totals
    assert not [total for total in totals if total in text(HOME)]
    # Each kind of bytes is as wide as its share of the 120 GB.
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", picture)]
    rows = [widths[first : first + 3] for first in range(0, 12, 3)]
    assert [sum(row) for row in rows] == pytest.approx([float(total) / 1.2 for total in totals], abs=0.05)


class Words:
    """Stands for the words of any language."""

    def __getattr__(self, name: str) -> str:
        return name


# ---- Figures ----


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
    return dict(item.findall(text(HOME)))


def test_the_home_page_shows_four_measured_figures() -> None:
    assert list(shown()) == list(MEASURED)


@pytest.mark.parametrize("median", MEASURED)
def test_a_figure_of_the_home_page_stands_among_the_measurements_with_its_spread(median: str) -> None:
    name, spread = MEASURED[median]
    measured = text(HOME.with_name("measured.md"))
    assert f"| {name} | {median} | {'–'.join(spread)} |" in measured
    assert all(quartile in shown()[median] for quartile in spread)


def test_the_figures_of_the_readme_stand_among_the_measurements() -> None:
    said = re.findall(r"([\d.]+) \(([\d.]+) to ([\d.]+)\) \| not measured", text(README))
    assert len(said) == 2
    measured = text(HOME.with_name("measured.md"))
    assert [f"| {median} | {low}–{high} |" in measured for median, low, high in said] == [True, True]


# ---- The tables that compare ----


def table(path: Path, head: str) -> list[list[str]]:
    """The rows of the table whose first line holds `head`, cell by cell, without links."""
    (found,) = re.findall(rf"(?m)^\|[^\n]* {re.escape(head)} \|.*\n((?:\|.*\n)+)", text(path))
    rows = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", found).splitlines()[1:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_home_page_and_readme_compare_alike() -> None:
    home, readme = table(HOME, "FSDP2"), table(README, "FSDP2")
    assert len(home) == 6
    known = {name: cells[:3] for name, *cells in home}
    assert sum(known.get(name) == cells for name, *cells in readme) >= 3


# ---- The README ----


def test_the_readme_is_short() -> None:
    assert README.stat().st_size <= 8_000


def test_what_the_readme_links_to_is_there() -> None:
    links: list[Any] = [link for link in re.findall(r"\]\(([^)\s]+)\)", text(README)) if "://" not in link]
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []


def test_each_proof_of_the_readme_is_a_command_that_finds_its_tests() -> None:
    rows = table(README, "claim")
    assert len(rows) == 5
    for _, command in rows:
        program, *files = shlex.split(command.strip("`"))
        assert program == "pytest"
        assert all("\ndef test_" in text(ROOT / file) for file in files)
