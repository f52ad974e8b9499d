"""# What a page says, before any language

> A chapter, a lesson, a lab and a page of prose become the same record: sections with words and code.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeVar

from markdown_it.token import Token

from sidelit.cache import store
from sidelit.cache.graph import Graph, Task, note
from sidelit.cache.records import Ids, quick
from sidelit.catalog import sync
from sidelit.config.chapters import Chapter
from sidelit.config.config import SITE, Config
from sidelit.config.prose import Prose
from sidelit.errors import SidelitError
from sidelit.figures import figure, interactive
from sidelit.files import assets
from sidelit.ids.anchors import Anchor
from sidelit.labs import cells as lab_page
from sidelit.source import source
from sidelit.source.scan import Depth
from sidelit.text import code, directives, markup
from sidelit.text.docstrings import reader

# ## The line above folded imports
#
# > A reader is told what a module rests on before opening its imports, and three names are enough for that.
#
# Modules of the same project are named first, together with those of other projects, and the standard library
# behind them. A module of the project is called by its last name, as `store` for
# `from shop.store import Store`, and another project by its first one, as `numpy` for `numpy.linalg`.


SHOWN = 3


@dataclass(frozen=True, slots=True)
class Named:
    """What the line says: some names, and how many modules it does not name."""

    names: tuple[str, ...]
    more: int = 0


def named(modules: Iterable[str], own: str) -> Named:
    """Choose the names that stand in the line.

    :param modules: what is imported, as the source names it.
    :param own: the module that imports it, dotted.
    """
    # The sort keeps the order of the source among equals.
    found = sorted((_name(module, own) for module in modules), key=lambda each: each[0])
    names = list(dict.fromkeys(name for _, name in found))
    if len(names) > 1:
        names = [name for name in names if name != "__future__"]
    # One more name takes no more room than the words that it is missing.
    shown = len(names) if len(names) <= SHOWN + 1 else SHOWN
    return Named(tuple(names[:shown]), len(names) - shown)


def _name(module: str, own: str) -> tuple[bool, str]:
    """Whether a module is of the standard library, and what a reader knows it by."""
    first = module.partition(".")[0]
    ours = not first or first == own.partition(".")[0]
    standard = not ours and first in sys.stdlib_module_names
    return standard, module.rpartition(".")[2] if ours else first


# ## The head of a lesson
#
# > Below its lede a lesson says how long it takes, what it needs, and what a reader can do afterwards.
#
#     :minutes: 15
#     :needs: [the lesson before](before.md), and a pencil
#     :aim: say what a rank stores
#     :aim: predict what it sends
#
# The words of `needs` and `aim` are translated like any others; the number is the same in every language.


FIELDS = ("minutes", "needs", "aim")


@dataclass(frozen=True, slots=True)
class Head:
    """What stands at the head of a lesson; `needs` and each of the `aims` are the tokens of their words."""

    minutes: int
    needs: tuple[Token, ...]
    aims: tuple[tuple[Token, ...], ...]
    rest: tuple[Token, ...]
    """The text below it."""


def split(tokens: Sequence[Token], path: str) -> Head:
    """Take the head off the tokens that follow the lede.

    :raises SidelitError: if it is missing, or says something else than it should
    """
    if not tokens or tokens[0].type != "field_list_open":
        line = markup.line_of(tokens[0]) if tokens else 1
        raise _missing("minutes", "15", path, line)
    end = directives.closing(tokens, 0)
    said: dict[str, list[tuple[Token, ...]]] = {name: [] for name in FIELDS}
    for row in (row for table in directives.tables(tokens[1:end]).values() for row in table):
        name = str(row.name.meta["kind"])
        if name not in said or row.name.meta["argument"]:
            close = difflib.get_close_matches(name, FIELDS, n=1)
            what = f"the head of a lesson has no field `:{row.name.content}:`"
            hint = f"did you mean `:{close[0]}:`?" if close else f"there is {', '.join(FIELDS)}"
            raise SidelitError(what, path=path, line=markup.line_of(row.name), hint=hint)
        if said[name] and name != "aim":
            what = f"the head of a lesson says `:{name}:` twice"
            raise SidelitError(what, path=path, line=markup.line_of(row.name))
        said[name].append(row.body)
    for name, example in (("minutes", "15"), ("aim", "say what a reader will be able to do")):
        if not said[name]:
            raise _missing(name, example, path, markup.line_of(tokens[0]))
    (needs,) = said["needs"] or [()]
    minutes = _minutes(said["minutes"][0], path, markup.line_of(tokens[0]))
    return Head(minutes, needs, tuple(said["aim"]), tuple(tokens[end + 1 :]))


def _minutes(body: Sequence[Token], path: str, line: int) -> int:
    words = markup.plain(body)
    if not words.isdecimal() or int(words) == 0:
        line = markup.line_of(body[0]) if body else line
        raise SidelitError(f"`:minutes:` is a whole number, and not {words!r}", path=path, line=line)
    return int(words)


def _missing(name: str, example: str, path: str, line: int) -> SidelitError:
    hint = f"write `:{name}: {example}` below the lede"
    return SidelitError(f"the head of this lesson has no `:{name}:`", path=path, line=line, hint=hint)


# ## Source pages and their sections
#
# > Sources and prose become the same record, so that everything after this stage treats them alike.
#
# A chapter's sections are those of its source; a prose page's sections are the stretches between its
# headings. A section carries the tokens of its words, the context its translations are filed under, and the
# lines of code beside it.


Value = TypeVar("Value")

# What a task notes that reads a page, by its source; shows one section of it; or the lines of a definition.
READ = "text:{}"
SECTION = "piece:{}\t{}"
LINES = "lines:{}\t{}"


@dataclass(frozen=True, slots=True)
class Fold:
    """A stretch of depth: what it guards against, in one line; all its sections hold the same one."""

    line: int
    context: str
    tokens: tuple[Token, ...]


@quick
@dataclass(frozen=True, slots=True)
class Imports:
    """The imports that a file begins with: what the line above them names, and their lines."""

    named: Named
    lines: tuple[tuple[int, str], ...]


@quick
@dataclass(frozen=True, slots=True)
class PageSection:
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
    """Chapter and section, as `12.4`, and `12.4.1` for the first comment in it that has no heading.

    The opening of a chapter has the number of the chapter alone, and a section that is `joined` has none.
    """
    joined: bool = False
    """Whether it has no words, so that its code stands in the block of the section before."""
    depth: int = 0
    """How many definitions with a heading are around it."""
    figure: str = ""
    """The drawing that stands beside its words: `:figure: NAME`."""
    figure_line: int = 1


@dataclass(frozen=True, slots=True)
class SourcePage:
    """One page in the language it was written in."""

    item: Chapter | Prose
    label: str
    """What the page is called when it says no title itself."""
    sections: Sequence[PageSection]
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
    """Stands for everything that the sections were made from; empty if nobody knows."""
    code: str = ""
    """Stands for what other sources can know of it."""
    graph: Graph = field(default_factory=Graph, repr=False, compare=False)
    """What earlier builds worked out."""

    def once(self, kind: str, make: Callable[[], Value], *others: str) -> Value:
        """What `make` finds in this page; it may look at what the digests of `others` stand for, too."""
        note(READ.format(self.item.source))
        return self.graph.do(self.task(kind, make, *others))

    def task(self, kind: str, make: Callable[[], Value], *others: str) -> Task[Value]:
        """The same as a task."""
        return Task(kind, (self.digest, *others) if self.digest else "", make)

    @property
    def prose(self) -> bool:
        """Whether this is a page of Markdown, which reads as one text, rather than a source."""
        return isinstance(self.item, Prose)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The words of the whole page, in order."""
        return tuple(token for section in self.sections for token in section.tokens)

    @property
    def directives(self) -> tuple[tuple[Token, ...], ...]:
        """The tokens of each directive, those inside another one too; commentary has none."""
        if not self.prose:
            return ()
        return self.once("directives", lambda: tuple(directives.among(self.tokens)))

    def section_digest(self, anchor: str) -> str:
        """Stands for one section."""
        return "".join(whole for name, _, whole, _ in self._digests() if name == anchor)

    def lines_digest(self, qualname: str) -> str:
        """Stands for the code of a definition that is on show."""
        return store.digest([lines for _, name, _, lines in self._digests() if name == qualname])

    def _digests(self) -> tuple[tuple[str, str, str, str], ...]:
        def made() -> tuple[tuple[str, str, str, str], ...]:
            return tuple(
                (each.id, each.qualname, store.digest(each), store.digest(each.lines, each.fold is None))
                for each in self.sections
            )

        note(READ.format(self.item.source))
        return self.graph.alone("digests of sections", (self.digest,) if self.digest else (), made)


def chapter(
    item: Chapter,
    document: source.Document,
    names: Sequence[Anchor],
    number: int = 0,
    report: Callable[[SidelitError], None] = lambda error: None,
) -> SourcePage:
    """Make the page of a source; `names` are the anchors of its sections, `number` is its place in the book.

    What is wrong with a docstring in its dialect goes to `report`.

    Sections that are hidden from readers are left out here, once for all languages.
    """
    lines = code.highlighted(document.text)
    texts = (section.commentary for section in document.sections)
    docstrings = reader.reader(item.dialect, texts, item.source, report)
    folds = {depth: _fold(item, depth) for each in document.sections if (depth := each.depth)}
    sections = tuple(
        PageSection(
            id=name.id,
            aliases=name.aliases,
            places=name.places,
            context=section.qualname or "module",
            kind=section.kind,
            qualname=section.qualname,
            tokens=docstrings.read(section.commentary, section.commentary_line or 1),
            lines=tuple(code.numbered(lines, section.body)),
            imports=_imports(item, section, lines),
            code_digest=sync.code_digest(line for _, line in section.body),
            first_line=section.first_line,
            fold=folds[section.depth] if section.depth else None,
        )
        for section, name in zip(document.sections, names, strict=True)
        if not section.hidden and (section.commentary.strip() or section.code or section.kind == "module")
    )
    sections = tuple(_numbered(_nested(tuple(_joined(_with_anchors(sections)))), number))
    ids = Ids(name for section in sections for name in (section.id, *section.aliases))
    sections = tuple(_with_figure(section, item.source) for section in sections)
    return SourcePage(item, item.module, sections, ids, number)


def _imports(item: Chapter, section: source.Section, lines: tuple[code.Line, ...]) -> Imports | None:
    shown = section.importing
    if not shown:
        return None
    rows = {number for number, _ in shown}
    modules = (each.module for each in section.imports.modules if each.line in rows)
    return Imports(named(modules, item.module), tuple(code.numbered(lines, shown)))


def _joined(sections: Iterable[PageSection]) -> Iterator[PageSection]:
    """Let code without words stand in the block of the section before, the head, if that is no opening.

    A function does so within its head or beside another function, and below words only: a source without any
    keeps its functions apart.
    """
    head: PageSection | None = None
    for section in sections:
        joins = False
        if head and head.kind != "module" and head.fold is section.fold and not section.tokens:
            beside = head.qualname.rpartition(".")[0] if head.kind != "class" else head.qualname
            near = section.qualname.rpartition(".")[0] in (head.qualname, beside)
            joins = section.kind == "code" or (section.kind == "function" and near and bool(head.tokens))
        head = head if joins else section
        yield replace(section, joined=True) if joins else section


def _nested(sections: Sequence[PageSection]) -> Iterator[PageSection]:
    """Count the definitions around each: one that is joined has no heading, so what is in it moves up."""
    # What a comment describes has the name of the function that it stands in.
    own = (section for section in sections if section.kind in ("class", "function"))
    headed = {section.qualname for section in own if not section.joined}
    for section in sections:
        around = accumulate(section.qualname.split(".")[:-1], "{}.{}".format)
        yield replace(section, depth=sum(each in headed for each in around))


def _numbered(sections: Iterable[PageSection], chapter: int) -> Iterator[PageSection]:
    """Count the sections that the contents of a page list, and in each its comments without a heading.

    The numbers hold for one release; the ids last.
    """
    count = inner = 0
    for section in sections:
        if not chapter or section.joined:
            yield section
            continue
        headed = section.tokens and section.tokens[0].type == "heading_open"
        if section.kind == "module":
            below = ""
        elif headed or section.kind in ("class", "function"):
            count, inner = count + 1, 0
            below = f".{count}"
        else:
            inner += 1
            below = f".{count}.{inner}"
        yield replace(section, number=f"{chapter}{below}")


def _with_anchors(sections: Sequence[PageSection]) -> Iterator[PageSection]:
    """Let the names that authors gave to places, as `<a id="…">`, lead to the sections they stand in."""
    taken = {name for section in sections for name in (section.id, *section.aliases)}
    for section in sections:
        names = [name for name in markup.anchors(section.tokens) if name not in taken]
        taken.update(names)
        yield replace(section, aliases=(*section.aliases, *dict.fromkeys(names))) if names else section


def _with_figure(section: PageSection, path: str) -> PageSection:
    """A section with the name of the drawing beside it, which is no word to translate."""
    tokens, named = directives.take(section.tokens, "figure")
    if not named:
        return section
    line, name = markup.line_of(named[-1].name), markup.plain(named[-1].body)
    if len(named) > 1:
        raise SidelitError("a section has one figure", path=path, line=line)
    if not re.fullmatch(r"\w+", name):
        what = f"`:figure:` says {name!r}, which is no name of a figure"
        raise SidelitError(what, path=path, line=line)
    return replace(section, tokens=tokens, figure=name, figure_line=line)


def _fold(item: Chapter, depth: Depth) -> Fold:
    """Its context is the definition that the mark stands in, which lasts while sections come and go."""
    tokens = markup.line(depth.words, path=item.source, number=depth.line)
    return Fold(depth.line, depth.qualname or "module", tokens)


def written(item: Prose, path: Path) -> str:
    """Read a page of Markdown.

    Raises `SidelitError` when the file cannot be read.
    """
    try:
        return assets.text(path)
    except OSError as error:
        raise SidelitError(f"cannot be read: {error.strerror}", path=item.source) from None
    except UnicodeDecodeError:
        raise SidelitError("cannot be read: it is not UTF-8", path=item.source) from None


def prose_digest(item: Prose, written: str) -> str:
    """Stands for all that `prose` makes a page from."""
    return store.digest(written, item)


def prose(item: Prose, written: str) -> SourcePage:
    """Make a page from its words: Markdown, or Python in the cells of a notebook.

    Raises `SidelitError` where they are wrong.
    """
    named: Sequence[directives.Field] = ()
    if item.source.endswith(".py"):
        tokens, named = directives.take(lab_page.tokens(written, item.source), "lesson")
    else:
        tokens = markup.parse(written, path=item.source, first_line=1, directives=True)
    # The title is drawn by the page's template, which gives it no id.
    after = markup.opening(tokens).rest
    minutes = split(after, item.source).minutes if item.lesson else 0
    ids = Ids(name for token in after for name in markup.names_of(token))
    sections = tuple(
        PageSection("", (), context, "prose", "", part) for context, part in sync.split_prose(tokens)
    )
    lesson, line = (markup.plain(named[0].body), markup.line_of(named[0].name)) if named else ("", 1)
    digest = prose_digest(item, written)
    return SourcePage(
        item, item.stem, sections, ids, minutes=minutes, lesson=lesson, lesson_line=line, digest=digest
    )


def units(
    config: Config, pages: Sequence[SourcePage], drawn: Iterable[figure.Figure] | None = None
) -> tuple[sync.PageUnits, ...]:
    """Everything of a site that is to be translated: its pages, and the words that are on none of them.

    `drawn` are its figures, if somebody has read them.
    """
    asked = (part.question for part in config.parts)
    named = (*(part.label for part in config.parts), *config.groups, config.back_label)
    courses = (course.label for course in config.courses)
    parts = dict.fromkeys((*courses, *named, *asked))
    labels = tuple(label for label in parts if label)
    about = tuple(text for text in (config.tagline, config.licence_note) if text)
    own = (("nav", labels), ("site", about))
    site = sync.PageUnits(SITE, tuple(sync.SectionUnits(name, said) for name, said in own if said))
    current = {page.item.name for page in pages}
    figures = (each.units() for each in (figure.read_all(config) if drawn is None else drawn))
    steppers = (
        interactive.read_stepper(config, name).script.units() for name in interactive.stepper_names(config)
    )
    moved = (
        interactive.read_sliders(config, name).script.units() for name in interactive.slider_names(config)
    )
    return (*(page_units(page, current) for page in pages), *figures, *steppers, *moved, site)


def page_units(page: SourcePage, current: Collection[str] = ()) -> sync.PageUnits:
    """What of a page is to be translated; `current` are the names of all pages, this one included."""
    sections = page.once("units", lambda: tuple(_sections(page.sections)))
    # What a page might have been called by its path is nothing to a page that is called so.
    former = (each.name for each in page.item.former if each.told or each.name not in current)
    names = tuple(dict.fromkeys(former))
    optional = isinstance(page.item, Chapter) and page.item.workshop
    return sync.PageUnits(page.item.name, sections, names, page.item.languages, optional)


def _sections(sections: Sequence[PageSection]) -> Iterator[sync.SectionUnits]:
    pairs = pairwise((None, *sections))
    yield from (units for before, section in pairs if section for units in _units(before, section))


def _units(before: PageSection | None, section: PageSection) -> Iterator[sync.SectionUnits]:
    """What of a section is to be translated; where a fold begins, its line comes first.

    That line is not about the code of one section, so no change of code asks for a recheck of it.
    """
    if section.fold and (before is None or before.fold is not section.fold):
        yield sync.extract(section.fold.context, section.fold.tokens)
    yield sync.extract(section.context, section.tokens, section.code_digest)
