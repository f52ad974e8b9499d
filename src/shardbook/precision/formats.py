r"""# Floating-point formats

> The exponent bits of a format decide its range, and the mantissa bits its digits.

A floating-point number has three fields: a sign $s$, an exponent $e$ and a mantissa
$m$. (IEEE 754 calls the mantissa the *trailing significand field*.) The mantissa has
$M$ bits, the exponent $E$ bits. Together they represent the number

$$x = (-1)^s \cdot \Bigl(1 + \frac{m}{2^M}\Bigr) \cdot 2^{e - b}, \qquad b = 2^{E-1} - 1$$

Take 6 as an example: it lies between $2^2$ and $2^3$, so $e - b = 2$, and $6 = 1.5
\cdot 2^2$ makes $m/2^M = 0.5$. In general the exponent selects two neighbouring powers
of two, and the mantissa divides the range between them into $2^M$ equal steps. So the
exponent bits decide the *range* of a format, and the mantissa bits decide how many
*digits* it has. An exponent field of all zeros is reserved for 0 and the [subnormal
numbers](#Format.decode). In most formats a field of all ones is reserved for infinity
and NaN.

| format | $E$ | $M$ | largest | smallest normal | smallest | epsilon |
|---|---|---|---|---|---|---|
| fp64 | 11 | 52 | ${2^{1024}-2^{971}}$ | $2^{-1022}$ | $2^{-1074}$ | $2^{-52}$ |
| fp32 | 8 | 23 | ${2^{128}-2^{104}}$ | $2^{-126}$ | $2^{-149}$ | $2^{-23}$ |
| tf32 | 8 | 10 | ${2^{128}-2^{117}}$ | $2^{-126}$ | $2^{-136}$ | $2^{-10}$ |
| fp16 | 5 | 10 | ${2^{16}-2^{5}}$ | $2^{-14}$ | $2^{-24}$ | $2^{-10}$ |
| bf16 | 8 | 7 | ${2^{128}-2^{120}}$ | $2^{-126}$ | $2^{-133}$ | $2^{-7}$ |
| e4m3fn | 4 | 3 | ${2^{9}-2^{6}}$ | $2^{-6}$ | $2^{-9}$ | $2^{-3}$ |
| e5m2 | 5 | 2 | ${2^{16}-2^{13}}$ | $2^{-14}$ | $2^{-16}$ | $2^{-2}$ |

The number $\pi$ shows the digits. In decimal scientific notation it is $3.14 \cdot
10^0$, and in binary $1.1001001_2 \cdot 2^1$. FP64 stores it as 3.141592653589793, and
FP32 as 3.1415927. Between 2 and 4 the numbers of FP16 are $2^{-9}$ apart, and those of
BF16 $2^{-6}$. Both formats store $\pi$ as 3.140625, because the three digits that FP16
has more are zeros here.

IEEE 754, the standard of floating-point arithmetic, defines FP64, FP32 and FP16. The
other four formats are built like them, but are not part of it.

*Epsilon* is the step from 1 to the next number. The largest relative error of one
rounding is half of that; this half is called the *unit roundoff*. Formats with 8
exponent bits reach $3.4 \cdot 10^{38}$, FP16 reaches 65504, and the two formats of 8
bits reach 448 and 57344. BF16 is the first half of FP32, so it has the range of FP32,
but only about two decimal digits. [The next chapter](rounding.py) shows what this does
to training.

No tensor is stored in TF32. In a matrix product a GPU may read only these 19 bits of
FP32 numbers. In PyTorch this is on for convolutions, and off for matrix products unless
`torch.set_float32_matmul_precision("high")` allows it. A GPU's conversion to TF32
rounds ties away from zero, while the code of this chapter rounds ties to even in each
format.

With 8 bits the range is so small that a tensor needs a scale of its own: it is divided
by its largest value over 448, stored in E4M3FN, and multiplied back after the product.
One scale for each tensor, or for each small block of a tensor, is the usual choice.
This book computes in no format of 8 bits.

This command prints a number in every format:

```sh
python -m shardbook.precision.formats 0.1
```

:notation $x$: the number that a pattern of bits stands for
:notation $s$: `sign`, 1 for a negative number
:notation $e$: `exponent`, the exponent field, read as a whole number
:notation $m$: `mantissa`, the mantissa field, read as a whole number
:notation $E$: `Format.exponent_bits`, the number of bits of the exponent
:notation $M$: `Format.mantissa_bits`, the number of bits of the mantissa
:notation $b$: `Format.bias`, the number that is subtracted from the exponent field
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from shardbook.command import Mistake, Parser, complain
from shardbook.foundations.torch_private import E4M3FN_SATURATES

__all__ = ["FORMATS", "Format"]


@dataclass(frozen=True, slots=True)
class Format:
    """A floating-point format, computed exactly with Python's whole numbers and
    fractions.

    A *pattern* is a number's bits, read as one whole number from 0 to `2**bits - 1`.
    Values are returned as `float`, which is FP64 and holds the values of every format
    here.

    :param name: the name in tables
    :param exponent_bits: $E$
    :param mantissa_bits: $M$
    :param infinite: whether the format has infinities; without them the largest
        exponent is used for finite numbers, too
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    infinite: bool = True

    @property
    def bits(self) -> int:
        """The size of a number in bits, including the sign."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """The offset of the exponent field: half of the exponents belong to numbers
        below 2, so most numbers have an inverse in the format.
        """
        return (1 << self.exponent_bits - 1) - 1

    def decode(self, pattern: int) -> float:
        r"""Compute the value of a pattern.

        If the exponent field is 0, the leading 1 is missing: $x = (-1)^s \cdot
        \frac{m}{2^M} \cdot 2^{1 - b}$. Such numbers are *subnormal*. The smaller a
        subnormal number is, the fewer digits it has; the smallest one has a single bit.
        Without subnormal numbers, the difference of two unequal small numbers could be
        zero.

        >>> [BF16.decode(pattern) for pattern in (0x3F80, 0x3F81, 0x0001, 0xFF80)]
        [1.0, 1.0078125, 9.183549615799121e-41, -inf]
        """
        sign, exponent, mantissa = self.fields(pattern)
        factor, top = -1 if sign else 1, (1 << self.exponent_bits) - 1
        if exponent == top and self.infinite:
            return factor * (math.nan if mantissa else math.inf)
        # E4M3FN has one NaN for each sign, and uses the other patterns of this exponent
        # for finite numbers.
        if exponent == top and mantissa == (1 << self.mantissa_bits) - 1:
            return math.nan
        if exponent:
            mantissa += 1 << self.mantissa_bits
        power = max(exponent, 1) - self.bias - self.mantissa_bits
        return math.copysign(math.ldexp(mantissa, power), factor)

    def encode(self, value: float | Fraction) -> int:
        """Compute the pattern of the nearest number. Between two equally near numbers,
        the one whose last bit is 0 is chosen.

        The nearest number is a multiple of the spacing around the value, and Python's
        `round` of a fraction rounds ties to even. If ties always went up, a long sum
        would drift upwards.

        Positive patterns are in the same order as their values. So if rounding carries
        over into the next power of two, the sum below increases the exponent without
        further work.

        >>> FP16.decode(FP16.encode(Fraction(1, 10)))
        0.0999755859375
        >>> [form.decode(form.encode(math.pi)) for form in (FP32, FP16, BF16, E5M2)]
        [3.1415927410125732, 3.140625, 3.140625, 3.0]
        """
        if isinstance(value, float) and math.isnan(value):
            return self.quiet_nan
        pattern = self.beyond
        if not (isinstance(value, float) and math.isinf(value)):
            size = abs(Fraction(value))
            exponent = self.exponent_of(size)
            steps = round(size / step_of(exponent, self.mantissa_bits))
            # The leading 1 of a normal number contributes $2^M$ steps. Adding them to
            # the pattern raises the exponent field by one, so the field is first set
            # one too low.
            below = (exponent + self.bias - 1) * (1 << self.mantissa_bits)
            pattern = min(below + steps, pattern)
        # Minus zero has a pattern of its own, and is not less than zero.
        negative = value < 0 or (value == 0 and math.copysign(1, value) < 0)
        return pattern + negative * (1 << self.bits - 1)

    def exponent_of(self, size: Fraction) -> int:
        """The exponent of the power of two at or below a number, and at least that of
        the smallest normal number.
        """
        if not size:
            return 1 - self.bias
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        if size < step_of(exponent, 0):
            exponent -= 1
        return max(exponent, 1 - self.bias)

    def fields(self, pattern: int) -> tuple[int, int, int]:
        """Split a pattern into sign, exponent and mantissa, each a whole number.

        :raises ValueError: if the pattern is negative or has more bits than the format
        """
        if not 0 <= pattern < (1 << self.bits):
            raise ValueError(
                f"{pattern} is no pattern of {self.name}; "
                f"choose from 0 to {(1 << self.bits) - 1}"
            )
        rest, mantissa = divmod(pattern, 1 << self.mantissa_bits)
        sign, exponent = divmod(rest, 1 << self.exponent_bits)
        return sign, exponent, mantissa

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return self.decode(self.largest_pattern)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with all digits; smaller numbers are subnormal."""
        return self.decode(1 << self.mantissa_bits)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number: a mantissa of one bit."""
        return self.decode(1)

    @property
    def epsilon(self) -> float:
        """The step from 1 to the next number. Half of this step bounds the relative
        error of a normal result.
        """
        return self.spacing(1.0)

    def spacing(self, value: float) -> float:
        """The step from one number to the next around `value`, which must be finite.

        >>> FP16.spacing(2048.0), BF16.spacing(256.0)
        (2.0, 2.0)
        """
        size = abs(Fraction(value))
        return float(step_of(self.exponent_of(size), self.mantissa_bits))

    # sidelit: depth Numbers too large or too small for the format, and NaN.

    @property
    def beyond(self) -> int:
        """The pattern for values that are too large: infinity, which follows the
        largest number.

        E4M3FN has no infinity. From version 2.13 on, PyTorch *saturates* when it
        converts to this format: the result is the largest finite number, even for
        infinity. Older versions give NaN. E5M2 has infinities, and a conversion to it
        does not saturate.
        """
        if not (self.infinite or E4M3FN_SATURATES):
            return self.quiet_nan
        return self.largest_pattern + self.infinite

    @property
    def largest_pattern(self) -> int:
        """The pattern of the largest finite number: all bits 1, minus the patterns of
        infinity and NaN.
        """
        lost = (1 << self.mantissa_bits) if self.infinite else 1
        return (1 << self.bits - 1) - 1 - lost

    @property
    def quiet_nan(self) -> int:
        """The pattern of a quiet NaN, which processors produce and pass on without an
        exception: the mantissa's first bit is 1.
        """
        if not self.infinite:
            return (1 << self.bits - 1) - 1
        return self.largest_pattern + 1 + (1 << self.mantissa_bits - 1)

    @property
    def overflow(self) -> Fraction:
        """The threshold from which numbers become infinite, or saturate: half a step
        above the largest number.
        """
        largest = Fraction(self.largest)
        return largest + step_of(self.exponent_of(largest), self.mantissa_bits) / 2

    @property
    def underflow(self) -> Fraction:
        """The threshold down from which numbers become zero: half of the smallest
        number, where the tie goes to zero.
        """
        return Fraction(self.smallest_subnormal) / 2


def step_of(exponent: int, mantissa_bits: int) -> Fraction:
    """The spacing of numbers from `2**exponent` to the next power of two."""
    return Fraction(2) ** (exponent - mantissa_bits)


FP64 = Format("fp64", 11, 52)
FP32 = Format("fp32", 8, 23)
TF32 = Format("tf32", 8, 10)
FP16 = Format("fp16", 5, 10)
BF16 = Format("bf16", 8, 7)
E4M3FN = Format("e4m3fn", 4, 3, infinite=False)
E5M2 = Format("e5m2", 5, 2)
FORMATS = (FP64, FP32, TF32, FP16, BF16, E4M3FN, E5M2)


def in_every_format(value: float | Fraction) -> str:
    """Make a table with a row for each format: the three fields, the stored value, and
    its relative error.
    """
    rows = [("format", "sign|exponent|mantissa", "stored", "relative error")]
    for form in FORMATS:
        pattern = form.encode(value)
        widths = (1, form.exponent_bits, form.mantissa_bits)
        fields = zip(form.fields(pattern), widths, strict=True)
        stored, error = form.decode(pattern), "-"
        if isinstance(value, Fraction) and math.isfinite(stored):
            error = f"{float(abs(Fraction(stored) / value - 1)):.2g}"
        bits = "|".join(f"{field:0{width}b}" for field, width in fields)
        rows.append((form.name, bits, f"{stored:.17g}", error))
    columns = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, columns)).rstrip() for row in rows)


# sidelit: depth The command line, and numbers that it cannot read.


def main(arguments: Sequence[str] | None = None) -> int:
    """Print numbers in every format.

    :param arguments: the numbers, `sys.argv` if left out
    :returns: [the exit code](command.py)
    """
    parser = Parser(
        prog="shardbook.precision.formats",
        description="Print numbers bit by bit in every floating-point format.",
    )
    parser.add_argument("numbers", nargs="+", help="such as 0.1, -1e-5, inf or nan")
    texts = sys.argv[1:] if arguments is None else arguments
    # With a leading space, the parser does not read -1e-5 as an option.
    spaced = [text if text in ("-h", "--help") else f" {text}" for text in texts]
    try:
        numbers = [number(text.strip()) for text in parser.parse_args(spaced).numbers]
    except Mistake as mistake:
        return complain("shardbook.precision.formats", mistake)
    print("\n\n".join(map(in_every_format, numbers)))
    return 0


def number(text: str) -> float | Fraction:
    """Read a number exactly: 0.1 becomes one tenth, rather than the nearest FP64
    number.

    :raises Mistake: if the text is no number, or the number is far outside every format
    """
    try:
        exact = Decimal(text)
    except InvalidOperation:
        raise Mistake(f"{text!r} is no number; write it as 0.1 or 1e-5") from None
    # Infinity, NaN and minus zero cannot be fractions.
    if not exact.is_finite() or not exact:
        return math.nan if exact.is_nan() else float(exact)
    if abs(exact.adjusted()) > 999:
        raise Mistake(
            f"{text} is far outside of every format; stay within 1e-999 and 1e999"
        )
    return Fraction(exact)


if __name__ == "__main__":
    sys.exit(main())
