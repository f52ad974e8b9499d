"""One rank of one contender. All of them train the same model; they differ in one function."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from shardbook import gpt, shard

WARM_UP = 2


def ddp(model: gpt.GPT) -> nn.Module:
    """Every rank holds everything."""
    return DistributedDataParallel(model)


def fsdp2(model: gpt.GPT) -> nn.Module:
    """PyTorch's sharding as its documentation applies it: each part by itself, then the rest."""
    for part in model:
        fully_shard(part)
    return fully_shard(model)


def fsdp2_tuned(model: gpt.GPT) -> nn.Module:
    """The same with asynchronous gathers and the next part named in both directions."""
    fsdp2(model)
    parts = [part for part in model if isinstance(part, FSDPModule)]
    for part, following in pairwise(parts):
        part.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([part])
    for part in parts:
        part._set_unshard_async_op(True)
    return model


def shardbook(model: gpt.GPT) -> nn.Module:
    """This project."""
    return shard(model)


CONTENDERS: dict[str, Callable[[gpt.GPT], nn.Module]] = {
    one.__name__: one for one in (ddp, fsdp2, fsdp2_tuned, shardbook)
}


def main(name: str, layers: int, width: int, context: int, batch: int, steps: int) -> None:
    """Train, and let rank 0 print what this run showed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    base = memory("VmRSS")
    torch.manual_seed(0)
    model = gpt.GPT(gpt.Config(layers=layers, width=width, heads=8, context=context))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trained = CONTENDERS[name](model)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4, foreach=False)
    torch.manual_seed(1 + rank)
    seconds = []
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            dist.barrier()
            before = sent()
        started = time.perf_counter()
        inputs, targets = torch.randint(0, 256, (2, batch, context))
        gpt.loss(trained(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
    dist.barrier()
    after = sent()
    if rank == 0:
        figures = {
            "seconds": sorted(seconds[WARM_UP:])[steps // 2],
            "peak": memory("VmHWM") - base,
            "sent": (after - before) / steps / ranks if os.environ["COUNTED"] else None,
            "parameters": parameters,
        }
        print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


def memory(field: str) -> int:
    """Bytes of this process that are, or at their highest were, in memory."""
    status = Path("/proc/self/status").read_text("utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def sent() -> int:
    """Bytes that went over this network's loopback so far, from all ranks, headers included."""
    lines = Path("/proc/self/net/dev").read_text("utf-8").splitlines()
    (loopback,) = (line for line in lines if line.strip().startswith("lo:"))
    return int(loopback.split(":")[1].split()[8])


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
