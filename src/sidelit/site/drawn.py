"""# A figure on its page

> The drawing, what it claims above it, where its numbers come from and the numbers themselves below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markdown_it.token import Token
from markupsafe import Markup, escape

from sidelit.figures.drawing import Drawing
from sidelit.figures.words import Said
from sidelit.languages import Language
from sidelit.look import Look
from sidelit.site import page

ID = "figure-{}"


@dataclass(frozen=True, slots=True)
class Words:
    """The page's language, the tag of that of the data, and the look of the page."""

    language: Language
    source_lang: str
    look: Look


def html(drawing: Drawing, words: Words, number: int, inline: Callable[[Sequence[Token]], Markup]) -> Markup:
    """The figure as HTML, the page's `number`th of that name; `inline` sets its title and its caption."""
    own = ID.format(drawing.name) + (f"-{number}" if number > 1 else "")
    values = {
        "id": own,
        "title": inline(drawing.title),
        "title_lang": _language(drawing.title),
        "caption": inline(drawing.caption),
        "caption_lang": _language(drawing.caption),
        "wide": _described(drawing, drawing.wide, own, "wide" if drawing.narrow else "wide only"),
        "narrow": _described(drawing, drawing.narrow, own, "narrow") if drawing.narrow else "",
        "heads": [_cell(head) for head in drawing.heads],
        "rows": [[_cell(cell) for cell in row] for row in drawing.rows],
        "recordings": drawing.recordings,
        "state": drawing.state,
        "source_lang": words.source_lang,
    }
    return page.fragment("figure.html", words.language, words.look, values)


def _described(drawing: Drawing, svg: Markup, own: str, kind: str) -> Markup:
    """The drawing as an image with a name and a description, for whoever cannot see it."""
    about = f"{own}-{kind.split()[0]}"
    opening = Markup('<svg class="{}" role="img" aria-labelledby="{}" aria-describedby="{}"').format(
        kind, f"{own}-title", f"{about}-desc"
    )
    start, end = svg.index("<svg") + len("<svg"), svg.index(">") + 1
    desc = Markup('<desc id="{}">{}</desc>').format(f"{about}-desc", drawing.description)
    return opening + svg[start:end] + desc + svg[end:]


def _cell(said: Said) -> Markup:
    pieces = (
        Markup("<code>{}</code>").format(piece.text) if piece.code else escape(piece.text)
        for piece in said.pieces
    )
    text = Markup("").join(pieces)
    return Markup('<span lang="{}">{}</span>').format(said.lang, text) if said.lang else text


def _language(sentence: Sequence[Token]) -> str | None:
    return str(sentence[0].attrs["lang"]) if "lang" in sentence[0].attrs else None
