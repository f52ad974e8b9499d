"""One rank of one contender. All train the same model with the same lines; they differ in one function."""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.launch import Size
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from shardbook import gpt, shard
from shardbook.collectives import ledger


def ddp(model: gpt.GPT) -> nn.Module:
    """Every rank holds everything."""
    return DistributedDataParallel(model)


def fsdp2(model: gpt.GPT) -> nn.Module:
    """PyTorch's sharding as its documentation applies it: each part by itself, then the rest."""
    for part in model:
        fully_shard(part)
    fully_shard(model)
    return model


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
    one.__name__: one for one in (shardbook, ddp, fsdp2, fsdp2_tuned)
}


def main(name: str, size: Size) -> None:
    """Train, and let rank 0 print what this run showed, as one line of JSON."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    warm_base()
    base = memory("VmRSS")
    step = trainer(CONTENDERS[name], size)
    for _ in range(size.warm_up):
        step()
    dist.barrier()
    forget_peak()
    before = network_bytes()
    seconds = []
    with ledger() as book:
        for _ in range(size.steps):
            started = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - started)
    dist.barrier()
    crossed = network_bytes() - before
    mine = (statistics.median(seconds), memory("VmHWM") - base, memory("VmRSS") - base)
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    if dist.get_rank() == 0:
        report = {
            "seconds": max(rank[0] for rank in ranks),
            "peak": max(rank[1] for rank in ranks),
            "steady": max(rank[2] for rank in ranks),
            "wire": crossed / size.steps / len(ranks) if os.environ["COUNTED"] else None,
            "payload": book.total / size.steps if name == "shardbook" else None,
        }
        print(json.dumps(report), flush=True)
    dist.barrier()
    # torch may keep the backend's threads running; to take the interpreter down around them can abort.
    os._exit(0)


def trainer(apply: Callable[[gpt.GPT], nn.Module], size: Size) -> Callable[[], None]:
    """Build the model and the optimizer, and return one step of training."""
    torch.manual_seed(0)
    model = apply(gpt.GPT(config_of(size)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    torch.manual_seed(1 + dist.get_rank())

    def step() -> None:
        shape = (2, size.batch, size.context)
        inputs, targets = torch.randint(0, size.vocabulary, shape)
        gpt.loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def config_of(size: Size) -> gpt.Config:
    """The shape of the model."""
    return gpt.Config(size.layers, size.width, size.heads, size.context, size.vocabulary)


def warm_base() -> None:
    """Use once, at a small size, what every contender uses: libraries that load late are nobody's memory."""
    step = trainer(
        ddp, Size(layers=1, width=8, heads=1, context=8, vocabulary=8, batch=1, steps=1, warm_up=0)
    )
    for _ in range(2):
        step()
    del step
    gc.collect()


def memory(field: str) -> int:
    """Bytes of this process that are, or at their highest were, in memory."""
    status = Path("/proc/self/status").read_text("utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Let the system's record of the highest memory start again from now."""
    Path("/proc/self/clear_refs").write_text("5", "utf-8")


def network_bytes() -> int:
    """Bytes that crossed this network's loopback so far, from all ranks, all headers included."""
    lines = Path("/proc/self/net/dev").read_text("utf-8").splitlines()
    (loopback,) = (line for line in lines if line.strip().startswith("lo:"))
    return int(loopback.split(":")[1].split()[8])


if __name__ == "__main__":
    main(sys.argv[1], Size(**json.loads(sys.argv[2])))
