"""The cases of a claim: `make test` tries the hardest ones, `make test-all` every one.

    @pytest.mark.parametrize("stage", rows([0, 1, 2, 3], now=[3]))

Of the cases that take seconds each, `.ci/run` tries one of a few, `turn=3` one of three. What is cheap to try
has no such table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

LATER = [pytest.mark.full, pytest.mark.matrix]  # The marks of what only `make test-all` tries.


def rows(every: Iterable[Any], *, now: Sequence[Any], turn: int = 1) -> list[Any]:
    """The rows for `pytest.mark.parametrize`, of which `make test` runs those in `now`, and `.ci/run` these
    and one of `turn` others.
    """
    every = list(every)
    unknown = [row for row in now if row not in every]
    assert not unknown, f"{unknown} are no rows of {every}"
    others = [row for row in every if row not in now]
    early = others[::turn]
    return [
        row
        if row in now
        else pytest.param(
            *row if isinstance(row, tuple) else (row,),
            marks=[pytest.mark.full] if row in early else LATER,
        )
        for row in every
    ]
