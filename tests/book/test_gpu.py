"""What needs a CUDA device: `pytest -m gpu`. NCCL on all GPUs there are, and two gloo ranks on one."""

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

pytestmark = pytest.mark.gpu
STEPS = 3


def on_gpu(data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return data[0].cuda(), data[1].cuda()


def training_on_a_gpu() -> float:
    """The largest difference from the reference, relative to the largest gradient of the tensor."""
    from shardbook import shard

    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    plain, sharded = chain().cuda(), shard(chain(seed=rank).cuda(), units=(nn.Linear, nn.Embedding))
    optimizers = [optimizer_for("adamw", model.parameters()) for model in (plain, sharded)]
    worst = 0.0
    for step in range(STEPS):
        reference_step(
            plain, [[partial(error, plain, on_gpu(batch(other, step))) for other in range(world_size)]]
        )
        error(sharded, on_gpu(batch(rank, step))).backward()
        found, expected = whole_gradients(sharded), plain_gradients(plain)
        # What a sharded model saves is in the host's memory.
        assert {value.device.type for value in found.values()} == {"cpu"}
        for name, value in expected.items():
            worst = max(worst, ((found[name].cuda() - value).abs().max() / value.abs().max()).item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return worst


def test_nccl_alone_equals_plain_training() -> None:
    assert ranks.run(1, training_on_a_gpu, backend="nccl", timeout=120) == [0.0]


def test_nccl_on_every_gpu_equals_the_reference() -> None:
    """NCCL adds in an order of its own, so from 3 ranks on the last bits may differ."""
    for worst in ranks.run(torch.cuda.device_count(), training_on_a_gpu, backend="nccl", timeout=240):
        assert worst <= 1e-5


def test_two_gloo_ranks_that_share_the_gpu_equal_the_reference() -> None:
    for worst in ranks.run(2, training_on_a_gpu, timeout=120):
        assert worst <= 1e-6


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
