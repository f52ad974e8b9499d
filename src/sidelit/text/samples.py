"""# Code in a text

> A fence names its language, and Pygments colours it.
"""

from __future__ import annotations

import functools
from html import escape

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from sidelit.text.code import visible


def coloured(code: str, language: str) -> str:
    """Code as HTML with Pygments' short classes; a language it does not know stays plain."""
    lexer, code = _lexer(language), visible(code)
    if lexer is None:
        return escape(code, quote=False)
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))


@functools.cache
def _lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False) if language else None
    except ClassNotFound:
        return None
