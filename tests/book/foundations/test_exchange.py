"""The exchange of pieces: what arrives, in which order, and in how much memory."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import ranks
from shardbook.foundations.collectives import exchange
from shardbook.foundations.torch_private import shares_storage

SIZE = 5


def trade(dtype: torch.dtype) -> tuple[list[list[float]], list[bool], int]:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # The tens say from whom a number comes, the ones to whom it goes.
    flat = torch.tensor([10 * rank + to for to in range(world_size) for _ in range(SIZE)], dtype=dtype)
    before = flat.clone()
    works, rows = exchange(flat, None)
    for work in works:
        work.wait()
    assert torch.equal(flat, before)
    own = [shares_storage(row, flat) for row in rows]
    into = {row.untyped_storage()._cdata: row.untyped_storage().nbytes() for row in rows}
    taken = sum(into.values()) - (flat.nbytes if any(own) else 0)
    return [row.tolist() for row in rows], own, taken // dtype.itemsize


@pytest.mark.cases(now=6, ci=6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_rank_gets_its_piece_of_all_vectors_in_rank_order(world_size: int, dtype: torch.dtype) -> None:
    for rank, (rows, own, taken) in enumerate(ranks.run(world_size, trade, dtype)):
        assert rows == [[float(10 * source + rank)] * SIZE for source in range(world_size)]
        # At both ends of the vector the rank's own piece is not copied.
        at_an_end = rank in (0, world_size - 1)
        assert own == [at_an_end and source == rank for source in range(world_size)]
        assert taken == (world_size - at_an_end) * SIZE


def nothing() -> tuple[int, int]:
    works, rows = exchange(torch.empty(0), None)
    for work in works:
        work.wait()
    return len(rows), sum(row.numel() for row in rows)


@pytest.mark.parametrize("world_size", [1, 3])
def test_an_empty_vector_has_empty_rows(world_size: int) -> None:
    assert ranks.run(world_size, nothing) == [(world_size, 0)] * world_size
