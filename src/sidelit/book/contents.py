"""# What is in a book, and in which order

> The pages of a site in reading order, in the groups that its table of contents has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sidelit.book.leaves import Heading, Leaf
from sidelit.config import Chapter, Config, Lesson, Prose
from sidelit.site.edition import Edition


@dataclass(frozen=True, slots=True)
class Entry:
    """A page of the book."""

    leaf: str
    """What its places begin with."""
    output: str
    label: str
    lang: str | None
    """The language of the label where it is not that of the book."""
    number: str
    source: str
    """The file that a chapter shows; empty for prose."""


@dataclass(frozen=True, slots=True)
class Group:
    """Pages under one heading; those before and behind all parts have none."""

    label: str
    lang: str | None
    number: str
    entries: tuple[Entry, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Mark:
    """A line of the outline that a reader of PDF files unfolds, and the lines below it."""

    label: str
    place: str
    below: tuple[Mark, ...] = ()


def groups(config: Config, edition: Edition) -> tuple[Group, ...]:
    """The pages of an edition that are a part of its book, each under a name of its own."""
    numbers = {item.output: place for place, item in enumerate(config.order, start=1)}

    def group(label: str, lang: str | None, number: str, items: Sequence[Chapter | Prose]) -> Iterator[Group]:
        entries = tuple(
            _entry(edition, item, numbers[item.output]) for item in items if _printed(edition, item)
        )
        if entries:
            yield Group(label, lang, number, entries)

    labels = zip(config.parts, edition.parts, strict=True)
    return (
        *group("", None, "", config.front),
        *group(*edition.course, "", config.course.lessons),
        *(each for part, said in labels for each in group(*said, part.number, part.chapters)),
        *group("", None, "", config.back),
    )


def marks(groups: Sequence[Group], found: Mapping[str, Leaf]) -> list[Mark]:
    """The outline: parts, their pages, and the sections of those."""
    made: list[Mark] = []
    for group in groups:
        pages = [
            Mark(numbered(each.number, each.label), each.leaf, _tree(found[each.leaf].headings))
            for each in group.entries
            if each.leaf in found
        ]
        if group.label and pages:
            pages = [Mark(numbered(group.number, group.label), pages[0].place, tuple(pages))]
        made += pages
    return made


def numbered(number: str, label: str) -> str:
    """A title behind its number, if it has one."""
    return f"{number} {label}".strip()


def _tree(headings: Sequence[Heading]) -> tuple[Mark, ...]:
    """Headings, each with the deeper ones behind it below it."""
    made: list[Mark] = []
    start = 0
    while start < len(headings):
        end = start + 1
        while end < len(headings) and headings[end].depth > headings[start].depth:
            end += 1
        mark = Mark(headings[start].label, headings[start].place)
        made.append(replace(mark, below=_tree(headings[start + 1 : end])))
        start = end
    return tuple(made)


def _printed(edition: Edition, item: Chapter | Prose) -> bool:
    """A list of all pages is what the table of contents is."""
    listing = isinstance(item, Prose) and item.append in ("listing", "forward")
    return item.output in edition.pages and not listing


def _entry(edition: Edition, item: Chapter | Prose, place: int) -> Entry:
    shown = edition.pages[item.output]
    number = item.number if isinstance(item, Lesson) else str(shown.text.number or "")
    source = item.source if isinstance(item, Chapter) else ""
    return Entry(f"p{place}", item.output, shown.label, shown.label_lang, number, source)
