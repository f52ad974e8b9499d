"""When a gather hides: the formulas against a step-by-step account, and the command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbook.planning.overlap import Wire, main

speeds = st.floats(1e8, 1e16)
wires = st.builds(Wire, speeds, speeds, st.integers(2, 1024), st.sampled_from([1, 2, 4]))


@given(wires, st.floats(1e3, 1e12))
def test_with_enough_tokens_a_gather_hides_and_with_fewer_it_does_not(wire: Wire, numel: float) -> None:
    tokens = wire.enough_tokens()
    gather = wire.gather_seconds(numel)
    assert wire.compute_seconds(numel, tokens) >= gather * (1 - 1e-6)
    assert wire.waited(tokens) == pytest.approx(0, abs=1e-6)
    if tokens > 1:
        assert wire.compute_seconds(numel, tokens - 1) <= gather * (1 + 1e-6)


@given(wires, st.floats(1e3, 1e12))
def test_the_gather_of_a_ring_takes_its_steps_together(wire: Wire, numel: float) -> None:
    piece = wire.nbytes * numel / wire.ranks
    assert wire.gather_seconds(numel) == pytest.approx((wire.ranks - 1) * piece / wire.bandwidth)
    least = wire.unit_bytes() / wire.ranks / wire.bandwidth
    assert wire.latency / (wire.latency + least) == pytest.approx(0.1)


def test_the_command_answers_for_one_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--flops", "400e12", "--bandwidth", "50e9", "--ranks", "8", "--tokens", "4096"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "A gather hides behind 7,000 tokens on a rank or more.",
        "With 4,096 tokens a pass takes 1.71 times its computation.",
        "Of units of 36 MB or more, latency is a tenth of the gather at most.",
    ]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--flops", "0", "--flops is 0, but it must be a number from 1 to 1e+30"),
        ("--bandwidth", "inf", "--bandwidth is inf, but it must be a number"),
        ("--bandwidth", "1e-300", "--bandwidth is 1e-300, but it must be a number"),
        ("--tokens", "1.5", "--tokens is 1.5, but it must be a whole number"),
        ("--ranks", "many", "--ranks is many, but it must be a whole number"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(
    option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([option, value]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
