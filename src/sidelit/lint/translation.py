"""# Lints for one sentence

> A sentence and its translation are taken apart once, and each rule compares a few of the parts.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from markdown_it.token import Token

from sidelit.config.glossary import Finder, Glossary
from sidelit.text import inline_syntax, markup

# ## A sentence and its translation, as lints see them
#
# > Taken apart once, so that each rule is a few lines.
#
# A rule looks at words or at markup, seldom at both. So the markup is counted here, and in the words that
# remain each code span, formula, footnote mark and image is one private character: spacing and adjacency
# can then be judged as if everything were letters.


CODE, MATH, NOTE, IMAGE, BLANK = "\ue000", "\ue001", "\ue002", "\ue003", "\ue004"
# What a value is filled into, such as {n}. Formulas, which have braces too, are taken out before.
_BLANKS = re.compile(r"\{(\w+)\}")
# The characters that an ideograph is set apart from in Chinese, and never in Japanese.
LATIN = rf"[A-Za-z0-9{CODE}{MATH}{BLANK}]"
# Character classes for ideographs and kana; `々` and the long vowel mark count as such.
_KANA = "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
CJK = f"[\u3005-\u3007{_KANA}\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
WIDE = "[、。，．；：！？（）「」『』“”‘’《》〈〉【】…]"


@dataclass(frozen=True, slots=True)
class Side:
    """One language's sentence: its words, and its markup as multisets."""

    content: str
    words: str
    codes: Counter[str]
    formulas: Counter[str]
    links: Counter[str]
    footnotes: Counter[str]
    blanks: Counter[str]
    emphasis: Counter[str]
    blocks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The glossary as one language uses it.

    `known` matches every word it accepts or forbids, the longest first; `latin` what may stay Latin.
    """

    glossary: Glossary
    finder: Finder
    lang: str
    known: re.Pattern[str]
    latin: re.Pattern[str]


def vocabulary(glossary: Glossary, lang: str) -> Vocabulary:
    """Prepare the glossary for one language."""
    accepted = [word for row in glossary.terms for word in row.accept[lang]]
    wrong = [word for row in glossary.terms for word in (*row.never, *row.wrong)]
    known, latin = _any_of((*accepted, *wrong)), _any_of((*accepted, *glossary.allow))
    return Vocabulary(glossary, Finder(glossary), lang, known, latin)


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    # A Latin word is only itself as a whole: `ZeRO` is no reason to pass over `ZeROth`.
    forms = sorted(set(words), key=len, reverse=True)
    bounded = [rf"(?<![A-Za-z]){re.escape(form)}(?![A-Za-z])" for form in forms]
    return re.compile("|".join(bounded) or r"(?!)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Pair:
    """What a rule is given."""

    lang: str
    original: Side
    translation: Side
    vocabulary: Vocabulary


def pair(msgid: str, msgstr: str, vocabulary: Vocabulary) -> Pair:
    """Take a sentence and its translation apart."""
    labels = dict.fromkeys(re.findall(r"\[\^([^\]\s]+)]", msgid))
    return Pair(vocabulary.lang, _side(msgid, labels), _side(msgstr, labels), vocabulary)


def _side(content: str, labels: Iterable[str]) -> Side:
    footnotes = {label: number for number, label in enumerate(labels)}
    empty = Token("inline", "", 0, meta={"references": {}, "footnotes": footnotes})
    children = list(_flat(markup.reinline(empty, content).children or []))
    return Side(
        content=content,
        words="".join(map(_words, children)),
        codes=Counter(child.content for child in children if child.type == "code_inline"),
        formulas=Counter(" ".join(child.content.split()) for child in children if _is_math(child)),
        links=Counter(_target(child) for child in children if child.type in ("link_open", "image")),
        footnotes=Counter(str(child.meta["label"]) for child in children if child.type == "footnote_ref"),
        blanks=Counter(name for child in children for name in _blanks(child)),
        emphasis=Counter(child.type.removesuffix("_open") for child in children if _is_emphasis(child)),
        blocks=tuple(token.type for token in markup.parse(content)),
    )


def words_of(token: Token) -> str:
    """The words of one unit of text, its code, formulas and pictures each as one private character."""
    return "".join(map(_words, _flat(token.children or ())))


def _flat(tokens: Iterable[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _flat(token.children or [])


def _words(token: Token) -> str:
    if token.type == "code_inline":
        return CODE
    if _is_math(token):
        return MATH
    if token.type == "text":
        return _BLANKS.sub(BLANK, token.content)
    known = {"softbreak": " ", "hardbreak": "\n", "footnote_ref": NOTE, "image": IMAGE}
    return known.get(token.type, "")


def _blanks(token: Token) -> list[str]:
    return _BLANKS.findall(token.content) if token.type == "text" else []


def _is_math(token: Token) -> bool:
    return token.type.startswith("math")


def _is_emphasis(token: Token) -> bool:
    return token.type in ("strong_open", "em_open", "hardbreak")


def _target(token: Token) -> str:
    return str(token.attrs.get("href") or token.attrs.get("src") or "")


def has_cjk(text: str) -> bool:
    """Whether any of it is kana or an ideograph."""
    return inline_syntax.CJK.search(text) is not None


def readable(text: str) -> str:
    """A stretch of words for a message, its private characters made visible."""
    shown = {CODE: "`…`", MATH: "$…$", NOTE: "[^…]", IMAGE: "![…]", BLANK: "{…}"}
    return "".join(shown.get(char, char) for char in text)


# ## Lints for markup
#
# > Whatever is not words is the same in every language: code, formulas, links, numbers, as many times.
#
# A translator may put them in any order, as the grammar of the language wants it. These rules find most of
# what goes wrong in a translation whoever made it, and none of them needs to know a word of the language.


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
