r"""# The sections of Google and NumPy

> `Args:` and an indented block, or `Parameters` and a line of dashes: where each begins, and what it lists.

A docstring is cut at these headings, and every line belongs to one part. What the entries of a list mean is
for `docstring_parser` to say, one entry at a time; a list that it cannot read is printed as text. So no word
of a docstring is lost to a heading that merely looks like one.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from docstring_parser import ParseError, google, numpydoc
from docstring_parser.common import DocstringMeta, DocstringParam, DocstringReturns

Style = Literal["google", "numpy"]

# What a heading announces, as any author may spell it: a list of fields, a part of the text, a box.
_HEADINGS = {
    "fields": {
        "parameter": "args, arguments, params, parameters, keyword args, keyword arguments",
        "other": "other parameters, other params, other args, other arguments",
        "attribute": "attributes, attribute, class attributes, instance attributes",
        "returns": "returns, return",
        "yields": "yields, yield",
        "receives": "receives, receive",
        "raises": "raises, raise, exceptions, except",
        "warns": "warns, warn",
        "method": "methods",
        "see_also": "see also, related",
    },
    "label": {
        "examples": "examples, example",
        "notes": "notes",
        "references": "references, reference",
    },
    "box": {
        "note": "note",
        "tip": "tip, hint",
        "important": "important",
        "warning": "warning, warnings, caution, attention, danger",
        "todo": "todo",
    },
}
_KINDS = {
    form: {word: kind for kind, words in table.items() for word in words.split(", ")}
    for form, table in _HEADINGS.items()
}
Form = Literal["text", "fields", "label", "box", "heading"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a list: a name, its type as it was typed, and what is said about it, from line `line` on."""

    name: str
    type: str
    text: str
    line: int
    text_line: int


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a docstring.

    :param form: text; a list of fields; a part below a word of the press or of the author; a box.
    :param kind: the word of the press that is its heading.
    :param title: the heading as it was typed.
    :param line: the line on which `text` starts, from 0.
    """

    form: Form
    kind: str
    title: str
    text: str
    line: int


_GOOGLE = re.compile(r"([A-Z][\w-]*(?: [\w-]+)?):[ \t]*")
_ITEM = re.compile(r"[ \t]+(?:[-*+\u2022][ ]|\d+[.)][ ]|\S)")
_DASHES = re.compile(r"(-{3,}|={3,})[ \t]*")
_ROLE = re.compile(r":[a-z:]+:`(?:[^`<]*<)?[~!]?([^`<>]+)>?`|`+([^`]+)`+")


def style(text: str) -> Style | None:
    """In whose style the sections of a docstring are, if it has any."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if _underlined(lines, number) and line.strip().lower() in {**_KINDS["fields"], **_KINDS["label"]}:
            return "numpy"
        if (found := _GOOGLE.fullmatch(line)) and _kind(found[1])[0] != "heading" and _block_below(lines, number):
            return "google"
    return None


def parts(text: str, style: Style) -> list[Part]:
    """Cut a docstring at its headings."""
    return list(_numpy(text.split("\n")) if style == "numpy" else _google(text.split("\n")))


def _kind(title: str) -> tuple[Form, str]:
    word = title.strip().lower()
    for form in ("fields", "label", "box"):
        if word in _KINDS[form]:
            return form, _KINDS[form][word]  # type: ignore[return-value]
    return "heading", ""


def _underlined(lines: Sequence[str], number: int) -> bool:
    after = lines[number + 1] if number + 1 < len(lines) else ""
    above = lines[number - 1] if number else ""
    return bool(lines[number][:1].strip() and _DASHES.fullmatch(after)) and not above.strip()


def _numpy(lines: Sequence[str]) -> Iterator[Part]:
    heads = [number for number in range(len(lines)) if _underlined(lines, number)]
    known = [number for number in heads if _kind(lines[number])[0] != "heading"]
    # A title of the whole text, and what is in it, is no section of NumPy.
    heads = [number for number in heads if number >= min(known)]
    bounds = [*heads, len(lines)]
    yield from _part("text", "", "", lines, 0, bounds[0])
    for start, end in zip(heads, bounds[1:], strict=True):
        title = lines[start].strip()
        yield from _part(*_kind(title), title, lines, start + 2, end)


def _google(lines: Sequence[str]) -> Iterator[Part]:
    begun, number, fenced = 0, 0, False
    while number < len(lines):
        fenced ^= lines[number].startswith(("```", "~~~"))
        found = None if fenced else _GOOGLE.fullmatch(lines[number])
        if not found or not _block_below(lines, number) or not _is_heading(found[1], lines, number):
            number += 1
            continue
        end = number + 1
        while end < len(lines) and (not lines[end].strip() or lines[end][:1].isspace()):
            end += 1
        yield from _part("text", "", "", lines, begun, number)
        yield from _part(*_kind(found[1]), found[1], lines, number + 1, end)
        begun = number = end
    yield from _part("text", "", "", lines, begun, len(lines))


def _is_heading(title: str, lines: Sequence[str], number: int) -> bool:
    """Whether a line is no end of a sentence: a known heading, or a word or two with a block right below."""
    above = lines[number - 1].strip() if number else ""
    return _kind(title)[0] != "heading" or (not above and bool(lines[number + 1].strip()))


def _block_below(lines: Sequence[str], number: int) -> bool:
    """Whether what follows is indented, with no more than one blank line between."""
    below = [line for line in lines[number + 1 : number + 3] if line.strip()]
    return bool(below) and _ITEM.match(below[0]) is not None


def _part(form: Form, kind: str, title: str, lines: Sequence[str], start: int, end: int) -> Iterator[Part]:
    while start < end and not lines[start].strip():
        start += 1
    text = textwrap.dedent("\n".join(lines[start:end])).rstrip()
    if text or title:
        yield Part(form, kind, title, text, start)


# ## The entries of a list


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


_SENTENCE = re.compile(r"(?:\w[\w'-]*[,;]?\s+){3,}[\w'`-]+[.:]?|.*[.:]")


def _is_prose(row: Entry, part: Part) -> bool:
    """Whether the name of an entry is a sentence that stands where a name should."""
    if part.kind == "returns" or part.kind == "yields":
        return False
    return len(row.name.split()) > 3 and "," not in row.name and _SENTENCE.fullmatch(row.name) is not None


def _entry(part: Part, lines: Sequence[str], start: int, style: Style) -> Entry:
    kind = part.kind if part.kind in ("parameter", "returns", "yields", "raises") else "parameter"
    kind = {"warns": "raises", "see_also": "raises"}.get(part.kind, kind)
    if style == "google":
        body = "\n".join(lines) if kind in ("returns", "yields") else "\n".join(_even(lines))
        found = _google_parser().parse(f"{_TITLES[kind]}:\n" + textwrap.indent(body, "    ")).meta
    else:
        title = _TITLES[kind] if kind != "parameter" else "Parameters"
        found = _numpy_parser().parse(f"{title}\n{'-' * len(title)}\n" + "\n".join(lines)).meta
    if len(found) != 1:
        raise ParseError
    name, type_ = _named(found[0], lines[0], style)
    text = (found[0].description or "").strip("\n")
    first = text.strip().partition("\n")[0].strip()
    below = next((number for number, line in enumerate(lines) if first and first in line), 0)
    return Entry(_bare(name), _bare(type_), text, part.line + start, part.line + start + below)


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
