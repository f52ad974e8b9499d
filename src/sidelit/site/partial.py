"""# A site with gaps

> An author who is asked to may see the site although some of it is wrong; every gap is told.

A source that Python cannot parse has no sections, so it has no page either, and the links to it stay words.
Whether the rest can be printed is found out by printing it. A build that nobody asked to go on stops, and
leaves the old site as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sidelit.config import Config
from sidelit.errors import SidelitError
from sidelit.site import site
from sidelit.site.collector import Collector
from sidelit.source import source


@dataclass(frozen=True, slots=True)
class Done:
    """The names of the files that were made, what was odd in them, and why which sources were left out."""

    files: tuple[str, ...]
    odd: tuple[SidelitError, ...] = ()
    skipped: tuple[SidelitError, ...] = ()


Told = Callable[[Done], object]
"""Who hears of the gaps of a site."""


def nobody(done: Done) -> None:
    """Hear of no gap."""


def write(config: Config, folder: Path, *, keep_going: bool = False, jobs: int | None = None) -> Done:
    """Make a site in an empty folder, with gaps if its configuration or `keep_going` allows them.

    Raises `SidelitError` as `site.write` does.
    """
    if not (keep_going or config.keep_going):
        return Done(site.write(config, folder, jobs=jobs))
    made, skipped = readable(config)
    notes = Collector()
    return Done(site.write(made, folder, notes, jobs), _once(notes), skipped)


def files(config: Config) -> tuple[dict[str, bytes], Done]:
    """Make a site in memory, every file by its path; the same as `write` otherwise."""
    if not config.keep_going:
        made = site.files(config)
        return made, Done(tuple(made))
    readable_part, skipped = readable(config)
    notes = Collector()
    made = site.files(readable_part, notes)
    return made, Done(tuple(made), _once(notes), skipped)


def _once(notes: Collector) -> tuple[SidelitError, ...]:
    """What was noted: the same slip shows in every language."""
    return tuple({str(error): error for error in notes.errors}.values())


def sound(config: Config) -> Config:
    """The site as a command reads it that makes no pages: gaps are no news there."""
    return readable(config)[0] if config.keep_going else config


def readable(config: Config) -> tuple[Config, tuple[SidelitError, ...]]:
    """The site without the sources that are no Python, and why each of them is none."""
    why: dict[str, SidelitError] = {}
    for chapter in config.chapters:
        try:
            source.read(config.project / chapter.source, shown=chapter.source)
        except SidelitError as error:
            why[chapter.source] = error
    if not why:
        return config, ()
    parts = (
        replace(part, chapters=tuple(each for each in part.chapters if each.source not in why))
        for part in config.parts
    )
    return replace(config, parts=tuple(part for part in parts if part.chapters)), tuple(why.values())
