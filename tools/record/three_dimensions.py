"""Eight ranks on three axes: who works with whom, and what a rank sends along each axis in a step."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from tools.record.frame import ranks
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from shardbook.foundations.collectives import ledger
from shardbook.models import gpt
from shardbook.parallel import tensor_parallel
from shardbook.parallel.tensor_parallel import AXES, stage_of

SHAPE = (2, 2, 2)
RANKS, PIECES, SEQUENCES = 8, 4, 2
CONFIG = gpt.Config(layers=4, width=64, heads=4, context=32, vocabulary=64)


def record() -> Any:
    """For each rank: its place, its partners along each axis, what it stores and what it sends."""
    return {
        "axes": AXES,
        "shape": SHAPE,
        "pieces": PIECES,
        "parameters": gpt.parameters(CONFIG),
        "ranks": ranks(RANKS, on_a_rank),
    }


def on_a_rank() -> Any:
    """One step of stage 1."""
    mesh = init_device_mesh("cpu", SHAPE, mesh_dim_names=AXES)
    torch.manual_seed(0)
    mine = stage_of(CONFIG, mesh, sequences=SEQUENCES, stage=1)
    optimizer = torch.optim.AdamW(mine.layers.parameters(), lr=1e-3)
    tokens = torch.randint(CONFIG.vocabulary, (PIECES * SEQUENCES, CONFIG.context + 1))
    inputs, targets = (half.chunk(PIECES) for half in (tokens[:, :-1], tokens[:, 1:]))
    terms: list[int] = []
    with ledger() as book, patch.object(tensor_parallel, "all_reduce", counted(terms)):
        mine.step(inputs, targets)
        optimizer.step()
    return {
        "place": [mesh.get_local_rank(axis) for axis in AXES],
        "groups": {axis: dist.get_process_group_ranks(mesh.get_group(axis)) for axis in AXES},
        "trained": sum(parameter.numel() for parameter in mine.layers.parameters()),
        "sent": {
            # A stage keeps what it has sent until its next step.
            "pipeline": sum(tensor.nbytes for _, tensor in mine.sends),
            "data": book.total - sum(terms),
            "tensor": sum(terms),
        },
    }


def counted(terms: list[int]) -> Any:
    """The library's all-reduce, which notes what this rank sends for each sum of terms."""
    add_up = tensor_parallel.all_reduce

    def all_reduce(part: Tensor, *, group: Any = None) -> None:
        with ledger() as book:
            add_up(part, group=group)
        terms.append(book.total)

    return all_reduce
