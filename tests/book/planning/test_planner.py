"""The planner: the ZeRO paper's table, this library's own bytes against real ranks, and the command line."""

from __future__ import annotations

import gc
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import ranks
from shardbook import memory
from shardbook.foundations.collectives import ledger
from shardbook.models import gpt
from shardbook.models.gpt import Config
from shardbook.planning import planner
from shardbook.planning.forecast import Meter
from shardbook.zero.model import shard
from shardbook.zero.policy import Policy
from tiers import rows
from warm import start

PAPER = ["120.0", "31.4", "16.6", "1.9"]


# --- the table of the paper ---


@pytest.mark.parametrize(
    ("numel", "world_size", "gigabytes"),
    [
        (7_500_000_000, 64, PAPER),
        (10**12, 1024, ["16000.0", "4011.7", "2013.7", "15.6"]),
    ],
)
def test_the_table_is_that_of_the_paper(numel: int, world_size: int, gigabytes: list[str]) -> None:
    rows = memory.zero_table(numel, world_size, memory.cost_of("fp16", "adamw"))
    assert [f"{row.total / 1e9:.1f}" for row in rows] == gigabytes
    assert [row.moved for row in rows] == [2 * numel, 2 * numel, 2 * numel, 3 * numel]


def test_each_stage_splits_one_thing_more() -> None:
    rows = memory.zero_table(1000, 10, memory.cost_of("bf16", "adamw"))
    kinds = [(row.parameters, row.gradients, row.state) for row in rows]
    assert kinds == [(2000, 2000, 12000), (2000, 2000, 1200), (2000, 200, 1200), (200, 200, 1200)]


def test_on_one_rank_all_stages_are_the_same() -> None:
    rows = memory.zero_table(1000, 1, memory.cost_of("fp32", "adamw"))
    assert {row.total for row in rows} == {16_000}


# --- this library's own bytes ---

CONFIGS = [
    Config(layers=3, width=40, heads=2, context=12),  # logits and activations decide
    Config(layers=4, width=96, heads=4, context=4, vocabulary=31),  # units decide
    Config(layers=12, width=16, heads=2, context=96, vocabulary=7),  # the inputs of many blocks decide
]


def train(config: Config, batch: int) -> dict[tuple[int, bool], tuple[int, int, int]]:
    """On a rank, for each stage, without and with checkpointing: steady bytes, peak bytes and bytes sent."""
    # The meter looks for tensors among all objects. It need not search those of the imports each time.
    gc.freeze()
    return {
        (stage, checkpointing): train_once(config, batch, stage, checkpointing)
        for stage in range(4)
        for checkpointing in (False, True)
    }


def train_once(
    config: Config, batch: int, stage: int, checkpointing: bool, policy: Policy | None = None
) -> tuple[int, int, int]:
    torch.manual_seed(0)
    model = gpt.GPT(config)
    if checkpointing:
        for block in model.blocks:
            block.forward = partial(  # type: ignore[method-assign]
                checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
            )
    model = shard(model, stage=stage, policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.zeros(batch, config.context, dtype=torch.long)

    def step() -> None:
        gpt.loss(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    # The first step makes the optimizer's state.
    step()
    with Meter() as meter, ledger() as book:
        step()
    return meter.now() - tokens.nbytes, meter.peak, book.total


SIZES = [(CONFIGS[0], 2), (CONFIGS[1], 3), (CONFIGS[2], 2)]


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(("config", "world_size"), rows(SIZES, now=SIZES[:1]))
def test_the_planners_bytes_are_those_of_real_ranks(config: Config, world_size: int) -> None:
    batch = 5
    counted = ranks.run(world_size, train, config, batch, timeout=120)[0]
    layouts = planner.layouts_of(config, world_size)
    for (stage, checkpointing), (steady, peak, sent) in counted.items():
        saved = planner.activations(config, batch, checkpointing)
        own = planner.own_bytes(layouts, stage, "adamw", saved)
        assert (steady, sent) == (own.steady, own.sent), (stage, checkpointing)
        assert own.step is not None
        # A bound that is far away would be of no use.
        assert 0.7 * own.step <= peak <= own.step, (stage, checkpointing)


def test_with_a_large_vocabulary_the_loss_decides() -> None:
    """At the loss three tensors of the size of the logits are there at once, and all that the block saved."""
    config = Config(layers=1, width=8, heads=1, context=32, vocabulary=2000)
    for checkpointing in (False, True):
        loss, head, block, embedding = planner.peak_moments(config, 3)
        assert loss > max(head, block, embedding)
        logits = 4 * 3 * config.context * config.vocabulary
        counted, planned = (
            measured_activations(config, 3, checkpointing),
            planner.activations(config, 3, checkpointing),
        )
        assert planned > 3 * logits
        # What is measured besides are the gradients of the head, of which the activations know nothing.
        assert counted <= planned + 4 * gpt.parameters(config)
        assert counted >= 0.95 * planned


def measured_activations(config: Config, batch: int, checkpointing: bool) -> int:
    """The most bytes on top of the model in one process, with gradients."""
    model = gpt.GPT(config)
    if checkpointing:
        for block in model.blocks:
            block.forward = partial(  # type: ignore[method-assign]
                checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
            )
    tokens = torch.zeros(batch, config.context, dtype=torch.long)
    with Meter() as meter:
        before = meter.now()
        gpt.loss(model(tokens), tokens).backward()
    return meter.peak - before


def train_under(policies: list[Policy]) -> list[list[tuple[int, int, int]]]:
    gc.freeze()
    return [[train_once(CONFIGS[0], 5, stage, False, policy) for stage in range(4)] for policy in policies]


@pytest.mark.nightly
def test_under_a_policy_the_bound_is_still_one() -> None:
    # In FP32 activations are as large as in 16 bits at least.
    saved = planner.activations(CONFIGS[0], 5, False)
    policies = [Policy(param_dtype=torch.bfloat16), Policy(reduce_dtype=torch.float64)]
    for policy, counted in zip(policies, ranks.run(2, train_under, policies)[0], strict=True):
        layouts = planner.layouts_of(CONFIGS[0], 2, policy)
        for stage, (_, peak, _) in enumerate(counted):
            own = planner.own_bytes(layouts, stage, "adamw", saved, policy)
            assert own.step is not None
            assert peak <= own.step, (policy, stage)


def test_what_is_in_flight_takes_the_bytes_of_the_policy() -> None:
    def in_flight(policy: Policy) -> list[int]:
        layouts = [planner.one_vector(9600, 10, policy)]
        return [planner.own_bytes(layouts, stage, "sgd", 0, policy).in_flight or 0 for stage in range(4)]

    vectors = 9600 * torch.tensor([2, 1, 3, 3])
    wholes = 9600 * torch.tensor([0, 0, 0, 2])
    assert in_flight(Policy()) == (4 * vectors + 4 * wholes).tolist()
    assert in_flight(Policy(param_dtype=torch.bfloat16)) == (2 * vectors + 2 * wholes).tolist()
    assert in_flight(Policy(reduce_dtype=torch.float64)) == (8 * vectors + 4 * wholes).tolist()


def test_layouts_made_once_are_those_of_the_whole_model() -> None:
    config = CONFIGS[0]
    with torch.device("meta"):
        model = gpt.GPT(config)
    whole = [planner.plan(layer.named_parameters(), 3)[0] for layer in model]
    assert planner.layouts_of(config, 3) == whole


def test_a_number_of_parameters_is_taken_as_one_vector() -> None:
    own = planner.own_bytes([planner.one_vector(1600, 10)], 3, "adamw")
    # One tensor is one number to compare, which travels as twenty of 4 bytes.
    compared = 2 * 9 * 20 * 4 // 10
    assert (own.parameters, own.state, own.gradients, own.sent) == (640, 1284, 640, 3 * 9 * 640 + compared)
    assert own.step is None


def test_sgd_keeps_no_state() -> None:
    own = [planner.own_bytes([planner.one_vector(1600, 10)], stage, "sgd") for stage in range(4)]
    assert [row.state for row in own] == [0, 0, 0, 0]
    assert [row.steady for row in own] == [6400, 6400, 6400, 640]


# --- the command line ---


def run(capsys: pytest.CaptureFixture[str], options: str) -> str:
    assert memory.main(options.split()) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def cells(out: str, stage: int) -> list[list[str]]:
    """The figures of one stage in both tables."""
    return [line[16:].split() for line in out.splitlines() if line.startswith(f"{stage}  ")]


def test_the_command_prints_the_papers_table(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--params 7.5e9 --ranks 64")
    assert "7,500,000,000 parameters on 64 ranks" in out
    assert "in GB of 1,000,000,000 bytes" in out
    rows = [cells(out, stage) for stage in range(4)]
    assert [paper[3] for paper, _ in rows] == PAPER
    assert [paper[4:] for paper, _ in rows] == [
        ["2", "Ψ", "=", "15,000,000,000"],
        ["2", "Ψ", "=", "15,000,000,000"],
        ["2", "Ψ", "=", "15,000,000,000"],
        ["3", "Ψ", "=", "22,500,000,000"],
    ]
    # The library stores fp32: the same 16 bytes for each parameter in a step, otherwise divided.
    assert [own[:4] for _, own in rows] == [
        ["30.0", "60.0", "90.0", "30.0"],
        ["30.0", "0.9", "30.9", "30.0"],
        ["30.0", "0.9", "30.9", "0.5"],
        ["0.5", "0.9", "1.4", "0.5"],
    ]


def test_a_policy_changes_what_the_library_stores_and_not_the_papers_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "figures.json"
    plain = run(capsys, "--params 7.5e9 --ranks 64")
    out = run(capsys, f"--params 7.5e9 --ranks 64 --param-dtype bf16 --offload --json {file}")
    assert "adamw, Policy(param_dtype=torch.bfloat16, offload=True)" in out
    assert [cells(out, stage)[0] for stage in range(4)] == [cells(plain, stage)[0] for stage in range(4)]
    # On the device the copies, on the host 16 bytes for each parameter in a step.
    assert [cells(out, stage)[1] for stage in range(4)] == [
        ["15.0", "0.0", "15.0", "15.0", "120.0", "29.5", "30.0"],
        ["15.0", "0.0", "15.0", "15.0", "1.9", "29.5", "0.5"],
        ["15.0", "0.0", "15.0", "0.0", "1.9", "29.5", "0.5"],
        ["0.0", "0.0", "0.0", "0.0", "1.9", "44.3", "0.7"],
    ]
    figures = json.loads(file.read_text("utf-8"))
    assert figures["policy"] == "Policy(param_dtype=torch.bfloat16, offload=True)"
    # Into the device twice and out of it once, 2 bytes each; one counter of 4 bytes is no parameter.
    assert 16 * figures["own"][3]["moved"] == 6 * (figures["own"][3]["host"] - 4)


def test_the_command_of_the_chapter_runs(capsys: pytest.CaptureFixture[str]) -> None:
    shown = start("-m", "shardbook.memory", "--params", "7.5e9", "--ranks", "64")
    assert shown.stdout == run(capsys, "--params 7.5e9 --ranks 64")
    assert shown.stderr == ""


def test_without_options_it_is_the_papers_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "") == run(capsys, "--params 7.5e9 --ranks 64")


def test_a_model_adds_what_a_step_takes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shape = "--layers 8 --width 512 --heads 8 --context 256 --vocabulary 1000 --batch 4 --ranks 8"
    files = {flag: tmp_path / f"{flag}.json" for flag in ("off", "on")}
    figures: dict[str, Any] = {}
    for flag, file in files.items():
        out = run(capsys, f"{shape} --checkpointing {flag} --json {file}")
        assert ("with activation checkpointing" in out) == (flag == "on")
        assert "step, at most" in out
        figures[flag] = json.loads(file.read_text("utf-8"))
    assert sorted(tmp_path.iterdir()) == sorted(files.values())
    config = Config(layers=8, width=512, heads=8, context=256, vocabulary=1000)
    for figure in figures.values():
        assert figure["parameters"] == gpt.parameters(config)
        assert Config(**figure["model"]) == config
        for row in figure["own"]:
            kinds = ("parameters", "state", "gradients", "in_flight", "activations")
            assert row["step"] == sum(row[kind] for kind in kinds)
            assert row["steady"] == row["parameters"] + row["state"]
    # Checkpointing changes the activations and nothing else.
    for off, on in zip(figures["off"]["own"], figures["on"]["own"], strict=True):
        assert on["activations"] < off["activations"] / 3
        assert {**on, "activations": 0, "step": 0} == {**off, "activations": 0, "step": 0}


def test_the_flag_alone_turns_checkpointing_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--layers 2 --checkpointing") == run(capsys, "--layers 2 --checkpointing on")


def test_in_fp32_the_paper_and_the_library_agree_but_for_padding(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    options = f"--layers 6 --width 64 --precision fp32 --ranks 4 --json {file}"
    assert memory.main(options.split()) == 0
    figures = json.loads(file.read_text("utf-8"))
    for paper, own in zip(figures["zero"], figures["own"], strict=True):
        assert own["parameters"] + own["state"] + own["gradients"] == pytest.approx(paper["total"], rel=0.01)
        assert own["sent"] == pytest.approx(4 * paper["moved"] * 3 / 4, rel=0.01)


@pytest.mark.nightly
def test_any_size_that_the_options_allow_can_be_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert "1,000,000 ranks" in run(capsys, "--params 1e18 --ranks 1000000")
    assert "in kB of 1,000 bytes." in run(capsys, "--params 1e4 --ranks 2")
    assert "on 1 rank\n" in run(capsys, "--params 1 --ranks 1 --optimizer sgd")
    assert "in bytes." in run(capsys, "--params 1 --ranks 3")
    assert "layers 10000" in run(capsys, "--layers 10000 --ranks 1000000")
    # No FP64 number is between these two.
    assert "9,007,199,254,740,993 parameters" in run(capsys, "--params 9007199254740993")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            "--params 0",
            "--params is 0, but it must be a whole number from 1 to 1,000,000,000,000,000,000",
        ),
        ("--params -7", "--params is -7, but it must be a whole number from 1"),
        ("--params nan", "--params is nan, but it must be a whole number from 1"),
        ("--params 1e400", "--params is 1e400, but it must be a whole number from 1"),
        ("--params snan", "--params is snan, but it must be a whole number from 1"),
        ("--params 1.5", "--params is 1.5, but it must be a whole number from 1"),
        ("--params many", "--params is many, but it must be a whole number from 1"),
        ("--ranks 0", "--ranks is 0, but it must be a whole number from 1 to 1,000,000; see --help"),
        ("--ranks 1.5", "--ranks is 1.5, but it must be a whole number from 1 to 1,000,000; see --help"),
        ("--params 5 --layers 3", "--params and --layers exclude each other"),
        ("--batch 3", "--batch needs a model; give --layers, --width, --heads"),
        ("--checkpointing", "--checkpointing needs a model"),
        ("--layers 2 --batch 0", "--batch is 0, but it must be a whole number from 1 to 1,000,000"),
        ("--layers 10001", "--layers is 10001, but it must be a whole number from 1 to 10,000"),
        ("--width 0", "--width is 0, but it must be a whole number from 1"),
        ("--width 5", "width 5 is not divisible by heads 4; choose a multiple of heads"),
        ("--width 1e9 --layers 1", "parameters are more than 1,000,000,000,000,000,000"),
        ("--precision int8", "invalid choice: 'int8'"),
        ("--optimizer lion", "invalid choice: 'lion'"),
        ("--json /", "--json is /, a folder; name a file"),
        ("--json nowhere/figures.json", "but there is no folder nowhere; make it first"),
        ("--stage 3", "unrecognized arguments: --stage 3; see --help"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(
    options: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert memory.main(options.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.startswith("shardbook.memory: ")
    assert err.count("\n") == 1


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        memory.main(["--help"])
    assert stopped.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for action in memory.parser()._actions:
        assert action.help
        assert all(option in shown for option in action.option_strings)
