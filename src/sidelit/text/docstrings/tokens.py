"""# reST as tokens

> What docutils has read is written as Markdown, one token for each unit of translation.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, Protocol

from docstring_parser import ParseError, google, numpydoc
from docstring_parser.common import DocstringMeta, DocstringParam, DocstringReturns
from docutils import nodes
from docutils.nodes import unescape
from markdown_it.token import Token

from sidelit.text import markup
from sidelit.text.docstrings.sections import Part, Style
from sidelit.text.inlines import NAME

# ## Tokens by hand
#
# > What another parser than that of Markdown has read becomes the same tokens, one unit a sentence.


@dataclass(slots=True)
class Maker:
    """Collects the tokens of one text.

    :param path: the file that it is from.
    :param first_line: the line of that file on which the text starts.
    :param notes: the number of each footnote by its label, from 0.
    """

    path: str
    first_line: int
    notes: Mapping[str, int] = field(default_factory=dict)
    tokens: list[Token] = field(default_factory=list)

    @contextmanager
    def block(self, kind: str, tag: str, line: int, /, **meta: object) -> Iterator[Token]:
        """A block with all that is made inside; `line` counts from 0 in the text."""
        opening = self._add(Token(f"{kind}_open", tag, 1, block=True, map=[line, line + 1]), meta)
        yield opening
        self._add(Token(f"{kind}_close", tag, -1, block=True, hidden=opening.hidden), {})

    def leaf(self, kind: str, line: int, content: str = "", /, **meta: object) -> Token:
        """A token without anything inside."""
        return self._add(Token(kind, "", 0, content=content, block=True, map=[line, line + 1]), meta)

    def sentence(self, markdown: str, line: int) -> None:
        """One unit of translation; what it says is Markdown."""
        token = Token("inline", "", 0, block=True, map=[line, line + 1])
        token.meta.update(path=self.path, first_line=self.first_line)
        token.meta.update(references={}, footnotes=self.notes)
        self.tokens.append(markup.reinline(token, markdown))

    def paragraph(self, markdown: str, line: int, hidden: bool = False) -> None:
        """A paragraph; one of a tight list is hidden."""
        with self.block("paragraph", "p", line) as opening:
            opening.hidden = hidden
            self.sentence(markdown, line)

    def sample(self, code: str, language: str, line: int) -> None:
        """A piece of code."""
        self.leaf("fence", line, code.rstrip("\n") + "\n").info = language

    @contextmanager
    def field(self, kind: str, argument: str, line: int, type_: str = "") -> Iterator[None]:
        """A row of a table of fields with all that is made inside, as `:param int x: …`."""
        with self.block("fieldlist_name", "dt", line):
            name = self.leaf("field_name", line, f"{kind} {argument}".strip(), kind=kind, argument=argument)
            name.meta["type"] = " ".join(type_.split())
        with self.block("fieldlist_body", "dd", line):
            yield

    @contextmanager
    def fields(self, line: int) -> Iterator[None]:
        """A list of fields."""
        with self.block("field_list", "dl", line):
            yield

    @contextmanager
    def admonition(self, kind: str, line: int, label: str = "", said: str = "") -> Iterator[None]:
        """A box; `label` is the press's own word for its title, `said` one of the author."""
        with self.block("admonition", "div", line, tag=kind):
            with self.block("admonition_title", "p", line) as title:
                title.attrs = {"class": "admonition-title"}
                if said:
                    self.sentence(said, line)
                else:
                    self.leaf("admonition_label", line, label or kind)
            yield

    def label(self, key: str, line: int, said: str = "") -> None:
        """What stands above a part of a text: a word of the press, or one of the author."""
        if said:
            self.paragraph(f"**{said}**", line)
            return
        with self.block("paragraph", "p", line), self.block("strong", "strong", line):
            self.leaf("admonition_label", line, key)

    def _add(self, token: Token, meta: Mapping[str, object]) -> Token:
        token.meta.update(meta, path=self.path, first_line=self.first_line)
        self.tokens.append(token)
        return token


def finished(tokens: Sequence[Token]) -> tuple[Token, ...]:
    """The tokens with their levels, and with ids for their headings."""
    level = 0
    for token in tokens:
        level -= token.nesting == -1
        token.level = level
        level += token.nesting == 1
    markup.slug_headings(tokens)
    return tuple(tokens)


# ## A sentence of reST as Markdown
#
# > Emphasis, code, formulas, links and notes of one dialect, written in the other.
#
# A unit of translation is Markdown whatever its source was written in. What reads as a sign of Markdown and
# was none in reST gets a backslash.


_SIGN = re.compile(
    r"[\\`*$]|(?<![^\W_])_|_(?![^\W_])|\[(?=\^)|\](?=[(\[])|<(?=[a-zA-Z/!?])|&(?=#|[a-zA-Z]+;)|^>(?=>>)"
)
# Between these two a formula stands; nothing but a digit behind it would make it none.
_FORMULA = re.compile(r"[^$`]*\S[^$`]*")


def sentence(parts: Sequence[nodes.Node], notes: Mapping[str, str]) -> str:
    """The Markdown of inline nodes; `notes` are the labels of footnotes by their ids."""
    said = [_part(each, notes) for each in parts]
    for number, (one, after) in enumerate(pairwise(said)):
        # `$x$2` would be an amount of money.
        if _is_formula(one) and after[:1].isdigit():
            said[number] += "\u200b"
    return re.sub(r"[ \t]*\n[ \t]*", "\n", "".join(said)).strip()


def _is_formula(said: str) -> bool:
    return len(said) > 2 and said[0] == said[-1] == "$"


def _part(node: nodes.Node, notes: Mapping[str, str]) -> str:
    inside = node.children
    match node:
        case nodes.Text():
            return escaped(unescape(str(node)))
        case nodes.literal() | nodes.title_reference():
            name = node.get("name_of", "")
            shown = code(node.astext())
            return f"[{shown}]({NAME}{name})" if name else shown
        case nodes.math() if node.get("displayed"):
            return f"$${node.astext().strip()}$$"
        case nodes.math():
            return formula(node.astext())
        case nodes.strong():
            return _around("**", sentence(inside, notes))
        case nodes.emphasis():
            return _around("*", sentence(inside, notes))
        case nodes.superscript() | nodes.subscript() if re.fullmatch(r"[\w+-]+", node.astext()):
            sign = "^" if isinstance(node, nodes.superscript) else "_"
            return f"${sign}{{{node.astext()}}}$"
        case nodes.footnote_reference() | nodes.citation_reference():
            label = notes.get(node.get("refid", ""))
            return f"[^{label}]" if label else escaped(f"[{node.astext()}]")
        case nodes.reference():
            return _link(node, notes)
        case nodes.image():
            return picture(node)
        case nodes.problematic() | nodes.substitution_reference():
            typed = unescape(node.rawsource or node.astext())
            # A role that can do nothing with its words, such as a number that is none.
            role = re.fullmatch(r":[a-zA-Z][\w:+.-]*:`([^`]+)`", typed)
            return code(role[1]) if role else escaped(typed)
        case _:
            return sentence(inside, notes) if inside else escaped(node.astext())


def escaped(text: str) -> str:
    """Words that mean nothing to Markdown."""
    return _SIGN.sub(r"\\\g<0>", text)


def code(text: str) -> str:
    """A code span."""
    text = " ".join(text.split())
    runs = [len(run) for run in re.findall("`+", text)]
    fence = "`" * (max(runs, default=0) + 1)
    room = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{room}{text}{room}{fence}" if text else ""


def formula(tex: str) -> str:
    """A formula in a sentence; as code where Markdown has no way to write it."""
    tex = " ".join(tex.split())
    return f"${tex}$" if _FORMULA.fullmatch(tex) and not tex.endswith("\\") else code(tex)


def picture(node: nodes.image) -> str:
    """A picture, with its words or else the name of its file."""
    address = str(node["uri"])
    words = str(node.get("alt") or address.rpartition("/")[2])
    return f"![{escaped(words)}]({_address(address)})"


def _link(node: nodes.reference, notes: Mapping[str, str]) -> str:
    words = sentence(node.children, notes)
    if address := node.get("refuri"):
        return f"[{words}]({_address(str(address))})" if words else f"<{address}>"
    if "refid" in node or "refname" not in node:
        return words
    # Nothing here has this name. `size_` is a word that ends so; with backticks it is a place elsewhere.
    return words if node.rawsource.startswith("`") else escaped(unescape(node.rawsource)) or words


def _address(address: str) -> str:
    address = "".join(address.split())
    return f"<{address}>" if re.search(r"[()<>\\]", address) and "<" not in address else address


def _around(sign: str, words: str) -> str:
    return f"{sign}{words}{sign}" if words.strip() else words


# ## Tables of reST
#
# > A cell holds one unit of words, so what docutils reads as several blocks in a cell becomes its lines.


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


# ## What a section lists
#
# > One entry after the other goes through `docstring_parser`: a name, a type, and what is said about it.
#
# A list that it cannot read is printed as text.


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a list: a name, its type as it was typed, and what is said about it, from line `line` on."""

    name: str
    type: str
    text: str
    line: int
    text_line: int


def entries(part: Part, style: Style) -> list[Entry] | None:
    """The rows of a part that lists something; `None` if it is not understood as a list."""
    lines = part.text.split("\n")
    if style == "google" and part.kind in ("returns", "yields"):
        starts = [0]
    else:
        starts = [number for number, line in enumerate(lines) if line[:1].strip()]
    bounds = [*starts, len(lines)]
    try:
        rows = [
            _entry(part, lines[start:end], start, style)
            for start, end in zip(starts, bounds[1:], strict=True)
        ]
    except ParseError:
        return None
    return None if any(_is_prose(row, part) for row in rows) else rows


_ROLE = re.compile(r":[a-z:]{1,40}:`(?:[^`<]*<)?[~!]?([^`<>]+)>?`|`+([^`]+)`+")
_SENTENCE = re.compile(r"(?:\w[\w'-]*[,;]?\s+){3,}[\w'`-]+[.:]?|.*[.:]")


def _is_prose(row: Entry, part: Part) -> bool:
    """Whether the name of an entry is the begin of a list, or a sentence that stands where a name should."""
    if re.match(r"[-*+\u2022]\s", row.name):
        return True
    if part.kind == "returns" or part.kind == "yields":
        return False
    return len(row.name.split()) > 3 and "," not in row.name and _SENTENCE.fullmatch(row.name) is not None


def _entry(part: Part, lines: Sequence[str], start: int, style: Style) -> Entry:
    kind = {"warns": "raises"}.get(part.kind, part.kind if part.kind in _TITLES else "parameter")
    if style == "google":
        body = "\n".join(lines) if kind in ("returns", "yields") else "\n".join(_even(lines))
        # The parser removes the indentation below the first line, which is none of a list.
        found = _google_parser().parse(f"-\n{_TITLES[kind]}:\n" + textwrap.indent(body, "    ")).meta
    else:
        title = _TITLES[kind] if kind != "parameter" else "Parameters"
        found = _numpy_parser().parse(f"{title}\n{'-' * len(title)}\n" + "\n".join(lines)).meta
    if len(found) != 1:
        raise ParseError
    name, type_ = _named(found[0], lines[0], style)
    text, below = _said(found[0], lines)
    if part.kind == "see_also":
        # What stands behind the colon there is no type.
        type_, text = "", "\n".join(each for each in (type_, text) if each)
    return Entry(_bare(name), _bare(type_), text, part.line + start, part.line + start + below)


def _said(meta: DocstringMeta, lines: Sequence[str]) -> tuple[str, int]:
    """What is said about an entry, and how far below it that begins.

    The parser would drop a blank line below the first one.
    """
    first = (meta.description or "").strip().partition("\n")[0].strip()
    if not first:
        return "", 0
    below = next((number for number, line in enumerate(lines) if line.rstrip().endswith(first)), 0)
    rest = textwrap.dedent("\n".join(lines[below + 1 :]))
    return f"{first}\n{rest}".rstrip(), below


_TITLES = {"parameter": "Args", "returns": "Returns", "yields": "Yields", "raises": "Raises"}


def _even(lines: Sequence[str]) -> list[str]:
    """Lines below the first one, however far their author has indented them."""
    below = textwrap.dedent("\n".join(lines[1:]))
    return [lines[0], *textwrap.indent(below, "    ").split("\n")] if below.strip() else [lines[0]]


def _named(meta: DocstringMeta, line: str, style: Style) -> tuple[str, str]:
    """The name and the type of an entry, as they were typed."""
    if isinstance(meta, DocstringParam):
        if style == "numpy":
            return meta.arg_name, line[len(meta.arg_name) :].strip().removeprefix(":").strip()
        return meta.arg_name, (meta.type_name or "") + (", optional" if meta.is_optional else "")
    if isinstance(meta, DocstringReturns):
        return meta.return_name or "", meta.type_name or ""
    return str(getattr(meta, "type_name", "") or ""), ""


def _bare(text: str) -> str:
    """Without roles and quotes of code: a name stands in a column of code anyway."""
    return _ROLE.sub(lambda found: found[1] or found[2], text).replace("\\*", "*").strip()


@cache
def _google_parser() -> google.GoogleParser:
    return google.GoogleParser()


@cache
def _numpy_parser() -> numpydoc.NumpydocParser:
    return numpydoc.NumpydocParser()
