"""Large pages are asked for where that can help, and nothing else changes."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import ranks
from shardbook.foundations import streams

Call = tuple[int, int, int]
LARGE = 3 * 2**20


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    calls: list[Call] = []

    def advise(start: int, length: int, what: int) -> int:
        calls.append((start, length, what))
        return 0

    def advice() -> Callable[[int, int, int], int]:
        return advise

    monkeypatch.setattr(streams, "advice", advice)
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 14, raising=False)
    return calls


def test_the_request_covers_the_whole_pages_of_the_storage(asked: list[Call]) -> None:
    tensor = torch.empty(LARGE)
    streams.ask_for_large_pages(tensor[100:200])
    ((start, length, what),) = asked
    first = tensor.data_ptr()
    assert start % mmap.PAGESIZE == 0
    assert first <= start < first + mmap.PAGESIZE
    assert start + length == first + tensor.nbytes
    assert what == 14


def test_nothing_is_asked_for_what_is_small_or_has_no_memory(asked: list[Call]) -> None:
    streams.ask_for_large_pages(torch.empty(1000))
    streams.ask_for_large_pages(torch.empty(LARGE, device="meta"))
    with FakeTensorMode():
        streams.ask_for_large_pages(torch.empty(LARGE))
    assert asked == []


def test_the_system_s_answer_changes_no_value() -> None:
    tensor = torch.arange(LARGE)
    streams.ask_for_large_pages(tensor)
    assert torch.equal(tensor, torch.arange(LARGE))
    # A storage that was emptied and has grown again is asked for like a new one.
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(8 * LARGE)
    streams.ask_for_large_pages(tensor)
    assert torch.equal(tensor.fill_(7), torch.full((LARGE,), 7))


def test_a_system_without_large_pages_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    streams.advice.cache_clear()
    try:
        assert streams.advice() is None
        streams.ask_for_large_pages(torch.empty(LARGE))
    finally:
        streams.advice.cache_clear()


def whole_vectors() -> None:
    """What a step takes for the whole parameters and for the whole gradients of a unit."""
    from shardbook import shard
    from shardbook.zero import flat

    asked: list[int] = []
    flat.ask_for_large_pages = lambda tensor: asked.append(tensor.untyped_storage().nbytes())  # type: ignore[attr-defined]
    model = shard(nn.Linear(512, 512, bias=False))
    model(torch.ones(1, 512)).sum().backward()
    # Two gathers, one vector of gradients. Where nothing is left there is nothing to ask for.
    assert [size for size in asked if size] == [512 * 512 * 4] * 3, asked


def test_whole_vectors_are_asked_for() -> None:
    ranks.run(1, whole_vectors)
