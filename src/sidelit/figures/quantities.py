"""# Quantities

> Numbers of a recording as a reader wants them: rounded, with their unit, the same in every language.
"""

from __future__ import annotations

from collections.abc import Callable

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


def percent(share: float, digits: int = 2) -> str:
    """A share of one as a percentage."""
    return f"{number(share * 100, digits)}{THIN}%"


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
