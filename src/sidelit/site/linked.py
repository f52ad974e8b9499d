"""# The links of all sources

> What the names in a source mean is found out again when its words change, or code that its imports reach.

The links of a source are read from the [memory](../memory.py) when a page shows them. What stands for them is
known before: their places, and everything that they lead to, each once.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from sidelit import digests, workers
from sidelit.config import Chapter
from sidelit.kept import AT_HAND
from sidelit.names.links import Definition, Links, Names
from sidelit.names.shelf import Written
from sidelit.site.content import Text
from sidelit.source.surface import Module, reached

Target = Definition | str


@dataclass(frozen=True, slots=True)
class Outline:
    """The links of a source in short.

    :param digest: stands for the place of each link, and for which of the targets it leads to.
    """

    digest: str = ""
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True, slots=True)
class Linked:
    """The links of all sources.

    :param links: finds the links of a source.
    :param outlines: what stands for them.
    """

    links: Callable[[str], Links]
    outlines: Mapping[str, Outline]


def linked(folder: Path, texts: Sequence[Text], jobs: int | None) -> Linked:
    """Find out what the names in chapters mean; `folder` is the one that their paths start from."""
    chapters = {text.item.source: text for text in texts if isinstance(text.item, Chapter)}
    keys = _keys(list(chapters.values()))
    outlines: dict[str, Outline] = {}
    missing = []
    for source, text in chapters.items():
        if text.memory.knows("links", keys[source]) and text.memory.knows("outlines", keys[source]):
            outlines[source] = text.memory.of("outlines", keys[source], Outline)
        else:
            missing.append(source)
    made: dict[str, Links] = {}
    names = Names(
        written(folder, (each.item for each in chapters.values() if isinstance(each.item, Chapter)))
    )
    if missing:
        with names:
            made |= zip(missing, workers.shared(names.links, missing, jobs), strict=True)
    for source, links in made.items():
        chapters[source].memory.of("links", keys[source], partial(dict, links))
        outlines[source] = chapters[source].memory.of("outlines", keys[source], partial(_outline, links))

    @lru_cache(maxsize=AT_HAND)
    def read(source: str) -> Links:
        if source in made or source not in chapters:
            return made.get(source, {})
        return chapters[source].memory.of("links", keys[source], lambda: names.links(source))

    return Linked(read, outlines)


def _keys(chapters: Sequence[Text]) -> dict[str, tuple[str, ...] | str]:
    """What the links of each source follow from; empty where nobody knows."""
    modules: dict[str, Module] = {}
    for text in chapters:
        if isinstance(text.item, Chapter) and text.item.module:
            modules[text.item.module] = Module(text.item.module, _is_package(text.item), text.surface)
    named = digests.digest([(text.item.source, getattr(text.item, "module", "")) for text in chapters])
    others = reached(modules)
    return {
        text.item.source: (text.digest, named, others.get(getattr(text.item, "module", ""), ""))
        if text.digest
        else ""
        for text in chapters
    }


def _outline(links: Links) -> Outline:
    targets: dict[Target, int] = {}
    places = [
        (line, link.start, link.text, targets.setdefault(link.to, len(targets)))
        for line, found in links.items()
        for link in found
    ]
    return Outline(digests.digest(places), tuple(targets))


def written(folder: Path, chapters: Iterable[Chapter]) -> tuple[Written, ...]:
    """The sources of chapters that a program can import; their paths start from the folder."""
    return tuple(
        Written(each.source, each.module, folder / each.source, _is_package(each))
        for each in chapters
        if each.module
    )


def _is_package(chapter: Chapter) -> bool:
    return posixpath.basename(chapter.source) == "__init__.py"
