r"""# The dialect

> What the press adds to CommonMark, rule by rule.

Commentary is CommonMark with tables, footnotes, admonitions, dollar math and field lists, all of them
plugins of markdown-it-py. Some things were missing and are written here: `>>>` examples without a fence,
names that authors give to places with `<a id="…">`, the line on which a link or a formula stands, and
emphasis that works between Chinese or Japanese characters. What a formula is, [formulas](formulas.py) says.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Literal

from markdown_it import MarkdownIt
from markdown_it.parser_inline import ParserInline
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore, smartquotes
from markdown_it.rules_inline.state_inline import Scanned, StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType
from mdit_py_plugins.admon import admon_plugin
from mdit_py_plugins.field_list import fieldlist_plugin
from mdit_py_plugins.footnote import footnote_plugin

from sidelit.text import formulas
from sidelit.text.directives import rule as directive

# A row that is too short gets empty cells. Nobody leaves out as many of them as this, unless to make a page
# that nobody can open; a table ends there, and the rest of it stays as it was typed.
_tables: Any = import_module("markdown_it.rules_block.table")
_tables.MAX_AUTOCOMPLETED_CELLS = 0x2000

# Kana and ideographs: the characters that are set without spaces between words.
_CJK_RANGES = (
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3040, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x20000, 0x3FFFF),
)


def is_cjk(char: str) -> bool:
    """Whether `char` is a kana or an ideograph (punctuation is neither)."""
    return any(low <= ord(char) <= high for low, high in _CJK_RANGES)


def configured(*, directives: bool = False) -> MarkdownIt:
    """The parser of all commentary, and with `directives` that of the pages."""
    # Raw HTML is off: a `<file>` in somebody's docstring is shown as it was typed, not swallowed.
    md = MarkdownIt("commonmark", {"html": False, "typographer": True}).enable("table")
    # Sources are typed with straight quotes. Printed ones are curly; code and catalogues keep what was typed.
    md.enable("smartquotes")
    md.core.ruler.at("smartquotes", _printed_quotes)
    # Inline footnotes (`^[…]`) would be two units of translation in one; only `[^label]` is offered.
    md.use(footnote_plugin, inline=False).use(admon_plugin).use(fieldlist_plugin)
    md.use(formulas.plugin)
    interrupts: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    md.block.ruler.before("blockquote", "doctest", _doctest, interrupts)
    if directives:
        md.block.ruler.before("blockquote", "directive", directive, interrupts)
    else:
        md.block.ruler.before("blockquote", "anchor", _anchors, interrupts)
        md.inline.ruler.before("autolink", "anchor", _anchor)
    _count_lines(md)
    return md


# The rule copies a text for each quote in it. A text with so many is no sentence.
_MOST_QUOTES = 1_000


def _printed_quotes(state: StateCore) -> None:
    """Make typed quotes printed ones, where there are not thousands of them."""
    whole = state.tokens
    state.tokens = [each for each in whole if len(_QUOTE.findall(each.content)) <= _MOST_QUOTES]
    smartquotes(state)
    state.tokens = whole


_QUOTE = re.compile("[\"']")


def _doctest(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    # To CommonMark `>>> x` is a quotation in a quotation in a quotation, which nobody wants.
    if state.is_code_block(start) or not formulas.line_of(state, start).startswith((">>> ", ">>>\n")):
        return False
    if silent:
        return True
    stop = start
    while stop < end and not state.isEmpty(stop) and state.sCount[stop] >= state.blkIndent:
        stop += 1
    state.line = stop
    token = state.push("fence", "code", 0)
    token.info, token.markup, token.map = "pycon", ">>>", [start, stop]
    token.content = state.getLines(start, stop, state.sCount[start], True)
    return True


# HTML is shown as it was typed, except for this: a name for a place, which links lead to.
_NAMED = re.compile(r"""<a\s+(?:id|name)\s*=\s*(["'])([^"'<>\s]+)\1\s*(?:/>|>\s*</a>)""")


def _anchor(state: StateInline, silent: bool) -> bool:
    found = _NAMED.match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        state.push("anchor", "", 0).content = found[2]
    state.pos = found.end()
    return True


def _anchors(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A line of nothing but names is no paragraph."""
    text = formulas.line_of(state, start)
    if state.is_code_block(start) or not _NAMED.match(text) or _NAMED.sub("", text).strip():
        return False
    if not silent:
        for found in _NAMED.finditer(text):
            token = state.push("anchor", "", 0)
            token.content, token.map, token.hidden = found[2], [start, start + 1], True
        state.line = start + 1
    return True


class _State(StateInline):
    """The state of one inline parse, which also knows lines and ideographs."""

    # A position, and the newlines before it: counting begins there, since rules mostly move on.
    _counted = 0, 0

    def push(self, ttype: str, tag: str, nesting: Literal[-1, 0, 1]) -> Token:
        token = super().push(ttype, tag, nesting)
        # A rule pushes its token before it moves on, so the newlines so far give the token's line.
        start, lines = self._counted if self._counted[0] <= self.pos else (0, 0)
        token.meta["line"] = lines + self.src.count("\n", start, self.pos)
        self._counted = self.pos, token.meta["line"]
        return token

    def scanDelims(self, start: int, canSplitWord: bool) -> Scanned:
        """Let `**「重要」**です` be bold: between CJK characters there is no space to wait for."""
        scanned = super().scanDelims(start, canSplitWord)
        if not canSplitWord:
            return scanned
        before = self.src[start - 1] if start else " "
        after = self.src[start + scanned.length : start + scanned.length + 1] or " "
        return Scanned(
            scanned.can_open or (is_cjk(before) and not after.isspace()),
            scanned.can_close or (is_cjk(after) and not before.isspace()),
            scanned.length,
        )


class _Inline(ParserInline):
    """The parser's own loop over one unit, run with our state."""

    def parse(self, src: str, md: MarkdownIt, env: EnvType, tokens: list[Token]) -> list[Token]:
        state = _State(src, md, env, tokens)
        self.tokenize(state)
        for rule in self.ruler2.getRules(""):
            rule(state)
        return state.tokens


def _count_lines(md: MarkdownIt) -> None:
    # The rules that plugins have registered by now belong to the parser object, so they move along.
    counting = _Inline()
    counting.ruler, counting.ruler2 = md.inline.ruler, md.inline.ruler2
    counting.terminator_re = md.inline.terminator_re
    md.inline = counting
