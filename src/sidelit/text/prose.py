"""# Prose

> Tokens become HTML: paragraphs, lists, tables, formulas, boxes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from html import escape
from itertools import zip_longest

from markdown_it.token import Token

from sidelit.errors import SidelitError
from sidelit.text import directives, markup
from sidelit.text.code import coloured
from sidelit.text.inlines import LABELS, InlineWriter, RenderContext, fragment, tag
from sidelit.theme import breakable

# ## Tables of Markdown
#
# > A column of numbers stands at the right, and a table too wide for a phone becomes a list of its rows
# > there.
#
# Both are decided from the words of the cells, before the table is written. In the list each value needs the
# heading of its column beside it, which the cell carries along for the stylesheet.


# A number with its sign, a range of two, what it is counted in. A name such as `0.weight` is none.
_NUMBER = re.compile(
    r"[~≈<>≤≥+−-]?\s?\d([\d,.\u00a0\u2009\u202f ]*\d)?([–-]\s?\d([\d,.]*\d)?)?"
    r"\s?(%|×|[A-Za-zµ][A-Za-z/]{0,7})?"
)
# Letters in a line of a phone that is 390 pixels wide, and what the gap between two columns takes of it.
_ROOM, _GAP = 42, 2
# Words of a cell break into lines. A line needs so many letters to be read, and more in a long text.
_LINE, _FEW, _LONG_LINE = 11, 30, 16

Attributes = dict[int, dict[str, str]]


def measured(tokens: Sequence[Token], start: int) -> tuple[bool, Attributes]:
    """Look at the table that opens at `start`: whether it is too wide for a phone, and what its cells need.

    :returns: the attributes of a cell by the `id` of the token that opens it.
    """
    rows = list(_rows(tokens, start))
    said = [[_plain(words) for _, words in row] for row in rows]
    # A row may be shorter than another one.
    columns = list(zip_longest(*said, fillvalue=""))
    counts = [_counts(column) for column in columns]
    wide = len(columns) > 1 and sum(map(_needs, columns)) + _GAP * (len(columns) - 1) > _ROOM
    attributes: Attributes = {}
    for row in rows:
        for number, (opening, _) in enumerate(row):
            needed = {"style": "text-align:right"} if counts[number] else {}
            if wide and opening.type == "td_open":
                needed["data-label"] = columns[number][0]
            attributes[id(opening)] = needed
    return wide, attributes


def _rows(tokens: Sequence[Token], start: int) -> Iterator[list[tuple[Token, Token]]]:
    """The cells of each row: the token that opens one, and its words."""
    row: list[tuple[Token, Token]] = []
    for index in range(start + 1, len(tokens)):
        match tokens[index].type:
            case "tr_open":
                row = []
            case "th_open" | "td_open":
                row.append((tokens[index], tokens[index + 1]))
            case "tr_close":
                yield row
            case "table_close":
                return


def _plain(words: Token) -> str:
    """The words of a cell; a formula counts with the letters of its TeX, less the commands."""
    parts = (
        re.sub(r"\\[a-z]+|[{}\\]", "", child.content)
        if child.type == "math_inline"
        else markup.plain([child])
        for child in words.children or ()
    )
    return "".join(parts).strip()


def _counts(column: Sequence[str]) -> bool:
    """Whether all of a column below its heading are numbers, and there are several."""
    body = [cell for cell in column[1:] if cell and cell not in "–—-"]
    return len(body) > 1 and all(_NUMBER.fullmatch(cell) for cell in body)


def _needs(column: Sequence[str]) -> int:
    """The letters in a line that a column needs."""
    if _counts(column):
        return max(map(_width, [*column[0].split(), *column[1:]]))
    line = _LINE if max(map(_width, column)) <= _FEW else _LONG_LINE
    return max(min(_width(cell), max([line, *map(_width, cell.split())])) for cell in column)


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


# ## Prose
#
# > Tokens become HTML that is safe to publish, with formulas and links that are right.
#
# This is the door to everything about text. Blocks are written here, and what stands inside a sentence in
# `inlines`. Lists of parameters are sorted in `directives`. The slots of `inlines` keep the whole safe: words
# pass a sieve, and formulas, links, pictures and code are put in afterwards.


ADMONITIONS = ("note", "tip", "important", "warning")

plain = markup.plain


def render(tokens: Sequence[Token], *, context: RenderContext) -> str:
    """Turn block tokens into safe HTML.

    :raises SidelitError: a formula, link, picture or kind of admonition that is wrong, with its own line.
    """
    writer = _Writer(context)
    return writer.slots.fill(writer.blocks(tokens))


def render_inline(token: Token, *, context: RenderContext) -> str:
    """Turn one inline token into safe HTML without a block around it, for titles and labels."""
    writer = _Writer(context)
    return writer.slots.fill(writer.inline(token))


class _Writer(InlineWriter):
    """Writes block tokens, and through its base what is in them."""

    def __init__(self, context: RenderContext) -> None:
        super().__init__(context)
        self._cells: Attributes = {}

    def blocks(self, tokens: Sequence[Token]) -> str:
        parts: list[str] = []
        index = 0
        while index < len(tokens):
            if tokens[index].type == "field_list_open":
                end = directives.closing(tokens, index)
                parts.append(self._fields(tokens[index + 1 : end]))
                index = end
            elif tokens[index].type == directives.OPEN:
                end = directives.closing(tokens, index)
                parts.append(self._directive(tokens[index : end + 1]))
                index = end
            else:
                parts.append(self._block(tokens, index))
            index += 1
        return "".join(parts)

    def _directive(self, tokens: Sequence[Token]) -> str:
        """What stands for a directive; its words are sieved here, before they get into it."""
        if self.context.directive is None:
            return self.blocks(directives.read(tokens).body)
        html = self.context.directive(
            directives.read(tokens), lambda part: self.slots.fill(self.blocks(part))
        )
        return self.slots.block(html)

    def _block(self, tokens: Sequence[Token], index: int) -> str:
        token = tokens[index]
        match token.type:
            case "inline":
                return self._sentence(tokens, index)
            case "admonition_label":
                return escape(self._label(token), quote=False)
            case "fence" | "code_block":
                return self._sample(token)
            case "math_block":
                return self.formula(token, token, display=True)
            case "anchor":
                return ""  # The section has the name.
            case "admonition_open":
                return self._open_admonition(token)
            case "admonition_close":
                return "</aside>\n"
            case "table_open":
                wide, self._cells = measured(tokens, index)
                return f"{self._scroll()}{tag('table', {'class': 'stack' if wide else ''})}\n"
            case "table_close":
                return "</table></div>\n"
            case "footnote_block_open":
                return '<ol class="footnotes">\n'
            case "footnote_block_close":
                return "</ol>\n"
            case "footnote_open":
                return tag("li", {"id": self.note_id(token.meta["id"])})
            case "footnote_close":
                return "</li>\n"
            case "footnote_anchor":
                return self._ways_back(token)
            case "hr":
                return "<hr>\n"
            # A screen reader would announce the heading of a column and then have nothing to say.
            case "th_open" if _wordless(tokens[index + 1]):
                return tag("td", self._attributes(tokens, index))
            case "th_close" if _wordless(tokens[index - 1]):
                return "</td>\n"
            case _ if token.hidden:
                return ""
            case _ if token.nesting == -1:
                return f"</{token.tag}>\n"
            case _:
                return tag(token.tag, self._attributes(tokens, index)) + self._former(token)

    def _former(self, token: Token) -> str:
        """The places of the ids that a heading had before."""
        aliases = token.meta.get("aliases", ()) if self.context.heading_ids else ()
        return "".join(self.slots.inline(f"{tag('span', {'id': old})}</span>") for old in aliases)

    def _sentence(self, tokens: Sequence[Token], index: int) -> str:
        before = tokens[index - 1] if index else None
        html = self.inline(tokens[index], before.attrs if before is not None else {})
        if before is not None and before.nesting == 1 and not before.hidden:
            return html
        # The words of a tight list have no element of their own that could say what language they are in.
        attributes = {**(before.attrs if before is not None else {}), **tokens[index].attrs}
        return f"{tag('span', attributes)}{html}</span>" if attributes else html

    def _attributes(self, tokens: Sequence[Token], index: int) -> dict[str, object]:
        token = tokens[index]
        # What the author says about a cell counts more than what its words suggest.
        attributes: dict[str, object] = {**self._cells.get(id(token), {}), **token.attrs}
        if index + 1 < len(tokens) and tokens[index + 1].type == "inline":
            attributes.update(tokens[index + 1].attrs)
        if token.type == "heading_open" and self.context.heading_ids:
            attributes["id"] = token.meta["slug"]
        if token.type == "th_open" and not _wordless(tokens[index + 1]):
            attributes["scope"] = "col"
        alignment = str(attributes.pop("style", "")).removeprefix("text-align:")
        if alignment:
            attributes["class"] = f"{attributes.get('class', '')} {alignment}".strip()
        return attributes

    def _open_admonition(self, token: Token) -> str:
        kind = str(token.meta["tag"])
        if kind == "version":
            return tag("aside", {"class": "admonition version", "role": "note"}) + "\n"
        if kind not in ADMONITIONS and self.context.strict:
            raise SidelitError(
                f"there is no kind of admonition called {kind!r}",
                path=markup.path_of(token),
                line=markup.line_of(token),
                hint=f"use {', '.join(ADMONITIONS)}",
            )
        # As a note it is no landmark: a page may hold a dozen, and each would be a stop on the way.
        return tag("aside", {"class": f"admonition {_kind(kind)}", "role": "note"}) + "\n"

    def _label(self, token: Token) -> str:
        """A word of the press; `deprecated` and its kin are said with the version since when."""
        name = token.content.lower()
        label = self.context.label(name if name in LABELS else _kind(name))
        return label.format(version=token.meta["version"]) if "version" in token.meta else label

    def _scroll(self) -> str:
        # What is wider than the column scrolls in a box of its own, which a keyboard must be able to reach.
        label = self.context.label("table")
        return tag("div", {"class": "scroll", "tabindex": 0, "role": "group", "aria-label": label})

    def _sample(self, token: Token) -> str:
        language = (token.info.split() or [""])[0]
        if token.type == "code_block" and token.content.lstrip().startswith(">>>"):
            language = "pycon"
        box = {"class": "sample", "tabindex": 0, "role": "group", "aria-label": self.context.label("sample")}
        return self.slots.block(f"{tag('pre', box)}<code>{coloured(token.content, language)}</code></pre>\n")

    def _ways_back(self, token: Token) -> str:
        # The plugin counts the English's references; a translation may have more or fewer.
        number = int(token.meta["id"])
        if token.meta["subId"]:
            return ""
        nav = []
        for count in range(1, self.references(number) + 1):
            label = self.context.label("footnote_back")
            address = fragment(self.reference_id(number, count))
            opening = tag("a", {"href": address, "class": "footnote-back", "aria-label": label})
            nav.append(f" {self.slots.anchor(opening)}\u21a9\ufe0e</a>")
        return "".join(nav)

    def _fields(self, tokens: Sequence[Token]) -> str:
        return "".join(self._table(kind, rows) for kind, rows in directives.tables(tokens).items())

    def _table(self, kind: str, rows: Sequence[directives.Field]) -> str:
        label = self.context.label
        heads = [label({"notation": "symbol"}.get(kind, kind))]
        named = kind not in directives.NAMELESS or any(row.argument or row.type for row in rows)
        if named:
            heads.append(label("condition" if kind == "raises" else "meaning"))
        caption = f"<caption>{escape(label('notation'))}</caption>" if kind == "notation" else ""
        head = "".join(f'<th scope="col">{escape(text, quote=False)}</th>' for text in heads)
        body = "".join(
            f"<tr>{self._row_head(row) if named else ''}<td>{self._row_body(row)}</td></tr>\n" for row in rows
        )
        return (
            f'<table class="fields {kind}">{caption}<thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}</tbody></table>\n"
        )

    def _row_head(self, row: directives.Field) -> str:
        if row.kind == "notation":
            # Not a heading of the row: to axe a cell that holds only MathML is an empty heading.
            return f'<td class="symbol">{self.inline(row.name)}</td>'
        if not row.argument and not row.type:
            return "<td></td>"
        if not row.argument:
            return f'<th scope="row"><code>{escape(row.type, quote=False)}</code></th>'
        type_ = f' <span class="type">{escape(row.type, quote=False)}</span>' if row.type else ""
        return f'<th scope="row"><code>{breakable(row.argument)}</code>{type_}</th>'

    def _row_body(self, row: directives.Field) -> str:
        if [token.type for token in row.body] != ["paragraph_open", "inline", "paragraph_close"]:
            return self.blocks(row.body)
        # One paragraph needs no paragraph's margins in a cell.
        opening, words, _ = row.body
        attributes = {**opening.attrs, **words.attrs}
        html = self.inline(words, attributes)
        return f"{tag('span', attributes)}{html}</span>" if attributes else html


def _kind(name: str) -> str:
    return name if name in ADMONITIONS else ADMONITIONS[0]


def _wordless(cell: Token) -> bool:
    return not any(child.content.strip() and child.type != "math_inline" for child in cell.children or ())
