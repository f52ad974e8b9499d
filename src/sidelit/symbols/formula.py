r"""# The symbols of a formula

> TeX is read as far as needed to tell its letters from its commands, and no further.

A symbol is a letter with what is written to it below: $N_d$ is one symbol and not two, and so is $\hat g$. An
exponent is a symbol of its own. Words in `\text` or `\mathrm` are no symbols, and neither is what `\sum_i`
counts with: it means something inside that formula only.

KaTeX has judged the formula before. So nothing here complains: what cannot be made out has no symbols.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# What is quoted between two equal signs is one token, whatever it holds.
_QUOTED = r"\\verb\*(?P<starred>.).*?(?P=starred)|\\verb(?P<plain>[^*A-Za-z]).*?(?P=plain)"
_TOKEN = re.compile(_QUOTED + r"|\\\\(?:\s*\[[^\]]*\])?|\\[A-Za-z]+\*?|\\.|.", re.DOTALL)


def _commands(names: str) -> frozenset[str]:
    return frozenset(f"\\{name}" for name in names.split())


# Commands whose first argument holds words, or a length, or a name, or an address.
_WORDS = _commands(
    "text textbf textit textrm textsf texttt mathrm operatorname operatorname* mbox hbox begin end tag tag*"
    " hspace hspace* vspace rule color textcolor colorbox mathtt mathop phantom vphantom hphantom"
    " href url"
)
# Commands that make another letter of a letter.
_STYLES = _commands(
    "mathbf mathcal mathbb mathfrak mathsf mathit mathscr boldsymbol bm hat widehat tilde widetilde bar"
    " overline vec dot ddot check breve acute grave"
)
_LETTERS = _commands(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho"
    " sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi"
    " Psi Omega ell"
)
# What these count with is written below them.
_COUNTING = _commands("sum prod max min sup inf lim coprod bigcup bigcap bigoplus argmax argmin")
_BLANK = _commands(", ; : ! quad qquad") | {"~"}


@dataclass(frozen=True, slots=True)
class Symbol:
    """A letter of a formula with what is below it: `base` is `N`, `below` is `d`.

    `start` and `end` are its place in the formula, exponent included.
    """

    base: str
    below: str
    start: int
    end: int
    below_symbols: tuple[Symbol, ...] = ()
    above_symbols: tuple[Symbol, ...] = ()

    @property
    def name(self) -> str:
        """The symbol as TeX, written in one way: `N_d`, `P_{k+1}`."""
        if not self.below:
            return self.base
        single = len(_tokens(self.below)) == 1
        return f"{self.base}_{self.below}" if single else f"{self.base}_{{{self.below}}}"


@dataclass(frozen=True, slots=True)
class Formula:
    """The symbols of a formula in their order, and the letters that it counts with."""

    symbols: tuple[Symbol, ...]
    counting: frozenset[str]


def read(tex: str) -> Formula:
    """Find the symbols of a formula."""
    reader = _Reader(tex)
    return Formula(tuple(reader.group()), frozenset(reader.counting))


@dataclass(slots=True)
class _Reader:
    tex: str
    tokens: Sequence[re.Match[str]] = ()
    at: int = 0
    counting: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tokens = tuple(_TOKEN.finditer(self.tex))

    @property
    def now(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    @property
    def place(self) -> int:
        """Where the token that was read last ends."""
        return self.tokens[self.at - 1].end() if self.at else 0

    def group(self) -> Iterator[Symbol]:
        """The symbols up to the brace that closes this group, or the end."""
        while self.now and self.now != "}":
            yield from self.item()

    def item(self) -> Iterator[Symbol]:
        token, start = self.now, self.tokens[self.at].start()
        self.at += 1
        if token in _WORDS:
            self.skip()
            below, above = self.scripts()
            yield from (*below[1], *above)
        elif token in _COUNTING:
            (_, counted), above = self.scripts()
            self.counting.update(each.base for each in counted[:1])
            yield from (*counted, *above)
        elif token == "{":
            yield from self.group()
            self.at += 1
        elif token in _STYLES:
            yield from self.styled(token, start)
        elif token in _LETTERS or (len(token) == 1 and token.isalpha()):
            yield self.symbol(token, start)
        elif token in ("_", "^"):
            yield from self.argument()[1]

    def styled(self, command: str, start: int) -> Iterator[Symbol]:
        """`\\hat g` is a letter of its own; `\\overline{a + b}` is a line above two."""
        letter, inside = self.argument()
        if len(inside) == 1 and inside[0].base == letter:
            yield self.symbol(f"{command}{{{letter}}}", start)
        else:
            yield from inside

    def symbol(self, base: str, start: int) -> Symbol:
        (below, below_symbols), above = self.scripts()
        return Symbol(base, below, start, self.place, below_symbols, above)

    def scripts(self) -> tuple[tuple[str, tuple[Symbol, ...]], tuple[Symbol, ...]]:
        """What is written below and above the letter that was read last."""
        below: tuple[str, tuple[Symbol, ...]] = ("", ())
        above: tuple[Symbol, ...] = ()
        while True:
            mark, before = self.peek(), self.at
            if mark == "_" and not below[0]:
                self.step("_")
                below = self.argument()
            elif mark in ("^", "'") and mark:
                self.step(mark)
                above += self.argument()[1] if mark == "^" else ()
            else:
                self.at = before
                return below, above

    def argument(self) -> tuple[str, tuple[Symbol, ...]]:
        """The text and the symbols of what a command or a script takes: a group, or one token."""
        self.blanks()
        if self.now == "{":
            start = self.place + 1
            self.at += 1
            inside = tuple(self.group())
            end = self.tokens[self.at].start() if self.now else len(self.tex)
            self.at += 1
            return _plain(self.tex[start:end]), inside
        start, first = self.at, self.now
        if not first or first == "}":
            return "", ()
        if first in _WORDS or first in _STYLES:
            inside = tuple(self.item())
            return _plain(self.tex[self.tokens[start].start() : self.place]), inside
        place = self.tokens[start].start()
        self.at += 1
        letter = first in _LETTERS or (len(first) == 1 and first.isalpha())
        return first, (Symbol(first, "", place, self.place),) * letter

    def skip(self) -> None:
        """Pass over an argument that holds no symbols."""
        self.blanks()
        depth = 0
        while self.now:
            depth += {"{": 1, "}": -1}.get(self.now, 0)
            self.at += 1
            if depth <= 0:
                return

    def peek(self) -> str:
        """The next token that is no blank."""
        at = self.at
        while at < len(self.tokens) and self.tokens[at][0].isspace():
            at += 1
        return self.tokens[at][0] if at < len(self.tokens) else ""

    def step(self, token: str) -> None:
        self.blanks()
        assert self.now == token
        self.at += 1

    def blanks(self) -> None:
        while self.now.isspace():
            self.at += 1


def _plain(tex: str) -> str:
    """What is below a letter, without blanks that mean nothing and braces around a single token."""
    kept = [token for token in _tokens(tex) if not token.isspace() and token not in _BLANK]
    # A command and the letter behind it must stay two.
    joined = ""
    for token in kept:
        joined += " " * (bool(re.search(r"\\[A-Za-z]+$", joined)) and token.isalpha()) + token
    return joined


def _tokens(tex: str) -> list[str]:
    return [token[0] for token in _TOKEN.finditer(tex)]


# ## Letters that need no explanation
#
# > Some letters mean the same in every formula, as long as they stand where custom has them.
#
# $e$ below an exponent is Euler's number, $d$ ends an integral, and $T$ alone in an exponent is the sign of a
# transpose. $O$, $\Theta$ and $\Omega$ before a parenthesis compare growth, and $\mathbb R$ is a set of
# numbers. Anywhere else the same letters are symbols like all others.


_SETS = frozenset(rf"\mathbb{{{letter}}}" for letter in "NZQRC")
_GROWTH = frozenset(("O", r"\mathcal{O}", r"\Theta", r"\Omega"))
_PARENTHESIS = re.compile(r"(?:\s|\\!)*(?:\\(?:left|[bB]igg?l?)(?![A-Za-z]))?\s*\(")
_INTEGRAL = re.compile(r"\\o?(i{0,2})int(?![A-Za-z])")
_SPACE = re.compile(r"\s*")
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
        blank = _SPACE.match(tex, symbol.end)
        follows = symbol.base == "d" and not symbol.below and blank is not None and blank.end() in starts
        if follows and ended < bisect_left(begun, symbol.start):
            ended += 1
            yield symbol.start
