"""# Markup

> Commentary becomes a list of tokens, and every sentence of it is one token.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.dollarmath.index import math_block_dollar, math_inline_dollar
from mdit_py_plugins.field_list import fieldlist_plugin
from mdit_py_plugins.footnote import footnote_plugin

from sidelit.ids.matching import PAGES_OWN, numbered
from sidelit.text import inline_syntax
from sidelit.text.directives import rule as directive
from sidelit.text.inline_syntax import is_cjk

# ## Formulas among words
#
# > What stands between dollars, between the brackets of MathJax, or in an environment of TeX.
#
# Authors write formulas for the tool that they have, and each tool takes other signs. `$x$` and `$$x$$` are
# common to most of them. `\\(x\\)` is how a formula reaches MathJax through a Markdown that takes one
# backslash away. Others write `\begin{align}` without any sign around it, and leave blank lines inside.


_INTERRUPTS: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}


def plugin(md: MarkdownIt) -> None:
    """Let a parser know formulas."""
    # `$5 and $10` is money: a formula touches its dollars, and no digit follows the closing one.
    md.use(dollarmath_plugin, allow_space=False, allow_digits=False, allow_labels=False, double_inline=True)
    dollars = _also_at_the_start(math_inline_dollar(False, False, True))
    md.inline.ruler.at("math_inline", _but_variables(dollars))
    md.inline.ruler.before("escape", "math_brackets", _brackets)
    md.block.ruler.at("math_block", _also_in_a_paragraph(math_block_dollar(False)), _INTERRUPTS)
    md.block.ruler.before("blockquote", "environment", _environment, _INTERRUPTS)


def source_line(state: StateBlock, number: int) -> str:
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


# `$PATH:$HOME`, `$a/$b`, `${X}$y`: after the second dollar a name begins, as it does after the first.
_VARIABLES = re.compile(
    r"\$(?:[^$]*[-/:=,;.@+'\"]\$(?:[A-Za-z_]|\{)|(?:[A-Z_][A-Z0-9_]+|\{\w+\})[^$]*\$(?:[A-Z_][A-Z0-9_]|\{))"
)


def _but_variables(rule: Callable[[StateInline, bool], bool]) -> Callable[[StateInline, bool], bool]:
    """Let the variables of a shell be words."""

    def guarded(state: StateInline, silent: bool) -> bool:
        return not _VARIABLES.match(state.src, state.pos) and rule(state, silent)

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
        text = source_line(state, start)
        if state.is_code_block(start) or not text.startswith("$$"):
            return False
        if "$$" in text[2:]:
            return not silent and rule(state, start, end, silent)
        if not silent:
            closed = _end(state, "$$", start, end, _closes_dollars) > start
            return closed and rule(state, start, end, silent)
        found = False
        for last in range(start + 1, min(end, start + _MOST_LINES)):
            text = source_line(state, last)
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
    begun = None if state.is_code_block(start) else _BEGIN.match(source_line(state, start))
    if begun is None:
        return False
    closing = f"\\end{{{begun[1]}}}"
    last = _end(state, closing, start - 1, end, lambda line: closing in line)
    if last < start or source_line(state, last).rpartition(closing)[2].strip() not in ("", ".", ","):
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
    last = start
    for last in inline_syntax.rows_below(state, start, end):
        if closes(source_line(state, last)):
            return last
    # What is never closed is text.
    unclosed[name] = last + 1
    return -1


# ## The dialect
#
# > What the press adds to CommonMark, rule by rule.
#
# Commentary is CommonMark with tables, footnotes, admonitions, dollar math and field lists, all of them
# plugins of markdown-it-py. Some things were missing and are written here: `>>>` examples without a fence,
# names that authors give to places with `<a id="…">`, the line on which a link or a formula stands, and
# emphasis that works between Chinese or Japanese characters.


# A row that is too short gets empty cells. Nobody leaves out as many of them as this, unless to make a page
# that nobody can open; a table ends there, and the rest of it stays as it was typed.
_tables: Any = import_module("markdown_it.rules_block.table")
_tables.MAX_AUTOCOMPLETED_CELLS = 0x2000


def configured(*, directives: bool = False) -> MarkdownIt:
    """The parser of all commentary, and with `directives` that of the pages."""
    # Raw HTML is off: a `<file>` in somebody's docstring is shown as it was typed, not swallowed.
    md = MarkdownIt("commonmark", {"html": False, "typographer": True}).enable("table")
    # Sources are typed with straight quotes. Printed ones are curly; code and catalogues keep what was typed.
    md.enable("smartquotes")
    md.core.ruler.at("smartquotes", _printed_quotes)
    # Inline footnotes (`^[…]`) would be two units of translation in one; only `[^label]` is offered.
    md.use(footnote_plugin, inline=False).use(admon_plugin).use(fieldlist_plugin)
    md.use(plugin)
    md.block.ruler.before("blockquote", "doctest", _doctest, _INTERRUPTS)
    if directives:
        md.block.ruler.before("blockquote", "directive", directive, _INTERRUPTS)
    else:
        inline_syntax.indented_lists(md)
        md.block.ruler.before("blockquote", "anchor", _anchors, _INTERRUPTS)
        md.inline.ruler.before("autolink", "anchor", _anchor)
    # A name for a place is found before the tag that it stands in.
    md.use(inline_syntax.plugin)
    _count_lines(md)
    return md


# The rule copies a text for each quote in it. A text with so many is no sentence.
_MOST_QUOTES = 1_000


def _printed_quotes(state: StateCore) -> None:
    """Make typed quotes printed ones, where there are not thousands of them."""
    whole = state.tokens
    state.tokens = [each for each in whole if len(_QUOTE.findall(each.content)) <= _MOST_QUOTES]
    addresses = [
        child
        for each in whole
        for before, child in itertools.pairwise(each.children or ())
        if before.type == "link_open" and before.markup == "autolink"
    ]
    for each in addresses:
        each.type = "address"
    typed = {id(child): child.content for each in state.tokens for child in each.children or ()}
    smartquotes(state)
    for each in state.tokens:
        if _QUOTE.search(each.content):
            _keep_typed(each.children or (), typed)
    for each in addresses:
        each.type = "text"
    state.tokens = whole


_QUOTE = re.compile("[\"']")
_PAIRS = {"\u201d": "\u201c", "\u2019": "\u2018"}


def _keep_typed(children: Iterable[Token], typed: Mapping[int, str]) -> None:
    """Note the words with those quotes as they were typed that have no ideograph between them.

    A font of ideographs draws printed ones as wide as an ideograph. Around letters that is a hole.
    """
    said, opened = "", list[tuple[Token, int, int]]()
    for child in children:
        was = typed[id(child)]
        for at in (found.start() for found in _QUOTE.finditer(was)):
            if (sign := child.content[at]) == was[at]:
                continue
            if sign not in _PAIRS:
                opened.append((child, at, len(said) + at))
                continue
            pair = [(child, at)]
            if opened and opened[-1][0].content[opened[-1][1]] == _PAIRS[sign]:
                before, begun, place = opened.pop()
                if inline_syntax.CJK.search(said + child.content, place, len(said) + at):
                    continue
                pair.append((before, begun))
            for token, place in pair:
                words = token.meta.get("typed", token.content)
                token.meta["typed"] = words[:place] + typed[id(token)][place] + words[place + 1 :]
        said += child.content


def _doctest(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    # To CommonMark `>>> x` is a quotation in a quotation in a quotation, which nobody wants.
    if state.is_code_block(start) or not source_line(state, start).startswith((">>> ", ">>>\n")):
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
    text = source_line(state, start)
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


# ## Markup
#
# > Markdown becomes tokens, and every sentence a reader may want translated is exactly one of them.
#
# All text of a site passes through `parse`: docstrings, comment blocks, prose pages. The tokens are those of
# markdown-it-py, with a promise on top: **a token of type `inline` is a unit of translation, and nothing else
# is.** Its `content` keeps the inline Markdown, so that a translator sees `code` and $N_d$ as they were
# written. Names of fields, labels that the press itself chooses, code and displayed formulas have other
# types.
#
# `token.map` counts lines from 0 in the text; `line_of` turns it into a line of the file.


@dataclass(frozen=True, slots=True)
class Opening:
    """How a chapter begins: its title, the one-sentence lede, and all that follows.

    `title` is the inline token of the first heading, `lede` the tokens inside the blockquote after it.
    """

    title: Token | None
    lede: tuple[Token, ...]
    rest: tuple[Token, ...]


def parse(text: str, *, path: str = "", first_line: int = 1, directives: bool = False) -> tuple[Token, ...]:
    """Parse Markdown into tokens.

    :param text: the Markdown, as it is on the page.
    :param path: the file it comes from, which messages name.
    :param first_line: the line of that file on which the text starts.
    :param directives: whether a line `::: NAME` begins a directive, as on pages; commentary has none.
    """
    env: dict[str, Any] = {}
    tokens = _parser(directives).parse(_printable(text), env)
    shared = {"references": env.get("references", {}), "footnotes": _footnotes(tokens)}
    for token in tokens:
        token.meta.update(path=path, first_line=first_line)
    for before, token in itertools.pairwise(tokens):
        if before.type == "fieldlist_name_open":
            _name_field(token)
        elif before.type == "admonition_title_open" and token.content == _made_up_title(before):
            token.type = "admonition_label"
        if token.type == "inline":
            token.meta.update(shared)
        if "said" in before.meta and not directives:
            # In commentary a heading has no id of its own: it is the section that answers to it.
            token.children = [*(token.children or ()), Token("anchor", "", 0, content=before.meta["said"])]
    slug_headings(tokens)
    # A name stands on a line of its own before a title, and the text still begins with its title.
    return tuple(sorted(tokens, key=lambda token: token.type == "anchor"))


def line(text: str, *, path: str = "", number: int = 1) -> tuple[Token, ...]:
    """Parse one line as a paragraph, whatever it begins with: `2. Later` is no list here.

    :param number: where in the file it stands.
    """
    meta = {"references": {}, "footnotes": {}, "path": path, "first_line": number}
    opening = Token("paragraph_open", "p", 1, block=True)
    inline = reinline(Token("inline", "", 0, level=1, block=True, meta=meta), text)
    return opening, inline, Token("paragraph_close", "p", -1, block=True)


# What HTML forbids: control characters, half surrogate pairs, code points that will never be characters.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def _printable(text: str) -> str:
    """Replace what no page can hold by the replacement character; an evaluated docstring may contain it.

    A form feed is a blank to Python, and nothing to a page.
    """
    return _FORBIDDEN.sub("\ufffd", text.replace("\f", " "))


@functools.cache
def _parser(directives: bool = False) -> MarkdownIt:
    return configured(directives=directives)


def _footnotes(tokens: Iterable[Token]) -> dict[str, int]:
    """The number of each footnote by its label, so that a translated sentence can refer to it again."""
    return {token.meta["label"]: token.meta["id"] for token in tokens if token.type == "footnote_open"}


def _name_field(token: Token) -> None:
    """Turn the name of a field into a token of its own: `param int x` is code, nobody translates it."""
    kind, _, rest = token.content.strip().partition(" ")
    token.type = "field_name"
    token.meta.update(kind=kind.lower(), argument=rest.strip())
    token.children = _parser().parseInline(rest.strip())[0].children


def _made_up_title(title_open: Token) -> str:
    # Without a title the plugin makes one up (`!!! note` gives `Note`); the press has its own words for it.
    return title_open.markup.split()[-1].title()


def slug_headings(tokens: Sequence[Token]) -> None:
    """Give each heading the id it may have on a page, from the English, so that every language shares it.

    An id that the author has given comes first. The alias is the id that a heading had while only words in
    ASCII counted, which links from elsewhere may still name.
    """
    headings = [pair for pair in itertools.pairwise(tokens) if pair[0].type == "heading_open"]
    said = _Slugs()
    for before, _ in headings:
        if "said" in before.meta:
            before.meta["slug"] = said.free(before.meta["said"])
    was = _Slugs()
    for before, token in headings:
        words = plain(token)
        before.meta["aliases"] = (was.free(ascii_slug(words) or "section"),)
        if "said" not in before.meta:
            before.meta["slug"] = said.free(heading_slug(words) or "section")
    for before, _ in headings:
        if before.meta["aliases"][0] in said.taken:
            before.meta["aliases"] = ()


class _Slugs:
    """The ids of the headings of one text."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        # What to try next: with many headings of one name, none of the lower numbers is tried again.
        self._names: dict[str, Iterator[str]] = {}

    def free(self, name: str) -> str:
        """A name, or the next one that is free, which is taken now."""
        names = self._names.setdefault(name, numbered(name))
        slug = next(each for each in names if each not in self.taken)
        self.taken.add(slug)
        return slug


def names_of(token: Token) -> Iterator[str]:
    """The ids under which a heading is found; those of no other token."""
    if token.type == "heading_open":
        yield from (token.meta["slug"], *token.meta["aliases"])


def reinline(token: Token, content: str, *, path: str | None = None, line: int | None = None) -> Token:
    """A copy of an inline token with another content: how a translation takes the English's place.

    :param path: the file the content comes from, when that is another one (a catalogue).
    :param line: its line there.
    """
    meta = dict(token.meta)
    if path is not None:
        meta["origin"] = (path, line or 1)
    counts = {number: {"label": label, "count": 0} for label, number in meta["footnotes"].items()}
    refs = {f":{label}": number for label, number in meta["footnotes"].items()}
    env = {"references": meta["references"], "footnotes": {"refs": refs, "list": counts}}
    content = _printable(content)
    children = _parser().parseInline(content, env)[0].children
    return token.copy(content=content, meta=meta, attrs=dict(token.attrs), children=children)


def units(tokens: Iterable[Token]) -> Iterator[Token]:
    """The translatable units among `tokens`, in the order of the text."""
    return (token for token in tokens if token.type == "inline" and token.content.strip())


def anchors(tokens: Iterable[Token]) -> Iterator[str]:
    """The names that `<a id="…">` gives to places in the text, but for those that are the page's own."""
    for token in tokens:
        if token.type == "anchor" and not PAGES_OWN.fullmatch(token.content):
            yield token.content
        yield from anchors(token.children or ())


def opening(tokens: Sequence[Token]) -> Opening:
    """Split a chapter into title (a first heading of level 1), lede (a blockquote after it) and rest."""
    title: Token | None = None
    if len(tokens) >= 3 and tokens[0].type == "heading_open" and tokens[0].tag == "h1":
        title, tokens = tokens[1], tokens[3:]
    if title is None or not tokens or tokens[0].type != "blockquote_open":
        return Opening(title, (), tuple(tokens))
    end = next(
        index for index, token in enumerate(tokens) if token.type == "blockquote_close" and token.level == 0
    )
    return Opening(title, tuple(tokens[1:end]), tuple(tokens[end + 1 :]))


def plain(tokens: Token | Iterable[Token]) -> str:
    """The words alone, for titles, descriptions and slugs: no markup, formulas as their TeX, one line."""
    parts: list[str] = []
    for token in (tokens,) if isinstance(tokens, Token) else tokens:
        if token.children is not None:
            parts.append(plain(token.children))
        elif token.type in ("softbreak", "hardbreak") or (token.nesting == -1 and token.block):
            parts.append(" ")
        elif token.type not in ("footnote_ref", "footnote_anchor", "anchor"):
            parts.append(token.content)
    return re.sub(r"\s+", " ", "".join(parts)).strip()


def heading_slug(text: str, words: int = 8) -> str:
    """The first words of `text` in lower case, joined by hyphens: letters of every script, and those of Latin
    without their accents. It is empty when no letter or digit is left.
    """
    return "-".join(re.findall(r"[a-z0-9\x80-\U0010ffff]+", _folded(text))[:words])


def ascii_slug(text: str, words: int = 8) -> str:
    """The first words of `text` in ASCII lower case, joined by hyphens; empty when it has none."""
    return "-".join(re.findall(r"[a-z0-9]+", re.sub("[^\x00-\x7f]", "", _folded(text)))[:words])


def _folded(text: str) -> str:
    """A text in ASCII where it can be, and of all other characters letters, digits and their marks."""
    parts: list[str] = []
    for char in unicodedata.normalize("NFC", text.casefold()):
        plain_char = unicodedata.normalize("NFKD", char).encode("ascii", "ignore").decode()
        kind = unicodedata.category(char)[0]
        # A mark above a letter of ASCII falls away; one that belongs to a vowel of Hindi is half a letter.
        if plain_char or kind in "LN" or (kind == "M" and parts and not parts[-1].isascii()):
            parts.append(plain_char or unicodedata.normalize("NFKC", char))
    return "".join(parts)


def line_of(token: Token, parent: Token | None = None) -> int:
    """The line of the file on which `token` starts; a child of an inline token needs that token too.

    A translated unit answers with its line in the catalogue, where the mistake would have to be mended.
    """
    owner = parent or token
    if "origin" in owner.meta:
        return int(owner.meta["origin"][1])
    first = owner.meta.get("first_line", 1)
    start = owner.map[0] if owner.map else 0
    return int(first + start + (token.meta.get("line", 0) if parent else 0))


def path_of(token: Token) -> str:
    """The file an inline token's content comes from: the source, or the catalogue of its translation."""
    return str(token.meta["origin"][0] if "origin" in token.meta else token.meta.get("path", ""))
