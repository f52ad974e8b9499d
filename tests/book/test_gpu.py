"""What needs a CUDA device: `pytest -m gpu`. NCCL on all GPUs there are, and two gloo ranks on one.

What does not ask for CUDA by name runs on the late device, too (`device/`), in `make test-all`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
from book.toys import batch, chain, error, optimizer_for, plain_gradients, reference_step, whole_gradients

STEPS = 3
# What carries the exchanges of tensors on a type of device.
BACKENDS = {"cuda": "nccl", "late": "cpu:gloo,late:late"}


def moved(data: tuple[Tensor, Tensor], kind: str) -> tuple[Tensor, Tensor]:
    return data[0].to(kind), data[1].to(kind)


def training_on(kind: str) -> float:
    """The largest difference from the reference, relative to the largest gradient of the tensor."""
    from shardbook import shard

    rank, world_size = dist.get_rank(), dist.get_world_size()
    module = torch.get_device_module(kind)
    module.set_device(rank % module.device_count())
    plain, sharded = chain().to(kind), shard(chain(seed=rank).to(kind), units=(nn.Linear, nn.Embedding))
    optimizers = [optimizer_for("adamw", model.parameters()) for model in (plain, sharded)]
    worst = 0.0
    for step in range(STEPS):
        reference_step(
            plain, [[partial(error, plain, moved(batch(other, step), kind)) for other in range(world_size)]]
        )
        error(sharded, moved(batch(rank, step), kind)).backward()
        found, expected = whole_gradients(sharded), plain_gradients(plain)
        # What a sharded model saves is in the host's memory.
        assert {value.device.type for value in found.values()} == {"cpu"}
        for name, value in expected.items():
            worst = max(worst, ((found[name].to(kind) - value).abs().max() / value.abs().max()).item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return worst


def test_one_rank_equals_plain_training(accelerator: str) -> None:
    assert ranks.run(1, training_on, accelerator, backend=BACKENDS[accelerator], timeout=120) == [0.0]


def test_a_rank_on_every_device_equals_the_reference(accelerator: str) -> None:
    """NCCL adds in an order of its own, so from 3 ranks on the last bits may differ."""
    count = torch.cuda.device_count() if accelerator == "cuda" else 2
    for worst in ranks.run(count, training_on, accelerator, backend=BACKENDS[accelerator], timeout=240):
        assert worst <= 1e-5


@pytest.mark.gpu
def test_two_gloo_ranks_that_share_the_gpu_equal_the_reference() -> None:
    for worst in ranks.run(2, training_on, "cuda", timeout=120):
        assert worst <= 1e-6


@pytest.mark.gpu
def test_the_stream_sanitizer_finds_no_race_in_a_training_step() -> None:
    """CUDA's own happens-before checker watches a step; it raises at the first access that nothing orders."""
    environment = {**os.environ, "TORCH_CUDA_SANITIZER": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    training = ["-m", "shardbook.train", "--steps", "2", "--layers", "3", "--device", "cuda"]
    result = subprocess.run(
        [*command, *training], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "CSAN detected" not in result.stderr
