"""Streaming: the plain model bit for bit, and on the device no more than two slices and what they need."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ranks
from book.live import LiveStorages
from book.toys import assert_equal, batch, chain, error, optimizer_for
from shardbook import shard
from shardbook.foundations.collectives import ledger
from shardbook.models.chunked_loss import ChunkedGPT
from shardbook.models.gpt import GPT, Config
from shardbook.streaming import residual, streaming
from shardbook.streaming.streaming import cut, stream
from shardbook.zero.offload import PendingCopy, to_host

CPU = torch.device("cpu")
Build = Callable[[], nn.Sequential]


def noisy(seed: int = 0) -> nn.Sequential:
    """Dropout, batch statistics, and layers without parameters at both ends."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Identity(),
        nn.Embedding(16, 8),
        nn.BatchNorm1d(6),
        nn.Sequential(nn.Linear(8, 13), nn.GELU(), nn.Dropout(0.3), nn.Linear(13, 8)),
        nn.BatchNorm1d(6, affine=False),
        nn.Dropout(0.2),
        nn.Linear(8, 16),
        nn.Identity(),
    )


def tied() -> nn.Sequential:
    """One matrix for the first and the last layer, and one layer that stands in the chain twice."""
    model = noisy()
    assert isinstance(model[6], nn.Linear)
    model[6].weight = model[1].weight
    return nn.Sequential(*model[:4], model[3], *model[4:])


def frozen() -> nn.Sequential:
    model = noisy()
    for layer in (model[1], model[3]):
        layer.requires_grad_(False)
    return model


def gpt() -> nn.Sequential:
    torch.manual_seed(0)
    return GPT(Config(layers=3, width=16, heads=2, context=6, vocabulary=16))


def losses(model: nn.Sequential, together: int = 1) -> list[float]:
    """Train, with some forward passes before each backward pass, and evaluate in between."""
    optimizer, found = optimizer_for("adamw", model.parameters()), []
    torch.manual_seed(5)
    for step in range(3):
        values = [error(model, batch(number, step)) for number in range(together)]
        found += [value.item() for value in values]
        torch.stack(values).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            found.append(error(model, batch(9, step)).item())
        model.train()
    return found


@pytest.mark.cases(now=5, ci=5)
@pytest.mark.parametrize("build", [chain, noisy, tied, frozen, gpt])
@pytest.mark.parametrize("slices", [None, 1, 2, 3])
def test_it_trains_as_the_plain_model_does(build: Build, slices: int | None) -> None:
    # What stands twice in one slice adds up its gradients there, and then over the forward passes.
    several = 1 if build is tied and slices is not None else 2
    for together, offloaded in ((1, False), (several, True)):
        plain, model = build(), stream(build(), device=CPU, slices=slices, offload_activations=offloaded)
        assert losses(model, together=together) == losses(plain, together=together)
        assert_equal(dict(model.state_dict()), dict(plain.state_dict()))


def test_gradients_are_those_of_the_plain_model() -> None:
    for build in (noisy, tied, frozen):
        plain, model = build(), stream(build(), device=CPU)
        for one in (plain, model):
            torch.manual_seed(1)
            for step in range(2):
                error(one, batch(0, step)).backward()
        for (name, expected), found in zip(plain.named_parameters(), model.parameters(), strict=True):
            assert (expected.grad is None) == (found.grad is None), name
            if expected.grad is not None and found.grad is not None:
                assert torch.equal(found.grad, expected.grad), name


def test_the_model_keeps_its_names_its_parameters_and_its_class() -> None:
    model = noisy()
    before = [(name, id(p), p.data_ptr()) for name, p in model.named_parameters()]
    keys = list(model.state_dict())
    assert stream(model, device=CPU) is model
    error(model, batch(0, 0)).backward()
    assert type(model) is nn.Sequential
    assert [(name, id(p), p.data_ptr()) for name, p in model.named_parameters()] == before
    assert list(model.state_dict()) == keys
    fresh = noisy(seed=1)
    model.load_state_dict(fresh.state_dict())
    assert error(model.eval(), batch(0, 0)).item() == error(fresh.eval(), batch(0, 0)).item()


@pytest.mark.parametrize("slices", [None, 1])
def test_a_pass_leaves_the_layers_as_they_were(slices: int | None) -> None:
    """Also a layer that stands twice in a slice: it must not keep the copy of its own parameter."""
    model = stream(tied(), device=CPU, slices=slices)
    before = [(name, id(p)) for name, p in model.named_parameters(remove_duplicate=False)]
    error(model, batch(0, 0)).backward()
    assert [(name, id(p)) for name, p in model.named_parameters(remove_duplicate=False)] == before


def other(model: nn.Sequential, act: Callable[[], Any]) -> str:
    """What a streamed model says to a change of what it holds."""
    act()
    with pytest.raises(RuntimeError) as caught:
        model(torch.arange(4).view(2, 2))
    return str(caught.value)


def moved(model: nn.Sequential) -> None:
    """What `model.to(...)` does: the same objects, elsewhere."""
    weight = model[2].weight
    assert isinstance(weight, nn.Parameter)
    torch.utils.swap_tensors(weight, nn.Parameter(torch.empty_like(weight, device="meta")))


class Masked(nn.Module):
    """A buffer, and one that the layer makes when it first runs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(8))
        self.register_buffer("late", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.late is None:
            self.late = torch.full((8,), 2.0)
        assert isinstance(self.mask, Tensor)
        return x * self.mask * self.late


def test_what_replaces_a_tensor_or_a_layer_is_noticed() -> None:
    changes: list[tuple[Callable[[nn.Sequential], Any], str]] = [
        (lambda m: m.load_state_dict({**m.state_dict()}, assign=True), "0.weight was replaced after stream"),
        (lambda m: setattr(m[2], "weight", nn.Parameter(m[2].weight * 0)), "2.weight was replaced"),
        (lambda m: setattr(m[2], "weight", m[0].weight), "2.weight was replaced"),
        (lambda m: setattr(m[1], "mask", torch.zeros(8)), "1.mask was replaced after stream"),
        (lambda m: setattr(m[1], "mask", None), "1.mask was replaced"),
        (lambda m: m[2].register_parameter("extra", nn.Parameter(torch.ones(1))), "2.extra was replaced"),
        (lambda m: m[2].register_parameter("bias", None), "2.bias was replaced"),
        (moved, "2.weight was moved to meta after stream(), which keeps the model on the host"),
        (lambda m: m.__setitem__(2, nn.Linear(8, 3)), "the chain has other layers than when it was streamed"),
        (lambda m: m.append(nn.Linear(8, 9)), "the chain has other layers"),
        (lambda m: m.__delitem__(2), "the chain has other layers"),
    ]
    for change, said in changes:
        model = stream(nn.Sequential(nn.Embedding(8, 8), Masked(), nn.Linear(8, 8)), device=CPU)
        model(torch.arange(4).view(2, 2))
        assert said in other(model, lambda change=change, model=model: change(model))  # type: ignore[misc]
    # The way out that is told.
    assert stream(list(model), device=CPU)(torch.arange(4).view(2, 2)).shape == (2, 2, 8)


def test_values_may_change_in_place_and_a_layer_may_make_itself_a_buffer() -> None:
    model = stream(nn.Sequential(Masked(), nn.Linear(8, 8)), device=CPU)
    x, plain = torch.randn(2, 8), nn.Sequential(Masked(), nn.Linear(8, 8))
    for _ in range(2):
        model(x)
    model.load_state_dict(plain.state_dict())
    model.requires_grad_(False)
    assert torch.equal(model(x), plain(x))


def test_a_list_of_layers_becomes_a_chain() -> None:
    layers = list(chain())
    model = stream(layers, device=CPU)
    assert [*model] == layers
    assert error(model, batch(0, 0)).item() == error(chain(), batch(0, 0)).item()


@pytest.mark.parametrize("build", [chain, noisy, tied, frozen])
def test_two_numbers_a_parameter_come_and_one_leaves(build: Build) -> None:
    model = stream(build(), device=CPU)
    layers = [list(layer.parameters()) for layer in model]
    # A parameter of two slices is brought for each of them. A frozen one comes, and sends no gradient.
    sizes = [p.nbytes for of_layer in layers for p in of_layer]
    trained = [p.nbytes for of_layer in layers for p in of_layer if p.requires_grad]
    # A chain that begins with frozen layers needs no backward pass through them.
    first = next(i for i, of_layer in enumerate(layers) if any(p.requires_grad for p in of_layer))
    again = [p.nbytes for of_layer in layers[first:] for p in of_layer]
    with ledger() as book:
        error(model, batch(0, 0)).backward()
    moved = book.moved
    assert moved["parameters to the device"] == sum(sizes) + sum(again)
    assert moved["gradients to the host"] == sum(trained)
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    if buffers:
        assert moved["buffers to the device"] == 2 * buffers
        assert moved["buffers to the host"] == buffers
    with ledger() as book, torch.no_grad():
        model.eval()(batch(0, 0)[0])
    assert book.moved == {
        name: count
        for name, count in (("parameters to the device", sum(sizes)), ("buffers to the device", buffers))
        if count
    }


def test_inputs_of_slices_go_to_the_host_and_back() -> None:
    model, x = stream(blocks(4), device=CPU, offload_activations=True), torch.randn(3, WIDTH)
    with ledger() as book:
        model(x).sum().backward()
    assert book.moved["activations to the host"] == 4 * x.nbytes
    assert book.moved["activations to the device"] == 4 * x.nbytes


WIDTH, ROWS = 32, 3


def blocks(count: int, depth: int = 1) -> nn.Sequential:
    """Equal blocks, each of some matrices; a matrix has 10 times the bytes of an activation."""
    torch.manual_seed(0)
    pair = [lambda: nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh]
    return nn.Sequential(
        *[nn.Sequential(*[make() for _ in range(depth) for make in pair]) for _ in range(count)]
    )


class Slow:
    """The end of a copy that nobody has waited for so far, and its source, which it still reads."""

    def __init__(self, source: Tensor) -> None:
        self.source: Tensor | None = source

    def synchronize(self) -> None:
        self.source = None


class Device(LiveStorages):
    """The most storages of one size that are on the device at any time.

    Device and host are one here. What is the host's is told by name: the model's parameters, and what
    `to_host` returns.
    """

    def __init__(self, hosts: Sequence[Tensor]) -> None:
        super().__init__()
        self.hosts = {tensor.untyped_storage()._cdata for tensor in hosts}
        self.most: dict[int, int] = {}
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if not self.paused:
            for size, count in self.counts().items():
                self.most[size] = max(self.most.get(size, 0), count)
        return result

    def counts(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for cdata, reference in list(self.seen.items()):
            if reference.expired():
                # The address may be used again, and then for a tensor of the device.
                self.seen.pop(cdata)
                self.hosts.discard(cdata)
            elif cdata not in self.hosts:
                storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)  # type: ignore[attr-defined]
                found[storage.nbytes()] = found.get(storage.nbytes(), 0) + 1
        # A tensor without memory may count the writes to one that waits on the host.
        found.pop(0, None)
        return found

    @contextmanager
    def watching(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        def tagged(values: Tensor, what: str) -> Any:
            self.paused = True
            crossing = to_host(values, what)
            self.hosts.add(crossing.copy.untyped_storage()._cdata)
            self.paused = False
            # A copy that is under way keeps its source in memory. This one ends when somebody waits for it.
            return PendingCopy(crossing.copy, Slow(values.detach()), CPU) if what == "gradients" else crossing

        with monkeypatch.context() as patch, self:
            patch.setattr(streaming, "to_host", tagged)
            patch.setattr(residual, "to_host", tagged)
            yield


MATRIX, ROW = 4 * WIDTH * WIDTH, 4 * ROWS * WIDTH


@pytest.mark.cases(now=15, ci=15)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("offloaded", [False, True])
def test_the_device_holds_two_slices_and_what_they_need(
    monkeypatch: pytest.MonkeyPatch, depth: int, count: int, offloaded: bool
) -> None:
    model = stream(blocks(count, depth), device=CPU, offload_activations=offloaded)
    device, x = Device([*model.parameters()]), torch.randn(ROWS, WIDTH)
    with device.watching(monkeypatch):
        with torch.no_grad():
            model(x)
        assert device.most[MATRIX] == 2 * depth
        y = model(x)
        # The input and the output are the caller's. Each further slice keeps its input. The numbers without a
        # meaning, by which autograd goes back to the host, are on the host.
        tokens = {torch.zeros(()).nbytes: count}
        assert device.counts() == {ROW: 2 if offloaded else 2 + count - 1} | tokens
        y.sum().backward()
    # The gradient of one matrix is there beside two slices.
    assert device.most[MATRIX] == 2 * depth + 1
    # The caller's two, and what the slice computes again. If the inputs stay, the last slice needs most:
    # those of all slices, and a gradient. If they are on the host, another slice does: its own input, the
    # gradient that comes from the slice after it, and what its last matrix hands to the tanh.
    assert device.most[ROW] == 2 + depth + (1 + 2 if offloaded else count - 1 + 1)


def test_a_cast_narrows_what_moves_and_what_computes() -> None:
    plain = blocks(3).to(torch.bfloat16)
    model, x = stream(blocks(3), device=CPU, param_dtype=torch.bfloat16), torch.randn(ROWS, WIDTH)
    with ledger() as book:
        y = model(x)
        y.sum().backward()
    expected = plain(x.to(torch.bfloat16))
    expected.sum().backward()
    assert torch.equal(y, expected)
    for found, narrow in zip(model.parameters(), plain.parameters(), strict=True):
        assert found.grad is not None
        assert narrow.grad is not None
        assert found.grad.dtype is torch.float32
        assert torch.equal(found.grad, narrow.grad.float())
    assert book.moved == {
        "parameters to the device": 2 * 3 * MATRIX // 2,
        "gradients to the host": 3 * MATRIX // 2,
    }


class Counted(nn.Module):
    """Numbers that no gradient changes, and that 8 bits of mantissa would not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Parameter(torch.tensor([1001, 3]).int(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        assert self.steps.dtype is torch.int32
        return x * (self.steps - 1000)


def test_a_cast_leaves_integers_alone() -> None:
    model = stream(nn.Sequential(Counted()), device=CPU, param_dtype=torch.bfloat16)
    assert model(torch.ones(2)).tolist()[0] == 1.0


def test_a_batch_norm_refuses_a_cast() -> None:
    model = stream(nn.Sequential(nn.BatchNorm1d(4)), device=CPU, param_dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="expected scalar type BFloat16 but found Float"):
        model(torch.ones(2, 4))


class Fails(nn.Module):
    """A layer that fails while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fails, self.inner = False, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise ArithmeticError("as it was told")
        return self.inner(x)  # type: ignore[no-any-return]


def test_an_exception_leaves_nothing_behind() -> None:
    torch.manual_seed(0)
    layer = Fails()
    model = stream(nn.Sequential(nn.Linear(8, 8), layer, nn.Linear(8, 8), nn.Linear(8, 8)), device=CPU)
    x = torch.randn(2, 8)
    expected = torch.autograd.grad(model(x).sum(), [*model.parameters()])
    layer.fails = True
    with pytest.raises(ArithmeticError):
        model(x)
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())
    assert not streamer_of(model).ahead
    # An exception in the backward pass leaves the slice that was on its way, and the next pass drops it.
    layer.fails = False
    y = model(x)
    layer.fails = True
    with pytest.raises(ArithmeticError):
        y.sum().backward()
    layer.fails = False
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1)
    found = torch.autograd.grad(model(x).sum(), [*model.parameters()])
    assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


def streamer_of(model: nn.Sequential) -> streaming.Streamer:
    found = model.forward.__self__  # type: ignore[attr-defined]
    assert isinstance(found, streaming.Streamer)
    return found


def test_a_slice_that_came_in_vain_is_not_used_after_a_step() -> None:
    """A backward pass that ends early has brought one slice too many, and then the weights change."""
    model, plain, x = stream(blocks(3), device=CPU), blocks(3), torch.randn(ROWS, WIDTH)
    y = model(x)
    torch.autograd.grad(y.sum(), [*model[2].parameters()], retain_graph=True)
    # Its memory is free when the pass has ended.
    assert not streamer_of(model).ahead
    assert not streamer_of(model).leaving
    for one in (model, plain):
        with torch.no_grad():
            for parameter in one.parameters():
                parameter.mul_(0.5)
    assert torch.equal(model(x), plain(x))


def test_gradients_leave_while_the_slice_before_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for a gradient before the next slice has work to do."""
    model, told = stream(blocks(3), device=CPU), list[str]()
    names = {MATRIX: iter("210")}

    class Told(Slow):
        def __init__(self, name: str) -> None:
            super().__init__(torch.empty(0))
            self.name = name

        def synchronize(self) -> None:
            told.append(f"{self.name} is gone")

    def sent(values: Tensor, what: str) -> PendingCopy:
        name = next(names[values.nbytes])
        told.append(f"{name} leaves")
        return PendingCopy(to_host(values, what).copy, Told(name), torch.device(CPU))

    for number, block in enumerate(model):
        block.register_forward_pre_hook(lambda *_, number=number: told.append(f"{number} runs"))
    monkeypatch.setattr(streaming, "to_host", sent)
    y = model(torch.randn(ROWS, WIDTH))
    for number, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda _, number=number: told.append(f"{number} is in"))
    del told[:]
    y.sum().backward()
    assert told == [
        *["2 runs", "2 leaves"],
        *["1 runs", "2 is gone", "1 leaves"],
        *["0 runs", "1 is gone", "0 leaves"],
        *["2 is gone", "2 is in", "1 is gone", "1 is in", "0 is gone", "0 is in"],
    ]


def test_weights_that_change_between_the_passes_are_refused_by_name() -> None:
    for change, name in ((lambda m: m[2][0].weight, "2.0.weight"), (lambda m: m[0][0].weight, "0.0.weight")):
        model = stream(blocks(3), device=CPU)
        y = model(torch.randn(ROWS, WIDTH))
        with torch.no_grad():
            change(model).mul_(2)
        with pytest.raises(RuntimeError, match=rf"^{name} has changed .*; let the optimizer step after"):
            y.sum().backward()


class WritesInto(nn.Module):
    """A layer that changes the weight of another in its forward pass."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        # In a list, so that it is no part of this layer.
        self.others = [other]

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.others[0].weight.mul_(0.5)
        return x * 1.0


def test_a_layer_that_writes_into_the_weight_of_another_is_refused_by_name() -> None:
    first = nn.Linear(WIDTH, WIDTH)
    one_slice = nn.Sequential(nn.Sequential(first, WritesInto(first)))
    second = nn.Linear(WIDTH, WIDTH)
    two_slices = nn.Sequential(second, nn.Sequential(nn.Linear(WIDTH, WIDTH), WritesInto(second)))
    x = torch.randn(ROWS, WIDTH)
    # In its own slice the layer sees a copy, so the write would be lost.
    streamed = stream(one_slice, device=CPU)
    with pytest.raises(RuntimeError, match=r"^0.0.weight was written to in the forward pass"):
        streamed(x)
    # The weight of another slice is the one on the host.
    value = stream(two_slices, device=CPU)(x).sum()
    with pytest.raises(RuntimeError, match=r"^0.weight has changed"):
        value.backward()


class Counts(nn.Module):
    """A buffer that is read, and then written in place or put in the place of the old one."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("scale", torch.ones(1))
        self.weight = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.scale, Tensor)
        y = x * self.weight * self.scale.clone()
        if self.in_place:
            self.scale.add_(1)
        else:
            self.scale = self.scale + 1
        return y


@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_is_read_and_written_counts_once(in_place: bool) -> None:
    plain, model = nn.Sequential(Counts(in_place)), stream(nn.Sequential(Counts(in_place)), device=CPU)
    for one in (plain, model):
        x = torch.ones(3)
        torch.stack([one(x).sum() for _ in range(3)]).sum().backward()
    assert torch.equal(model[0].scale, torch.full((1,), 4.0))
    assert torch.equal(model[0].weight.grad, plain[0].weight.grad)


def test_a_buffer_that_somebody_else_changes_is_refused_by_name() -> None:
    model = stream(noisy().eval(), device=CPU)
    value = error(model, batch(0, 0))
    model[2].running_mean.add_(1)  # type: ignore[union-attr, operator]
    with pytest.raises(RuntimeError, match=r"^2.running_mean has changed"):
        value.backward()


def test_the_graph_can_be_kept_and_gradients_asked_for() -> None:
    model, plain, x = stream(blocks(3), device=CPU), blocks(3), torch.randn(ROWS, WIDTH, requires_grad=True)
    for one in (model, plain):
        y = one(x).sum()
        y.backward(retain_graph=True)
        y.backward()
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert found.grad is not None
        assert torch.equal(found.grad, expected.grad)
    for found, expected in zip(
        *[torch.autograd.grad(one(x).sum(), [x, *one.parameters()]) for one in (model, plain)], strict=True
    ):
        assert torch.equal(found, expected)


def test_a_forward_pass_that_is_dropped_leaves_nothing() -> None:
    model, x = stream(blocks(3), device=CPU), torch.randn(ROWS, WIDTH)
    gc.collect()
    with LiveStorages() as live:
        for tensor in (x, *model.parameters()):
            live.note(tensor)
        before = live.bytes()
        y = model(x)
        del y
        gc.collect()
        assert live.bytes() == before


def test_inference_needs_no_backward_pass() -> None:
    plain, model = noisy().eval(), stream(noisy().eval(), device="cpu")
    tokens, _ = batch(0, 0)
    with torch.inference_mode():
        assert torch.equal(model(tokens), plain(tokens))
        # In training mode the statistics move, and no gradient is wanted.
        for one in (model, plain):
            torch.manual_seed(0)
            one.train()(tokens)
    assert_equal(dict(model.state_dict()), dict(plain.state_dict()))


def test_hooks_on_parameters_see_gradients_on_the_host() -> None:
    model, seen = stream(blocks(2), device=CPU), []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: seen.append((name, p.grad.device)))
    model(torch.randn(ROWS, WIDTH)).sum().backward()
    assert seen == [("1.0.weight", CPU), ("0.0.weight", CPU)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(1, 8))
def test_no_cut_has_a_smaller_largest_pair_and_then_a_smaller_largest_part(
    sizes: list[int], slices: int
) -> None:
    def largest(parts: Sequence[range]) -> tuple[int, int]:
        """The bytes of two slices side by side, and of one."""
        found = [sum(sizes[i] for i in part) for part in parts]
        return max(map(sum, pairwise(found)), default=found[0]), max(found)

    parts = cut(sizes, slices)
    assert [i for part in parts for i in part] == list(range(len(sizes)))
    assert len(parts) <= slices
    assert all(parts)
    ways = [
        [range(*ends) for ends in pairwise([0, *inner, len(sizes)])]
        for count in range(min(slices, len(sizes)))
        for inner in combinations(range(1, len(sizes)), count)
    ]
    assert largest(parts) == min(map(largest, ways))


def test_what_cannot_be_streamed_is_refused() -> None:
    model = stream(chain(), device=CPU)
    cases: list[tuple[type[Exception], Any, dict[str, Any], str]] = [
        (ValueError, model, {}, "this Sequential is streamed already; call stream once"),
        (ValueError, chain(), {"slices": 0}, "slices is 0, but it must be a whole number from 1 on"),
        (ValueError, chain(), {"slices": True}, "slices is True, but"),
        (ValueError, [], {}, "the chain has no layers; pass at least one"),
        (ValueError, [nn.Linear(2, 2), model], {}, "1 is streamed already; call stream once"),
        (TypeError, chain(), {"param_dtype": torch.int32}, "param_dtype is torch.int32, but it must be"),
        (TypeError, chain(), {"param_dtype": torch.float8_e4m3fn}, "float8_e4m3fn, but it must be"),
        (TypeError, chain(), {"param_dtype": "bf16"}, "param_dtype is 'bf16', but it must be a floating"),
        (
            ValueError,
            chain().to("meta"),
            {},
            "0.weight is on meta, and streaming keeps the model on the host",
        ),
        (
            TypeError,
            ChunkedGPT(Config(1, 4, 1, 4, 8)),
            {},
            "ChunkedGPT has a forward of its own, so its layers may be no chain",
        ),
    ]
    for kind, one, options, said in cases:
        with pytest.raises(kind, match=said):
            stream(one, device=CPU, **options)


class Two(nn.Module):
    """A layer that passes on two tensors, and takes as many."""

    def forward(self, x: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return x if isinstance(x, tuple) else (x, 2 * x)


def test_slices_pass_on_a_single_tensor_and_layers_what_they_like() -> None:
    linear = nn.Linear(4, 4)
    model, x = stream([linear, Two(), Two()], device=CPU, slices=1), torch.randn(2, 4)
    for found, factor in zip(model(x), (1, 2), strict=True):
        assert torch.equal(found, factor * linear(x))
    model = stream([nn.Linear(4, 4), Two(), nn.Linear(4, 4)], device=CPU)
    with pytest.raises(
        TypeError, match=r"^the output of layer 1 is a tuple, but a slice takes one tensor; put"
    ):
        model(x)
    with pytest.raises(TypeError, match=r"^the input is a list, but a slice takes one tensor"):
        model([x])


def sharded_model() -> list[str]:
    said = []
    streamed = stream(chain(), device=CPU)
    for act in (
        lambda: stream(shard(chain()), device=CPU),
        lambda: shard(streamed),
        lambda: shard(nn.Sequential(streamed, nn.Linear(2, 2))),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            act()
        said.append(str(caught.value))
    return said


def test_a_model_is_streamed_or_sharded() -> None:
    [said] = ranks.run(1, sharded_model)
    assert said == [
        "0.weight is sharded; stream the model or shard it, not both",
        *["this model is streamed; stream a model or shard it, not both"] * 2,
    ]


def test_a_copy_is_refused() -> None:
    model = stream(chain(), device=CPU)
    for act in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"cannot be copied or pickled; load its state_dict\(\)"):
            act(model)
