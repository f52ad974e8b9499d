"""# Scripts as they are served

> Comments and indentation stay with the sources; readers get the rest.

It is a small tool for the press's own scripts. It knows their strings, and it trusts their style: every
statement ends with a semicolon or a brace, none is empty, no template stands inside of another one, and a
regular expression holds neither a quotation mark nor white space.
"""

from __future__ import annotations

import re
from functools import lru_cache

_STRING = r'"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`'
_PART = re.compile(rf"(?P<string>{_STRING})|(?P<gap>(?:\s|//[^\n]*)+)")
# What ends the last statement of a block, or the last part of a list.
_LAST = re.compile(rf"(?P<string>{_STRING})|;(?=\}})|,(?=[\])}}])")
_OPEN = frozenset("{;,(=>&|?:[+")
_CLOSED = frozenset("})].,?:;&|")


@lru_cache
def compact(text: str) -> str:
    """Leave out of a script what a browser does not need.

    >>> compact('// Why.\\nconst a = "b  // c";\\nif (a)\\n  go(`${a} d`);\\n')
    'const a="b  // c";if(a)\\ngo(`${a} d`);'
    """
    found = _PART.sub(lambda part: part["string"] or _between(text, *part.span()), text)
    return _LAST.sub(lambda part: part["string"] or "", found.strip())


def _between(text: str, start: int, end: int) -> str:
    """What has to stay of a gap: a space between two words, a line's end where a statement may end."""
    before, after = text[start - 1 : start], text[end : end + 1]
    if "\n" in text[start:end]:
        return "" if before in _OPEN or after in _CLOSED else "\n"
    if before == after and before in "+-":
        return " "
    return " " * all(char.isalnum() or char in '_$"`' for char in (before, after) if char)
