"""# The tokenizer

> A text is cut into the terms that an index lists, in any language, without a dictionary.

Where a script sets spaces between its words, those are the terms. A name of a program is a term, and so is
each of its parts: `reduce_scatter` is found under "scatter", `FlatUnit` under "flat". Chinese, Japanese, Thai
and their kin set no spaces. A run of such characters is cut where ideographs, katakana and hiragana meet, and
at stop words; what is left is cut into overlapping pairs, so that 优化器 asks for 优化 and 化器. A query is
cut in the same way, by the page's script, which takes the characters and the stop words from the index.

Terms are folded: letters lose their accents, wide and narrow forms become the usual ones. Stop words, the
words that a language has in every sentence, are no terms. They are data of the language, `[search]` in
`ui/CODE.toml`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

from sidelit.config.languages import SearchWords

# The kinds of characters without spaces between words: ideographs, katakana, hiragana; then Thai and Lao,
# Myanmar and Khmer. Where two kinds meet, a word has ended.
UNSPACED = (
    "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af",
    "\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff",
    "\u3041-\u3096\u309d-\u309f",
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff",
)
_ANY = "".join(UNSPACED)
_WORD = re.compile(rf"[{_ANY}]+|[^\W{_ANY}]+")
_UNSPACED = re.compile(f"[{_ANY}]")
_PIECE = re.compile("|".join(f"[{kind}]+" for kind in UNSPACED))
# `_` ends a part of a name, and so does a capital behind a small letter or a digit.
_PARTS = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])")
_ACCENTS = re.compile("[\u0300-\u036f]")
# A long vowel at the end of a katakana word is written or not: サーバー and サーバ are one word.
_LONG = re.compile("(?<=[\u30a1-\u30fa\u30fc]{3})\u30fc$")


class Tokenizer:
    """Cuts the texts of a page; `spoken` are the stop words of its languages, and what they fold."""

    def __init__(self, spoken: Iterable[SearchWords] = ()) -> None:
        each = tuple(spoken)
        self.stops = tuple(dict.fromkeys(word for one in each for word in one.stop))
        self.folds = {sign: plain for one in each for sign, plain in one.fold.items()}
        self._folds = [(re.compile(sign), plain) for sign, plain in self.folds.items()]
        self._stops = frozenset(self.stops)
        inside = sorted((word for word in self.stops if _UNSPACED.match(word)), key=len, reverse=True)
        self._between = re.compile("|".join(map(re.escape, inside)) or r"(?!)")
        # A word comes back hundreds of times.
        self._cut = lru_cache(maxsize=1 << 16)(self._terms_of)
        self._listed = lru_cache(maxsize=1 << 16)(self._all_of)

    def terms(self, text: str) -> list[str]:
        """The terms of a query, in the form in which they are compared.

        >>> Tokenizer().terms("Unit.gather 勾配をcafé")
        ['unit', 'gather', '勾配', 'を', 'cafe']
        """
        return [term for word in _words(text) for term in self._cut(word)]

    def listed(self, text: str) -> list[str]:
        """The terms that a text is found under: those it would ask for, and the parts of its names.

        >>> Tokenizer().listed("FlatUnit reduce_scatter")
        ['flatunit', 'flat', 'unit', 'reduce_scatter', 'reduce', 'scatter']
        """
        return [term for word in _words(text) for term in self._listed(word)]

    def counted(self, text: str) -> Counter[str]:
        """The same terms, each with how often it is listed."""
        counts: Counter[str] = Counter()
        for word, times in Counter(_words(text)).items():
            for term in self._listed(word):
                counts[term] += times
        return counts

    def _all_of(self, word: str) -> tuple[str, ...]:
        parts = _PARTS.split(word)
        if len(parts) == 1:
            return self._cut(word)
        return (*self._cut(word), *(term for part in parts if len(part) > 1 for term in self._cut(part)))

    def _terms_of(self, word: str) -> tuple[str, ...]:
        if word.isascii() or not _UNSPACED.match(word):
            term = self._folded(word)
            return () if term in self._stops else (term,)
        return tuple(term for piece in self._pieces(self._folded(word)) for term in _pairs(piece))

    def _folded(self, word: str) -> str:
        word = word.lower()
        if not word.isascii():
            for sign, plain in self._folds:
                word = sign.sub(plain, word)
        return word

    def _pieces(self, run: str) -> Iterator[str]:
        for piece in _PIECE.findall(run):
            yield from (_LONG.sub("", part) for part in self._between.split(piece) if part)


def _words(text: str) -> list[str]:
    return _WORD.findall(text if text.isascii() else _plain(text))


def _plain(text: str) -> str:
    """A text without accents, and with one form for each sign."""
    bare = _ACCENTS.sub("", unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text)))
    return unicodedata.normalize("NFC", bare)


def _pairs(piece: str) -> Iterator[str]:
    return (piece[place : place + 2] for place in range(max(1, len(piece) - 1)))
