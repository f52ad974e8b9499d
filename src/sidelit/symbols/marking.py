"""# Marking symbols

> A page declares its notation once, and each occurrence in formulas and code is marked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape, unescape

from markdown_it.token import Token

from sidelit.errors import SidelitError
from sidelit.symbols import formula
from sidelit.text import directives, markup

# ## What the symbols of a page mean
#
# > A page declares its notation once, in words that readers see.
#
#     :notation $N_d$: `world_size`, the number of ranks
#     :notation $P_u$: the length of the flat vector of unit $u$
#
# The fields are a table on the page, translated like all of its words, and they are what binds: wherever a
# formula of the page says $N_d$ or its code says `world_size`, the reader may ask what that is. The code that
# the words begin with is the symbol's name in the program; a symbol may have none. `Cost.state` stands for
# the attribute wherever its object is called something else than `Cost`.
#
# A letter below a symbol that people count with ($u$ in $P_u$, but not $d$ in $N_d$) may change: $P_0$ is one
# of them, and so is $P_{u+1}$, and $P_v$ where the formula counts with $v$.


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
    said: str = ""
    """What it means, without its name in the program."""

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
    for row in directives.take(tokens, KIND)[1]:
        code, said = _code(row), _said(row)
        for symbol in declared(row):
            path, line = markup.path_of(row.name) or "", markup.line_of(row.name)
            key = _key(symbol.name, [each.key for each in found])
            found.append(Meaning(key, symbol.base, symbol.below, code, path, line, said))
    return Notation(tuple(found))


def declared(row: directives.Field) -> Iterator[formula.Symbol]:
    """The symbols that one field is about."""
    for child in row.name.children or ():
        if child.type.startswith("math"):
            yield from formula.read(child.content).symbols


def code_tokens(text: str) -> tuple[str, ...]:
    """Program text as words and signs."""
    return tuple(_CODE.findall(text))


def _code(row: directives.Field) -> tuple[str, ...]:
    words = next((token for token in row.body if token.type == "inline"), None)
    children = [child for child in (words.children if words else None) or () if child.content.strip()]
    return code_tokens(children[0].content) if children and children[0].type == "code_inline" else ()


def _said(row: directives.Field) -> str:
    """The words of a field behind the name in the program that it may begin with."""
    words = markup.plain([token for token in row.body if token.type == "inline"])
    children = (child.content for token in row.body for child in token.children or ())
    named = next(children, "") if _code(row) else ""
    return words.removeprefix(named).lstrip(", ").casefold()


def _key(name: str, taken: Sequence[str]) -> str:
    """A word for a symbol: an attribute of HTML, and an argument of a command of TeX."""
    word = re.sub(r"[^A-Za-z0-9_-]", lambda sign: "" if sign[0] in "\\{} " else f"-{ord(sign[0]):x}-", name)
    again = sum(each == word or each.rpartition("--")[0] == word for each in taken)
    return f"{word}--{again + 1}" if again else word


# ## Marking symbols
#
# > Every place where a symbol stands carries its key, in formulas and in code.
#
# A formula is marked before it is set, by a command of KaTeX around each symbol: so what a reader sees does
# not change by a hair. The marks are in what is drawn only; what screen readers get is the formula as it was
# written. Code is marked after it was coloured, outside of strings and comments.


ATTRIBUTE = "data-sym"
COMMAND = r"\htmlData"

_PART = re.compile(r"<(/?)(?:[a-z]+)([^>]*)>|[^<]+")
_WORD = re.compile(r"&[#\w]+;|[^\W\d]\w*|\d+|[^\w\s]")
_SAID = re.compile(r'class="(?:s|c)[a-z0-9]?"')


_DRAWN = '<span class="katex-html"'
_TAG = re.compile(r"<(/?)[a-z]+[^>]*>")
_MARK = re.compile(
    r'<span class="mord(?: mtight)?"( style="[^"]*")?><span class="enclosing(?: mtight)?" (data-sym="[^"]*")>'
    r"<(\w+)([^>]*)>"
)

_ALIKE = re.compile(r'<span class="([^"]*)">([^<]+)</span><span class="\1"( style="[^"]*")?>([^<]+)</span>')


def settled(plain: str, drawn: str) -> str:
    """A formula as it was set, with the marks of a drawing of the same formula.

    A mark becomes an attribute of what it is around. If then anything but the marks differs, the formula
    stays without them: nothing that is only pointed at may change how it looks.
    """
    if _DRAWN not in plain or _DRAWN not in drawn:
        return plain
    start = plain.index(_DRAWN)
    said, seen = plain[:start], plain[start:]
    marked = _unwrapped(drawn[drawn.index(_DRAWN) :])
    # Outside of what is drawn the plain one has one more element that ends here.
    same = _joined(re.sub(r' data-sym="[^"]*"', "", marked)) == _joined(seen)
    return said + marked if same else plain


def _joined(html: str) -> str:
    """Signs beside each other that are set alike, as one: KaTeX joins them where no mark stands between."""
    joined, count = html, 1
    while count:
        joined, count = _ALIKE.subn(r'<span class="\1"\3>\2\4</span>', joined)
    return joined


def _unwrapped(html: str) -> str:
    """What is drawn without the two elements that KaTeX puts around what is marked."""
    made: list[str] = []
    depth, last = 0, 0
    # The depths of the elements that are left out.
    left_out: list[int] = []
    while (tag := _TAG.search(html, last)) is not None:
        made.append(html[last : tag.start()])
        if mark := _MARK.match(html, tag.start()):
            left_out += [depth + 1, depth + 2]
            depth += 3
            made.append(f"<{mark[3]} {mark[2]}{mark[4]}{mark[1] or ''}>")
        elif tag[1] and left_out and left_out[-1] == depth:
            left_out.pop()
            depth -= 1
        else:
            depth += -1 if tag[1] else not tag[0].endswith("/>")
            made.append(tag[0])
        last = mark.end() if mark else tag.end()
    return "".join((*made, html[last:]))


@dataclass
class Marker:
    """Marks what a page shows with the keys of a notation, and knows which of them it has used.

    :param keys: what a symbol is called on the page, if not by its own key.
    """

    notation: Notation
    keys: Mapping[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    _lines: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)

    def tex(self, tex: str) -> str | None:
        """A formula with its marks; nothing if it holds none of the symbols."""
        read = formula.read(tex)
        places = list(self._places(read.symbols, read.counting))
        if not places:
            return None
        marks = [(start, -end, f"{{{COMMAND}{{sym={key}}}{{") for start, end, key in places]
        marks += [(end, 1, "}}") for _, end, _ in places]
        made, last = "", 0
        # Where one symbol ends and the next begins, the one that ends comes first.
        for at, _, mark in sorted(marks, key=lambda mark: (mark[0], mark[2] != "}}", mark[1])):
            made += tex[last:at] + mark
            last = at
        return made + tex[last:]

    def settled(self, tex: str, plain: str, draw: Callable[[str], str]) -> str:
        """A formula that was set as `plain`, with its marks; `draw` sets a formula that has marks."""
        marked = self.tex(tex)
        if marked is None:
            return plain
        try:
            return settled(plain, draw(marked))
        except SidelitError:
            # Some command takes its argument in another way than `formula` supposes.
            return plain

    def _places(
        self, symbols: Sequence[formula.Symbol], counting: frozenset[str]
    ) -> Iterator[tuple[int, int, str]]:
        for symbol in symbols:
            meaning = self.notation.find(symbol, counting)
            if meaning is not None:
                yield symbol.start, symbol.end, self._key(meaning)
            if meaning is None or not meaning.below:
                yield from self._places(symbol.below_symbols, counting)
            yield from self._places(symbol.above_symbols, counting)

    def code(self, html: str) -> str:
        """A coloured line of code with its marks."""
        if html not in self._lines:
            self._lines[html] = self._marked(html)
        made, keys = self._lines[html]
        self.used |= keys
        return made

    def span(self, code: str) -> str:
        """The keys of a piece of code inside a sentence, if it is the name of symbols and nothing else."""
        tokens = code_tokens(code)
        found = [each for each in self._coded if tokens in (each.code, each.attribute) and tokens]
        return " ".join(self._key(each) for each in found)

    @cached_property
    def _coded(self) -> tuple[Meaning, ...]:
        return tuple(each for each in self.notation.meanings if each.code)

    def key_of(self, symbol: formula.Symbol) -> str:
        """The key of a symbol that is declared here, whether it is used or not."""
        meaning = self.notation.find(symbol, frozenset())
        return self.keys.get(meaning.key, meaning.key) if meaning else ""

    def _key(self, meaning: Meaning) -> str:
        key = self.keys.get(meaning.key, meaning.key)
        self.used.add(key)
        return key

    def _marked(self, html: str) -> tuple[str, frozenset[str]]:
        words = [meaning for meaning in self._coded if meaning.code[-1] in html or meaning.code[0] in html]
        if not words:
            return html, frozenset()
        places = _program(html)
        tokens = [unescape(html[start:end]) for start, end in places]
        found: dict[int, list[str]] = {}
        for meaning in words:
            for at in positions(tokens, meaning):
                found.setdefault(at, []).append(self.keys.get(meaning.key, meaning.key))
        made, last = "", 0
        for at, keys in sorted(found.items()):
            start, end = places[at]
            made += f'{html[last:start]}<span {ATTRIBUTE}="{escape(" ".join(keys))}">{html[start:end]}</span>'
            last = end
        return made + html[last:], frozenset(key for keys in found.values() for key in keys)


def positions(tokens: Sequence[str], meaning: Meaning) -> Iterator[int]:
    """Which tokens of a program are the name of a symbol."""
    for wanted in filter(None, (meaning.code, meaning.attribute)):
        for at in range(len(tokens) - len(wanted) + 1):
            if tuple(tokens[at : at + len(wanted)]) == wanted:
                # Of `config.layers` and `len(layers)` the words are marked, and not the signs between them.
                yield from (at + n for n, word in enumerate(wanted) if is_word(word))


def is_word(token: str) -> bool:
    """Whether a token is a name or a number, and no sign."""
    return token[0].isalnum() or token[0] == "_"


def program(html: str) -> list[str]:
    """The words and signs of a coloured line that belong to the program: no strings, no comments."""
    return [unescape(html[start:end]) for start, end in _program(html)]


def _program(html: str) -> list[tuple[int, int]]:
    """Where the words and signs of a coloured line are that belong to the program."""
    places: list[tuple[int, int]] = []
    said: list[bool] = []
    for part in _PART.finditer(html):
        if not part[0].startswith("<"):
            if not any(said):
                places += (
                    (part.start() + word.start(), part.start() + word.end())
                    for word in _WORD.finditer(part[0])
                )
        elif part[1]:
            said.pop()
        else:
            said.append(bool(_SAID.search(part[2])))
    return places
