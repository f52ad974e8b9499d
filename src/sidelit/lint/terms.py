"""# Lints for words

> Each term is called what the glossary calls it, and nothing is left in English by accident.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sidelit.glossary import Term
from sidelit.lint.unit import Pair, readable

_LATIN_WORD = re.compile(r"[A-Za-z][A-Za-z'’]*(?:-[A-Za-z]+)*")
_GLOSS = re.compile(r"（([^（）]*)）")
_ADDRESS = re.compile(r"\b(?:https?://|www\.)\S+")


def term(pair: Pair) -> Iterator[str]:
    """Where the original has a term, the translation has what the glossary accepts for it."""
    said = pair.translation.words.casefold()
    for form, row in _terms(pair).items():
        accepted = row.accept[pair.lang]
        if not any(word.casefold() in said for word in accepted):
            yield f"{form!r} is {' or '.join(accepted)} in the glossary"


def never(pair: Pair) -> Iterator[str]:
    """No word that the glossary forbids."""
    glossary = pair.vocabulary.glossary
    # A right word may hold a wrong one, and the reverse: 断片化 is fragmentation, 断片 no shard.
    said = {word.casefold() for word in pair.vocabulary.known.findall(pair.translation.words)}
    for row in glossary.terms:
        for wrong in row.never:
            if wrong.casefold() in said:
                yield f"{row.name!r} is never {wrong}; the glossary says {row.text[pair.lang]}"
        pattern = (row.pattern or {}).get(pair.lang)
        if pattern and (found := re.search(pattern, pair.translation.words)):
            yield f"{found[0]} alone says too little; the glossary has {row.text[pair.lang]}"
    for form, row in _terms(pair).items():
        for wrong in row.wrong:
            if wrong.casefold() in said:
                yield f"{wrong} is not what {form!r} means here; the glossary says {row.text[pair.lang]}"


def english(pair: Pair) -> Iterator[str]:
    """No English outside the glossary's allow list, accepted terms and glosses in parentheses."""
    original = _loose(pair.original.words)
    words = _ADDRESS.sub(" ", pair.translation.words)
    # 順伝播（forward pass）: the English of a term, at its first use.
    words = _GLOSS.sub(lambda gloss: " " if _loose(gloss[1]) in original else gloss[0], words)
    words = pair.vocabulary.latin.sub(" ", words)
    for word in dict.fromkeys(_LATIN_WORD.findall(words)):
        is_name = bool(re.search(r"[A-Z]", word[1:])) and word in pair.original.words
        if len(word) > 1 and not is_name:
            yield f"{readable(word)!r} is still English; translate it, or allow it in the glossary"


def _loose(text: str) -> str:
    return text.casefold().replace("-", " ")


def _terms(pair: Pair) -> dict[str, Term]:
    return dict(pair.vocabulary.finder.find(pair.original.words))


def first_uses(pairs: Sequence[Pair]) -> Iterator[tuple[int, str]]:
    """Each term that asks for it stands once on the page with its original; yields where it should."""
    text = "\n".join(pair.translation.words for pair in pairs).casefold()
    seen: set[str] = set()
    for index, pair in enumerate(pairs):
        for row in _terms(pair).values():
            if not row.first_use or row.name in seen:
                continue
            seen.add(row.name)
            if not any(f"（{known.casefold()}" in text for known in row.match):
                shown = row.text[pair.lang]
                yield index, f"the page never gives the original; write {shown}（{row.name}） once"
