"""A run on a mesh: each copy of the model is shared by the ranks of one machine."""

from __future__ import annotations

import argparse
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ranks
from shardbook.foundations.collectives import ledger
from shardbook.models import gpt
from shardbook.planning.forecast import Meter, forecast
from shardbook.train.loop import step
from shardbook.train.options import parse
from shardbook.train.plan import Run, assemble, plan, setup_of
from shardbook.train.ranks import OFFER, Shape, part_of_store, shape
from shardbook.train.text import prepare, readers
from tiers import rows
from warm import TORCHRUN, start

CPU = torch.device("cpu")
SMALL = "--layers 2 --width 24 --heads 2 --context 24 --batch 2 --lr 3e-3 --device cpu --sample 0"
STEPS = 4


def run_of(words: str) -> tuple[Any, Run]:
    options = parse([*SMALL.split(), *words.split()])
    prepare(options)
    return options, assemble(options, readers(options, CPU)[0], CPU)


def added(row: list[torch.Tensor]) -> torch.Tensor:
    """Their mean, added one after the other."""
    first, *others = row
    total = first.clone()
    for other in others:
        total += other
    return total / len(row)


def plain_losses(options: Any, copies: int) -> list[float]:
    """The run on one model that sees all ranks' batches, and adds gradients along rows, then down."""
    size = dist.get_world_size()
    batches = [readers(options, CPU)[0] for _ in range(size)]
    for rank, reader in enumerate(batches):
        reader.rank, reader.world_size = rank, size
    torch.manual_seed(options.seed)
    model = gpt.GPT(options.config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, foreach=False)
    losses = []
    for number in range(STEPS):
        of_ranks, found = [], []
        for reader in batches:
            inputs, targets = reader[number]
            loss = gpt.loss(model(inputs), targets)
            loss.backward()
            of_ranks.append([parameter.grad for parameter in model.parameters()])
            found.append(loss.item())
            optimizer.zero_grad()
        for i, parameter in enumerate(model.parameters()):
            mesh = [[of_ranks[rank][i] for rank in row] for row in torch.arange(size).view(copies, -1)]
            parameter.grad = added([added(row) for row in mesh])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(found[dist.get_rank()])
    return losses


def both_losses(words: str, copies: int) -> tuple[list[float], list[float]]:
    options, run = run_of(words)
    return [step(run).loss for _ in range(STEPS)], plain_losses(options, copies)


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("stage", rows([1, 2, 3], now=[3]))
def test_a_mesh_trains_like_one_model_that_adds_along_rows_and_then_down(stage: int) -> None:
    for losses, plain in ranks.run(4, both_losses, f"--mesh 2x2 --stage {stage}", 2):
        assert losses == plain
        assert losses[-1] < losses[0]


TECHNIQUES = [
    "",
    "--checkpoint non-reentrant --accumulate 2",
    "--precision bf16 --clip 1",
    "--precision fp16 --offload --optimizer sgd",
    # More parameters than activations.
    "--width 64 --context 8 --batch 1 --clip 1",
]


def counted_and_planned(mesh: str, stage: int) -> list[Any]:
    found = []
    for words in TECHNIQUES:
        options, run = run_of(f"--mesh {mesh} --stage {stage} {words}")
        options.plan, options.ranks = True, dist.get_world_size()
        promised, setup = plan(options)
        own = forecast(setup, dist.get_rank())
        step(run)
        with ledger() as book, Meter() as meter:
            step(run)
        # A peak is known of stage 3, where all ranks share one copy.
        assert own.peak is None or (stage == 3 and mesh.startswith("1x"))
        steady = sum(own.steady.values())
        assert (book.total, meter.now()) == (own.sent, steady), words
        found.append((book.total, promised.sent, sum(own.steady.values()), meter.peak, promised))
        del run
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("stage", rows([1, 2, 3], now=[3]))
@pytest.mark.parametrize(("mesh", "size"), rows([("2x2", 4), ("3x1", 3), ("1x3", 3)], now=[("2x2", 4)]))
def test_the_plan_of_a_mesh_is_what_its_ranks_send_and_store(mesh: str, size: int, stage: int) -> None:
    both = ranks.run(size, counted_and_planned, mesh, stage, timeout=280)
    for row in zip(*both, strict=True):
        promised = row[0][-1]
        assert max(sent for sent, *_ in row) == promised.sent
        assert max(steady for _, _, steady, _, _ in row) == sum(promised.steady.values())
        assert max(peak for *_, peak, _ in row) <= promised.most


@pytest.mark.full
def test_copies_cost_memory_and_save_what_crosses_between_machines() -> None:
    """In figures: with two copies a rank stores twice as much, and gathers from half as many."""
    words = [*SMALL.split(), "--plan", "--ranks", "4"]
    one, _ = plan(parse(words))
    two, setup = plan(parse([*words, "--mesh", "2x2"]))
    assert setup_of(parse([*words, "--mesh", "2x2"]), 4, 0).sharing == 2
    assert two.steady["parameters"] == pytest.approx(2 * one.steady["parameters"], rel=0.02)
    assert two.steady["moments"] == pytest.approx(2 * one.steady["moments"], rel=0.02)
    values = gpt.parameters(setup.config)
    # 12 (N-1)/N for 4 ranks; for 2 ranks the same formula, and 8/2 (A-1)/A for two copies.
    assert one.sent == pytest.approx(9 * values, rel=0.03)
    assert two.sent == pytest.approx((6 + 2) * values, rel=0.03)


@pytest.mark.full
def test_the_plan_takes_its_ranks_from_the_mesh(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardbook.train.loop import main

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert main([*SMALL.split(), "--plan", "--memory", "1", "--mesh", "2x8"]) == 0
    assert "16 ranks" in capsys.readouterr().out
    assert main([*SMALL.split(), "--plan", "--memory", "1", "--mesh", "2x8", "--ranks", "4"]) == 2
    told = capsys.readouterr().err
    assert told == (
        "shardbook.train: --mesh 2x8 is for 16 ranks, but there are 4; let copies times ranks be 4\n"
    )


@pytest.mark.parametrize("text", ["2", "2x", "2x2x2", "0x4", "2 x 2", "-1x4", "axb", ""])
def test_what_is_no_shape_is_told(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    from shardbook.train.loop import main

    with pytest.raises(argparse.ArgumentTypeError, match="is no shape"):
        shape(text)
    assert main([f"--mesh={text}"]) == 2
    assert "write copies x ranks without blanks, such as 2x8" in capsys.readouterr().err


def test_a_shape_is_written_as_it_is_read() -> None:
    assert shape("3x16") == Shape(3, 16)
    assert (str(shape("03x4")), shape("3x4").size) == ("3x4", 12)


def restarted() -> list[str]:
    """Three attempts in one store; in each the last rank comes before rank 0 has offered a name."""
    store = dist.distributed_c10d._get_default_store()
    rank, size = dist.get_rank(), dist.get_world_size()
    names: list[str] = []
    dead = b""
    for _ in range(3):
        # The last rank accepts the old name, as nobody has offered another.
        while names and rank == 0 and store.get(f"{names[-1]} accepted by {size - 1}") == dead:
            pass
        part = part_of_store(store, rank, size, timedelta(seconds=60))
        # What the dead have written is not there.
        assert not part.check([f"written by {rank}"])
        part.set(f"written by {rank}", "")
        part.wait([f"written by {other}" for other in range(size)])
        name = store.get(OFFER).decode()
        names.append(name)
        dead = store.get(f"{name} accepted by {size - 1}")
        dist.barrier()
    return names


def test_ranks_that_start_again_find_each_other_and_not_the_dead() -> None:
    for names in (every := ranks.run(3, restarted)):
        assert names == every[0]
        assert len(set(names)) == 3


def nobody_answers() -> None:
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank():
        with pytest.raises(TimeoutError, match="rank 0 has not answered rank 1 within 0:00:00"):
            part_of_store(store, 1, 2, timedelta(seconds=0.05))


def test_a_rank_waits_for_the_others_for_a_limited_time() -> None:
    ranks.run(2, nobody_answers)


@pytest.mark.nightly
def test_the_torchrun_line_trains_on_a_mesh_and_goes_on(tmp_path: Path) -> None:
    words = [*SMALL.split(), "--mesh", "2x2", "--checkpoints", str(tmp_path / "run")]
    words += ["--evaluate-batches", "1", "--json", str(tmp_path / "figures.json")]
    line = [*TORCHRUN, "4", "-m", "shardbook.train", *words]
    run = start(*line, "--steps", "2")
    assert run.returncode == 0, run.stderr
    figures = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    assert figures["sent"] == figures["sent_forecast"]
    assert figures["steady"] == figures["steady_forecast"]
    assert "2 copies of 2 ranks" in run.stdout
    assert "12 ΣP (N-1)/N + 8 ΣP/N (A-1)/A + 8 n (AN-1)/(AN)" in run.stdout
    # Two ranks go on with what four have saved, and a mesh for four is refused by each machine once.
    wrong = start(*TORCHRUN, "2", "-m", "shardbook.train", *words, "--steps", "4")
    assert wrong.returncode == 1
    assert wrong.stderr.count("--mesh 2x2 is for 4 ranks, but there are 2; let copies times ranks be 2") == 1
    words[words.index("2x2")] = "1x2"
    run = start(*TORCHRUN, "2", "-m", "shardbook.train", *words, "--steps", "4")
    assert run.returncode == 0, run.stderr
    assert "going on after step 2" in run.stderr
