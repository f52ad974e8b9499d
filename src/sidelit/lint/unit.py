"""# A sentence and its translation, as lints see them

> Taken apart once, so that each rule is a few lines.

A rule looks at words or at markup, seldom at both. So the markup is counted here, and in the words that
remain each code span, formula, footnote mark and image is one private character: spacing and adjacency
can then be judged as if everything were letters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from markdown_it.token import Token

from sidelit.glossary import Finder, Glossary
from sidelit.text import markup
from sidelit.text.dialect import is_cjk

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
    return any(map(is_cjk, text))


def readable(text: str) -> str:
    """A stretch of words for a message, its private characters made visible."""
    shown = {CODE: "`…`", MATH: "$…$", NOTE: "[^…]", IMAGE: "![…]", BLANK: "{…}"}
    return "".join(shown.get(char, char) for char in text)
