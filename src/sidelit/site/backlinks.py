"""# Backlinks

> Below a definition stands where it is used and which tests name it.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

from sidelit.cache import store
from sidelit.cache.graph import Graph, Task, note
from sidelit.cache.records import Ids, quick
from sidelit.config import chapters
from sidelit.config.chapters import Chapter, Proof
from sidelit.config.config import Config
from sidelit.errors import SidelitError
from sidelit.names.links import Definition
from sidelit.site.content import PageSection, SourcePage
from sidelit.site.identifiers import Identifiers
from sidelit.source import source, syntax
from sidelit.source.decoding import read_source

# ## Finding the tests
#
# > A test that a chapter names has to be there. It is looked for in the text of its file, and nothing is run.


Report = Callable[[SidelitError], None]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@quick
@dataclass(frozen=True, slots=True)
class Proved:
    """What a chapter calls its proof: the line in its file, and what it states in one sentence or paragraph.

    A file and a test that have a docstring state how it begins. Any other test states its name in words.
    """

    line: int = 1
    says: str = ""


def proofs(config: Config, report: Report, graph: Graph | None = None) -> dict[Proof, Proved]:
    """Each test that a chapter names; what is wrong goes to `report`, with the line that names it."""
    found: dict[Proof, Proved] = {}
    graph = graph or Graph()

    @cache
    def named(path: str) -> Mapping[str, Proved]:
        return graph.do(tests_read(config, path)) if (config.project / path).is_file() else {}

    for chapter in config.chapters:
        _check_run(config, chapter, report)
        for proof in chapter.proves:
            try:
                found[proof] = _proved(proof, config, named(proof.path))
            except SidelitError as error:
                report(error)
    return found


def tests_read(config: Config, path: str) -> Task[Mapping[str, Proved]]:
    """The functions and classes of a file and the methods of its classes, as pytest calls them.

    The file itself has the empty name.
    """
    text = read_source(config.project / path, path)[0]
    return Task("stated", store.digest(text, path), partial(_stated, text, path))


def _stated(text: str, path: str) -> dict[str, Proved]:
    try:
        tree = syntax.tree(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        source.parse(text, path)  # It says what is wrong, and where.
        raise
    lines = _NEWLINE.split(text)
    found = {"": Proved(1, _begins(syntax.docstring(tree, lines)))}
    for name, node in _definitions(tree):
        says = _begins(syntax.docstring(node, lines)) or _in_words(name)
        found.setdefault(name, Proved(_lines(node)[0], says))
    return found


_NEWLINE = re.compile("\r\n?|\n")


def _definitions(tree: ast.Module) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """The definitions of a file and of its classes in their order, by the names that pytest has for them."""
    todo: list[tuple[ast.AST, str]] = [(tree, "")]
    while todo:
        node, name = todo.pop()
        if isinstance(node, Function | ast.ClassDef):
            yield (name := f"{name}{node.name}"), node
            name += "::"
        if not isinstance(node, Function | ast.expr):
            todo += ((each, name) for each in reversed([*ast.iter_child_nodes(node)]))


def _begins(docstring: str) -> str:
    """The first paragraph, on one line."""
    return " ".join(docstring.strip().partition("\n\n")[0].split())


def _in_words(qualname: str) -> str:
    """The name of a test as the sentence that it stands for."""
    name = qualname.rpartition("::")[2]
    return name.removeprefix("test_").replace("_", " ") if name.startswith("test_") else ""


def _proved(proof: Proof, config: Config, tests: Mapping[str, Proved]) -> Proved:
    place = config.shown(config.path)
    if not (config.project / proof.path).is_file():
        raise SidelitError(f"the file {proof.path} does not exist", path=place, line=proof.line)
    if proof.name not in tests:
        close = difflib.get_close_matches(proof.name, tests, n=1)
        what = f"{proof.path} has no function or class {proof.name!r}"
        raise SidelitError(
            what, path=place, line=proof.line, hint=f"did you mean {close[0]!r}?" if close else None
        )
    return tests[proof.name]


def _check_run(config: Config, chapter: Chapter, report: Report) -> None:
    """The command that runs a chapter starts no test that does not prove it."""
    path = chapters.left_out(chapter.run, chapter.proves) if chapter.proves else ""
    if path:
        what = f"`run` starts {path}, which `proves` does not name"
        hint = "name it there, or let the command start another file"
        report(SidelitError(what, path=config.shown(config.path), line=chapter.line, hint=hint))


def test_files(config: Config) -> tuple[Path, ...]:
    """The files of all tests that chapters name."""
    paths = {proof.path: None for chapter in config.chapters for proof in chapter.proves}
    return tuple(config.project / path for path in paths)


# ## Where a definition is used
#
# > Below a definition stand the sections whose code names it, so that a reader can see it at work.
#
# They follow from the [links in code](identifiers.py), each turned round. A definition that names itself, and
# a class that is named by its own methods, are no news. Neither are the imports at the head of a file.


@quick
@dataclass(frozen=True, slots=True)
class Usage:
    """A section: its page, its id there, and the definition that it is part of, by its dotted name; empty
    outside of all definitions.
    """

    output: str
    id: str
    name: str


# The places that use each definition of a source, by the id of its section.
Uses = Mapping[str, tuple[Usage, ...]]


def ahead(
    config: Config, names: Identifiers, pages: Sequence[SourcePage], tests: Sequence[SourcePage]
) -> Iterator[Task[Any]]:
    """What `used_in` and `tested_by` do for each file."""
    for page in pages:
        if outline := names.outlines.get(page.item.source):
            yield page.task("used in", partial(_within, names, page), outline.digest)
    yield from (_tests_of(config, names, page) for page in tests)


def used_in(names: Identifiers, pages: Sequence[SourcePage]) -> Mapping[str, Uses]:
    """The uses of all definitions, by their sources; those on the page of a definition come first."""
    found: dict[str, dict[str, list[Usage]]] = {}
    for page in pages:
        outline = names.outlines.get(page.item.source)
        if outline is None:
            continue
        for to, place in page.once("used in", partial(_within, names, page), outline.digest):
            if section := names.section(to):
                found.setdefault(to.path, {}).setdefault(section, []).append(place)
    return {
        source: {each: _near(names, source, places[each]) for each in places}
        for source, places in found.items()
    }


def _near(names: Identifiers, source: str, places: Sequence[Usage]) -> tuple[Usage, ...]:
    own = names.shown[source].output
    return tuple(sorted(places, key=lambda place: place.output != own))


def _within(names: Identifiers, page: SourcePage) -> tuple[tuple[Definition, Usage], ...]:
    """What the code of a source uses, and in which of its definitions, each pair once."""
    return tuple({(to, place.name): (to, place) for to, place in reversed([*_uses(names, page)])}.values())[
        ::-1
    ]


def _uses(names: Identifiers, page: SourcePage) -> Iterator[tuple[Definition, Usage]]:
    sections: dict[int, PageSection] = {
        number: section for section in page.sections for number, _ in section.lines
    }
    for line, links in names.links(page.item.source).items():
        if (section := sections.get(line)) is None:
            continue
        place = Usage(page.item.output, section.id, section.qualname)
        for to in (link.to for link in links if isinstance(link.to, Definition)):
            if to.kind in ("class", "function") and not _inside(section, to, page):
                yield to, place


def _inside(section: PageSection, to: Definition, page: SourcePage) -> bool:
    return to.path == page.item.source and f"{section.qualname}.".startswith(f"{to.qualname}.")


# ## Which tests name a definition
#
# > Below a definition stand those tests of its chapter that name it, so that a claim leads to its proof.
#
# A chapter names the files that prove it, and here they are read as the sources are. What a test names itself
# counts, what the helpers and fixtures of its file name for it, and in a chapter what a tested definition is
# made of. Nothing is run. A test that names little is more about what it names than one that names much, so
# it comes first.


@quick
@dataclass(frozen=True, slots=True)
class Test:
    """A test: its file, its name as pytest knows it, its line, and the definitions that it names."""

    path: str
    name: str
    line: int
    named: tuple[Definition, ...]


# The tests of each definition of a source, by the id of its section.
Tests = Mapping[str, tuple[Test, ...]]


def texts(config: Config, graph: Graph) -> tuple[SourcePage, ...]:
    """The files of all tests, as source pages that no site shows; a file that cannot be read is left out."""
    own = {chapter.source for chapter in config.chapters}
    paths = dict.fromkeys(proof.path for chapter in config.chapters for proof in chapter.proves)
    return tuple(page for path in paths if path not in own and (page := _page(config, path, graph)))


def _page(config: Config, path: str, graph: Graph) -> SourcePage | None:
    try:
        written, _ = read_source(config.project / path, path)
    except (OSError, SidelitError):
        return None
    module = ".".join(PurePosixPath(path).with_suffix("").parts)
    item = Chapter(source=path, output="", name=path, module=module)
    digest = store.digest(path, written)
    return SourcePage(item, path, (), Ids(), digest=digest, code=digest, graph=graph)


def tested_by(
    config: Config, names: Identifiers, tests: Sequence[SourcePage], uses: Mapping[str, Uses]
) -> Mapping[str, Tests]:
    """The tests of all definitions, by their sources."""
    read = {page.item.source: page.graph.do(_tests_of(config, names, page)) for page in tests}
    return {
        chapter.source: _of_chapter(chapter, names, read, uses.get(chapter.source, {}))
        for chapter in config.chapters
        if chapter.proves
    }


def _of_chapter(
    chapter: Chapter, names: Identifiers, read: Mapping[str, Sequence[Test]], uses: Uses
) -> Tests:
    own = [test for proof in chapter.proves for test in read.get(proof.path, ()) if _is_of(test, proof)]
    found: dict[str, dict[Test, None]] = {}
    for test in sorted(dict.fromkeys(own), key=lambda test: len(test.named)):
        for to in test.named:
            if to.path == chapter.source and (section := names.section(to)):
                found.setdefault(section, {})[test] = None
                # Who tests a method tests its class, and who makes an object tests how it is made.
                for other in filter(None, (f"{section}.__init__", section.rpartition(".")[0])):
                    found.setdefault(other, {})[test] = None
    _spread(found, {section: [*_users(section, chapter, uses)] for section in names.sections(chapter.source)})
    return {section: tuple(each) for section, each in found.items()}


def _users(section: str, chapter: Chapter, uses: Uses) -> Iterator[str]:
    """What of its chapter uses a definition, and the class that it is a method of."""
    yield from (place.name for place in uses.get(section, ()) if place.output == chapter.output)
    yield section.rpartition(".")[0]


def _is_of(test: Test, proof: Proof) -> bool:
    return not proof.name or f"{test.name}::".startswith(f"{proof.name}::")


def _spread(found: dict[str, dict[Test, None]], users: Mapping[str, Sequence[str]]) -> None:
    """Let what no test names have the tests of those definitions beside it that use it."""
    waiting = {section: names for section, names in users.items() if section not in found}
    while reached := [each for each, names in waiting.items() if any(name in found for name in names)]:
        tests = {
            each: {test: None for name in waiting[each] for test in found.get(name, ())} for each in reached
        }
        found.update(tests)
        for each in reached:
            del waiting[each]


# ## A file of tests


def _tests_of(config: Config, names: Identifiers, page: SourcePage) -> Task[tuple[Test, ...]]:
    outline = names.outlines.get(page.item.source)
    key = (page.digest, outline.digest) if outline else ""
    return Task("tests", key, lambda: tuple(_found(config, names, page.item.source)))


def _found(config: Config, names: Identifiers, path: str) -> Iterator[Test]:
    try:
        tree = syntax.tree(read_source(config.project / path, path)[0])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    nodes = dict(_functions(tree))
    owners = {line: name for name, node in nodes.items() for line in _lines(node)}
    direct: dict[str, dict[Definition | str, None]] = {
        name: dict(_fixtures(node, nodes)) for name, node in nodes.items()
    }
    for line, links in names.links(path).items():
        for link in links if line in owners else ():
            if isinstance(link.to, Definition):
                own = link.to.path == path
                direct[owners[line]][link.to.qualname.replace(".", "::") if own else link.to] = None
    for name, node in nodes.items():
        if name.rpartition("::")[2].startswith("test"):
            yield Test(path, name, node.lineno, tuple(_named(name, direct)))


def _functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """The functions of a file and the methods of its classes, as pytest calls them."""
    for node in tree.body:
        if isinstance(node, Function):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from (
                (f"{node.name}::{each.name}", each) for each in node.body if isinstance(each, Function)
            )


def _lines(node: Function | ast.ClassDef) -> range:
    first = min(each.lineno for each in (node, *node.decorator_list))
    return range(first, (node.end_lineno or node.lineno) + 1)


def _fixtures(node: Function, nodes: Mapping[str, Function]) -> Iterator[tuple[str, None]]:
    """A parameter that is called as a function of the file is given what that returns."""
    parameters = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    yield from ((each.arg, None) for each in parameters if each.arg in nodes)


def _named(name: str, direct: Mapping[str, Mapping[Definition | str, None]]) -> Iterator[Definition]:
    """The classes and functions of others that a function names, by itself or through those beside it."""
    seen, left = set[Definition | str](), [name]
    while left:
        for each in direct.get(left.pop(), ()):
            if each in seen:
                continue
            seen.add(each)
            if isinstance(each, str):
                left.append(each)
            elif each.kind in ("class", "function"):
                yield each


# ## What stands below a definition
#
# > Where it is used and which tests name it, each as a link.
#
# A page is made again when either changes, so a page that asks is noted, with the source that it asked about.


# What a task notes that reads the uses and the tests of a source.
READ = "backlinks:{}"


@dataclass(frozen=True, slots=True)
class Backlinks:
    """Where the definitions of a site are used, and which tests name them, by their sources."""

    uses: Mapping[str, Uses] = field(default_factory=dict)
    tests: Mapping[str, Tests] = field(default_factory=dict)

    def of(self, source: str, section: str) -> tuple[tuple[Usage, ...], tuple[Test, ...]]:
        """The uses and the tests of one definition."""
        note(READ.format(source))
        return self.uses.get(source, {}).get(section, ()), self.tests.get(source, {}).get(section, ())

    def digest(self, source: str) -> str:
        """Stands for all uses and tests of a source."""
        known: dict[int, str] = {}  # The same tests stand below many definitions.
        tests = {
            section: [
                known.get(id(test)) or known.setdefault(id(test), f"{test.path}:{test.line} {test.name}")
                for test in found
            ]
            for section, found in self.tests.get(source, {}).items()
        }
        return store.digest(self.uses.get(source, {}), tests)
