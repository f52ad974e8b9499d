r"""# Formulas in a docstring that is not raw

> Python reads `\t` of `\times` as a tab. Inside a formula, what the author has written is taken instead.

TeX commands begin with a backslash, and so do Python's escapes. In a docstring without the prefix `r`,
`$1 \times 1$` evaluates to a formula with a tab and the letters `imes`, and nobody is told. Authors whose
other tools read the source as it is written never notice.

So each formula of such a docstring is looked at as it is written. If a command in it has a single backslash,
all of the formula is taken as it is written, with the doubled backslashes that end a row. All other text is
what Python evaluates it to, and so is a formula whose author has doubled every backslash.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence

from sidelit.errors import SidelitError


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


class Misread(SidelitError):
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
