"""# The files of a project, as they are asked for

> The names of one file follow from a few others, and memory has no room for the trees of all.

So a file is read when something is asked about its module, and when many were read they are put away before
the next one is printed. The tree of a file takes about thirty times as much memory as its text.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sidelit.errors import SidelitError
from sidelit.names.survey import Survey, survey
from sidelit.source.decoding import read_source


@dataclass(frozen=True, slots=True)
class Written:
    """A source: its path in the project, the module that it is, its text or the file that holds it, and whether
    it is the `__init__` of a package.
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


class Shelf(Mapping[str, File]):
    """The files of a project by their modules; those that Python cannot read are not there.

    :param size: the length of the texts that were read so far, in characters
    """

    def __init__(self, written: Iterable[Written]) -> None:
        self.written: dict[str, Written] = {}
        for each in written:
            # Of two files of one module nobody knows which one is imported.
            self.written[each.module] = each if each.module not in self.written else _NOBODY
        self._read: dict[str, File | None] = {}
        self.size = 0

    def __getitem__(self, module: str) -> File:
        if module not in self._read:
            self._read[module] = self._file(self.written[module])
        found = self._read[module]
        if found is None:
            raise KeyError(module)
        return found

    def __iter__(self) -> Iterator[str]:
        return (module for module in self.written if module in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _file(self, each: Written) -> File | None:
        try:
            text = each.text if isinstance(each.text, str) else read_source(each.text, each.path)[0]
            text = re.sub(r"\r\n?", "\n", text).removeprefix("\ufeff")
            self.size += len(text)
            with _undisturbed():
                tree = ast.parse(text)
                found = survey(tree, each.module, each.package)
        except (SyntaxError, ValueError, RecursionError, MemoryError, SidelitError):
            return None
        return File(each.path, each.module, each.package, text.split("\n"), found)


_NOBODY = Written("", "", "(")


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
