"""Checks of a lab: a right answer, a wrong one, a blank, an error, and how each is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from shardbook import labs
from shardbook.labs import notebook

# A rank cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@labs.check
def double(given: Any) -> None:
    labs.expect(given(4) == 8, f"4 becomes {given(4)}.", look="What is twice four?")


@labs.check
def largest(left: Any, right: Any) -> str:
    labs.expect(max(left, right) == 5, "No number is 5.")
    return "The largest is five."


@labs.check
def on_ranks(given: Any) -> None:
    labs.expect(labs.ranks(2, given) == [0, 1], "The ranks return something else.")


def right(x: int) -> int:
    return 2 * x


def add_two(x: int) -> int:
    return x + 2


def fail(x: int) -> float:
    return x / 0


def no_number(x: int) -> str:
    return "eight"


def dots(x: int) -> int:
    """Twice the number."""
    ...  # noqa: PIE790


def marked(x: int) -> int:
    raise NotImplementedError


def told(check: notebook.Check, *given: Any) -> labs.NotYet:
    with pytest.raises(labs.NotYet) as caught:
        check(*given)
    return caught.value


def test_a_right_answer_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    double(right)
    largest(3, 5)
    assert capsys.readouterr().out == "✓ double is right.\n✓ The largest is five.\n"


def test_a_wrong_answer_says_what_is_wrong_and_where_to_look() -> None:
    shown = told(double, add_two)
    assert shown._render_traceback_() == ["✗ 4 becomes 6.", "→ What is twice four?"]
    assert told(largest, 1, 2)._render_traceback_() == ["✗ No number is 5."]


@pytest.mark.parametrize("answer", [dots, marked, ...])
def test_a_blank_is_told_from_a_wrong_answer(answer: Any) -> None:
    shown = told(double, answer)
    assert shown.what == "double is still blank."
    assert shown.look.startswith("Fill in the cell above")


def test_the_variables_of_the_calling_cell_are_checked() -> None:
    variables: dict[str, Any] = {"double": right, "check": double, "both": largest}
    exec("check()", variables)
    with pytest.raises(labs.NotYet, match="left is still blank"):
        exec("both()", variables)
    with pytest.raises(labs.NotYet, match="right is still blank"):
        exec("left = 3; right = ...; both()", variables)


def test_an_error_in_the_answer_names_its_line() -> None:
    shown = told(double, fail)
    assert shown.what == "double raises ZeroDivisionError: division by zero"
    where, code = shown.look.splitlines()[1:]
    assert where.endswith(f"test_checks.py, line {fail.__code__.co_firstlineno + 1} (fail)")
    assert code.strip() == "return x / 0"


def test_a_result_that_cannot_be_compared_is_said() -> None:
    @labs.check
    def small(given: Any) -> None:
        # As in a lesson's own file, the comparison fails in a line that is not the reader's.
        import operator

        exec(compile("assert f(1) < 3", notebook.__file__, "exec"), {"f": given, "operator": operator})

    own_frames = told(small, no_number)
    assert "TypeError" in own_frames.what


def blank_on_rank() -> int:
    raise NotImplementedError


def fails_on_rank() -> int:
    raise ValueError("three")


@pytest.mark.nightly
def test_an_answer_that_runs_on_ranks_is_judged_in_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    on_ranks(labs.rank)
    assert capsys.readouterr().out == "✓ on_ranks is right.\n"
    assert told(on_ranks, blank_on_rank).what == "on_ranks is still blank."
    shown = told(on_ranks, fails_on_rank)
    assert shown.what == "on_ranks fails on the ranks:"
    assert "ValueError: three" in shown.look


SCRIPT = """
from shardbook import labs

labs.begin()

@labs.check
def answer(given):
    labs.expect(given == 42, "It is not 42.", look="Count again.")

answer(41)
"""


@pytest.mark.nightly
def test_a_script_shows_the_sentences_alone(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, "utf-8")
    source = Path(notebook.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "✗ It is not 42.\n→ Count again.\n"
