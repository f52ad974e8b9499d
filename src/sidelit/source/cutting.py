"""# Where sections start

> A walk down the statements and comments of a file, which notes where each section begins.

What a section is, [source](source.py) says. A section is a draft here: it has a first line, and what it is;
its other lines follow from where the next one begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sidelit.source.definitions import Docstring, Survey
from sidelit.source.marks import Depth, Mark, Stretches
from sidelit.source.scan import Block, Scan, Statement, followings

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
    """

    def __init__(self, found: Scan, known: Survey, stretches: Stretches) -> None:
        self.found = found
        self.known = known
        self.stretches = stretches
        self.scopes: list[tuple[int, str]] = []
        self.columns = [0]
        self.decorated = 0
        start = next((row for row, line in enumerate(found.lines, start=1) if line.strip()), 1)
        self.drafts = [Draft("code", "", start, indent=0, floor=0, awaits=0)]

    def cut(self) -> list[Draft]:
        """Return the sections in order."""
        for event, following in zip(self.found.events, followings(self.found.events), strict=True):
            if isinstance(event, Statement):
                self._statement(event)
            elif isinstance(event, Mark):
                self._mark(event, self._level(event, following))
            elif not self.decorated:
                self._comment(event, self._level(event, following))
        # The file may start right with a comment or a definition; what was kept for other lines is then
        # empty, or holds no more than a licence.
        if len(self.drafts) > 1 and self._says_nothing(range(self.drafts[0].first, self.drafts[1].first)):
            self.drafts[1].first = self.drafts[0].first
            del self.drafts[0]
        self._check_marks()
        return self.drafts

    def _says_nothing(self, rows: range) -> bool:
        lines = (self.found.lines[row - 1].strip() for row in rows)
        return not rows or bool(self.found.licence and all(line[:1] in ("", "#") for line in lines))

    def _statement(self, line: Statement) -> None:
        """Start a section at a definition, and where code leaves the block of the section before it."""
        self._leave(line.column)
        while self.columns[-1] > line.column:
            self.columns.pop()
        if self.columns[-1] < line.column:
            self.columns.append(line.column)
        docstring = self.known.docstrings.get(line.row)
        if line.decorator:
            self.decorated = self.decorated or line.first
        elif definition := self.known.definitions.get(line.row):
            self.scopes.append((line.column, definition.name))
            draft = self._start(definition.kind, self.decorated or line.first, line.column)
            draft.floor, draft.awaits, draft.traits = line.column + 1, line.row, definition.traits
            self.decorated = 0
        elif docstring and not 0 < docstring.follower <= line.last:
            self._speak(docstring, line)
        elif line.column < self.drafts[-1].floor or self._reappears(line):
            self._start("code", line.first, line.column)

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
        """Start a section at a comment block."""
        self._leave(level)
        self._start("comment", block.first, level).rows = range(block.first, block.last + 1)

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
        return draft
