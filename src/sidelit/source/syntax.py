"""# What the syntax tree knows

> Definitions and docstrings, as Python reads them, and formulas as their author wrote them.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from sidelit.errors import SidelitError, SourceFault
from sidelit.source.newer import RUNNING, newer

# ## Formulas in a docstring that is not raw
#
# > Python reads `\t` of `\times` as a tab. Inside a formula, what the author has written is taken instead.
#
# TeX commands begin with a backslash, and so do Python's escapes. In a docstring without the prefix `r`,
# `$1 \times 1$` evaluates to a formula with a tab and the letters `imes`, and nobody is told. Authors whose
# other tools read the source as it is written never notice.
#
# So each formula of such a docstring is looked at as it is written. If a command in it has a single
# backslash, all of the formula is taken as it is written, with the doubled backslashes that end a row. All
# other text is what Python evaluates it to, and so is a formula whose author has doubled every backslash.


def tree(text: str) -> ast.Module:
    """Parse Python as `ast.parse` does, in silence.

    A doubtful escape in somebody's string is a matter for their linter, not for a reader's build.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


# Several literals side by side have no text of their own that could be taken.
_LITERAL = re.compile(r'([uU]?)("""|\'\'\'|"|\')(.*)\2', re.DOTALL)
_PIECE = re.compile(
    r"\\(?:\n|[0-7]{1,3}|x[0-9a-fA-F]{2}|N\{[^}]*\}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)|[^\\]+", re.DOTALL
)
_ESCAPES = frozenset("\n\\'\"abfnrtvxNuU01234567")
# `$5 and $10` is no formula: one touches its dollars, has no blank line in it, and no digit behind it.
_FORMULA = re.compile(
    r"""
      (?<![\\$]) \$\$ (?: [^$] )+? \$\$
    | (?<![\\$]) \$ (?![\s$]) (?: [^$`\n] | \n (?! [ \t]*\n ) )+? (?<!\s) \$ (?! [\d$] )
    | (?P<slash> (?<!\\) \\{1,2} ) (?: \( (?: [^$`\n] | \n (?! [ \t]*\n ) )+? (?P=slash) \)
                                     | \[ (?: [^$`\n] | \n (?! [ \t]*\n ) )+? (?P=slash) \] )
    | (?<!\\) \\begin\{ (?P<name>\w+\*?) \} .*? (?<!\\) \\end\{ (?P=name) \}
    """,
    re.DOTALL | re.VERBOSE,
)
# A command of TeX behind a single backslash. What Python takes for an escape, as `\n`, may be one: it is
# where more letters follow, as in `\nabla`.
_COMMAND = re.compile(r"(?<!\\)(?:\\\\)*\\(?:[abfnrtv](?=[A-Za-z])|[A-Zc-eg-mo-qsuw-z])")


def as_meant(literal: str, value: str) -> tuple[str, tuple[int, ...]]:
    """A docstring with its formulas as they are written, and the lines on which that makes a difference.

    :param literal: the docstring in the source, quotes and all.
    :param value: what Python evaluates it to.
    :returns: the text; and of each formula that Python reads otherwise the line, counted from that of the
        opening quotes as 0.
    """
    found = _LITERAL.fullmatch(literal)
    if found is None:
        return value, ()
    written = found[3]
    broken = [
        each
        for each in _FORMULA.finditer(written)
        if _COMMAND.search(each[0]) and _evaluated(each[0]) != each[0]
    ]
    if not broken:
        return value, ()
    parts, lines, at = [], [], 0
    for each in broken:
        parts += [_evaluated(written[at : each.start()]), each[0]]
        lines.append(written.count("\n", 0, each.start()))
        at = each.end()
    parts.append(_evaluated(written[at:]))
    # A piece may only be cut where an escape ends; otherwise Python's reading is kept.
    if _evaluated(written) != value:
        return value, ()
    return "".join(parts), tuple(lines)


def _evaluated(written: str) -> str:
    return "".join(map(_piece, _pieces(written)))


def _pieces(written: str) -> Iterator[str]:
    return (found[0] for found in _PIECE.finditer(written))


def _piece(written: str) -> str:
    """What Python makes of plain text, or of one escape."""
    # Python keeps the backslash of what is no escape, and would warn of it.
    if not written.startswith("\\") or written[1:2] not in _ESCAPES:
        return written
    return str(ast.literal_eval(f'"""{written}"""'))


def misread(path: str, lines: Sequence[int]) -> Iterator[SidelitError]:
    """What an author is told of such formulas: one sentence a file, at the first of them."""
    if not lines:
        return
    what = "Python reads a backslash in this formula as an escape; it is printed as it is written"
    if len(lines) > 1:
        named = ", ".join(map(str, sorted(lines)[:_NAMED])) + (", …" if len(lines) > _NAMED else "")
        what = f"Python reads backslashes in {len(lines)} formulas as escapes (lines {named}); "
        what += "they are printed as they are written"
    hint = 'begin the docstring with r"""'
    yield Misread(what, path=path, line=min(lines), hint=hint)


class Misread(SourceFault):
    """Formulas of a source that Python reads otherwise than they are written."""


def commands(literal: str) -> Iterator[int]:
    """The lines of the commands with one backslash in the formulas of a docstring that is not raw.

    They count from the line of the opening quotes as 0.
    """
    found = _LITERAL.fullmatch(literal)
    written = found[3] if found else ""
    for each in _FORMULA.finditer(written):
        if command := _COMMAND.search(each[0]):
            yield written.count("\n", 0, each.start() + command.start())


# The lines that a sentence names.
_NAMED = 5


# ## What the syntax tree knows
#
# > Where the definitions are, what their docstrings say, and what tells two definitions of one name apart.
#
# Lines and comments are the business of `scan`. This module answers what only Python's own parser can:
# which string is a docstring and what it evaluates to, and under which condition a definition stands.


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

    :param owner: line of the `def` or `class` it belongs to; 0 for the module's own, or `NOBODY`.
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


# The owner of a string that is no docstring.
NOBODY = -2


@dataclass(frozen=True, slots=True)
class Survey:
    """The syntax tree of a file, and all its definitions and docstrings."""

    tree: ast.Module
    definitions: dict[int, Definition]
    docstrings: dict[int, Docstring]
    strings: dict[int, Docstring]
    """Strings that are statements of the module or of a class, and nobody's docstring."""
    attributes: dict[int, int]
    """The lines of assignments, and those of the strings right below them."""


def survey(text: str, path: str) -> Survey:
    """Parse `text`, whose newlines are all `\\n`, and look at its definitions.

    :raises SidelitError: it is not valid Python.
    """
    tree = parsed(text, path)
    found = Survey(tree, {}, {}, {}, {})
    lines = text.split("\n")
    _note_docstring(tree, 0, found, lines)
    for node, conditions in _definitions(tree):
        kind: Literal["class", "function"] = "class" if isinstance(node, ast.ClassDef) else "function"
        traits = tuple(_accessors(node)) + tuple(conditions)
        found.definitions[node.lineno] = Definition(node.name, kind, traits)
        _note_docstring(node, node.lineno, found, lines)
        if isinstance(node, ast.ClassDef):
            _note_strings(node, found, lines)
    _note_strings(tree, found, lines)
    return found


def _note_strings(node: ast.ClassDef | ast.Module, found: Survey, lines: list[str]) -> None:
    """Record the strings that are statements of their own, and the assignments that they are below."""
    above: ast.stmt | None = None
    for statement, below in pairwise([*node.body, None]):
        value = statement.value if isinstance(statement, ast.Expr) else None
        words = value.value if isinstance(value, ast.Constant) else None
        follower = below.lineno if below else 0
        if statement and isinstance(words, str) and statement.lineno not in found.docstrings:
            last = statement.end_lineno or statement.lineno
            if not 0 < follower <= last and (above is None or (above.end_lineno or 0) < statement.lineno):
                string = _docstring(statement, words, NOBODY, follower, lines)
                found.strings[statement.lineno] = string
                between = lines[above.end_lineno or 0 : statement.lineno - 1] if above else []
                if isinstance(above, ast.Assign | ast.AnnAssign) and not "".join(between).strip():
                    found.attributes[above.lineno] = statement.lineno
        above = statement


def parsed(text: str, path: str) -> ast.Module:
    """Parse a file, whose newlines are all `\\n`.

    :raises SidelitError: it is not valid Python, or is that of a newer Python than the press runs on.
    """
    # Where these stand is never told by the parser, which does not even start on such a text.
    if culprit := re.search("[\0\ud800-\udfff]", text):
        line = text.count("\n", 0, culprit.start()) + 1
        raise SidelitError("not valid Python: a character that no source may hold", path=path, line=line)
    try:
        return tree(text)
    except SyntaxError as error:
        if found := newer(text, tree):
            since, runs = (".".join(map(str, version)) for version in (found.since, RUNNING))
            what = f"{found.what} needs Python {since} or newer, and the press runs on Python {runs}"
            hint = f"install the press with Python {since}"
            raise SidelitError(what, path=path, line=found.line, hint=hint) from None
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


def docstring(node: _Defined | ast.Module, lines: list[str]) -> str:
    """The docstring of a definition or of a file in these lines, its formulas as they are written."""
    stands = _introduction(node)
    return "" if stands is None else _docstring(node.body[stands[0]], stands[1], NOBODY, 0, lines).text


def _introduction(node: _Defined | ast.Module) -> tuple[int, str] | None:
    """Which statement is the docstring of `node`, and what it evaluates to; nothing if it has none.

    Below `from __future__ import …` a string is none to Python, but the author's introduction to the file.
    """
    at = 0
    if isinstance(node, ast.Module):
        at = next((at for at, each in enumerate(node.body) if not _is_future(each)), len(node.body))
    match node.body[at : at + 1]:
        # What shares its lines with imports is code.
        case [ast.Expr(value=ast.Constant(value=str(text)))] if not at or _is_alone(node.body, at):
            return at, text
    return None


def _is_alone(body: Sequence[ast.stmt], at: int) -> bool:
    """Whether a statement shares its lines with none of the others."""
    around = body[max(at - 1, 0) : at + 2]
    return all((one.end_lineno or 0) < other.lineno for one, other in pairwise(around))


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__" and not statement.level


def _note_docstring(node: _Defined | ast.Module, owner: int, found: Survey, lines: list[str]) -> None:
    """Record the docstring of `node`, if it has one."""
    stands = _introduction(node)
    if stands is None:
        return
    at, text = stands
    follower = node.body[at + 1].lineno if at + 1 < len(node.body) else 0
    found.docstrings[node.body[at].lineno] = _docstring(node.body[at], text, owner, follower, lines)


def _docstring(statement: ast.stmt, text: str, owner: int, follower: int, lines: list[str]) -> Docstring:
    text, misread = as_meant(_written(statement, lines), text)
    blank = len(text) - len(text.lstrip())
    misread_lines = tuple(statement.lineno + line for line in misread)
    return Docstring(owner, inspect.cleandoc(text), text[:blank].count("\n"), follower, misread_lines)


def _written(statement: ast.stmt, lines: list[str]) -> str:
    """A statement as it stands in the source. Its columns count bytes."""
    end = statement.end_lineno or statement.lineno
    rows = [line.encode() for line in lines[statement.lineno - 1 : end]]
    rows[-1] = rows[-1][: statement.end_col_offset]
    rows[0] = rows[0][statement.col_offset :]
    return b"\n".join(rows).decode()
