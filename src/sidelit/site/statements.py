"""# What a page states about itself

> How it is cited, and what programs read in its head.
"""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Form:
    """A citation in one form: which it is, what it is called, and its text."""

    kind: str
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Citation:
    """How to cite a page; `blank` is for a script, which fills in one of its sections."""

    url: str
    """The permanent address, empty where nobody knows it."""
    base: str
    """What the address of a section begins with; empty if its source is what is cited."""
    forms: tuple[Form, ...]
    blank: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Meta:
    """What the head of a page tells to programs; every address is absolute."""

    canonical: str
    alternates: tuple[tuple[str, str], ...]
    feed: str
    properties: tuple[tuple[str, str], ...]
    names: tuple[tuple[str, str], ...]
    data: Markup
