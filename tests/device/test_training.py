"""What trains on the late device equals what trains on the CPU, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import ranks
from book import programs
from book.programs import Training
from device import runtime

pytestmark = pytest.mark.full
preload = runtime.install


def outcome(program: Callable[[], None], device: str) -> list[Tensor]:
    """The losses of a program, and what it has trained at the end."""
    Training.device = torch.device(device)
    try:
        program()
        training = Training.last
        values = training.model.state_dict().values()
        return [torch.stack(training.losses).cpu(), *(value.cpu() for value in values)]
    finally:
        Training.device = torch.device("cpu")


def both(name: str, stage: int) -> tuple[list[Tensor], list[Tensor]]:
    program = partial(getattr(programs, name), stage)
    return outcome(program, "cpu"), outcome(program, "late:0")


def test_plain() -> None:
    for one, other in ranks.run(2, both, "plain", 3, backend=runtime.BACKEND):
        assert all(map(torch.equal, one, other)), (one[0], other[0])
