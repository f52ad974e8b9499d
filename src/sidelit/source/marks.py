"""# Marks for the press

> Comments that nobody is shown: they leave lines off the page, and fold what most readers need not know yet.

A mark stands on a line of its own, and that line is never printed. All line numbers count on.

| mark | what it does |
|---|---|
| `# sidelit: hide` | leaves the lines below it off the page |
| `# sidelit: show` | ends that |
| `# sidelit: depth WORDS` | makes the sections that begin below it *depth*: folded, under these words |
| `# sidelit: core` | ends that |

A chapter has core, the idea and what makes it true on any run, and depth: refusals, recovery after an error,
rare uses. The words are one line of Markdown without links, and say what the depth guards against.

    class Store:
        def read(self, key): ...

        # sidelit: depth A key that another process is writing.
        def lock(self, key): ...

        def unlock(self, key): ...

A stretch of depth belongs to the block that its mark stands in, as a comment there would. It ends at `core`,
or where the code leaves that block, or with the file. So the mark above covers two methods and no other
class. A mark at the margin covers whole definitions, and one inside a function covers what comments describe
there.

Sections decide, not lines: a section is depth if it begins in the stretch. Right below a mark a section has
to begin, because half of one cannot be folded. The opening of a chapter is always core.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sidelit.errors import SidelitError

MARK = re.compile(r"#\s*sidelit:\s*(\w*)\s*(.*?)\s*")
WORDS = ("hide", "show", "depth", "core")


@dataclass(frozen=True, slots=True)
class Mark:
    """A comment that speaks to the press.

    :param words: what is said behind `depth`.
    :param inside: true in the middle of a statement, where no section can begin.
    """

    word: str
    words: str
    first: int
    column: int
    inside: bool

    @property
    def known(self) -> bool:
        """Whether the press has such a mark; only `depth` is followed by words."""
        return self.word in WORDS and (self.word == "depth" or not self.words)

    @property
    def folds(self) -> bool:
        """Whether it begins or ends a stretch of depth."""
        return self.known and self.word in ("depth", "core")


def read(comment: str, row: int, column: int, inside: bool) -> Mark | None:
    """Read a comment that has its line for itself; most are no marks."""
    found = MARK.fullmatch(comment)
    return Mark(found[1], found[2], row, column, inside) if found else None


# ## Lines left off the page


def hidden(marks: Iterable[Mark], count: int) -> tuple[frozenset[int], tuple[int, ...]]:
    """Collect the rows from each `hide` to its `show`, all marks, and the marks that have no partner.

    A `hide` without a `show` hides the rest of the file. That is rarely meant, so a lint tells of it.
    """
    rows: set[int] = set()
    stray: list[int] = []
    opened = 0
    for mark in marks:
        if mark.known:
            rows.add(mark.first)
        if not mark.known or mark.folds:
            continue
        if (mark.word == "show") != bool(opened):
            stray.append(mark.first)
        elif opened:
            rows.update(range(opened, mark.first))
            opened = 0
        else:
            opened = mark.first
    if opened:
        rows.update(range(opened, count + 1))
        stray.append(opened)
    return frozenset(rows), tuple(sorted(stray))


# ## Depth


@dataclass(frozen=True, slots=True)
class Depth:
    """A stretch of a file that is depth.

    :param words: what it guards against, one line of Markdown.
    :param line: the line of its mark.
    :param qualname: the definition that the mark stands in; empty at module level.
    """

    words: str
    line: int
    qualname: str


class Stretches:
    """Follows the marks down a file; what is wrong with them is gathered in `faults`, and stops nothing.

    :param opened: the stretch around the current line; one without words folds nothing.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.faults: list[SidelitError] = []
        self.opened: Depth | None = None
        self.column = 0
        self.sound: list[Mark] = []

    @property
    def current(self) -> Depth | None:
        """What a section that begins now belongs to."""
        return self.opened if self.opened and self.opened.words else None

    def leave(self, column: int) -> None:
        """End the stretch at a statement or a comment outside its block."""
        if column < self.column:
            self.opened, self.column = None, 0

    def mark(self, mark: Mark, column: int, qualname: str, inside: bool) -> None:
        """Begin or end a stretch at a mark that belongs to the block in this column."""
        if inside:
            self._refuse(mark.first, "this mark stands in the middle of a statement", ABOVE)
        elif mark.word == "core":
            self._core(mark)
        else:
            self.leave(column)
            self._depth(mark, column, qualname)

    def _core(self, mark: Mark) -> None:
        if self.opened is None:
            self._refuse(mark.first, "no stretch of depth is open that this `core` could end", "remove it")
        elif self.opened.words:
            self.sound.append(mark)
        self.opened, self.column = None, 0

    def _depth(self, mark: Mark, column: int, qualname: str) -> None:
        if self.opened:
            what = f"this `depth` begins inside the one of line {self.opened.line}"
            self._refuse(mark.first, what, "end that one with `# sidelit: core` first")
            return
        if mark.words:
            self.sound.append(mark)
        else:
            what = "this `depth` does not say what it guards against"
            self._refuse(mark.first, what, "say it in one line: `# sidelit: depth WORDS`")
        self.opened, self.column = Depth(mark.words, mark.first, qualname), column

    def check(self, rows: Sequence[int], starts: Mapping[int, Depth | None]) -> None:
        """Refuse marks that begin or end nothing.

        :param rows: where the statements and comments begin that readers are shown.
        :param starts: where the sections begin, and the depth of each.
        """
        for mark in self.sound:
            place = bisect(rows, mark.first)
            following = rows[place] if place < len(rows) else 0
            depth = starts.get(following)
            folded = depth is not None and depth.line == mark.first
            if not folded if mark.word == "depth" else following and following not in starts:
                self._refuse(mark.first, "no section begins below this mark in its block", ABOVE)

    def opening(self, depth: Depth) -> None:
        """Refuse to fold the opening of a chapter."""
        hint = "put it below the docstring of the module"
        self._refuse(depth.line, "this mark would fold the opening of the chapter", hint)

    def strange(self, marks: Iterable[Mark]) -> None:
        """Refuse marks that the press does not know: what looks like one and does nothing was misspelt."""
        for mark in marks:
            if not mark.known:
                said = f"{mark.word} {mark.words}".strip()
                hint = "there is `hide`, `show`, `depth` with words behind it, and `core`"
                self._refuse(mark.first, f"there is no mark {said!r}", hint)

    def _refuse(self, line: int, what: str, hint: str) -> None:
        self.faults.append(SidelitError(what, path=self.path, line=line, hint=hint))


ABOVE = "put it above a comment, a `def` or a `class`"
