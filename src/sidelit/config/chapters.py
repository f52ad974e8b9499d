"""# Chapters

> The sources of a part: which files they are, what their pages are called, and which tests prove them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from sidelit.config import languages
from sidelit.config.toml import Table
from sidelit.files import assets

# ## What docstrings are written in
#
# > Markdown, reST, the sections of Google or NumPy: said for a site, or for a part of it.
#
# KaTeX numbers the rows of `align`, as LaTeX does. MathJax, which most other tools print formulas with, does
# not, and authors who write for it do not expect any numbers. `equation_numbers` says whether there are some;
# where it says nothing, only the press's own dialect has them.


# `auto` looks at each docstring.
DIALECTS = ("markdown", "rest", "google", "numpy", "auto")


@dataclass(frozen=True, slots=True)
class DocstringStyle:
    """How docstrings are written: their dialect, and what is said of the numbers of equations."""

    dialect: str = "markdown"
    numbers: bool | None = None

    @property
    def numbered(self) -> bool:
        """Whether equations have numbers that nobody wrote."""
        return self.dialect == "markdown" if self.numbers is None else self.numbers


def read_docstring_style(table: Table, usual: DocstringStyle) -> DocstringStyle:
    """The docstring style of a table of the configuration; `usual` where it says nothing."""
    said: str = table.take("dialect", str, usual.dialect)
    if said not in DIALECTS:
        hint = f"the press reads {', '.join(DIALECTS)}"
        raise table.error(f"unknown dialect {said!r}", "dialect", hint=hint)
    given = "equation_numbers" in table.data
    return DocstringStyle(said, table.take("equation_numbers", bool) if given else usual.numbers)


# ## Chapters by pattern
#
# > A list of chapters may say `"*.py"` where it would name every file.
#
#     [[parts]]
#     label = "Layers"
#     folder = "src/nets/layers"
#     chapters = ["base.py", "**/*.py", "!old/*.py"]
#
# A pattern stands for the files that it matches in the folder of its part: `__init__.py` first, the others by
# their names, and those of subfolders behind them. What is listed already, here or in another part, it leaves
# out, and so it does with what a pattern behind an exclamation mark matches. The page of such a file has its
# path below the source root, so that many folders may each have their `utils.py`. With `index_pages = true`
# the page of a package, `nets/layers/__init__.py`, is `nets/layers/index.html`, as web hosts expect it.


_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Tree:
    """Where sources lie: the folder of the project, and what is listed by name or was matched already."""

    project: Path
    root: str
    """The source root, below the project."""
    index: bool = False
    """Whether the page of a package is the `index.html` of its folder."""
    taken: set[str] = field(default_factory=set)


def tree(project: Path, root: str, top: Table) -> Tree:
    """The sources of a project, with what its parts list by name."""
    found = Tree(project, root, top.take("index_pages", bool, False))
    # What has another form than it should have is refused by whoever takes it.
    for part in _dicts(top.data.get("parts")):
        folder = part.get("folder", root)
        for stretch in (part, *_dicts(part.get("groups"))):
            entries, below = stretch.get("chapters"), str(stretch.get("folder", folder)).strip("/")
            for entry in entries if isinstance(entries, list) else ():
                given = entry.get("source") if isinstance(entry, dict) else entry
                if isinstance(given, str) and not _PATTERN.search(given) and not given.startswith("!"):
                    found.taken.add(str(PurePosixPath(below, given)))
    return found


def _dicts(said: object) -> list[dict[str, Any]]:
    return [each for each in said if isinstance(each, dict)] if isinstance(said, list) else []


def matching_chapters(table: Table, folder: str, tree: Tree) -> Iterator[Table]:
    """The entries of a part, each pattern as those that it stands for, at the place of the pattern.

    Raises `SidelitError` at a pattern that matches nothing, and at what is neither a table nor a string.
    """
    entries = table.take("chapters", list, [])
    not_these = [entry[1:] for entry in entries if isinstance(entry, str) and entry.startswith("!")]
    for number, entry in enumerate(entries):
        if isinstance(entry, dict):
            yield table.inside(entry, "chapters", number)
        elif not isinstance(entry, str):
            raise table.error("`chapters` must be a list of tables and patterns", "chapters")
        elif not entry.startswith("!"):
            for found in _matched(entry, folder, not_these, tree, table):
                yield table.inside(found, "chapters", number)


def _matched(
    entry: str, folder: str, not_these: Iterable[str], tree: Tree, table: Table
) -> Iterator[dict[str, str]]:
    base = tree.project / folder
    if not _PATTERN.search(entry):
        yield _entry(entry, folder, tree)
        return
    found = _below(base, entry, table)
    for each in not_these:
        found -= _below(base, each, table)
    seen = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    if not seen:
        hint = "a pattern is matched below the part's `folder`"
        raise table.error(f"no Python file in {folder}/ is matched by {entry!r}", entry, hint=hint)
    for path in sorted(seen, key=_order):
        place = str(PurePosixPath(folder, path.as_posix()))
        if place not in tree.taken:
            tree.taken.add(place)
            _check_name(place, table, entry)
            yield _entry(path.as_posix(), folder, tree)


def _below(folder: Path, pattern: str, table: Table) -> set[Path]:
    """The Python files that a pattern matches, by their paths below a folder."""
    if PurePath(pattern).anchor:
        hint = "a pattern is matched below the part's `folder`"
        raise table.error(f"{pattern!r} is no pattern: it begins at the root of the disk", pattern, hint=hint)
    try:
        found = [path for path in folder.glob(pattern) if path.suffix == ".py" and path.is_file()]
    except ValueError as error:
        raise table.error(f"{pattern!r} is no pattern: {error}", pattern) from None
    return {path.relative_to(folder) for path in found}


def _order(path: Path) -> list[tuple[bool, str]]:
    """What lies in a folder comes before what lies in its subfolders, and `__init__` before all."""
    *folders, name = path.parts
    return [*((True, each) for each in folders), (False, "" if name == "__init__.py" else name)]


def _entry(given: str, folder: str, tree: Tree) -> dict[str, str]:
    """The entry that would name a file: its page has the path below the source root."""
    source = PurePosixPath(folder, given)
    below = source.relative_to(tree.root) if source.is_relative_to(tree.root) else source
    inside = below.with_suffix("")
    # At the top of the site that is the place of its own first page.
    as_index = tree.index and inside.name == "__init__" and len(inside.parts) > 1
    if as_index and not (tree.project / source.with_name("index.py")).exists():
        output = f"{inside.with_name('index')}.html"
    else:
        output = f"{inside}.html"
    # The package is a part of the name already.
    name = PurePosixPath(*inside.parts[1:]) if len(inside.parts) > 1 else inside
    return {"source": given, "name": str(name), "output": output}


def _check_name(place: str, table: Table, entry: str) -> None:
    try:
        place.encode()
    except UnicodeEncodeError:
        what = f"the name of the file {ascii(place)[1:-1]} is not UTF-8"
        raise table.error(what, entry, hint="give it another name") from None


# ## What a page is called
#
# > A page keeps its name while its file moves, and its name decides its address.
#
# The name of a page files its translations, its published ids and its citations. So it must outlast the
# folder that its source lies in today. `site/sidelit.toml` gives it, or else it is the stem of the file:
#
# | `source` | beside it | name | address |
# |---|---|---|---|
# | `unit.py` | | `book/unit` | `unit.html` |
# | `zero/unit.py` | | `book/unit` | `unit.html` |
# | `zero/hooks.py` | `name = "layer"` | `book/layer` | `layer.html` |
# | `zero/hooks.py` | `output = "a/b.html"` | `book/hooks` | `a/b.html` |
# | `zero/hooks.py` | `was = ["layer"]` | `book/hooks` | `hooks.html`; `layer.html` forwards there |
#
# The first word is the package, here the folder `book` below the source root: two packages may have a chapter
# of one name. A page of prose is not moved for the sake of imports, and readers know its folder; so its name
# is its path.


# The folder of the pages of labs.
LABS = "labs"


@dataclass(frozen=True, slots=True)
class Former:
    """A name that a page had before, and the address that it had with it.

    :param told: true when `was` says so. Otherwise it is the name that the page's path would give, under
        which older sites have filed it.
    """

    name: str
    output: str
    told: bool = True


@dataclass(frozen=True, slots=True)
class Called:
    """What a page is called: its name, its address, and what it was called before."""

    name: str
    output: str
    former: tuple[Former, ...] = ()


def chapter(table: Table, source: PurePosixPath, given: str, below: PurePosixPath, folder: str) -> Called:
    """Name the page of a source.

    :param given: its path as the configuration writes it.
    :param below: its path below the source root.
    :param folder: the folder of the site that the pages of its part lie in.
    """
    package = below.parts[0] if len(below.parts) > 1 else ""
    name = _name(table, given, source.stem)
    own = _placed(name, folder)
    output = _output(table, given, own)
    called = str(PurePosixPath(package, name))
    told = [
        Former(str(PurePosixPath(package, old)), _placed(old, folder)) for old in _was(table, given, name)
    ]
    by_path = (
        Former(
            str(below.with_suffix("")), _placed(str(PurePosixPath(given).with_suffix("")), folder), told=False
        ),
        Former(called, own, told=False),
    )
    known = {(called, output), *((each.name, each.output) for each in told)}
    quiet = [each for each in by_path if (each.name, each.output) not in known]
    return Called(called, output, (*told, *quiet))


def prose(table: Table, given: str, folder: str) -> Called:
    """Name a page of Markdown, whose path below the folder of the pages is `given`."""
    name = _name(table, given, str(PurePosixPath(given).with_suffix("")))
    output = _output(table, given, _placed(name, ""))
    told = (Former(f"{folder}/{old}", _placed(old, "")) for old in _was(table, given, name))
    return Called(f"{folder}/{name}", output, tuple(told))


def lab(table: Table, stem: str) -> Called:
    """Name the page of a lab: the number that its file begins with is for the folder, not for the address."""
    name = _name(table, stem, re.sub(r"^\d+_", "", stem))
    told = (Former(f"{LABS}/{old}", _placed(old, LABS)) for old in _was(table, stem, name))
    return Called(f"{LABS}/{name}", _output(table, stem, _placed(name, LABS)), tuple(told))


def _placed(name: str, folder: str) -> str:
    """The address of a page of this name: a dot in it is a part of the name."""
    return str(PurePosixPath(folder, f"{name}.html"))


def _name(table: Table, given: str, stem: str) -> str:
    name = table.take("name", str, stem)
    # A file may be called anything; only a name that somebody chose is held to the rules.
    return name if name == stem else _sound(table, given, "name", name)


def _was(table: Table, given: str, name: str) -> list[str]:
    said = table.take("was", list, [])
    names = [_sound(table, given, "was", each if isinstance(each, str) else "") for each in said]
    for each in names:
        if each == name or names.count(each) > 1:
            what = f"the page {name!r} is called so now" if each == name else f"`was` names {each!r} twice"
            raise table.error(what, given, hint=f"remove {each!r} from `was`")
    return names


def _sound(table: Table, given: str, key: str, name: str) -> str:
    """Refuse what could not be a path without a suffix: the name is one, of the page and of its catalogue."""
    if not assets.stays_inside(name) or name.endswith((".html", ".py", ".md")):
        what = f"{name!r} in `{key}` is not the name of a page"
        hint = 'write a stem, as in "unit", or a path without a suffix, as in "zero/unit"'
        raise table.error(what, given, hint=hint)
    return name


def _output(table: Table, given: str, own: str) -> str:
    output = table.take("output", str, own)
    if output != own and not (assets.stays_inside(output) and output.endswith(".html")):
        what = f"{output!r} in `output` is not the address of a page"
        raise table.error(what, given, hint='write a path in the site, as in "zero/unit.html"')
    return output


# ## The tests that prove a chapter
#
# > A chapter names its tests, as pytest would be told to run them.
#
#     proves = ["tests/ring.py", "tests/ring.py::test_put", "tests/many.py::TestMany::test_last"]
#
# Here the names are read; [another stage](../site/backlinks.py) finds the tests.


@dataclass(frozen=True, slots=True)
class Proof:
    """One test, or all tests of a file.

    :param path: the file, from the project folder.
    :param name: a function, a class, or `Class::method`; empty for the whole file.
    :param line: where the configuration names it.
    """

    path: str
    name: str = ""
    line: int = 1

    def __str__(self) -> str:
        """The name by which pytest runs it."""
        return f"{self.path}::{self.name}" if self.name else self.path


def read_proofs(table: Table) -> tuple[Proof, ...]:
    """Take `proves` from the entry of a chapter."""
    return tuple(_proofs(table))


def _proofs(table: Table) -> Iterator[Proof]:
    seen: set[str] = set()
    for said in table.take("proves", list, []):
        if not isinstance(said, str):
            raise table.error("`proves` must be a list of strings", "proves")
        path, _, name = said.partition("::")
        place = PurePosixPath(path)
        line = table.line(said)
        if place.suffix != ".py" or str(place) != path or place.is_absolute() or ".." in place.parts:
            hint = 'name a file from the project folder, as in "tests/test_ring.py::test_put"'
            raise table.at(line, f"{said!r} in `proves` is not the name of a test", hint)
        if said in seen:
            raise table.at(line, f"`proves` names {said!r} twice")
        seen.add(said)
        yield Proof(path, name, line)


def left_out(run: str | None, proofs: Sequence[Proof]) -> str:
    """The first file that a command gives to pytest without its being among the proofs, if there is one."""
    try:
        words = shlex.split(run or "")
    except ValueError:
        return ""
    files = [word.partition("::")[0] for word in words if "pytest" in words]
    known = {proof.path for proof in proofs}
    return next((path for path in files if path.endswith(".py") and path not in known), "")


# ## Chapters
#
# > A chapter is one literate source, and a part is chapters under one heading.
#
# Both are read from `site/sidelit.toml`. What a part says about its chapters, such as the dialect of their
# docstrings or the languages that they stand in, holds for all of them.
#
# A long part has groups, which the contents fold. A group may say for itself what its part says for all:
#
#     [[parts]]
#     label = "Workshop"
#     workshop = true
#
#     [[parts.groups]]
#     label = "The cache"
#     chapters = ["cache/*.py"]
#
# What readers of a book do not have to read is its *workshop*. Its pages are printed, linked and found as all
# others are, but the way from page to page leaves them out, the contents keep them folded, and nobody owes
# them a translation.


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
    """What its docstrings are written in, one of `sidelit.config.chapters.DIALECTS`."""
    equation_numbers: bool = True
    """Whether the rows of its formulas have numbers that nobody wrote."""
    languages: tuple[str, ...] = ()
    """The languages it stands in; empty for all those of the site."""
    group: str = ""
    """The group of its part that it is in, by its label."""
    workshop: bool = False
    """Whether it is in the workshop."""

    @property
    def kind(self) -> str:
        """The kind of page that it is, as the registry of kinds calls it."""
        return "chapter"


@dataclass(frozen=True, slots=True)
class Part:
    """Chapters under one heading of the table of contents."""

    number: str
    label: str
    chapters: tuple[Chapter, ...]
    question: str = ""
    """What a reader may ask that it answers."""
    workshop: bool = False


def part(table: Table, tree: Tree, usual: DocstringStyle, codes: Sequence[str]) -> Part:
    """Read one part: `usual` is the docstring style of the site, and `codes` are its languages."""
    number, label, question = (
        table.take("number", str, ""),
        table.take("label", str),
        table.take("question", str, ""),
    )
    workshop = table.take("workshop", bool, False)
    folder, output = table.take("folder", str, tree.root).strip("/"), table.take("output", str, "").strip("/")
    said = _Said(folder, output, read_docstring_style(table, usual), languages.kept(table, codes))
    chapters = list(_chapters(table, tree, said))
    for group in table.tables("groups"):
        name = group.take("label", str)
        own = _Said(
            group.take("folder", str, folder).strip("/"),
            group.take("output", str, output).strip("/"),
            read_docstring_style(group, said.docstring_style),
            languages.kept(group, codes) or said.languages,
        )
        chapters += (replace(each, group=name) for each in _chapters(group, tree, own))
        group.finish()
    table.finish()
    return Part(
        number, label, tuple(replace(each, workshop=workshop) for each in chapters), question, workshop
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """What a part or a group says about all of its chapters."""

    folder: str
    output: str
    docstring_style: DocstringStyle
    languages: tuple[str, ...]


def _chapters(table: Table, tree: Tree, said: _Said) -> Iterator[Chapter]:
    """The chapters that a part or a group lists."""
    dialect, numbered = said.docstring_style.dialect, said.docstring_style.numbered
    for entry in matching_chapters(table, said.folder, tree):
        made = _chapter(entry, said.folder, said.output, tree.root)
        yield replace(made, dialect=dialect, equation_numbers=numbered, languages=said.languages)


def _chapter(table: Table, folder: str, output: str, root: str) -> Chapter:
    given = table.take("source", str)
    if not given.endswith(".py"):
        raise table.error(f"{given!r} is not a Python file", given)
    source = PurePosixPath(folder) / given
    below = source.relative_to(root) if source.is_relative_to(root) else source
    run, proved = table.take("run", str, "") or None, read_proofs(table)
    called = chapter(table, source, given, below, output)
    table.finish()
    return Chapter(
        source=str(source),
        output=called.output,
        name=called.name,
        run=run,
        proves=proved,
        module=module_name(source, below),
        former=called.former,
        line=table.line(given),
    )


def module_name(source: PurePosixPath, below: PurePosixPath) -> str:
    """The name a program imports a source by, when its path below the source root is `below`."""
    parts = below.with_suffix("").parts
    if parts == ("__init__",):
        return source.parent.name
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
