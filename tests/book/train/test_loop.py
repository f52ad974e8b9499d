"""Runs with all their options: against plain training, and as a user starts them."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ranks
import warm
from book.tokenizers_here import tokenizer_file
from shardbook.foundations.collectives import ledger
from shardbook.models import gpt
from shardbook.planning.forecast import Meter, forecast
from shardbook.train.loop import evaluate, mean_over_ranks, sample, step
from shardbook.train.options import parse
from shardbook.train.plan import Plan, Run, assemble, plan, setup_of
from shardbook.train.text import prepare, readers, stored
from shardbook.train.tracking import MemorySnapshot
from tiers import rows
from warm import TORCHRUN, start

CPU = torch.device("cpu")
SHORT = ["--sample", "0", "--evaluate-batches", "1"]
SMALL = "--layers 2 --width 32 --heads 2 --context 32 --batch 2 --lr 3e-3 --device cpu"


def made(words: str) -> Any:
    options = parse([*SMALL.split(), *words.split()])
    prepare(options)
    return options


def run_of(options: Any) -> Run:
    return assemble(options, readers(options, CPU)[0], CPU)


# --- against plain training ---

STEPS = 6
FULL = f"--steps {STEPS} --schedule cosine --warmup 2 --lr-end 0.2 --clip 0.7 --accumulate 3"


def plain_losses() -> list[float]:
    """The same run in PyTorch's own words: one model, all ranks' batches, torch's clipping and schedules."""
    options = made(FULL)
    ranks_batches = [
        gpt_reader(options, rank, dist.get_world_size()) for rank in range(dist.get_world_size())
    ]
    torch.manual_seed(options.seed)
    model = gpt.GPT(options.config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, foreach=False)
    rising = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / 2, total_iters=1)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 3, options.lr * 0.2)
    losses = []
    for number in range(STEPS):
        total = 0.0
        for micro in range(3):
            for rank, reader in enumerate(ranks_batches):
                inputs, targets = reader[number * 3 + micro]
                loss = gpt.loss(model(inputs), targets) / 3
                (loss / len(ranks_batches)).backward()
                total += loss.item() * (rank == dist.get_rank())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.7)
        optimizer.step()
        optimizer.zero_grad()
        if number < 1:
            rising.step()
        elif number >= 2:
            falling.step()
        losses.append(total)
    return losses


def gpt_reader(options: Any, rank: int, world_size: int) -> Any:
    reader = readers(options, CPU)[0]
    reader.rank, reader.world_size = rank, world_size
    return reader


def both_losses(words: str) -> tuple[list[float], list[float], list[float]]:
    run = run_of(made(f"{FULL} {words}"))
    taken = [step(run) for _ in range(STEPS)]
    assert run.number == STEPS
    return [each.loss for each in taken], plain_losses(), [each.norm or 0.0 for each in taken]


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("stage", rows([0, 1, 2, 3], now=[3]))
def test_a_run_with_schedule_clipping_and_micro_batches_is_plain_training(stage: int) -> None:
    for losses, plain, norms in ranks.run(2, both_losses, f"--stage {stage}"):
        assert losses == pytest.approx(plain, rel=2e-5)
        assert losses[-1] < losses[0] - 0.2
        # The limit was met, so that clipping has a part in the agreement.
        assert max(norms) > 0.7


def compiled_losses(words: str) -> tuple[list[float], list[float]]:
    # The compiler looks at the gradients of tensors that keep none, and PyTorch warns it.
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
    both = []
    for more in ("--compile none", "--compile aot_eager"):
        run = run_of(made(f"--steps 3 {words} {more}"))
        both.append([step(run).loss for _ in range(3)])
    return both[0], both[1]


@pytest.mark.nightly
@pytest.mark.parametrize("words", rows(["", "--checkpoint non-reentrant", "--precision bf16"], now=[]))
def test_a_compiled_run_has_the_losses_of_an_uncompiled_one(words: str) -> None:
    for compiled, plain in ranks.run(2, compiled_losses, words, timeout=240):
        assert compiled == plain


# --- the plan ---

TECHNIQUES = [
    f"--checkpoint {checkpoint} {offload} --accumulate {accumulate} {shape}"
    for checkpoint in ("none", "non-reentrant")
    for offload in ("", "--offload")
    for accumulate in (1, 2)
    # The one has more activations than parameters, the other fewer.
    for shape in (
        "--layers 2 --width 16 --heads 2 --context 32 --batch 2",
        "--layers 2 --width 48 --heads 3 --context 8 --batch 1 --optimizer sgd --clip 1",
    )
]


def counted_and_planned(basis: str) -> list[tuple[str, tuple[int, int], tuple[int, int], tuple[int, int]]]:
    found = []
    for words in TECHNIQUES:
        options = made(f"{basis} {words} --plan --ranks {dist.get_world_size()}")
        promised, setup = plan(options)
        own = sum(forecast(setup, dist.get_rank()).steady.values())
        run = run_of(options)
        step(run)
        with ledger() as book, Meter() as meter:
            step(run)
        steady = sum(promised.steady.values())
        stored = meter.now()
        assert stored == own, words
        found.append((words, (book.total, promised.sent), (stored, steady), (meter.peak, promised.most)))
        del run
    return found


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("precision", rows(["fp32", "bf16", "fp16"], now=["bf16"]))
@pytest.mark.parametrize("stage", rows([0, 1, 2, 3], now=[3]))
def test_a_step_takes_at_most_what_the_plan_says_and_sends_it_to_the_byte(stage: int, precision: str) -> None:
    both = ranks.run(2, counted_and_planned, f"--stage {stage} --precision {precision}", timeout=280)
    assert len(both[0]) == len(TECHNIQUES) == 16
    for row in zip(*both, strict=True):
        sent, steady, peak = ([each[index] for each in row] for index in (1, 2, 3))
        assert max(counted for counted, _ in sent) == sent[0][1], row[0][0]
        assert max(counted for counted, _ in steady) == steady[0][1], row[0][0]
        for counted, most in peak:
            assert counted <= most, row[0][0]


def test_the_plan_says_whether_there_is_room(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from shardbook.train.loop import main

    file = tmp_path / "plan.json"
    words = [*SMALL.split(), "--plan", "--ranks", "4", "--json", str(file)]
    assert main([*words, "--memory", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("It fits.\n")
    figures = json.loads(file.read_text("utf-8"))
    assert (figures["ranks"], figures["fits"], figures["room"]) == (4, True, 10**9)
    assert f"{figures['step']:,}" in shown
    assert f"{figures['sent']:,}" in shown
    options = made("--plan --ranks 4")
    assert figures["sent"] == forecast(setup_of(options, 4, 0), 0).sent
    assert figures["steady"] + sum(figures["extra_terms"].values()) == figures["step"]
    # One byte less than it takes is too little, and that much is enough.
    for less, code in ((0, 0), (1, 1)):
        assert main([*words, "--memory", repr((figures["step"] - less) / 1e9)]) == code
    assert "It does not fit: take more ranks" in capsys.readouterr().out
    assert not dist.is_initialized()


def test_the_room_is_what_this_machine_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from shardbook.train import plan as module

    host = module.available()
    assert host is not None
    assert 2**20 < host < 2**50
    made_plan, _ = plan(made("--plan --ranks 4"))
    assert made_plan.room == pytest.approx(host / 4, rel=0.2)
    # A container's limit counts, less what is used of it.
    for name, text in (("most", "5000000\n"), ("used", "1000000\n")):
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.setattr(module, "CONTROL_GROUPS", [(tmp_path / "most", tmp_path / "used")])
    assert plan(made("--plan --ranks 4"))[0].room == 1_000_000
    (tmp_path / "most").write_text("max\n", "utf-8")
    assert module.limits() == []


def test_what_is_on_the_host_is_compared_with_the_host() -> None:
    terms = {"steady": {"parameters": 60, "moments": 40}, "extra": {"activations": 10}, "sent": 0}
    assert Plan(**terms, host=100, room=10, host_room=100).fits is True
    assert Plan(**terms, host=100, room=9, host_room=100).fits is False
    assert Plan(**terms, host=100, room=10, host_room=99).fits is False
    assert Plan(**terms, host=0, room=109, host_room=None).fits is False
    assert Plan(**terms, host=0, room=None, host_room=None).fits is None


@pytest.mark.nightly
def test_the_plan_of_a_run_is_what_its_table_says(tmp_path: Path) -> None:
    words = [*SMALL.split(), "--steps", "3", "--precision", "fp16", "--clip", "1", "--stage", "2", *SHORT]
    planned, counted = tmp_path / "plan.json", tmp_path / "run.json"
    command = [*TORCHRUN, "2", "-m", "shardbook.train", *words, "--json"]
    asked = start(*command, str(planned), "--plan")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.count("It fits.") == 1
    run = start(*command, str(counted))
    assert run.returncode == 0, run.stderr
    promise, figures = (json.loads(file.read_text("utf-8")) for file in (planned, counted))
    assert promise["ranks"] == 2
    assert promise["sent"] * 3 == max(figures["sent"])
    assert promise["steady"] == max(figures["steady"])
    assert promise["step"] >= max(figures["peak"])
    assert "clipped to 1.0" in run.stdout


# --- evaluation and sample ---


def evaluated() -> tuple[float, float, float, str, int]:
    options = made("--steps 4 --sample 25 --prompt Alice")
    training, unseen = readers(options, CPU)
    run = assemble(options, training, CPU)
    step(run)
    whole, two = evaluate(run.model, unseen), evaluate(run.model, unseen, 2)
    torch.manual_seed(options.seed)
    state = run.model.state_dict()
    plain = gpt.GPT(options.config)
    plain.load_state_dict(state)
    assert evaluate(plain, unseen, 2) == pytest.approx(two, rel=1e-6)
    text = sample(options, run.model, CPU)
    assert sample(options, plain, CPU) == text
    return whole, two, mean_over_ranks(whole, CPU), text, unseen.batches


@pytest.mark.full
def test_all_ranks_evaluate_and_write_the_same_text() -> None:
    first, second = ranks.run(2, evaluated)
    assert first[0] != second[0]
    assert first[1] != first[0]
    assert first[2] == second[2] == pytest.approx((first[0] + second[0]) / 2, rel=1e-12)
    assert first[3] == second[3]
    assert first[3].startswith("Alice")
    assert first[4] > 2


# --- what a run writes ---


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@pytest.mark.nightly
def test_a_run_on_files_of_ones_own_with_everything_that_is_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ("a", "b"):
        (data / name).write_text("w1 w2 w3 w4 w5 w6 w7\n" * 600, "utf-8")
    config = tmp_path / "run.toml"
    config.write_text(
        f"[text]\ndata = {str(data)!r}\ntokenizer = {str(tokenizer_file(tmp_path, 12))!r}\n"
        f"cache = {str(tmp_path / 'cache')!r}\nprompt = 'w1 w2'\nsample = 9\n"
        "[training]\nsteps = 30\nevaluate-every = 10\nevaluate-batches = 2\nschedule = 'cosine'\n"
        "warmup = 3\nclip = 1\nlr = 0.03\n",
        "utf-8",
    )
    log, figures = tmp_path / "log.jsonl", tmp_path / "figures.json"
    run = start(
        *(*TORCHRUN, "2", "-m", "shardbook.train", "--config", str(config)),
        *("--layers", "1", "--width", "16", "--heads", "1", "--context", "14", "--batch", "4"),
        *("--lr-end", "0", "--device", "cpu"),
        *("--jsonl", str(log), "--json", str(figures), "--profile", str(tmp_path / "traces")),
        *("--memory-snapshot", str(tmp_path / "memory")),
    )
    assert run.returncode == 0, run.stderr
    written = run.stdout.splitlines()[-1].split()
    assert (written[:2], len(written)) == (["w1", "w2"], 11)
    assert set(written) <= {"[UNK]", *(f"w{number}" for number in range(12))}
    table = json.loads(figures.read_text("utf-8"))
    assert table["loss_unseen"] < table["loss_first"] - 0.3
    assert table["vocabulary"] == 12
    assert table["sent"] == table["sent_forecast"]
    assert table["steady"] == table["steady_forecast"]
    assert "text" in table["steady_terms"]
    assert table["steady_terms"]["text"] == 0
    lines = lines_of(log)
    assert [line["step"] for line in lines] == list(range(1, 31))
    assert [line["step"] for line in lines if "unseen" in line] == [10, 20, 30]
    assert [line["learning_rate"] for line in lines[:3]] == pytest.approx([0.01, 0.02, 0.03])
    assert lines[-1]["learning_rate"] == 0
    assert lines[-1]["unseen"] == pytest.approx(table["loss_unseen"], rel=1e-9)
    assert sum(line["sent"] for line in lines) == table["sent"][0]
    assert all(line["norm"] > 0 and line["seconds"] > 0 for line in lines)
    assert run.stderr.count("held-out text") == 3
    check_traces(tmp_path / "traces")
    check_snapshots(tmp_path / "memory", table)


def check_traces(folder: Path) -> None:
    """One step of each rank, with the labels of the book."""
    assert sorted(file.name for file in folder.iterdir()) == ["trace-rank0.json", "trace-rank1.json"]
    for file in folder.iterdir():
        names = [event.get("name", "") for event in json.loads(file.read_text("utf-8"))["traceEvents"]]
        for label in ("forward micro-batch 0", "backward micro-batch 0", "step optimizer"):
            assert names.count(label) == 1
        for label in ("gather block0", "wait for block0", "reduce block0", "free block0"):
            assert label in names


def check_snapshots(folder: Path, table: dict[str, Any]) -> None:
    """All that was stored at the peak, by kind."""
    assert sorted(file.name for file in folder.iterdir()) == ["memory-rank0.json", "memory-rank1.json"]
    for rank, peak in enumerate(table["peak"]):
        found = json.loads((folder / f"memory-rank{rank}.json").read_text("utf-8"))
        assert found["peak"] == peak == sum(found["kinds"].values())
        assert sum(storage["bytes"] for storage in found["storages"]) == peak
        terms = table["steady_terms"]
        if rank == 0:
            assert found["kinds"]["shard"] == terms["parameters"]
            assert found["kinds"]["optimizer state"] == terms["moments"] + terms["step counters"]


def snapshot_of(words: str) -> tuple[dict[str, int], list[str], int]:
    options = made(words)
    training, unseen = readers(options, CPU)
    run = assemble(options, training, CPU)
    step(run)
    with MemorySnapshot(run.model, run.optimizer, [training.text]) as meter:
        step(run)
    kinds: dict[str, int] = {}
    for nbytes, kind, _ in meter.at_peak:
        kinds[kind] = kinds.get(kind, 0) + nbytes
    assert sum(kinds.values()) == meter.peak
    assert stored(training.text, unseen.text) == kinds["text"]
    return kinds, meter.whole, meter.now()


@pytest.mark.full
def test_the_snapshot_names_what_the_peak_is_made_of() -> None:
    # Few tokens and many values: the peak lies where a block runs backward.
    words = "--layers 3 --width 128 --heads 2 --context 4 --batch 1"
    for kinds, whole, _ in ranks.run(2, snapshot_of, words):
        setup = setup_of(made(words), 2, 0)
        block = 12 * 128**2 + 13 * 128
        assert forecast(setup, 0).peak_moment.startswith("backward of block")
        assert any(name.startswith("block") for name in whole)
        assert len(whole) == 2
        assert kinds["full"] >= 4 * block
        assert kinds["grad_full"] == 4 * block
        assert kinds["sending"] > 0
        assert kinds["shard"] == forecast(setup, 0).steady["parameters"]


@pytest.mark.full
def test_below_stage_3_full_and_shard_are_one_vector() -> None:
    for kinds, _, _ in ranks.run(2, snapshot_of, "--stage 1"):
        assert "full" not in kinds
        assert kinds["shard"] == forecast(setup_of(made("--stage 1"), 2, 0), 0).steady["parameters"]


def test_a_step_that_is_skipped_leaves_a_line_of_valid_json(tmp_path: Path) -> None:
    from shardbook.train.tracking import json_lines

    with json_lines(tmp_path / "log") as track:
        track(0, {"loss": float("nan"), "norm": float("inf")})
    with json_lines(tmp_path / "log") as track:
        track(1, {"loss": 0.5})
    expected = [{"step": 1, "loss": None, "norm": None}, {"step": 2, "loss": 0.5}]
    assert lines_of(tmp_path / "log") == expected


@pytest.mark.nightly
def test_labml_follows_all_ranks_as_one_run(tmp_path: Path) -> None:
    words = [*SMALL.split(), "--steps", "4", "--track", "labml", "--evaluate-every", "2", *SHORT]
    run = start(*TORCHRUN, "2", "-m", "shardbook.train", *words, cwd=tmp_path, HOME=str(tmp_path))
    assert run.returncode == 0, run.stderr
    # labml says nothing in a pipe, and our own lines are there.
    assert "LABML" not in run.stdout
    assert "\x1b" not in run.stdout + run.stderr
    assert run.stderr.count("step 4/4") == 1
    folders = sorted((tmp_path / "logs" / "shardbook").iterdir())
    names = {folder.name.rpartition(".")[0] for folder in folders}
    assert ([folder.suffix for folder in folders], len(names)) == ([".0", ".1"], 1)
    losses = []
    for folder in folders:
        tracked: dict[str, list[Any]] = {}
        for line in lines_of(folder / "log.jsonl"):
            for name, values in line["track"].items():
                tracked.setdefault(name, []).extend(values)
        assert [number for number, _ in tracked["loss"]] == [1, 2, 3, 4]
        assert [number for number, _ in tracked["unseen"]] == [2, 4]
        losses.append([value for _, (value,) in tracked["loss"]])
        status = lines_of(folder / "run_log.jsonl")[-1]
        assert status["status"] == "completed"
    assert losses[0] != losses[1]
    assert "layers" in (folders[0] / "configs.yaml").read_text("utf-8")


def test_labml_that_is_not_installed_is_told_in_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardbook.train import tracking
    from shardbook.train.loop import main

    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    assert main(["--track", "labml"]) == 2
    told = capsys.readouterr().err
    assert "--track labml needs the library labml: pip install 'shardbook[train]'" in told
    assert "--jsonl FILE" in told
    assert told.count("\n") == 1


def on_a_terminal(command: list[str], **environment: str) -> str:
    """What a command writes to a terminal as its standard output and error."""
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        command, stdout=theirs, stderr=theirs, env=warm.environment(COLUMNS="100", **environment)
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 65536)
        # The other end is closed once the program has ended.
        except OSError:
            break
    os.close(ours)
    assert run.wait(timeout=280) == 0, seen.decode()
    return seen.decode()


def test_on_a_terminal_one_line_is_redrawn() -> None:
    words = [*SMALL.split(), "--steps", "6", "--evaluate-every", "3", *SHORT]
    seen = on_a_terminal([warm.python(), "-m", "shardbook.train", *words])
    assert re.search(r"6/6 \[.*loss \d\.\d{3}", seen)
    assert "step 3  held-out text" in seen
    assert "step 6/6" not in seen


@pytest.mark.nightly
def test_without_tqdm_a_terminal_gets_the_lines_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "tqdm.py").write_text("raise ModuleNotFoundError('tqdm')\n", "utf-8")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    words = [*SMALL.split(), "--steps", "3", *SHORT]
    seen = on_a_terminal([sys.executable, "-m", "shardbook.train", *words], PYTHONPATH=path)
    assert seen.count("step 3/3  loss ") == 1


@pytest.mark.nightly
def test_evaluations_send_nothing_that_is_counted_as_training(tmp_path: Path) -> None:
    for stage in ("1", "3"):
        file = tmp_path / f"{stage}.json"
        words = [*SMALL.split(), "--steps", "4", "--evaluate-every", "1", "--stage", stage, *SHORT]
        run = start(*TORCHRUN, "2", "-m", "shardbook.train", *words, "--json", str(file))
        assert run.returncode == 0, run.stderr
        figures = json.loads(file.read_text("utf-8"))
        assert figures["sent"] == figures["sent_forecast"]
        assert figures["steady"] == figures["steady_forecast"]
        assert run.stderr.count("held-out text") == 4
