"""# What a site is made of

> One TOML file names the languages, the parts, the chapters and the pages of prose.

`site/sidelit.toml` is the only place where a chapter is entered. Everything beside it has a fixed name:
`pages/` holds the prose, `lessons/` the lessons, `locale/` the catalogues, `anchors.json` the published ids,
`glossary.toml` and `bibliography.toml` the words and the works. The folder above it is the project, and every
path of the file starts there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from sidelit import (
    dialects,
    inventories,
    languages,
    page_names,
    patterns,
    proofs,
    prose_pages,
    public,
    reading,
)
from sidelit.errors import SidelitError
from sidelit.inventories import Inventory
from sidelit.languages import Language
from sidelit.page_names import Former
from sidelit.proofs import Proof
from sidelit.prose_pages import NO_COURSE, Course, Lesson, Prose
from sidelit.public import NOWHERE, Public
from sidelit.tables import Table, read_table

__all__ = ["SITE", "Chapter", "Config", "Course", "Lesson", "Part", "Prose", "find", "load", "module_name"]

# The catalogue of the words that stand on no page.
SITE = "site"


@dataclass(frozen=True, slots=True)
class Chapter:
    """One literate source and where its page goes."""

    source: str
    """Path from the project folder, with forward slashes: `src/shardbook/unit.py`."""
    output: str
    """Path of the page in the site: `unit.html`."""
    name: str
    """Name of its catalogue and of its entry in the ledger, wherever the source lies: `shardbook/unit`."""
    run: str | None = None
    """The command that runs this chapter."""
    proves: tuple[Proof, ...] = ()
    """The tests that prove it."""
    module: str = ""
    """The name a program imports it by, as far as its path tells: `shardbook.zero.unit`."""
    former: tuple[Former, ...] = ()
    """What it was called before."""
    line: int = 1
    """Where the configuration names it."""
    dialect: str = "markdown"
    """What its docstrings are written in, one of `sidelit.dialects.DIALECTS`."""


@dataclass(frozen=True, slots=True)
class Part:
    """Chapters under one heading of the table of contents."""

    number: str
    label: str
    chapters: tuple[Chapter, ...]
    question: str = ""
    """What a reader may ask that it answers."""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything a build needs to know; `project` is the folder all paths start from."""

    path: Path
    project: Path
    title: str
    tagline: str
    languages: tuple[str, ...]
    """Their codes; the first one is what the sources and the pages are written in."""
    front: tuple[Prose, ...]
    parts: tuple[Part, ...]
    back: tuple[Prose, ...]
    course: Course = NO_COURSE
    source_root: str = "src"
    public: Public = NOWHERE
    licence_note: str = ""
    home_figure: str = ""
    """A template whose picture stands beside the title on the home page, if there is one."""
    authors: tuple[str, ...] = ()
    """Who wrote it, where no `CITATION.cff` says so."""
    figures_torch: str | None = None
    macros: Mapping[str, str] = field(default_factory=dict)
    """Commands of TeX that every formula may use, as `\\R` for `\\mathbb{R}`."""
    home: str = "index.html"
    inventories: tuple[Inventory, ...] = ()
    """The lists of names that are documented elsewhere."""
    keep_going: bool = False
    """Whether a build goes on over a formula, a link or a source that is wrong."""
    override_assets: tuple[str, ...] = ()
    """The files of `assets/` that take the place of the press's own."""
    spoken: Mapping[str, Language] = field(default_factory=dict)
    """The languages by their codes, those that were read already."""

    @property
    def folder(self) -> Path:
        """The folder of the words and data of the site."""
        return self.path.parent

    @property
    def source_language(self) -> str:
        """The code of the language that everything is written in; the others are translations of it."""
        return self.languages[0]

    def language(self, code: str) -> Language:
        """A language of the site: its name, its direction and its words of the interface.

        Raises `SidelitError` if neither the project nor the press has words for it.
        """
        known = self.spoken.get(code)
        folder = self.folder / languages.FOLDER
        return known or languages.load(code, folder, self.shown(folder))

    @property
    def chapters(self) -> tuple[Chapter, ...]:
        """All chapters, in reading order."""
        return tuple(chapter for part in self.parts for chapter in part.chapters)

    @property
    def prose(self) -> tuple[Prose, ...]:
        """All pages of Markdown, lessons included, in reading order."""
        return (*self.front, *self.course.lessons, *self.back)

    @property
    def order(self) -> tuple[Prose | Chapter, ...]:
        """All pages, in reading order."""
        return (*self.front, *self.course.lessons, *self.chapters, *self.back)

    def shown(self, path: Path) -> str:
        """The way a path is written in messages and in the ledger: from the project folder."""
        full = path.resolve()
        return full.relative_to(self.project).as_posix() if full.is_relative_to(self.project) else str(path)


def find(start: Path) -> Path:
    """Find `site/sidelit.toml` in a folder or above it."""
    for folder in (start.resolve(), *start.resolve().parents):
        if (folder / "site" / "sidelit.toml").is_file():
            return folder / "site" / "sidelit.toml"
    raise SidelitError(
        f"no site/sidelit.toml in {start} or above it",
        hint="go to the project's folder, or name the file with --config",
    )


def load(path: Path) -> Config:
    """Read a configuration; every mistake in it is a `SidelitError` with its line."""
    path = path.resolve()
    project = path.parent.parent
    shown = path.relative_to(project).as_posix()
    top = read_table(path, shown)
    root = top.take("source_root", str, "src").strip("/")
    tree, dialect = patterns.tree(project, root, top), dialects.read(top, "markdown")
    config = Config(
        path=path,
        project=project,
        title=top.take("title", str),
        tagline=top.take("tagline", str, ""),
        languages=languages.codes(top),
        front=tuple(prose_pages.prose(table, path.parent.name) for table in top.tables("front")),
        parts=tuple(_part(table, tree, dialect) for table in top.tables("parts")),
        back=tuple(prose_pages.prose(table, path.parent.name) for table in top.tables("back")),
        course=prose_pages.course(top.table("course"), path.parent.name),
        source_root=root,
        public=public.read(top),
        licence_note=top.take("licence_note", str, ""),
        home_figure=top.take("home_figure", str, ""),
        authors=public.authors(top),
        figures_torch=top.take("figures_torch", str, "") or None,
        macros=_macros(top),
        inventories=inventories.read(top),
        override_assets=top.strings("override_assets"),
        keep_going=top.take("keep_going", bool, False),
    )
    top.finish()
    _check(config, top)
    folder = config.folder / languages.FOLDER
    spoken = languages.spoken(config.languages, folder, config.shown(folder), top)
    return replace(config, spoken=spoken)


def _macros(top: Table) -> dict[str, str]:
    """The table `[macros]`: a command of TeX, and what it stands for."""
    macros = top.take("macros", dict, {})
    for name, meaning in macros.items():
        if not re.fullmatch(r"\\(?:[A-Za-z]+|[^A-Za-z\s])", name):
            hint = r"a command is a backslash and letters, in single quotes: '\R' = '\mathbb{R}'"
            raise top.error(f"{name!r} is no command of TeX", name, hint)
        if not isinstance(meaning, str):
            raise top.error(f"the macro {name} must be a string", name)
    return macros


def _part(table: Table, tree: patterns.Tree, usual: str) -> Part:
    number, label, question = (
        table.take("number", str, ""),
        table.take("label", str),
        table.take("question", str, ""),
    )
    folder, output = table.take("folder", str, tree.root).strip("/"), table.take("output", str, "").strip("/")
    dialect, entries = dialects.read(table, usual), patterns.chapters(table, folder, tree)
    found = (_chapter(entry, folder, output, tree.root, line) for entry, line in entries)
    chapters = tuple(replace(each, dialect=dialect) for each in found)
    table.finish()
    return Part(number, label, chapters, question)


def _chapter(table: Table, folder: str, output: str, root: str, line: int | None) -> Chapter:
    given = table.take("source", str)
    if not given.endswith(".py"):
        raise table.error(f"{given!r} is not a Python file", given)
    source = PurePosixPath(folder) / given
    below = source.relative_to(root) if source.is_relative_to(root) else source
    run, proved = table.take("run", str, "") or None, proofs.read(table, given)
    called = page_names.chapter(table, source, given, below, output)
    table.finish()
    return Chapter(
        source=str(source),
        output=called.output,
        name=called.name,
        run=run,
        proves=proved,
        module=module_name(source, below),
        former=called.former,
        line=line or table.line(given),
    )


def module_name(source: PurePosixPath, below: PurePosixPath) -> str:
    """The name a program imports a source by, when its path below the source root is `below`."""
    parts = below.with_suffix("").parts
    if parts == ("__init__",):
        return source.parent.name
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _check(config: Config, top: Table) -> None:
    """Refuse files that do not exist, and two pages in one place."""
    for item in config.order:
        for path in (item.source, item.output, *(each.output for each in item.former if each.told)):
            _check_path(config, path, item, top)
        file = config.project / item.source
        if not file.exists() or file.is_dir():
            raise top.at(item.line, f"the file {item.source} does not exist")
        reading.refuse_outside(file, config.project, item.source)
        if item.name == SITE:
            raise top.at(item.line, f"the name {SITE!r} is that of the catalogue of the whole site")
    hint = "give one of them another `name`"
    _check_unique([(item.output, item) for item in config.order], "be written to", hint, top)
    _check_unique([(item.name, item) for item in config.order], "have the name", hint, top)
    told = [(each.output, item) for item in config.order for each in item.former if each.told]
    _check_unique(told, "once have been", "let `was` name it in one place", top)


def _check_path(config: Config, path: str, item: Chapter | Prose, top: Table) -> None:
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts:
        raise top.at(item.line, f"the path {path} leads outside its folder")
    if path != item.source and parts[0] in (*config.languages, "assets"):
        raise top.at(item.line, f"the page {path} would hide the folder {parts[0]}/")


def _check_unique(said: list[tuple[str, Chapter | Prose]], what: str, hint: str, top: Table) -> None:
    seen: set[str] = set()
    for place, item in said:
        if place in seen:
            raise top.at(item.line, f"two pages would {what} {place}", hint=hint)
        seen.add(place)
