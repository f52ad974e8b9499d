r"""# reStructuredText

> docutils reads it; nothing in a docstring may open a file, run a program or stop a build.

A docstring may come in pieces, when its sections are those of Google or NumPy: each is read for itself, and
footnotes, targets and substitutions are shared by all. What docutils has to say about a text is told with its
line. A text that it cannot read at all is shown as it was typed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from docutils import frontend, nodes, utils
from docutils.parsers.rst import Parser, states
from docutils.statemachine import string2lines
from docutils.transforms import references

from sidelit.text.docstrings import roles, typed

# A message, and its line in the text, which counts from 1.
Report = Callable[[str, int], None]

_WARNING = 2
# What nobody sees on the page: every word is there, and where it should be.
_HARMLESS = (
    "Unexpected indentation",
    "Block quote ends without a blank line",
    "Bullet list ends without a blank line",
    "Definition list ends without a blank line",
    "Enumerated list ends without a blank line",
    "Explicit markup ends without a blank line",
    "Title underline too short",
    "Title overline too short",
    "Inline emphasis start-string",
    "Inline strong start-string",
    "Inline substitution_reference start-string",
    "Inline interpreted text or phrase reference start-string",
    "Inline literal start-string",
    "Duplicate explicit target name",
    "Duplicate target name",
)
_TRANSFORMS = (
    references.Substitutions,
    references.PropagateTargets,
    references.AnonymousHyperlinks,
    references.IndirectHyperlinks,
    references.Footnotes,
    references.ExternalTargets,
    references.InternalTargets,
)
# A line of this length is no sentence, and a table of it is an attack.
_LONGEST = 10_000


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a docstring and the line of the docstring on which it starts, from 0."""

    text: str
    line: int


def parse(pieces: Sequence[Piece], report: Report) -> list[list[nodes.Node]]:
    """The nodes of each piece; their lines count from 1 in the docstring."""
    document = utils.new_document("", _settings())
    told = _Told(report)
    document.reporter.attach_observer(told)
    read = []
    with roles.known():
        for piece in pieces:
            before = len(document.children)
            _read(piece, document, told)
            read.append((before, len(document.children)))
        groups = [nodes.container("", *document.children[start:end]) for start, end in read]
        document.children = []
        document.extend(groups)
        document.transformer.add_transforms(_TRANSFORMS)
        document.transformer.apply_transforms()
    return [list(group.children) for group in groups]


def _read(piece: Piece, document: nodes.document, told: _Told) -> None:
    # Blank lines above give the nodes the lines that they have in the whole.
    lines = [""] * piece.line + string2lines(piece.text, tab_width=8, convert_whitespace=True)
    if any(len(line) > _LONGEST for line in lines):
        document.append(nodes.literal_block(piece.text, piece.text))
        return
    lines, told.line = typed.spaced(lines)
    before = len(document.children)
    machine = states.RSTStateMachine(state_classes=states.state_classes, initial_state="Body")
    machine.run(lines, document, inliner=_inliner())
    for node in document.children[before:]:
        for each in node.findall():
            each.line = each.line and told.line(each.line)


@cache
def _inliner() -> states.Inliner:
    """What reads a sentence. It would compile the same patterns anew for every text."""
    inliner = states.Inliner()
    inliner.init_customizations(_defaults())
    # It makes its patterns of what stands in its class alone, so the class changes afterwards.
    inliner.__class__ = typed.Inliner
    vars(inliner)["init_customizations"] = lambda settings: None
    return inliner


@cache
def _defaults() -> Any:
    settings = frontend.get_default_settings(Parser)
    vars(settings).update(
        {
            "file_insertion_enabled": False,
            "raw_enabled": False,
            "warning_stream": False,
            "report_level": 5,
            "halt_level": 6,
            "syntax_highlight": "none",
            "smart_quotes": False,
            "line_length_limit": _LONGEST,
            "pep_references": None,
            "rfc_references": None,
            "doctitle_xform": False,
        }
    )
    return settings


def _settings() -> Any:
    return _defaults().copy()


@dataclass(slots=True)
class _Told:
    """Passes on what an author should know.

    :param line: gives the line of the docstring for one of what docutils reads.
    """

    report: Report
    line: Callable[[int], int] = int

    def __call__(self, message: nodes.system_message) -> None:
        if int(message["level"]) < _WARNING:
            return
        words = message.children[0].astext() if message.children else ""
        if words and not words.startswith(_HARMLESS):
            self.report(" ".join(words.split()).rstrip("."), self.line(int(message.get("line", 1))))


def footnotes(groups: Sequence[Sequence[nodes.Node]]) -> Iterator[nodes.Element]:
    """The footnotes and citations among nodes, in order."""
    for group in groups:
        for node in group:
            if isinstance(node, nodes.Element):
                yield from (
                    each
                    for each in node.findall(nodes.Element)
                    if isinstance(each, nodes.footnote | nodes.citation)
                )
