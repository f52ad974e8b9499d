"""How often a unit is gathered in a step: each row of the table in the chapter of units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import ranks

WIDTH, UNITS, WORLD, PIECES = 6, 4, 2, 3
Step = Callable[["Chain"], None]


class Block(nn.Module):
    """A unit whose size no other one has, so that an exchange says whose it is."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 8 * number + 8), nn.Linear(8 * number + 8, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.tanh(self.first(x)))  # type: ignore[no-any-return]


class Chain(nn.Module):
    """Four units; with a checkpoint around the calls of `span` of them, if one is given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(map(Block, range(UNITS)))
        self.around: Callable[..., Tensor] = lambda function, x: function(x)
        self.span = 1

    def part(self, start: int, x: Tensor) -> Tensor:
        for block in self.blocks[start : start + self.span]:
            x = block(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        for start in range(0, UNITS, self.span):
            x = self.around(partial(self.part, start), x)
        return x


def loss(model: Chain) -> Tensor:
    return model(torch.ones(2, WIDTH, requires_grad=True)).square().mean()  # type: ignore[no-any-return]


def plain(model: Chain) -> None:
    loss(model).backward()


def evaluated(model: Chain) -> None:
    with torch.no_grad():
        loss(model)


def exchanged(model: Chain) -> None:
    for _ in range(PIECES):
        plain(model)


def summed(model: Chain) -> None:
    from shardbook import no_sync

    for piece in range(PIECES):
        with no_sync(model) if piece < PIECES - 1 else nullcontext():
            plain(model)


def piped(model: Chain, ahead: int) -> None:
    """The forward and backward passes of one stage of a pipeline of 3; `ahead` of them come behind it."""
    from shardbook import no_sync
    from shardbook.parallel.pipeline_parallel import one_by_one

    outs = {}
    for kind, piece in one_by_one(2 - ahead, 3, PIECES):
        if kind == "forward":
            outs[piece] = loss(model)
            continue
        with no_sync(model) if piece < PIECES - 1 else nullcontext():
            outs.pop(piece).backward()


def all_first(model: Chain) -> None:
    from shardbook import no_sync

    outs = [loss(model) for _ in range(PIECES)]
    for piece, out in enumerate(outs):
        with no_sync(model) if piece < PIECES - 1 else nullcontext():
            out.backward()


# A row of the table: the step, what is checkpointed, and how often each unit is gathered in stages 1 and 2,
# and in stage 3.
ROWS: dict[str, tuple[Step, str, int | list[int], int | list[int]]] = {
    "one batch": (plain, "", 1, 2),
    "an evaluation": (evaluated, "", 1, 1),
    "micro-batches, each exchanged": (exchanged, "", PIECES, 2 * PIECES),
    "micro-batches under no_sync": (summed, "", 1, 2 * PIECES),
    "1F1B, last stage": (partial(piped, ahead=0), "", 1, 2 * PIECES),
    "1F1B, the stage before": (partial(piped, ahead=1), "", 2, 2 * PIECES),
    "1F1B, two stages before": (partial(piped, ahead=2), "", 3, 2 * PIECES),
    "all forward passes first": (all_first, "", PIECES, 2 * PIECES),
    "a checkpoint of each unit": (plain, "units", 1, 2),
    "a checkpoint around each call": (plain, "saved 1", 1, 2),
    "a checkpoint around several units": (plain, "saved 2", 1, [3, 2, 3, 2]),
    "a reentrant checkpoint around each call": (plain, "reentrant 1", 1, 3),
    "a reentrant checkpoint around several units": (plain, "reentrant 2", 1, 3),
}

# In these rows a forward pass of the model follows another one, which stage 3 cannot expect.
IN_VAIN = {"1F1B, the stage before", "1F1B, two stages before", "all forward passes first"}


def counts(prefetch: int) -> dict[str, list[list[int]]]:
    """Of each row, how often each unit is gathered in the second step, in stages 1 to 3."""
    from shardbook.foundations.collectives import ledger

    found: dict[str, list[list[int]]] = {}
    for row, (step, how, *_) in ROWS.items():
        for stage in (1, 2, 3):
            model = made(how, stage, prefetch)
            # As after many steps: a version is no small number.
            with torch.no_grad():
                for _ in range(300):
                    torch._foreach_mul_(list(model.parameters()), 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                with ledger() as book:
                    step(model)
                optimizer.step()
                optimizer.zero_grad()
            sizes = Counter(call.payload for call in book.calls if call.collective == "all-gather")
            found.setdefault(row, []).append([sizes[size] for size in sorted(sizes)])
    return found


def made(how: str, stage: int, prefetch: int) -> Chain:
    from shardbook import shard
    from shardbook.checkpointing.checkpointing import checkpoint_module
    from shardbook.checkpointing.reentrant import checkpoint_reentrant
    from shardbook.checkpointing.saved_tensors import checkpoint_saved

    model = Chain()
    variant, _, span = how.partition(" ")
    if span:
        model.around = {"saved": checkpoint_saved, "reentrant": checkpoint_reentrant}[variant]
        model.span = int(span)
    model = shard(model, units=Block, stage=stage, prefetch=prefetch)
    return checkpoint_module(model, units=Block) if how == "units" else model


def listed(times: int | list[int]) -> list[int]:
    return [times] * UNITS if isinstance(times, int) else times


def test_each_row_of_the_table_is_what_a_step_gathers() -> None:
    for found in ranks.run(WORLD, counts, 0):
        for row, (_, _, kept, freed) in ROWS.items():
            assert found[row] == [listed(kept), listed(kept), listed(freed)], row


@pytest.mark.full
def test_gathering_ahead_gathers_one_unit_more_where_a_forward_pass_follows_another() -> None:
    for found in ranks.run(WORLD, counts, 1):
        for row, (_, _, kept, freed) in ROWS.items():
            more = sum(found[row][2]) - sum(listed(freed))
            assert found[row][:2] == [listed(kept)] * 2, row
            assert more == (row in IN_VAIN), row
