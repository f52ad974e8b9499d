"""One rank of one contender. All train the same model with the same lines; they differ in one function."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.floor import config_of, without_exchanges
from benchmarks.launch import Run, Size
from benchmarks.steady import steady
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from shardbook import checkpoint_module, shard
from shardbook.foundations.collectives import ledger
from shardbook.foundations.exchange_order import Order
from shardbook.models import gpt
from shardbook.models.chunked_loss import ChunkedGPT
from shardbook.training.accumulate import step_in_backward

CHUNKS = 8


def ddp(model: gpt.GPT) -> nn.Module:
    """Every rank holds everything."""
    return DistributedDataParallel(model)


def fsdp2(model: gpt.GPT) -> nn.Module:
    """PyTorch's sharding of the same parts as ours: each part by itself, then the rest."""
    for part in model:
        fully_shard(part)
    fully_shard(model)
    return model


def fsdp2_blocks(model: gpt.GPT) -> nn.Module:
    """PyTorch's sharding as its tutorial applies it: each block by itself, then the rest."""
    for part in model.blocks:
        fully_shard(part)
    fully_shard(model)
    return model


def fsdp2_tuned(model: gpt.GPT) -> nn.Module:
    """The first of the two, with asynchronous gathers and the next part named in both directions."""
    fsdp2(model)
    parts = [part for part in model if isinstance(part, FSDPModule)]
    for part, following in pairwise(parts):
        part.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([part])
    for part in parts:
        part._set_unshard_async_op(True)
    return model


def fsdp2_checkpointed(model: gpt.GPT) -> nn.Module:
    """PyTorch's sharding, with its own checkpoint around each block."""
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    return fsdp2(model)


def checkpointed(model: gpt.GPT, prefetch: int = 1) -> nn.Module:
    """Our sharding, with our checkpoint around each block."""
    return shard(checkpoint_module(model, gpt.Block), prefetch=prefetch)


@dataclass(frozen=True)
class Contender:
    """How a model is made parallel, and what of the training is not the plain way."""

    apply: Callable[[gpt.GPT], nn.Module]
    chunked: bool = False
    step_in_backward: bool = False
    exchanges: bool = True


lazy = partial(shard, prefetch=0)
lazy_checkpointed = partial(checkpointed, prefetch=0)
# These run in every round, the others only to show what each lever does alone.
CORE: dict[str, Contender] = {
    "shardbook": Contender(shard),
    "shardbook_lean": Contender(lazy, chunked=True, step_in_backward=True),
    "shardbook_leanest": Contender(lazy_checkpointed, chunked=True, step_in_backward=True),
    "ddp": Contender(ddp),
    "fsdp2": Contender(fsdp2),
    "fsdp2_tuned": Contender(fsdp2_tuned),
    "floor": Contender(shard, exchanges=False),
}
LEVERS: dict[str, Contender] = {
    "fsdp2": CORE["fsdp2"],
    "fsdp2_blocks": Contender(fsdp2_blocks),
    "fsdp2_chunked": Contender(fsdp2, chunked=True),
    "fsdp2_checkpointed": Contender(fsdp2_checkpointed),
    "shardbook": CORE["shardbook"],
    "shardbook_chunked": Contender(shard, chunked=True),
    "shardbook_step_in_backward": Contender(shard, step_in_backward=True),
    "shardbook_lazy": Contender(lazy),
    "shardbook_checkpointed": Contender(checkpointed),
    "shardbook_lean": CORE["shardbook_lean"],
    "shardbook_leanest": CORE["shardbook_leanest"],
}
CONTENDERS = {**CORE, **LEVERS}


def train(name: str, size: Size) -> Run:
    """Train on this rank, and return what the run showed on all of them."""
    warm_base()
    base = memory("VmRSS")
    contender = CONTENDERS[name]
    training = Training(contender, size)
    exchanges = nullcontext if contender.exchanges else without_exchanges
    with exchanges():
        for _ in range(size.warm_up):
            training.step()
    dist.barrier()
    forget_peak()
    before = network_bytes()
    seconds = []
    computed = time.process_time()
    with ledger() as book, timed("before") as checks, timed("watch") as waits, exchanges():
        for _ in range(size.steps):
            started = time.perf_counter()
            training.step()
            seconds.append(time.perf_counter() - started)
    computed = time.process_time() - computed
    dist.barrier()
    crossed = network_bytes() - before
    peak, resident = memory("VmHWM") - base, memory("VmRSS") - base
    ours = name.startswith("shardbook")
    mine = {
        "seconds": statistics.median(seconds),
        "cpu": computed / size.steps,
        "peak": peak,
        "steady": resident,
        "checks": sum(checks) / size.steps if ours else None,
        "waits": sum(waits) / size.steps if ours else None,
        "stored": steady(training.model, training.optimizers) if ours else None,
    }
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    return Run(
        **{key: max(rank[key] for rank in ranks) for key in ("seconds", "cpu", "peak", "steady")},
        wire=crossed / size.steps / len(ranks) if os.environ["COUNTED"] else None,
        payload=book.total / size.steps if ours else None,
        **{key: max(rank[key] for rank in ranks) if ours else None for key in ("checks", "waits")},
        stored=max((rank["stored"] for rank in ranks), key=lambda stored: sum(stored.values()))
        if ours
        else None,
    )


class Training:
    """A model, its optimizers, and one step after the other, each on new data."""

    def __init__(self, contender: Contender, size: Size) -> None:
        torch.manual_seed(0)
        config = config_of(size)
        self.size, self.chunked = size, contender.chunked
        self.model = contender.apply(ChunkedGPT(config, CHUNKS) if self.chunked else gpt.GPT(config))
        make_optimizer = partial(torch.optim.AdamW, lr=1e-4, foreach=True)
        self.late = not contender.step_in_backward
        self.optimizers: tuple[torch.optim.Optimizer, ...] = (
            (make_optimizer(self.model.parameters()),)
            if self.late
            else step_in_backward(self.model, make_optimizer)
        )
        torch.manual_seed(1 + dist.get_rank())

    def step(self) -> None:
        """One step of training."""
        shape = (2, self.size.batch, self.size.context)
        inputs, targets = torch.randint(0, self.size.vocabulary, shape)
        self.error(inputs, targets).backward()
        if self.late:
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()

    def error(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss, all at once or chunk by chunk."""
        if self.chunked:
            value: Tensor = self.model(inputs, targets)
            return value
        return gpt.loss(self.model(inputs), targets)


@contextmanager
def timed(name: str) -> Iterator[list[float]]:
    """The seconds of every call of a method of the order.

    `before` checks that an exchange is the agreed one, and `watch` waits for its end.
    """
    seconds: list[float] = []
    plain = getattr(Order, name)

    def call(order: Order, *arguments: Any) -> None:
        started = time.perf_counter()
        plain(order, *arguments)
        seconds.append(time.perf_counter() - started)

    setattr(Order, name, call)
    try:
        yield seconds
    finally:
        setattr(Order, name, plain)


def warm_base() -> None:
    """Use once, at a small size, what every contender uses: libraries that load late are nobody's memory."""
    small = Size(layers=1, width=8, heads=1, context=8, vocabulary=8, batch=1, steps=1, warm_up=0)
    training = Training(CONTENDERS["ddp"], small)
    for _ in range(2):
        training.step()
    del training
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
