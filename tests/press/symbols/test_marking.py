"""Marks: on every symbol of a formula, on every name in code, and nothing that is drawn differs by them."""

from __future__ import annotations

import re

import pytest

from sidelit.errors import SidelitError
from sidelit.symbols import marking
from sidelit.text import code, markup
from sidelit.text.math import Typesetter

DECLARED = r"""
:notation $N_d$: `world_size`, the number of ranks
:notation $\Psi$: the number of parameters
:notation $P_k$: `plan.peak`, the bytes of step $k$
:notation $K$: `Cost.state`, the bytes of its state
:notation $g$: the gradient
:notation $p$: an exponent
:notation $n$: `len(layers)`, the number of layers
"""
SETTER = Typesetter()


@pytest.fixture
def marker() -> marking.Marker:
    return marking.Marker(marking.read(markup.parse(DECLARED)))


def keys(html: str) -> list[str]:
    return re.findall(r'data-sym="([^"]*)"', html)


@pytest.mark.parametrize(
    ("tex", "wanted"),
    [
        (r"\frac{N_d-1}{N_d}", ["N_d", "N_d"]),
        (r"2\Psi/N_d", ["Psi", "N_d"]),
        (r"\sqrt \Psi", ["Psi"]),
        ("|g_i|^p", ["g", "p"]),
        ("P_{k+1} + P_0", ["P_k", "P_k"]),
        (r"\sum_i P_i", ["P_k"]),
        ("P_i", []),
        ("N_0", []),
        ("a+b", []),
        ("K", ["K"]),
    ],
)
@pytest.mark.parametrize("display", [True, False])
def test_a_formula_is_marked_and_looks_the_same(
    marker: marking.Marker, tex: str, wanted: list[str], display: bool
) -> None:
    plain = SETTER.render(tex, display=display)
    html = marker.settled(tex, plain, lambda marked: SETTER.drawn(marked, display=display))
    assert keys(html) == wanted
    # What a screen reader gets, and what copying gets, is the formula as it was written.
    assert html.partition("katex-html")[0] == plain.partition("katex-html")[0]
    assert re.sub("<[^>]*>", "", html) == re.sub("<[^>]*>", "", plain)
    assert marker.used == set(wanted)


def test_marks_that_would_change_what_is_seen_are_left_out() -> None:
    plain, other = SETTER.render("x + y"), SETTER.drawn(r"{\htmlData{sym=x}{x}} + 2y")
    assert marking.settled(plain, other) == plain


def test_a_formula_that_cannot_be_marked_stays_as_it_is(marker: marking.Marker) -> None:
    plain = SETTER.render("N_d")
    assert marker.settled("N_d", plain, lambda marked: SETTER.drawn(r"\nonsense")) == plain


@pytest.mark.parametrize(
    ("line", "marked"),
    [
        ("size = self.world_size + 1", ["world_size"]),
        ("world_size: int  # the world_size", ["world_size"]),
        ('print("world_size", f"{world_size}")', ["world_size"]),
        ("other_world_size = 1", []),
        ("return plan.peak - peak", ["plan", "peak"]),
        ("return len(layers) + len(other)", ["len", "layers"]),
        ("return cost.state", ["state"]),
        ("a < world_size", ["world_size"]),
        ("# world_size", []),
    ],
)
def test_names_in_code_are_marked_outside_of_words(
    marker: marking.Marker, line: str, marked: list[str]
) -> None:
    plain = code.highlighted(line)[0].html
    html = marker.code(plain)
    assert re.findall(r'<span data-sym="[^"]*">([^<]*)</span>', html) == marked
    assert re.sub(r'<span data-sym="[^"]*">([^<]*)</span>', r"\1", html) == plain


def test_code_inside_of_a_sentence_is_a_symbol_if_it_is_its_name(marker: marking.Marker) -> None:
    assert marker.span("world_size") == "N_d"
    assert marker.span("state") == marker.span("Cost.state") == "K"
    assert marker.span("world_size + 1") == marker.span("") == ""


def test_authors_may_mark_nothing_themselves() -> None:
    with pytest.raises(SidelitError):
        SETTER.render(r"\htmlData{sym=x}{x}")
    with pytest.raises(SidelitError):
        SETTER.drawn(r"\href{https://example.org}{x}")
