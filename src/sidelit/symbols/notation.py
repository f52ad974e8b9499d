r"""# What the symbols of a page mean

> A page declares its notation once, in words that readers see.

    :notation $N_d$: `world_size`, the number of ranks
    :notation $P_u$: the length of the flat vector of unit $u$

The fields are a table on the page, translated like all of its words, and they are what binds: wherever a
formula of the page says $N_d$ or its code says `world_size`, the reader may ask what that is. The code that
the words begin with is the symbol's name in the program; a symbol may have none. `Cost.state` stands for the
attribute wherever its object is called something else than `Cost`.

A letter below a symbol that people count with ($u$ in $P_u$, but not $d$ in $N_d$) may change: $P_0$ is one
of them, and so is $P_{u+1}$, and $P_v$ where the formula counts with $v$.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markdown_it.token import Token

from sidelit.symbols import formula
from sidelit.text import fields, markup

KIND = "notation"
_CODE = re.compile(r"[^\W\d]\w*|\d+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Meaning:
    """One symbol that a page declares; `key` is what marks it on the page.

    `code` are the tokens of its name in the program, none if it has no such name.
    """

    key: str
    base: str
    below: str
    code: tuple[str, ...]
    path: str
    line: int

    @property
    def name(self) -> str:
        """The symbol as TeX."""
        return formula.Symbol(self.base, self.below, 0, 0).name

    @property
    def attribute(self) -> tuple[str, ...]:
        """The last word of a name like `Cost.state`; nothing if the name is of another kind."""
        dotted = len(self.code) == 3 and self.code[1] == "." and self.code[0][0].isupper()
        return self.code[2:] if dotted else ()

    @property
    def index(self) -> str:
        """The letter below it, if that is one that people count with, and so may stand for any."""
        return self.below if len(self.below) == 1 and self.below in "ijklmnqrstuv" else ""


@dataclass(frozen=True, slots=True)
class Notation:
    """All that one page declares."""

    meanings: tuple[Meaning, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.meanings)

    def find(self, symbol: formula.Symbol, counting: frozenset[str]) -> Meaning | None:
        """What a symbol of a formula means that counts with `counting`."""
        same = [each for each in self.meanings if each.base == symbol.base]
        for each in same:
            if each.below == symbol.below:
                return each
        for each in same:
            if each.index and _is_index(symbol.below, each.index, counting):
                return each
        return next((each for each in same if not each.below), None)


def _is_index(below: str, index: str, counting: frozenset[str]) -> bool:
    counted = below in counting or any(letter in below for letter in counting if letter)
    return bool(below) and (below.isdecimal() or index in re.findall(r"\\[A-Za-z]+|.", below) or counted)


def read(tokens: Sequence[Token]) -> Notation:
    """The notation that a text declares."""
    found: list[Meaning] = []
    for row in fields.take(tokens, KIND)[1]:
        code = _code(row)
        for symbol in declared(row):
            path, line = markup.path_of(row.name) or "", markup.line_of(row.name)
            key = _key(symbol.name, [each.key for each in found])
            found.append(Meaning(key, symbol.base, symbol.below, code, path, line))
    return Notation(tuple(found))


def declared(row: fields.Field) -> Iterator[formula.Symbol]:
    """The symbols that one field is about."""
    for child in row.name.children or ():
        if child.type.startswith("math"):
            yield from formula.read(child.content).symbols


def code_tokens(text: str) -> tuple[str, ...]:
    """Program text as words and signs."""
    return tuple(_CODE.findall(text))


def _code(row: fields.Field) -> tuple[str, ...]:
    words = next((token for token in row.body if token.type == "inline"), None)
    children = [child for child in (words.children if words else None) or () if child.content.strip()]
    return code_tokens(children[0].content) if children and children[0].type == "code_inline" else ()


def _key(name: str, taken: Sequence[str]) -> str:
    """A word for a symbol: an attribute of HTML, and an argument of a command of TeX."""
    word = re.sub(r"[^A-Za-z0-9_-]", lambda sign: "" if sign[0] in "\\{} " else f"-{ord(sign[0]):x}-", name)
    again = sum(each == word or each.rpartition("--")[0] == word for each in taken)
    return f"{word}--{again + 1}" if again else word
