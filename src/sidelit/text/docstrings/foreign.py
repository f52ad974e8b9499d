"""# Docstrings of other houses

> reST, Google and NumPy become the tokens of Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from docutils import nodes
from markdown_it.token import Token

from sidelit.errors import SidelitError, SourceFault
from sidelit.source import syntax
from sidelit.text import markup
from sidelit.text.directives import kind_of
from sidelit.text.docstrings import rest, sections
from sidelit.text.docstrings.tokens import Entry, Maker, entries, escaped, finished, picture, sentence, table

# ## The blocks of reST as tokens
#
# > Paragraphs, lists, tables and boxes that docutils has read, one token each.
#
# What docutils could not make out (a directive that nobody knows, a broken table) is shown as it was typed.


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
        if kind in rest.VERSIONS:
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
        syntax.tree(text)
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


# ## Lists of fields in reST
#
# > `:param x:` beside `:type x:` is one row, and `:rtype:` is the type of what is returned.


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


def write_fields(node: nodes.field_list, blocks: Blocks) -> None:
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


# ## Docstrings of other houses
#
# > Sections of Google and NumPy, words of reST or Markdown, and one list of tokens.
#
# A list of parameters becomes a table of fields, as `:param x:` does; a note becomes a box; every other
# section keeps its heading. The words of all of them are read in one markup, so that a footnote of the last
# section may be referred to in the first.


# Writes the words of a part.
Write = Callable[[rest.DocstringPart], None]


@dataclass(frozen=True, slots=True)
class TextPlace:
    """Where a docstring stands, and who is told of what is wrong in it."""

    path: str
    first_line: int
    report: Callable[[SidelitError], None]


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of a docstring; with rows, if it is a list."""

    part: sections.Part
    rows: tuple[Entry, ...] | None

    def docstring_parts(self) -> Iterator[rest.DocstringPart]:
        """Its words, from the top down."""
        if self.rows is None:
            yield rest.DocstringPart(self.part.text, self.part.line)
        else:
            yield from (rest.DocstringPart(row.text, row.text_line) for row in self.rows)


def tokens(
    text: str, style: sections.Style | None, said: sections.Markup, place: TextPlace
) -> tuple[Token, ...]:
    """The tokens of a docstring.

    :param style: in whose style its sections are, if it has any.
    :param said: the markup of its words.
    """
    found = [_Section(sections.Part("text", "", "", text, 0), None)]
    if style is not None:
        found = [_section(part, style) for part in sections.parts(text, style)]
    write = _rest if said == "rest" else _markdown
    return finished(write(found, place))


def _section(part: sections.Part, style: sections.Style) -> _Section:
    rows = entries(part, style) if part.form == "fields" else None
    return _Section(part, tuple(rows) if rows else None)


def _markdown(found: Sequence[_Section], place: TextPlace) -> list[Token]:
    maker = Maker(place.path, place.first_line)

    def write(part: rest.DocstringPart) -> None:
        line = place.first_line + part.line
        maker.tokens += markup.parse(part.text, path=place.path, first_line=line)

    for each in found:
        _write(each, maker, write)
    return maker.tokens


def _rest(found: Sequence[_Section], place: TextPlace) -> list[Token]:
    parts = list(dict.fromkeys(part for each in found for part in each.docstring_parts()))
    marked = [part for part in parts if not sections.plain(part.text)]

    def report(what: str, line: int) -> None:
        place.report(SourceFault(f"reST: {what}", path=place.path, line=place.first_line + line - 1))

    try:
        groups = rest.parse(marked, report)
    except Exception as error:  # docutils fails on some texts in ways of its own, and none may stop a build.
        report(f"docutils cannot read this ({type(error).__name__}); it is shown as it was typed", 1)
        groups = [[nodes.literal_block(part.text, part.text)] for part in marked]
    notes = list(rest.footnotes(groups))
    labels = {name: _label(note) for note in notes for name in note["ids"]}
    maker = Maker(place.path, place.first_line, {_label(note): number for number, note in enumerate(notes)})
    read: Mapping[rest.DocstringPart, Sequence[nodes.Node]] = dict(zip(marked, groups, strict=True))

    def write(part: rest.DocstringPart) -> None:
        if part not in read:
            line = place.first_line + part.line
            maker.tokens += markup.parse(part.text, path=place.path, first_line=line)
            return
        blocks = Blocks(maker, labels, write_fields)
        blocks.line = part.line
        blocks.write(read[part])

    for each in found:
        _write(each, maker, write)
    _notes(notes, Blocks(maker, labels, write_fields))
    return maker.tokens


def _write(section: _Section, maker: Maker, write: Write) -> None:
    """One part with its heading, its words written by `write`."""
    part = section.part
    if section.rows is not None:
        with maker.fields(part.line):
            for row in section.rows:
                with maker.field(part.kind, row.name, row.line, row.type):
                    write(rest.DocstringPart(row.text, row.text_line))
        return
    words = rest.DocstringPart(part.text, part.line)
    if part.form == "box":
        with maker.admonition(part.kind, part.line):
            write(words)
        return
    if part.form != "text":
        # A list that was none keeps its heading as it was typed.
        maker.label(part.kind, part.line, said=part.title if part.form != "label" else "")
    write(words)


def _label(note: nodes.Element) -> str:
    first = note.children[0] if note.children else None
    return first.astext() if isinstance(first, nodes.label) else str(note["ids"][0])


def _notes(notes: Sequence[nodes.Element], blocks: Blocks) -> None:
    if not notes:
        return
    maker = blocks.maker
    with maker.block("footnote_block", "", 0):
        for number, note in enumerate(notes):
            with maker.block("footnote", "", 0, id=number, label=_label(note)):
                blocks.line = int(note.line or 1) - 1
                blocks.write(note.children[1:])
                back = maker.leaf("footnote_anchor", blocks.line, id=number, subId=0, label=_label(note))
                if len(maker.tokens) > 1 and maker.tokens[-2].type == "paragraph_close":
                    # The way back stands behind the last word.
                    maker.tokens[-2:] = [back, maker.tokens[-2]]
