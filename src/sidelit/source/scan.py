"""# Statements, comments and marks

> The tokens of a file: where statements start, which lines are comments, and which comments talk to the
> press.
"""

from __future__ import annotations

import io
import re
import tokenize
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sidelit.errors import SidelitError, SourceFault
from sidelit.source.decoding import CODING, NO_CODE

# ## Marks for the press
#
# > Comments that nobody is shown: they leave lines off the page, and fold what most readers need not know
# > yet.
#
# A mark stands on a line of its own, and that line is never printed. All line numbers count on.
#
# | mark | what it does |
# |---|---|
# | `# sidelit: hide` | leaves the lines below it off the page |
# | `# sidelit: show` | ends that |
# | `# sidelit: depth WORDS` | makes the sections that begin below it *depth*: folded, under these words |
# | `# sidelit: core` | ends that |
#
# A chapter has core, the idea and what makes it true on any run, and depth: refusals, recovery after an
# error, rare uses. The words are one line of Markdown without links, and say what the depth guards against.
#
#     class Store:
#         def read(self, key): ...
#
#         # sidelit: depth A key that another process is writing.
#         def lock(self, key): ...
#
#         def unlock(self, key): ...
#
# A stretch of depth belongs to the block that its mark stands in, as a comment there would. It ends at
# `core`, or where the code leaves that block, or with the file. So the mark above covers two methods and no
# other class. A mark at the margin covers whole definitions, and one inside a function covers what comments
# describe there.
#
# Sections decide, not lines: a section is depth if it begins in the stretch. Right below a mark a section has
# to begin, because half of one cannot be folded. The opening of a chapter is always core.


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


def hidden_rows(marks: Iterable[Mark], count: int) -> tuple[frozenset[int], tuple[int, ...]]:
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
        self.faults.append(SourceFault(what, path=self.path, line=line, hint=hint))


ABOVE = "put it above a comment, a `def` or a `class`"


# ## Statements and comments
#
# > What the tokens say: where statements start and end, which lines are comments, and which of them a reader
# > is shown.


@dataclass(frozen=True, slots=True)
class Statement:
    """A logical line: all physical lines up to the newline that ends a statement or the header of a block.

    :param row: the line of its first token, which follows `first` where lines with a lone backslash come
        before it.
    :param column: the indentation, measured as Python does.
    """

    first: int
    last: int
    column: int
    row: int
    decorator: bool


@dataclass(frozen=True, slots=True)
class Block:
    """Comment lines that stand directly below each other, in one column."""

    first: int
    last: int
    column: int


@dataclass(frozen=True, slots=True)
class Cell:
    """The mark at which a cell of a notebook begins, as Jupytext and Jupyter write it.

    :param words: its title as a heading; most have none.
    """

    first: int
    words: str
    column: int = 0


@dataclass(frozen=True, slots=True)
class Scan:
    """A file without its newlines, and what stands where.

    :param events: statements, comment blocks, cells, and the marks that begin and end depth, in order.
    :param marks: all comments that speak to the press, known or not.
    :param hidden: the rows that no reader is shown.
    :param stray: the rows of `hide` and `show` marks without a partner.
    :param licence: the rows of the comments that say whose the file is; they are code.
    :param cells: the marks of cells by their rows.
    :param tools: how many lines at the top say who runs the file, and how it is encoded.
    """

    lines: Sequence[str]
    events: Sequence[Event]
    marks: Sequence[Mark]
    hidden: frozenset[int]
    stray: tuple[int, ...]
    licence: range = range(0)
    tools: int = 0
    cells: Mapping[int, Cell] = field(default_factory=dict)


Event = Statement | Block | Mark | Cell


def scan(lines: Sequence[str], path: str) -> Scan:
    """Find statements and comment blocks in the lines of a valid file.

    Only tokens tell a comment from a `#` inside a string, and the end of a statement from the end of a line.
    """
    events: list[Event] = []
    cells: dict[int, Cell] = {}
    notebook = any(map(_cell, lines))
    noted: list[Mark] = []
    start: tokenize.TokenInfo | None = None
    for token in _tokens(lines, path):
        row = token.start[0]
        if token.type == tokenize.COMMENT:
            alone, column = not lines[row - 1][: token.start[1]].strip(), _column(lines[row - 1])
            if alone and (mark := read(token.string, row, column, inside=start is not None)):
                noted.append(mark)
                events += [mark] if mark.folds else []
            if start is None and alone and column == 0 and (words := _cell(token.string)) is not None:
                events.append(Cell(row, words))
                cells[row] = Cell(row, words)
            elif start is None and not _is_directive(lines, row, notebook):
                _add_comment(events, row, column)
        elif token.type == tokenize.NEWLINE and start is not None:
            events.append(_statement(lines, start, row))
            start = None
        elif token.type not in BLANK and start is None:
            start = token
    hidden, stray = hidden_rows(noted, len(lines))
    events = [event for event in events if not (isinstance(event, Block) and _is_drawn(lines, event))]
    tools = next((row for row in range(3) if row == len(lines) or not _is_first(lines, row + 1)), 2)
    return Scan(lines, events, noted, hidden, stray, _licence(lines, events, hidden), tools, cells)


BLANK = (tokenize.INDENT, tokenize.DEDENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)


def _tokens(lines: Sequence[str], path: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO("\n".join([*lines, ""])).readline)
    except (tokenize.TokenError, SyntaxError) as error:
        raise SidelitError(
            f"the file cannot be cut into tokens: {error.args[0]}", path=path, line=1
        ) from None


def _statement(lines: Sequence[str], start: tokenize.TokenInfo, last: int) -> Statement:
    """A statement owns the lines with nothing but a backslash above it; the first one sets its column."""
    row = first = start.start[0]
    while first > 1 and lines[first - 2].strip() == "\\":
        first -= 1
    return Statement(first, last, _column(lines[first - 1]), row, start.string == "@")


def _column(line: str) -> int:
    """A tab goes to the next eighth column, a form feed starts anew."""
    column = 0
    for character in line:
        if character == "\t":
            column = (column // 8 + 1) * 8
        elif character == "\f":
            column = 0
        elif character == " ":
            column += 1
        else:
            break
    return column


# ## Comments that are code

# Beside type comments, `noqa` and `fmt`, other words open a note to some checker; in a reader's column they
# would be noise.
DIRECTIVE = re.compile(
    r"#+\s*(?:(?:type|fmt|sidelit|mypy|ruff|pylint|pyright|pyrefly|isort|flake8|yapf|pragma):|(?i:noqa|nosec)\b)"
)


def _is_directive(lines: Sequence[str], row: int, notebook: bool) -> bool:
    """Tell whether the comment on this line speaks to a tool: a shebang, an encoding, a note to a checker."""
    said = lines[row - 1].lstrip()
    if notebook and _MAGIC.match(said):
        return True
    return _is_first(lines, row) or DIRECTIVE.match(said) is not None


# What IPython runs is a comment in a notebook that was written as a script.
_MAGIC = re.compile(r"#\s*(?:%{1,2}|!)[a-zA-Z]")
_META = r"""(?:\s+(?:[\w:.-]+=(?:"[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|[^\s"'\[{]+)|\{.*\}))*\s*"""
_CELLS = (
    # Jupytext's percent format, which editors know, too: a title, what kind of cell it is, and options.
    re.compile(rf"#\s*%%+(?:\s+(?P<words>[^\s\[{{](?:[^=\[{{]*[^=\s\[{{])??))?(?:\s*\[\w+\])?{_META}"),
    # What Jupyter exports, and the light format of Jupytext.
    re.compile(r"#\s*In\s?\[[\d\s]*\]:?\s*(?P<words>)"),
    re.compile(rf"#\s*\+(?=\s+(?:\[|\{{|\S+=))(?:\s+\[\w+\])?{_META}(?P<words>)"),
)


def _cell(comment: str) -> str | None:
    """The title of a cell as a heading, empty if it has none; nothing if no cell begins here."""
    found = next(filter(None, (each.fullmatch(comment) for each in _CELLS)), None)
    if found is None:
        return None
    return f"## {found['words']}" if found["words"] else ""


def _is_first(lines: Sequence[str], row: int) -> bool:
    """Tell whether this line means something because it is one of the first two: a shebang, an encoding."""
    text = lines[row - 1]
    if row == 1 and text.startswith("#!"):
        return True
    return bool(CODING.match(text)) and (row == 1 or (row == 2 and bool(NO_CODE.match(lines[0]))))


def _add_comment(events: list[Event], row: int, column: int) -> None:
    """Add a comment line to the block above it, if it touches that block and is aligned with it."""
    if events and isinstance(above := events[-1], Block) and (above.last, above.column) == (row - 1, column):
        events[-1] = Block(above.first, row, column)
    else:
        events.append(Block(row, row, column))


# A rule across the page, or a sign that holds no word.
DRAWN = re.compile(r"(?:#[-=~*_+#\s\u2500-\u257f]*)?")


def _is_drawn(lines: Sequence[str], block: Block) -> bool:
    """Whether there is nothing to read in a block: it divides the code."""
    return all(DRAWN.fullmatch(line.strip()) for line in lines[block.first - 1 : block.last])


# Lawyers' words at the top of a file are for lawyers. A heading of Markdown tells that there is more to it.
_LICENCE = re.compile(
    r"\bcopyright\b|\bSPDX-|\blicen[cs]ed under\b|\ball rights reserved\b|\bunder the terms of\b",
    re.IGNORECASE,
)
_HEADING = re.compile(r"^[ \t]*#+[ \t]+#{1,6}[ \t]", re.MULTILINE)


def _licence(lines: Sequence[str], events: list[Event], hidden: frozenset[int]) -> range:
    """Take the comments out that a file begins with and that say whose it is; return their rows."""
    first = last = 0
    while events and isinstance(block := events[0], Block):
        text = "\n".join(lines[block.first - 1 : block.last])
        if block.first in hidden or not _LICENCE.search(text) or _HEADING.search(text):
            break
        first, last = first or block.first, block.last
        del events[0]
    return range(first, last + 1) if first else range(0)


def followings(events: Sequence[Event]) -> list[int]:
    """For each event the column of the next statement below it; 0 at the end."""
    columns, following = [0] * len(events), 0
    for index in range(len(events) - 1, -1, -1):
        columns[index] = following
        event = events[index]
        following = event.column if isinstance(event, Statement) else following
    return columns


# ## What comments say


# One blank belongs to the sign; more of them are the author's, since Markdown reads them. A row of signs is a
# rule drawn across the page, and `#:` is how some tools mark a comment on a name.
COMMENT_SIGN = re.compile(r"\A#+:?[ \t]?")


def spoken(rows: Iterable[int], found: Scan) -> list[tuple[int, str]]:
    """The words in the lines of a comment, each with its row."""
    said, fenced = list[tuple[int, str]](), False
    for row in rows:
        text = _spoken(row, found)
        fenced ^= text.lstrip().startswith(("```", "~~~"))
        code = fenced or text.startswith(("    ", "\t"))
        said.append((row, text if code else _CLOSING.sub("", text)))
    return _undrawn(said)


# The right side of a box, which says as little as the signs that close a heading of Markdown.
_CLOSING = re.compile(r"(?<=\S)[ \t]+#{2,}[ \t]*$")


def _spoken(row: int, found: Scan) -> str:
    if row in found.cells:
        return found.cells[row].words
    return COMMENT_SIGN.sub("", found.lines[row - 1].strip(), count=1)


# Three dashes begin front matter, or end what somebody said.
_RULE = re.compile(r"([-=*_+\u2500-\u257f])\1{3,}\s*#*")


def _undrawn(said: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Leave out the rules that a comment begins with, and make those blank that stand below several lines.

    To Markdown a rule below words makes a heading of them: of one line that is what it is to its author, too.
    """
    lines, above, opened = list[tuple[int, str]](), 0, False
    for row, text in said:
        drawn = _RULE.fullmatch(text.strip()) is not None
        opened = opened or (drawn and not above and not lines)
        if drawn and above > 1 and (opened or row == said[-1][0]):
            text = ""
        if lines or (text.strip() and not drawn):
            lines.append((row, text))
        above = above + 1 if text.strip() and not drawn else 0
    return lines
