"""Saving and loading: the plain model's keys and shapes, at any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ranks
from book.toys import assert_equal, batch, chain, error


def train_and_save(folder: str) -> None:
    from shardbook import shard

    model = shard(chain(), units=(nn.Linear, nn.LayerNorm))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    error(model, batch(dist.get_rank(), 0)).backward()
    optimizer.step()
    state = model.state_dict()
    # What was saved is a copy: training on does not change it.
    kept = {name: value.clone() for name, value in state.items()}
    error(model, batch(dist.get_rank(), 1)).backward()
    optimizer.step()
    assert_equal(dict(state), kept)
    assert any(not torch.equal(value, state[name]) for name, value in model.state_dict().items())
    if dist.get_rank() == 0:
        torch.save(state, f"{folder}/model.pt")


def load(folder: str) -> float:
    """Load into a sharded model, and compute one loss."""
    from shardbook import shard

    model = shard(chain(seed=7))
    model.load_state_dict(torch.load(f"{folder}/model.pt"))
    assert all(parameter.dim() == 1 for parameter in model.parameters())
    assert_equal(dict(model.state_dict()), torch.load(f"{folder}/model.pt"))
    return error(model, batch(0, 0)).item()


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(("saved_by", "loaded_by"), [(2, 3), (3, 1)])
def test_what_some_ranks_save_other_numbers_of_ranks_and_a_plain_model_load(
    saved_by: int, loaded_by: int, tmp_path: Path
) -> None:
    ranks.run(saved_by, train_and_save, str(tmp_path))
    plain = chain(seed=8)
    plain.load_state_dict(torch.load(tmp_path / "model.pt"))
    expected = error(plain, batch(0, 0)).item()
    for found in ranks.run(loaded_by, load, str(tmp_path)):
        assert found == expected


def bad_loads() -> list[str]:
    from shardbook import shard

    said = []
    wrong = chain().state_dict()
    wrong["4.bias"] = torch.zeros(3)
    model = shard(chain())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError) as caught:
        model.load_state_dict(wrong)
    said.append(str(caught.value))
    # The refused tensor is unchanged, and the model trains on.
    assert torch.equal(model.state_dict()["4.bias"], before["4.bias"])
    error(model, batch(dist.get_rank(), 0)).backward()
    with pytest.raises(RuntimeError) as caught:
        model.load_state_dict(chain().state_dict(), assign=True)
    said.append(str(caught.value))
    return said


def test_a_wrong_shape_and_assign_are_refused_with_the_name() -> None:
    for shape, assign in ranks.run(2, bad_loads):
        assert "size mismatch for 4.bias" in shape
        assert "0.weight was replaced, not loaded; call load_state_dict without assign=True" in assign


def test_what_is_saved_is_copied_to_the_host() -> None:
    """A fake device has no memory, but PyTorch keeps its name."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from shardbook.zero.state_dict import on_the_host

    with FakeTensorMode():
        value = torch.ones(3, 2, device="cuda")
        assert on_the_host(value).device.type == "cpu"
    # Where the parameter is on the host already, the copy is one all the same.
    value = torch.ones(3)
    copy = on_the_host(value)
    value.zero_()
    assert copy.tolist() == [1, 1, 1]


def saved_by_rank_0() -> list[str]:
    from shardbook import rank0_only, shard
    from shardbook.zero.state_dict import spared

    rank = dist.get_rank()
    for stage in range(4):
        model = nn.Sequential(chain(), nn.BatchNorm1d(6))
        model[0][4].weight = model[0][0].weight
        shard(model, stage=stage, units=(nn.Linear, nn.LayerNorm))
        whole = model.state_dict()
        with rank0_only(model):
            with pytest.raises(ZeroDivisionError), rank0_only(model):
                raise ZeroDivisionError
            part = model.state_dict()
        assert not spared, spared
        buffers = [name for name, _ in model.named_buffers()]
        assert list(part) == (buffers if rank else list(whole)), (stage, list(part))
        assert_equal({name: whole[name] for name in part}, dict(part))
        # Tied parameters stay one in the copy.
        assert rank or part["0.0.weight"] is part["0.4.weight"]
        assert_equal(dict(model.state_dict()), dict(whole))
    with pytest.raises(ValueError, match="not sharded") as caught, rank0_only(chain()):
        pass
    return [str(caught.value)]


def test_only_rank_0_may_keep_the_whole() -> None:
    for (said,) in ranks.run(2, saved_by_rank_0):
        assert said == "this Sequential is not sharded; call shard(model) first"
