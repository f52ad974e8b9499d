"""Checkpoints in pieces, on the host, or both; the same values, and every byte counted."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import ranks
from book.live import LiveStorages
from book.toys import assert_equal, batch, chain, error
from shardbook.checkpointing.determinism import digest
from shardbook.checkpointing.reentrant import checkpoint_reentrant
from shardbook.checkpointing.saved_tensors import checkpoint_saved
from shardbook.foundations.agreement import Disagreement
from shardbook.foundations.collectives import ledger
from shardbook.models.gpt import GPT, Config, loss
from shardbook.streaming.residual import (
    KeptValues,
    Placed,
    Residual,
    Sharing,
    Untouched,
    lie_flat,
    offload,
    partition,
    piece_numel,
)
from shardbook.zero.offload import pin, to_device, to_host

CONFIG = Config(layers=3, width=20, heads=2, context=11, vocabulary=23)
BATCH = 3
TO_HOST, TO_DEVICE = "activations to the host", "activations to the device"
CHECKPOINTS: list[Callable[..., Any]] = [checkpoint_reentrant, checkpoint_saved]
Around = Callable[[], AbstractContextManager[Any]]


def gradients(
    around: Around,
    through: Callable[..., Any] | None = None,
    model: nn.Sequential | None = None,
    backwards: int = 1,
) -> dict[str, Tensor]:
    """The gradients of a GPT whose blocks go `through` a checkpoint, with a context around."""
    torch.manual_seed(0)
    model = GPT(CONFIG) if model is None else model
    tokens = torch.randint(0, CONFIG.vocabulary, (BATCH, CONFIG.context + 1))
    with around():
        x = model[0](tokens[:, :-1])
        for layer in list(model)[1:-1]:
            x = layer(x) if through is None else through(layer, x)
        total = loss(model[-1](x), tokens[:, 1:])
    for more in reversed(range(backwards)):
        total.backward(retain_graph=more > 0)
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("through", [None, *CHECKPOINTS])
@pytest.mark.parametrize("backwards", [1, 2])
def test_offload_changes_no_bit(through: Callable[..., Any] | None, backwards: int) -> None:
    expected = gradients(nullcontext, None, backwards=backwards)
    assert_equal(gradients(partial(offload, least=0), through, backwards=backwards), expected)


def shared_gradients() -> None:
    for backwards in (1, 2):
        expected = gradients(nullcontext, None, backwards=backwards)
        for through in (None, *CHECKPOINTS):
            for on_host in (False, True):
                around = partial(partition, offload=on_host, least=0, check=on_host)
                assert_equal(gradients(around, through, backwards=backwards), expected)


@pytest.mark.nightly
def test_partition_changes_no_bit() -> None:
    ranks.run(3, shared_gradients)


def kept_and_sent() -> None:
    """One piece of each checkpoint, one gather of each, and one way in each direction of what is offloaded.

    The loss is computed outside of the context: its own saved tensors are none of the checkpoints.
    """
    world_size, model = dist.get_world_size(), GPT(CONFIG)
    x = torch.randn(BATCH, CONFIG.context, CONFIG.width, requires_grad=True)
    with torch.no_grad():
        for tensor in (x, *model.parameters()):
            dist.broadcast(tensor, 0)
    piece = 4 * piece_numel(x.numel(), world_size)
    assert x.nbytes <= world_size * piece < x.nbytes + 4 * world_size
    for through in CHECKPOINTS:
        for on_host in (False, True):
            kept_and_sent_through(through, model, x, piece, on_host)


def kept_and_sent_through(
    through: Callable[..., Any], model: GPT, x: Tensor, piece: int, on_host: bool
) -> None:
    layers, world_size, y = len(model.blocks), dist.get_world_size(), x * 1
    with ledger() as book:
        with LiveStorages() as live:
            for tensor in (y, *model.parameters()):
                live.note(tensor)
            before = live.bytes()
            with partition(least=0, offload=on_host):
                for block in model.blocks:
                    y = through(block, y)
            # The last output is a tensor of its own, and the first input is nobody's any more.
            gc.collect()
            assert live.bytes() - before == layers * piece
        assert not book.calls
        y.sum().backward()
    assert [(call.collective, call.sent) for call in book.calls] == [
        ("all-gather", (world_size - 1) * piece)
    ] * layers
    moved = {TO_HOST: layers * piece, TO_DEVICE: layers * piece}
    assert book.moved == (moved if on_host else {})


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("world_size", [2, 3])
def test_each_rank_keeps_one_piece_and_gathers_once(world_size: int) -> None:
    ranks.run(world_size, kept_and_sent)


def two_groups() -> None:
    """Data parallel ranks hold different values; only those of one tensor parallel group share."""
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    row = dist.get_rank() // 2
    model = chain(seed=row)
    error(model, batch(row, 0)).backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with partition(rows[row], least=0, check=True):
        wrong = error(model, batch(row, 0))
    wrong.backward()
    found = [p.grad for p in model.parameters()]
    assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True) if f is not None)


def test_only_the_ranks_of_the_group_take_part() -> None:
    ranks.run(4, two_groups)


def a_rank_that_differs() -> list[str]:
    x = torch.ones(5, 3, requires_grad=True)
    if dist.get_rank() == 2:
        x.data[4, 2] = 1.0000001
    with pytest.raises(Disagreement) as caught, partition(least=0, check=True):
        x.exp()
    x = torch.ones(5 + dist.get_rank() // 3, 3, requires_grad=True)
    with pytest.raises(Disagreement) as longer, partition(least=0, check=True):
        x.exp()
    return [str(caught.value), str(longer.value)]


def test_all_ranks_learn_which_one_holds_other_values() -> None:
    for said in ranks.run(4, a_rank_that_differs):
        assert [sentence.partition(";")[0] for sentence in said] == [
            f"rank {rank} of the group saves {numel} values of torch.float32 for the backward pass, "
            "and they are not those of rank 0"
            for rank, numel in ((2, 15), (3, 18))
        ]


def alone() -> None:
    """A group of one rank has nothing to share, so nothing is copied and nothing sent."""
    x = torch.ones(3, requires_grad=True)
    with ledger() as book:
        context = partition(least=0)
        y = x * 2
        with context:
            z = y.exp() + y.sin()
        assert isinstance(context.put(y), Untouched)
        z.sum().backward()
    assert not book.calls


def test_one_rank_shares_with_nobody() -> None:
    ranks.run(1, alone)


def test_without_a_process_group_partition_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"torch.distributed is not initialised.*init_process_group"):
        partition()


def put_by(run: Callable[[], Any], least: int = 0) -> list[Untouched | Placed]:
    """What the context keeps while something runs."""
    context, found = offload(least=least), []
    inner = context.pack_hook

    def spy(tensor: Tensor) -> Any:
        found.append(inner(tensor))
        return found[-1]

    context.pack_hook = spy
    with context:
        run()
    return found


def test_what_aliases_a_parameter_stays() -> None:
    layer, x = nn.Linear(4, 5), torch.randn(3, 4, requires_grad=True)
    found = put_by(lambda: layer(x))
    shapes = {type(one): one.values.shape if isinstance(one, Untouched) else one.form.shape for one in found}
    assert shapes == {Placed: (3, 4), Untouched: (4, 5)}
    left = next(one for one in found if isinstance(one, Untouched))
    assert left.values.data_ptr() == layer.weight.data_ptr()
    # A parameter itself, and a view of a view of one.
    assert all(isinstance(one, Untouched) for one in put_by(lambda: layer.weight.exp_, 0))
    [one] = put_by(lambda: layer.weight.sin())
    assert isinstance(one, Untouched)
    [one] = put_by(lambda: layer.weight[1:].t()[:2].sin())
    assert isinstance(one, Untouched)


def test_what_is_small_or_empty_stays() -> None:
    x = torch.randn(4, requires_grad=True)
    for least, kind in ((0, Placed), (16, Placed), (17, Untouched)):
        assert [type(one) for one in put_by(x.sin, least)] == [kind]
    assert [type(one) for one in put_by(torch.randn(0, 3, requires_grad=True).sin)] == [Untouched]


def test_other_kinds_of_tensors_stay() -> None:
    x = torch.eye(3).to_sparse().requires_grad_()
    y = torch.randn(3, 3, requires_grad=True)
    kinds = [
        (one.values.layout if isinstance(one, Untouched) else torch.strided)
        for one in put_by(lambda: torch.sparse.mm(x, y))
    ]
    assert torch.sparse_coo in kinds


def test_what_is_saved_twice_is_kept_once() -> None:
    x = torch.randn(6, 5, requires_grad=True)
    y = x * 1
    found = put_by(lambda: (y.sin(), y.cos(), y.t() @ y, y.expand(3, 6, 5).sin()))
    assert len(found) == 5
    assert len({id(one.kept) for one in found if isinstance(one, Placed)}) == 1
    # Another part of the same storage, and the same part after a write, are other values.
    halves = put_by(lambda: (y[:3].sin(), y[3:].sin()))
    assert len({id(one.kept) for one in halves if isinstance(one, Placed)}) == 2

    def write_between() -> None:
        y.detach().sin_()

    changed = put_by(lambda: (y.sin(), write_between(), y.sin()))
    with pytest.raises(RuntimeError, match="was changed in place"):
        changed[0].tensor()
    assert torch.equal(changed[1].tensor(), y)


def test_an_address_that_is_used_again_leads_to_new_values() -> None:
    context, addresses = offload(least=0), []
    for number in range(20):
        y = torch.full((1000,), float(number))
        addresses.append(y.data_ptr())
        kept = context.put(y)
        del y
        assert torch.equal(kept.tensor(), torch.full((1000,), float(number)))
    assert len(set(addresses)) < 20
    assert not context.kept


@pytest.mark.parametrize("write", [lambda y: y.detach().zero_(), lambda y: y.view(-1)[:2].detach().mul_(2)])
def test_a_write_to_what_was_copied_is_refused_as_autograd_would(write: Callable[[Tensor], Tensor]) -> None:
    """On a GPU the write could come before the copy has read the values."""
    for around in (nullcontext(), offload(least=0)):
        x = torch.randn(5, requires_grad=True)
        y = x * 1
        with around:
            z, w = y.sin(), y.t().cos()
        saved = StorageWeakRef(y.untyped_storage())
        write(y)
        with pytest.raises(RuntimeError, match=r"inplace operation|shape \(5,\) was changed in place"):
            (z + w).sum().backward()
    del y
    assert saved.expired()


def test_a_write_to_what_stayed_is_refused_as_autograd_would() -> None:
    x = torch.randn(5, requires_grad=True)
    y = x * 1
    with offload():
        z = y.sin()
    y.detach().zero_()
    with pytest.raises(RuntimeError, match=r"shape \(5,\) was changed in place .*; change a copy of it"):
        z.sum().backward()


def test_the_original_is_free_and_the_copy_lives_until_the_backward_pass() -> None:
    x = torch.randn(50, requires_grad=True)
    y = x * 1
    original = StorageWeakRef(y.untyped_storage())
    found: list[Any] = []
    with offload(least=0) as _:
        context = offload(least=0)
    with context:
        z = y.sin()
    found = [weakref.ref(kept) for entries in context.kept.values() for kept in entries.values()]
    del y
    assert original.expired()
    assert len(found) == 1
    z.sum().backward(retain_graph=True)
    assert isinstance(found[0](), KeptValues)
    z.sum().backward()
    assert found[0]() is None


def test_a_forward_pass_that_is_dropped_frees_what_it_kept() -> None:
    x = torch.randn(50, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        context = offload(least=0)
        y = x * 1
        with context:
            z = y.exp()
        copies = [weakref.ref(kept) for entries in context.kept.values() for kept in entries.values()]
        assert [copy() is not None for copy in copies] == [True]
        # Exp saves its own result: kept as it is, the graph would refer to itself and never be freed.
        del z, y
        assert [copy() is None for copy in copies] == [True]
    finally:
        gc.enable()


def test_a_backward_pass_inside_of_the_context_moves_nothing_more() -> None:
    with ledger() as book:
        x = torch.randn(4, 20, requires_grad=True)
        with offload(least=0):
            checkpoint_reentrant(
                nn.Sequential(nn.Linear(20, 20), nn.GELU(), nn.Linear(20, 20)), x
            ).sum().backward()
    assert book.moved == {TO_HOST: x.nbytes, TO_DEVICE: x.nbytes}


def test_second_derivatives() -> None:
    x = torch.randn(5, requires_grad=True)
    with offload(least=0):
        y = (x * 1).sin()
    [first] = torch.autograd.grad(y.sum(), x, create_graph=True)
    [second] = torch.autograd.grad(first.sum(), x)
    assert torch.equal(second, -x.detach().sin())


def sharded_with_offload() -> None:
    """A unit of stage 3 empties the storage under its parameters between the passes."""
    from shardbook import Policy, shard
    from shardbook.zero.scheduler import scheduler_of

    for policy in (Policy(), Policy(param_dtype=torch.bfloat16)):
        found = []
        for around in (nullcontext(), offload(least=0)):
            model = shard(chain(), policy=policy)
            with around, ledger() as book:
                value = error(model, batch(dist.get_rank(), 0))
            flats = [flat for unit in scheduler_of(model).units for flat in unit.flats]
            if isinstance(around, Residual):
                assert book.moved
                assert not any(flat.full.untyped_storage() in around.kept for flat in flats)
            value.backward()
            found.append([p.grad for p in model.parameters()])
        for one, other in zip(*found, strict=True):
            assert one is not None
            assert torch.equal(one, other)


def test_a_unit_of_stage_3_gathers_its_parameters_as_before() -> None:
    ranks.run(2, sharded_with_offload)


@st.composite
def views(draw: st.DrawFn) -> Tensor:
    """A view of 64 numbers with any shape and any strides, those of 0 included."""
    shape = draw(st.lists(st.integers(1, 4), max_size=4))
    strides = [draw(st.integers(0, 6)) for _ in shape]
    return torch.arange(100).as_strided(shape, strides, draw(st.integers(0, 20)))


@settings(max_examples=300, deadline=None)
@given(views())
def test_any_view_comes_back_as_it_was(view: Tensor) -> None:
    rows, form = lie_flat(view)
    back = form.of(rows.reshape(-1).clone())
    assert torch.equal(back, view)
    assert rows.numel() <= view.numel()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 5).t(),
        torch.randn(2, 3, 4).permute(2, 0, 1),
        torch.randn(1, 7).expand(6, 7),
    ],
    ids=["channels last", "transposed", "permuted", "expanded"],
)
def test_the_strides_come_back(tensor: Tensor) -> None:
    back = offload(least=0).put(tensor).tensor()
    assert back.stride() == tensor.stride()
    assert back.data_ptr() != tensor.data_ptr()
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.complex64])
def test_every_dtype_goes_and_comes_back(dtype: torch.dtype) -> None:
    for values in (torch.randn(7, 3), torch.randn(7, 3)[:, :1], torch.randn(7, 3)[3, 2]):
        tensor = values.to(dtype)
        for one in (tensor, tensor.conj(), tensor.imag) if dtype.is_complex else (tensor,):
            back = offload(least=0).put(one).tensor()
            assert back.dtype == one.dtype
            assert torch.equal(back, one)
        assert digest(tensor.reshape(-1)) == digest(tensor.reshape(-1).clone())


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_single_byte_changes_the_digest(data: st.DataObject) -> None:
    octets = data.draw(st.lists(st.integers(0, 255), min_size=1, max_size=40))
    place, change = data.draw(st.integers(0, len(octets) - 1)), data.draw(st.integers(1, 255))
    before = torch.tensor(octets, dtype=torch.uint8)
    after = before.clone()
    after[place] = (octets[place] + change) % 256
    assert digest(before) != digest(after)


def pieces_of_any_length() -> Iterator[None]:
    sharing = Sharing(None, check=False)
    for numel in range(1, 14):
        vector = torch.arange(numel)
        piece = sharing.piece(vector)
        assert len(piece) == piece_numel(numel, dist.get_world_size())
        assert torch.equal(sharing.whole(piece, numel), vector)
    return None


def test_a_vector_of_any_length_is_put_together_again() -> None:
    ranks.run(3, pieces_of_any_length)


def test_a_copy_is_a_copy_where_host_and_device_are_one() -> None:
    values = torch.randn(3, 4)
    with ledger() as book:
        there = to_host(values, "x").arrive()
        back = to_device(there, torch.device("cpu"), "x").wait()
        narrow = to_device(there, torch.device("cpu"), "x", torch.bfloat16).wait()
    assert len({values.data_ptr(), there.data_ptr(), back.data_ptr()}) == 3
    assert torch.equal(back, values)
    assert torch.equal(narrow, values.to(torch.bfloat16))
    assert book.moved == {"x to the host": 48, "x to the device": 48 + 24}
    assert book.total == 0


def test_pinned_tensors_are_the_same_objects_and_share_what_they_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is no pinned memory without a GPU, so other memory stands for it."""
    calls: list[int] = []

    def elsewhere(storage: torch.UntypedStorage, device: Any = None) -> torch.UntypedStorage:
        calls.append(storage.nbytes())
        return storage.clone()

    monkeypatch.setattr(torch.UntypedStorage, "pin_memory", elsewhere)
    vector = torch.arange(12.0)
    one, other = nn.Parameter(vector[:6].view(2, 3).t()), nn.Parameter(vector[3:])
    alone = nn.Parameter(torch.ones(2))
    values = [tensor.detach().clone() for tensor in (one, other, alone)]
    before = vector.data_ptr()
    pin([one, other, alone])
    assert calls == [48, 8]
    assert all(torch.equal(tensor, value) for tensor, value in zip((one, other, alone), values, strict=True))
    assert one.stride() == (1, 3)
    assert one.data_ptr() != before
    with torch.no_grad():
        one[0, 1] = 7.0
    assert other[0] == 7.0
    assert vector[3] == 3.0
