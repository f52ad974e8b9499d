"""# Docstrings of other houses

> Sections of Google and NumPy, words of reST or Markdown, and one list of tokens.

A list of parameters becomes a table of fields, as `:param x:` does; a note becomes a box; every other section
keeps its heading. The words of all of them are read in one markup, so that a footnote of the last section may
be referred to in the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from docutils import nodes
from markdown_it.token import Token

from sidelit.errors import SidelitError
from sidelit.text import markup
from sidelit.text.docstrings import entries, guess, rest, rest_fields, sections
from sidelit.text.docstrings.blocks import Blocks
from sidelit.text.docstrings.maker import Maker, finished

# Writes the words of a piece.
Write = Callable[[rest.Piece], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a docstring stands, and who is told of what is wrong in it."""

    path: str
    first_line: int
    report: Callable[[SidelitError], None]


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of a docstring; with rows, if it is a list."""

    part: sections.Part
    rows: tuple[entries.Entry, ...] | None

    def pieces(self) -> Iterator[rest.Piece]:
        """Its words, from the top down."""
        if self.rows is None:
            yield rest.Piece(self.part.text, self.part.line)
        else:
            yield from (rest.Piece(row.text, row.text_line) for row in self.rows)


def tokens(text: str, style: sections.Style | None, said: guess.Markup, place: Place) -> tuple[Token, ...]:
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
    rows = entries.entries(part, style) if part.form == "fields" else None
    return _Section(part, tuple(rows) if rows else None)


def _markdown(found: Sequence[_Section], place: Place) -> list[Token]:
    maker = Maker(place.path, place.first_line)

    def write(piece: rest.Piece) -> None:
        line = place.first_line + piece.line
        maker.tokens += markup.parse(piece.text, path=place.path, first_line=line)

    for each in found:
        _write(each, maker, write)
    return maker.tokens


def _rest(found: Sequence[_Section], place: Place) -> list[Token]:
    pieces = list(dict.fromkeys(piece for each in found for piece in each.pieces()))
    marked = [piece for piece in pieces if not guess.plain(piece.text)]

    def report(what: str, line: int) -> None:
        place.report(SidelitError(f"reST: {what}", path=place.path, line=place.first_line + line - 1))

    try:
        groups = rest.parse(marked, report)
    except Exception as error:  # docutils fails on some texts in ways of its own, and none may stop a build.
        report(f"docutils cannot read this ({type(error).__name__}); it is shown as it was typed", 1)
        groups = [[nodes.literal_block(piece.text, piece.text)] for piece in marked]
    notes = list(rest.footnotes(groups))
    labels = {name: _label(note) for note in notes for name in note["ids"]}
    maker = Maker(place.path, place.first_line, {_label(note): number for number, note in enumerate(notes)})
    read: Mapping[rest.Piece, Sequence[nodes.Node]] = dict(zip(marked, groups, strict=True))

    def write(piece: rest.Piece) -> None:
        if piece not in read:
            line = place.first_line + piece.line
            maker.tokens += markup.parse(piece.text, path=place.path, first_line=line)
            return
        blocks = Blocks(maker, labels, rest_fields.write)
        blocks.line = piece.line
        blocks.write(read[piece])

    for each in found:
        _write(each, maker, write)
    _notes(notes, Blocks(maker, labels, rest_fields.write))
    return maker.tokens


def _write(section: _Section, maker: Maker, write: Write) -> None:
    """One part with its heading, its words written by `write`."""
    part = section.part
    if section.rows is not None:
        with maker.fields(part.line):
            for row in section.rows:
                with maker.field(part.kind, row.name, row.line, row.type):
                    write(rest.Piece(row.text, row.text_line))
        return
    words = rest.Piece(part.text, part.line)
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
