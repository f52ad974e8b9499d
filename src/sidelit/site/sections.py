"""# Sections of a page

> The words of a section, its code, and what can be done with it: link to it, cite it, mend it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from sidelit.origin import report
from sidelit.site import balance, employed, views
from sidelit.site.content import Piece
from sidelit.site.edition import Words
from sidelit.site.lines import CodeLine, Imports, code_line
from sidelit.site.links import fragment
from sidelit.text import markup

if TYPE_CHECKING:
    from sidelit.site.desk import Desk


def view(
    desk: Desk, piece: Piece, words: Words, fold: views.Fold | None, name: str = ""
) -> views.SectionView:
    """A section as a desk makes it; `name` is its id on the page that shows it, if that is not its own."""
    line = piece.lines[0][0] if piece.lines else piece.first_line
    doc = Markup(desk.html(words.tokens, name or piece.id, _offset(piece)))
    lines = tuple(_lines(desk, piece.lines, desk.code))
    return views.SectionView(
        id=name or piece.id,
        aliases=() if name else piece.aliases,
        kind=piece.kind,
        qualname=piece.qualname,
        name=piece.qualname.rpartition(".")[2] if piece.kind in ("class", "function") else "",
        depth=piece.qualname.count("."),
        title=desk.inline(words.title, "title", name or piece.id),
        doc=doc,
        lines=lines,
        imports=_imports(desk, piece),
        state=words.state,
        langs=tuple(desk.ways.others(name or piece.id)),
        source_url=desk.source_url(line),
        report=report(desk.config, desk.press.origin, desk.item.source, desk.shown.lang, line, piece.id),
        employed=employed.View() if name else employed.view(desk, piece),
        newest=_newest(desk, piece),
        fold=fold,
        number=piece.number,
        plain_title=markup.plain(words.title),
        figure=desk.figure_of(piece) if piece.kind != "module" else "",
        above=not piece.figure and balance.words_above(doc, lines),
    )


def _lines(desk: Desk, lines: Sequence[tuple[int, str]], marked: Callable[[str], str]) -> Iterator[CodeLine]:
    page = (desk.host or desk.shown).text.item.output
    for number, html in desk.press.names.lines(desk.item.source, tuple(lines), page):
        yield code_line(number, marked(html))


def _imports(desk: Desk, piece: Piece) -> Imports | None:
    if piece.imports is None:
        return None
    named = piece.imports.named
    return Imports(", ".join(named.names), named.more, tuple(_lines(desk, piece.imports.lines, str)))


def _newest(desk: Desk, piece: Piece) -> str:
    """Where a section is in the newest release, on a page that is out of date."""
    noted, output = desk.config.public.notice, desk.item.output
    return f"{desk.ways.newest(output)}#{fragment(piece.id)}" if noted else ""


def _offset(piece: Piece) -> int:
    """How far headings inside a text move down, so that none skips a level below its section's own."""
    # The templates set a definition in h2, a method in h3, and anything deeper in h4.
    return 1 + min(piece.qualname.count("."), 2) if piece.qualname else 0
