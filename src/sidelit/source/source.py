"""# Reading literate Python

> A Python file becomes sections: each a piece of commentary beside the lines it talks about.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

from sidelit.cache.records import quick
from sidelit.errors import SidelitError
from sidelit.source.decoding import NEWLINE, read_source
from sidelit.source.scan import (
    DRAWN,
    Block,
    Cell,
    Depth,
    Mark,
    Scan,
    Statement,
    Stretches,
    followings,
    scan,
    spoken,
)
from sidelit.source.syntax import Docstring, Survey, misread, survey

# ## The imports of a file
#
# > The imports that a file begins with are needed to run it and seldom to understand it, so a page folds
# > them.
#
# For example, these five lines stand folded, in one line that names `json` and `store`:
#
#     from __future__ import annotations
#
#     import json
#     from typing import TYPE_CHECKING
#
#     from .store import Store
#
# The *leading run* is what a module begins with, behind its docstring: imports, `__all__`, and an `if` or a
# `try` that does nothing but import. A comment ends it, because imports with words beside them are told for a
# reason. Only a comment at the very top of the file that touches no import is about the whole file. A licence
# above the run is folded with it. Hidden statements do not count. Two kinds of modules have no such run:
# those that do nothing but import, and an `__init__.py`, for what it imports is what a package offers.


@quick
@dataclass(frozen=True, slots=True)
class Imported:
    """A module that a file imports, as the file names it, and the line that does."""

    module: str
    line: int


@dataclass(frozen=True, slots=True)
class Leading:
    """The imports that a file begins with.

    :param rows: the lines from the first of them to the last.
    """

    rows: range = range(0)
    modules: tuple[Imported, ...] = ()


NONE = Leading()


def leading(known: Survey, found: Scan, path: str) -> Leading:
    """Find the imports that a file begins with; there are none where they are all that the file does."""
    body = [node for node in known.tree.body if node.lineno not in found.hidden]
    told = next((row for row, each in known.docstrings.items() if each.owner == 0), 0)
    words = next((node for node in body if node.lineno == told), None)
    spoken = words.end_lineno or 0 if words and words is body[0] else 0
    body = [node for node in body if node is not words]
    run = list(_run(body, spoken, found))
    # A line with two statements goes with the second one.
    while run and len(run) < len(body) and run[-1].end_lineno == body[len(run)].lineno:
        run.pop()
    modules = tuple(each for node in run for each in _modules(node))
    whole = len(run) == len(body) or posixpath.basename(path.replace("\\", "/")) == "__init__.py"
    if whole or not modules or run[0].lineno == spoken:
        return NONE
    first = run[0].lineno
    # Where nothing but the docstring is between, both stand in one section.
    above = [event for event in found.events if isinstance(event, Block) and event.first < first]
    if (found.licence or found.tools) and not above:
        first = 1 if found.tools else found.licence.start
    return Leading(range(first, (run[-1].end_lineno or 0) + 1), modules)


def _run(body: Sequence[ast.stmt], spoken: int, found: Scan) -> Iterator[ast.stmt]:
    """The statements of the run; `spoken` is the last line of the docstring."""
    comments = [event for event in found.events if isinstance(event, Block)]
    before = spoken
    for node in body:
        last = node.end_lineno or node.lineno
        between = [each for each in comments if before < each.first <= last]
        # A comment at the very top that touches nothing is about the whole file.
        if before == 0 and between and between[0].last + 1 < node.lineno:
            del between[0]
        if between or not _imports(node):
            return
        yield node
        before = last


# ## What an import is


def _imports(node: ast.stmt) -> bool:
    """Whether a statement does nothing but import, or say what the module offers."""
    match node:
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.If(body=body, orelse=other):
            return all(map(_imports, body)) and all(map(_quiet, other))
        case ast.Try(body=body, handlers=handlers, orelse=other, finalbody=[]):
            rest = [*other, *(each for handler in handlers for each in handler.body)]
            return all(map(_imports, body)) and all(map(_quiet, rest))
    return _offers(node)


def _quiet(node: ast.stmt) -> bool:
    """Whether a statement may stand where an import has failed: it imports otherwise, or sets a constant."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Pass) or _imports(node)


def _offers(node: ast.stmt) -> bool:
    """Whether a statement says which names a module offers."""
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    else:
        return False
    return all(isinstance(each, ast.Name) and each.id == "__all__" for each in targets)


def _modules(node: ast.stmt) -> Iterator[Imported]:
    """The modules that a statement imports."""
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            yield from (Imported(name.name, each.lineno) for name in each.names)
        elif isinstance(each, ast.ImportFrom):
            dots, module = "." * each.level, each.module or ""
            named = [module] if module else [name.name for name in each.names]
            yield from (Imported(dots + name, each.lineno) for name in named)


# ## Where sections start
#
# > A walk down the statements and comments of a file, which notes where each section begins.
#
# A section is a draft here: it has a first line, and what it is;
# its other lines follow from where the next one begins.


Kind = Literal["module", "class", "function", "comment", "code"]


@dataclass(slots=True)
class Draft:
    """A section before its lines are filled in.

    :param floor: code that stands left of this column ends the section.
    :param awaits: the definition whose docstring it would take, by its line; 0 is the module, -1 nothing.
    :param rows: the lines that its commentary takes up.
    """

    kind: Kind
    qualname: str
    first: int
    indent: int
    floor: int
    awaits: int = -1
    traits: tuple[str, ...] = ()
    depth: Depth | None = None
    rows: range = range(0)
    docstring: Docstring | None = None


class Cutter:
    """Walks down a file and notes where sections start.

    :param scopes: the definitions around the current line, outermost first, each with its column.
    :param columns: the indentations that are open after the last statement.
    :param decorated: the line of the first decorator of a definition that is still to come, or 0.
    :param cell: the mark of the cell of a notebook in which nothing else stands yet.
    :param coded: whether the last section has code of its own.
    :param attribute: whether it is an assignment, with the string that says what it is.
    """

    def __init__(self, found: Scan, known: Survey, stretches: Stretches) -> None:
        self.found = found
        self.known = known
        self.stretches = stretches
        self.scopes: list[tuple[int, str]] = []
        self.columns = [0]
        self.decorated = 0
        self.cell: Cell | None = None
        self.coded = False
        self.attribute = False
        start = next((row for row, line in enumerate(found.lines, start=1) if line.strip()), 1)
        self.drafts = [Draft("code", "", start, indent=0, floor=0, awaits=0)]

    def cut(self) -> list[Draft]:
        """Return the sections in order."""
        for event, following in zip(self.found.events, followings(self.found.events), strict=True):
            if isinstance(event, Statement):
                self._statement(event)
            elif isinstance(event, Mark):
                self._mark(event, self._level(event, following))
            elif isinstance(event, Cell):
                self._cell(event)
            elif not self.decorated:
                self._comment(event, self._level(event, following))
        # The file may start right with a comment or a definition; what was kept for other lines is then
        # empty, or holds no more than a licence, a line for a tool, or a rule above the words.
        if len(self.drafts) > 1 and self._says_nothing(range(self.drafts[0].first, self.drafts[1].first)):
            self.drafts[1].first = self.drafts[0].first
            del self.drafts[0]
        self._check_marks()
        return self.drafts

    def _says_nothing(self, rows: Sequence[int]) -> bool:
        silent = range(1, self.found.tools + 1)
        rows = [row for row in rows if row not in silent and row not in self.found.cells]
        lines = [self.found.lines[row - 1].strip() for row in rows]
        drawn = all(map(DRAWN.fullmatch, lines))
        return drawn or bool(self.found.licence and all(line[:1] in ("", "#") for line in lines))

    def _statement(self, line: Statement) -> None:
        """Start a section at a definition, and where code leaves the block of the section before it."""
        self._leave(line.column)
        while self.columns[-1] > line.column:
            self.columns.pop()
        if self.columns[-1] < line.column:
            self.columns.append(line.column)
        docstring = self.known.docstrings.get(line.row)
        told = line.row in self.known.attributes.values()
        if (self.cell or told) and (words := self.known.strings.get(line.row)):
            # A cell of words may be a string, and what an attribute is stands below it.
            docstring = replace(words, owner=self.drafts[-1].awaits) if told and self.attribute else words
        if line.decorator:
            self.decorated = self.decorated or line.first
        elif definition := self.known.definitions.get(line.row):
            self.scopes.append((line.column, definition.name))
            draft = self._start(definition.kind, self.decorated or line.first, line.column)
            draft.floor, draft.awaits, draft.traits = line.column + 1, line.row, definition.traits
            self.decorated = 0
        elif docstring and not 0 < docstring.follower <= line.last:
            self._speak(docstring, line)
        elif line.row in self.known.attributes and not self._explained():
            self._start("comment", line.first, line.column).awaits = line.row
            self.attribute = True
            return
        elif line.column < self.drafts[-1].floor or self._ends(line):
            self._start("code", self.cell.first if self.cell else line.first, line.column)
        self.coded = self.coded or not docstring
        self.cell = None
        self.attribute = self.attribute and told

    def _explained(self) -> bool:
        """Whether the words of a comment stand right above."""
        return self.drafts[-1].kind == "comment" and not self.coded and not self.drafts[-1].docstring

    def _ends(self, line: Statement) -> bool:
        """Whether code begins a section of its own though no block ends: below an attribute, or in a cell."""
        below = self.attribute and self.drafts[-1].docstring is not None
        return bool(self._reappears(line) or (self.cell and self.coded) or below)

    def _speak(self, docstring: Docstring, line: Statement) -> None:
        """Give a docstring to the section of its owner; if a comment came between them, to one of its own."""
        draft = self.drafts[-1]
        if draft.awaits != docstring.owner or self._reappears(line):
            draft = self._start("comment", line.first, line.column)
        if docstring.owner == 0:
            draft.kind = "module"
        draft.docstring = docstring
        draft.rows = range(line.first, line.last + 1)

    def _comment(self, block: Block, level: int) -> None:
        """Start a section at a comment block, or go on with the title of the cell that it stands in."""
        self._leave(level)
        titled = self.cell is not None and self.cell.words and self.cell.first + 1 == block.first
        if not titled:
            self._start("comment", block.first, level).rows = range(block.first, block.last + 1)
        elif self.cell:
            self.drafts[-1].rows = range(self.cell.first, block.last + 1)
        self.cell = None

    def _cell(self, cell: Cell) -> None:
        """Start a section at the title of a cell. Without one, the code in it begins a section of its own, if
        it is not the code that the words above it are about.
        """
        self._leave(0)
        self.cell = cell
        if cell.words:
            self._start("comment", cell.first, 0).rows = range(cell.first, cell.first + 1)

    def _mark(self, mark: Mark, level: int) -> None:
        """Begin or end a stretch of depth, in the definition that a comment in this place would belong to."""
        inside = mark.inside or bool(self.decorated)
        if not inside:
            self._leave(level, mark=True)
        self.stretches.mark(mark, level, self._around(), inside)

    def _check_marks(self) -> None:
        events = (event.first for event in self.found.events if not isinstance(event, Mark))
        rows = [row for row in events if row not in self.found.hidden]
        self.stretches.check(rows, {draft.first: draft.depth for draft in self.drafts})
        self.stretches.strange(self.found.marks)

    def _level(self, block: Block | Mark, following: int) -> int:
        """Find the indentation a comment belongs to, since Python lets it stand in any column.

        It is the one of the statement that follows, unless the comment stands further right: then it may be
        the last word of a block that ends there.
        """
        return max(column for column in (*self.columns, following) if column <= max(block.column, following))

    def _leave(self, column: int, mark: bool = False) -> None:
        """Close the definitions, and the depth, that a line in this column is no longer part of."""
        while self.scopes and self.scopes[-1][0] >= column:
            self.scopes.pop()
        # A `core` that stands behind a block may end what began in that block.
        if not mark:
            self.stretches.leave(column)

    def _around(self) -> str:
        return ".".join(name for _, name in self.scopes)

    def _reappears(self, line: Statement) -> bool:
        """Tell whether this is the first shown line after a section that started out of sight."""
        return self.drafts[-1].first in self.found.hidden and line.first not in self.found.hidden

    def _start(self, kind: Kind, first: int, column: int) -> Draft:
        draft = Draft(kind, self._around(), first, indent=column, floor=column)
        draft.depth = self.stretches.current
        self.drafts.append(draft)
        self.coded = False
        return draft


# ## Reading literate Python
#
# > A Python file becomes sections: each a piece of commentary beside the lines it talks about.
#
# The first rule is that nothing is lost: the `source` of all sections, joined, is the file. The second is
# that a boundary falls between two lines and never inside a statement. Within these, a section starts
#
# - at a block of `#` lines, which is its commentary;
# - at a `def` or `class`, with its decorators; its docstring is the commentary;
# - where the code leaves the block that the section stands in.
#
# A block of `#` lines right above a definition stays a section of its own, since a reader may want to point
# at either. A string is commentary when it is a docstring and shares its lines with no code; one below
# `from __future__ import …` is the docstring of a module that has no other. Some `#` lines are code: those
# inside brackets or between a decorator and its `def`, a comment behind a statement, and those that talk to
# a tool instead of a reader. What the press is told in comments, [marks](scan.py) say.


# Nobody reads a page with more of them: the longest files of the standard library have two thousand.
MOST = 5_000


@quick
@dataclass(frozen=True, slots=True)
class Section:
    """One claim and the lines that make it true.

    :param kind: what starts it; `module` holds the module's docstring, or the first statements if there is
        none.
    :param qualname: the definition it is or stands in, dotted and without `<locals>`; empty at module level.
    :param commentary: Markdown.
    :param commentary_line: the line its commentary starts on, so that an error in it has a place; 0 without
        one.
    :param code: the lines a page shows as code, each with its number.
    :param imports: those of them that belong to the imports that the file begins with, and what they import.
    :param source: the exact slice of the file.
    :param indent: the column of the block it stands in.
    :param hidden: true when all its lines lie between `# sidelit: hide` and `# sidelit: show`.
    :param traits: what tells a definition from another one of its name, e.g. `setter` or the condition around
        it.
    :param depth: the stretch of depth that it is in; `None` if it is core.
    """

    kind: Kind
    qualname: str
    commentary: str
    commentary_line: int
    code: tuple[tuple[int, str], ...]
    source: str
    first_line: int
    last_line: int
    indent: int
    hidden: bool
    traits: tuple[str, ...] = ()
    depth: Depth | None = None
    imports: Leading = NONE

    @property
    def body(self) -> tuple[tuple[int, str], ...]:
        """The lines of code that are beside its words: all but the imports that the file begins with."""
        return tuple(_trim([each for each in self.code if each[0] not in self.imports.rows]))

    @property
    def importing(self) -> tuple[tuple[int, str], ...]:
        """The lines of the imports."""
        return tuple(each for each in self.code if each[0] in self.imports.rows)


@dataclass(frozen=True, slots=True)
class Document:
    """A file and its sections; `text.encode(encoding)` gives the bytes of the file back.

    :param stray: the lines of `hide` and `show` marks without a partner.
    :param faults: what is wrong with the other marks; the sections are as if such a mark were not there.
    """

    path: str
    text: str
    sections: tuple[Section, ...]
    encoding: str = "utf-8"
    stray: tuple[int, ...] = ()
    faults: tuple[SidelitError, ...] = ()


def read(path: Path, *, shown: str | None = None) -> Document:
    """Read a Python file and cut it into sections.

    :param shown: the path as pages and errors give it, when that is not `path`.
    :raises SidelitError: it cannot be read, is not valid Python, or its encoding cannot be written back.
    """
    name = str(path) if shown is None else shown
    text, encoding = read_source(path, name)
    return parse(text, name, encoding)


def parse(text: str, path: str, encoding: str = "utf-8") -> Document:
    """Cut the text of a Python file into sections.

    :raises SidelitError: it is not valid Python, or has more than `MOST` sections.
    """
    kept = re.findall("[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)
    lines = NEWLINE.split(text.removeprefix("\ufeff"))
    known = survey("\n".join(lines), path)
    _fit(sorted(known.definitions), path)
    found = scan(lines, path)
    stretches = Stretches(path)
    drafts = Cutter(found, known, stretches).cut()
    _fit([draft.first for draft in drafts], path)
    imports = leading(known, found, path)
    sections = tuple(
        replace(each, imports=imports) if imports.rows and _holds(each, imports) else each
        for each in _finish(drafts, found, kept, stretches, imports)
    )
    told = misread(path, [line for docstring in known.docstrings.values() for line in docstring.misread])
    faults = sorted([*stretches.faults, *told], key=lambda fault: fault.line or 0)
    return Document(path, text, sections, encoding, found.stray, tuple(faults))


def _fit(begins: Sequence[int], path: str) -> None:
    """Refuse a file with too many sections, before more time is spent on it; they begin on these lines."""
    if len(begins) > MOST:
        many = f"has {len(begins):,} sections, and a page takes {MOST:,} at most; divide the file"
        raise SidelitError(many, path=path, line=begins[MOST])


def _holds(section: Section, imports: Leading) -> bool:
    """No section begins among the imports, so the one with the first of them has them all."""
    return section.first_line <= imports.rows.start <= section.last_line


# ## Filling in


def _finish(
    drafts: list[Draft], found: Scan, kept: Sequence[str], stretches: Stretches, imports: Leading
) -> Iterator[Section]:
    """Turn drafts into sections: each reaches to the next one, the first from the first line."""
    if not kept:
        return
    bounds = [1, *(draft.first for draft in drafts[1:]), len(kept) + 1]
    spans = [range(*pair) for pair in pairwise(bounds)]
    _name_module(drafts, spans, found)
    for draft, span in zip(drafts, spans, strict=True):
        hidden = _is_hidden(span, found)
        line, commentary = _commentary(draft, found)
        if not hidden and line in found.hidden:
            line, commentary = 0, ""
        if draft.kind == "module" and draft.depth:
            stretches.opening(draft.depth)
            draft.depth = None
        yield Section(
            draft.kind,
            draft.qualname,
            commentary,
            commentary_line=line,
            code=_code(draft, span, found, imports),
            source="".join(kept[span.start - 1 : span.stop - 1]),
            first_line=span.start,
            last_line=span.stop - 1,
            indent=draft.indent,
            hidden=hidden,
            traits=draft.traits,
            depth=draft.depth,
        )


def _name_module(drafts: list[Draft], spans: list[range], found: Scan) -> None:
    """Without a docstring, the first lines that are shown stand for the module, if they are plain code."""
    shown = [draft for draft, span in zip(drafts, spans, strict=True) if not _is_hidden(span, found)]
    if shown and shown[0].kind == "code" and all(draft.kind != "module" for draft in drafts):
        shown[0].kind = "module"


def _is_hidden(span: range, found: Scan) -> bool:
    """Blank lines say nothing, so they neither hide a section nor show it."""
    rows = [row for row in span if found.lines[row - 1].strip()]
    return bool(rows) and found.hidden.issuperset(rows)


def _commentary(draft: Draft, found: Scan) -> tuple[int, str]:
    """Return the commentary and the line it starts on."""
    if draft.docstring:
        opening = found.lines[draft.rows.start - 1].strip()
        continued = OPENED.fullmatch(opening) is not None
        line = draft.rows.start + continued + draft.docstring.blank
        return (min(line, draft.rows[-1]), draft.docstring.text) if draft.docstring.text else (0, "")
    trimmed = _trim(spoken(draft.rows, found))
    return (trimmed[0][0], "\n".join(text for _, text in trimmed)) if trimmed else (0, "")


# A docstring opened as `"""\` starts on the line below.
OPENED = re.compile(r"""[uU]?(?:\"{3}|'{3})\\""")


def _code(draft: Draft, span: range, found: Scan, imports: Leading) -> tuple[tuple[int, str], ...]:
    """Return the lines that are shown as code. A rule between two sections divides them as blank lines do.

    A line for a tool is folded with the imports, or else shown where no words stand beside it.
    """
    unseen = found.hidden | found.cells.keys()
    rows = [row for row in span if row not in draft.rows and row not in unseen]
    if draft.kind not in ("module", "code") or draft.rows:
        rows = [row for row in rows if row > found.tools or row in imports.rows]
    return tuple(_trim([(row, found.lines[row - 1]) for row in rows], DRAWN))


BLANK = re.compile("")


def _trim(lines: list[tuple[int, str]], blank: re.Pattern[str] = BLANK) -> list[tuple[int, str]]:
    """Drop the blank lines at both ends."""
    full = [index for index, (_, text) in enumerate(lines) if not blank.fullmatch(text.strip())]
    return lines[full[0] : full[-1] + 1] if full else []
