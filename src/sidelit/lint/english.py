"""# Lints for English

> How long sentences are, and what they begin with, shows where a reader will read twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from markdown_it.token import Token

from sidelit.lint.unit import words_of

SHORT = 7
_RUN = 3
# A sentence ends before a capital letter, a code span or a formula; `e.g.` and `vs.` go on.
_END = re.compile(
    r"(?<![ (]e\.g\.)(?<![ (]i\.e\.)(?<!\bvs\.)(?<!\bcf\.)(?<=[.!?])"
    r"[)\"'”’]*\s+(?=[\"'(“‘]*[A-Z\ue000-\ue004])"
)
# "This rank" names something; "This is" does not. "It is possible that" points at what follows.
_POINTER = re.compile(
    r"(?!It (?:is|was|has been|can be|may be) (?:\S+ ){1,2}(?:to|that)\b)"
    r"(?:Its?|They|Them|Theirs?|Those|Here|(?:This|That|These|One|Such)"
    r"(?=,? (?:is|are|was|were|has|have|had|can|may|must|will|would|should|does|do|did|also|takes?|makes?"
    r"|needs?|gives?|holds?|keeps?|means?|lets?)\b))\b"
)


def sentences(tokens: Sequence[Token], *, everywhere: bool = False) -> Iterator[tuple[Token, str]]:
    """The sentences of paragraphs and of the items of lists, each with the token that it stands in.

    With `everywhere` those of headings and tables, too.
    """
    before = ""
    for token in tokens:
        if token.type == "inline" and (everywhere or before == "paragraph_open"):
            yield from ((token, each) for each in _END.split(words_of(token).strip()) if each)
        before = token.type


def runs(tokens: Sequence[Token]) -> Iterator[tuple[Token, list[str]]]:
    """Three sentences or more of under seven words, one after the other in a paragraph."""
    for _, paragraph in groupby(sentences(tokens), key=lambda each: id(each[0])):
        for is_short, some in groupby(paragraph, key=lambda each: len(each[1].split()) < SHORT):
            found = list(some)
            if is_short and len(found) >= _RUN:
                yield found[0][0], [words for _, words in found]


def pointer(words: str) -> str:
    """The word with which a text begins, if it points at something before it; empty otherwise."""
    found = _POINTER.match(words)
    return found[0] if found else ""


def begin(words: str) -> str:
    """The first words of a sentence, for a message."""
    shown = re.sub("[\ue000-\ue004]", "…", words).split()
    return " ".join(shown[:6]) + (" …" if len(shown) > 6 else "")
