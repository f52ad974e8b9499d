"""# Fields

> The `:param x:` lists of a docstring, sorted into the tables that a page shows.

Docstrings name the same thing in several ways (`:param`, `:arg`, `:keyword`), and lists mix what readers look
up separately. Fields of one kind are gathered in one table, in the order in which the kinds first appear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markdown_it.token import Token

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
