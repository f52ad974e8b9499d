"""# Sections in folds

> Sections that tell more than a first reading needs stand together under one line that opens them.

The line is what the source says above its first section in depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from sidelit.errors import SidelitError
from sidelit.site import views, ways
from sidelit.site.content import Piece
from sidelit.site.desk import Desk
from sidelit.site.edition import Words
from sidelit.text import markup


def sections(desk: Desk) -> Iterator[views.SectionView]:
    """The sections of a chapter, those that are folded together with one fold."""
    pairs = zip(desk.shown.text.pieces, desk.shown.words, strict=True)
    for _, group in groupby(pairs, key=lambda pair: pair[0].fold and pair[0].fold.line):
        together = list(group)
        numbers = [number for piece, _ in together for number, _ in piece.lines]
        fold = _fold(desk, *together[0], numbers)
        yield from (desk.section(piece, words, fold) for piece, words in together)


def _fold(desk: Desk, piece: Piece, words: Words, numbers: Sequence[int]) -> views.Fold | None:
    """What stands above folded sections; a click on it opens them, so a link has no place there."""
    if piece.fold is None:
        return None
    inline = words.fold[1]
    if any(child.type == "link_open" for child in inline.children or ()):
        what, line = "a link cannot stand in the line above depth", markup.line_of(inline)
        path, hint = markup.path_of(inline), "put it into the text of a section"
        desk.press.report(SidelitError(what, path=path, line=line, hint=hint))
    said = ways.unlinked(desk.inline(words.fold, "depth", piece.id))
    lines = (numbers[0], numbers[-1]) if numbers else (0, 0)
    return views.Fold(piece.fold.line, said, words.fold_state, *lines)
