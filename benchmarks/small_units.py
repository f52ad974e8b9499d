"""Measure a step of many small units: 64 layers of width 64, each a unit of its own, on two ranks and CPUs.

Such a step hardly computes, so its time is what Python and the exchanges take. The contenders train by turns
in the same processes, and the medians of their steps are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from benchmarks.__main__ import positive, processor
from benchmarks.launch import on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from shardbook import shard

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


def main() -> None:
    """Print the table, and write it as JSON if a file is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_units", description=__doc__)
    parser.add_argument("--layers", type=positive, default=64)
    parser.add_argument("--rounds", type=positive, default=12)
    parser.add_argument("--steps", type=positive, default=3, help="steps of a contender in a round")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    took = on_ranks(2, measure, given.layers, given.rounds, given.steps)
    print(f"{processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; torch {torch.__version__}")
    print(f"{'':10}{'ms a step':>10}{'of DDP':>9}{'of FSDP2':>10}")
    for name, each in took.items():
        print(f"{name:10}{each:10.1f}{each / took['ddp']:9.2f}{each / took['fsdp2']:10.2f}")
    if given.json:
        given.json.write_text(json.dumps({f"{name}_ms": each for name, each in took.items()}) + "\n", "utf-8")


if __name__ == "__main__":
    main()
