"""The formats: their fields, their range, the steps between their numbers, and one tenth in each of them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from shardbook.precision.formats import BF16, E4M3FN, E5M2, FP16, FP32, Format

TENTH = Fraction(1, 10)


def record() -> Any:
    """The formats that a training step stores numbers in, the widest first."""
    return [described(form) for form in (FP32, BF16, FP16, E5M2, E4M3FN)]


def described(form: Format) -> dict[str, Any]:
    """A format, its bounds as numbers and as powers of two."""
    pattern = form.encode(TENTH)
    stored = form.decode(pattern)
    bounds = {
        "largest": form.largest,
        "smallest_normal": form.smallest_normal,
        "smallest": form.smallest_subnormal,
        "epsilon": form.epsilon,
    }
    return {
        "name": form.name,
        "exponent_bits": form.exponent_bits,
        "mantissa_bits": form.mantissa_bits,
        **bounds,
        "powers": {key: math.log2(value) for key, value in bounds.items()},
        "tenth": {
            "bits": f"{pattern:0{form.bits}b}",
            "stored": stored,
            "relative_error": float(abs(Fraction(stored) / TENTH - 1)),
        },
    }
