"""What a program of `book.programs` comes to on a device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from book.programs import RUNS, Training


def outcome(name: str, device: str) -> list[Tensor]:
    """What the program of this name comes to."""
    return outcome_of(RUNS[name], device)


def outcome_of(program: Callable[[], None], device: str) -> list[Tensor]:
    """The losses of a program, and what it has trained at the end, on the host."""
    Training.device = torch.device(device)
    torch.manual_seed(0)
    try:
        program()
        values = Training.last.model.state_dict().values()
        return [torch.stack(Training.last.losses).cpu(), *(value.cpu() for value in values)]
    finally:
        Training.device = torch.device("cpu")
