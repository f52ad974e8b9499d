r"""# Formulas among words

> What stands between dollars, between the brackets of MathJax, or in an environment of TeX.

Authors write formulas for the tool that they have, and each tool takes other signs. `$x$` and `$$x$$` are
common to most of them. `\\(x\\)` is how a formula reaches MathJax through a Markdown that takes one backslash
away. Others write `\begin{align}` without any sign around it, and leave blank lines inside.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from markdown_it import MarkdownIt
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline.state_inline import StateInline
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.dollarmath.index import math_block_dollar, math_inline_dollar

_INTERRUPTS: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}


def plugin(md: MarkdownIt) -> None:
    """Let a parser know formulas."""
    # `$5 and $10` is money: a formula touches its dollars, and no digit follows the closing one.
    md.use(dollarmath_plugin, allow_space=False, allow_digits=False, allow_labels=False, double_inline=True)
    md.inline.ruler.at("math_inline", _also_at_the_start(math_inline_dollar(False, False, True)))
    md.inline.ruler.before("escape", "math_brackets", _brackets)
    md.block.ruler.at("math_block", _also_in_a_paragraph(math_block_dollar(False)), _INTERRUPTS)
    md.block.ruler.before("blockquote", "environment", _environment, _INTERRUPTS)


def line_of(state: StateBlock, number: int) -> str:
    """A line of the text without its indentation, with a line feed."""
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]] + "\n"


def _also_at_the_start(rule: Callable[[StateInline, bool], bool]) -> Callable[[StateInline, bool], bool]:
    """Let a text that begins with a formula end in a digit.

    The plugin looks at the character before the dollar. At position 0 Python gives it the text's last one.
    """

    def guarded(state: StateInline, silent: bool) -> bool:
        text = state.src
        state.src = text if state.pos else f"{text} "
        try:
            return rule(state, silent)
        finally:
            state.src = text

    return guarded


# What begins another block in the middle of a formula, as a line that starts with a plus does.
_BLOCK = re.compile(r"[-+*][ \t]|[>#]|\d{1,9}[.)][ \t]|={1,}\s*$|-+\s*$")
_MOST_LINES = 100
_Rule = Callable[[StateBlock, int, int, bool], bool]


def _also_in_a_paragraph(rule: _Rule) -> _Rule:
    """Let `$$` end a paragraph where a line of the formula would, and break it into a list.

    Any other formula inside a paragraph is a part of its sentence.
    """

    def guarded(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        text = line_of(state, start)
        if state.is_code_block(start) or not text.startswith("$$"):
            return False
        if "$$" in text[2:]:
            return not silent and rule(state, start, end, silent)
        if not silent:
            closed = _end(state, "$$", start, end, _closes_dollars) > start
            return closed and rule(state, start, end, silent)
        found = False
        for last in range(start + 1, min(end, start + _MOST_LINES)):
            text = line_of(state, last)
            found |= bool(_BLOCK.match(text))
            if not text.strip() or _closes_dollars(text):
                return found and bool(text.strip())
        return False

    return guarded


def _closes_dollars(line: str) -> bool:
    return line.rstrip().endswith("$$")


# `\\(` says what is meant. After a single backslash only TeX does, since Markdown writes a bracket that way.
_BRACKETS = (("(", ")", "math_inline"), ("[", "]", "math_inline_double"))
_COMMAND = re.compile(r"\\[a-zA-Z]{2}|[\^_]\{")


def _brackets(state: StateInline, silent: bool) -> bool:
    for slash in ("\\\\", "\\"):
        for opening, closing, kind in _BRACKETS:
            if not state.src.startswith(slash + opening, state.pos):
                continue
            begun = state.pos + len(slash) + 1
            end = _found(state, slash + closing, begun)
            tex = state.src[begun : max(begun, end)].strip()
            if not tex or (len(slash) == 1 and not _COMMAND.search(tex)):
                return False
            if not silent:
                token = state.push(kind, "math", 0)
                token.content, token.markup = tex, "$" if kind == "math_inline" else "$$"
            state.pos = end + len(slash) + 1
            return True
    return False


def _found(state: StateInline, closing: str, begun: int) -> int:
    """Where the next closing bracket is, or -1. One that is not there is searched once."""
    missed = state.env.setdefault("missed", {})
    if missed.get(closing) is state.src:
        return -1
    at = state.src.find(closing, begun)
    if at < 0:
        missed[closing] = state.src
    return at


# The environments that make a formula of their own, in the names of amsmath.
_BEGIN = re.compile(
    r"\\begin\{((?:align(?:at|ed)?|alignedat|CD|cases|eqnarray|equation|gather(?:ed)?|multline|split|[pbvBV]?matrix)\*?)\}"
)
# To TeX a blank line in a formula is a mistake. The engine that sets it refuses it, too.
_BLANK = re.compile(r"\n(?:[ \t]*\n)+")


def _environment(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """`\\begin{align} … \\end{align}` is a formula without dollars around it, as authors of TeX write it."""
    begun = None if state.is_code_block(start) else _BEGIN.match(line_of(state, start))
    if begun is None:
        return False
    closing = f"\\end{{{begun[1]}}}"
    last = _end(state, closing, start - 1, end, lambda line: closing in line)
    if last < start or line_of(state, last).rpartition(closing)[2].strip() not in ("", ".", ","):
        return False
    if not silent:
        token = state.push("math_block", "math", 0)
        token.block, token.map = True, [start, last + 1]
        token.content = _BLANK.sub("\n", state.getLines(start, last + 1, state.sCount[start], False))
        state.line = last + 1
    return True


def _end(state: StateBlock, name: str, start: int, end: int, closes: Callable[[str], bool]) -> int:
    """The first line below one that closes what has this name, or -1."""
    # A second one that begins before the end of the search is not searched to its end again.
    unclosed = state.env.setdefault("unclosed", {})
    if start < unclosed.get(name, -1):
        return -1
    for last in range(start + 1, end):
        if closes(line_of(state, last)):
            return last
    # What is never closed is text.
    unclosed[name] = end
    return -1
