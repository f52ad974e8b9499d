"""The page on the sources answers each of their points."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "site" / "pages"
LINK = re.compile(r"\[[^]]+]\(([^)]+)\)")


def documents() -> dict[str, list[tuple[str, str]]]:
    """The rows of each table: what a source says, and what this book answers."""
    text = (PAGES / "sources.md").read_text("utf-8")
    found = {}
    for part in text.split("\n## ")[1:]:
        rows = [line.strip("|").split(" | ") for line in part.splitlines() if line.startswith("|")]
        found[part.partition("\n")[0]] = [(said.strip(), answer.strip()) for said, answer in rows[2:]]
    return found


ROWS = [(name, *row) for name, rows in documents().items() for row in rows]


def test_no_source_and_no_point_is_left_out() -> None:
    assert {name: len(rows) for name, rows in documents().items()} == {
        "An annotated ZeRO-3 layer": 32,
        "Checkpointing in PyTorch 1.10": 26,
        "Mixed precision in FairScale's FSDP": 38,
        "ZeRO through the code of DeepSpeed": 32,
    }
    points = [said for _, said, _ in ROWS]
    assert len({*points}) == len(points)


@pytest.mark.parametrize(("document", "said", "answer"), ROWS, ids=[said[:40] for _, said, _ in ROWS])
def test_a_point_has_an_answer(document: str, said: str, answer: str) -> None:
    """That each link leads somewhere, the build of the site proves."""
    assert said, document
    assert LINK.search(answer), f"{said}: no link"
