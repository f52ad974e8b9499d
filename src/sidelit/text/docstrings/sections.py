"""# Sections of a docstring

> Which dialect a text is in, and where the sections of Google and NumPy begin.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

# ## Which dialect a text is in
#
# > A role or a directive is a mark of reST, a link in brackets and parentheses one of Markdown.
#
# Nobody writes down in which markup a docstring is. Each dialect has marks that the other one gives no
# meaning to, and they are counted by their kind. A text without any is read as most of its file is.


Markup = Literal["markdown", "rest"]

# What a mark repeats ends where another mark of its kind may begin, so that no text takes long to judge.
_FLAGS = re.MULTILINE | re.VERBOSE
# Nobody types these by chance, or in any other dialect.
_CERTAIN = tuple(
    re.compile(mark, _FLAGS)
    for mark in (
        r":[a-zA-Z][\w:+.-]{0,80}:`[^`]+`",  # a role
        r"^[ \t]*\.\.[ ](?:[\w:+.-]+::|\[[^\]\n]+\][ ]|_[^\n]+:|\|[^|\n]+\|[ ])",  # a directive, a target
    )
)
_REST = _CERTAIN + tuple(
    re.compile(mark, _FLAGS)
    for mark in (
        r"`[^`\n]+`__?(?!\w)",  # a reference
        r"\[(?:\d+|\#\w*|\*|[A-Za-z][\w.-]*)\]_(?!\w)",  # a footnote
        r"::[ \t]*\n[ \t]*\n[ \t]+\S",  # a literal block
        r"^[ \t]*\+[-=]{2,}\+",  # a table with a frame
        r"^[ \t]*={2,}(?:[ ]+={2,})+[ \t]*$",  # a table without one
        r"^([=~^\"'*+\#`-])\1{2,}\n[^\n]+\n\1{3,}[ \t]*$",  # a title between two lines
        r"(?<!`)``[^`\n]+``(?!`)",  # a literal; to Markdown it is code too, but hardly anybody writes it so
    )
)
_MARKDOWN = tuple(
    re.compile(mark, _FLAGS)
    for mark in (
        r"^[ \t]*(?:```|~~~)",  # a fence
        r"\]\((?:[^()\s]|\([^()\s]*\))+\)",  # a link, a picture
        r"(?<![\w\]])\[[^\[\]\n]+\]\[[^\]\n]*\]",  # a link by a name
        r"^\#{1,6}[ ]\S",  # a heading
        r"\$\$|(?<![\w$\\])\$[^\s$][^$\n]*\$(?![\d$])",  # a formula
        r"^!!![ ]",  # an admonition
        r"^[ \t]*\|.*\|[ \t]*\n[ \t]*\|[\s:|-]+\|[ \t]*$",  # a table
        r"<a[ ](?:id|name)=",  # a name for a place
        r"^[ \t]*\[\^?[^\]\n]+\]:[ ]",  # where a link leads, what a note says
    )
)


def weight(text: str) -> int:
    """How much speaks for reST; what speaks for Markdown counts against it."""
    rest, certain, markdown = (
        sum(bool(mark.search(text)) for mark in marks) for marks in (_REST, _CERTAIN, _MARKDOWN)
    )
    return rest + certain - markdown


def most(texts: Iterable[str]) -> Markup:
    """The markup of most of the texts of a file; Markdown where nothing speaks for either."""
    return "rest" if sum(max(-1, min(1, weight(text))) for text in texts) > 0 else "markdown"


def markup(text: str, otherwise: Markup) -> Markup:
    """The markup of one text; `otherwise` is that of its file."""
    balance = weight(text)
    return otherwise if balance == 0 else "rest" if balance > 0 else "markdown"


# What has a meaning in reST and none in a plain paragraph.
_MARKED = re.compile(
    r"[*`|\\<>$&\[\]#@]|_(?!\w)|\w:(?!\s)|::|://|^\s+\S|^[-+\u2022:]|^\(?\w{1,5}[.)][ ]|^([^\w\s])\1",
    re.MULTILINE,
)


def plain(text: str) -> bool:
    """Whether a text is paragraphs without any markup, which every dialect reads alike."""
    return _MARKED.search(text) is None


# ## The sections of Google and NumPy
#
# > `Args:` and an indented block, or `Parameters` and a line of dashes: where each begins.
#
# A docstring is cut at these headings, and every line belongs to one part, so that no word is lost to a line
# that merely looks like a heading. What the entries of a list mean, [tokens](tokens.py) says.


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
_DASHES = re.compile(r"(-{3,}|={3,})[ \t]*")


def style(text: str, dialect: str) -> Style | None:
    """In whose style the sections of a docstring are, if it has any; `dialect` is what is said about it."""
    if dialect == "rest":
        return None
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if dialect != "google" and _underlined(lines, number) and _kind(line)[0] in ("fields", "label"):
            return "numpy"
        found = _GOOGLE.fullmatch(line) if dialect != "numpy" else None
        if found and _kind(found[1])[0] != "heading" and _block_below(lines, number):
            return "google"
    return None


def parts(text: str, style: Style) -> list[Part]:
    """Cut a docstring at its headings."""
    return list(_numpy(text.split("\n")) if style == "numpy" else _google(text.split("\n")))


def _kind(title: str) -> tuple[Form, str]:
    word = title.strip().lower()
    for form in ("fields", "label", "box"):
        if word in _KINDS[form]:
            return form, _KINDS[form][word]
    return "heading", ""


def _underlined(lines: Sequence[str], number: int) -> bool:
    after = lines[number + 1] if number + 1 < len(lines) else ""
    above = lines[number - 1] if number else ""
    # Those of NumPy need no blank line above.
    begun = not above.strip() or _kind(lines[number])[0] != "heading"
    return bool(lines[number][:1].strip() and _DASHES.fullmatch(after)) and begun


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
    return bool(below) and below[0][:1].isspace()


def _part(form: Form, kind: str, title: str, lines: Sequence[str], start: int, end: int) -> Iterator[Part]:
    while start < end and not lines[start].strip():
        start += 1
    text = textwrap.dedent("\n".join(lines[start:end])).rstrip()
    if text or title:
        yield Part(form, kind, title, text, start)
