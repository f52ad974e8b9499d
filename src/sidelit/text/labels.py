"""# The press's own words in a text

> A page has them in its language; here they are in English, for a text that is on no page.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# The words that the press adds to a text. A page passes those of its language; these stand in for the rest.
LABELS: Mapping[str, str] = MappingProxyType(
    {
        "note": "Note",
        "tip": "Tip",
        "important": "Important",
        "warning": "Warning",
        "parameter": "Parameter",
        "attribute": "Attribute",
        "returns": "Returns",
        "yields": "Yields",
        "raises": "Raises",
        "other": "Other parameter",
        "receives": "Receives",
        "warns": "Warns",
        "method": "Method",
        "see_also": "See also",
        "field": "Field",
        "symbol": "Symbol",
        "meaning": "Meaning",
        "condition": "When",
        "notation": "Notation",
        "examples": "Examples",
        "notes": "Notes",
        "references": "References",
        "todo": "To do",
        "versionadded": "New in version {version}",
        "versionchanged": "Changed in version {version}",
        "deprecated": "Deprecated since version {version}",
        "versionremoved": "Removed in version {version}",
        "footnote": "Footnote {number}",
        "footnote_back": "Back to the text",
        "table": "Table, scrollable",
        "formula": "Formula, scrollable",
        "sample": "Code, scrollable",
    }
)
