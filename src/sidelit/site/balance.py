"""# How high the two sides of a section are

> Where the words are much higher than the code beside them, they stand above it and take the whole width.

Heights are estimated, in rem, for a page 1280 pixels wide: nobody sees more of an error than that a section
stands one way and not the other.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from sidelit.site.lines import CodeLine

# A line of words holds about so many Latin letters, and what it, a line of code and the parts of a text take.
_LETTERS, _LINE, _CODE = 54, 1.7, 1.4
_PARTS = {"<p": 0.8, "<tr": 0.8, "<li": 0.25, "<h": 1.2, "katex-display": 1.8}
_UNSEEN = re.compile(r'<span class="katex-mathml">.*?</math></span>|<[^>]*>', re.DOTALL)


def words_above(doc: str, lines: Sequence[CodeLine]) -> bool:
    """Whether the words are one and a half times as high as the code, and it is worth an eye's way down."""
    words, code = _height(doc), _CODE * len(lines)
    return bool(lines) and words > 1.5 * code and words - code > 7


def _height(html: str) -> float:
    text = _UNSEEN.sub("", html)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return _LINE * (len(text) + wide) / _LETTERS + sum(
        html.count(part) * each for part, each in _PARTS.items()
    )
