"""# The files of a project, as they are asked for

> The names of one file follow from a few others, and memory has no room for the trees of all.

So a file is read when something is asked about its module. What stays is its outline: what other files can
name, without the bodies of functions, whose trees take about thirty times as much memory as the text.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sidelit.errors import SidelitError
from sidelit.names.survey import Survey, survey
from sidelit.source import literals
from sidelit.source.decoding import read_source


@dataclass(frozen=True, slots=True)
class Written:
    """A source: its path in the project, the module that it is, its text or the file that holds it, and
    whether it is the `__init__` of a package.
    """

    path: str
    module: str
    text: str | Path
    package: bool = False


@dataclass(frozen=True, slots=True)
class File:
    """A source that was read: its lines, and its names."""

    path: str
    module: str
    package: bool
    lines: list[str]
    survey: Survey
    size: int


class Shelf(Mapping[str, File]):
    """The files of a project by their modules; those that Python cannot read are not there.

    :param modules: the names of all modules, whether they can be read or not
    :param size: the length of the texts whose outlines are at hand, in characters
    """

    def __init__(self, written: Iterable[Written]) -> None:
        named: dict[str, list[Written]] = {}
        for each in written:
            named.setdefault(each.module, []).append(each)
        self.modules = frozenset(named)
        # Of two files of one module nobody knows which one is imported.
        self.written = {module: files[0] for module, files in named.items() if len(files) == 1}
        self._outlines: dict[str, File | None] = {}
        self.size = 0

    def __getitem__(self, module: str) -> File:
        if module not in self._outlines:
            found = read(self.written[module])
            self._keep(module, outlined(found) if found else None)
        outline = self._outlines[module]
        if outline is None:
            raise KeyError(module)
        return outline

    def __iter__(self) -> Iterator[str]:
        return (module for module in self.written if module in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @contextmanager
    def whole(self, module: str) -> Iterator[File | None]:
        """A file with all that is in it, for as long as it is needed; `None` if Python cannot read it."""
        found = read(self.written[module])
        yield found
        if module not in self._outlines:
            self._keep(module, outlined(found) if found else None)

    def _keep(self, module: str, outline: File | None) -> None:
        self._outlines[module] = outline
        self.size += outline.size if outline else 0


def read(each: Written) -> File | None:
    """Read a file; `None` if it is not valid Python."""
    try:
        text = each.text if isinstance(each.text, str) else read_source(each.text, each.path)[0]
        text = re.sub(r"\r\n?", "\n", text).removeprefix("\ufeff")
        with _undisturbed():
            found = survey(literals.tree(text), each.module, each.package)
    except (SyntaxError, ValueError, RecursionError, MemoryError, SidelitError):
        return None
    return File(each.path, each.module, each.package, text.split("\n"), found, len(text))


def outlined(file: File) -> File:
    """Take from a file what no other file can name.

    Of a method it leaves what is needed to say what it assigns to `self`.
    """
    top = file.survey.top
    left = {
        binding.scope
        for scope in top.inner.values()
        for found in scope.attributes.values()
        for binding in found
    }
    for node, scope in tuple(top.inner.items()):
        around = [scope, *scope.around]
        if any(each.kind == "function" and each not in left for each in around):
            scope.bindings = {}
            del top.inner[node]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.body = []
    if isinstance(top.node, ast.Module):
        top.node.body = []
    return replace(file, lines=[], survey=Survey(top))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Make many objects without looking through all of them for some that are in nobody's use."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
