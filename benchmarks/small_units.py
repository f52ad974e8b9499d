"""A step of many small units: layers of width 64, each a unit of its own.

Such a step hardly computes, so its time is what Python and the exchanges take. The contenders train by turns
in the same processes, and the medians of their steps are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from shardbook import Prefetch, shard

WIDTH, BATCH = 64, 8


class Layer(nn.Sequential):
    """One unit."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def fsdp2(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


CONTENDERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": DistributedDataParallel,
    "fsdp2": fsdp2,
    **{
        f"stage_{stage}": lambda model, stage=stage: shard(model, stage=stage, units=Layer)  # type: ignore[misc]
        for stage in range(4)
    },
    "together": lambda model: shard(model, units=Layer, prefetch=Prefetch(together=2**20)),
}


def measure(layers: int, rounds: int, steps: int) -> dict[str, float]:
    """The median time of a step of each contender, in milliseconds."""
    torch.set_num_threads(1)
    trained = {}
    for name, spread in CONTENDERS.items():
        torch.manual_seed(0)
        model = spread(nn.Sequential(*(Layer() for _ in range(layers))))
        trained[name] = model, torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(BATCH, WIDTH)
    took: dict[str, list[float]] = {name: [] for name in trained}
    for round_ in range(rounds + 1):
        for name, (model, optimizer) in trained.items():
            for _ in range(steps):
                dist.barrier()
                start = time.perf_counter()
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                # The first round warms up.
                took[name] += [time.perf_counter() - start] if round_ else []
    return {name: 1000 * statistics.median(each) for name, each in took.items()}


def ratios(took: dict[str, float]) -> dict[str, float]:
    """The time of each stage's step over that of each peer, and over the next stage's."""
    stages = {name: took[name] for name in took if name.startswith("stage_")}
    over = {
        f"small_{name}_{peer}": took[name] / took[peer]
        for name in (*stages, "together")
        for peer in ("ddp", "fsdp2")
    }
    following = zip(stages, list(stages.items())[1:], strict=False)
    return over | {f"small_{name}_{after}": stages[name] / each for name, (after, each) in following}


def table(took: dict[str, float]) -> str:
    """The contenders, one a line."""
    rows = [f"{'many small units':24}{'ms a step':>10}{'of DDP':>9}{'of FSDP2':>10}"]
    rows += [f"{name:24}{t:10.1f}{t / took['ddp']:9.2f}{t / took['fsdp2']:10.2f}" for name, t in took.items()]
    return "\n".join(rows)
