"""# Lines of code on a page

> A line keeps its number in the file wherever it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class CodeLine:
    """One line of code under its number in the file."""

    n: int
    html: Markup
    indent: int


def code_line(number: int, html: str) -> CodeLine:
    """A line of code from its coloured HTML."""
    return CodeLine(number, Markup(html), len(html) - len(html.lstrip(" ")))


@dataclass(frozen=True, slots=True)
class Imports:
    """The imports that a file begins with, folded: some names, how many are left out, and the lines."""

    names: str
    more: int
    lines: tuple[CodeLine, ...]
