"""# Lints

(public API; implementation follows)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .catalog import Catalog
from .glossary import Glossary


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a lint objects to; `str()` is the line that is printed."""

    path: str
    line: int
    rule: str
    sentence: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.sentence}"


def lint_catalog(catalog: Catalog, glossary: Glossary) -> tuple[Finding, ...]:
    """Lint every translation that is shown to readers."""
    raise NotImplementedError


def lint_source(text: str, path: str) -> tuple[Finding, ...]:
    """Lint the docstrings of one Python source."""
    raise NotImplementedError
