"""What each collective computes, compared bit for bit with one process that sees all ranks' values."""

from __future__ import annotations

import contextlib
import doctest
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ranks
from shardbook.foundations import collectives
from shardbook.foundations.collectives import (
    all_gather,
    all_gather_together,
    all_reduce,
    broadcast,
    reduce_scatter_mean,
    world,
)
from shardbook.foundations.torch_private import ALL_GATHER, REDUCE_SCATTER

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
ANY = (*FLOATS, torch.int64, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn)


def values(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank brings along: any rank can compute every other rank's values."""
    generator = torch.Generator().manual_seed(1000 + rank)
    return (torch.randn(numel, generator=generator, dtype=torch.float64) * 100).to(dtype)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def gathers() -> None:
    rank, size = world()
    for dtype in ANY:
        for numel in (1, 7, 1000):
            full, shard = torch.zeros(size * numel, dtype=dtype), values(rank, numel, dtype)
            address = full.data_ptr()
            all_gather(full, shard).wait()
            assert full.data_ptr() == address
            assert same_bits(full, torch.cat([values(peer, numel, dtype) for peer in range(size)])), dtype
            assert same_bits(shard, values(rank, numel, dtype))


def gathers_of_several() -> None:
    """A rank that changes its own piece meanwhile keeps the change, wherever the piece lies."""
    rank, size = world()
    for dtype in ANY:
        fulls = [torch.zeros(size * numel, dtype=dtype) for numel in (1, 7, 40)]
        shards = [full.view(size, -1)[rank] for full in fulls]
        for shard in shards[1:]:
            shard.copy_(values(rank, shard.numel(), dtype))
        shards[0] = values(rank, 1, dtype)
        *parts, last = all_gather_together(fulls, shards)
        last.wait()
        shards[1].zero_()
        for part in parts:
            part.wait()
        for full, shard in zip(fulls, shards, strict=True):
            pieces = [values(peer, shard.numel(), dtype) for peer in range(size)]
            if shard is shards[1]:
                pieces[rank].zero_()
            assert same_bits(full, torch.cat(pieces)), dtype


def ordered_mean(size: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """The reference: add in rank order, 16-bit values in fp32; divide; only then round."""
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    total = torch.zeros(numel, dtype=wide)
    for peer in range(size):
        total = total + values(peer, numel, dtype).to(wide)
    return (total / size).to(dtype)


def reduces() -> None:
    rank, size = world()
    for dtype in FLOATS:
        for numel in (1, 7, 1000):
            full = values(rank, size * numel, dtype)
            piece = reduce_scatter_mean(full).wait()
            assert same_bits(piece, ordered_mean(size, size * numel, dtype)[rank * numel :][:numel]), dtype
            assert same_bits(full, values(rank, size * numel, dtype))


def reduces_elsewhere() -> None:
    """The path of every other backend. Whole numbers: their sums are exact in any order."""
    collectives._on_gloo = lambda tensor, group: False  # type: ignore[assignment]
    rank, size = world()
    for dtype in FLOATS:
        with collectives.ledger() as book:
            piece = reduce_scatter_mean(torch.full((4 * size,), 39936.0 + 512 * rank, dtype=dtype)).wait()
        assert same_bits(piece, torch.full((4,), 39936.0 + 256 * (size - 1)).to(dtype)), dtype
        assert book.total == (size - 1) * 4 * dtype.itemsize, (dtype, book.sent)
        if dtype.itemsize < 4:
            # Added in FP32 and in rank order, as on gloo.
            piece = reduce_scatter_mean(values(rank, size * 100, dtype)).wait()
            assert same_bits(piece, ordered_mean(size, size * 100, dtype)[rank * 100 :][:100]), dtype
        full = torch.zeros(size * 3, dtype=dtype)
        all_gather(full, torch.full((3,), rank, dtype=dtype)).wait()
        assert full.tolist() == [peer for peer in range(size) for _ in range(3)]


def broadcasts() -> None:
    rank, size = world()
    for source in range(size):
        for dtype in ANY:
            for shape in ((), (5,), (3, 4)):
                tensor = values(rank, 12, dtype)[: torch.Size(shape).numel()].reshape(shape).clone()
                broadcast(tensor, source=source)
                wanted = values(source, 12, dtype)[: tensor.numel()]
                assert same_bits(tensor.reshape(-1), wanted), (source, dtype, shape)


def broadcast_of_one_strided_element() -> None:
    strided = torch.empty_strided((1,), (2,)).fill_(1.0 + world()[0])
    assert strided.is_contiguous()
    broadcast(strided)
    assert strided.item() == 1.0


def all_reduces() -> None:
    rank, size = world()
    tensor = torch.arange(10.0) * (rank + 1)
    all_reduce(tensor)
    assert torch.equal(tensor, torch.arange(10.0) * sum(range(1, size + 1)))


def large_values() -> list[list[float]]:
    return [
        reduce_scatter_mean(torch.full((4,), 40000.0, dtype=dtype)).wait().tolist()
        for dtype in (torch.float16, torch.bfloat16)
    ]


def orders() -> float:
    """Four numbers whose sum depends on where one starts: 1 in rank order, 0 or 2 elsewhere."""
    rank, size = world()
    piece = reduce_scatter_mean(torch.full((4,), [1e8, 1.0, -1e8, 1.0][rank])).wait()
    return piece.item() * size


def empties() -> dict[str, int]:
    with collectives.ledger() as book:
        all_gather(torch.empty(0), torch.empty(0)).wait()
        assert reduce_scatter_mean(torch.empty(0)).wait().shape == (0,)
        broadcast(torch.empty(0, 3))
        all_reduce(torch.empty(0))
    return book.sent


def alone() -> None:
    """A group of one rank, in a world of two: what each call gives, without any call of torch.distributed."""
    groups = [dist.new_group([rank]) for rank in range(2)]
    group, mine = groups[dist.get_rank()], dist.get_rank()
    names = (ALL_GATHER, REDUCE_SCATTER, "all_to_all_single", "all_reduce", "broadcast")
    with pytest.MonkeyPatch.context() as patch, collectives.ledger() as book:
        for name in names:
            patch.setattr(dist, name, None)
        for on_gloo in (True, False):
            patch.setattr(collectives, "_on_gloo", lambda tensor, group, on_gloo=on_gloo: on_gloo)
            for dtype in FLOATS:
                mean = values(mine, 7, dtype)
                full = torch.zeros(7, dtype=dtype)
                all_gather(full, mean, group=group).wait()
                assert same_bits(full, mean), (on_gloo, dtype)
                all_gather(full, full, group=group).wait()
                piece = reduce_scatter_mean(full, group=group).wait()
                assert same_bits(piece, mean), (on_gloo, dtype)
                piece.zero_()
                all_reduce(full, group=group)
                broadcast(full, group=group)
                assert same_bits(full, mean), "the piece must not be a view of the vector"
    assert book.calls == [], book.calls


def in_turn(on_gloo: bool) -> list[str]:
    """What is started and waited for in two groups whose exchanges overlap."""
    said: list[str] = []
    names = {dist.new_group([0, 1]): "row", dist.new_group([0, 1]): "column"}
    row, column = names

    class Started:
        def __init__(self, group: Any) -> None:
            self.name = names[group]
            said.append(f"start {self.name}")

        def wait(self) -> None:
            said.append(f"wait for {self.name}")

    def start(*tensors: torch.Tensor, group: Any, async_op: bool) -> Started:
        assert async_op
        return Started(group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collectives, "_on_gloo", lambda tensor, group: on_gloo)
        patch.setattr(dist, ALL_GATHER, start)
        patch.setattr(dist, REDUCE_SCATTER, start)
        if on_gloo:
            patch.setattr(dist, "broadcast", lambda *_, group, **__: Started(group))
            patch.setattr(collectives, "exchange", lambda flat, group: ([Started(group)], [flat[:1]]))
        first = all_gather(torch.zeros(2), torch.zeros(1), group=row)
        reducing = reduce_scatter_mean(torch.zeros(2), group=column)
        first.wait()
        second = all_gather(torch.zeros(2), torch.zeros(1), group=row)
        reducing.wait()
        third = all_gather(torch.zeros(2), torch.zeros(1), group=row)
        assert second.works
        assert third.works
    return said


def overlaps() -> None:
    """Several collectives under way at once, waited for in the other order, mix nothing up."""
    rank, size = world()
    fulls = [torch.zeros(size * 10000) for _ in range(4)]
    gathers = [all_gather(full, torch.full((10000,), 10.0 * i + rank)) for i, full in enumerate(fulls)]
    reduces = [reduce_scatter_mean(torch.full((size * 10000,), float(i + rank))) for i in range(4)]
    for i, pending in reversed(list(enumerate(reduces))):
        assert pending.wait().eq(i + (size - 1) / 2).all()
    for i, gather in reversed(list(enumerate(gathers))):
        gather.wait()
        expected = torch.arange(size).repeat_interleave(10000) + 10.0 * i
        assert torch.equal(fulls[i], expected)


def parameters_are_taken_as_values() -> None:
    """Tensors that require gradients go in, and no graph comes out."""
    _, size = world()
    shard = torch.nn.Parameter(torch.ones(3))
    full = torch.zeros(size * 3)
    all_gather(full, shard).wait()
    piece = reduce_scatter_mean(torch.ones(size * 3, requires_grad=True) * 2).wait()
    broadcast(shard)
    assert full.eq(1).all()
    assert not full.requires_grad
    assert not piece.requires_grad


def subgroup() -> None:
    group = dist.new_group([1, 3])
    rank = dist.get_rank()
    if rank in (0, 2):
        with pytest.raises(RuntimeError, match="not in the process group"):
            world(group)
        return
    assert world(group) == (rank // 2, 2)
    tensor = torch.full((2,), float(rank))
    with collectives.ledger() as book:
        broadcast(tensor, source=1, group=group)
        assert tensor.tolist() == [3.0, 3.0]
        full = torch.zeros(2)
        all_gather(full, torch.tensor([float(rank)]), group=group).wait()
        assert full.tolist() == [1.0, 3.0]
        assert reduce_scatter_mean(full * rank, group=group).wait().item() == [2.0, 6.0][rank // 2]
    assert {call.world_size for call in book.calls} == {2}


def gather_peak() -> float:
    """Peak resident memory of a gather over what was there before, as a part of the gathered bytes."""
    _, size = world()
    full, shard = torch.ones(size * 4_000_000), torch.ones(4_000_000)
    all_gather(full, shard).wait()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmHWM")
    all_gather(full, shard).wait()
    return (status("VmHWM") - before) * 1024 / full.nbytes


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def mistakes() -> None:
    _, size = world()
    with pytest.raises(ValueError, match="do not fill"):
        all_gather(torch.empty(size * 3 + 1), torch.empty(3))
    with pytest.raises(ValueError, match="do not fill"):
        all_gather(torch.empty(size * 3, dtype=torch.float64), torch.empty(3))
    with pytest.raises(ValueError, match="do not fill"):
        all_gather(torch.empty(size * 6)[::2], torch.empty(3))
    with pytest.raises(TypeError, match="floating-point"):
        reduce_scatter_mean(torch.ones(size, dtype=torch.int64))
    with pytest.raises(ValueError, match="cannot be cut into 2 equal pieces; pad"):
        reduce_scatter_mean(torch.ones(size + 1))
    with pytest.raises(ValueError, match="rank 2 is not one of the group's 2 ranks"):
        broadcast(torch.ones(1), source=2)
    with pytest.raises(ValueError, match="contiguous"):
        broadcast(torch.ones(2, 3).t())
    pending = reduce_scatter_mean(torch.ones(size))
    pending.wait()
    with pytest.raises(RuntimeError, match="gives its result once"):
        pending.wait()


def books() -> None:
    """Ledgers nest, survive an error, and see the calls of other threads, where autograd runs its hooks."""
    with collectives.ledger() as outer:
        all_reduce(torch.ones(2))
        with contextlib.suppress(ZeroDivisionError), collectives.ledger() as inner:
            thread = threading.Thread(target=all_reduce, args=(torch.ones(4),))
            thread.start()
            thread.join()
            raise ZeroDivisionError
        broadcast(torch.ones(8))
    all_reduce(torch.ones(16))
    assert [(call.collective, call.payload) for call in inner.calls] == [("all-reduce", 16)]
    assert [(call.collective, call.payload) for call in outer.calls] == [
        ("all-reduce", 8),
        ("all-reduce", 16),
        ("broadcast", 32),
    ]
    assert outer.sent == {"all-reduce": 24, "broadcast": 32 * (dist.get_rank() == 0)}
    assert outer.total == sum(outer.sent.values())


def examples() -> int:
    tried = 0
    for module in (collectives, collectives):
        names = {"torch": torch, **vars(module)}
        result = doctest.testmod(module, extraglobs=names)
        assert result.failed == 0
        tried += result.attempted
    return tried


@pytest.mark.cases(now=9, ci=9)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "check",
    [
        gathers,
        gathers_of_several,
        reduces,
        reduces_elsewhere,
        broadcasts,
        broadcast_of_one_strided_element,
        all_reduces,
        overlaps,
        parameters_are_taken_as_values,
    ],
)
def test_every_rank_gets_exactly_what_it_should(world_size: int, check: Callable[[], None]) -> None:
    ranks.run(world_size, check)


def test_sixteen_bit_gradients_do_not_overflow_on_the_way_to_their_mean() -> None:
    assert ranks.run(2, large_values) == [[[40000.0] * 2, [39936.0] * 2]] * 2


def test_the_sum_runs_in_rank_order_on_every_rank() -> None:
    assert ranks.run(4, orders) == [1.0] * 4


def test_a_gather_on_gloo_takes_no_second_buffer() -> None:
    assert max(ranks.run(2, gather_peak)) < 0.1


def test_nothing_to_move_is_no_special_case() -> None:
    nothing = {"all-gather": 0, "reduce-scatter": 0, "broadcast": 0, "all-reduce": 0}
    assert ranks.run(2, empties) == [nothing] * 2


def test_one_rank_alone_issues_no_exchange() -> None:
    ranks.run(2, alone)


def test_exchanges_of_two_groups_take_turns_where_kernels_could_block_each_other() -> None:
    for said in ranks.run(2, in_turn, False):
        assert said == [
            *["start row", "wait for row", "start column"],
            *["wait for row", "wait for column", "start row", "wait for column", "start row"],
        ]
    for said in ranks.run(2, in_turn, True):
        assert [what for what in said if what == "wait for column"] == ["wait for column"]


def test_a_group_numbers_its_ranks_itself() -> None:
    ranks.run(4, subgroup)


def test_mistakes_are_named() -> None:
    ranks.run(2, mistakes)


def test_ledgers_nest_and_see_every_thread() -> None:
    ranks.run(2, books)


def test_no_process_group_is_one_clear_sentence() -> None:
    assert not dist.is_initialized()
    with pytest.raises(RuntimeError, match=r"^torch.distributed is not initialised, .* start with torchrun"):
        world()


def test_the_examples_run_on_two_ranks() -> None:
    assert "WORLD_SIZE" not in os.environ
    assert min(ranks.run(2, examples)) > 10
