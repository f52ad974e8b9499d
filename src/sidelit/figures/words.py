"""# Numbers and words of a drawing

> Quantities are rounded the same in every language, and words are measured before they are set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from unicodedata import east_asian_width

from markdown_it.token import Token

from sidelit.errors import SidelitError
from sidelit.text import markup

# ## Quantities
#
# > Numbers of a recording as a reader wants them: rounded, with their unit, the same in every language.


THIN = "\u202f"
PREFIXES = ("", "k", "M", "G", "T", "P")
BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
# Up to here each digit of a whole number is written.
WHOLE = 100_000
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 3) -> str:
    """A number with so many digits that count.

    A whole number below 100,000 is written whole, and what is very large or very small with a power of ten.
    """
    if value == int(value) and abs(value) < WHOLE:
        return _signed(f"{int(value):,}" if abs(value) >= 10_000 else f"{int(value)}")
    if not 1e-4 <= abs(value) < 1e7:
        mantissa, _, raised = f"{value:.{digits - 1}e}".partition("e")
        return f"{_signed(_bare(mantissa))}·{power(10, int(raised))}"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    rounded = round(value, digits - 1 - exponent)
    return _signed(_bare(f"{rounded:,.{max(0, digits - 1 - exponent)}f}"))


def scaled(unit: float, digits: int = 3) -> Callable[[float], str]:
    """Writes numbers in a unit that the axis names: `scaled(1e9)` for billions."""
    return lambda value: number(value / unit, digits)


def fixed(value: float, places: int = 1) -> str:
    """A number with so many places behind the point, for a column in which the points stand in line."""
    return _signed(f"{value:,.{places}f}")


def size(value: float, unit: str = "B", digits: int = 3, binary: bool = False) -> str:
    """A number of bytes, or of another unit, with the prefix that leaves one to three digits."""
    step, prefixes = (1024, BINARY) if binary else (1000, PREFIXES)
    rank = 0
    # What would be rounded up to the next prefix has it: 999,999 bytes are 1 MB, and not 1000 kB.
    while rank + 1 < len(prefixes) and float(f"{abs(value):.{digits}g}") >= step:
        value, rank = value / step, rank + 1
    return f"{number(value, digits)}{THIN}{prefixes[rank]}{unit}"


def count(value: float, names: Sequence[tuple[float, str]] = (), digits: int = 3) -> str:
    """A large number as a language says it: 7.5 billion, 75億. `names` are its units, the largest first."""
    for unit, name in names:
        if abs(value) >= unit:
            return f"{number(value / unit, digits)}{name}"
    return number(value, digits)


def percent(share: float, digits: int = 2) -> str:
    """A share of one as a percentage."""
    return f"{number(share * 100, digits)}%"


def power(base: float, exponent: int) -> str:
    """A power as it is written: 2⁻¹⁴."""
    return f"{base:g}{str(exponent).translate(_RAISED)}"


def duration(seconds: float, digits: int = 3) -> str:
    """A time in the unit that suits it."""
    for unit, length in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= length:
            return f"{number(seconds / length, digits)}{THIN}{unit}"
    return f"{number(seconds / 1e-9, digits)}{THIN}ns"


def _bare(text: str) -> str:
    """Without zeros behind the point."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def _signed(text: str) -> str:
    return text.replace("-", "\u2212")


# ## Words in a drawing
#
# > A drawing has no lines that break by themselves: what is written in it is measured and broken here.
#
# A sentence of a drawing is a row of runs, words and code. Its width is estimated from the classes of its
# letters, a little too wide on purpose; the tests of the pages measure in a browser what really came out.


# A blank that a value is filled into. In a formula a brace follows a letter, a digit, `_` or `^`.
BLANK = re.compile(r"(?<![A-Za-z0-9_^}])\{(\w+)\}")
# Widths in a sans serif, in parts of its size; every other letter is as wide as an average one.
_WIDTHS = {"narrow": ("iljtfrI.,:;'’|!()[]{} -·", 0.34), "wide": ("mwMWQO@%→—＝", 0.86)}
_AVERAGE, _CAPITAL, _IDEOGRAPH, _CODE = 0.53, 0.62, 1.0, 0.56
# What no line begins with in Japanese and Chinese, and what none ends with.
_NOT_FIRST = "、。，．！？：；）」』”’】ーゃゅょっャュョッ々"
_NOT_LAST = "（「『“‘【"


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of words or of code."""

    text: str
    code: bool = False

    @property
    def width(self) -> float:
        """In parts of the size of the letters."""
        return sum(map(_width, self.text)) if not self.code else _CODE * len(self.text)


@dataclass(frozen=True, slots=True)
class Said:
    """Something that may stand in a drawing: a word of the catalogue, a quantity, or code from the data.

    `lang` is set where it is not in the language of the page.
    """

    pieces: tuple[Run, ...]
    lang: str | None = None

    def __str__(self) -> str:
        return "".join(run.text for run in self.pieces)

    @property
    def width(self) -> float:
        """In parts of the size of the letters, estimated."""
        return sum(run.width for run in self.pieces)

    def markdown(self) -> str:
        """As it is put into the blank of a caption."""
        return "".join(f"`{run.text}`" if run.code else run.text for run in self.pieces)


def said(inline: Token, lang: str | None = None) -> Said:
    """The words of an inline token. Words and code are all that a drawing can hold.

    Raises `SidelitError` for any other markup, with its line.
    """
    runs = []
    for child in inline.children or ():
        if child.type not in ("text", "code_inline"):
            what = f"{child.type.removesuffix('_open')!r} has no place among the words of a drawing"
            path, line = markup.path_of(inline), markup.line_of(inline)
            raise SidelitError(what, path=path, line=line, hint="only words and `code` have")
        if child.content:
            runs.append(Run(child.content, child.type == "code_inline"))
    return Said(tuple(runs), lang)


def code(text: object) -> Said:
    """A name from the data, set as code; it is the same in every language."""
    return Said((Run(str(text), code=True),))


def of(value: object) -> Said:
    """What a template gives: words and quantities as they are, a bare number rounded.

    Raises `TypeError` for a string that comes from no catalogue.
    """
    if isinstance(value, Said):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return plain(number(value))
    # To print what is undefined says what it was.
    shown = str(value)
    raise TypeError(f"{shown!r} comes from no catalogue: write word(…), code(…) or a quantity")


def plain(text: object) -> Said:
    """A quantity that is already written out."""
    return Said((Run(str(text)),))


def lines(what: Said, width: float | None) -> tuple[tuple[Run, ...], ...]:
    """Break it into lines that are at most so wide, in parts of the size of the letters.

    A word that is wider than that stands alone on a line.
    """
    if width is None or what.width <= width:
        return (what.pieces,)
    broken: list[list[Run]] = [[]]
    filled = 0.0
    for part in _atoms(what.pieces):
        if broken[-1] and filled + Run(part.text.rstrip(), part.code).width > width:
            broken.append([])
            filled = 0.0
        broken[-1].append(part)
        filled += part.width
    return tuple(_joined(line) for line in broken)


def _atoms(runs: Iterable[Run]) -> list[Run]:
    """What a line may break between: words with the space behind them, code, single ideographs."""
    atoms: list[Run] = []
    for run in runs:
        parts = [run.text] if run.code else re.findall(r"[^\s\u3000-\u9fff\uff00-\uffef]+\s*|\s+|.", run.text)
        for part in parts:
            before = atoms[-1] if atoms else None
            clings = part[0] in _NOT_FIRST or part.isspace() or re.match(r"[.,;:!?)]", part)
            if before and not run.code and (clings or before.text[-1] in _NOT_LAST) and not before.code:
                atoms[-1] = Run(before.text + part)
            else:
                atoms.append(Run(part, run.code))
    return atoms


def _joined(line: Sequence[Run]) -> tuple[Run, ...]:
    joined: list[Run] = []
    for run in line:
        if joined and joined[-1].code == run.code:
            joined[-1] = Run(joined[-1].text + run.text, run.code)
        else:
            joined.append(run)
    joined[-1] = Run(joined[-1].text.rstrip(), joined[-1].code)
    return tuple(joined)


def _width(letter: str) -> float:
    if east_asian_width(letter) in "WF":
        return _IDEOGRAPH
    for letters, width in _WIDTHS.values():
        if letter in letters:
            return width
    return _CAPITAL if letter.isupper() else _AVERAGE
