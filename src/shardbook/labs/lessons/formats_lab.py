"""The checks of lab 7: the value of a pattern, the step between two numbers, and the rule of a loss scale."""

from __future__ import annotations

from collections.abc import Callable

from shardbook.labs.lessons.returned import number
from shardbook.labs.notebook import check, expect
from shardbook.labs.words import tell
from shardbook.precision.formats import BF16, FP16, Format

__all__ = ["next_scale", "step_at", "value_of"]


@check
def value_of(given: Callable[[int, int, int], float]) -> str:
    """The number of a pattern, in two formats."""
    cases = [
        (0x3C00, FP16, tell("The mantissa is 0 and the exponent equals the bias b.")),
        (0x4000, FP16, tell("The exponent is one larger than the bias b.")),
        (
            0x3E00,
            FP16,
            tell(
                "The first bit of the mantissa counts one half, beside the leading 1."
            ),
        ),
        (0xBE00, FP16, tell("The sign is the first of the 16 bits.")),
        (
            0x3F80,
            BF16,
            tell("BF16 has 8 bits for the exponent: are both arguments used?"),
        ),
        (0x40C0, BF16, tell("How many bits does the mantissa of BF16 have?")),
        (
            0x0001,
            FP16,
            tell(
                "The exponent is 0: the leading 1 is missing, and the power is 1 - b, as for "
                "the smallest normal numbers."
            ),
        ),
        (
            0x8200,
            FP16,
            tell("A subnormal number can be negative, too: use its sign."),
        ),
        (0x0000, FP16, tell("All bits 0 are the number 0.")),
    ]
    for pattern, form, look in cases:
        found = number(
            "value_of", given(pattern, form.exponent_bits, form.mantissa_bits)
        )
        right = form.decode(pattern)
        expect(
            found == right,
            tell(
                "0x{pattern:04X} in {name} is {right:g}, and not {found:g}.",
                pattern=pattern,
                name=form.name.upper(),
                right=right,
                found=found,
            ),
            look=look,
        )
    return tell("Normal and subnormal numbers of both formats are right.")


@check
def step_at(given: Callable[[float, int, int], float]) -> str:
    """The unit in the last place."""
    cases = [
        (1.0, BF16, tell("From 1 to 2 the mantissa makes 128 steps in BF16.")),
        (
            1.5,
            BF16,
            tell("1.5 lies between 1 and 2, where all steps are equal."),
        ),
        (
            0.75,
            BF16,
            tell("0.75 lies between 1/2 and 1, where the steps are half as long."),
        ),
        (256.0, BF16, tell("From 256 to 512 the steps are as long as 256 / 128.")),
        (2048.0, FP16, tell("FP16 has 10 bits for the mantissa: is it used?")),
        (
            2.0**-14,
            FP16,
            tell("The smallest normal number is 2 to the power of 1 - b."),
        ),
        (
            2.0**-20,
            FP16,
            tell(
                "Below the smallest normal number the steps are as long as right above it."
            ),
        ),
    ]
    for x, form, look in cases:
        found = number("step_at", given(x, form.exponent_bits, form.mantissa_bits))
        right = next_after(x, form) - x
        expect(
            found == right,
            tell(
                "The {name} number after {x:g} is {right:g} further on, and not {found:g}.",
                name=form.name.upper(),
                x=x,
                right=right,
                found=found,
            ),
            look=look,
        )
    return tell(
        "The next number is right in both formats, even among the subnormal ones."
    )


def next_after(x: float, form: Format) -> float:
    """The next larger number: positive patterns are in the order of their values."""
    return form.decode(form.encode(x) + 1)


@check
def next_scale(
    given: Callable[[float, int, bool, int], tuple[float, int]],
) -> str:
    """Half after an overflow, double after calm steps."""
    cases = [
        (
            (1024.0, 3, True, 10),
            (512.0, 0),
            tell("After an overflow the scale is halved, and the count begins anew."),
        ),
        (
            (1024.0, 3, False, 10),
            (1024.0, 4),
            tell("A calm step leaves the scale as it is, and counts one more."),
        ),
        (
            (1024.0, 9, False, 10),
            (2048.0, 0),
            tell(
                "This is the tenth calm step in a row, so the scale is doubled and the count "
                "begins anew."
            ),
        ),
        (
            (1024.0, 9, True, 10),
            (512.0, 0),
            tell("An overflow comes first, whatever was counted before."),
        ),
        (
            (64.0, 1, False, 2),
            (128.0, 0),
            tell("Does the function use the interval that it is given?"),
        ),
    ]
    for arguments, right, look in cases:
        found = given(*arguments)
        expect(
            isinstance(found, tuple | list) and len(found) == 2,
            tell("next_scale returned {found!r}.", found=found),
            look=tell("Return two numbers: the scale and the count."),
        )
        numbers = tuple(number("next_scale", each) for each in found)
        scale, calm, overflow, interval = arguments
        case = tell("an overflow") if overflow else tell("no overflow")
        expect(
            numbers == right,
            tell(
                "Scale {scale:g}, {calm} calm steps, interval {interval}, {case}: you return "
                "{found}, and not {right}.",
                scale=scale,
                calm=calm,
                interval=interval,
                case=case,
                found=numbers,
                right=right,
            ),
            look=look,
        )
    return tell("Half after an overflow, double after a calm interval.")
