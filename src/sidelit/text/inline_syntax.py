"""# What everybody writes

> Ids of headings, addresses without signs around them, lists that stand further in, and simple tags of HTML.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from html import unescape

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, lheading
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline.state_inline import StateInline
from markdown_it.token import Token


def plugin(md: MarkdownIt) -> None:
    """Let a parser know all of it."""
    md.core.ruler.after("block", "heading_id", _heading_ids)
    md.block.ruler.before("blockquote", "tags", _tag_lines, {"alt": ["paragraph", "reference"]})
    md.inline.ruler.before("autolink", "address", _address)
    md.inline.ruler.before("autolink", "tag", _tag)
    md.inline.ruler2.after("emphasis", "tags", _pair)


# Kana and ideographs: the characters that are set without spaces between words (punctuation is none).
CJK = re.compile(
    "[\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]"
)


def is_cjk(char: str) -> bool:
    """Whether `char` is a kana or an ideograph."""
    return CJK.match(char) is not None


# ## The id of a heading


# `{#install}` as Pandoc writes it, with the colon of kramdown or without. Classes and the rest are no words.
_HEADING_ID = re.compile(r"""(?<!\\)\{:?[ \t]*\#([^\s{}\#"'<>`]+)(?:[ \t][^{}`]*)?\}[ \t]*$""")


def _heading_ids(state: StateCore) -> None:
    """Take the id that an author gives to a heading out of its words, which are to be translated."""
    for before, token in itertools.pairwise(state.tokens):
        if before.type == "heading_open" and (found := _HEADING_ID.search(token.content)):
            before.meta["said"] = found[1]
            token.content = token.content[: found.start()].rstrip()


# ## Addresses


# An address ends at a blank, at what no address holds, and at what stands around one in a text.
_ADDRESS = re.compile(
    r"""://[a-z0-9](?:(?![\u3000-\u303f\uff00-\uffef])[^\s<>()\[\]{}"`|\\^$]|\([^\s<>()\[\]{}"`|\\^$]*\))*""",
    re.IGNORECASE,
)
_SCHEMES = re.compile(r"(?<![a-z0-9])https?\Z", re.IGNORECASE)


def _address(state: StateInline, silent: bool) -> bool:
    """`https://example.org` is a link as it stands, like everywhere else."""
    if state.src[state.pos] != ":" or state.linkLevel or not (found := _ADDRESS.match(state.src, state.pos)):
        return False
    scheme = _SCHEMES.search(state.src[max(0, state.pos - 6) : state.pos])
    # `https://{host}/` and `https://example.org/<name>` say how an address is made.
    if scheme is None or state.src[found.end() : found.end() + 1] in ("{", "<", "$", "\\"):
        return False
    ideograph = CJK.search(found[0])
    address = scheme[0] + found[0][: ideograph and ideograph.start()].rstrip("?!.,:;*_~'")
    href = state.md.normalizeLink(address)
    if not state.md.validateLink(href):
        return False
    if not silent:
        state.pending = state.pending[: -len(scheme[0])]
        opening = state.push("link_open", "a", 1)
        opening.attrs, opening.markup, opening.info = {"href": href}, "autolink", "auto"
        state.push("text", "", 0).content = address
        closing = state.push("link_close", "a", -1)
        closing.markup, closing.info = "autolink", "auto"
    state.pos += len(address) - len(scheme[0])
    return True


# ## Lists that stand further in
#
# > In commentary a list right below its sentence is a list, however far its author has indented it.
#
# To CommonMark a line that begins with four blanks goes on with the sentence above it, whatever it says: the
# items would be one long sentence. Code needs a blank line above it, so no code is meant there.


def indented_lists(md: MarkdownIt) -> None:
    """Let a parser know such lists."""
    md.block.ruler.before("code", "indented_list", _indented_list)
    md.block.ruler.at("lheading", _underlined)
    md.block.ruler.at("paragraph", _paragraph)


_ITEM = re.compile(r"(?:[-*+]|1[.)])[ \t]+\S")
_CLOSED = ("paragraph_close", "bullet_list_close", "ordered_list_close")


def _text(state: StateBlock, row: int) -> str:
    return state.src[state.bMarks[row] + state.tShift[row] : state.eMarks[row]]


def _is_item(state: StateBlock, row: int) -> bool:
    return _ITEM.match(_text(state, row)) is not None


def _indented_list(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read what stands right below a paragraph, or such a list, as if its indentation were the margin."""
    below = start > 0 and not state.isEmpty(start - 1) and state.tokens and state.tokens[-1].type in _CLOSED
    if silent or not below or not state.is_code_block(start) or not _is_item(state, start):
        return False
    indent, margin = state.sCount[start], state.blkIndent
    stop = start + 1
    while stop < end and not _is_outside(state, stop, indent, margin):
        stop += 1
    around = margin, state.lineMax
    state.blkIndent, state.lineMax = indent, stop
    state.md.block.tokenize(state, start, stop)
    state.blkIndent, state.lineMax = around
    return True


def _is_outside(state: StateBlock, row: int, indent: int, margin: int) -> bool:
    """Whether a line ends a list with this indentation in a text with this margin."""
    if state.isEmpty(row):
        return False
    column, item = state.sCount[row], _is_item(state, row)
    if state.isEmpty(row - 1):
        return column < indent or (column < indent + 2 and not item)
    # A line that is not as far in as the list and no item goes on with the last one, as everywhere.
    return column < indent and (item or column - margin < _CODE)


# The blanks that begin a line of code.
_CODE = 4


def _underlined(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A heading is no list, though a line of dashes may stand below one."""
    count, level = len(state.tokens), state.level
    if not lheading(state, start, end, silent):
        return False
    rows = range(start + 1, state.line - 1)
    if not any(state.sCount[row] - state.blkIndent >= _CODE and _is_item(state, row) for row in rows):
        return True
    del state.tokens[count:]
    state.line, state.level = start, level
    return False


def _paragraph(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """The rule of the parser, which knows of no line that ends a paragraph and is indented."""
    rules = state.md.block.ruler.getRules("paragraph")
    around, state.parentType = state.parentType, "paragraph"
    row, cut = start + 1, False
    while row < state.lineMax and not state.isEmpty(row):
        column = state.sCount[row]
        if column - state.blkIndent >= _CODE:
            if not cut and _is_item(state, row):
                cut = _is_cut(state, start, row)
                if not cut:
                    break
        elif column >= 0 and any(rule(state, row, state.lineMax, True) for rule in rules):
            break
        row += 1
    state.line = row
    state.push("paragraph_open", "p", 1).map = [start, row]
    words = state.push("inline", "", 0)
    words.content, words.map = state.getLines(start, row, state.blkIndent, False).strip(), [start, row]
    words.children = []
    state.push("paragraph_close", "p", -1)
    state.parentType = around
    return True


def _is_cut(state: StateBlock, start: int, row: int) -> bool:
    """Whether a formula or a piece of code goes on in a line, which may begin with its minus."""
    count = Counter(state.src[state.bMarks[start] : state.eMarks[row - 1]])
    opened = sum(count[each] for each in "([{") > sum(count[each] for each in ")]}")
    return opened or count["`"] % 2 == 1 or count["$"] % 2 == 1


# ## Tags of HTML
#
# > `<b>` is bold, `<br>` ends a line, `<div align="center">` says nothing, and a `<file>` stays as typed.
#
# Raw HTML does not reach a page. What a tag says is said by a token of Markdown, or by a tag without
# attributes; the rest of it is left out. In a docstring `<p>` or `<table>` may stand for something that a
# user types, so such a name counts as a tag only where it is closed, or has attributes.


_PLAIN = ("sub", "sup", "kbd", "small", "mark", "u", "del", "ins", "var", "samp", "cite")
_WORDS = {"b": "strong", "strong": "strong", "i": "em", "em": "em", "tt": "code", "code": "code"}
_WORDS |= {name: name for name in _PLAIN}
# What begins a line of its own.
_LINES = {"p", "div", "center", "li", "tr", "blockquote", "dt", "dd", *(f"h{level}" for level in range(1, 7))}
# No placeholder has these names.
_CERTAIN = _LINES - {"p"} | {"span", "font", "ul", "ol", "dl", "td", "th", "tbody", "thead"}
_FIGURES = {"figure", "figcaption", "picture", "details", "summary"}
_SILENT = _LINES | _CERTAIN | _FIGURES | {"big", "table", "abbr", "q"}
_VOID = {"br", "hr", "img"}
_NAMES = _WORDS.keys() | _SILENT | _VOID | {"a"}

_ATTRIBUTE = r"""\s+([a-zA-Z_:][\w:.-]*)(?:\s*=\s*("[^"<>]*"|'[^'<>]*'|[^\s"'=<>`]+))?"""
_TAG = re.compile(rf"<(?P<end>/?)(?P<name>[a-zA-Z][a-zA-Z0-9]*)(?:{_ATTRIBUTE})*\s*/?>")
_COMMENT = re.compile(r"<!--(?:-?>|.*?-->)", re.DOTALL)
# A tag that is longer says too much.
_LONGEST = 2_000


def _tag(state: StateInline, silent: bool) -> bool:
    if not state.src.startswith("<", state.pos):
        return False
    found = _TAG.match(state.src, state.pos, state.pos + _LONGEST)
    if found and found["name"].lower() not in _NAMES:
        return False
    end = found.end() if found else _end_of_comment(state)
    if end < 0:
        return False
    if not silent:
        state.push("tag", "", 0).content = state.src[state.pos : end]
    state.pos = end
    return True


def _end_of_comment(state: StateInline) -> int:
    """Where a comment that begins here ends, or -1. An end that is not there is searched once."""
    if not state.src.startswith("<!--", state.pos) or state.env.get("uncommented") is state.src:
        return -1
    end = state.src.find("-->", state.pos + 2)
    if end < 0:
        state.env["uncommented"] = state.src
        return -1
    return end + 3


def rows_below(state: StateBlock, start: int, end: int) -> Iterator[int]:
    """The lines below one as far as the block goes that it stands in, such as an item of a list."""
    for row in range(start + 1, end):
        if state.sCount[row] < state.blkIndent and not state.isEmpty(row):
            return
        yield row


def _tag_lines(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Lines of nothing but tags that say nothing, or of a comment, are no paragraph."""
    text = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]].strip()
    if state.is_code_block(start) or not text.startswith("<"):
        return False
    last = start
    if text.startswith("<!--") and "-->" not in text:
        # One that is never closed is searched to its end once.
        if start < state.env.get("unclosed comment", -1):
            return False
        for last in rows_below(state, start, end):
            if "-->" in state.src[state.bMarks[last] : state.eMarks[last]]:
                break
        else:
            state.env["unclosed comment"] = last + 1
            return False
        text = state.src[state.bMarks[start] : state.eMarks[last]].strip()
    if _TAG.sub(_said, _COMMENT.sub("", text)).strip():
        return False
    if not silent:
        state.line = last + 1
    return True


def _said(found: re.Match[str]) -> str:
    return "" if found["name"].lower() in _SILENT else found[0]


def _pair(state: StateInline) -> None:
    """Make of each tag what it says."""
    opened: list[tuple[str, Token]] = []
    around: list[list[tuple[str, Token]]] = []
    linked = 0
    before: Token | None = None
    for token in state.tokens:
        if token.type in ("link_open", "link_close"):
            linked += token.nesting
            if token.markup == "autolink" and any(name == "a" for name, _ in opened):
                _leave_out(token)
        # What opens inside of emphasis or a link ends there.
        if token.nesting == 1:
            around.append(opened)
            opened = []
        elif token.nesting == -1:
            for name, inner in opened:
                _alone(name, inner)
            opened = around.pop()
        if token.type != "tag":
            before = token
            continue
        found = _TAG.match(token.content)
        if found is None:
            _leave_out(token)
        elif (name := found["name"].lower()) in _VOID:
            _void(token, name, state)
        elif not found["end"]:
            opened.append((name, token))
            # An address in a link is the words of that link.
            if linked and name == "a":
                _leave_out(token)
                opened.pop()
        else:
            _close(name, token, before, opened, state.md)
        before = token
    for name, token in opened:
        _alone(name, token)
    _break_lines(state.tokens)


def _close(
    name: str, token: Token, before: Token | None, opened: list[tuple[str, Token]], md: MarkdownIt
) -> None:
    """Pair a closing tag with the last one that opened its name; what stands open between them is alone.

    A link without words, which has its opening tag right `before` the closing one, leads nobody anywhere.
    """
    place = next((at for at in range(len(opened) - 1, -1, -1) if opened[at][0] == name), None)
    if place is None:
        if name in _SILENT or name == "a":
            _leave_out(token)
        else:
            _typed(token)
        return
    for inner, opening in opened[place + 1 :]:
        _alone(inner, opening)
    opening = opened[place][1]
    del opened[place:]
    if name in _SILENT:
        _leave_out(opening, token)
    elif name != "a":
        opening.type, opening.tag, opening.nesting, opening.content = f"{name}_open", _WORDS[name], 1, ""
        token.type, token.tag, token.nesting, token.content = f"{name}_close", _WORDS[name], -1, ""
    else:
        given = dict(_attributes(opening.content))
        href = md.normalizeLink(given.get("href", ""))
        if not href or opening is before:
            _leave_out(opening, token)
        elif md.validateLink(href):
            opening.type, opening.tag, opening.nesting, opening.content = "link_open", "a", 1, ""
            opening.attrs = {"href": href, **({"title": given["title"]} if given.get("title") else {})}
            token.type, token.tag, token.nesting, token.content = "link_close", "a", -1, ""
        else:
            _typed(opening, token)


def _void(token: Token, name: str, state: StateInline) -> None:
    """What has no end: a line break, or a picture."""
    if name != "img":
        token.type, token.tag, token.content = "hardbreak", "br", ""
        return
    given = dict(_attributes(token.content))
    source = state.md.normalizeLink(given.get("src", ""))
    if not source or not state.md.validateLink(source):
        _typed(token)
        return
    words = given.get("alt", "")
    token.type, token.tag, token.content = "image", "img", words
    token.attrs = {"src": source, "alt": ""}
    token.children = [Token("text", "", 0, content=words)]


def _attributes(tag: str) -> Iterator[tuple[str, str]]:
    for name, value in re.findall(_ATTRIBUTE, tag):
        yield name.lower(), unescape(value[1:-1] if value[:1] in ("'", '"') else value)


def _alone(name: str, token: Token) -> None:
    """A tag that is never closed is one where nothing else has its name, or where it has attributes."""
    said = name in _CERTAIN or (name in _SILENT and " " in token.content)
    _leave_out(token) if said else _typed(token)


def _break_lines(tokens: list[Token]) -> None:
    """Begin a line where a tag that is left out has begun one, if something stands on the line before."""
    said = False
    for token in tokens:
        if token.meta.pop("begins", False) and said:
            token.type, token.tag = "hardbreak", "br"
        said = token.type != "hardbreak" and (said or bool(token.content.strip()))


def _leave_out(*tokens: Token) -> None:
    for token in tokens:
        found = _TAG.match(token.content)
        token.meta["begins"] = bool(found and not found["end"] and found["name"].lower() in _LINES)
        token.type, token.tag, token.nesting, token.content = "text", "", 0, ""


def _typed(*tokens: Token) -> None:
    for token in tokens:
        token.type = "text"
