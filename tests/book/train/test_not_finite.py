"""A loss or a gradient that is not finite stops the run, or its step is left out, and the unit is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import ranks
from book.toys import assert_equal
from shardbook.command import Mistake
from shardbook.foundations.collectives import ledger
from shardbook.models import gpt
from shardbook.planning.forecast import forecast
from shardbook.state.checkpoints import Checkpoints
from shardbook.train.loop import step
from shardbook.train.options import parse
from shardbook.train.plan import Run, assemble, setup_of
from shardbook.train.saving import others
from shardbook.train.text import prepare, readers
from tiers import rows
from warm import TORCHRUN, start

SMALL = "--layers 3 --width 16 --heads 2 --context 16 --batch 2 --device cpu --lr 1e-2"


def run_of(words: str) -> Run:
    options = parse([*SMALL.split(), *words.split()])
    prepare(options)
    cpu = torch.device("cpu")
    return assemble(options, readers(options, cpu)[0], cpu)


def spoil_gradients(run: Run, layer: str, rank: int) -> Callable[[], None]:
    """From now on the gradients of a layer's parameters are NaN on one rank, and its output is what it was.

    :returns: what ends that
    """

    def spoil(module: Any, inputs: Any, output: Tensor) -> Tensor:
        # The root of zero is zero, and its slope there is infinite.
        return output + (output * 0).sqrt() if dist.get_rank() == rank else output

    return run.model.get_submodule(layer).register_forward_hook(spoil).remove


def spoil_loss(monkeypatch: Any, rank: int, micro: int, by: Callable[[Tensor], Tensor]) -> None:
    """The loss of one micro-batch is something else on one rank."""
    plain, calls = gpt.loss, [0]

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        value = plain(logits, targets)
        calls[0] += 1
        return by(value) if dist.get_rank() == rank and calls[0] == micro + 1 else value

    monkeypatch.setattr(gpt, "loss", loss)


def said(run: Run) -> str:
    """What a step is refused with. It has changed nothing, and its batches are read."""
    before, number = numbers_of(run), run.number
    with pytest.raises(Mistake) as caught:
        step(run)
    assert_equal(numbers_of(run), before)
    assert run.number == number
    return str(caught.value)


def numbers_of(run: Run) -> dict[str, Tensor]:
    """The model, whole, with a number for NaN, which equals nothing."""
    return {name: value.nan_to_num(nan=1e9) for name, value in run.model.state_dict().items()}


# --- what is named ---

SETTINGS = [
    *("--stage 1", "--stage 2", "--stage 3", "--stage 2 --checkpoint reentrant"),
    *("--stage 0", "--stage 3 --offload --precision bf16 --clip 1 --accumulate 2"),
]


def units_named(settings: list[str]) -> list[str]:
    found = []
    for words in settings:
        for layer in ("head", "block1.attention", "embedding"):
            run = run_of(words)
            step(run)
            spoil_gradients(run, layer, dist.get_world_size() - 1)
            found.append(said(run))
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("settings", [SETTINGS[-2:], pytest.param(SETTINGS[:-2], marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "ranks_there", [2, *(pytest.param(each, marks=pytest.mark.nightly) for each in (1, 3))]
)
def test_the_unit_that_made_a_gradient_not_finite_is_named(ranks_there: int, settings: list[str]) -> None:
    found = ranks.run(ranks_there, units_named, settings)
    assert all(each == found[0] for each in found)
    for sentences in zip(*[iter(found[0])] * 3, strict=True):
        for unit, sentence in zip(("head", "block1", "embedding"), sentences, strict=True):
            assert sentence == (
                f"step 2 was not taken, because the gradients of {unit} became infinite or NaN, while the "
                "loss was finite; what was saved is from before; go on from there with other options, such "
                "as a smaller --lr, or leave such steps out with --not-finite skip"
            )


def losses_named(words: str) -> list[str]:
    found = []
    # What is looked at is the norm that clipping takes.
    norms = [step(run_of(f"{words} {more}")).norm for more in ("", "--clip 9 --not-finite continue")]
    assert norms[0] == norms[1]
    for by in (lambda loss: (-loss).log(), lambda loss: loss + float("inf")):
        with pytest.MonkeyPatch.context() as monkeypatch:
            run = run_of(f"{words} --accumulate 3")
            spoil_loss(monkeypatch, rank=dist.get_world_size() - 1, micro=2, by=by)
            found.append(said(run))
    # A weight that is NaN, such as in a checkpoint from elsewhere.
    run = run_of(words)
    state = run.model.state_dict()
    state["block1.attention.merge.bias"][-1] = float("nan")
    run.model.load_state_dict(state)
    return [*found, said(run)]


# On a mesh the loss is one of another copy of the model.
LOSSES = [(2, "--stage 0"), (2, "--stage 1"), (2, "--stage 2"), (2, "--stage 3"), (4, "--mesh 2x2")]


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "words"), rows(LOSSES, now=[LOSSES[0], LOSSES[-1]]))
def test_a_loss_is_named_with_its_rank_and_its_micro_batch(number: int, words: str) -> None:
    found = ranks.run(number, losses_named, words)
    assert all(each == found[0] for each in found)
    negative, infinite, weight = found[0]
    # The gradients of the infinite one are finite.
    named = f"because the loss itself, of rank {number - 1}, micro-batch 2, is infinite or NaN; what was"
    assert named in negative
    assert infinite == negative
    assert (
        "the loss itself, of rank 0, micro-batch 0, is infinite or NaN, as are parameters of block1" in weight
    )


# --- what is left out ---


def tensors_of(run: Run) -> dict[str, Any]:
    """The model, whole, and this rank's part of the optimizer's state."""
    state = run.optimizer.state_dict()["state"]
    moments = {f"{number} {name}": value for number, each in state.items() for name, value in each.items()}
    return {**run.model.state_dict(), **dict(sorted(moments.items()))}


def counters_of(run: Run) -> dict[str, Any]:
    """All else that decides the next step."""
    return {"number": run.number, **{name: each.state_dict() for name, each in others(run).items()}}


def steps_with_one_left_out(words: str, folder: Path) -> None:
    run, plain = run_of(f"{words} --not-finite skip"), run_of(f"{words} --not-finite continue")
    losses = [step(run).loss]
    end = spoil_gradients(run, "block1", rank=1)
    left_out = step(run)
    end()
    assert left_out.fault is not None
    assert "the gradients of block1" in left_out.fault
    assert left_out.figures()["skipped"] == 1
    Checkpoints(folder).save(run.number, run.model, run.optimizer, **others(run))
    losses += [left_out.loss, *(step(run).loss for _ in range(2))]
    assert (run.not_finite.skipped, run.number) == (1, 4)
    # A reference that reads the batch and knows nothing of all this.
    expected = [step(plain).loss]
    for _ in range(plain.accumulate):
        next(plain.batches)
    plain.number += 1
    expected += [left_out.loss, *(step(plain).loss for _ in range(2))]
    plain.not_finite.skipped = 1
    assert losses == expected
    assert_equal(tensors_of(run), tensors_of(plain))
    assert counters_of(run) == counters_of(plain)
    # The same from the checkpoint behind the step.
    again = run_of(f"{words} --not-finite skip")
    step(again)
    again.number = Checkpoints(folder).load(again.model, again.optimizer, **others(again)) or 0
    assert again.not_finite.skipped == 1
    assert [step(again).loss for _ in range(2)] == losses[2:]
    assert_equal(tensors_of(again), tensors_of(run))
    assert counters_of(again) == counters_of(run)


LEFT_OUT = [
    *("--stage 0", "--stage 1 --optimizer sgd", "--stage 2 --offload"),
    "--stage 3 --clip 1 --accumulate 2 --schedule cosine --warmup 1 --steps 6",
]


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("words", rows(LEFT_OUT, now=LEFT_OUT[-1:]))
def test_a_step_that_is_skipped_is_one_that_was_never_there_and_stays_so_after_a_resume(
    words: str, tmp_path: Path
) -> None:
    ranks.run(2, steps_with_one_left_out, words, tmp_path)


def taken_as_plain_training_takes_it() -> tuple[bool, list[int]]:
    run = run_of("--not-finite continue")
    spoil_gradients(run, "block1", rank=0)
    with ledger() as book:
        taken = step(run)
    assert (taken.fault, taken.norm) == (None, None)
    options = parse([*SMALL.split(), "--not-finite", "continue"])
    promised = forecast(setup_of(options, dist.get_world_size(), 0), dist.get_rank()).sent
    state = run.model.state_dict()
    assert state["head.score.weight"].isfinite().all()
    return bool(state["block0.contract.weight"].isnan().all()), [book.total, promised]


def test_continue_trains_on_and_exchanges_nothing_for_it() -> None:
    for poisoned, (sent, promised) in ranks.run(2, taken_as_plain_training_takes_it):
        assert poisoned
        assert sent == promised


# --- with a scaler ---


def scales() -> tuple[list[float], str, list[float]]:
    """The scale while gradients are NaN in each step, and what is said in the end; then an infinite loss."""
    run = run_of("--precision fp16")
    run.scaler.factor.fill_(8.0)
    spoil_gradients(run, "block1", rank=1)
    fell = []
    while (scale := run.scaler.get_scale()) > 1:
        fell.append(scale)
        assert step(run).fault is None
    with pytest.MonkeyPatch.context() as monkeypatch:
        other = run_of("--precision fp16 --not-finite skip")
        before = other.model.state_dict()
        spoil_loss(monkeypatch, rank=0, micro=0, by=lambda loss: loss + float("inf"))
        taken = step(other)
        assert taken.fault is not None
        assert "the loss itself, of rank 0" in taken.fault
        assert_equal(other.model.state_dict(), before)
        assert step(other).fault is None
    return fell, said(run), [taken.loss_scale or 0.0]


@pytest.mark.full
def test_an_overflow_is_for_the_scaler_until_its_scale_is_1() -> None:
    found = ranks.run(2, scales)
    assert found[0][:2] == found[1][:2]
    fell, sentence, _ = found[0]
    assert fell == [8.0, 4.0, 2.0]
    assert sentence.startswith("step 4 was not taken, because the gradients of block1 became")


# --- the command ---


@pytest.mark.full
def test_the_command_ends_with_one_sentence_and_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    words = [
        *SMALL.split(),
        "--optimizer",
        "sgd",
        "--lr",
        "1e30",
        "--steps",
        "9",
        "--checkpoints",
        str(folder),
    ]
    words += ["--save-every", "1", "--save-in-background", "--sample", "0", "--evaluate-batches", "1"]
    run = start(*TORCHRUN, "2", "-m", "shardbook.train", *words)
    assert run.returncode == 1
    told = re.findall(r"^shardbook\.train: step (\d+) was not taken, because (.*);.*;.*$", run.stderr, re.M)
    assert len(told) == 1, run.stderr
    number = int(told[0][0])
    assert number > 1
    assert "Traceback" not in run.stderr.partition("torch/distributed")[0]
    names = sorted(path.name for path in folder.iterdir())
    assert names[-1] == f"step-{number - 1:08d}"
    assert all(re.fullmatch(r"step-\d{8}", name) for name in names)
    # On one rank the same line leaves them out, from there to its end.
    run = start("-m", "shardbook.train", *words, "--not-finite", "skip", "--jsonl", str(log))
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert [line["step"] for line in lines] == [*range(number, 10)]
    assert all(line["skipped"] == 1 for line in lines)
    assert run.stderr.count("is skipped, because") == len(lines)
    assert f"\n{len(lines)} of 9 steps were skipped\n" in run.stdout
