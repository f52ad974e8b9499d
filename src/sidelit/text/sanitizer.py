"""# Slots and the sieve

> What text may contain is a short list; everything else enters through a numbered slot.

Words come from authors and translators, and a careless or hostile one must not be able to put a script on
the page. So HTML made from words passes a sieve that knows little. What the press itself makes would not pass
(a formula needs styles, a link an address), and it does not have to: the words carry only numbered places,
and the pieces are put there after the sieve. A place is an element, and text is escaped before, so none can
be forged; a piece is never searched for places again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

import nh3

_HEADINGS = {f"h{level}" for level in range(1, 7)}
_CELL = {"left", "center", "right", "symbol", "untranslated"}

_ATTRIBUTES = {
    "*": {"lang", "data-state"},
    "a": {"data-slot"},
    "aside": {"role"},
    "code": {"data-sym"},
    "div": {"data-slot", "tabindex", "role", "aria-label"},
    "li": {"id"},
    "ol": {"start"},
    "span": {"data-slot"},
    "td": {"data-label", "colspan", "rowspan"},
    "th": {"scope", "colspan", "rowspan"},
    **{heading: {"id"} for heading in _HEADINGS},
}

_CLASSES = {
    "aside": {"admonition", "note", "tip", "important", "warning", "version"},
    "code": {"gap-before", "gap-after"},
    "div": {"scroll"},
    "ol": {"footnotes"},
    "p": {"admonition-title", "untranslated"},
    "span": {"untranslated", "type"},
    "sup": {"footnote-ref"},
    "table": {
        "fields",
        "parameter",
        "attribute",
        "returns",
        "yields",
        "raises",
        "other",
        "receives",
        "warns",
        "method",
        "see_also",
        "field",
        "notation",
        "stack",
    },
    "td": _CELL,
    "th": _CELL,
    **{heading: {"untranslated"} for heading in _HEADINGS},
}

_PLAIN = {"blockquote", "br", "caption", "dd", "dl", "dt", "em", "hr", "strong", "tbody", "thead", "tr", "ul"}

_SIEVE = nh3.Cleaner(
    tags=_PLAIN | set(_ATTRIBUTES) - {"*"} | set(_CLASSES),
    attributes=_ATTRIBUTES,
    allowed_classes=_CLASSES,
    link_rel=None,
)

_PLACE = re.compile(r'<(span|div) data-slot="(\d+)"></\1>|<a data-slot="(\d+)">')


class Slots:
    """The pieces of one text that bypass the sieve, in the order in which they were made."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def inline(self, piece: str) -> str:
        """The place of a piece inside a sentence."""
        return f'<span data-slot="{self._add(piece)}"></span>'

    def block(self, piece: str) -> str:
        """The place of a piece that stands between paragraphs."""
        return f'<div data-slot="{self._add(piece)}"></div>'

    def anchor(self, opening: str) -> str:
        """The place of the opening tag of a link; the text of the link follows it and passes the sieve."""
        return f'<a data-slot="{self._add(opening)}">'

    def fill(self, html: str) -> str:
        """Sieve `html`, then put the pieces in their places."""
        return _PLACE.sub(lambda found: self._pieces[int(found[2] or found[3])], _SIEVE.clean(html))

    def _add(self, piece: str) -> int:
        self._pieces.append(piece)
        return len(self._pieces) - 1


def tag(name: str, attributes: Mapping[str, object]) -> str:
    """An opening tag with its attributes escaped; those without a value are left out."""
    written = "".join(f' {key}="{escape(str(value))}"' for key, value in attributes.items() if value != "")
    return f"<{name}{written}>"
