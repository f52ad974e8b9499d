"""Tensor, pipeline and 3D parallelism train like the model on one rank."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import ranks
from shardbook.foundations.collectives import all_reduce_bytes, ledger, world
from shardbook.models import gpt
from shardbook.parallel import programs
from shardbook.parallel.__main__ import main
from shardbook.parallel.pipeline_parallel import (
    Action,
    Schedule,
    Stage,
    all_forward_first,
    bubble,
    cut,
    one_by_one,
)
from shardbook.parallel.tensor_parallel import AXES, split_block, stage_of
from tiers import rows
from warm import TORCHRUN, start

CONFIG = gpt.Config(layers=2, width=32, heads=4, context=16, vocabulary=32)


def model_and_batch() -> tuple[gpt.GPT, Tensor, Tensor]:
    torch.manual_seed(3)
    tokens = torch.randint(CONFIG.vocabulary, (4, CONFIG.context + 1))
    return gpt.GPT(CONFIG), tokens[:, :-1], tokens[:, 1:]


def distance(found: Tensor, wanted: Tensor) -> float:
    """The largest difference in units of the largest value."""
    assert found.shape == wanted.shape
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def split_gradients() -> tuple[float, int, int]:
    """How far a split model's gradients are from the whole one's; what is sent, and what should be."""
    rank, count = world()
    whole, inputs, targets = model_and_batch()
    gpt.loss(whole(inputs), targets).backward()
    split = model_and_batch()[0]
    for block in split.blocks:
        split_block(block)
    with ledger() as book:
        gpt.loss(split(inputs), targets).backward()
    wanted = dict(whole.named_parameters())
    worst = 0.0
    for name, parameter in split.named_parameters():
        gradient, part = wanted[name].grad, parameter.grad
        assert gradient is not None
        assert part is not None
        # Where each rank's part stands in the whole, written down here a second time.
        if name.endswith(("attention.split.weight", "attention.split.bias")):
            gradient = gradient.unflatten(0, (3, count, -1))[:, rank].flatten(0, 1)
        elif ".expand." in name:
            gradient = gradient.unflatten(0, (count, -1))[rank]
        elif name.endswith(("merge.weight", "contract.weight")):
            gradient = gradient.unflatten(1, (count, -1))[:, rank]
        worst = max(worst, distance(part, gradient))
    size = inputs.numel() * CONFIG.width * 4
    expected = 4 * CONFIG.layers * all_reduce_bytes(rank, count, size, 4)
    return worst, book.total, expected


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("count", rows([2, 4], now=[2]))
def test_each_rank_has_its_part_of_the_gradients_and_sends_four_all_reduces_a_block(count: int) -> None:
    for worst, sent, expected in ranks.run(count, split_gradients):
        assert worst < 2e-6
        assert sent == expected > 0


def too_many_ranks() -> str:
    block = gpt.Block(gpt.Config(width=6, heads=3))
    with pytest.raises(ValueError, match="cannot share") as found:
        split_block(block)
    return str(found.value)


def test_heads_that_do_not_divide_are_refused() -> None:
    for message in ranks.run(2, too_many_ranks):
        assert message == "2 ranks cannot share 3 heads; choose a number of ranks that divides it"


@given(st.integers(1, 8), st.integers(1, 12), st.sampled_from([all_forward_first, one_by_one]))
def test_a_schedule_runs_every_pass_once_and_never_waits_forever(
    stages: int, pieces: int, schedule: Schedule
) -> None:
    queues = [schedule(rank, stages, pieces) for rank in range(stages)]
    every = {Action(kind, piece) for kind in ("forward", "backward") for piece in range(pieces)}
    for rank, actions in enumerate(queues):
        assert len(actions) == len(every)
        assert set(actions) == every
        kept = [0]
        for kind, _ in actions:
            kept.append(kept[-1] + (1 if kind == "forward" else -1))
        limit = pieces if schedule is all_forward_first else min(stages - rank, pieces)
        assert max(kept) == limit
    # Messages of one neighbour arrive in the order of their sends, so a rank that waits for
    # piece 2 must not be sent piece 3 before.
    done: list[list[Action]] = [[] for _ in queues]
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(queues):
            while len(done[rank]) < len(actions):
                kind, piece = action = actions[len(done[rank])]
                source = rank - 1 if kind == "forward" else rank + 1
                if 0 <= source < stages and action not in done[source]:
                    break
                if kind == "backward" and source == stages and Action("forward", piece) not in done[rank]:
                    break
                done[rank].append(action)
                moved = True
    assert done == queues
    for kind in ("forward", "backward"):
        assert len({tuple(piece for k, piece in actions if k == kind) for actions in queues}) == 1


def test_the_bubble_is_what_a_step_by_step_count_gives() -> None:
    for stages, pieces in [(1, 4), (4, 1), (4, 4), (3, 7)]:
        # A forward pass takes one tick, and a backward pass one tick.
        finished: dict[tuple[int, Action], int] = {}
        queues = [one_by_one(rank, stages, pieces) for rank in range(stages)]
        clocks = [0] * stages
        while any(queues):
            for rank, actions in enumerate(queues):
                if not actions:
                    continue
                source = rank - 1 if actions[0].kind == "forward" else rank + 1
                ready = 0 if not 0 <= source < stages else finished.get((source, actions[0]), -1)
                if ready < 0:
                    continue
                clocks[rank] = max(clocks[rank], ready) + 1
                finished[rank, actions.pop(0)] = clocks[rank]
        assert 1 - 2 * pieces / max(clocks) == pytest.approx(bubble(stages, pieces))


def piped(schedule: Schedule, pieces: int) -> tuple[bool, float, float, int]:
    """Whether the gradients equal those of one rank to the bit; both losses; how many pieces are kept."""
    rank, stages = world()
    whole, inputs, targets = model_and_batch()
    total = 0.0
    for x, y in zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True):
        loss = gpt.loss(whole(x), y) / pieces
        loss.backward()
        total += loss.item()
    mine = cut(list(model_and_batch()[0]), rank, stages)
    stage = Stage(mine, (4 // pieces, CONFIG.context, CONFIG.width), gpt.loss)
    found = stage.step(inputs.chunk(pieces), targets.chunk(pieces), schedule)
    wanted = cut(list(whole), rank, stages).parameters()
    equal = all(
        a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad)
        for a, b in zip(mine.parameters(), wanted, strict=True)
    )
    return equal, found, total, stage.most_kept


def waited_for() -> tuple[int, int]:
    """How many messages a rank starts in a step, and how many of them it has waited for at the end."""
    rank, stages = world()
    waited: list[int] = []
    isend = dist.isend

    def start(*args: Any, **kwargs: Any) -> SimpleNamespace:
        work, number = isend(*args, **kwargs), next(numbers)
        assert work is not None
        return SimpleNamespace(wait=lambda: (work.wait(), waited.append(number)))

    numbers = itertools.count()
    _, inputs, targets = model_and_batch()
    stage = Stage(cut(list(model_and_batch()[0]), rank, stages), (1, CONFIG.context, CONFIG.width), gpt.loss)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "isend", start)
        stage.step(inputs.chunk(4), targets.chunk(4))
    assert waited == sorted({*waited})
    return next(numbers), len(waited)


def test_a_step_ends_when_each_message_has_gone() -> None:
    for started, waited in ranks.run(3, waited_for):
        assert waited == started >= 4


@pytest.mark.cases(now=3, ci=3)
@pytest.mark.parametrize("schedule", [all_forward_first, one_by_one])
@pytest.mark.parametrize(("stages", "pieces"), rows([(2, 4), (3, 2), (4, 4), (4, 1)], now=[(3, 2), (2, 4)]))
def test_a_pipeline_equals_micro_batches_on_one_rank_bit_for_bit(
    stages: int, pieces: int, schedule: Schedule
) -> None:
    for rank, (equal, found, wanted, kept) in enumerate(ranks.run(stages, piped, schedule, pieces)):
        assert equal
        assert found == (wanted if rank == stages - 1 else 0.0)
        assert kept == (pieces if schedule is all_forward_first else min(stages - rank, pieces))


def three(stage: int) -> programs.Outcome:
    torch.set_num_threads(1)
    return programs.three(stage)


@pytest.mark.nightly
@pytest.mark.parametrize("stage", rows([0, 1, 2, 3], now=[1, 3]))
def test_eight_ranks_on_three_axes_train_like_one(stage: int) -> None:
    outcomes = ranks.run(8, three, stage)
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(outcome.plain, rel=1e-5)
        assert outcome.losses == outcomes[0].losses
    # Each value is trained once. Norms, two biases, embedding and head are repeated along the
    # tensor axis, and in stage 0 everything along the data axis.
    config = programs.CONFIG
    repeated = sum(gpt.parameters_by_layer(config)[i] for i in (0, -1)) + config.layers * 6 * config.width
    copies = 1 if stage else 2
    assert sum(outcome.stored for outcome in outcomes) == copies * (gpt.parameters(config) + repeated)


def gathers() -> tuple[int, float]:
    """The place of this rank's stage in the chain, and how often a step of stage 1 gathers a unit of it."""
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=AXES)
    torch.manual_seed(0)
    mine = stage_of(programs.CONFIG, mesh, sequences=1, stage=1)
    pieces = [next(programs.batches())[0][:1]] * 4
    with ledger() as book:
        mine.step(pieces, pieces)
    gathered = sum(call.payload for call in book.calls if call.collective == "all-gather")
    reduced = sum(call.payload for call in book.calls if call.collective == "reduce-scatter")
    return mine.rank, gathered / reduced


@pytest.mark.full
def test_a_stage_gathers_for_each_forward_pass_before_its_first_backward_pass() -> None:
    assert ranks.run(8, gathers) == [(0, 2.0)] * 4 + [(1, 1.0)] * 4


@pytest.mark.full
def test_the_programs_print_both_losses_and_what_a_rank_stores() -> None:
    run = start(*TORCHRUN, "2", "-m", "shardbook.parallel", "tensor")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0].split() == ["step", "split", "one", "rank"]
    for line in lines[1 : 1 + programs.STEPS]:
        split, alone = map(float, line.split()[1:])
        assert split == pytest.approx(alone, abs=2e-5)
    assert "of 210,304 parameters on this rank" in run.stdout


def pipeline() -> programs.Outcome:
    return programs.pipeline()


@pytest.mark.full
def test_the_pipeline_program_trains_like_one_rank() -> None:
    for outcome in ranks.run(2, pipeline):
        assert outcome.losses == pytest.approx(outcome.plain, rel=1e-5)
        assert len(outcome.notes) == 2


@pytest.mark.parametrize(
    ("way", "environment", "sentence"),
    [
        ("three", {"WORLD_SIZE": "2"}, "shardbook.parallel: three cannot run on 2 ranks; start one of 8"),
        (
            "tensor",
            {"WORLD_SIZE": "3"},
            "shardbook.parallel: tensor cannot run on 3 ranks; start one of 1, 2, 4",
        ),
        (
            "tensor",
            {"WORLD_SIZE": None, "RANK": None},
            "shardbook.parallel: tensor runs on several ranks; start it with "
            "torchrun --standalone --nproc-per-node 4 -m shardbook.parallel tensor",
        ),
        (
            "tensor",
            {"WORLD_SIZE": "abc"},
            "shardbook.parallel: rank 0: WORLD_SIZE is 'abc', but it must be a whole number of at least 1, "
            "and at most 1,000,000; start the ranks with torchrun --standalone --nproc-per-node 4 -m "
            "shardbook.parallel tensor",
        ),
        (
            "tensor",
            {"RANK": None},
            "shardbook.parallel: RANK is not set; start the ranks with "
            "torchrun --standalone --nproc-per-node 4 -m shardbook.parallel tensor",
        ),
    ],
)
def test_a_number_of_ranks_that_does_not_fit_is_refused_in_one_sentence(
    way: str,
    environment: dict[str, str | None],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    usual = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in {**usual, **environment}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert main([way]) == 2
    assert capsys.readouterr().err == sentence + "\n"
    assert not dist.is_initialized()
