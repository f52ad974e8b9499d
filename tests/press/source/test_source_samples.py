"""Awkward files with the sections they should have.

The samples lie in `data/source/`: each `NAME.py.txt` (so that no tool repairs it) beside `NAME.json`.
After a wanted change, write the expected sections anew and read the difference:

    python tests/press/source/test_source_samples.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidelit.ids import matching
from sidelit.source import source

SAMPLES = sorted((Path(__file__).parents[1] / "data" / "source").glob("*.py.txt"))


def sections(path: Path) -> list[dict[str, object]]:
    """Everything a section says, with code given by its line numbers."""
    document = source.read(path)
    return [
        {
            "id": name,
            "kind": section.kind,
            "lines": [section.first_line, section.last_line],
            "indent": section.indent,
            "commentary": section.commentary,
            "commentary_line": section.commentary_line,
            "code": [number for number, _ in section.code],
            **({"hidden": True} if section.hidden else {}),
            **({"depth": section.depth.words} if section.depth else {}),
        }
        for section, name in zip(document.sections, matching.propose(document.sections), strict=True)
    ]


def expected(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".py.txt") + ".json")


def test_a_dozen_awkward_files_are_there() -> None:
    assert len(SAMPLES) >= 12


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name.removesuffix(".py.txt"))
def test_sections_are_as_expected(path: Path) -> None:
    assert sections(path) == json.loads(expected(path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name.removesuffix(".py.txt"))
def test_the_bytes_come_back(path: Path) -> None:
    document = source.read(path)
    assert (
        "".join(section.source for section in document.sections).encode(document.encoding)
        == path.read_bytes()
    )


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name.removesuffix(".py.txt"))
def test_code_is_what_stands_on_these_lines(path: Path) -> None:
    document = source.read(path)
    lines = document.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for section in document.sections:
        for number, text in section.code:
            assert section.first_line <= number <= section.last_line
            assert text == lines[number - 1]


if __name__ == "__main__":
    for sample in SAMPLES:
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in sections(sample))
        expected(sample).write_text(f"[\n{rows}\n]\n", encoding="utf-8")
