"""The bytes of a rank while a GPT is built: whole and then sharded, or sharded unit by unit."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from tools.record.bytes_in_a_step import CONFIG
from tools.record.frame import ranks

from shardbook import shard
from shardbook.foundations.hook_context import observers
from shardbook.models.gpt import GPT, parameters
from shardbook.planning.forecast import Meter
from shardbook.planning.planner import built
from shardbook.zero.unit import Unit

RANKS = (2, 4)
LEAST = 1024  # bytes


def record() -> Any:
    """Both ways on 2 and 4 ranks, as rank 0 has seen them, and what the book predicts."""
    with torch.device("meta"):
        model = GPT(CONFIG)
    return {
        "model": {**asdict(CONFIG), "parameters": parameters(CONFIG)},
        "ranks": {
            world_size: {
                **ranks(world_size, on_a_rank)[0],
                "forecast_peak": built(model, None, world_size).peak,
            }
            for world_size in RANKS
        },
    }


def on_a_rank() -> Any:
    """Build the same model in both ways."""
    return {"whole": bytes_of(whole), "by unit": bytes_of(by_unit)}


def whole() -> None:
    """The ordinary way: all of the model is there before it is sharded."""
    shard(GPT(CONFIG), stage=3)


def by_unit() -> None:
    """A model of shapes gets its memory while it is sharded."""
    with torch.device("meta"):
        model = GPT(CONFIG)
    shard(model, stage=3)


def bytes_of(build: Callable[[], None]) -> Any:
    """The live bytes after each operation at which they change, and when each unit is there."""
    gc.collect()
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch, Growth() as growth:
        made = Unit.__init__

        def init(unit: Unit, *args: Any, **kwargs: Any) -> None:
            made(unit, *args, **kwargs)
            growth.mark(unit.name)

        patch.setattr(Unit, "__init__", init)
        observers.append(growth)
        build()
        observers.remove(growth)
    return {
        "operations": [number for number, _ in growth.changes],
        "bytes": [nbytes for _, nbytes in growth.changes],
        "marks": growth.marks,
        "peak": growth.peak - growth.before,
        "end": growth.number,
    }


class Growth(Meter):
    """A meter that remembers how the bytes have changed, operation by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.number = self.before = 0
        self.changes: list[tuple[int, int]] = []
        self.marks: list[tuple[str, int]] = []

    def __enter__(self) -> Growth:
        super().__enter__()
        self.before = self.now()
        return self

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        self.number += 1
        self.look()
        return result

    def look(self) -> None:
        """Note the bytes, if they have changed by so much that a figure shows it."""
        nbytes = self.now() - self.before
        if not self.changes or abs(self.changes[-1][1] - nbytes) >= LEAST:
            self.changes.append((self.number, nbytes))

    def mark(self, name: str) -> None:
        """Remember a moment."""
        self.look()
        self.marks.append((name, self.number))

    def begins(self, act: str, about: Any) -> None:
        """The sharding of the model begins."""
        if act == "shard":
            self.mark("shard")

    def ends(self, act: str, about: Any) -> None:
        """The sharding of the model has ended."""
        if act == "shard":
            self.mark("sharded")
