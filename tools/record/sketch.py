"""ZeRO-3 in fifty lines: the bytes that a rank stores, plain and sharded, on 1, 2 and 4 ranks."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import patch

import torch
from tools.record.frame import ranks
from torch import Tensor, nn

from shardbook import sketch
from shardbook.foundations.collectives import world
from shardbook.models.corpus import Reader, read
from shardbook.models.gpt import GPT, Config

RANKS = (1, 2, 4)
CONFIG = Config(layers=4, width=64, heads=4, context=32)


def record() -> Any:
    """For each number of ranks: what a rank stores after two steps, and the most that was whole at once."""
    found = {}
    for world_size in RANKS:
        first, *others = ranks(world_size, on_a_rank)
        if any(other != first for other in others):
            raise ValueError(
                f"the {world_size} ranks store different numbers of bytes, and the figure shows one"
            )
        found[world_size] = first
    model = GPT(CONFIG)
    layers = [sum(p.nbytes for p in layer.parameters()) for layer in model]
    return {
        "parameters": sum(layers) // 4,
        "layers": len(layers),
        "largest_layer": max(layers),
        "ranks": found,
    }


def on_a_rank() -> Any:
    """Both models of the chapter take two steps."""
    rank, size = world()
    reader = Reader(read(), context=CONFIG.context, batch=4, rank=rank, world_size=size)
    torch.manual_seed(0)
    plain = GPT(CONFIG)
    sharded = nn.Sequential(*[sketch.Sharded(copy.deepcopy(layer)) for layer in plain])
    whole = Whole()
    found: dict[str, Any] = {}
    with patch.object(sketch, "gather", whole.gather):
        for name, model in (("plain", plain), ("sharded", sharded)):
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
            for number in range(2):
                sketch.step(model, optimizer, [reader[number]])
            found[name] = sketch.stored(model, optimizer)
    return {**found, "whole_at_once": whole.most}


class Whole:
    """Looks at all whole vectors at each gather; `most` is the most bytes that they had at one moment."""

    def __init__(self) -> None:
        self.vectors: list[Tensor] = []
        self.most = 0
        self.real = sketch.gather

    def gather(self, shard: Tensor, full: Tensor) -> None:
        """Gather, and count."""
        self.real(shard, full)
        if not any(full is each for each in self.vectors):
            self.vectors.append(full)
        self.most = max(self.most, sum(each.untyped_storage().nbytes() for each in self.vectors))
