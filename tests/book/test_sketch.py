"""ZeRO-3 in fifty lines: the command as a reader runs it, and the sketch beside a plain model."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ranks
from book import toys
from shardbook import sketch
from shardbook.models.gpt import GPT, Config
from warm import TORCHRUN, start

LESSON = Path(__file__).parents[2] / "site" / "lessons" / "fifty_lines.md"
CONFIG = Config(layers=2, width=32, heads=2, context=16)
SHARDING = ("Sharded", "Gather", "gather", "free")


def table(text: str) -> dict[str, tuple[int, int]]:
    """The rows that the command prints, as bytes of the plain model and of the sharded one."""
    rows = re.findall(r"^(\w[\w ]+?) +([\d,]+) +([\d,]+)$", text, re.MULTILINE)
    return {name: (int(whole.replace(",", "")), int(part.replace(",", ""))) for name, whole, part in rows}


@pytest.mark.full
def test_on_two_ranks_the_command_learns_and_equals_the_plain_model() -> None:
    run = start(*TORCHRUN, "2", "-m", "shardbook.sketch", "--steps", "8")
    assert run.returncode == 0, run.stderr
    losses = re.findall(r"^step +\d+  loss: plain ([\d.]+), sharded ([\d.]+)$", run.stdout, re.MULTILINE)
    assert len(losses) == 8
    assert all(plain == sharded for plain, sharded in losses)
    assert losses[0][0] in str(sketch.__doc__)
    assert float(losses[-1][1]) < float(losses[0][1]) - 1
    bytes_of = table(run.stdout)
    assert list(bytes_of) == ["parameters", "gradients", "optimizer state", "together"]
    for kind in ("parameters", "gradients"):
        whole, part = bytes_of[kind]
        assert whole == 2 * part
    lesson = LESSON.read_text("utf-8")
    for kind, (whole, part) in bytes_of.items():
        assert f"| {kind} | {whole:,} | {part:,} |" in lesson
    # AdamW also counts its steps, for each parameter.
    assert bytes_of["together"][1] < bytes_of["together"][0] / 2
    assert run.stdout.endswith("largest difference of a parameter: 0.0\n")


def test_without_ranks_the_command_says_how_to_start_them() -> None:
    run = start("-m", "shardbook.sketch")
    assert run.returncode == 2
    assert "write torchrun --standalone --nproc-per-node 2 -m shardbook.sketch" in run.stderr


def train(optimizer: str, config: Config = CONFIG) -> tuple[float, float]:
    """How far the sketch is from a plain model that reads the ranks' parts, and from one that reads them as
    one batch.
    """
    torch.manual_seed(0)
    parts, whole = GPT(config), GPT(config)
    whole.load_state_dict(parts.state_dict())
    pieces = [sketch.Sharded(copy.deepcopy(layer)) for layer in parts]
    sharded = nn.Sequential(*pieces)
    optimizers = [toys.optimizer_for(optimizer, model.parameters()) for model in (parts, whole, sharded)]
    for number in range(3):
        of_ranks = [toys.batch(rank, number) for rank in range(dist.get_world_size())]
        one = tuple(torch.cat(column) for column in zip(*of_ranks, strict=True))
        sketch.step(parts, optimizers[0], of_ranks)
        sketch.step(whole, optimizers[1], [(one[0], one[1])])
        sketch.step(sharded, optimizers[2], [of_ranks[dist.get_rank()]])
    return sketch.largest_difference(parts, pieces), sketch.largest_difference(whole, pieces)


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_it_equals_the_plain_model(optimizer: str) -> None:
    """To the bit where the plain model adds up the ranks' parts; else up to the order of a sum."""
    for parts, whole in ranks.run(2, train, optimizer):
        assert parts == 0
        assert 0 < whole < 1e-3
    for parts, whole in ranks.run(3, train, optimizer):
        assert 0 < parts < 1e-3
        assert 0 < whole < 1e-3


def forward_and_backward() -> list[int]:
    """The elements in memory of each layer's whole vector: after the forward pass, and after the backward."""
    vectors = []
    gather = sketch.gather

    def seen(shard: torch.Tensor, full: torch.Tensor) -> None:
        vectors.append(full)
        gather(shard, full)

    sketch.gather = seen
    model = nn.Sequential(*map(sketch.Sharded, toys.chain()))
    x, target = toys.batch(dist.get_rank(), 0)
    error = toys.error(model, (x, target))
    counts = [len(vectors), sum(each.untyped_storage().nbytes() for each in vectors)]
    error.backward()
    return [*counts, len(vectors), sum(each.untyped_storage().nbytes() for each in vectors)]


def test_each_layer_is_gathered_twice_and_freed_twice() -> None:
    layers = len(toys.chain())
    assert ranks.run(2, forward_and_backward) == [[layers, 0, 2 * layers, 0]] * 2


def test_the_sharding_takes_fifty_lines() -> None:
    """As the title says; a comment or a docstring is no line of code."""
    import ast
    import inspect

    text = Path(inspect.getfile(sketch)).read_text("utf-8")
    nodes = [node for node in ast.parse(text).body if getattr(node, "name", "") in (*SHARDING, "step")]
    assert len(nodes) == len(SHARDING) + 1
    lines: set[int] = set()
    for node in nodes:
        for inner in ast.walk(node):
            documents = isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant)
            if isinstance(inner, ast.stmt) and not documents:
                lines.add(inner.lineno)
    assert 35 <= len(lines) <= 55
