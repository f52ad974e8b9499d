"""One run of one checkpoint, or of two in turns: the same GPT, and another function around each block."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
from benchmarks.contender import config_of
from benchmarks.launch import Size
from torch import nn
from torch.utils.checkpoint import checkpoint as theirs

from shardbook.checkpointing.checkpointing import checkpoint_module
from shardbook.models import gpt
from shardbook.planning.forecast import Meter


@dataclass(frozen=True)
class Step:
    """What one run showed.

    `seconds` is the median step. `saved` are the bytes that the blocks leave behind for the backward pass,
    and `peak` the most that is alive at any time of a step, both counted storage by storage.
    """

    seconds: float
    saved: int
    peak: int


def ours(model: gpt.GPT, *, use_reentrant: bool) -> nn.Module:
    """Every block, checkpointed by this book."""
    return checkpoint_module(model, gpt.Block, use_reentrant=use_reentrant)


def pytorch(model: gpt.GPT, *, use_reentrant: bool) -> nn.Module:
    """Every block, checkpointed by PyTorch, with its default options."""
    for block in model.blocks:
        run = partial(theirs, block.forward, use_reentrant=use_reentrant)
        block.forward = run  # type: ignore[method-assign]
    return model


def plain(model: gpt.GPT) -> nn.Module:
    """No checkpoint at all, to show what the others save and cost."""
    return model


CONTENDERS: dict[str, Callable[[gpt.GPT], nn.Module]] = {
    "shardbook": partial(ours, use_reentrant=False),
    "torch": partial(pytorch, use_reentrant=False),
    "shardbook_reentrant": partial(ours, use_reentrant=True),
    "torch_reentrant": partial(pytorch, use_reentrant=True),
    "plain": plain,
}


def trainer(name: str, size: Size) -> Callable[[Callable[[], int]], int]:
    """A model of its own, as the function that trains it one step.

    The function takes a count of what is alive, and returns what the blocks add to it in the forward pass.
    """
    torch.manual_seed(0)
    model = gpt.GPT(config_of(size))
    CONTENDERS[name](model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    def step(count: Callable[[], int]) -> int:
        inputs, targets = torch.randint(0, size.vocabulary, (2, size.batch, size.context))
        x = model[0](inputs)
        before = count()
        for block in model.blocks:
            x = block(x)
        saved = count() - before
        gpt.loss(model[-1](x), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        return saved

    return step


def timed(step: Callable[[Callable[[], int]], int]) -> float:
    """The seconds of one step that counts nothing."""
    started = time.perf_counter()
    step(lambda: 0)
    return time.perf_counter() - started


def measure(name: str, size: Size) -> Step:
    """Train for some steps, and then count one more step, which is slow and therefore not timed."""
    step = trainer(name, size)
    seconds = [timed(step) for _ in range(size.warm_up + size.steps)][size.warm_up :]
    with Meter() as meter:
        saved = step(meter.now)
    return Step(statistics.median(seconds), saved, meter.peak)


def beside(name: str, other: str, size: Size) -> list[float]:
    """Train two models in turns, and divide the seconds of each step by those of the step beside it."""
    first, second = trainer(name, size), trainer(other, size)
    ratios = []
    for number in range(size.warm_up + size.steps):
        if number % 2 == 0:
            mine, others = timed(first), timed(second)
        else:
            others, mine = timed(second), timed(first)
        ratios.append(mine / others)
    return ratios[size.warm_up :]


if __name__ == "__main__":
    torch.set_num_threads(1)
    size, *names = Size(**json.loads(sys.argv[1])), *sys.argv[2:]
    found = beside(*names, size) if len(names) == 2 else asdict(measure(*names, size))
    print(json.dumps(found), flush=True)
    # Nothing is left to do, and taking the interpreter down takes as long as some steps.
    os._exit(0)
