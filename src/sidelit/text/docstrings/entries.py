"""# What a section lists

> One entry after the other goes through `docstring_parser`: a name, a type, and what is said about it.

A list that it cannot read is printed as text.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from docstring_parser import ParseError, google, numpydoc
from docstring_parser.common import DocstringMeta, DocstringParam, DocstringReturns

from sidelit.text.docstrings.sections import Part, Style


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a list: a name, its type as it was typed, and what is said about it, from line `line` on."""

    name: str
    type: str
    text: str
    line: int
    text_line: int


def entries(part: Part, style: Style) -> list[Entry] | None:
    """The rows of a part that lists something; `None` if it is not understood as a list."""
    lines = part.text.split("\n")
    if style == "google" and part.kind in ("returns", "yields"):
        starts = [0]
    else:
        starts = [number for number, line in enumerate(lines) if line[:1].strip()]
    bounds = [*starts, len(lines)]
    try:
        rows = [
            _entry(part, lines[start:end], start, style)
            for start, end in zip(starts, bounds[1:], strict=True)
        ]
    except ParseError:
        return None
    return None if any(_is_prose(row, part) for row in rows) else rows


_ROLE = re.compile(r":[a-z:]{1,40}:`(?:[^`<]*<)?[~!]?([^`<>]+)>?`|`+([^`]+)`+")
_SENTENCE = re.compile(r"(?:\w[\w'-]*[,;]?\s+){3,}[\w'`-]+[.:]?|.*[.:]")


def _is_prose(row: Entry, part: Part) -> bool:
    """Whether the name of an entry is the begin of a list, or a sentence that stands where a name should."""
    if re.match(r"[-*+\u2022]\s", row.name):
        return True
    if part.kind == "returns" or part.kind == "yields":
        return False
    return len(row.name.split()) > 3 and "," not in row.name and _SENTENCE.fullmatch(row.name) is not None


def _entry(part: Part, lines: Sequence[str], start: int, style: Style) -> Entry:
    kind = {"warns": "raises"}.get(part.kind, part.kind if part.kind in _TITLES else "parameter")
    if style == "google":
        body = "\n".join(lines) if kind in ("returns", "yields") else "\n".join(_even(lines))
        # The parser removes the indentation below the first line, which is none of a list.
        found = _google_parser().parse(f"-\n{_TITLES[kind]}:\n" + textwrap.indent(body, "    ")).meta
    else:
        title = _TITLES[kind] if kind != "parameter" else "Parameters"
        found = _numpy_parser().parse(f"{title}\n{'-' * len(title)}\n" + "\n".join(lines)).meta
    if len(found) != 1:
        raise ParseError
    name, type_ = _named(found[0], lines[0], style)
    text, below = _said(found[0], lines)
    if part.kind == "see_also":
        # What stands behind the colon there is no type.
        type_, text = "", "\n".join(each for each in (type_, text) if each)
    return Entry(_bare(name), _bare(type_), text, part.line + start, part.line + start + below)


def _said(meta: DocstringMeta, lines: Sequence[str]) -> tuple[str, int]:
    """What is said about an entry, and how far below it that begins.

    The parser would drop a blank line below the first one.
    """
    first = (meta.description or "").strip().partition("\n")[0].strip()
    if not first:
        return "", 0
    below = next((number for number, line in enumerate(lines) if line.rstrip().endswith(first)), 0)
    rest = textwrap.dedent("\n".join(lines[below + 1 :]))
    return f"{first}\n{rest}".rstrip(), below


_TITLES = {"parameter": "Args", "returns": "Returns", "yields": "Yields", "raises": "Raises"}


def _even(lines: Sequence[str]) -> list[str]:
    """Lines below the first one, however far their author has indented them."""
    below = textwrap.dedent("\n".join(lines[1:]))
    return [lines[0], *textwrap.indent(below, "    ").split("\n")] if below.strip() else [lines[0]]


def _named(meta: DocstringMeta, line: str, style: Style) -> tuple[str, str]:
    """The name and the type of an entry, as they were typed."""
    if isinstance(meta, DocstringParam):
        if style == "numpy":
            return meta.arg_name, line[len(meta.arg_name) :].strip().removeprefix(":").strip()
        return meta.arg_name, (meta.type_name or "") + (", optional" if meta.is_optional else "")
    if isinstance(meta, DocstringReturns):
        return meta.return_name or "", meta.type_name or ""
    return str(getattr(meta, "type_name", "") or ""), ""


def _bare(text: str) -> str:
    """Without roles and quotes of code: a name stands in a column of code anyway."""
    return _ROLE.sub(lambda found: found[1] or found[2], text).replace("\\*", "*").strip()


@cache
def _google_parser() -> google.GoogleParser:
    return google.GoogleParser()


@cache
def _numpy_parser() -> numpydoc.NumpydocParser:
    return numpydoc.NumpydocParser()
