"""# Lints for symbols

> A page that says what its symbols mean says it of all of them, and of no others.

A page that declares no notation is asked nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from markdown_it.token import Token

from sidelit.errors import SidelitError
from sidelit.symbols import customs, formula, marking, notation
from sidelit.text import fields, markup

UNBOUND, UNKNOWN, UNUSED, TWICE = "unbound-symbol", "unknown-name", "unused-symbol", "symbol-twice"

Finding = tuple[str, SidelitError]


def lint(tokens: Sequence[Token], program: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Look at the notation of a page with these words.

    :param program: for every last word of a name the words and signs of the lines that have it, in all
        chapters: what a chapter calls by its name may be defined in another.
    """
    known = notation.read(tokens)
    if not known:
        return
    said, _ = fields.parted(tokens, notation.KIND)
    bodies = [token for row in fields.take(tokens, notation.KIND)[1] for token in row.body]
    used: set[str] = set()
    for inline, tex, line in _formulas((*said, *bodies)):
        read = formula.read(tex)
        used |= {each.key for _, each in _found(read.symbols, known, read.counting) if each}
        for name in _unbound(read, known, tex):
            hint = f"add `:notation ${name}$: what it means`"
            what = f"no `:notation` of this page says what ${name}$ means"
            yield UNBOUND, SidelitError(what, path=markup.path_of(inline), line=line, hint=hint)
    for meaning in known.meanings:
        yield from _declared(meaning, known, used, program)


def _declared(
    meaning: notation.Meaning,
    known: notation.Notation,
    used: set[str],
    program: Mapping[str, Sequence[str]],
) -> Iterator[Finding]:
    first = known.find(formula.Symbol(meaning.base, meaning.below, 0, 0), frozenset())
    if first is not meaning:
        yield TWICE, _at(meaning, f"this page says twice what ${meaning.name}$ means")
    elif meaning.key not in used:
        yield UNUSED, _at(meaning, f"no formula of this page uses ${meaning.name}$", "remove the line")
    if meaning.code and not _is_there(meaning, program):
        code = "".join(meaning.code)
        what = f"no chapter has `{code}` in its code, which ${meaning.name}$ is said to be called there"
        yield UNKNOWN, _at(meaning, what, "begin with a name of the code, or with the words")


def _is_there(meaning: notation.Meaning, program: Mapping[str, Sequence[str]]) -> bool:
    last = next((word for word in reversed(meaning.code) if marking.is_word(word)), "")
    return next(marking.positions(program.get(last, ()), meaning), None) is not None


def program(lines: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """For each word of some coloured lines of code all words and signs of the lines that have it."""
    found: dict[str, list[str]] = {}
    for html in lines:
        tokens = marking.program(html)
        for word in filter(marking.is_word, dict.fromkeys(tokens)):
            # What stands in two lines is no name.
            found.setdefault(word, []).extend((*tokens, "\n"))
    return found


def _at(meaning: notation.Meaning, what: str, hint: str | None = None) -> SidelitError:
    return SidelitError(what, path=meaning.path, line=meaning.line, hint=hint)


def _found(
    symbols: Iterable[formula.Symbol], known: notation.Notation, counting: frozenset[str]
) -> Iterator[tuple[formula.Symbol, notation.Meaning | None]]:
    """Every symbol with its meaning; what is below one is part of it, unless its letter is known alone."""
    for symbol in symbols:
        meaning = known.find(symbol, counting)
        yield symbol, meaning
        if meaning is not None and not meaning.below:
            yield from _found(symbol.below_symbols, known, counting)
        yield from _found(symbol.above_symbols, known, counting)


def _unbound(read: formula.Formula, known: notation.Notation, tex: str) -> Mapping[str, None]:
    """The names of what a formula uses and nobody explains, each once."""
    customary = customs.places(read.symbols, tex)
    return {
        symbol.name: None
        for symbol, meaning in _found(read.symbols, known, read.counting)
        if meaning is None and symbol.start not in customary and not _excused(symbol, read, known)
    }


def _excused(symbol: formula.Symbol, read: formula.Formula, known: notation.Notation) -> bool:
    """What needs no explanation: what the formula counts with, and an index."""
    if symbol.below:
        return False
    index = any(each.index == symbol.base for each in known.meanings)
    return symbol.base in read.counting or index


def _formulas(tokens: Sequence[Token]) -> Iterator[tuple[Token, str, int]]:
    for token in tokens:
        if token.type == "math_block":
            yield token, token.content, markup.line_of(token)
        yield from ((token, each.content, markup.line_of(each, token)) for each in _inline(token))


def _inline(token: Token) -> Iterator[Token]:
    for child in token.children or ():
        if child.type.startswith("math"):
            yield child
        yield from _inline(child)
