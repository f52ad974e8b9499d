"""# Lists of fields in reST

> `:param x:` beside `:type x:` is one row, and `:rtype:` is the type of what is returned.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from docutils import nodes

from sidelit.text.docstrings.blocks import Blocks
from sidelit.text.fields import kind_of

# The field that a type belongs to, by the word that gives it.
_TYPES = {
    "type": "parameter",
    "vartype": "attribute",
    "rtype": "returns",
    "ytype": "yields",
    "yieldtype": "yields",
}


@dataclass(slots=True)
class _Row:
    kind: str
    word: str
    argument: str
    line: int
    type: str = ""
    body: list[nodes.Node] = field(default_factory=list)


def write(node: nodes.field_list, blocks: Blocks) -> None:
    """Write a list of fields, the types with what they are the types of."""
    rows: dict[tuple[str, str], _Row] = {}
    for number, each in enumerate(node.children):
        name, body = each.children[0].astext(), each.children[1]
        blocks.line = max(blocks.line, int(each.line or 0) - 1)
        word, _, argument = name.partition(" ")
        of = _TYPES.get(word.lower())
        kind = of or kind_of(word.lower())
        type_, argument = _split(argument, kind, of)
        # Two fields of one name, as two exceptions may be, stay two.
        key = (
            (kind, argument)
            if kind in ("parameter", "attribute", "returns", "yields")
            else (kind, str(number))
        )
        said = {"parameter": "param", "attribute": "var"}.get(kind, word.lower() if of is None else kind)
        row = rows.setdefault(key, _Row(kind, said, argument, blocks.line))
        if of:
            row.type = body.astext()
        elif row.body:
            rows[kind, f"{argument} {number}"] = _Row(
                kind, said, argument, blocks.line, type_, list(body.children)
            )
        else:
            row.type, row.body, row.line = row.type or type_, list(body.children), blocks.line
    with blocks.maker.fields(blocks.line):
        for row in rows.values():
            with blocks.maker.field(row.word, row.argument, row.line, row.type):
                blocks.line = row.line
                blocks.write(row.body)


def _split(argument: str, kind: str, of: str | None) -> tuple[str, str]:
    """`int x` of a parameter is a type and a name."""
    if of is None and kind == "parameter":
        type_, _, name = argument.strip().rpartition(" ")
        return type_, name
    return "", argument.strip()
