"""What of a formula is a symbol."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidelit.symbols import formula


@pytest.mark.parametrize(
    ("tex", "names"),
    [
        (r"\Psi / N_d", [r"\Psi", "N_d"]),
        (r"\frac{N_d-1}{N_d}B", ["N_d", "N_d", "B"]),
        (r"\frac nk + \frac12", ["n", "k"]),
        ("2^{e - b}", ["e", "b"]),
        ("P_{k \\pm 1}", [r"P_{k\pm1}"]),
        ("N_{d}", ["N_d"]),
        ("x'_i", ["x_i"]),
        (r"\hat g + \hat{g} + \overline{ab}", [r"\hat{g}", r"\hat{g}", "a", "b"]),
        (r"\mathrm{shard}_r = \text{all of $x$}", ["r"]),
        (r"\operatorname{Var} X", ["X"]),
        (r"\Psi_{\text{head}}", [r"\Psi_{\text{head}}"]),
        (r"\begin{bmatrix} A \\[2pt] B \end{bmatrix}", ["A", "B"]),
        ("Ψ + ψ", ["Ψ", "ψ"]),
        (r"10\,\mathrm{GB}", []),
        (r"n \verb|abc| + \verb*+x+ + m", ["n", "m"]),
        (r"\href{https://x.y/a_b}{n}", ["n"]),
        ("", []),
    ],
)
def test_the_symbols_of_a_formula(tex: str, names: list[str]) -> None:
    assert [symbol.name for symbol in formula.read(tex).symbols] == names


def test_a_symbol_has_its_place_with_its_exponent_and_what_is_below_it() -> None:
    (symbol,) = formula.read(r"3\,g_{i+k}^p").symbols
    assert (symbol.start, symbol.end) == (3, 12)
    assert [each.name for each in symbol.below_symbols] == ["i", "k"]
    assert [each.name for each in symbol.above_symbols] == ["p"]


@pytest.mark.parametrize(
    ("tex", "letters"),
    [(r"\sum_{i=1}^n x_i", {"i"}), (r"\max_k P_k + \sum_{u \in U} v", {"k", "u"}), ("x_i", set())],
)
def test_what_a_formula_counts_with(tex: str, letters: set[str]) -> None:
    assert formula.read(tex).counting == letters


@pytest.mark.parametrize(
    ("tex", "letters"),
    [
        (r"e^n + e^{-2}", ["e", "e"]),
        (r"e + x_e^2 + e_1^2 + 2^e + e'", []),
        (r"\int n\,dn + \int_0^T\frac{dn}{n}", ["d", "d"]),
        (r"\iint n\,d n\,d\mathbf{x} + d x", ["d", "d"]),
        (r"dn + \int n\,d + \int d_1 x", []),
        (r"n^T + \hat{n}_1^{ T } + (A B)^T + \begin{bmatrix} n \end{bmatrix}^T + \mathbf{AB}^T", ["T"] * 5),
        (r"T + n^{T+1} + n^{2T} + 2^T + \sum_{n=1}^T n + \int_0^T n + [n]^T_0 + n_T + n^{T^2}", []),
        (r"\mathop{f}^T + \sum\limits^T", []),
        (r"\mathbb{R}^n + \mathbb N + \mathbb{Z}_{+} + \mathbb{Z}_n + \mathbb{B}", [r"\mathbb"] * 3),
        (
            r"O(n) + \mathcal{O}(n) + \Theta\left(n\right) + \Omega\!\bigl(n\bigr)",
            ["O", r"\mathcal", r"\Theta", r"\Omega"],
        ),
        (r"O + \mathcal{O} + \Theta n + \Omega_1(n) + \theta(n)", []),
    ],
)
def test_letters_that_custom_explains(tex: str, letters: list[str]) -> None:
    found = sorted(formula.places(formula.read(tex).symbols, tex))
    assert [
        re.match(r"\\?[A-Za-z]+", tex[place:])[0][: len(name)]
        for place, name in zip(found, letters, strict=True)
    ] == letters  # type: ignore[index]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*"xN2_^{}'&é ", r"\frac", r"\sum", r"\hat", r"\text", r"\\", "\\", "_d", "é"]))
)
def test_any_text_is_read_and_every_place_is_in_it(parts: list[str]) -> None:
    tex = "".join(parts)
    for symbol in formula.read(tex).symbols:
        assert 0 <= symbol.start < symbol.end <= len(tex)
