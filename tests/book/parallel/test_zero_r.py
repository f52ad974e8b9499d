"""Ranks that share every matrix keep a piece of each checkpoint: the same gradients for one gather more."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor

import ranks
from shardbook.foundations.collectives import ledger, world
from shardbook.models import gpt
from shardbook.parallel import programs
from shardbook.parallel.tensor_parallel import checkpoint_bytes, logits, split_block
from shardbook.planning.forecast import Meter
from shardbook.streaming.residual import partition
from tiers import rows

pytestmark = pytest.mark.full

CONFIG = gpt.Config(layers=3, width=32, heads=4, context=16, vocabulary=32)
SEQUENCES = 4


def one_step(keeping: AbstractContextManager[object]) -> tuple[float, list[Tensor], int, dict[str, int]]:
    """The loss, the gradients, the bytes that the forward pass leaves, and the bytes sent."""
    torch.manual_seed(3)
    model = gpt.GPT(CONFIG)
    for block in model.blocks:
        split_block(block)
    tokens = torch.randint(CONFIG.vocabulary, (SEQUENCES, CONFIG.context + 1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:].contiguous()
    gc.collect()
    with ledger() as book:
        with Meter() as meter:
            before = meter.now()
            loss = gpt.loss(logits(model, inputs, keeping), targets)
        gc.collect()
        kept = meter.now() - before
        loss.backward()
    gradients = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        gradients.append(parameter.grad)
    return loss.item(), gradients, kept, book.sent


def both() -> tuple[bool, bool, int, dict[str, int], dict[str, int]]:
    """Whether loss and gradients are the same bits, the bytes saved, and the bytes sent in both ways."""
    loss, gradients, kept, sent = one_step(nullcontext())
    other, others, less, more = one_step(partition(least=0))
    same = all(torch.equal(a, b) for a, b in zip(gradients, others, strict=True))
    return loss == other, same, kept - less, sent, more


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("count", rows([2, 4], now=[2]))
def test_each_rank_keeps_a_piece_of_each_checkpoint_and_the_gradients_are_the_same_bits(count: int) -> None:
    values = SEQUENCES * CONFIG.context * CONFIG.width * 4 * (count - 1) // count
    for same_loss, same_gradients, saved, sent, more in ranks.run(count, both):
        assert same_loss
        assert same_gradients
        assert (
            saved == checkpoint_bytes(CONFIG, SEQUENCES, 1) - checkpoint_bytes(CONFIG, SEQUENCES, count) > 0
        )
        # Five all-reduces a block, each two gathers' worth, and one gather more.
        assert sent == {"all-reduce": CONFIG.layers * 10 * values}
        assert more == {**sent, "all-gather": CONFIG.layers * values}


def program() -> tuple[programs.Outcome, int]:
    torch.set_num_threads(1)
    return programs.zero_r(), world()[1]


def test_the_program_trains_like_one_rank_and_prints_the_bytes() -> None:
    for outcome, count in ranks.run(2, program):
        assert outcome.losses == pytest.approx(outcome.plain, rel=1e-5)
        assert outcome.notes == [
            "262,144 bytes of checkpoints on each of 1 rank",
            "131,072 bytes of checkpoints on each of 2 ranks",
            "1,310,720 bytes sent in a step by all-reduce",
            "131,072 bytes sent in a step by all-gather",
        ]
        assert count == 2
