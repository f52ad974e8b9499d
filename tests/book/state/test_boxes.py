"""A stretch of a flattened tensor, cut into boxes of the tensor."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from shardbook.state.file_formats import boxes

SHAPES = st.lists(st.integers(0, 5), max_size=4)


@given(shape=SHAPES, data=st.data())
def test_boxes_hold_the_elements_of_the_stretch_in_their_order(shape: list[int], data: st.DataObject) -> None:
    tensor = torch.arange(torch.Size(shape).numel()).view(shape)
    start = data.draw(st.integers(0, tensor.numel()))
    stop = data.draw(st.integers(start, tensor.numel()))
    found = list(boxes(shape, start, stop))
    parts = [
        tensor[tuple(slice(at, at + size) for at, size in zip(box.offsets, box.sizes, strict=True))]
        for box in found
    ]
    assert [part.numel() for part in parts] == [box.numel for box in found]
    assert all(part.numel() for part in parts)
    flat = torch.cat([part.reshape(-1) for part in parts]) if parts else tensor.new_empty(0)
    assert torch.equal(flat, tensor.reshape(-1)[start:stop])
    assert len(found) <= max(1, 2 * len(shape) - 1)
