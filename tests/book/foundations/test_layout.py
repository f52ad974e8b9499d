"""Whatever the parameters are, every value has one place, one owner, and comes back unchanged."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from shardbook.foundations.layout import (
    ALIGN_BYTES,
    Layout,
    Slot,
    flatten,
    plan,
    uncut_offsets,
    views,
)
from shardbook.foundations.torch_private import shares_storage

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.bool, torch.complex128)


@st.composite
def parameters(draw: st.DrawFn) -> list[tuple[str, nn.Parameter]]:
    """Named parameters: some 0-dim, empty, transposed, strided, frozen, shared under a second name."""
    named: list[tuple[str, nn.Parameter]] = []
    for i in range(draw(st.integers(0, 8))):
        shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 17, 33]), max_size=3))
        if math.prod(shape) > 2000:
            shape = shape[:1]
        dtype = draw(st.sampled_from(DTYPES))
        generator = torch.Generator().manual_seed(i)
        tensor = torch.randn([2 * size for size in shape], generator=generator).mul(50).to(dtype)
        tensor = tensor[tuple(slice(None, None, 2) for _ in shape)]  # every second value: strides of its own
        if draw(st.booleans()):
            tensor = tensor.permute(tuple(reversed(range(tensor.dim()))))
        trains = draw(st.booleans()) and (dtype.is_floating_point or dtype.is_complex)
        named.append((f"layer{i}.weight", nn.Parameter(tensor, requires_grad=trains)))
        if draw(st.booleans()):
            named.append((f"tied{i}.weight", draw(st.sampled_from(named))[1]))
    return named


def uncut() -> st.SearchStrategy[set[str]]:
    """Names of parameters that are not cut: none, all, or some."""
    names = [f"layer{i}.weight" for i in range(8)]
    return st.just(set[str]()) | st.just({*names}) | st.sets(st.sampled_from(names))


def world_sizes() -> st.SearchStrategy[int]:
    return st.integers(1, 9)


def numbers_of_copies() -> st.SearchStrategy[int]:
    return st.integers(1, 3)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    # One element with a stride of 2 counts as contiguous, but cannot be seen as bytes: a copy can.
    copies = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in (left, right)]
    left, right = (copy.reshape(-1).view(torch.uint8) for copy in copies)
    return torch.equal(left, right)


def by_name(named: list[tuple[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
    return dict(named)


def filled(layout: Layout, named: list[tuple[str, nn.Parameter]]) -> torch.Tensor:
    """The flat vector of these parameters, in memory that held ones before."""
    full = torch.ones(layout.padded, dtype=layout.dtype)
    flatten(layout, [by_name(named)[slot.names[0]] for slot in layout.slots], full)
    return full


@pytest.mark.full
@given(parameters(), world_sizes(), uncut())
def test_every_name_has_one_slot_and_kinds_do_not_mix(
    named: list[tuple[str, nn.Parameter]], world_size: int, uncut: set[str]
) -> None:
    layouts = plan(named, world_size, uncut=uncut)
    names = [name for layout in layouts for slot in layout.slots for name in slot.names]
    assert sorted(names) == sorted(name for name, _ in named)
    assert len({(layout.dtype, layout.trainable, layout.uncut) for layout in layouts}) == len(layouts)
    for layout in layouts:
        assert layout.slots
        for slot in layout.slots:
            owners = {id(by_name(named)[name]) for name in slot.names}
            assert len(owners) == 1, "one slot, one parameter"
            parameter = by_name(named)[slot.names[0]]
            assert (parameter.dtype, parameter.requires_grad) == (layout.dtype, layout.trainable)
            assert (slot.shape, slot.numel) == (parameter.shape, parameter.numel())
            assert layout.uncut == any(name in uncut for name in slot.names)
    slots = sum(len(layout.slots) for layout in layouts)
    assert slots == len({id(parameter) for _, parameter in named}), "a shared parameter is stored once"


@pytest.mark.full
@given(parameters(), world_sizes(), uncut(), numbers_of_copies())
def test_slots_and_gaps_cover_the_vector_once_and_are_aligned(
    named: list[tuple[str, nn.Parameter]], world_size: int, uncut: set[str], copies: int
) -> None:
    for layout in plan(named, world_size, copies, uncut=uncut):
        itemsize = layout.dtype.itemsize
        covered = torch.zeros(layout.padded, dtype=torch.int)
        for slot in layout.slots:
            covered[slot.offset : slot.offset + slot.numel] += 1
            assert slot.offset * itemsize % ALIGN_BYTES == 0
        assert int(covered.sum()) == layout.numel
        for start, stop in layout.gaps:
            assert start < stop
            covered[start:stop] += 1
        assert covered.eq(1).all()
        assert layout.shard_numel * world_size == layout.padded
        # Each copy of the model averages an equal part of a piece.
        assert layout.shard_numel * itemsize % (ALIGN_BYTES * copies) == 0
        waste = layout.padded - layout.numel
        if layout.uncut:
            # The rank with the most has no more than the mean and the largest parameter.
            waste -= (world_size - 1) * max(slot.numel for slot in layout.slots)
            room = (len(layout.slots) + world_size) * (1 + world_size) * copies
        else:
            room = len(layout.slots) + world_size * copies
        assert waste * itemsize < ALIGN_BYTES * room


@pytest.mark.full
@given(parameters(), world_sizes(), uncut())
def test_values_come_back_unchanged_through_views(
    named: list[tuple[str, nn.Parameter]], world_size: int, uncut: set[str]
) -> None:
    for layout in plan(named, world_size, uncut=uncut):
        full = filled(layout, named)
        for start, stop in layout.gaps:
            assert not full[start:stop].any()
        for slot, view in zip(layout.slots, views(layout, full), strict=True):
            assert view.shape == slot.shape
            assert view.is_contiguous()
            assert same_bits(view, by_name(named)[slot.names[0]])
            assert view.untyped_storage().data_ptr() == full.untyped_storage().data_ptr()
            view.zero_()
        assert not full.any(), "writing to the views is writing to the vector"


@pytest.mark.full
@given(parameters(), world_sizes(), uncut(), numbers_of_copies())
def test_pieces_of_all_ranks_together_are_the_parameter(
    named: list[tuple[str, nn.Parameter]], world_size: int, uncut: set[str], copies: int
) -> None:
    for layout in plan(named, world_size, copies, uncut=uncut):
        shards = filled(layout, named).chunk(world_size) if layout.padded else [torch.empty(0)] * world_size
        for slot in layout.slots:
            values = by_name(named)[slot.names[0]].detach().reshape(-1)
            put_together, sizes = 0, set[int]()
            for rank, shard in enumerate(shards):
                start, stop = layout.piece(slot, rank)
                assert 0 <= start <= stop <= layout.shard_numel
                # In rank order, without gap or overlap: each piece goes on where the last one ended.
                first, put_together = put_together, put_together + stop - start
                assert same_bits(shard[start:stop], values[first:put_together])
                shape = layout.shape_of(slot, stop - start)
                assert math.prod(shape) == stop - start
                assert not layout.uncut or shape[1:] == slot.shape[1:]
                sizes.add(stop - start)
            assert put_together == slot.numel
            assert not layout.uncut or sizes <= {0, slot.numel}


@given(parameters(), world_sizes(), uncut())
def test_the_layout_is_the_same_on_every_rank(
    named: list[tuple[str, nn.Parameter]], world_size: int, uncut: set[str]
) -> None:
    """It follows from shapes and names alone: other values, even none at all, change nothing."""
    twins: dict[int, nn.Parameter] = {}
    for _, parameter in named:
        twin = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
        twins.setdefault(id(parameter), twin)
    others = [(name, twins[id(parameter)]) for name, parameter in named]
    assert plan(others, world_size, uncut=uncut) == plan(named, world_size, uncut=uncut)


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.float16, torch.float64)])
def test_places_are_aligned_in_both_forms_of_a_parameter(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """In that of the masters and in that which modules compute with; the narrower one decides."""
    stored, computed = dtypes
    named = [(str(n), nn.Parameter(torch.ones(n, dtype=stored))) for n in (5, 17, 33)]
    (layout,) = plan(named, 2, computes_in=lambda _: computed)
    places = [*(slot.offset for slot in layout.slots), layout.shard_numel]
    assert 0 < places[1] < places[2]
    for dtype in dtypes:
        assert [place * dtype.itemsize % ALIGN_BYTES for place in places] == [0, 0, 0, 0]


def test_the_chapter_s_example() -> None:
    (layout,) = plan(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 8)).named_parameters(), 2)
    weight = layout.slots[2]
    assert weight == Slot(("1.weight",), torch.Size([8, 5]), 40, 32)
    assert [layout.piece(weight, rank) for rank in range(2)] == [(32, 48), (0, 24)]
    assert [layout.piece(layout.slots[3], rank) for rank in range(2)] == [(48, 48), (32, 40)]
    assert layout.gaps == ((15, 16), (21, 32), (72, 80), (88, 96))
    assert sum(stop - start for start, stop in layout.gaps) == 28


def test_a_frozen_subset_needs_no_room_among_the_gradients() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model[0].requires_grad_(False)
    layouts = plan(model.named_parameters(), 4)
    assert {(layout.trainable, layout.numel) for layout in layouts} == {(True, 4160), (False, 4160)}


def test_padding_that_held_nan_does_not_poison_the_norm() -> None:
    (layout,) = plan([("bias", nn.Parameter(torch.ones(4)))], 2)
    full = torch.full((layout.padded,), float("nan"))
    flatten(layout, [torch.full((4,), 2.0)], full)
    assert full.norm().item() == 4.0


def test_flatten_builds_no_graph_and_casts_to_the_vector() -> None:
    layer = nn.Linear(3, 5)
    (layout,) = plan(layer.named_parameters(), 1)
    full = torch.empty(layout.padded, dtype=torch.bfloat16)
    flatten(layout, list(layer.parameters()), full)
    assert not full.requires_grad
    assert torch.equal(full[:15].view(5, 3), layer.weight.detach().bfloat16())


def test_views_at_aligned_addresses_compute_the_same_bits() -> None:
    """What the alignment is for."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        rows, columns = (int(torch.randint(17, 600, (), generator=generator)) for _ in range(2))
        first = nn.Parameter(torch.ones(3))  # pushes the weight off the start
        weight = nn.Parameter(torch.randn(rows, columns, generator=generator))
        (layout,) = plan([("first", first), ("weight", weight)], 1)
        full = torch.empty(layout.padded)
        flatten(layout, [first, weight], full)
        row = torch.randn(1, columns, generator=generator)
        view = views(layout, full)[1]
        assert torch.equal(nn.functional.linear(row, view), nn.functional.linear(row, weight.detach()))


def test_mistakes_are_named() -> None:
    here, elsewhere = (nn.Parameter(torch.ones(3, device=device)) for device in ("cpu", "meta"))
    # Of several names of one parameter the first is told.
    tied = [("a.weight", here), ("a.again", here)]
    with pytest.raises(ValueError, match=r"^b.weight is on meta, but a.weight is on cpu; move the module"):
        plan([*tied, ("b.weight", elsewhere), ("b.again", elsewhere)], 2)
    for nobody in (0, -1):
        with pytest.raises(ValueError, match=f"split over {nobody} ranks; start at least one"):
            plan(tied, nobody)
    (layout,) = plan(tied, 2)
    with pytest.raises(ValueError, match=r"a.weight has shape \(3,\), not \(4,\)"):
        flatten(layout, [torch.ones(4)], torch.empty(layout.padded))
    with pytest.raises(ValueError, match=r"a.weight has shape \(3,\), not \(2,\)"):
        flatten(layout, [torch.ones(2)], torch.empty(layout.padded))
    with pytest.raises(ValueError, match="the layout has 32 elements"):
        flatten(layout, [torch.ones(3)], torch.empty(3))
    with pytest.raises(ValueError, match="the layout has 32 elements"):
        views(layout, torch.empty(33))
    with pytest.raises(ValueError, match="argument"):
        flatten(layout, [], torch.empty(layout.padded))


def test_nothing_to_lay_out_is_no_layout() -> None:
    assert plan([], 3) == ()
    (layout,) = plan([("empty", nn.Parameter(torch.empty(0, 3)))], 3)
    assert (layout.padded, layout.shard_numel, layout.gaps) == (0, 0, ())
    assert views(layout, torch.empty(0))[0].shape == (0, 3)


def test_a_layout_is_a_value() -> None:
    """Ranks compare layouts, and a dictionary may be keyed by them; nothing in them changes."""
    first, second = (plan(nn.Linear(3, 5).named_parameters(), 2)[0] for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.padded = 0  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.slots[0].offset = 1  # type: ignore[misc]


def test_single_bytes_are_aligned_like_all_others() -> None:
    masks = [(name, nn.Parameter(torch.ones(3, dtype=torch.bool), False)) for name in "ab"]
    (layout,) = plan(masks, 2)
    assert [slot.offset for slot in layout.slots] == [0, 64]
    assert (layout.padded, layout.shard_numel) == (128, 64)


def test_two_tensors_share_a_storage_or_do_not() -> None:
    kept = [torch.ones(4) for _ in range(3)]
    for i, one in enumerate(kept):
        assert [shares_storage(one, other) for other in kept] == [i == j for j in range(3)]
        assert shares_storage(one, one[2:])


@given(st.lists(st.integers(1, 100), min_size=1, max_size=12), st.integers(1, 5), st.sampled_from([1, 8, 24]))
def test_whole_parameters_lie_side_by_side_each_in_the_part_of_one_rank(
    sizes: list[int], world_size: int, align: int
) -> None:
    starts, numel = uncut_offsets(sizes, world_size, align)
    length, rest = divmod(numel, world_size)
    assert rest == 0
    places = sorted(zip(starts, sizes, strict=True))
    assert all(a + size <= b for (a, size), (b, _) in pairwise(places))
    for start, size in places:
        rank, inside = divmod(start, length)
        assert rank < world_size
        assert inside % align == 0
        assert inside + size <= length


def test_the_largest_parameter_is_given_away_first() -> None:
    """In the order of the list one rank would store 3 elements and the other 1."""
    assert uncut_offsets([1, 1, 2], 2, 1) == ([2, 3, 0], 4)
