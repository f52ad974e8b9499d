"""# The programs of this part

> Each program trains a small GPT that is split over the ranks, and the same GPT on one rank for comparison.

The programs run on CPU ranks over gloo, in FP32 with AdamW. All ranks build the whole
model from one seed. A real job would not do that, because its model fits on no rank.
Here it makes the comparison exact: the values, the batches and the optimizer are the
same, so the losses may differ by rounding only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from shardbook.foundations.collectives import ledger, world
from shardbook.models import gpt
from shardbook.parallel.pipeline_parallel import Stage, bubble, cut
from shardbook.parallel.tensor_parallel import (
    AXES,
    checkpoint_bytes,
    logits,
    split_block,
    stage_of,
)
from shardbook.streaming.residual import partition

__all__ = ["Outcome", "pipeline", "tensor", "three", "zero_r"]

CONFIG = gpt.Config(layers=4, width=64, heads=4, context=32, vocabulary=64)
SEQUENCES, PIECES, STEPS, RATE = 8, 4, 5, 1e-3


@dataclass
class Outcome:
    """The results of a program.

    :param losses: the mean loss of each step, split over the ranks
    :param plain: the same for the whole model on one rank
    :param stored: the number of parameters that this rank trains
    :param notes: further lines to print
    """

    losses: list[float]
    plain: list[float]
    stored: int
    notes: list[str]


def tensor() -> Outcome:
    """Train with every matrix shared by all ranks, which read the same batch."""
    model = seeded()
    for block in model.blocks:
        split_block(block)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses = []
    with ledger() as sent:
        for inputs, targets in batches():
            losses.append(trained(model, optimizer, inputs, targets))
    size = SEQUENCES * CONFIG.context * CONFIG.width * 4
    note = (
        f"{sent.total // STEPS:,} bytes sent by this rank in a step, "
        f"for four all-reduces a block of {size:,} bytes"
    )
    return Outcome(losses, plain(), count(model), [note])


def pipeline() -> Outcome:
    """Train with some of the layers on each rank, and several micro-batches in a step."""
    rank, stages = world()
    layers = cut(list(seeded()), rank, stages)
    shape = (SEQUENCES // PIECES, CONFIG.context, CONFIG.width)
    stage = Stage(layers, shape, gpt.loss)
    losses = stepped(stage)
    return Outcome(
        losses,
        plain(),
        count(layers),
        [
            f"at most {stage.most_kept} of {PIECES} micro-batches kept at a time on this rank",
            f"{bubble(stages, PIECES):.0%} of the time is the bubble, if all passes take equally long",
        ],
    )


def zero_r() -> Outcome:
    """Train with every matrix shared by all ranks, and every checkpoint, too."""
    model = seeded()
    for block in model.blocks:
        split_block(block)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    call = partial(logits, model, keeping=partition(least=0))
    with ledger() as book:
        losses = [trained(call, optimizer, *batch) for batch in batches()]
    sent = {name: nbytes // STEPS for name, nbytes in book.sent.items()}
    notes = [
        f"{checkpoint_bytes(CONFIG, SEQUENCES, ranks):,} bytes of checkpoints "
        f"on each of {ranks} rank{'s' * (ranks > 1)}"
        for ranks in sorted({1, world()[1]})
    ]
    notes += [f"{n:,} bytes sent in a step by {name}" for name, n in sent.items()]
    return Outcome(losses, plain(), count(model), notes)


def three(stage: int = 1) -> Outcome:
    """Train on eight ranks: two pipeline stages, two parts of the data and of each matrix."""
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=AXES)
    torch.manual_seed(0)
    mine = stage_of(CONFIG, mesh, sequences=SEQUENCES // 2 // PIECES, stage=stage)
    losses = stepped(mine, mesh["data"].get_local_rank(), 2, mesh["data"].get_group())
    place = ", ".join(f"{name} {mesh[name].get_local_rank()}" for name in AXES)
    return Outcome(
        losses, plain(), count(mine.layers), [f"place of this rank: {place}"]
    )


def stepped(
    stage: Stage, part: int = 0, parts: int = 1, group: object = None
) -> list[float]:
    """Train one stage of a pipeline on its part of the data.

    Only the last stage has the loss, so all ranks add up theirs.

    :returns: the losses, on every rank
    """
    optimizer = torch.optim.AdamW(stage.layers.parameters(), lr=RATE)
    losses = []
    for batch in batches():
        inputs, targets = (x.chunk(parts)[part].chunk(PIECES) for x in batch)
        loss = torch.tensor(stage.step(inputs, targets))
        optimizer.step()
        optimizer.zero_grad()
        # The ranks that share a matrix have each computed the same loss.
        dist.all_reduce(loss)
        losses.append(loss.item() * stage.stages / world()[1])
    return losses


def plain() -> list[float]:
    """The same training on this rank alone, with the whole model and the whole batch."""
    model = seeded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    return [trained(model, optimizer, *batch) for batch in batches()]


def seeded() -> gpt.GPT:
    """The same model on every rank."""
    torch.manual_seed(0)
    return gpt.GPT(CONFIG)


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """The same batches on every rank: inputs, and the tokens that follow them."""
    numbers = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        tokens = torch.randint(
            CONFIG.vocabulary, (SEQUENCES, CONFIG.context + 1), generator=numbers
        )
        yield tokens[:, :-1], tokens[:, 1:]


def trained(
    model: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
) -> float:
    """One step, and its loss."""
    loss = gpt.loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def count(model: nn.Module) -> int:
    """The number of values that a rank's optimizer trains."""
    return sum(parameter.numel() for parameter in model.parameters())
