"""# What the syntax tree knows

> Where the definitions are, what their docstrings say, and what tells two definitions of one name apart.

Lines and comments are the business of `source`. This module answers what only Python's own parser can: which
string is a docstring and what it evaluates to, and under which condition a definition stands.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sidelit.errors import SidelitError
from sidelit.source.literals import as_meant, tree


@dataclass(frozen=True, slots=True)
class Definition:
    """A `def` or a `class`, by the line of its keyword.

    :param traits: what sets it apart from another definition of its name: `setter`, `overload`, a condition.
    """

    name: str
    kind: Literal["class", "function"]
    traits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring, by the line its statement starts on.

    :param owner: line of the `def` or `class` it belongs to; 0 for the module's own.
    :param text: what it evaluates to, without the indentation.
    :param blank: how many blank lines it starts with.
    :param follower: line of the next statement of the same body, which may be the docstring's own line.
    :param misread: the lines of formulas that Python reads otherwise than they are written.
    """

    owner: int
    text: str
    blank: int
    follower: int
    misread: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """The syntax tree of a file, and all its definitions and docstrings."""

    tree: ast.Module
    definitions: dict[int, Definition]
    docstrings: dict[int, Docstring]


def survey(text: str, path: str) -> Survey:
    """Parse `text`, whose newlines are all `\\n`, and look at its definitions.

    :raises SidelitError: it is not valid Python.
    """
    tree = _parse(text, path)
    found = Survey(tree, {}, {})
    lines = text.split("\n")
    _note_docstring(tree, 0, found, lines)
    for node, conditions in _definitions(tree):
        kind: Literal["class", "function"] = "class" if isinstance(node, ast.ClassDef) else "function"
        traits = tuple(_accessors(node)) + tuple(conditions)
        found.definitions[node.lineno] = Definition(node.name, kind, traits)
        _note_docstring(node, node.lineno, found, lines)
    return found


def _parse(text: str, path: str) -> ast.Module:
    # Where these stand is never told by the parser, which does not even start on such a text.
    if culprit := re.search("[\0\ud800-\udfff]", text):
        line = text.count("\n", 0, culprit.start()) + 1
        raise SidelitError("not valid Python: a character that no source may hold", path=path, line=line)
    try:
        return tree(text)
    except SyntaxError as error:
        raise SidelitError(f"not valid Python: {error.msg}", path=path, line=error.lineno or 1) from None
    except (RecursionError, MemoryError):
        raise SidelitError("nested too deeply for Python's parser", path=path, line=1) from None


# ## Walking the statements

_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

# Expressions hold no definitions, so the walk stays among statements, and takes a tenth of the time of
# `ast.walk`.
_HOLDERS = (ast.stmt, ast.excepthandler, ast.match_case)


def _definitions(tree: ast.Module) -> Iterator[tuple[_Defined, tuple[str, ...]]]:
    """Yield each definition with the condition it stands under, inside the definition around it."""
    todo: list[tuple[ast.AST, tuple[str, ...]]] = [(tree, ())]
    while todo:
        parent, conditions = todo.pop()
        for child, branch in _branches(parent):
            inner = (branch,) if branch else conditions
            if isinstance(child, _Defined):
                yield child, inner
                inner = ()
            todo.append((child, inner))


def _branches(parent: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield the statements directly inside `parent`, with the words for the branch they are in."""
    if isinstance(parent, ast.If):
        condition = ast.unparse(parent.test)
        yield from ((child, condition) for child in parent.body)
        yield from ((child, f"not {condition}") for child in parent.orelse)
        return
    branch = ""
    if isinstance(parent, ast.ExceptHandler):
        branch = f"except {ast.unparse(parent.type)}" if parent.type else "except"
    for child in ast.iter_child_nodes(parent):
        if isinstance(child, _HOLDERS):
            yield child, branch


def _accessors(node: _Defined) -> Iterator[str]:
    """Yield what decorators say about a definition that shares its name on purpose."""
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        word = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if word in ("getter", "setter", "deleter", "overload"):
            yield word
        elif word == "register" and isinstance(decorator, ast.Call):
            yield " ".join([word, *map(ast.unparse, decorator.args)])


def _note_docstring(node: _Defined | ast.Module, owner: int, found: Survey, lines: list[str]) -> None:
    """Record the docstring of `node`, if it has one."""
    text = ast.get_docstring(node, clean=False)
    if text is None:
        return
    first = node.body[0]
    text, misread = as_meant(_written(first, lines), text)
    blank = len(text) - len(text.lstrip())
    follower = node.body[1].lineno if len(node.body) > 1 else 0
    found.docstrings[first.lineno] = Docstring(
        owner,
        inspect.cleandoc(text),
        text[:blank].count("\n"),
        follower,
        tuple(first.lineno + line for line in misread),
    )


def _written(statement: ast.stmt, lines: list[str]) -> str:
    """A statement as it stands in the source. Its columns count bytes."""
    end = statement.end_lineno or statement.lineno
    rows = [line.encode() for line in lines[statement.lineno - 1 : end]]
    rows[-1] = rows[-1][: statement.end_col_offset]
    rows[0] = rows[0][statement.col_offset :]
    return b"\n".join(rows).decode()
