"""# Which tests name a definition

> Below a definition stand those tests of its chapter that name it, so that a claim leads to its proof.

A chapter names the files that prove it, and here they are read as the sources are. What a test names itself
counts, what the helpers and fixtures of its file name for it, and in a chapter what a tested definition is
made of. Nothing is run. A test that names little is more about what it names than one that names much, so it
comes first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from sidelit import digests
from sidelit.chapters import Chapter
from sidelit.config import Config
from sidelit.errors import SidelitError
from sidelit.memory import Memory
from sidelit.names.links import Definition
from sidelit.packed import Ids
from sidelit.proofs import Proof
from sidelit.site.content import Text
from sidelit.site.identifiers import Identifiers
from sidelit.site.used_in import Uses
from sidelit.source import literals
from sidelit.source.decoding import read_source
from sidelit.source.surface import of_text


@dataclass(frozen=True, slots=True)
class Test:
    """A test: its file, its name as pytest knows it, its line, and the definitions that it names."""

    path: str
    name: str
    line: int
    named: tuple[Definition, ...]


# The tests of each definition of a source, by the id of its section.
Tests = Mapping[str, tuple[Test, ...]]


def texts(config: Config, memory: Memory) -> tuple[Text, ...]:
    """The files of all tests, as texts that no page shows; a file that cannot be read is left out."""
    own = {chapter.source for chapter in config.chapters}
    paths = dict.fromkeys(proof.path for chapter in config.chapters for proof in chapter.proves)
    return tuple(text for path in paths if path not in own and (text := _text(config, path, memory)))


def _text(config: Config, path: str, memory: Memory) -> Text | None:
    try:
        written, _ = read_source(config.project / path, path)
    except (OSError, SidelitError):
        return None
    module = ".".join(PurePosixPath(path).with_suffix("").parts)
    item = Chapter(source=path, output="", name=path, module=module)
    return Text(
        item,
        path,
        (),
        Ids(),
        digest=digests.digest(path, written),
        surface=of_text(written),
        memory=memory,
    )


def tested_by(
    config: Config, names: Identifiers, tests: Sequence[Text], uses: Mapping[str, Uses]
) -> Mapping[str, Tests]:
    """The tests of all definitions, by their sources."""
    read = {text.item.source: _tests(config, names, text) for text in tests}
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


def _tests(config: Config, names: Identifiers, text: Text) -> tuple[Test, ...]:
    outline = names.outlines.get(text.item.source)
    key = (text.digest, outline.digest, digests.digest(outline.targets)) if outline else ""
    return text.memory.of("tests", key, lambda: tuple(_found(config, names, text.item.source)))


def _found(config: Config, names: Identifiers, path: str) -> Iterator[Test]:
    try:
        tree = literals.tree(read_source(config.project / path, path)[0])
    except (SyntaxError, ValueError, RecursionError):
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


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """The functions of a file and the methods of its classes, as pytest calls them."""
    for node in tree.body:
        if isinstance(node, Function):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from (
                (f"{node.name}::{each.name}", each) for each in node.body if isinstance(each, Function)
            )


def _lines(node: Function) -> range:
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
