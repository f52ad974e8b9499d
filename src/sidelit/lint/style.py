"""# Lints for a language

> House style and terms, as far as characters alone betray a mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sidelit.config.glossary import Term
from sidelit.lint.translation import CJK, CODE, LATIN, MATH, WIDE, Pair, has_cjk, readable

# ## Lints for Japanese and Chinese
#
# > The house style, as far as characters alone betray it.
#
# Rules name their languages in `RULES` of `lint`; a rule for one language may take the script for granted.


_KANA = re.compile("[\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\uff66-\uff9f]+")
_POLITE = {
    "ja": re.compile(r"ください|下さい|くださる|頂け(?:ます|れば)|いただけ(?:ます|れば)"),
    # 请求 is a request and 申请 to allocate: technical words.
    "zh": re.compile(r"(?<!申)请(?!求)"),
}
# Written the same in both, but no word of today's Japanese.
_CHINESE_ONLY = "个么"
_LONG_VOWEL = re.compile(r"[\u30a1-\u30fa\u30fc]{4,}ー(?![\u30a1-\u30fa\u30fc])")
_KEEPS_LONG_VOWEL = re.compile("(?:フロー|コピー|キー|ビュー|キュー|ツリー|シー|ルー|エラー|ニュー|リュー)$")

_SPACING: dict[str, tuple[tuple[str, str], ...]] = {
    "ja": (
        (
            rf"{CJK}\s+{LATIN}|{LATIN}\s+{CJK}",
            "takes no space between Japanese and Latin, digits, code or formulas",
        ),
        (rf"{CJK}[ \t]+{CJK}", "takes no space between Japanese words"),
    ),
    "zh": (
        (rf"{CJK}{LATIN}|{LATIN}{CJK}", "needs a space between Chinese and Latin, digits, code or formulas"),
        (rf"{CJK}[ \t]+{CJK}", "takes no space between Chinese words"),
    ),
}
_ANY_SPACING = (
    (rf"{WIDE}[ \t]+|[ \t]+{WIDE}", "takes no space beside full-width punctuation"),
    (r"[ \t\u3000]{2,}|\u3000|^\s|\s$", "has a space too many"),
)
_COMMON_PUNCTUATION: tuple[tuple[str, str], ...] = (
    (rf"{CJK}[,;:!?]|[,;:!?]\s*{CJK}", "takes full-width punctuation"),
    (rf"[{CODE}{MATH}][,;:](?=\s|$|{CJK})|\)[,;:](?=\s*{CJK})", "takes full-width punctuation"),
    (rf"{CJK}\.", "takes a full-width full stop"),
    (rf"{CJK}[ ]?\(|\)[ ]?{CJK}|\([^()]*{CJK}[^()]*\)", "takes full-width parentheses （）"),
    ("[Ａ-Ｚａ-ｚ０-９]", "takes ordinary letters and digits, not full-width ones"),
    (rf'{CJK}"|"{CJK}', "takes the quotation marks of its language"),
)
_PUNCTUATION: dict[str, tuple[tuple[str, str], ...]] = {
    "ja": (
        *_COMMON_PUNCTUATION,
        ("[，．]", "takes 、 and 。"),
        ("[“”‘’]", "takes 「」 as quotation marks"),
        ("[\uff66-\uff9f]", "takes full-width katakana"),
    ),
    "zh": (
        *_COMMON_PUNCTUATION,
        ("[「」『』]", "takes “” as quotation marks"),
        ("[・．]", "takes · or 。"),
    ),
}
_ENDINGS = {".": "。！？…", "!": "。！", "?": "？", ":": "：。"}
# A polite question of Japanese prose shows by its last word that it asks, and ends with a full stop.
_ASKS = {"ja": re.compile("(?:でしょう|です|ます|ました|ません|でした)か。$")}
_CLOSING = "）」』”’》】\ue002 "

# Words that turn a sentence around. What only looks like one is taken out first.
_NEGATION_EN = re.compile(
    r"\b(?:not|no|never|none|nothing|nobody|neither|nor|cannot|without|nowhere)\b|n['’]t\b", re.IGNORECASE
)
_HALF_NEGATION_EN = re.compile(
    r"\b(?:only|un\w+|in\w+|non\w*|dis\w+|\w+less|avoid\w*|prevent\w*|skip\w*|fail\w*|miss\w*|lack\w*|free|refus\w+"
    r"|instead|rather|except|unless|otherwise|before|until|must|different|few\w*|hardly|stop\w*|leav\w+|left|empty"
    r"|too|beyond|outside|other\w*|wrong\w*|but|else|just|enough|need\w*|has to|have to|any\w*)\b",
    re.IGNORECASE,
)
_NEGATION = {
    "ja": re.compile(r"ない|なく|なかっ|なけれ|ません|ずに|せず|れず|わず|えず|ぬ|無|不|未|非"),
    "zh": re.compile(r"不|没|無|无|未|非|别|勿|免|而非"),
}
# Ways to say "without" that say no "not".
_AS_GOOD_AS_NOT = {"ja": re.compile("除|抜き|欠|以外|禁|空"), "zh": re.compile("除|缺|以外|禁|空|只|仅")}
_NO_NEGATION = {
    "ja": re.compile(
        r"なければな(?:らない|りません)|なくてはな(?:らない|りません)|必要はない|かもしれ(?:ない|ません)|非同期|だけでなく|少なく"
    ),
    "zh": re.compile(r"异步|不仅|不但|不同|不断|无论|不管|非常|除非|差别|分别|区别|特别|类别|级别|未来"),
}


def kana(pair: Pair) -> Iterator[str]:
    """No kana in Chinese."""
    if found := _KANA.search(pair.translation.words):
        yield f"{found[0]} is Japanese"


def simplified(pair: Pair) -> Iterator[str]:
    """No character in Japanese that only Chinese writes."""
    yield from _foreign(pair.translation.words, "shift_jis", "gb2312", _CHINESE_ONLY, "Chinese")


def unsimplified(pair: Pair) -> Iterator[str]:
    """No character in Simplified Chinese that only Japanese or Traditional Chinese writes."""
    yield from _foreign(
        pair.translation.words, "gb2312", "euc_jisx0213", "", "Japanese or Traditional Chinese"
    )


def _foreign(words: str, own: str, other: str, more: str, name: str) -> Iterator[str]:
    # The standards of the two countries are the lists of the characters each of them writes.
    for char in dict.fromkeys(words):
        foreign = char in more or (not _encodes(char, own) and _encodes(char, other))
        if foreign and has_cjk(char) and not _KANA.match(char):
            yield f"the character {char} is {name}"


def _encodes(char: str, encoding: str) -> bool:
    try:
        return bool(char.encode(encoding))
    except UnicodeEncodeError:
        return False


def please(pair: Pair) -> Iterator[str]:
    """The code is not asked politely, and neither is the reader."""
    if found := _POLITE[pair.lang].search(pair.translation.words):
        yield f"{found[0]}: say what happens, without 'please'"


def long_vowels(pair: Pair) -> Iterator[str]:
    """No long vowel at the end of a katakana noun."""
    for found in _LONG_VOWEL.findall(pair.translation.words):
        if not _KEEPS_LONG_VOWEL.search(found):
            yield f"{found} is written {found[:-1]} here"


def spacing(pair: Pair) -> Iterator[str]:
    """The spaces of the language, no other."""
    yield from _search(pair.translation.words, (*_SPACING[pair.lang], *_ANY_SPACING))


def punctuation(pair: Pair) -> Iterator[str]:
    """The punctuation of the language, and a sentence ends as the original does."""
    yield from _search(pair.translation.words, _PUNCTUATION[pair.lang])
    written, words = (side.words.rstrip(_CLOSING + ")\"'") for side in (pair.original, pair.translation))
    expected = _ENDINGS.get(written[-1:])
    asks = written[-1:] == "?" and pair.lang in _ASKS and _ASKS[pair.lang].search(words)
    if expected and has_cjk(words) and words[-1:] not in expected and not asks:
        yield f"the original ends with {written[-1]}, so this ends with {' or '.join(expected)}"


def _search(words: str, rules: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for pattern, sentence in rules:
        if found := re.search(pattern, words):
            around = words[max(found.start() - 3, 0) : found.end() + 3]
            yield f"…{readable(around)}… {sentence}"


def negation(pair: Pair) -> Iterator[str]:
    """A sentence that says "not" in one language says so in the other."""
    words = _NO_NEGATION[pair.lang].sub("", pair.translation.words)
    is_negated = bool(_NEGATION[pair.lang].search(words))
    if _NEGATION_EN.search(pair.original.words):
        nav = (_NEGATION[pair.lang], _AS_GOOD_AS_NOT[pair.lang])
        if not any(way.search(pair.translation.words) for way in nav):
            yield "the English says 'not' or 'without', the translation does not seem to"
    elif is_negated and not _HALF_NEGATION_EN.search(pair.original.words):
        yield "the translation says 'not', the English does not seem to"


# ## Lints for words
#
# > Each term is called what the glossary calls it, and nothing is left in English by accident.


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
