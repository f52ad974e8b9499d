"""# Where a long name may break

> A line ends behind a dot or an underscore of a name, not in the middle of a word.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

# Letters that fit into a line of a phone at the size of a heading. A shorter name never breaks.
_SHORT = 20


def breakable(name: str) -> Markup:
    """A name as HTML that a line may break behind its dots and underscores."""
    if len(name) <= _SHORT:
        return escape(name)
    pieces = re.split(r"(?<=[._])(?=[^._])", name)
    return Markup("<wbr>").join(map(escape, pieces))
