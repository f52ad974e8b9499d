r"""# reST as people type it

> Formulas between dollars, marks that touch a letter, examples without a blank line: no reST, but clear.

docutils reads what its specification allows. Docstrings of real packages hold more: `$O(n)$`, which a script
sets in the browser; `` `Attribute`s ``, with the plural right behind the mark; `>>> f(x)` right below its
sentence. Each is brought into the form that docutils reads, and every line keeps its number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from docutils import nodes
from docutils.parsers.rst import states

# What stands between backquotes is no formula, and is passed over as a whole. A formula touches its dollars.
# A dollar next to a letter belongs to the variable of some shell.
_MARKED = re.compile(
    r"""
      (?P<literal> ``(?![\s`]) (?: [^`] | `(?!`) )+? (?<!\s)``(?!`) )
    | (?P<words> (?<!`)`(?![\s`]) [^`]+ (?<!\s)`(?!`) _{0,2} )
    | (?P<note> (?<=\w) \[ (?:\d+|\#\w*) \]_ (?!\w) )
    | (?P<displayed> (?<![\w$\\]) \$\$ [^$`]+ \$\$ (?!\$) )
    | (?P<formula> (?<![\w$\\]) \$ (?![\s$]) [^$`]+ (?<![\s\\]) \$ (?! (?!(?:th|st|nd|rd|s)\b) \w | [${] ) )
    """,
    re.VERBOSE,
)
# Marks that nobody types stand for the formulas while docutils reads the sentence.
_HELD = re.compile("\ue0f0([0-9]+)\ue0f1")
# A role of another project's documentation is that of its last words.
_ELSEWHERE = re.compile(r"external(?:\+[\w-]+)?:")


class Inliner(states.Inliner):
    """Reads a sentence."""

    def parse(
        self, text: str, lineno: int, memo: Any, parent: nodes.Element
    ) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """The nodes of a sentence, formulas between dollars among them."""
        held: list[nodes.math] = []
        if "\ue0f0" not in text:
            text = _MARKED.sub(lambda found: _mended(found, held), text)
        made, messages = super().parse(text, lineno, memo, parent)
        if held:
            made = [each for node in made for each in _set(node, held)]
        return made, messages

    def interpreted(self, rawsource: str, text: str, role: str, lineno: int) -> Any:
        """The nodes of words with a role."""
        return super().interpreted(rawsource, text, _ELSEWHERE.sub("", role), lineno)


def _mended(found: re.Match[str], held: list[nodes.math]) -> str:
    """What docutils gets for a mark: the mark with room around it, or a sign for a formula."""
    said = found[0]
    if found["formula"] or found["displayed"]:
        tex = said.strip("$")
        held.append(nodes.math(said, tex, displayed=bool(found["displayed"])))
        return f"\ue0f0{len(held) - 1}\ue0f1"
    text, start, end = found.string, found.start(), found.end()
    before = "\\ " if start and text[start - 1].isalnum() else ""
    after = "\\ " if end < len(text) and text[end].isalnum() and not said.endswith("_") else ""
    return f"{before}{said}{after}"


def _set(node: nodes.Node, held: Sequence[nodes.math]) -> list[nodes.Node]:
    """A node with its formulas in their places."""
    if isinstance(node, nodes.Text):
        parts = _HELD.split(str(node))
        return [held[int(part)] if at % 2 else nodes.Text(part) for at, part in enumerate(parts) if part]
    if isinstance(node, nodes.Element) and node.children:
        made = [each for child in node.children for each in _set(child, held)]
        node.children = []
        node.extend(made)
    return [node]


def spaced(lines: Sequence[str]) -> tuple[list[str], Callable[[int], int]]:
    """The lines with a blank one before each example that stands right below a sentence.

    Returns with them what gives the number of a line, which counts from 1, in the text as it was.
    """
    made: list[str] = []
    numbers = [0]
    example, sample, before = False, _NO_SAMPLE, ""
    for number, line in enumerate(lines, start=1):
        indent = len(line) - len(line.lstrip())
        prompt = line.startswith(">>> ", indent)
        if line.strip() and indent <= sample:
            sample = indent if _opens_sample(line) else _NO_SAMPLE
        elif sample == _NO_SAMPLE and _opens_sample(line):
            sample = indent
        # Whatever stands in a sample of code is code.
        if prompt and not example and sample == _NO_SAMPLE and _is_sentence(before, indent):
            made.append("")
            numbers.append(number)
        example = bool(line.strip()) and (example or prompt)
        made.append(line)
        numbers.append(number)
        before = line
    return made, lambda line: numbers[line] if 0 <= line < len(numbers) else line


_NO_SAMPLE = -1


def _opens_sample(line: str) -> bool:
    """Whether what is indented below a line belongs to it: code, or the text of a directive."""
    return line.rstrip().endswith("::") or line.lstrip().startswith(".. ")


def _is_sentence(line: str, indent: int) -> bool:
    begun = line.lstrip()
    return bool(begun) and len(line) - len(begun) == indent and not begun.startswith((".. ", ":"))
