"""Sums in a format against torch's additions, the census against torch's casts, and the chapter's table."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shardbook.precision import rounding
from shardbook.precision.formats import BF16, E4M3FN, E5M2, FORMATS, FP16, FP32, FP64, TF32, Format
from shardbook.precision.rounding import Census, census, running_sum

DTYPES = {FP16: torch.float16, BF16: torch.bfloat16, FP32: torch.float32, FP64: torch.float64}


# --- sums ---


@given(st.sampled_from(list(DTYPES)), st.lists(st.floats(-1e3, 1e3, width=16), max_size=20))
def test_a_running_sum_is_torchs_additions_one_after_the_other(form: Format, values: list[float]) -> None:
    total = torch.zeros((), dtype=DTYPES[form])
    for value in values:
        # A weight of another format would be rounded first.
        total = total + torch.tensor(value, dtype=torch.float64).to(DTYPES[form])
    exact = [form.decode(form.encode(value)) for value in values]
    assert running_sum(exact, form) == total.item()


@pytest.mark.parametrize(("form", "end"), [(BF16, 256), (FP16, 2048), (E4M3FN, 16), (E5M2, 8)])
def test_a_sum_of_ones_stops_at_twice_the_number_of_steps_between_powers_of_two(
    form: Format, end: int
) -> None:
    assert running_sum([1.0] * 3000, form) == end == 2 << form.mantissa_bits


def test_torch_keeps_the_sums_of_16_bit_numbers_in_fp32() -> None:
    for dtype, nearest in ((torch.float16, 5000.0), (torch.bfloat16, 4992.0)):
        ones = torch.ones(5000, dtype=dtype)
        sums = [ones.sum(), ones @ ones, (ones[None] @ ones[:, None])[0, 0], ones.norm() ** 2]
        assert [total.item() for total in sums[:3]] == [nearest] * 3
        assert sums[3].item() == pytest.approx(5000, rel=0.01)


@pytest.mark.parametrize(("form", "stays"), [(BF16, True), (FP16, False), (FP32, False)])
def test_small_updates_of_a_bf16_weight_vanish(form: Format, stays: bool) -> None:
    weight = torch.ones((), dtype=DTYPES[form])
    for _ in range(500):
        weight -= torch.tensor(0.001, dtype=DTYPES[form])
    assert (weight.item() == 1.0) == stays
    step = -form.decode(form.encode(0.001))
    assert running_sum([1.0, *[step] * 500], form) == weight.item()


# --- the census ---


@pytest.mark.parametrize("form", [FP16, BF16], ids=lambda form: form.name)
@pytest.mark.parametrize("scale", [1.0, 2.0**10, 0.5])
def test_the_census_is_that_of_torchs_cast(form: Format, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    powers = torch.randint(-149, 128, (4000,), generator=generator)
    values = torch.ldexp(1 + torch.rand(4000, generator=generator), powers)
    values[::7] = 0.0
    edges = [float(form.underflow), form.smallest_subnormal, form.smallest_normal, form.largest]
    edges = [math.nextafter(edge, end) for edge in edges for end in (0, math.inf, edge)]
    tensors = [values, -values, torch.tensor([*edges, math.inf, math.nan, float(form.overflow)]).double()]
    whole = torch.cat([tensor.double() for tensor in tensors])
    cast = torch.tensor([form.decode(form.encode(v)) for v in (whole * scale).tolist()])
    kept = whole != 0
    assert census(tensors, form, scale) == Census(
        count=int(kept.sum()),
        vanished=int((kept & (cast == 0)).sum()),
        subnormal=int(((cast != 0) & (whole.abs() * scale < form.smallest_normal)).sum()),
        overflowed=int((~cast.isfinite()).sum()),
    )
    # Torch's cast has the same zeros and infinities.
    single = (values * scale).to(DTYPES[form]).double()
    assert torch.equal(single == 0, cast[:4000] == 0)
    assert torch.equal(single.isfinite(), cast[:4000].isfinite())


def test_a_census_in_any_format() -> None:
    tensors = [torch.tensor([1.0, 449.0, 465.0, 1e-3]), torch.tensor([[0.0]]), torch.empty(0)]
    assert census(tensors, E4M3FN) == Census(4, 0, 1, 1)
    assert census(tensors, E4M3FN, 0.5) == Census(4, 1, 0, 0)
    for form in FORMATS:
        assert census([torch.tensor([1.0, math.nan, -math.inf])], form) == Census(3, 0, 0, 2)
    tiny = torch.tensor([5e-324], dtype=torch.float64)
    assert census([tiny], FP64) == Census(1, 0, 1, 0)
    assert census([tiny], TF32) == census([tiny], TF32, 0.25) == Census(1, 1, 0, 0)
    assert census([], FP16) == Census(0, 0, 0, 0)


def test_parameters_can_be_counted() -> None:
    layer = torch.nn.Linear(3, 3)
    assert census(layer.parameters(), BF16).count == 12


# --- the table, which must not depend on how many cores there are ---


def table(text: str) -> dict[tuple[str, ...], list[float]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.endswith("% |")]
    return {tuple(row[:3]): [float(cell.rstrip("%")) for cell in row[3:]] for row in rows}


@pytest.mark.usefixtures("one_thread")
def test_the_table_of_the_chapter_is_what_its_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert rounding.main([]) == 0
    printed, shown = table(capsys.readouterr().out), table(rounding.__doc__ or "")
    assert len(shown) == 6
    assert list(printed) == list(shown)
    for row, cells in shown.items():
        # Another processor sums in another order, and training carries that on.
        assert printed[row] == pytest.approx(cells, abs=0.5), row


@pytest.mark.usefixtures("one_thread")
def test_the_gradient_of_a_position_is_smaller_in_a_larger_batch() -> None:
    """The loss is a mean, so twice the positions halve each one's gradient."""
    sizes = []
    for batch in (4, 8):
        found: list[Tensor] = rounding.gradients(1, batch)["outputs"]
        # The root of the mean square of the scores' gradient.
        [scores] = [grad for grad in found if grad.shape[-1] == 256 and grad.shape[0] == batch][-1:]
        sizes.append(scores.pow(2).mean().sqrt().item())
    assert sizes[1] == pytest.approx(sizes[0] / 2, rel=0.05)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--steps 0", "--steps is 0, but it must be a whole number from 1 to 1,000,000; see --help"),
        ("--batch 1001", "--batch is 1001, but it must be a whole number from 1 to 1,000; see --help"),
        ("--stage 1", "unrecognized arguments: --stage 1; see --help"),
    ],
)
def test_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str], words: str, sentence: str) -> None:
    assert rounding.main(words.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"shardbook.precision.rounding: {sentence}\n")
