r"""Formulas in docstrings without the prefix `r`: what the author meant, and what Python makes of it."""

from __future__ import annotations

import ast
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidelit.source import source
from sidelit.source.syntax import as_meant

# The body of a docstring in the source, and what is printed of it.
MEANT = {
    "a command that begins like a tab": (r"a $1 \times 1$ b", r"a $1 \times 1$ b"),
    "every escape of one letter": (
        r"$\alpha\beta\frac\nabla\rho\tau\vec$",
        r"$\alpha\beta\frac\nabla\rho\tau\vec$",
    ),
    "displayed": ("a\n\n$$\n" + r"\nabla f" + "\n$$\n", "a\n\n$$\n" + r"\nabla f" + "\n$$\n"),
    "an environment without dollars": (
        r"\begin{align} a &= \beta \\ b \end{align}",
        r"\begin{align} a &= \beta \\ b \end{align}",
    ),
    "brackets of MathJax": (r"so \(\tau\) and \[\nabla f\]\n", "so " + r"\(\tau\) and \[\nabla f\]" + "\n"),
    "brackets behind two backslashes": (r"so \\(\\tau\\)", r"so \(\tau\)"),
    "brackets of an expression": (r"\\(\\w\\)\t\\[b\\]", "\\(\\w\\)\t\\[b\\]"),
    "a row that ends": (r"$\sum x \\ y$", r"$\sum x \\ y$"),
    "doubled backslashes": (r"$\\frac12$", r"$\frac12$"),
    "doubled, and a line that ends": (r"$\\frac12 \n + 1$", "$\\frac12 \n + 1$"),
    "an escape outside": (r"a\tb $\tau$ \x41", "a\tb $\\tau$ A"),
    "money": (r"$5 and\t$10", "$5 and\t$10"),
    "an escaped dollar": (r"\$\t\$", "\\$\t\\$"),
    "two paragraphs": ("a $b\n\n" + r"c\td$", "a $b\n\nc\td$"),
    "code": (r"`$` and \t `$`", "`$` and \t `$`"),
    "a continued line": ("a\\\n" + r"$\tau$", "a" + r"$\tau$"),
}


def value_of(literal: str) -> str:
    """What Python makes of a literal. It warns of escapes that there are not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return str(ast.literal_eval(literal))


@pytest.mark.parametrize("case", MEANT)
def test_a_formula_is_what_its_author_wrote(case: str) -> None:
    body, meant = MEANT[case]
    literal = f'"""{body}"""'
    assert as_meant(literal, value_of(literal))[0] == meant


@pytest.mark.parametrize("literal", ['r"""$\\\\tau$"""', '"$\\\\" "tau$"', '("$\\tau$")'])
def test_a_raw_literal_and_several_side_by_side_are_as_python_reads_them(literal: str) -> None:
    value = value_of(literal)
    assert as_meant(literal, value) == (value, ())


def test_a_difference_is_told_with_its_line_and_the_page_has_the_formula() -> None:
    text = '\n\n"""A $x$.\n\nAn é, and $1 \\times 1$.\n"""\ndef f():\n    """It is $\\tau$."""\n'
    document = source.parse(text, "a.py")
    assert [section.commentary for section in document.sections] == [
        "A $x$.\n\nAn é, and $1 \\times 1$.",
        "It is $\\tau$.",
    ]
    assert [str(fault) for fault in document.faults] == [
        "a.py:5: Python reads backslashes in 2 formulas as escapes (lines 5, 8);"
        ' they are printed as they are written; begin the docstring with r"""'
    ]
    assert "".join(section.source for section in document.sections) == text


def test_a_file_tells_of_all_such_formulas_in_one_line() -> None:
    text = "".join(f'def f{number}():\n    """It is $\\\\tau$."""\n' for number in range(40))
    (fault,) = source.parse(text.replace("\\\\", "\\"), "a.py").faults
    assert str(fault).startswith("a.py:2: ")
    assert "in 40 formulas as escapes (lines 2, 4, 6, 8, 10, …); they are" in str(fault)


@given(st.text(alphabet="$\\\\abnt x{}\n'", max_size=30))
def test_without_a_formula_that_python_misreads_nothing_changes(body: str) -> None:
    literal = f'"""{body} """'
    try:
        value = value_of(literal)
    except SyntaxError:
        return
    meant, lines = as_meant(literal, value)
    assert bool(lines) or meant == value
    if "$" not in body:
        assert meant == value
