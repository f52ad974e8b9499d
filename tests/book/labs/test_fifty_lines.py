"""The check of lab 3 counts what a layer keeps, and not what a thread of gloo still holds of an exchange."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from shardbook.labs.lessons.fifty_lines_compared import LAYER, after_a_step
from shardbook.planning.measure import Meter


class Half(nn.Module):
    """Half of a layer, which exchanges nothing, and somebody holds as much as the whole layer has."""

    held: list[Tensor]

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.part = nn.Parameter(layer.weight.detach()[::2].clone())
        self.part.register_hook(self.hold)

    def hold(self, gradient: Tensor) -> None:
        self.held += [gradient.new_zeros(LAYER // gradient.element_size())]

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x @ self.part.t()] * 2, 1)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    held: list[Tensor] = []
    monkeypatch.setattr(Half, "held", held, raising=False)
    return held


def test_what_gloo_lets_go_soon_is_not_kept(held: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    now, looked = Meter.now, []

    def later(self: Meter) -> int:
        """The operations of the step read the meter a few times; who waits reads it more often."""
        looked.extend([1] * len(held))
        if len(looked) == 20:
            held.clear()
        return now(self)

    monkeypatch.setattr(Meter, "now", later)
    assert after_a_step(Half)["freed after backward"]
    assert not held


def test_what_stays_is_kept(held: list[Tensor]) -> None:
    found = after_a_step(Half)
    assert held
    assert found["freed after forward"]
    assert not found["freed after backward"]


def test_what_gloo_held_before_the_step_hides_nothing(
    held: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor of an earlier exchange that goes in between made room for a layer that is not freed."""
    before = [torch.zeros(LAYER)]
    forward = Half.forward

    def lets_go(self: Half, x: Tensor) -> Tensor:
        before.clear()
        return forward(self, x)

    monkeypatch.setattr(Half, "forward", lets_go)
    assert not after_a_step(Half)["freed after backward"]
