"""# Reading literate Python

> A Python file becomes sections: a piece of commentary beside the lines it talks about.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["module", "class", "function", "comment", "code"]


@dataclass(frozen=True, slots=True)
class Section:
    """One claim and the lines that make it true."""

    kind: Kind
    qualname: str
    commentary: str
    commentary_line: int
    code: tuple[tuple[int, str], ...]
    source: str
    first_line: int
    last_line: int
    indent: int
    hidden: bool


@dataclass(frozen=True, slots=True)
class Document:
    """A file and its sections; `text.encode(encoding)` gives the bytes of the file back."""

    path: str
    text: str
    sections: tuple[Section, ...]
    encoding: str = "utf-8"


def parse(text: str, path: str) -> Document:
    """Cut `text` into sections."""
    raise NotImplementedError


def read(path: Path) -> Document:
    """Read a file and cut it into sections."""
    raise NotImplementedError
