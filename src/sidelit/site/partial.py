"""# A site with gaps

> An author who is asked to may see the site although some of it is wrong; every gap is told.

A source that Python cannot parse has no sections, so it has no page either, and the links to it stay words.
Whether the rest can be printed is found out by printing it. A build that nobody asked to go on stops, and
leaves the old site as it is.
"""

from __future__ import annotations

from dataclasses import replace

from sidelit.config import Config
from sidelit.errors import SidelitError
from sidelit.source import source


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
