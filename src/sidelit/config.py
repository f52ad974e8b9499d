"""# What a site is made of

> One TOML file names the languages, the parts, the chapters and the pages of prose.

`site/sidelit.toml` is the only place where a chapter is entered. Everything beside it has a fixed name:
`pages/` holds the prose, `locale/` the catalogues, `anchors.json` the published ids, `glossary.toml` and
`bibliography.toml` the words and the works. The folder above it is the project, and every path of the file
starts there.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar, cast

from sidelit import assets
from sidelit.errors import SidelitError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
MADE = ("glossary", "bibliography")


@dataclass(frozen=True, slots=True)
class Chapter:
    """One literate source and where its page goes."""

    source: str
    """Path from the project folder, with forward slashes: `src/shardbook/unit.py`."""
    output: str
    """Path of the page in the site: `unit.html`."""
    name: str
    """Name of its catalogue and of its entry in the ledger: `shardbook/unit`."""
    run: str | None = None
    """The command that runs this chapter."""


@dataclass(frozen=True, slots=True)
class Part:
    """Chapters under one heading of the table of contents."""

    number: str
    label: str
    chapters: tuple[Chapter, ...]


@dataclass(frozen=True, slots=True)
class Prose:
    """One page of Markdown, and the list made from data that follows its text, if any."""

    source: str
    output: str
    name: str
    append: str | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """Everything a build needs to know; `project` is the folder all paths start from."""

    path: Path
    project: Path
    title: str
    tagline: str
    languages: tuple[str, ...]
    front: tuple[Prose, ...]
    parts: tuple[Part, ...]
    back: tuple[Prose, ...]
    source_root: str = "src"
    source_url: str | None = None
    report_url: str | None = None
    commit_url: str | None = None
    licence_note: str = ""
    home_figure: str = ""
    """A template whose picture stands beside the title on the home page, if there is one."""
    repository: str | None = None
    figures_torch: str | None = None
    home: str = "index.html"

    @property
    def folder(self) -> Path:
        """The folder of the words and data of the site."""
        return self.path.parent

    @property
    def chapters(self) -> tuple[Chapter, ...]:
        """All chapters, in reading order."""
        return tuple(chapter for part in self.parts for chapter in part.chapters)

    @property
    def prose(self) -> tuple[Prose, ...]:
        """All pages of prose, in reading order."""
        return self.front + self.back

    @property
    def order(self) -> tuple[Prose | Chapter, ...]:
        """All pages, in reading order."""
        return (*self.front, *self.chapters, *self.back)

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
    top = _Table(read_toml(path, shown), shown, _text(path, shown))
    root = top.take("source_root", str, "src").strip("/")
    config = Config(
        path=path,
        project=project,
        title=top.take("title", str),
        tagline=top.take("tagline", str, ""),
        languages=_languages(top),
        front=tuple(_prose(table, path.parent.name) for table in top.tables("front")),
        parts=tuple(_part(table, root) for table in top.tables("parts")),
        back=tuple(_prose(table, path.parent.name) for table in top.tables("back")),
        source_root=root,
        source_url=top.take("source_url", str, "") or None,
        report_url=top.take("report_url", str, "") or None,
        commit_url=top.take("commit_url", str, "") or None,
        licence_note=top.take("licence_note", str, ""),
        home_figure=top.take("home_figure", str, ""),
        repository=top.take("repository", str, "") or None,
        figures_torch=top.take("figures_torch", str, "") or None,
    )
    top.finish()
    _check(config, top)
    return config


def read_toml(path: Path, shown: str) -> dict[str, Any]:
    """Parse a TOML file of the site; a mistake is a `SidelitError` with its line."""
    try:
        return tomllib.loads(_text(path, shown))
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        what = re.sub(r" \(at .*\)$", "", str(error))
        line = int(found[1]) if found else len(_text(path, shown).splitlines())
        raise SidelitError(f"not valid TOML: {what}", path=shown, line=line) from None


def _text(path: Path, shown: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SidelitError(f"cannot be read: {reason}", path=shown) from None


class _Table:
    """One table of the file: hands out keys with their types checked, and refuses what nobody asked for."""

    def __init__(self, data: dict[str, Any], shown: str, text: str) -> None:
        self.data = dict(data)
        self.shown = shown
        self.text = text

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self.data.pop(key, default)
        if value is None:
            raise self.error(f"the key `{key}` is missing")
        if not isinstance(value, kind):
            raise self.error(f"`{key}` must be a {_NAMES[kind]}", key)
        return value

    def tables(self, key: str) -> tuple[_Table, ...]:
        entries = self.take(key, list, [])
        if not all(isinstance(entry, dict) for entry in entries):
            raise self.error(f"`{key}` must be a list of tables", key)
        return tuple(_Table(cast("dict[str, Any]", entry), self.shown, self.text) for entry in entries)

    def finish(self) -> None:
        for key in self.data:
            raise self.error(f"unknown key `{key}`", key, hint="remove it or mend its spelling")

    def error(self, what: str, near: str | None = None, hint: str | None = None) -> SidelitError:
        return SidelitError(what, path=self.shown, line=self.line(near), hint=hint)

    def line(self, near: str | None) -> int:
        """The first line that mentions a word: the parser keeps no positions, and files are short."""
        words = re.compile(rf"(?<![\w.-]){re.escape(near)}(?![\w-])") if near else None
        lines = enumerate(self.text.splitlines(), 1)
        return next((number for number, text in lines if words and words.search(text)), 1)


_NAMES: dict[type, str] = {str: "string", list: "list"}


def _languages(top: _Table) -> tuple[str, ...]:
    languages = tuple(str(code) for code in top.take("languages", list, ["en"]))
    if not languages or languages[0] != "en" or len(set(languages)) != len(languages):
        raise top.error('`languages` must start with "en" and name each language once', "languages")
    for code in languages:
        if code not in assets.languages():
            known = ", ".join(assets.languages())
            raise top.error(f"unknown language {code!r}", "languages", hint=f"the templates know {known}")
    return languages


def _part(table: _Table, root: str) -> Part:
    number, label = table.take("number", str, ""), table.take("label", str)
    folder, output = table.take("folder", str, root).strip("/"), table.take("output", str, "").strip("/")
    chapters = tuple(_chapter(entry, folder, output, root) for entry in table.tables("chapters"))
    table.finish()
    return Part(number, label, chapters)


def _chapter(table: _Table, folder: str, output: str, root: str) -> Chapter:
    name = table.take("source", str)
    if not name.endswith(".py"):
        raise table.error(f"{name!r} is not a Python file", name)
    source = PurePosixPath(folder) / name
    page = (PurePosixPath(output) / name).with_suffix(".html")
    below = source.relative_to(root) if source.is_relative_to(root) else source
    run = table.take("run", str, "") or None
    table.finish()
    return Chapter(str(source), str(page), str(below.with_suffix("")), run)


def _prose(table: _Table, folder: str) -> Prose:
    name, append = table.take("source", str), table.take("append", str, "") or None
    if not name.endswith(".md"):
        raise table.error(f"{name!r} is not a Markdown file", name)
    if append is not None and append not in MADE:
        raise table.error(
            f"nothing is made under the name {append!r}", append, hint=f"there is {' and '.join(MADE)}"
        )
    table.finish()
    path = PurePosixPath(name)
    page = str(path.with_suffix(".html"))
    return Prose(f"{folder}/pages/{path}", page, f"pages/{path.with_suffix('')}", append)


def _check(config: Config, top: _Table) -> None:
    seen: set[str] = set()
    for item in config.order:
        name = PurePosixPath(item.source).name
        for path in (item.source, item.output):
            if path.startswith("/") or ".." in PurePosixPath(path).parts:
                raise top.error(f"the path {path} leads outside its folder", name)
        if not (config.project / item.source).is_file():
            raise top.error(f"the file {item.source} does not exist", name)
        first = PurePosixPath(item.output).parts[0]
        if item.output in seen:
            raise top.error(
                f"two pages would be written to {item.output}", name, hint="give one another `output`"
            )
        if first in (*config.languages, "assets"):
            raise top.error(f"the page {item.output} would hide the folder {first}/", name)
        seen.add(item.output)
