"""Formats bit by bit against torch's casts, what rounding does to training, and the command line."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from shardbook.foundations.torch_private import E4M3FN_SATURATES
from shardbook.precision import formats
from shardbook.precision.formats import BF16, E4M3FN, E5M2, FORMATS, FP16, FP32, FP64, TF32, Format
from tiers import rows
from warm import start

TORCH = {
    FP64: (torch.float64, torch.int64),
    FP32: (torch.float32, torch.int32),
    FP16: (torch.float16, torch.int16),
    BF16: (torch.bfloat16, torch.int16),
    E4M3FN: (torch.float8_e4m3fn, torch.uint8),
    E5M2: (torch.float8_e5m2, torch.uint8),
}
SMALL = [FP16, BF16, E4M3FN, E5M2]


def names(form: Format) -> str:
    return form.name


def stored(form: Format, patterns: list[int]) -> Tensor:
    """The tensor with these bits, in FP64."""
    dtype, whole = TORCH[form]
    half = 1 << form.bits - 1
    signed = [p - 2 * half if whole is not torch.uint8 and p >= half else p for p in patterns]
    return torch.tensor(signed, dtype=whole).view(dtype).double()


def cast(form: Format, values: list[float]) -> list[int]:
    """The bits after torch's cast from FP32, as it is made in training."""
    dtype, whole = TORCH[form]
    exact = torch.tensor(values, dtype=torch.float64)
    single = exact.float()
    assert torch.equal(single.double(), exact)
    return [p % (1 << form.bits) for p in single.to(dtype).view(whole).tolist()]


def same(a: Iterable[float], b: Iterable[float]) -> bool:
    """Equal as numbers, with zeros of the same sign and NaN equal to itself."""
    return [x.hex() for x in a] == [x.hex() for x in b]


# --- 8 and 16 bits: all of them ---


@pytest.mark.parametrize("form", SMALL, ids=names)
def test_every_pattern_is_decoded_as_torch_does(form: Format) -> None:
    patterns = list(range(1 << form.bits))
    assert same(map(form.decode, patterns), stored(form, patterns).tolist())


@pytest.mark.cases(now=2, ci=2)
@pytest.mark.parametrize("form", SMALL, ids=names)
def test_every_number_is_encoded_as_itself(form: Format) -> None:
    for pattern in range(1 << form.bits):
        value = form.decode(pattern)
        if math.isnan(value):
            assert form.encode(value) == form.quiet_nan
        else:
            assert form.encode(value) == pattern


@pytest.mark.cases(now=2, ci=2)
@pytest.mark.parametrize("form", rows(SMALL, now=[FP16, E4M3FN, E5M2]), ids=names)
def test_every_tie_and_what_lies_beside_it_is_rounded_as_torch_does(form: Format) -> None:
    """Between each number and the next: the middle, and the FP32 numbers on its two sides."""
    step = torch.tensor(2.0)
    top = [form.decode(pattern) for pattern in range(form.largest_pattern + 1)]
    ends = torch.tensor([*top, float(form.overflow) * 2 - top[-1]], dtype=torch.float64)
    middles = ((ends[:-1] + ends[1:]) / 2).float()
    # BF16 has the exponents of FP32, and the last middle is finite there, too.
    assert middles.isfinite().all()
    values = torch.cat([middles, middles.nextafter(step * 0), middles.nextafter(step * math.inf)])
    tried = torch.cat([values, -values]).double().tolist()
    assert [form.encode(value) for value in tried] == cast(form, tried)


@pytest.mark.parametrize("form", SMALL, ids=names)
def test_what_is_too_large_infinite_or_no_number(form: Format) -> None:
    for value in (torch.finfo(torch.float32).max, math.inf):
        assert [form.encode(value), form.encode(-value)] == cast(form, [value, -value])
    [nan] = stored(form, [form.quiet_nan]).tolist()
    assert math.isnan(nan)
    assert math.isnan(form.decode(form.encode(math.nan)))


def test_only_e4m3fn_saturates() -> None:
    ends = {form.name: form.decode(form.encode(math.inf)) for form in FORMATS}
    ending = ends.pop("e4m3fn")
    assert ending == 448.0 if E4M3FN_SATURATES else math.isnan(ending)
    assert set(ends.values()) == {math.inf}


# --- 32 and 64 bits: as many as hypothesis tries ---


@given(st.integers(0, (1 << 32) - 1))
@example(0x7F800001)
@example(0x807FFFFF)
def test_patterns_of_fp32(pattern: int) -> None:
    assert same([FP32.decode(pattern)], stored(FP32, [pattern]).tolist())


@given(st.integers(0, (1 << 64) - 1))
@example(1)
@example(0x000FFFFFFFFFFFFF)
@example(0x7FF0000000000001)
def test_patterns_of_fp64(pattern: int) -> None:
    value = FP64.decode(pattern)
    assert same([value], stored(FP64, [pattern]).tolist())
    assert math.isnan(value) or FP64.encode(value) == pattern


@given(st.floats())
@example(float(FP32.overflow))
@example(math.nextafter(float(FP32.overflow), 0))
@example(float(FP32.underflow))
@example(math.nextafter(float(FP32.underflow), 1))
@example(-0.0)
def test_fp64_is_rounded_to_fp32_as_torch_does(value: float) -> None:
    [there] = torch.tensor([value], dtype=torch.float64).float().view(torch.int32).tolist()
    here = FP32.encode(value)
    assert math.isnan(value) or here == there % (1 << 32)


@given(st.integers(0, (1 << 32) - 1))
@example(0x3F801000)
@example(0x3F803000)
@example(0x7F7FFFFF)
@example(0x00001000)
def test_tf32_is_fp32_without_its_last_13_bits(pattern: int) -> None:
    """Add half of the last bit that stays, less one if that bit is 0, and cut: on whole numbers."""
    value = FP32.decode(pattern)
    kept = (pattern >> 13) & 1
    rounded = (pattern + 0xFFF + kept) >> 13
    assert math.isnan(value) or TF32.encode(value) == rounded
    assert same([TF32.decode(pattern >> 13)], [FP32.decode(pattern >> 13 << 13)])


@pytest.mark.full
@given(st.fractions(), st.sampled_from(FORMATS))
@example(Fraction(1, 10), FP64)
def test_the_nearest_number_is_no_further_than_its_neighbours(value: Fraction, form: Format) -> None:
    pattern = form.encode(value)
    error = abs(Fraction(form.decode(pattern)) - value) if abs(value) < form.overflow else 0
    for neighbour in (pattern - 1, pattern + 1):
        sides = (0 <= neighbour < 1 << form.bits) and math.isfinite(form.decode(neighbour))
        assert not sides or error <= abs(Fraction(form.decode(neighbour)) - value)


def test_torch_rounds_fp64_to_16_bits_in_two_steps_and_we_in_one() -> None:
    """A little more than a tie becomes a tie in FP32."""
    value = 1 + 2.0**-11 + 2.0**-40
    assert torch.tensor(value, dtype=torch.float64).half().item() == 1.0
    assert FP16.decode(FP16.encode(value)) == 1 + 2.0**-10


# --- what a format holds ---


@pytest.mark.parametrize("form", TORCH, ids=names)
def test_the_limits_are_torchs(form: Format) -> None:
    info = torch.finfo(TORCH[form][0])
    assert (form.bits, form.largest, form.smallest_normal) == (info.bits, info.max, info.smallest_normal)
    assert form.epsilon == info.eps
    assert stored(form, [1]).item() == form.smallest_subnormal


@pytest.mark.parametrize("form", FORMATS, ids=names)
def test_where_numbers_vanish_and_overflow(form: Format) -> None:
    beside = Fraction(1, 1 << 2000)
    assert form.encode(form.underflow) == 0
    assert form.encode(form.underflow + beside) == 1
    assert form.encode(form.overflow - beside) == form.largest_pattern
    assert form.encode(form.overflow) == form.largest_pattern + form.infinite
    assert form.encode(-form.underflow) == 1 << form.bits - 1


@pytest.mark.cases(now=3)
@pytest.mark.parametrize("form", SMALL, ids=names)
def test_the_spacing_is_the_distance_to_the_next_number(form: Format) -> None:
    for pattern in range(form.largest_pattern):
        value = form.decode(pattern)
        assert form.spacing(value) == form.spacing(-value) == form.decode(pattern + 1) - value


def power(number: float | Fraction) -> str:
    number = Fraction(number)
    exponent = number.numerator.bit_length() - number.denominator.bit_length()
    assert number == Fraction(2) ** exponent
    return f"2^{{{exponent}}}"


def test_the_table_of_the_chapter_holds() -> None:
    assert formats.__doc__ is not None
    rows = [line for line in formats.__doc__.splitlines() if line.startswith("| ")][1:]
    for row, form in zip(rows, FORMATS, strict=True):
        top = Fraction(2) ** (form.exponent_of(Fraction(form.largest)) + 1)
        largest = f"{power(top)}-{power(top - Fraction(form.largest))}"
        small = map(power, (form.smallest_normal, form.smallest_subnormal, form.epsilon))
        sizes = map(str, (form.exponent_bits, form.mantissa_bits))
        cells = (form.name, *sizes, f"${{{largest}}}$", *(f"${cell}$" for cell in small))
        assert row == f"| {' | '.join(cells)} |"


def test_the_largest_numbers_of_the_chapter_hold() -> None:
    largest = [form.largest for form in (FP16, E4M3FN, E5M2, FP32, TF32, BF16)]
    assert largest[:3] == [65504, 448, 57344]
    assert [f"{number:.1e}" for number in largest[3:]] == ["3.4e+38"] * 3


@pytest.mark.parametrize("pattern", [-1, 256])
def test_what_is_no_pattern_is_refused(pattern: int) -> None:
    with pytest.raises(ValueError, match=rf"^{pattern} is no pattern of e5m2; choose from 0 to 255$"):
        E5M2.decode(pattern)


# --- the command line ---


def printed(capsys: pytest.CaptureFixture[str], *numbers: str) -> list[list[str]]:
    assert formats.main(numbers) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return [line.split() for line in out.splitlines()]


def test_a_number_is_shown_bit_by_bit(capsys: pytest.CaptureFixture[str]) -> None:
    head, *rows = printed(capsys, "0.1")
    assert head == ["format", "sign|exponent|mantissa", "stored", "relative", "error"]
    assert [row[0] for row in rows] == [form.name for form in FORMATS]
    assert rows[3] == ["fp16", "0|01011|1001100110", "0.0999755859375", "0.00024"]
    # One tenth is no FP64 number either, and the error is that of the number that was written.
    assert rows[0][2:] == ["0.10000000000000001", "5.6e-17"]


# Before PyTorch 2.13 what is too large for E4M3FN is no number.
TOO_LOW = ["1|1111|110", "-448", "-"] if E4M3FN_SATURATES else ["1|1111|111", "nan", "-"]
TOO_HIGH = ["0|1111|110", "448", "1"] if E4M3FN_SATURATES else ["0|1111|111", "nan", "-"]


@pytest.mark.parametrize(
    ("written", "fp16", "e4m3fn"),
    [
        ("-1e-5", ["1|00000|0010101000", "-1.0013580322265625e-05", "0.0014"], ["1|0000|000", "-0", "1"]),
        ("-inf", ["1|11111|0000000000", "-inf", "-"], TOO_LOW),
        ("nan", ["0|11111|1000000000", "nan", "-"], ["0|1111|111", "nan", "-"]),
        ("sNaN", ["0|11111|1000000000", "nan", "-"], ["0|1111|111", "nan", "-"]),
        ("-0", ["1|00000|0000000000", "-0", "-"], ["1|0000|000", "-0", "-"]),
        ("1e999", ["0|11111|0000000000", "inf", "-"], TOO_HIGH),
        ("464", ["0|10111|1101000000", "464", "0"], ["0|1111|110", "448", "0.034"]),
    ],
)
def test_numbers_of_every_kind(
    capsys: pytest.CaptureFixture[str], written: str, fp16: list[str], e4m3fn: list[str]
) -> None:
    rows = {row[0]: row[1:] for row in printed(capsys, written)}
    assert (rows["fp16"], rows["e4m3fn"]) == (fp16, e4m3fn)


def test_several_numbers_are_several_tables(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = printed(capsys, "0.1"), printed(capsys, "-2")
    assert printed(capsys, "0.1", "-2") == [*one, [], *two]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["many"], "'many' is no number; write it as 0.1 or 1e-5"),
        (["0.1", "--json"], "'--json' is no number; write it as 0.1 or 1e-5"),
        ([""], "'' is no number; write it as 0.1 or 1e-5"),
        (["1e1000"], "1e1000 is far outside of every format; stay within 1e-999 and 1e999"),
        (["1e-99999999"], "1e-99999999 is far outside of every format; stay within 1e-999 and 1e999"),
        ([], "the following arguments are required: numbers; see --help"),
    ],
)
def test_a_mistake_is_one_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert formats.main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"shardbook.precision.formats: {sentence}\n")


def test_the_command_of_the_chapter_runs(capsys: pytest.CaptureFixture[str]) -> None:
    shown = start("-m", "shardbook.precision.formats", "0.1")
    assert [line.split() for line in shown.stdout.splitlines()] == printed(capsys, "0.1")
    assert shown.stderr == ""
