"""# Pages of Markdown

> A page of prose is one text; a lesson takes sections from the chapters, and a lab is a notebook, too.

All are read from `site/sidelit.toml`: prose before and behind the chapters, lessons as the course, labs
behind the lessons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement

from sidelit.config import chapters, languages
from sidelit.config.chapters import Former
from sidelit.config.toml import Table
from sidelit.files import assets

# The folder of the lessons, beside that of the other pages.
LESSONS = "lessons"


@dataclass(frozen=True, slots=True)
class Moved:
    """A heading that a page had once, and the page and the heading at which its readers find its text."""

    old: str
    source: str
    id: str
    line: int = 1


@dataclass(frozen=True, slots=True)
class Prose:
    """One page of Markdown, or a lab; `append` names the table of data that follows its text, if any."""

    source: str
    output: str
    name: str
    append: str | None = None
    former: tuple[Former, ...] = ()
    line: int = 1
    languages: tuple[str, ...] = ()
    """The languages it stands in; empty for all those of the site."""
    moved: tuple[Moved, ...] = ()
    """The sections that stood on it once."""
    lesson: str = ""
    """Which kind of lesson it is, `lesson` or `lab`; empty for any other page."""
    number: str = ""
    """Its place among the lessons, from 0, or among the labs; empty for a lesson that is not counted."""
    group: str = ""
    """The group of the course that it is in, by its label."""
    append_line: int = 0
    """Where the configuration names the table."""

    @property
    def kind(self) -> str:
        """The kind of page that it is, as the registry of kinds calls it."""
        return self.append or self.lesson or ("home" if self.output == "index.html" else "prose")

    @property
    def stem(self) -> str:
        """The name of its file without a suffix: that of the notebooks of a lab."""
        return PurePosixPath(self.source).stem


@dataclass(frozen=True, slots=True)
class Course:
    """Lessons in the order in which they are taken, under one heading of the table of contents."""

    label: str = ""
    lessons: tuple[Prose, ...] = ()


NO_COURSE = Course()


@dataclass(frozen=True, slots=True)
class Labs(Course):
    """Labs in their order, each a Python file that is a notebook in each language, too."""

    folder: str = ""
    """Where their sources and notebooks lie, from the project folder."""
    install: str = ""
    """What a notebook installs where it is missing, as pip understands it; {repository} is a blank."""
    coming: tuple[str, ...] = ()
    """The numbers of labs that nobody has written yet. Lessons may name them, and no other lab gets them."""


NO_LABS = Labs()


def prose(table: Table, folder: str, codes: Sequence[str]) -> Prose:
    """Read the entry of a page of prose; `folder` is that of the site, `codes` are its languages."""
    given, append = table.take("source", str), table.take("append", str, "") or None
    if not given.endswith(".md"):
        raise table.error(f"{given!r} is not a Markdown file", given)
    path = PurePosixPath(given)
    called = chapters.prose(table, str(path), "pages")
    kept, moved = languages.kept(table, codes), tuple(_moved(table, f"{folder}/pages"))
    table.finish()
    source, line = f"{folder}/pages/{path}", table.line(given)
    at = table.line("append") if append else 0
    return Prose(source, called.output, called.name, append, called.former, line, kept, moved, append_line=at)


def _moved(table: Table, pages: str) -> Iterator[Moved]:
    """Read where the readers of headings go that have left a page, as far as their author says it."""
    for old, href in table.take("moved", dict, {}).items():
        path, sign, name = href.partition("#") if isinstance(href, str) else ("", "", "")
        if not (path.endswith(".md") and bool(sign) == bool(name)):
            hint = 'write a page and a heading of it, as in "guide.md#install", or a page alone'
            raise table.error(f"{href!r} in `moved` is not a place on a page of prose", old, hint=hint)
        yield Moved(old, f"{pages}/{path}", name, table.line(old))


def course(table: Table | None, folder: str) -> Course:
    """Read the table of the course, if there is one."""
    if table is None:
        return NO_COURSE
    label = table.take("label", str)
    lessons: list[Prose] = []

    def read(listing: Table, group: str) -> None:
        for entry in listing.tables("lessons"):
            place = sum(bool(lesson.number) for lesson in lessons)
            lessons.append(replace(_lesson(entry, folder, str(place)), group=group))

    read(table, "")
    for group in table.tables("groups"):
        read(group, group.take("label", str))
        group.finish()
    table.finish()
    return Course(label, tuple(lessons))


def _lesson(table: Table, folder: str, place: str) -> Prose:
    given, number = table.take("source", str), table.take("number", str, place)
    path = PurePosixPath(given)
    if path.suffix != ".md" or not path.is_relative_to(LESSONS) or ".." in path.parts:
        raise table.error(f"{given!r} is no Markdown file in {LESSONS}/", given)
    if number not in ("", place):
        hint = "leave `number` out, or write an empty one for a lesson that is not counted"
        raise table.error(f"this lesson has the number {place}, not {number!r}", given, hint=hint)
    called = chapters.prose(table, str(path.relative_to(LESSONS)), LESSONS)
    table.finish()
    former, line = called.former, table.line(given)
    return Prose(
        f"{folder}/{path}", called.output, called.name, None, former, line, lesson="lesson", number=number
    )


def labs(table: Table | None) -> Labs:
    """Read the table of the labs, if there is one."""
    if table is None:
        return NO_LABS
    label, folder = table.take("label", str), table.take("folder", str, "notebooks").strip("/")
    if not assets.stays_inside(folder):
        raise table.error(f"the folder {folder!r} is not in the project", "folder")
    coming = tuple(str(number) for number in table.take("coming", list, []))
    # A lab that nobody has written yet keeps its number, so that the others keep theirs.
    free = (str(number) for number in count(1) if str(number) not in coming)
    found = tuple(_lab(entry, folder, next(free)) for entry in table.tables("labs"))
    install = table.take("install", str, "")
    if install and not module(install):
        hint = 'write it as for pip, such as "rings[notebooks]>=2"'
        raise table.error(f"{install!r} is nothing that pip installs", "install", hint=hint)
    table.finish()
    return Labs(label, found, folder, install, coming)


def _lab(table: Table, folder: str, number: str) -> Prose:
    given = table.take("source", str)
    path = PurePosixPath(given)
    if path.suffix != ".py" or len(path.parts) > 1:
        raise table.error(f"{given!r} is no Python file in {folder}/", given)
    called = chapters.lab(table, path.stem)
    table.finish()
    former, line = called.former, table.line(given)
    return Prose(
        f"{folder}/{path}", called.output, called.name, None, former, line, lesson="lab", number=number
    )


# ## What a notebook needs
#
# > One line for pip, and the module that tells whether it is there already.


_REPOSITORY = "{repository}"


def module(requirement: str) -> str:
    """The name under which a requirement is imported, taken to be that of its distribution.

    It is empty for what pip would not understand.
    """
    try:
        return Requirement(requirement).name.replace("-", "_").replace(".", "_")
    except InvalidRequirement:
        return ""


def filled(requirement: str, repository: str | None) -> str:
    """The same, with the repository in its blank `{repository}`; empty where none is known."""
    if repository is None and _REPOSITORY in requirement:
        return ""
    return requirement.replace(_REPOSITORY, repository or "")
