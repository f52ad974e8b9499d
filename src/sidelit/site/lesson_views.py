"""# The head of a lesson, as a template prints it

> What stands above the text of a lesson and of a lab.
"""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from sidelit.figures.recording import Recording
from sidelit.site.link_views import Link


@dataclass(frozen=True, slots=True)
class LabHead:
    """What the head of a lab offers beside that: its lesson, and its notebook in the page's language."""

    lesson: Link | None
    notebook: str
    """Where the notebook lies in the site."""
    places: tuple[tuple[str, str], ...]
    """Where it opens to be run: names and addresses."""
    teachers: str | None
    """Where the repository has the notebook with the solutions."""
    recording: Recording | None
    """The run whose outputs the page shows."""


@dataclass(frozen=True, slots=True)
class LessonHead:
    """What the head of a lesson says about it; `key` is what progress is remembered under."""

    key: str
    number: str
    minutes: int
    needs: Markup
    aims: tuple[Markup, ...]
    lab: LabHead | None = None
