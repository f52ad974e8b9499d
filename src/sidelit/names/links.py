"""# The links of a file

> Each identifier that means one thing for certain, with its place and what it means.

The name that a definition gives is no link, and neither is what is bound on the line where it is used, nor
`self`: such a link would lead to where the reader is looking.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sidelit.names.binding import absolute, place
from sidelit.names.library import Library, Meaning
from sidelit.names.scopes import Binding, Scope
from sidelit.names.shelf import File, Shelf, Written
from sidelit.names.survey import Import
from sidelit.names.values import Values
from sidelit.records import quick


@quick
@dataclass(frozen=True, slots=True)
class Definition:
    """Where a name is defined.

    :param path: the file; the line 0 stands for the whole file.
    :param kind: `class`, `function`, `variable`, `parameter`, or `module`.
    :param qualname: the dotted name in its module.
    """

    path: str
    line: int
    kind: str
    qualname: str


@dataclass(frozen=True, slots=True)
class Link:
    """An identifier: its column in its line, counted in characters, its text, and what it means: a definition
    of the project, or a dotted name from outside.
    """

    start: int
    text: str
    to: Definition | str


Links = Mapping[int, tuple[Link, ...]]


# How much text stays outlined before all of it is put away, in characters.
MOST = 1_000_000


class Names:
    """The names of a project.

    A file that Python cannot read has none. What was read is put away at the end of `with`.

    :param most: the length of the texts that may be outlined before the next file is asked for
    """

    def __init__(self, written: Iterable[Written], most: int = MOST) -> None:
        self._written = tuple(written)
        self._most = most
        self._begin()
        self.paths = {each.module: each.path for each in self.shelf.written.values()}
        self._modules = {path: module for module, path in self.paths.items()}

    def _begin(self) -> None:
        self.shelf = Shelf(self._written)
        self.library = Library(self.shelf)
        self.values = Values(self.library)

    def __enter__(self) -> Names:
        return self

    def __exit__(self, *raised: object) -> None:
        self._put_away()

    def _put_away(self) -> None:
        # Scopes know each other, so they are garbage that only the collector finds.
        if self.shelf.size:
            self._begin()
            gc.collect()

    def links(self, path: str) -> Links:
        """The links of a file, by line."""
        if self.shelf.size > self._most:
            self._put_away()
        if path not in self._modules:
            return {}
        found: dict[int, dict[int, Link]] = {}
        with self.shelf.whole(self._modules[path]) as file:
            for line, link in self._all(file) if file else ():
                found.setdefault(line, {})[link.start] = link
        return {line: tuple(links[start] for start in sorted(links)) for line, links in sorted(found.items())}

    def _all(self, file: File) -> Iterator[tuple[int, Link]]:
        for node, scope in file.survey.uses:
            yield from self._used(file, node, scope)
        for each, scope in file.survey.imports:
            yield from self._imported(file, each, scope)

    def _used(self, file: File, node: ast.Name | ast.Attribute, scope: Scope) -> Iterator[tuple[int, Link]]:
        try:
            meaning = self.values.meaning(node, scope)
        except RecursionError:
            return
        if isinstance(node, ast.Name):
            yield from self._link(file, meaning, node.lineno, node.col_offset, node.id)
        else:
            yield from self._link(file, meaning, *place(node), node.attr)

    def _imported(self, file: File, node: Import, scope: Scope) -> Iterator[tuple[int, Link]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._module(file, alias.name, alias.lineno, alias.col_offset, alias.name)
            return
        package = file.module if file.package else file.module.rpartition(".")[0]
        origin = absolute(node, package)
        line = file.lines[node.lineno - 1]
        said = re.compile(r"from\s+(\.*)\s*").match(line, _characters(line, node.col_offset))
        if said and node.module:
            column = len(line[: said.end()].encode())
            yield from self._module(file, origin, node.lineno, column, node.module)
        for alias in node.names:
            if alias.name != "*":
                meaning = self.library.member(origin, alias.name) if origin else None
                yield from self._link(file, meaning, alias.lineno, alias.col_offset, alias.name)

    def _module(self, file: File, name: str, line: int, column: int, text: str) -> Iterator[tuple[int, Link]]:
        """Link each part of a dotted name of a module, of which `text` is written."""
        above = name[: len(name) - len(text)]
        for part in re.finditer(r"[^.]+", text):
            meaning = self.library.module(above + text[: part.end()])
            before = len(text[: part.start()].encode())
            yield from self._link(file, meaning, line, column + before, part[0])

    def _link(
        self, file: File, meaning: Meaning | None, line: int, column: int, text: str
    ) -> Iterator[tuple[int, Link]]:
        to = self._target(meaning)
        if to is None:
            return
        if isinstance(to, Definition) and (to.path, to.line) == (file.path, line):
            return
        row = file.lines[line - 1]
        start = _characters(row, column)
        # Some versions of Python are mistaken about places inside of f-strings.
        if row[start : start + len(text)] == text:
            yield line, Link(start, text, to)

    def _target(self, meaning: Meaning | None) -> Definition | str | None:
        if isinstance(meaning, str):
            if meaning in self.shelf:
                return Definition(self.paths[meaning], 0, "module", "")
            return None if self.library.inside(meaning) else meaning
        if meaning is None or meaning.kind == "import" or _is_receiver(meaning):
            return None
        path = self.paths[meaning.scope.module]
        return Definition(path, meaning.line, meaning.kind, meaning.qualname)


def _is_receiver(meaning: Binding) -> bool:
    return meaning.kind == "parameter" and meaning.name == meaning.scope.receiver


def _characters(line: str, column: int) -> int:
    """A column in characters from one in bytes."""
    return column if line.isascii() else len(line.encode()[:column].decode(errors="ignore"))
