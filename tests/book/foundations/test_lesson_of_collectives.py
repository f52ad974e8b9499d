"""What ranks say to each other: the program of the lesson prints what its answer says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tiers import rows
from warm import TORCHRUN, start

LESSON = (Path(__file__).parents[3] / "site" / "lessons" / "what_ranks_say.md").read_text("utf-8")
MEANS = {2: [5, 6, 7, 8, 9, 10, 11, 12], 4: [13, 14, 15, 16, 17, 18, 19, 20]}


@pytest.mark.nightly
@pytest.mark.parametrize("world_size", rows([*MEANS], now=[2]))
def test_the_program_of_the_lesson(tmp_path: Path, world_size: int) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", LESSON, re.DOTALL)
    (tmp_path / "say.py").write_text(program, "utf-8")
    run = start(*TORCHRUN, str(world_size), str(tmp_path / "say.py"), program=sys.executable)
    assert run.returncode == 0, run.stderr
    mean = [float(number) for number in MEANS[world_size]]
    size, sent = 8 // world_size, 4 * (8 - 8 // world_size)
    assert run.stdout.splitlines() == [
        f"rank {rank}: {mean[rank * size : (rank + 1) * size]} {mean} "
        f"{{'reduce-scatter': {sent}, 'all-gather': {sent}}}"
        for rank in range(world_size)
    ]
    assert f"{sent} bytes" in LESSON
