"""# The glossary

(public API; implementation follows)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Term:
    """One row. `text[lang]` is what the glossary page shows; `forms[lang]` what a translation may say."""

    en: str
    text: Mapping[str, str]
    match: tuple[str, ...]
    forms: Mapping[str, tuple[str, ...]]
    never: Mapping[str, tuple[str, ...]]
    wrong: Mapping[str, tuple[str, ...]]
    first_use: Mapping[str, str]
    note: str
    line: int


@dataclass(frozen=True, slots=True)
class Glossary:
    """`site/glossary.toml`: the terms in file order, and the words that stay English everywhere."""

    terms: tuple[Term, ...]
    allow: tuple[str, ...]


def read(path: Path) -> Glossary:
    """Read and check the file. Raises `SidelitError` with the line of what is wrong."""
    raise NotImplementedError
