"""Each rank writes its part, and other numbers of ranks, other stages and PyTorch read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ranks
from shardbook import shard
from shardbook.state.optimizer_entries import stretches
from shardbook.state.sharded import Reader, read, write

pytestmark = pytest.mark.full

SIZES = (7, 5, 3)


class Tied(nn.Module):
    """Parameters of odd sizes, without dimensions, without elements, frozen, and one with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 5), nn.Linear(5, 7)
        self.third = nn.Linear(7, 5, bias=False)
        self.third.weight = self.first.weight
        self.conv = nn.Conv2d(3, 2, (3, 2))
        self.alone, self.none = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.empty(0, 3))
        self.frozen = nn.Parameter(torch.randn(4, 3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.tanh(self.first(x)))
        y = self.third(y * self.alone) + self.frozen.sum()
        result: Tensor = y.sum() + self.conv(torch.ones(1, 3, 4, 4)).sum() + self.none.sum()
        return result


def built(seed: int, *, scalar: bool = True) -> Tied:
    torch.manual_seed(seed)
    model = Tied()
    if not scalar:
        # `fully_shard` takes no parameter without dimensions.
        model.alone = nn.Parameter(model.alone.detach().view(1))
    return model


def sharded(seed: int, stage: int, mesh: Any = None, scalar: bool = True) -> nn.Module:
    return shard(built(seed, scalar=scalar), units=nn.Linear, stage=stage, mesh=mesh)


def save(folder: Path, stage: int, rows: int, scalar: bool = True) -> None:
    mesh = init_device_mesh("cpu", (rows, dist.get_world_size() // rows)) if rows else None
    write(folder, stretches(sharded(1, stage, mesh, scalar)), {})


def load(folder: Path, stage: int, scalar: bool = True) -> dict[str, Tensor]:
    model = sharded(2, stage, scalar=scalar)
    reader = Reader(folder)
    read(reader, reader.read_metadata(), stretches(model))
    return model.state_dict()


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("ranks_before", "stage", "rows"), [(3, 3, 0), (2, 1, 0), (2, 0, 0), (4, 3, 2), (4, 0, 2)]
)
def test_what_some_ranks_write_any_ranks_read(
    tmp_path: Path, ranks_before: int, stage: int, rows: int
) -> None:
    folder = tmp_path / "saved"
    ranks.run(ranks_before, save, folder, stage, rows)
    expected = dict(built(1).state_dict())
    for ranks_now, stage_now in ((1, 3), (2, 2), (3, 0), (4, 3)):
        for found in ranks.run(ranks_now, load, folder, stage_now):
            assert same(found, expected)


def test_every_element_is_written_once_and_by_as_many_ranks_as_there_are(tmp_path: Path) -> None:
    ranks.run(3, save, tmp_path / "saved", 0, 0)
    sizes = [path.stat().st_size for path in (tmp_path / "saved").glob("*.distcp")]
    assert len(sizes) == 3
    assert max(sizes) < 1.5 * min(sizes)


def plain_reads(folder: Path) -> bool:
    model = built(3)
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    return same(state["model"], dict(built(1).state_dict()))


def fsdp2_reads(folder: Path) -> bool:
    model = built(3, scalar=False)
    for linear in (model.first, model.second):
        fully_shard(linear)
    fully_shard(model)
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    whole = {name: value.full_tensor() for name, value in model.state_dict().items()}
    return same(whole, dict(built(1, scalar=False).state_dict()))


def fsdp2_writes(folder: Path) -> None:
    model = built(1, scalar=False)
    for linear in (model.first, model.second):
        fully_shard(linear)
    fully_shard(model)
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)


def test_plain_torch_reads_what_is_written_here(tmp_path: Path) -> None:
    ranks.run(3, save, tmp_path / "saved", 3, 0)
    assert ranks.run(1, plain_reads, tmp_path / "saved") == [True]


def test_fully_shard_reads_what_is_written_here(tmp_path: Path) -> None:
    ranks.run(3, save, tmp_path / "saved", 3, 0, False)
    assert ranks.run(2, fsdp2_reads, tmp_path / "saved") == [True, True]


def test_what_fully_shard_writes_is_read_here(tmp_path: Path) -> None:
    ranks.run(2, fsdp2_writes, tmp_path / "saved")
    for found in ranks.run(3, load, tmp_path / "saved", 3, False):
        assert same(found, dict(built(1, scalar=False).state_dict()))
