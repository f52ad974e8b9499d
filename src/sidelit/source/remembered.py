"""# Sources that an earlier build has read

> A source with the same text under the same name has the same sections.
"""

from __future__ import annotations

from pathlib import Path

from sidelit import digests
from sidelit.memory import Memory
from sidelit.source import source
from sidelit.source.decoding import read_source


def read(path: Path, shown: str, memory: Memory | None) -> source.Document:
    """Read a Python file, as `source.read` does."""
    if memory is None:
        return source.read(path, shown=shown)
    text, encoding = read_source(path, shown)
    key = digests.digest(text, shown, encoding)
    return memory.of("documents", key, lambda: source.parse(text, shown, encoding))
