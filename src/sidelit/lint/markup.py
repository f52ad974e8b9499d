"""# Lints for markup

> Whatever is not words is the same in every language: code, formulas, links, numbers, as many times.

A translator may put them in any order, as the grammar of the language wants it. These rules find most of
what goes wrong in a translation whoever made it, and none of them needs to know a word of the language.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator

from sidelit.lint.unit import CODE, MATH, Pair, readable

# What is left of Markdown among the words: a marker that was not closed, or not in a way that counts.
_MARKERS = re.compile(r"\*+|`+|\$+|]\(|\[\^|(?<!\w)_+|_+(?!\w)|~~|[｀＊＄]|</?[A-Za-z]|\\")
_EMPTY = re.compile(r"（\s*）|\(\s*\)|「\s*」|『\s*』|“\s*”|\[\s*]|【\s*】")
_ADJACENT = re.compile(rf"(?=[{CODE}{MATH}]\s*[{CODE}{MATH}])")
# English says small numbers as words where Japanese and Chinese write digits.
_NUMBER_WORDS = {
    "0": "zero no none",
    "1": "one a an once single first only each every alone per",
    "2": "two twice both second double pair half other",
    "3": "three third thrice",
    "4": "four fourth quarter",
    "5": "five fifth",
    "6": "six sixth",
    "7": "seven seventh",
    "8": "eight eighth eighths",
    "9": "nine ninth",
    "10": "ten tenth",
    "11": "eleven",
    "12": "twelve dozen",
    "14": "fourteen",
    "15": "fifteen",
    "16": "sixteen",
    "20": "twenty",
    "32": "thirty-two",
    "50": "fifty",
}


def code_spans(pair: Pair) -> Iterator[str]:
    """The same code spans."""
    yield from _compare(pair.original.codes, pair.translation.codes, "`{}`")


def formulas(pair: Pair) -> Iterator[str]:
    """The same formulas."""
    yield from _compare(pair.original.formulas, pair.translation.formulas, "${}$")


def links(pair: Pair) -> Iterator[str]:
    """Links and images with the same targets."""
    yield from _compare(pair.original.links, pair.translation.links, "the link to {}")


def footnotes(pair: Pair) -> Iterator[str]:
    """The same references to footnotes."""
    yield from _compare(pair.original.footnotes, pair.translation.footnotes, "[^{}]")


def blanks(pair: Pair) -> Iterator[str]:
    """The same blanks that a value is filled into, such as {n}."""
    yield from _compare(pair.original.blanks, pair.translation.blanks, "{{{}}}")


def emphasis(pair: Pair) -> Iterator[str]:
    """As much strong and emphasised text, as many hard line breaks."""
    names = {"strong": "**strong** text", "em": "*emphasised* text", "hardbreak": "a hard line break"}
    original = Counter({names[kind]: count for kind, count in pair.original.emphasis.items()})
    translation = Counter({names[kind]: count for kind, count in pair.translation.emphasis.items()})
    yield from _compare(original, translation, "{}")


def numbers(pair: Pair) -> Iterator[str]:
    """The same numbers; a digit may stand for a number that the original writes as a word."""
    original, translation = _numbers(pair.original.words), _numbers(pair.translation.words)
    # A term may have a number of its own: to flatten is 1次元化.
    beside_terms = _numbers(pair.vocabulary.known.sub(" ", pair.translation.words))
    said = set(re.findall(r"[a-z]+(?:-two)?|\d-d", pair.original.words.lower()))
    extra = Counter(
        {
            number: count
            for number, count in (beside_terms - original).items()
            if not said.intersection((*_NUMBER_WORDS.get(number, "").split(), f"{number}-d"))
        }
    )
    # Chinese writes the dimensions of a tensor with characters: 1-D is 一维.
    missing = _numbers(re.sub(r"\b\d-D\b", "", pair.original.words)) - translation
    yield from _compare(missing, extra, "the number {}")


def _numbers(words: str) -> Counter[str]:
    """The numbers among the words, however their digits and thousands are written."""
    plain = unicodedata.normalize("NFKC", words)
    return Counter(number.replace(",", "") for number in re.findall(r"\d+(?:[.,]\d+)*", plain))


def _compare(original: Counter[str], translation: Counter[str], shown: str) -> Iterator[str]:
    for item in original - translation:
        yield f"the translation lacks {shown.format(item)}"
    for item in translation - original:
        yield f"the translation adds {shown.format(item)}"


def structure(pair: Pair) -> Iterator[str]:
    """One block stays one block: no list, heading or second paragraph inside it."""
    if pair.translation.content.count("\n") > pair.original.content.count("\n"):
        yield "the translation has a line break that the original has not; write it on one line"
    elif len(pair.original.blocks) == 3 and pair.translation.blocks != pair.original.blocks:
        yield "the translation starts like another kind of block (a list, heading or field); begin with words"


def stray_markers(pair: Pair) -> Iterator[str]:
    """No marker that turned into text."""
    left: Counter[str] = Counter(_MARKERS.findall(pair.translation.words))
    left -= Counter(_MARKERS.findall(pair.original.words))
    for marker in left:
        yield f"the marker {marker} is left over as text; open and close it the Markdown way"


def empty_parentheses(pair: Pair) -> Iterator[str]:
    """No parentheses or quotes around nothing."""
    found = _EMPTY.findall(pair.translation.words)
    if len(found) > len(_EMPTY.findall(pair.original.words)):
        yield f"{found[0]} holds nothing"


def adjacent_spans(pair: Pair) -> Iterator[str]:
    """No two spans side by side that words keep apart in the original."""
    words = pair.translation.words
    found = list(_ADJACENT.finditer(words))
    if len(found) > len(_ADJACENT.findall(pair.original.words)):
        around = readable(words[found[0].start() : found[0].start() + 3]).strip()
        yield f"two spans stand side by side ({around}); put the words between them that the original has"
