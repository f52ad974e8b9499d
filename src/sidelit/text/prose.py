r"""# Prose

> Tokens become HTML that is safe to publish, with formulas and links that are right.

This is the door to everything about text. Blocks are written here, what stands inside a sentence in
`inlines`, lists of parameters are sorted by `fields`, and `slots` keeps the whole safe: words pass a sieve,
and formulas, links, pictures and code are put in afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from markdown_it.token import Token

from sidelit.breaks import breakable
from sidelit.errors import SidelitError
from sidelit.text import directives, fields, grids, markup
from sidelit.text.inlines import InlineWriter, RenderContext, fragment
from sidelit.text.labels import LABELS
from sidelit.text.samples import coloured
from sidelit.text.sanitizer import tag

__all__ = ["LABELS", "RenderContext", "plain", "render", "render_inline"]

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
        self._cells: grids.Attributes = {}

    def blocks(self, tokens: Sequence[Token]) -> str:
        parts: list[str] = []
        index = 0
        while index < len(tokens):
            if tokens[index].type == "field_list_open":
                end = fields.closing(tokens, index)
                parts.append(self._fields(tokens[index + 1 : end]))
                index = end
            elif tokens[index].type == directives.OPEN:
                end = fields.closing(tokens, index)
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
                wide, self._cells = grids.measured(tokens, index)
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
                return f"</{self._name(token)}>\n"
            case _:
                return tag(self._name(token), self._attributes(tokens, index))

    def _sentence(self, tokens: Sequence[Token], index: int) -> str:
        html = self.inline(tokens[index])
        before = tokens[index - 1] if index else None
        if before is not None and before.nesting == 1 and not before.hidden:
            return html
        # The words of a tight list have no element of their own that could say what language they are in.
        attributes = {**(before.attrs if before is not None else {}), **tokens[index].attrs}
        return f"{tag('span', attributes)}{html}</span>" if attributes else html

    def _name(self, token: Token) -> str:
        if token.type in ("heading_open", "heading_close"):
            return f"h{min(6, int(token.tag[1]) + self.context.heading_offset)}"
        return token.tag

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
        ways = []
        for count in range(1, self.references(number) + 1):
            label = self.context.label("footnote_back")
            address = fragment(self.reference_id(number, count))
            opening = tag("a", {"href": address, "class": "footnote-back", "aria-label": label})
            ways.append(f" {self.slots.anchor(opening)}\u21a9\ufe0e</a>")
        return "".join(ways)

    def _fields(self, tokens: Sequence[Token]) -> str:
        return "".join(self._table(kind, rows) for kind, rows in fields.tables(tokens).items())

    def _table(self, kind: str, rows: Sequence[fields.Field]) -> str:
        label = self.context.label
        heads = [label({"notation": "symbol"}.get(kind, kind))]
        named = kind not in fields.NAMELESS or any(row.argument or row.type for row in rows)
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

    def _row_head(self, row: fields.Field) -> str:
        if row.kind == "notation":
            # Not a heading of the row: to axe a cell that holds only MathML is an empty heading.
            return f'<td class="symbol">{self.inline(row.name)}</td>'
        if not row.argument and not row.type:
            return "<td></td>"
        if not row.argument:
            return f'<th scope="row"><code>{escape(row.type, quote=False)}</code></th>'
        type_ = f' <span class="type">{escape(row.type, quote=False)}</span>' if row.type else ""
        return f'<th scope="row"><code>{breakable(row.argument)}</code>{type_}</th>'

    def _row_body(self, row: fields.Field) -> str:
        if [token.type for token in row.body] != ["paragraph_open", "inline", "paragraph_close"]:
            return self.blocks(row.body)
        # One paragraph needs no paragraph's margins in a cell.
        opening, words, _ = row.body
        attributes = {**opening.attrs, **words.attrs}
        html = self.inline(words)
        return f"{tag('span', attributes)}{html}</span>" if attributes else html


def _kind(name: str) -> str:
    return name if name in ADMONITIONS else ADMONITIONS[0]


def _wordless(cell: Token) -> bool:
    return not any(child.content.strip() and child.type != "math_inline" for child in cell.children or ())
