"""# Tables of reST

> A cell holds one unit of words, so what docutils reads as several blocks in a cell becomes its lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from docutils import nodes

from sidelit.text.docstrings.maker import Maker
from sidelit.text.docstrings.sentences import code


class Writes(Protocol):
    """What a table needs of the writer of blocks."""

    maker: Maker
    line: int

    def said(self, node: nodes.Element) -> str:
        """The words inside a node as Markdown."""


def table(node: nodes.table, writer: Writes) -> None:
    """Write a table; its title stands above it."""
    maker, line = writer.maker, writer.line
    for title in node.findall(nodes.title):
        maker.paragraph(f"**{writer.said(title)}**", line)
    with maker.block("table", "table", line):
        for part, kind, cell in ((nodes.thead, "thead", "th"), (nodes.tbody, "tbody", "td")):
            for found in node.findall(part):
                with maker.block(kind, kind, line):
                    _rows(found, cell, writer)


def _rows(part: Any, cell: str, writer: Writes) -> None:
    for row in part.children:
        with writer.maker.block("tr", "tr", writer.line):
            for entry in row.children:
                line = int(entry.children[0].line or writer.line + 1) - 1 if entry.children else writer.line
                with writer.maker.block(cell, cell, line) as opening:
                    for name, more in (("colspan", "morecols"), ("rowspan", "morerows")):
                        if int(entry.get(more, 0)):
                            opening.attrs[name] = int(entry[more]) + 1
                    writer.maker.sentence("\\\n".join(_lines(entry.children, writer)), line)


def _lines(parts: Sequence[nodes.Node], writer: Writes) -> Iterator[str]:
    for node in parts:
        if isinstance(node, nodes.paragraph | nodes.term | nodes.title):
            yield writer.said(node)
        elif isinstance(node, nodes.list_item):
            first, *rest = list(_lines(node.children, writer)) or [""]
            yield f"\u2022 {first}"
            yield from rest
        elif isinstance(node, nodes.FixedTextElement):
            yield from (code(line) for line in node.astext().splitlines() if line.strip())
        elif isinstance(node, nodes.Element):
            yield from _lines(node.children, writer)
