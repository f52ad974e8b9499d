"""The page on the sources answers each of their points, and each answer is a place that exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from sidelit.text import markup

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
def test_a_point_has_an_answer_that_exists(document: str, said: str, answer: str) -> None:
    assert said, document
    links = LINK.findall(answer)
    assert links, f"{said}: no link"
    for link in links:
        path, _, anchor = link.partition("#")
        if path.startswith("src:"):
            file = ROOT / "src" / path[4:]
            assert not anchor or anchor in definitions(file), link
        else:
            file = PAGES / path
            assert not anchor or anchor in headings(file), link
        assert file.is_file(), link


@cache
def definitions(file: Path) -> set[str]:
    """The classes and functions of a chapter, by their qualified names."""

    def below(node: ast.AST, prefix: str) -> set[str]:
        found = set()
        for each in ast.iter_child_nodes(node):
            if isinstance(each, ast.ClassDef | ast.FunctionDef):
                found |= {prefix + each.name} | below(each, f"{prefix}{each.name}.")
        return found

    return below(ast.parse(file.read_text("utf-8")), "")


@cache
def headings(file: Path) -> set[str]:
    """The ids of the headings of a page."""
    lines = file.read_text("utf-8").splitlines()
    return {markup.heading_slug(line.lstrip("# ")) for line in lines if line.startswith("#")}
