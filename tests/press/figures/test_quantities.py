"""Numbers as the figures print them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidelit.figures import words


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (7, "7"),
        (1234, "1234"),
        (65504, "65,504"),
        (123_456, "123,000"),
        (0.30000000000000004, "0.3"),
        (2.666, "2.67"),
        (999.6, "1,000"),
        (-0.5, "−0.5"),
        (3.4028e38, "3.4·10³⁸"),
        (5.96e-8, "5.96·10⁻⁸"),
    ],
)
def test_a_number_is_rounded(value: float, said: str) -> None:
    assert words.number(value) == said


@pytest.mark.parametrize(
    ("value", "binary", "said"),
    [
        (512, False, "512\u202fB"),
        (1500, False, "1.5\u202fkB"),
        (999_999, False, "1\u202fMB"),
        (120e9, False, "120\u202fGB"),
        (1536, True, "1.5\u202fKiB"),
    ],
)
def test_bytes_have_the_prefix_that_leaves_few_digits(value: float, binary: bool, said: str) -> None:
    assert words.size(value, binary=binary) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(2.5, "2.5\u202fs"), (0.0123, "12.3\u202fms"), (4e-6, "4\u202fµs"), (3e-9, "3\u202fns")],
)
def test_a_time_has_the_unit_that_suits_it(seconds: float, said: str) -> None:
    assert words.duration(seconds) == said


def test_powers_shares_and_columns() -> None:
    assert words.power(2, -14) == "2⁻¹⁴"
    assert words.percent(0.0333) == "3.3%"
    assert words.fixed(1234.5, 2) == "1,234.50"


@given(st.floats(-1e15, 1e15))
def test_what_is_printed_is_near_the_number(value: float) -> None:
    text = words.number(value).replace(",", "").replace("−", "-")
    mantissa, _, power = text.partition("·10")
    exponent = int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or 0)
    assert float(mantissa) * 10.0**exponent == pytest.approx(value, rel=0.006)
