"""# Fields and directives

> The two ways in which a text says more than prose: lists of parameters, and blocks between `:::`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markdown_it.rules_block import StateBlock
from markdown_it.token import Token

from sidelit.errors import SidelitError

# ## Fields
#
# > The `:param x:` lists of a docstring, sorted into the tables that a page shows.
#
# Docstrings name the same thing in several ways (`:param`, `:arg`, `:keyword`), and lists mix what readers
# look up separately. Fields of one kind are gathered in one table, in the order in which the kinds first
# appear.


_KINDS = {
    "parameter": ("param", "parameter", "arg", "argument", "key", "keyword", "kwarg", "kwparam"),
    "attribute": ("attr", "attribute", "ivar", "cvar", "var"),
    "returns": ("return", "returns"),
    "yields": ("yield", "yields"),
    "raises": ("raise", "raises", "except", "exception"),
    "notation": ("notation",),
    "other": ("other",),
    "receives": ("receives",),
    "warns": ("warns",),
    "method": ("method",),
    "see_also": ("see_also",),
}
_KIND = {word: kind for kind, words in _KINDS.items() for word in words}

# Kinds whose fields have no name of their own: `:returns: the sum`.
NAMELESS = ("returns", "yields")


@dataclass(frozen=True, slots=True)
class Field:
    """One field: what it is about, and the tokens that tell it.

    `name` is the token of type `field_name`; `argument` the code it names, `type` the type written before it.
    """

    kind: str
    name: Token
    argument: str
    type: str
    body: tuple[Token, ...]
    tokens: tuple[Token, ...] = ()
    """All of them, those around its name and body included."""


def kind_of(word: str) -> str:
    """The kind of a field by the word that begins its name; `field` for one that is not known."""
    return _KIND.get(word, "field")


def tables(tokens: Sequence[Token]) -> dict[str, list[Field]]:
    """Sort the tokens between `field_list_open` and `field_list_close` into one list of fields a kind."""
    sorted_fields: dict[str, list[Field]] = {}
    for field in _fields(tokens):
        sorted_fields.setdefault(field.kind, []).append(field)
    return sorted_fields


def take(tokens: Sequence[Token], kind: str) -> tuple[tuple[Token, ...], tuple[Field, ...]]:
    """Take the fields that are written `:kind:` out of a text; returns what is left, and the fields."""
    kept, taken = parted(tokens, kind)
    return kept, tuple(_fields(taken))


def parted(tokens: Sequence[Token], kind: str) -> tuple[tuple[Token, ...], tuple[Token, ...]]:
    """The tokens of a text without its fields that are written `:kind:`, and the tokens of these."""
    kept: list[Token] = []
    taken: list[Token] = []
    index = 0
    while index < len(tokens):
        if tokens[index].type != "field_list_open":
            kept.append(tokens[index])
            index += 1
            continue
        end = closing(tokens, index)
        others: list[Token] = []
        for one in _each(tokens[index + 1 : end]):
            (taken if one[1].meta["kind"] == kind else others).extend(one)
        kept += [tokens[index], *others, tokens[end]] if others else []
        index = end + 1
    return tuple(kept), tuple(taken)


def listed(rows: Iterable[Field]) -> tuple[Token, ...]:
    """The tokens of a list of these fields."""
    inner = (token for row in rows for token in row.tokens)
    return Token("field_list_open", "dl", 1), *inner, Token("field_list_close", "dl", -1)


def _each(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """The tokens of each field of a list: those of its name, then those of its body."""
    index = 0
    while index < len(tokens):
        end = closing(tokens, closing(tokens, index) + 1) + 1
        yield tokens[index:end]
        index = end


def closing(tokens: Sequence[Token], start: int) -> int:
    """The index of the token that closes the one at `start`."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += tokens[index].nesting
        if depth == 0:
            return index
    raise ValueError(f"{tokens[start].type} is never closed")


def _fields(tokens: Sequence[Token]) -> Iterator[Field]:
    for one in _each(tokens):
        yield _field(one[1], tuple(one[closing(one, 0) + 2 : -1]), tuple(one))


def _field(name: Token, body: tuple[Token, ...], tokens: tuple[Token, ...]) -> Field:
    kind = _KIND.get(name.meta["kind"], "field")
    argument = str(name.meta["argument"])
    type_ = str(name.meta.get("type", ""))
    if kind == "field":
        argument = name.content.strip()
    elif kind == "parameter" and "type" not in name.meta:
        # `:param int x:` names the type first; the name is the last word.
        type_, _, argument = argument.rpartition(" ")
    return Field(kind, name, argument, type_.strip(), body, tokens)


# ## Directives
#
# > `::: NAME` to `:::` is a place in a page of Markdown where the press puts something.
#
# What stands between the two lines is Markdown too, and a line `---` divides it into parts:
#
#     ::: question
#     How many bytes does rank 1 send?
#     ---
#     As many as rank 0.
#     :::
#
# This stage knows only the form. Which directives there are, and what becomes of each, is the site's affair
# (`sidelit.site.directives`). The container plugin of markdown-it-py knows no parts: with it a `---` below a
# line of words would make a heading of them.


_BEGIN = re.compile(r":::[ \t]+(\S.*?)[ \t]*")
_FENCE = re.compile(r"(`{3,}|~{3,})")
_OPTION = re.compile(r"""([a-z]+)=("(?:[^"\\]|\\.)*"|'[^']*')(?=\s|$)""")

OPEN, PART, CLOSE = "directive_open", "directive_part", "directive_close"


@dataclass(frozen=True, slots=True)
class Directive:
    """One directive as it was written: `::: NAME ARGUMENT KEY="VALUE"` and the parts of its body."""

    name: str
    argument: str
    options: Mapping[str, str]
    parts: tuple[tuple[Token, ...], ...]
    path: str
    line: int

    @property
    def body(self) -> tuple[Token, ...]:
        """The words of all parts."""
        return tuple(token for part in self.parts for token in part)

    def error(self, what: str, hint: str | None = None) -> SidelitError:
        """A mistake in this directive, at its line."""
        return SidelitError(what, path=self.path, line=self.line, hint=hint)


def rule(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """The block rule: one directive with all that is in it."""
    found = _BEGIN.fullmatch(_text(state, start))
    if found is None or state.is_code_block(start):
        return False
    if silent:
        return True
    cuts, stop = _cuts(state, start, end)
    opening = state.push(OPEN, "div", 1)
    opening.block, opening.map = True, [start, stop]
    opening.meta.update(written=found[1], closed=stop < end)
    parent, last = state.parentType, state.lineMax
    state.parentType = "directive"
    for number, (begin, finish) in enumerate(zip((start, *cuts), (*cuts, stop), strict=True)):
        if number:
            state.push(PART, "", 0).map = [begin, begin + 1]
        state.lineMax = finish
        state.md.block.tokenize(state, begin + 1, finish)
    state.parentType, state.lineMax = parent, last
    state.push(CLOSE, "div", -1).block = True
    state.line = stop + (stop < end)
    return True


def _cuts(state: StateBlock, start: int, end: int) -> tuple[list[int], int]:
    """The lines that divide a directive, and the line that ends it; `end` if none does.

    What is in a fence of code or in a directive inside this one counts for that.
    """
    cuts: list[int] = []
    depth, fence = 0, ""
    for number in range(start + 1, end):
        text = _text(state, number)
        marker = _FENCE.match(text)
        if fence:
            fence = "" if marker and marker[1].startswith(fence) and text == marker[1] else fence
        elif marker:
            fence = marker[1]
        elif _BEGIN.fullmatch(text):
            depth += 1
        elif text == ":::" and depth:
            depth -= 1
        elif text == ":::":
            return cuts, number
        elif text == "---" and not depth:
            cuts.append(number)
    return cuts, end


def _text(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]].rstrip()


def read(tokens: Sequence[Token]) -> Directive:
    """Read a directive from its tokens, the first of which opens it.

    :raises SidelitError: if it is not closed, or its line is not understood
    """
    opening = tokens[0]
    name, _, rest = str(opening.meta["written"]).partition(" ")
    options = {key: _unquoted(value) for key, value in _OPTION.findall(rest)}
    argument = _OPTION.sub("", rest).strip()
    line = int(opening.meta.get("first_line", 1)) + (opening.map[0] if opening.map else 0)
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens[1:-1]:
        depth += token.nesting
        if token.type == PART and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    path = str(opening.meta.get("path", ""))
    made = Directive(name, argument, options, tuple(map(tuple, parts)), path, line)
    if not opening.meta["closed"]:
        raise made.error(f"the directive `::: {name}` does not end", hint="write `:::` on a line below it")
    if "=" in re.sub(r"#\S*", "", argument):
        hint = 'write KEY="VALUE"; a quotation mark inside it is \\"'
        raise made.error(f"{argument!r} is not understood", hint=hint)
    return made


def _unquoted(value: str) -> str:
    inside = value[1:-1]
    return re.sub(r"\\(.)", r"\1", inside) if value[0] == '"' else inside


def among(tokens: Sequence[Token]) -> Iterator[tuple[Token, ...]]:
    """The tokens of each directive, those inside another one too."""
    for index, token in enumerate(tokens):
        if token.type == OPEN:
            yield tuple(tokens[index : closing(tokens, index) + 1])
