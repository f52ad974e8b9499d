"""What the training script reads, counts and predicts, piece by piece."""

from __future__ import annotations

import gc
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import ranks
from book.busy import held_for_a_while
from shardbook.foundations.collectives import ledger
from shardbook.models import gpt
from shardbook.models.corpus import Reader, read, split
from shardbook.models.gpt import GPT, Config
from shardbook.planning.forecast import Forecast, Meter, Setup, forecast
from shardbook.precision.loss_scaling import ShardedGradScaler
from shardbook.train.loop import step
from shardbook.train.options import parse
from shardbook.train.plan import Batches, Run, Schedule, make_optimizer
from shardbook.zero.model import shard


def numbers() -> torch.Tensor:
    return torch.arange(200, dtype=torch.uint8)


# --- who reads what ---


@given(
    world_size=st.integers(1, 5),
    batch=st.integers(1, 4),
    context=st.integers(1, 9),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 2),
)
def test_ranks_read_apart_and_together_read_what_one_would(
    world_size: int, batch: int, context: int, seed: int, epoch: int
) -> None:
    def reader(rank: int, ranks: int, rows: int) -> Reader:
        return Reader(numbers(), context=context, batch=rows, rank=rank, world_size=ranks, seed=seed)

    alone = reader(0, 1, batch * world_size)
    together = [reader(rank, world_size, batch) for rank in range(world_size)]
    starts: list[int] = []
    for number in range(epoch * alone.batches, (epoch + 1) * alone.batches):
        parts = [each[number] for each in together]
        inputs, targets = alone[number]
        assert torch.equal(torch.cat([part[0] for part in parts]), inputs)
        assert torch.equal(torch.cat([part[1] for part in parts]), targets)
        assert torch.equal(targets, inputs + 1)
        starts += inputs[:, 0].tolist()
    # In an epoch nothing is read twice, and what is left over is less than one batch.
    assert len(set(starts)) == len(starts)
    assert alone.windows - len(starts) < batch * world_size


def test_each_epoch_has_its_own_order_and_each_seed_its_own_orders() -> None:
    first, other = (Reader(numbers(), context=4, batch=1, seed=seed) for seed in (0, 1))
    orders = [first.order(0), first.order(1), other.order(0)]
    assert len({tuple(order) for order in orders}) == 3
    assert first.order(0) == orders[0]


def test_a_text_shorter_than_one_batch_is_refused() -> None:
    with pytest.raises(
        ValueError, match="a batch of 3 on each of 2 ranks takes 6 windows, but a text of 200 tokens"
    ):
        Reader(numbers(), context=60, batch=3, world_size=2)
    with pytest.raises(ValueError, match="a text of 0 tokens has 0 windows"):
        Reader(numbers()[:0], context=60, batch=3)


def test_the_unseen_text_is_the_end_of_the_book() -> None:
    text = read()
    training, unseen = split(text)
    assert torch.equal(torch.cat([training, unseen]), text)
    assert bytes(unseen.tolist()).decode("ascii").endswith("THE END\n")
    assert len(unseen) == len(text) // 10


# --- counting ---


def test_the_meter_counts_storages_and_not_views() -> None:
    before = torch.zeros(100)
    with Meter() as meter:
        start = meter.now()
        views = [before[:50], before.view(10, 10)]
        assert meter.now() == start
        big = before.repeat(10)
        assert meter.now() == start + 4000
        big.untyped_storage().resize_(0)
        assert meter.now() == start
    assert len(views) == 2
    assert meter.peak == start + 4000


def test_the_meter_waits_for_a_thread_that_will_let_go() -> None:
    """So that what gloo holds for a moment is counted neither before a block nor after it."""
    held_for_a_while(torch.zeros(1000))
    with Meter() as meter:
        start = meter.now()
        held_for_a_while(torch.zeros(1000))
        assert meter.now() == start + 4000
        assert meter.settled() == start
        held_for_a_while(torch.zeros(1000))
    assert meter.now() == start


def test_the_meter_leaves_out_what_stores_nothing() -> None:
    """Somebody else's sparse tensor, which has no storage of its own, must not stop it."""
    sparse, shape = torch.eye(3).to_sparse(), torch.empty(1000, device="meta")
    with Meter() as meter:
        before = meter.now()
        kept = torch.ones(5)
        assert meter.now() == before + kept.nbytes
    assert (sparse.layout, shape.device.type) == (torch.sparse_coo, "meta")


def test_the_meter_sees_what_only_the_graph_refers_to() -> None:
    weight = torch.ones(1000, requires_grad=True)
    with Meter() as meter:
        start = meter.now()
        result = weight.exp().sum()
        assert meter.now() == start + 4000 + 4
        del result
        assert meter.now() == start


def test_the_meter_changes_no_number() -> None:
    torch.manual_seed(0)
    model, tokens = GPT(Config(layers=1, width=16, heads=2, context=8)), torch.randint(256, (2, 8))
    gradients = []
    for meter in (None, Meter()):
        model.zero_grad()
        if meter is None:
            gpt.loss(model(tokens), tokens).backward()
        else:
            with meter:
                gpt.loss(model(tokens), tokens).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True) if a is not None and b is not None)


# --- predicting ---

# Each line makes another moment of the step the one where the peak lies.
SETUPS = [
    (Config(layers=2, width=64, heads=2, context=32), 2, 1, "adamw"),
    (Config(layers=2, width=64, heads=2, context=32), 2, 3, "adamw"),
    (Config(layers=2, width=128, heads=4, context=8), 1, 1, "adamw"),
    (Config(layers=4, width=8, heads=1, context=8), 1, 1, "adamw"),
    (Config(layers=1, width=8, heads=1, context=2), 1, 2, "sgd"),
    (Config(layers=2, width=20, heads=2, context=100), 3, 1, "sgd"),
]


def run_of(model: GPT, kind: str, accumulate: int, reader: Reader) -> Run:
    optimizer, scaler = make_optimizer(parse(["--optimizer", kind]), model), ShardedGradScaler(enabled=False)
    return Run(model, optimizer, scaler, Batches(reader), Schedule(1e-3, steps=2), accumulate)


def count_and_predict() -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
    text, found = read(), []
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for config, batch, accumulate, kind in SETUPS:
        gc.collect()
        reader = Reader(text, context=config.context, batch=batch, rank=rank, world_size=world_size)
        model = shard(GPT(config))
        run = run_of(model, kind, accumulate, reader)
        # The first step makes the optimizer's state.
        step(run)
        with Meter() as meter:
            step(run)
        predicted = forecast(Setup(config, world_size, batch, accumulate, kind, len(text)), rank)
        steady = sum(predicted.steady.values())
        found.append((predicted.peak_moment, (meter.now(), steady), (meter.peak, predicted.peak)))
        del model, run
    return found


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("world_size", [1, 3])
def test_what_is_stored_is_what_the_formulas_say_to_the_byte(world_size: int) -> None:
    for figures in ranks.run(world_size, count_and_predict, timeout=240):
        for moment, (steady, steady_forecast), (peak, peak_forecast) in figures:
            assert steady == steady_forecast
            assert peak == peak_forecast, moment
        assert len({moment for moment, *_ in figures}) >= 4


def drop_a_model() -> bool:
    model = shard(GPT(Config(layers=1, width=8, heads=1, context=4)))
    gpt.loss(model(torch.zeros(1, 4, dtype=torch.long)), torch.zeros(1, 4, dtype=torch.long)).backward()
    parameter = ref(next(model.parameters()))
    del model
    gc.collect()
    return parameter() is None


def test_a_dropped_model_gives_its_shards_back() -> None:
    assert ranks.run(2, drop_a_model, timeout=240) == [True, True]


def test_the_leading_terms_are_the_ones_of_the_paper() -> None:
    config = Config(layers=12, width=768, heads=12, context=1024)
    psi, many = gpt.parameters(config), 64
    one: Forecast = forecast(Setup(config, world_size=many, batch=1), rank=0)
    assert sum(one.steady.values()) == pytest.approx(12 * psi / many, rel=1e-3)
    assert one.sent == pytest.approx(3 * 4 * psi * (many - 1) / many, rel=1e-3)


# Uneven shapes, so that padding is there, and one micro-batch or three.
STAGES = [
    (Config(layers=2, width=20, heads=2, context=10), 3, 1, "adamw"),
    (Config(layers=1, width=8, heads=1, context=4), 2, 3, "sgd"),
]


def count_at_other_stages() -> list[tuple[str, int, int]]:
    text, found = read(), []
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for stage in (0, 1, 2):
        for config, batch, accumulate, kind in STAGES:
            gc.collect()
            reader = Reader(text, context=config.context, batch=batch, rank=rank, world_size=world_size)
            with torch.device("meta"):
                model = GPT(config)
            run = run_of(shard(model, stage=stage), kind, accumulate, reader)
            step(run)
            with ledger() as book, Meter() as meter:
                step(run)
            one = forecast(Setup(config, world_size, batch, accumulate, kind, len(text), stage), rank)
            assert one.peak is None
            found.append((f"sent in stage {stage}, {kind}", book.total, one.sent))
            found.append((f"steady in stage {stage}, {kind}", meter.now(), sum(one.steady.values())))
            del model, run
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("world_size", [1, 3])
def test_sent_and_steady_bytes_are_known_for_the_other_stages_too(world_size: int) -> None:
    for figures in ranks.run(world_size, count_at_other_stages, timeout=240):
        for what, counted, predicted in figures:
            assert counted == predicted, what


def test_accumulation_multiplies_what_is_sent() -> None:
    one, three = (forecast(Setup(Config(), 2, 8, accumulate), 0).sent for accumulate in (1, 3))
    assert three == 3 * one
