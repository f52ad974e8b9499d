r"""# Which dialect a text is in

> A role or a directive is a mark of reST, a link in brackets and parentheses one of Markdown.

Nobody writes down in which markup a docstring is. Each dialect has marks that the other one gives no meaning
to, and they are counted by their kind. A text without any is read as most of its file is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

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
