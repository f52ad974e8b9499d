"""# What a page says, before any language

> Sources and prose become the same record, so that everything after this stage treats them alike.

A chapter's pieces are its sections; a prose page's pieces are the stretches between its headings. A piece
carries the tokens of its words, the context its translations are filed under, and the lines of code beside
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TypeVar

from markdown_it.token import Token

from sidelit import digests, reading
from sidelit.catalog import catalog
from sidelit.config import SITE, Chapter, Config, Lab, Lesson, Prose
from sidelit.errors import SidelitError
from sidelit.figures import figure
from sidelit.ids.anchors import Anchor
from sidelit.interactive import sliders, stepper
from sidelit.kept import note
from sidelit.labs import written as lab_page
from sidelit.memory import Memory
from sidelit.packed import Ids
from sidelit.site import imported, lesson_head
from sidelit.source import source
from sidelit.source.marks import Depth
from sidelit.source.surface import Surface
from sidelit.text import code, directives, fields, markup
from sidelit.text.docstrings import reader

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Fold:
    """A stretch of depth: what it guards against, in one line; all its pieces hold the same one."""

    line: int
    context: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Imports:
    """The imports that a file begins with: what the line above them names, and their lines."""

    named: imported.Named
    lines: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """One section of a source, or one stretch of prose under its heading."""

    id: str
    aliases: tuple[str, ...]
    context: str
    kind: str
    qualname: str
    tokens: tuple[Token, ...]
    lines: tuple[tuple[int, str], ...] = ()
    """Line numbers and coloured HTML of the code on show."""
    imports: Imports | None = None
    """The imports that the file begins with: they are folded, and beside no words."""
    code_digest: str = ""
    first_line: int = 1
    places: tuple[str, ...] = ()
    """Where it stood on other pages, each as `address#id`; without an id it is a whole page."""
    fold: Fold | None = None
    """The depth that it is part of; `None` if it is core."""
    number: str = ""
    """Chapter and section, as `12.4`; the opening of a chapter has the number of the chapter alone."""
    figure: str = ""
    """The drawing that stands beside its words: `:figure: NAME`."""
    figure_line: int = 1


@dataclass(frozen=True, slots=True)
class Text:
    """One page in the language it was written in."""

    item: Chapter | Prose
    label: str
    """What the page is called when it says no title itself."""
    pieces: Sequence[Piece]
    ids: Ids
    """Everything a link to this page may end in."""
    number: int = 0
    """Which chapter of the book it is, from 1; 0 if it is none."""
    _: KW_ONLY
    minutes: int = 0
    """How long it takes to read, if it is a lesson."""
    lesson: str = ""
    """The lesson that a lab belongs to: `:lesson: NAME` in its head."""
    lesson_line: int = 1
    digest: str = ""
    """Stands for everything that the pieces were made from; empty if nobody knows."""
    surface: Surface = field(default_factory=Surface)
    """What other sources can know of it."""
    memory: Memory = field(default_factory=Memory, repr=False, compare=False)
    """What earlier builds worked out."""

    def once(self, kind: str, make: Callable[[], Value], *others: str) -> Value:
        """What `make` finds in this text; it may look at what the digests of `others` stand for, too."""
        note(self.item.source)
        return self.memory.of(kind, (self.digest, *others) if self.digest else "", make)

    @property
    def prose(self) -> bool:
        """Whether this is a page of Markdown, which reads as one text, rather than a source."""
        return isinstance(self.item, Prose)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The words of the whole page, in order."""
        return tuple(token for piece in self.pieces for token in piece.tokens)

    @property
    def directives(self) -> tuple[tuple[Token, ...], ...]:
        """The tokens of each directive, those inside another one too; commentary has none."""
        if not self.prose:
            return ()
        return self.once("directives", lambda: tuple(directives.among(self.tokens)))


def chapter(
    item: Chapter,
    document: source.Document,
    names: Sequence[Anchor],
    number: int = 0,
    report: Callable[[SidelitError], None] = lambda error: None,
) -> Text:
    """Make the text of a source; `names` are the anchors of its sections, `number` is its place in the book.

    What is wrong with a docstring in its dialect goes to `report`.

    Sections that are hidden from readers are left out here, once for all languages.
    """
    lines = code.highlight(document.text)
    texts = (section.commentary for section in document.sections)
    docstrings = reader.reader(item.dialect, texts, item.source, report)
    folds = {depth: _fold(item, depth) for each in document.sections if (depth := each.depth)}
    pieces = tuple(
        Piece(
            id=name.id,
            aliases=name.aliases,
            places=name.places,
            context=section.qualname or "module",
            kind=section.kind,
            qualname=section.qualname,
            tokens=docstrings.read(section.commentary, section.commentary_line or 1),
            lines=tuple(code.numbered(lines, section.body)),
            imports=_imports(item, section, lines),
            code_digest=catalog.code_digest(line for _, line in section.body),
            first_line=section.first_line,
            fold=folds[section.depth] if section.depth else None,
        )
        for section, name in zip(document.sections, names, strict=True)
        if not section.hidden and (section.commentary.strip() or section.code or section.kind == "module")
    )
    pieces = tuple(_numbered(_with_anchors(pieces), number))
    ids = Ids(name for piece in pieces for name in (piece.id, *piece.aliases))
    digest = chapter_digest(item, document, names, number)
    pieces = tuple(_with_figure(piece, item.source) for piece in pieces)
    return Text(item, item.module, pieces, ids, number, digest=digest)


def chapter_digest(item: Chapter, document: source.Document, names: Sequence[Anchor], number: int = 0) -> str:
    """Stands for all that `chapter` makes a text from."""
    return digests.digest(document.text, item, names, number)


def _imports(item: Chapter, section: source.Section, lines: tuple[code.Line, ...]) -> Imports | None:
    shown = section.importing
    if not shown:
        return None
    rows = {number for number, _ in shown}
    modules = (each.module for each in section.imports.modules if each.line in rows)
    return Imports(imported.named(modules, item.module), tuple(code.numbered(lines, shown)))


def _numbered(pieces: Iterable[Piece], chapter: int) -> Iterator[Piece]:
    """Count the sections below the opening. The numbers hold for one release; the ids last."""
    count = 0
    for piece in pieces:
        count += piece.kind != "module"
        below = "" if piece.kind == "module" else f".{count}"
        yield replace(piece, number=f"{chapter}{below}") if chapter else piece


def _with_anchors(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Let the names that authors gave to places, as `<a id="…">`, lead to the sections they stand in."""
    taken = {name for piece in pieces for name in (piece.id, *piece.aliases)}
    for piece in pieces:
        names = [name for name in markup.anchors(piece.tokens) if name not in taken]
        taken.update(names)
        yield replace(piece, aliases=(*piece.aliases, *dict.fromkeys(names))) if names else piece


def _with_figure(piece: Piece, path: str) -> Piece:
    """A section with the name of the drawing beside it, which is no word to translate."""
    tokens, named = fields.take(piece.tokens, "figure")
    if not named:
        return piece
    line, name = markup.line_of(named[-1].name), markup.plain(named[-1].body)
    if len(named) > 1:
        raise SidelitError("a section has one figure", path=path, line=line)
    if not re.fullmatch(r"\w+", name):
        what = f"`:figure:` says {name!r}, which is no name of a figure"
        raise SidelitError(what, path=path, line=line)
    return replace(piece, tokens=tokens, figure=name, figure_line=line)


def _fold(item: Chapter, depth: Depth) -> Fold:
    """Its context is the definition that the mark stands in, which lasts while sections come and go."""
    tokens = markup.line(depth.words, path=item.source, number=depth.line)
    return Fold(depth.line, depth.qualname or "module", tokens)


def written(item: Prose, path: Path) -> str:
    """Read a page of Markdown.

    Raises `SidelitError` when the file cannot be read.
    """
    try:
        return reading.text(path)
    except OSError as error:
        raise SidelitError(f"cannot be read: {error.strerror}", path=item.source) from None
    except UnicodeDecodeError:
        raise SidelitError("cannot be read: it is not UTF-8", path=item.source) from None


def prose_digest(item: Prose, written: str) -> str:
    """Stands for all that `prose` makes a text from."""
    return digests.digest(written, item)


def prose(item: Prose, written: str) -> Text:
    """Make the text of a page of Markdown from its words.

    Raises `SidelitError` where they are wrong.
    """
    named: Sequence[fields.Field] = ()
    if isinstance(item, Lab):
        tokens, named = fields.take(lab_page.tokens(written, item.source), "lesson")
    else:
        tokens = markup.parse(written, path=item.source, first_line=1, directives=True)
    # The title is drawn by the page's template, which gives it no id.
    after = markup.opening(tokens).rest
    minutes = lesson_head.split(after, item.source).minutes if isinstance(item, Lesson) else 0
    ids = Ids(str(token.meta["slug"]) for token in after if token.type == "heading_open")
    pieces = tuple(Piece("", (), context, "prose", "", part) for context, part in catalog.split_prose(tokens))
    label = PurePosixPath(item.source).stem
    lesson, line = (markup.plain(named[0].body), markup.line_of(named[0].name)) if named else ("", 1)
    digest = prose_digest(item, written)
    return Text(item, label, pieces, ids, minutes=minutes, lesson=lesson, lesson_line=line, digest=digest)


def units(config: Config, texts: Sequence[Text]) -> tuple[catalog.PageUnits, ...]:
    """Everything of a site that is to be translated: its pages, and the words that are on none of them."""
    asked = (part.question for part in config.parts)
    parts = (config.course.label, config.labs.label, *(part.label for part in config.parts), *asked)
    labels = tuple(label for label in parts if label)
    about = tuple(text for text in (config.tagline, config.licence_note) if text)
    own = (("nav", labels), ("site", about))
    site = catalog.PageUnits(SITE, tuple(catalog.SectionUnits(name, said) for name, said in own if said))
    current = {text.item.name for text in texts}
    figures = (each.units() for each in figure.read_all(config))
    steppers = (stepper.read(config, name).script.units() for name in stepper.names(config))
    moved = (sliders.read(config, name).script.units() for name in sliders.names(config))
    return (*(page_units(text, current) for text in texts), *figures, *steppers, *moved, site)


def page_units(text: Text, current: Collection[str] = ()) -> catalog.PageUnits:
    """What of a page is to be translated; `current` are the names of all pages, this one included."""
    sections = text.once("units", lambda: tuple(_sections(text.pieces)))
    # What a page might have been called by its path is nothing to a page that is called so.
    former = (each.name for each in text.item.former if each.told or each.name not in current)
    names = tuple(dict.fromkeys(former))
    return catalog.PageUnits(text.item.name, sections, names, text.item.languages)


def _sections(pieces: Sequence[Piece]) -> Iterator[catalog.SectionUnits]:
    pairs = pairwise((None, *pieces))
    yield from (units for before, piece in pairs if piece for units in _units(before, piece))


def _units(before: Piece | None, piece: Piece) -> Iterator[catalog.SectionUnits]:
    """What of a piece is to be translated; where a fold begins, its line comes first.

    That line is not about the code of one section, so no change of code asks for a recheck of it.
    """
    if piece.fold and (before is None or before.fold is not piece.fold):
        yield catalog.extract(piece.fold.context, piece.fold.tokens)
    yield catalog.extract(piece.context, piece.tokens, piece.code_digest)
