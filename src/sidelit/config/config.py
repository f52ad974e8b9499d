"""# What a site is made of

> One TOML file names the languages, the parts, the chapters and the pages of prose.

`site/sidelit.toml` is the only place where a chapter is entered. Everything beside it has a fixed name:
`pages/` holds the prose, `lessons/` the lessons, `locale/` the catalogues, `anchors.json` the published ids,
`glossary.toml` and `bibliography.toml` the words and the works. The folder above it is the project, and every
path of the file starts there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal, cast

from sidelit.config import chapters, languages, prose, publication
from sidelit.config.chapters import Chapter, Part
from sidelit.config.languages import Language
from sidelit.config.prose import NO_COURSE, NO_LABS, Course, Labs, Prose
from sidelit.config.publication import NOWHERE, Public
from sidelit.config.toml import Table, read_table
from sidelit.errors import SidelitError
from sidelit.files import assets

# ## Where other people's names are documented
#
# > A project lists the names from outside that it may link to, and the page of each.
#
#     [[inventories]]
#     prefix = "torch"
#     file = "inventories/torch.txt"
#     url = "https://docs.pytorch.org/docs/stable/{place}"
#
# The file lies beside the pages of the site. It is either the `objects.inv` that Sphinx makes, or a text with
# a name on each line, below a line that says where they are documented:
#
#     @ generated/{name}.html
#     torch.cat
#     torch.nn.Parameter torch.nn.parameter.Parameter
#
# The second word, if there is one, stands in the address for the name. A name that no list has gets no link.


@dataclass(frozen=True, slots=True)
class Inventory:
    """A list of documented names.

    :param prefix: the names in it that are meant are this or begin with this and a dot; empty for all
    :param file: its path from the folder of the site's data
    :param url: the address of a page, with `{place}` for its place in the documentation
    """

    prefix: str
    file: str
    url: str
    line: int = 1


def read_inventories(top: Table) -> tuple[Inventory, ...]:
    """Take `[[inventories]]` out of the configuration."""
    return tuple(_inventory(table) for table in top.tables("inventories"))


def _inventory(table: Table) -> Inventory:
    file, url = table.take("file", str), table.take("url", str)
    made = Inventory(table.take("prefix", str, ""), file, url, table.line(file))
    table.finish()
    if not url.startswith(("https://", "http://")) or "{place}" not in url:
        hint = 'write it as in "https://docs.python.org/3/{place}"'
        raise table.error(f"`url` of the inventory {file} is no address with a {{place}} in it", url, hint)
    return made


# ## How strict the lints are
#
# > Each rule about sources and pages is an error, a warning or off, and a configuration says which.
#
#     [lint]
#     lines = 25                          # of code, before a section has to say something
#     words = 40                          # in a sentence
#
#     [lint.rules]
#     code-without-words = "error"
#
#     [[lint.avoid]]                      # what this house does not say
#     pattern = "utili[sz]e"
#     say = "write `use`"
#
#     [[lint.allow]]                      # one section that may break a rule, and why
#     rule = "code-without-words"
#     source = "src/unit.py"
#     section = "module/units"            # in brackets behind the finding; "" for the symbols of a page
#     because = "it is a table"


Severity = Literal["error", "warning", "off"]

# Every rule that a project may choose for itself, and what it is where nothing is said. What no formula, link
# or translation can do without is no matter of choice.
DEFAULT_SEVERITIES: Mapping[str, Severity] = {
    "unbound-symbol": "error",
    "unknown-name": "error",
    "unused-symbol": "error",
    "symbol-twice": "error",
    "hidden-character": "error",
    "code-without-words": "warning",
    "repeats-code": "warning",
    "picture-without-words": "warning",
    "hash-id": "warning",
    "long-sentence": "warning",
    "short-sentences": "warning",
    "opening": "warning",
    "word": "warning",
}


@dataclass(frozen=True, slots=True)
class Word:
    """An expression that the house does not use, and what to write instead."""

    pattern: re.Pattern[str]
    say: str


@dataclass(frozen=True, slots=True)
class Allowance:
    """A section that may break a rule; `line` is where the configuration says so."""

    rule: str
    source: str
    section: str
    line: int


@dataclass(frozen=True, slots=True)
class LintOptions:
    """What a project asks of its own words.

    :param lines: how many lines of code may stand without a word.
    :param words: how many words a sentence may have.
    """

    lines: int = 25
    words: int = 40
    severities: Mapping[str, Severity] = field(default_factory=lambda: DEFAULT_SEVERITIES)
    forbidden: tuple[Word, ...] = ()
    allowed: tuple[Allowance, ...] = ()


def read_lint_options(table: Table | None) -> LintOptions:
    """Read `[lint]`.

    Raises `SidelitError` for a rule that is none, a pattern that is none, and an allowance without a reason.
    """
    if table is None:
        return LintOptions()
    lines, words = (_count(table, key, usual) for key, usual in (("lines", 25), ("words", 40)))
    severities = dict(DEFAULT_SEVERITIES)
    if rules := table.table("rules"):
        severities.update(_severities(rules))
    forbidden = tuple(map(_word, table.tables("avoid")))
    allowed = tuple(map(_allowance, table.tables("allow")))
    table.finish()
    return LintOptions(lines, words, severities, forbidden, allowed)


def _severities(rules: Table) -> Iterator[tuple[str, Severity]]:
    for rule, said in rules.data.items():
        _known(rule, rules)
        if said not in ("error", "warning", "off"):
            raise rules.error(f'the rule {rule} is "error", "warning" or "off"', rule)
        yield rule, cast("Severity", said)


def _count(table: Table, key: str, usual: int) -> int:
    count = table.take(key, int, usual)
    if count < 1 or count is True:
        raise table.error(f"`{key}` must be a number from 1 on", key)
    return count


def _word(table: Table) -> Word:
    said, instead = table.take("pattern", str), table.take("say", str)
    if not said:
        raise table.error(
            "an empty `pattern` finds everything", "pattern", hint="write what is to be avoided"
        )
    try:
        pattern = re.compile(said, re.IGNORECASE)
    except re.error as error:
        raise table.error(f"{said!r} is no pattern: {error}", said) from None
    table.finish()
    return Word(pattern, instead)


def _allowance(table: Table) -> Allowance:
    rule, source = table.take("rule", str), table.take("source", str)
    section, reason = table.take("section", str), table.take("because", str)
    _known(rule, table)
    if not reason.strip():
        raise table.error("an allowance says why", "because", hint='write because = "…"')
    table.finish()
    return Allowance(rule, source, section, table.line("section"))


def _known(rule: str, table: Table) -> None:
    if rule not in DEFAULT_SEVERITIES:
        raise table.error(
            f"there is no rule {rule!r}", rule, hint=f"there are {', '.join(DEFAULT_SEVERITIES)}"
        )


# ## The configuration
#
# > One record, and the checks that need all of it.


# The catalogue of the words that stand on no page.
SITE = "site"
CONTENTS = "contents.html"


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
    labs: Labs = NO_LABS
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
    equation_numbers: bool = True
    """Whether the rows of formulas have numbers that nobody wrote, on pages of prose."""
    back_label: str = ""
    """What the pages behind the chapters are called together; without it the contents do not fold them."""
    home: str = "index.html"
    """The page that the title of the site leads to: the first one where none is called so."""
    inventories: tuple[Inventory, ...] = ()
    """The lists of names that are documented elsewhere."""
    pictures: tuple[str, ...] = ()
    """Folders of the project where the pictures of docstrings lie, if not beside the sources."""
    keep_going: bool = False
    """Whether a build goes on over a formula, a link or a source that is wrong."""
    override_assets: tuple[str, ...] = ()
    """The files of `assets/` that take the place of the press's own."""
    lint_options: LintOptions = field(default_factory=LintOptions)
    """What `sidelit lint` asks of the project's own words."""
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

    def written_in(self, item: Chapter | Prose) -> tuple[str, ...]:
        """The codes of the languages that a page stands in; in the others it is shown in the first one."""
        return item.languages or self.languages

    @property
    def chapters(self) -> tuple[Chapter, ...]:
        """All chapters, in reading order."""
        return tuple(chapter for part in self.parts for chapter in part.chapters)

    @property
    def courses(self) -> tuple[Course, ...]:
        """The pages that have a table of their own and a heading of their own in the contents."""
        return self.course, self.labs

    @property
    def lessons(self) -> tuple[Prose, ...]:
        """All lessons and labs, in reading order."""
        return tuple(lesson for course in self.courses for lesson in course.lessons)

    @property
    def prose(self) -> tuple[Prose, ...]:
        """All pages of Markdown, lessons and labs included, in reading order."""
        return (*self.front, *self.lessons, *self.back)

    @property
    def groups(self) -> tuple[str, ...]:
        """The labels of the groups that lessons and chapters are in, each once."""
        named = (*(each.group for each in self.lessons), *(each.group for each in self.chapters))
        return tuple(dict.fromkeys(filter(None, named)))

    @property
    def contents(self) -> str:
        """Where the list of all pages lies in the site; no page of the project may have its place."""
        taken = {place.output for each in self.order for place in (each, *each.former)}
        name = CONTENTS
        while name in taken:
            name = f"all-{name}"
        return name

    @property
    def order(self) -> tuple[Prose | Chapter, ...]:
        """All pages, in reading order; the workshop comes last."""
        read = (each for each in self.chapters if not each.workshop)
        spare = (each for each in self.chapters if each.workshop)
        return (*self.front, *self.lessons, *read, *self.back, *spare)

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
    given, path = path, path.resolve()
    if not path.is_file():
        what = "this is no file" if path.exists() else "there is no such file"
        raise SidelitError(what, path=given, hint="name the `site/sidelit.toml` of a project")
    project = path.parent.parent
    shown = path.relative_to(project).as_posix()
    top = read_table(path, shown)
    root = top.take("source_root", str, "src").strip("/")
    tree = chapters.tree(project, root, top)
    docstring_style = chapters.read_docstring_style(top, chapters.DocstringStyle())
    codes = languages.codes(top)
    config = Config(
        path=path,
        project=project,
        title=top.take("title", str),
        tagline=top.take("tagline", str, ""),
        languages=codes,
        front=tuple(prose.prose(table, path.parent.name, codes) for table in top.tables("front")),
        parts=_parts(top, tree, docstring_style, codes),
        back=tuple(prose.prose(table, path.parent.name, codes) for table in top.tables("back")),
        back_label=top.take("back_label", str, ""),
        course=prose.course(top.table("course"), path.parent.name),
        labs=prose.labs(top.table("labs")),
        source_root=root,
        public=publication.read(top),
        licence_note=top.take("licence_note", str, ""),
        home_figure=top.take("home_figure", str, ""),
        authors=publication.authors(top),
        figures_torch=top.take("figures_torch", str, "") or None,
        macros=_macros(top),
        equation_numbers=docstring_style.numbered,
        inventories=read_inventories(top),
        override_assets=top.strings("override_assets"),
        pictures=tuple(_folder(each, project, top) for each in top.strings("pictures")),
        keep_going=top.take("keep_going", bool, False),
        lint_options=read_lint_options(top.table("lint")),
    )
    top.finish()
    _check(config, top)
    if config.order and not any(item.output == config.home for item in config.order):
        config = replace(config, home=config.order[0].output)
    folder = config.folder / languages.FOLDER
    spoken = languages.spoken(config.languages, folder, config.shown(folder), top)
    return replace(config, spoken=spoken)


def _parts(
    top: Table, tree: chapters.Tree, docstring_style: chapters.DocstringStyle, codes: Sequence[str]
) -> tuple[Part, ...]:
    """The parts, the workshop last: the numbers of the chapters that are read have no gap."""
    found = [chapters.part(table, tree, docstring_style, codes) for table in top.tables("parts")]
    return tuple(sorted(found, key=lambda part: part.workshop))


def _folder(said: str, project: Path, top: Table) -> str:
    """A folder of the project by its path from there."""
    name = said.rstrip("/")
    if not (assets.stays_inside(name) and (project / name).is_dir()):
        hint = 'write its path from the project folder, as in "docs/images"'
        raise top.error(f"`pictures` names {said!r}, which is no folder of the project", said, hint)
    return name


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


def _check(config: Config, top: Table) -> None:
    """Refuse files that do not exist, and two pages in one place."""
    for item in config.order:
        for path in (item.source, item.output, *(each.output for each in item.former if each.told)):
            _check_path(config, path, item, top)
        file = config.project / item.source
        if not file.exists() or file.is_dir():
            raise top.at(item.line, f"the file {item.source} does not exist")
        assets.refuse_outside(file, config.project, item.source)
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
