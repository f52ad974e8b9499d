"""# The blocks of reST as tokens

> Paragraphs, lists, tables and boxes that docutils has read, one token each.

What docutils could not make out (a directive that nobody knows, a broken table) is shown as it was typed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from docutils import nodes

from sidelit.source import literals
from sidelit.text.docstrings import roles
from sidelit.text.docstrings.maker import Maker
from sidelit.text.docstrings.sentences import escaped, picture, sentence
from sidelit.text.docstrings.tables import table

_ADMONITIONS = {
    **dict.fromkeys(("attention", "caution", "danger", "error", "warning"), "warning"),
    **dict.fromkeys(("hint", "tip"), "tip"),
    "important": "important",
    "note": "note",
}
# What says nothing on the page.
_SILENT = (
    nodes.comment,
    nodes.target,
    nodes.substitution_definition,
    nodes.pending,
    nodes.footnote,
    nodes.citation,
)

_INLINE: tuple[Any, ...] = (nodes.Inline, nodes.Text)


class Blocks:
    """Writes nodes as tokens.

    :param fields: writes a list of fields, which are sorted by whoever knows the sections of docstrings.
    :param notes: the labels of footnotes by their ids.
    """

    def __init__(
        self, maker: Maker, notes: Mapping[str, str], fields: Callable[[nodes.field_list, Blocks], None]
    ) -> None:
        self.maker = maker
        self.notes = notes
        self.fields = fields
        self.line = 0
        self._level = 0

    def write(self, parts: Sequence[nodes.Node], tight: bool = False) -> None:
        """Write blocks one after the other; `tight` hides the paragraphs of a list's item."""
        for node in parts:
            self._at(node)
            self._block(node, tight)

    def said(self, node: Any) -> str:
        """The words inside a node as Markdown."""
        return sentence(node.children, self.notes)

    def _at(self, node: nodes.Node) -> None:
        # Lines never run back: where a node has none, that of the one before it serves.
        line = node.line or getattr(node, "lineno", None)
        if line and not isinstance(node, nodes.Text):
            self.line = max(self.line, int(line) - 1)

    def _block(self, node: Any, tight: bool) -> None:
        maker, line = self.maker, self.line
        match node:
            case nodes.paragraph():
                if words := self.said(node):
                    maker.paragraph(words, line, hidden=tight)
            case nodes.literal_block() | nodes.doctest_block():
                maker.sample(node.astext(), _language(node), line)
            case nodes.math_block():
                maker.leaf("math_block", line, _displayed(node.astext())).tag = "math"
            case nodes.enumerated_list() if initial := _initial(node):
                maker.paragraph(f"{escaped(initial)}{self.said(node.next_node(nodes.paragraph))}", line)
            case nodes.bullet_list() | nodes.enumerated_list():
                self._list(node)
            case nodes.definition_list() | nodes.option_list():
                self._definitions(node)
            case nodes.field_list():
                self.fields(node, self)
            case nodes.table():
                table(node, self)
            case nodes.line_block():
                maker.paragraph("\\\n".join(self._lines(node, 0)), line)
            case nodes.block_quote():
                with maker.block("blockquote", "blockquote", line):
                    self.write(node.children)
            case nodes.section():
                self._section(node)
            case nodes.image():
                maker.paragraph(picture(node), line)
            case nodes.transition():
                maker.leaf("hr", line).tag = "hr"
            case nodes.rubric() | nodes.title() | nodes.subtitle() | nodes.attribution() | nodes.caption():
                if words := self.said(node):
                    maker.paragraph(f"**{words}**", line)
            case nodes.system_message():
                # The message is told elsewhere. What it is about is on the page.
                self.write([each for each in node.children if isinstance(each, nodes.literal_block)])
            case nodes.Admonition() | nodes.topic() | nodes.sidebar():
                self._box(node)
            case _ if isinstance(node, _SILENT):
                pass
            case _ if isinstance(node, _INLINE):
                maker.paragraph(sentence([node], self.notes), line)
            case _:
                self.write(node.children)

    def _list(self, node: nodes.Element) -> None:
        ordered = isinstance(node, nodes.enumerated_list)
        kind, tag = ("ordered_list", "ol") if ordered else ("bullet_list", "ul")
        tight = all(len(item.children) < 2 or _tight(item) for item in node.children)
        with self.maker.block(kind, tag, self.line) as opening:
            if int(node.get("start", 1)) != 1:
                opening.attrs = {"start": int(node["start"])}
            for item in node.children:
                self._at(item)
                with self.maker.block("list_item", "li", self.line):
                    self.write(item.children, tight=tight)

    def _definitions(self, node: nodes.Element) -> None:
        with self.maker.block("dl", "dl", self.line):
            for item in node.children:
                head, body = item.children[:-1], item.children[-1]
                self._at(item)
                with self.maker.block("dt", "dt", self.line):
                    self.maker.sentence(
                        _head(item, [sentence([each], self.notes) for each in head]), self.line
                    )
                with self.maker.block("dd", "dd", self.line):
                    self.write(body.children, tight=len(body.children) == 1)

    def _lines(self, node: nodes.Element, depth: int) -> list[str]:
        lines = []
        for each in node.children:
            if isinstance(each, nodes.line_block):
                lines += self._lines(each, depth + 1)
            else:
                lines.append("\u2003" * depth + self.said(each))
        return lines

    def _section(self, node: nodes.section) -> None:
        self._level += 1
        tag = f"h{min(self._level, 6)}"
        for each in node.children:
            self._at(each)
            if isinstance(each, nodes.title):
                with self.maker.block("heading", tag, self.line):
                    self.maker.sentence(self.said(each), self.line)
            else:
                self._block(each, tight=False)
        self._level -= 1

    def _box(self, node: Any) -> None:
        kind, parts, said = str(node.get("kind", node.tagname)), node.children, ""
        if kind in roles.VERSIONS:
            self._version(node, kind)
            return
        if parts and isinstance(parts[0], nodes.title):
            said, parts = self.said(parts[0]), parts[1:]
        label = {"seealso": "see_also", "todo": "todo"}.get(kind, "")
        with self.maker.admonition(_ADMONITIONS.get(kind, "note"), self.line, label, said):
            self.write(parts)

    def _version(self, node: nodes.Element, kind: str) -> None:
        line = self.line
        with self.maker.admonition("version", line, kind):
            # The title of the box is said with the version in it.
            self.maker.tokens[-2].meta["version"] = node["version"]
            self.write(node.children)


def _initial(node: Any) -> str:
    """`A. Turing` begins no list: the letter of a list that has one item and one paragraph in it."""
    (item, *others), kind = node.children, node["enumtype"]
    number = int(node.get("start", 1))
    if others or kind == "arabic" or [type(each) for each in item.children] != [nodes.paragraph]:
        return ""
    letter = {"upperalpha": chr(64 + number), "loweralpha": chr(96 + number)}.get(kind, "")
    letter = letter or {"upperroman": "I", "lowerroman": "i"}[kind] * (number == 1)
    return f"{node['prefix']}{letter}{node['suffix']} " if letter else ""


def _tight(item: Any) -> bool:
    """Whether an item is one paragraph, and perhaps a list below it."""
    first, *rest = item.children
    lists = (nodes.bullet_list, nodes.enumerated_list, nodes.system_message)
    return isinstance(first, nodes.paragraph) and all(isinstance(each, lists) for each in rest)


def _head(item: nodes.Node, said: Sequence[str]) -> str:
    if isinstance(item, nodes.option_list_item):
        return ", ".join(f"`{each.astext()}`" for each in item.children[0].children)
    term, *classifiers = [each for each in said if each]
    return " : ".join([term if term[:1] in "*`$" else f"**{term}**", *classifiers])


_PYCON = re.compile(r"^\s*>>> ", re.MULTILINE)


def _language(node: nodes.Element) -> str:
    """What a piece of code is written in, if it says so or can be parsed."""
    text = node.astext()
    said = [str(name) for name in node["classes"] if name != "code"]
    if said:
        return said[0]
    if isinstance(node, nodes.doctest_block) or _PYCON.search(text):
        return "pycon"
    try:
        literals.tree(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return "python"


def _displayed(tex: str) -> str:
    """A formula of several rows needs an environment, as Sphinx puts it there. A blank line ends a row."""
    rows = [row.strip() for row in re.split(r"\n[ \t]*\n", tex.strip())]
    if re.match(r"\\begin\{(?!(?:[pbvBV]?matrix|cases|array|split|aligned|gathered)\b)", rows[0]):
        return "\n".join(rows)
    rows = [f"\\begin{{split}}{row}\\end{{split}}" if _several(row) else row for row in rows if row]
    return rows[0] if len(rows) == 1 else "\\begin{gathered}" + "\\\\\n".join(rows) + "\\end{gathered}"


def _several(tex: str) -> bool:
    """Whether there are rows or columns that stand in no environment."""
    bare = re.sub(r"\\begin\{(\w+\*?)\}.*\\end\{\1\}", "", tex, flags=re.DOTALL)
    return re.search(r"\\\\|(?<!\\)&", bare) is not None
