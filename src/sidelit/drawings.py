"""# Programs in drawings

> An SVG shown by `<img>` runs nothing; opened by its own address it is a page, and runs what is in it.

A drawing that could run something is refused, and the press has one list of what that is. A drawing says its
program as an element, as a handler, as an address, or through what XML adds by declarations and stylesheets.
"""

from __future__ import annotations

import codecs
import html
import re

# What XML has between quotes only is no handler without them: a label may well say `one = 1`.
_PROGRAM = re.compile(
    r"<\s*(?:[\w.-]+:)?(?:script|foreignObject|handler|listener|iframe|embed|object)\b"
    r"|[\s\"'/](?:[\w.-]+:)?on\w+\s*=\s*[\"']"
    r"|(?:java|vb)\s*script\s*:|\bdata:\s*text/html"
    r"|<!\s*(?:ENTITY|ATTLIST)|<\?\s*xml-stylesheet",
    re.IGNORECASE,
)
_WIDE = {
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    b"<\0": "utf-16-le",
    b"\0<": "utf-16-be",
}


def runs(content: bytes) -> bool:
    """Whether a browser may run something that is in this SVG; rather too often than too seldom."""
    text = content.decode(_WIDE.get(content[:2], "utf-8"), "replace")
    # `java&#115;cript:` is an address, too, and a browser takes tabs and ends of lines out of one.
    return any(_PROGRAM.search(each) for each in (text, re.sub(r"[\t\r\n]", "", html.unescape(text))))
