"""What a step cannot do without: its time without any exchange, and the bytes that must be there at the peak.

A peer shows what is usual, a floor what is possible. In a run at the floor every exchange is left out, so
nothing travels and nobody waits, while the ranks compute, copy, add and step as always. What a rank would
receive is not written, so the model learns nothing, but a step computes as much.

The bytes are a sum over shapes: the shards, the optimizer's state, what the forward pass saves for the
backward pass, two units that are whole (one that computes and one on its way), and the gradients of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from benchmarks.launch import Size

from shardbook.models.gpt import Config
from shardbook.planning.forecast import Setup, forecast
from shardbook.planning.planner import layouts_of

FLOAT, INTEGER = 4, 8


class Nothing:
    """The end of an exchange that was never begun."""

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


@contextmanager
def without_exchanges() -> Iterator[None]:
    """Leave out every exchange of tensors. What would be received keeps what its memory holds."""

    def nothing(*_: Any, **__: Any) -> Nothing:
        return Nothing()

    with (
        patch.object(dist, "broadcast", nothing),
        patch.object(dist, "all_to_all_single", nothing),
        patch.object(dist, "all_reduce", nothing),
    ):
        yield


def config_of(size: Size) -> Config:
    """The shape of the model."""
    return Config(size.layers, size.width, size.heads, size.context, size.vocabulary)


def saved_by_blocks(size: Size) -> int:
    """What the forward passes of all blocks save, in bytes.

    For each token a block saves 16 d + 4 + h numbers, as `shardbook.planning.forecast` says.
    """
    saved = 16 * size.width + 4 + size.heads
    return FLOAT * size.batch * size.context * size.layers * saved


def floor_bytes(size: Size, ranks: int) -> dict[str, int]:
    """The bytes that must be there at the peak of a step, by what they are."""
    tokens = size.batch * size.context
    steady = between_steps(size, ranks)
    units = [FLOAT * layout.padded for layout in layouts_of(config_of(size), ranks)]
    # The last norm saves its input and its statistics, the head its input, the loss the log-probabilities.
    head = FLOAT * tokens * (2 * size.width + 2 + size.vocabulary)
    return {
        "shards": steady["parameters"],
        "moments": steady["moments"] + steady["step counters"],
        "saved activations": saved_by_blocks(size) + head,
        "tokens": INTEGER * (2 * tokens + size.context),
        "two units": max(one + other for one, other in pairwise(units)),
        "gradients of a unit": max(units),
    }


def lean_bytes(size: Size, ranks: int) -> dict[str, int]:
    """The least that a step can take in which nothing is computed twice, by what it is.

    When the last block begins its backward pass, the activations of all blocks are there and that block is
    whole. A loss in chunks, no prefetch and a step in the backward pass remove all the rest.
    """
    steady = between_steps(size, ranks)
    blocks = layouts_of(config_of(size), ranks)[1:-1]
    return {
        "shards": steady["parameters"],
        "moments": steady["moments"] + steady["step counters"],
        "saved activations": saved_by_blocks(size),
        "one unit": FLOAT * blocks[-1].padded,
    }


def between_steps(size: Size, ranks: int) -> dict[str, int]:
    """What the first rank stores between steps."""
    return forecast(Setup(config_of(size), ranks, size.batch), 0).steady
