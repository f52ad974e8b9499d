r"""# Letters that need no explanation

> Some letters mean the same in every formula, as long as they stand where custom has them.

$e$ below an exponent is Euler's number, $d$ ends an integral, and $T$ alone in an exponent is the sign of a
transpose. $O$, $\Theta$ and $\Omega$ before a parenthesis compare growth, and $\mathbb R$ is a set of
numbers. Anywhere else the same letters are symbols like all others.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from sidelit.symbols.formula import Symbol

_SETS = frozenset(rf"\mathbb{{{letter}}}" for letter in "NZQRC")
_GROWTH = frozenset(("O", r"\mathcal{O}", r"\Theta", r"\Omega"))
_PARENTHESIS = re.compile(r"(?:\s|\\!)*(?:\\(?:left|[bB]igg?l?)(?![A-Za-z]))?\s*\(")
_INTEGRAL = re.compile(r"\\o?(i{0,2})int(?![A-Za-z])")
_BLANK = re.compile(r"\s*")
# Before an exponent, what is no letter: an end of brackets, or a command around words or several letters.
# What stands above an operator is where it ends.
_GROUP = re.compile(r"(?:[)\]]|\\(?!mathop\b)[A-Za-z]+\s*\{[^{}]*\})\s*\Z")
_RAISED = re.compile(r"\^\s*(?:\{\s*)?\Z")


def places(symbols: Sequence[Symbol], tex: str) -> frozenset[int]:
    """Where the letters of a formula begin that custom explains."""
    found = tuple(_all(symbols))
    alone = (each.start for each in found if _is_set(each) or (not each.below and _is_known(each, tex)))
    return frozenset((*alone, *_transposes(found, tex), *_differentials(found, tex)))


def _all(symbols: Sequence[Symbol]) -> Iterator[Symbol]:
    for symbol in symbols:
        yield symbol
        yield from _all(symbol.below_symbols)
        yield from _all(symbol.above_symbols)


def _is_set(symbol: Symbol) -> bool:
    return symbol.base in _SETS and not symbol.below_symbols


def _is_known(symbol: Symbol, tex: str) -> bool:
    if symbol.base == "e":
        return tex[symbol.start + 1 : symbol.end].lstrip().startswith("^")
    return symbol.base in _GROWTH and _PARENTHESIS.match(tex, symbol.end) is not None


def _transposes(symbols: Sequence[Symbol], tex: str) -> Iterator[int]:
    """Each `T` that is the whole exponent of a letter, or of what is in brackets."""
    of_letters = {each.above_symbols[0].start for each in symbols if len(each.above_symbols) == 1}
    for symbol in symbols:
        before = tex[: symbol.start]
        raised = _RAISED.search(before) if tex[symbol.start : symbol.end] == "T" else None
        if not raised or not _ends(raised[0], tex[symbol.end :].lstrip()):
            continue
        if symbol.start in of_letters or _GROUP.search(before[: raised.start()]):
            yield symbol.start


def _ends(opening: str, after: str) -> bool:
    """Whether nothing else stands in an exponent, and no lower bound behind it."""
    return after.startswith("}") if "{" in opening else not after.startswith("_")


def _differentials(symbols: Sequence[Symbol], tex: str) -> Iterator[int]:
    """Each `d` right before a symbol, one for every integral that began before it."""
    begun = [sign.start() for sign in _INTEGRAL.finditer(tex) for _ in range(1 + len(sign[1]))]
    starts, ended = {each.start for each in symbols}, 0
    for symbol in sorted(symbols, key=lambda each: each.start):
        blank = _BLANK.match(tex, symbol.end)
        follows = symbol.base == "d" and not symbol.below and blank is not None and blank.end() in starts
        if follows and ended < bisect_left(begun, symbol.start):
            ended += 1
            yield symbol.start
