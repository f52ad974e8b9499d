"""Muon computes with whole matrices: FSDP2 exchanges in each of its products, this book in none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode

import ranks
from shardbook import shard

MATRICES, STEPS = 6, 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(9)
        self.wide = nn.Linear(9, 27)
        self.narrow = nn.Linear(27, 9)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.narrow(torch.tanh(self.wide(self.norm(x))))
        return x + y


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), *[Block() for _ in range(MATRICES // 2)], nn.Linear(9, 4))


def is_hidden(name: str, parameter: Tensor) -> bool:
    return parameter.dim() == 2 and name[0] in "123"


def train(model: nn.Module) -> torch.optim.Optimizer:
    """Some steps on the same data on every rank, so that no mean has other bits."""
    named = list(model.named_parameters())
    muon = torch.optim.Muon([each for name, each in named if is_hidden(name, each)], lr=0.05)
    others = torch.optim.SGD([each for name, each in named if not is_hidden(name, each)], lr=0.01)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        model(torch.randn(8, 6, generator=generator)).square().mean().backward()
        for optimizer in (muon, others):
            optimizer.step()
            optimizer.zero_grad()
    model(torch.randn(8, 6, generator=generator)).square().mean().backward()
    return muon


def compared() -> tuple[list[float], list[int]]:
    """How far each is from the plain model, and the exchanges of one more step."""
    plain = model()
    train(plain)
    expected = plain.state_dict()
    theirs, ours = model(), model()
    mesh = init_device_mesh("cpu", (2,))
    for block in theirs[1:-1]:
        fully_shard(block, mesh=mesh)
    fully_shard(theirs, mesh=mesh)
    shard(ours, units=Block, uncut=is_hidden)
    steppers = [train(each) for each in (theirs, ours)]
    found = [
        {name: value.full_tensor() for name, value in theirs.state_dict().items()},
        ours.state_dict(),
    ]
    far = [max(float((each[n] - expected[n]).abs().max()) for n in expected) for each in found]
    counts = []
    for muon in steppers:
        with CommDebugMode() as counter:
            muon.step()
        counts.append(counter.get_total_counts())
    return far, counts


@pytest.mark.full
def test_muon_steps_without_an_exchange() -> None:
    for far, (theirs, ours) in ranks.run(2, compared):
        # Five iterations of three products, each of matrices that lie on two ranks.
        assert theirs > 5 * MATRICES
        assert ours == 0
        # Products in BF16 that are added up in another order; here they are the plain model's own.
        assert far[1] == 0 < far[0]
