"""The check of lab 3 counts what a layer keeps, and not what a thread of gloo still holds of an exchange."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from book.busy import held_for_a_while
from shardbook.labs.lessons.fifty_lines_compared import WIDTH, after_a_step

LAYER = 4 * WIDTH**2


class Half(nn.Module):
    """Half of a layer, which exchanges nothing. What `keep` makes in the backward pass stays or goes."""

    keep = staticmethod(lambda: None)

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.part = nn.Parameter(layer.weight.detach()[::2].clone())
        self.part.register_hook(lambda gradient: type(self).keep())

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x @ self.part.t()] * 2, 1)


def test_what_a_thread_lets_go_soon_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Half, "keep", staticmethod(lambda: held_for_a_while(torch.zeros(LAYER // 4))))
    assert after_a_step(Half)["kept after backward"] < LAYER


def test_what_stays_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Tensor] = []
    monkeypatch.setattr(Half, "keep", staticmethod(lambda: held.append(torch.zeros(LAYER // 4))))
    assert after_a_step(Half)["kept after backward"] >= LAYER
