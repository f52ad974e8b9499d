"""# The imports of a file

> The imports that a file begins with are needed to run it and seldom to understand it, so a page folds them.

For example, these five lines stand folded, in one line that names `json` and `store`:

    from __future__ import annotations

    import json
    from typing import TYPE_CHECKING

    from .store import Store

The *leading run* is what a module begins with, behind its docstring: imports, `__all__`, and an `if` or a
`try` that does nothing but import. A comment ends it, because imports with words beside them are told for a
reason. Only a comment at the very top of the file that touches no import is about the whole file. A licence
above the run is folded with it. Hidden statements do not count. Two kinds of modules have no such run: those
that do nothing but import, and an `__init__.py`, for what it imports is what a package offers.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sidelit.records import quick
from sidelit.source.scan import Block, Scan


@quick
@dataclass(frozen=True, slots=True)
class Imported:
    """A module that a file imports, as the file names it, and the line that does."""

    module: str
    line: int


@dataclass(frozen=True, slots=True)
class Leading:
    """The imports that a file begins with.

    :param rows: the lines from the first of them to the last.
    """

    rows: range = range(0)
    modules: tuple[Imported, ...] = ()


NONE = Leading()


def leading(tree: ast.Module, found: Scan, path: str) -> Leading:
    """Find the imports that a file begins with; there are none where they are all that the file does."""
    body = [node for node in tree.body if node.lineno not in found.hidden]
    if body and _is_text(body[0]):
        spoken, body = body[0].end_lineno or 0, body[1:]
    else:
        spoken = 0
    run = list(_run(body, spoken, found))
    # A line with two statements goes with the second one.
    while run and len(run) < len(body) and run[-1].end_lineno == body[len(run)].lineno:
        run.pop()
    modules = tuple(each for node in run for each in _modules(node))
    whole = len(run) == len(body) or posixpath.basename(path.replace("\\", "/")) == "__init__.py"
    if whole or not modules or run[0].lineno == spoken:
        return NONE
    first = run[0].lineno
    # Where nothing but the docstring is between, both stand in one section.
    above = [event for event in found.events if isinstance(event, Block) and event.first < first]
    if found.licence and not above:
        first = found.licence.start
    return Leading(range(first, (run[-1].end_lineno or 0) + 1), modules)


def _run(body: Sequence[ast.stmt], spoken: int, found: Scan) -> Iterator[ast.stmt]:
    """The statements of the run; `spoken` is the last line of the docstring."""
    comments = [event for event in found.events if isinstance(event, Block)]
    before = spoken
    for node in body:
        last = node.end_lineno or node.lineno
        between = [each for each in comments if before < each.first <= last]
        # A comment at the very top that touches nothing is about the whole file.
        if before == 0 and between and between[0].last + 1 < node.lineno:
            del between[0]
        if between or not _imports(node):
            return
        yield node
        before = last


# ## What an import is


def _imports(node: ast.stmt) -> bool:
    """Whether a statement does nothing but import, or say what the module offers."""
    match node:
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.If(body=body, orelse=other):
            return all(map(_imports, body)) and all(map(_quiet, other))
        case ast.Try(body=body, handlers=handlers, orelse=other, finalbody=[]):
            rest = [*other, *(each for handler in handlers for each in handler.body)]
            return all(map(_imports, body)) and all(map(_quiet, rest))
    return _offers(node)


def _quiet(node: ast.stmt) -> bool:
    """Whether a statement may stand where an import has failed: it imports otherwise, or sets a constant."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Pass) or _imports(node)


def _offers(node: ast.stmt) -> bool:
    """Whether a statement says which names a module offers."""
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    else:
        return False
    return all(isinstance(each, ast.Name) and each.id == "__all__" for each in targets)


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _modules(node: ast.stmt) -> Iterator[Imported]:
    """The modules that a statement imports."""
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            yield from (Imported(name.name, each.lineno) for name in each.names)
        elif isinstance(each, ast.ImportFrom):
            dots, module = "." * each.level, each.module or ""
            named = [module] if module else [name.name for name in each.names]
            yield from (Imported(dots + name, each.lineno) for name in named)
