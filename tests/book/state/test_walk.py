"""A run that walks through numbers of ranks, meshes, cuts, stages and formats, and loses no bit on the way.

Each leg loads what the leg before has saved. What it holds then is compared with what was saved, bit for bit:
parameters, the optimizer's state and settings, the scaler, the schedule, the place in the data. A leg may
train some steps. The sums of another number of ranks have other last bits, so it is compared with a run of
the same layout that got the same state in another way: whole, through `load_state_dict`. Then it saves.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import init_device_mesh

import ranks
from shardbook import (
    Checkpoints,
    Policy,
    ShardedGradScaler,
    clip_grad_norm_,
    load_optimizer_state_dict,
    optimizer_state_dict,
    shard,
)
from shardbook.models.corpus import Reader
from shardbook.train.plan import Batches

TEXT = torch.arange(600, dtype=torch.uint8) % 31
# Ranks, and rows of the mesh; 0 means no mesh.
LAYOUTS = [(1, 0), (2, 0), (3, 0), (4, 0), (4, 2)]
# The format that is computed in, and whether the masters are on the host.
FORMATS = [(None, False), ("bfloat16", False), ("float16", False), ("float16", True), (None, True)]
OTHERS = ("scaler", "schedule", "batches")


class Words(nn.Module):
    """Sizes that divide by no number of ranks, a tied weight, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(31, 7)
        self.inner = nn.Sequential(nn.Linear(7, 11), nn.LayerNorm(11), nn.Linear(11, 7))
        self.out = nn.Linear(7, 31)
        self.out.weight = self.embed.weight
        self.frozen = nn.Parameter(torch.ones(5, 7), requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens.long())
        result: Tensor = self.out(x + torch.tanh(self.inner(x)) * self.frozen.sum(0))
        return result


class Run:
    """All that a leg has, from another seed than it had before."""

    def __init__(self, leg: dict[str, Any], seed: int) -> None:
        torch.manual_seed(seed)
        count, mesh_rows = leg["layout"]
        mesh = init_device_mesh("cpu", (mesh_rows, count // mesh_rows)) if mesh_rows else None
        dtype, offload = leg["format"]
        policy = Policy(
            param_dtype=dtype and getattr(torch, dtype), output_dtype=torch.float32, offload=offload
        )
        model = Words()
        groups = [
            {"params": [p for p in model.parameters() if p.ndim > 1 and p.requires_grad]},
            {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.model = shard(
            model,
            units=nn.Linear,
            stage=leg["stage"],
            mesh=mesh,
            policy=policy,
            uncut=(lambda name, parameter: parameter.dim() > 1) if leg["uncut"] else None,
        )
        self.optimizer = torch.optim.AdamW(groups, lr=0.02, weight_decay=0.1)
        self.scaler = ShardedGradScaler("cpu", init_scale=4.0, growth_interval=2)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [3, 6, 9, 12], gamma=0.7)
        self.batches = Batches(
            Reader(TEXT, context=6, batch=2, rank=dist.get_rank(), world_size=dist.get_world_size())
        )

    def others(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in OTHERS}

    def state(self) -> dict[str, Any]:
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": optimizer_state_dict(self.model, self.optimizer),
            **{name: other.state_dict() for name, other in self.others().items()},
        }

    def take(self, state: dict[str, Any]) -> None:
        """Go on from a state that is whole on every rank."""
        self.model.load_state_dict(state["model"])
        load_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
        for name, other in self.others().items():
            other.load_state_dict(state[name])

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            tokens, targets = next(self.batches)
            logits = self.model(tokens).flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, targets.flatten().long())
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model, 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.schedule.step()
            losses.append(loss.item())
        return losses


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def walk(folder: Path, leg: dict[str, Any], before: int | None) -> tuple[bool, bool]:
    """One leg: whether it has found what was there, and trained as the other run has."""
    run = Run(leg, 10 + leg["number"])
    checkpoints = Checkpoints(folder / "run", background=leg["background"])
    found = trained = True
    assert checkpoints.load(run.model, run.optimizer, **run.others()) == before
    if before is not None:
        saved = torch.load(folder / "state.pt", weights_only=False)
        found = equal(run.state(), saved)
        if leg["steps"]:
            twin = Run(leg, 500 + leg["number"])
            twin.take(saved)
            losses = run.train(leg["steps"]), twin.train(leg["steps"])
            trained = losses[0] == losses[1] and equal(run.state(), twin.state())
    else:
        run.train(2)
    dist.barrier()
    checkpoints.save(leg["number"], run.model, run.optimizer, **run.others())
    checkpoints.wait()
    state = run.state()
    if dist.get_rank() == 0:
        torch.save(state, folder / "state.pt")
    return found, trained


def legs(seed: int, count: int) -> list[dict[str, Any]]:
    """A walk. Each way of doing something comes before any comes again."""
    random = Random(seed)

    def drawn(choices: list[Any]) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            found += random.sample(choices, len(choices))
        return found[:count]

    columns = {
        "layout": drawn(LAYOUTS),
        "stage": drawn([0, 1, 2, 3]),
        "format": drawn(FORMATS),
        "steps": drawn([0, 1, 2]),
        "background": drawn([False, True]),
        "uncut": drawn([True, False]),
    }
    return [
        {"number": number, **dict(zip(columns, row, strict=True))}
        for number, row in enumerate(zip(*columns.values(), strict=True))
    ]


FULL = pytest.mark.full


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(
    ("seed", "count"),
    [(1, 6), pytest.param(2, 20, marks=FULL), pytest.param(3, 60, marks=[FULL, pytest.mark.nightly])],
)
def test_a_walk_through_layouts_stages_and_formats_loses_no_bit(
    tmp_path: Path, seed: int, count: int
) -> None:
    for leg in legs(seed, count):
        before = leg["number"] - 1 if leg["number"] else None
        found = ranks.run(leg["layout"][0], walk, tmp_path, leg, before)
        assert found == [(True, True)] * len(found), leg
    # What has moved on the way is no matter of course.
    state = torch.load(tmp_path / "state.pt", weights_only=False)
    assert state["scaler"]["scale"] != 4.0
    assert state["batches"]["window"] > 0 or state["batches"]["epoch"] > 0
