"""# Words to search for

> A text is cut into the terms that an index lists, in any language, without a dictionary.

Where a script sets spaces between its words, those are the terms. A name of a program is a term, and so is
each of its parts: `reduce_scatter` is found under "scatter", `FlatUnit` under "flat". Chinese, Japanese, Thai
and their kin set no spaces; their runs are cut into overlapping pairs of characters, and a query is cut in
the same way, so that 优化器 asks for 优化 and 化器.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# Thai and Lao, Myanmar, Khmer, then the marks, kana and ideographs of Chinese and Japanese. The page's script
# takes these characters from the index, so that both sides cut alike.
UNSPACED = (
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff"
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
)
_WORD = re.compile(rf"[{UNSPACED}]+|[^\W{UNSPACED}]+")
_UNSPACED = re.compile(f"[{UNSPACED}]")
# `_` ends a part of a name, and so does a capital behind a small letter or a digit.
_PARTS = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])")


def terms(text: str) -> list[str]:
    """The terms of a query, in the form in which they are compared.

    >>> terms("Unit.gather 勾配は")
    ['unit', 'gather', '勾配', '配は']
    """
    return [term for word in _words(text) for term in _cut(word)]


def listed(text: str) -> list[str]:
    """The terms that a text is found under: those it would ask for, and the parts of its names.

    >>> listed("FlatUnit reduce_scatter")
    ['flatunit', 'flat', 'unit', 'reduce_scatter', 'reduce', 'scatter']
    """
    return [term for word in _words(text) for term in _listed(word)]


def _words(text: str) -> list[str]:
    return _WORD.findall(text if text.isascii() else unicodedata.normalize("NFKC", text))


@lru_cache(maxsize=1 << 16)
def _listed(word: str) -> tuple[str, ...]:
    parts = _PARTS.split(word)
    return (*_cut(word), *(part.lower() for part in parts if part and len(parts) > 1))


def _cut(word: str) -> tuple[str, ...]:
    if word.isascii() or not _UNSPACED.match(word):
        return (word.lower(),)
    return tuple(word[place : place + 2] for place in range(max(1, len(word) - 1)))
