"""# Reading literate Python

> A Python file becomes sections: each a piece of commentary beside the lines it talks about.

The first rule is that nothing is lost: the `source` of all sections, joined, is the file. The second is that
a boundary falls between two lines and never inside a statement. Within these, a section starts

- at a block of `#` lines, which is its commentary;
- at a `def` or `class`, with its decorators; its docstring is the commentary;
- where the code leaves the block that the section stands in.

A block of `#` lines right above a definition stays a section of its own, since a reader may want to point at
either. A string is commentary when it is a docstring and shares its lines with no code. Some `#` lines are
code: those inside brackets or between a decorator and its `def`, a comment behind a statement, and those that
talk to a tool instead of a reader. What the press itself is told in comments, [marks](marks.py) reads; which
lines are the imports that a page folds, [imports](imports.py) says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from sidelit.errors import SidelitError
from sidelit.records import quick
from sidelit.source.cutting import Cutter, Draft, Kind
from sidelit.source.decoding import NEWLINE, read_source
from sidelit.source.definitions import survey
from sidelit.source.imports import NONE, Leading, leading
from sidelit.source.literals import misread
from sidelit.source.marks import Depth, Stretches
from sidelit.source.scan import Scan, scan

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
    imports = leading(known.tree, found, path)
    sections = tuple(
        replace(each, imports=imports) if imports.rows and _holds(each, imports) else each
        for each in _finish(drafts, found, kept, stretches)
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


def _finish(drafts: list[Draft], found: Scan, kept: Sequence[str], stretches: Stretches) -> Iterator[Section]:
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
            code=_code(draft, span, found),
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
    spoken = [(row, COMMENT_SIGN.sub("", found.lines[row - 1].strip(), count=1)) for row in draft.rows]
    trimmed = _trim(spoken)
    return (trimmed[0][0], "\n".join(text for _, text in trimmed)) if trimmed else (0, "")


# A docstring opened as `"""\` starts on the line below.
OPENED = re.compile(r"""[uU]?(?:\"{3}|'{3})\\""")

# One blank belongs to the sign; more of them are the author's, since Markdown reads them. A row of signs is a
# rule drawn across the page, and `#:` is how some tools mark a comment on a name.
COMMENT_SIGN = re.compile(r"\A#+:?[ \t]?")


def _code(draft: Draft, span: range, found: Scan) -> tuple[tuple[int, str], ...]:
    """Return the lines that are shown as code."""
    rows = (row for row in span if row not in draft.rows and row not in found.hidden)
    return tuple(_trim([(row, found.lines[row - 1]) for row in rows]))


def _trim(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Drop the blank lines at both ends."""
    full = [index for index, (_, text) in enumerate(lines) if text.strip()]
    return lines[full[0] : full[-1] + 1] if full else []
