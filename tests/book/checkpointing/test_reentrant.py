"""Reentrant checkpoints: torch's own are the oracle where they are right, plain training everywhere else."""

from __future__ import annotations

import gc
import math
import warnings
import weakref
from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from shardbook.checkpointing.checkpointing import checkpoint as door
from shardbook.checkpointing.reentrant import checkpoint_reentrant
from shardbook.checkpointing.saved_tensors import checkpoint_saved

# Small operations wait longer for a second thread than they work.
pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 8
OURS = checkpoint_reentrant
TORCHS = partial(checkpoint, use_reentrant=True)
Checkpoint = Callable[..., Any]


def plainly(function: Callable[..., Any], *args: Any, preserve_rng_state: bool = True, **kwargs: Any) -> Any:
    """Without a checkpoint."""
    return function(*args, **kwargs)


# Random models


@dataclass(frozen=True)
class Part:
    """One segment of a random model."""

    kind: str
    checkpointed: bool
    frozen: bool
    dropout: float


class Attention(nn.Module):
    """Reads two tensors, and returns two, of which the second is the weights of the first head."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.query, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, int, Tensor]:
        key, value = self.project(memory).chunk(2, dim=-1)
        weights = (self.query(x) @ key.transpose(-1, -2) / math.sqrt(WIDTH)).softmax(-1)
        return self.out(self.dropout(weights) @ value), weights.shape[-1], weights


class MLP(nn.Module):
    """Uses its first layer twice, and keeps a part of its work out of autograd."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, int, Tensor]:
        with torch.no_grad():
            scale = memory.abs().amax()
        h = self.dropout(F.gelu(self.inner(torch.tanh(self.inner(x)))))
        return self.outer(h) / (1 + scale), 0, h.detach()


class Nested(nn.Module):
    """A checkpoint inside of what may be a checkpoint."""

    def __init__(self, dropout: float, again: Checkpoint) -> None:
        super().__init__()
        self.first, self.second, self.again = MLP(dropout), Attention(dropout), again

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, int, Tensor]:
        x = x + self.first(x, memory)[0]
        return self.again(self.second, x, memory)  # type: ignore[no-any-return]


class Model(nn.Module):
    """Parts of which each adds to a stream, reads the model's input again, and has several outputs."""

    def __init__(self, parts: list[Part], again: Checkpoint) -> None:
        super().__init__()
        torch.manual_seed(0)
        build: dict[str, Callable[[float], nn.Module]] = {
            "mlp": MLP,
            "attention": Attention,
            "nested": partial(Nested, again=again),
        }
        self.layers = nn.ModuleList(build[part.kind](part.dropout) for part in parts)
        for layer, part in zip(self.layers, parts, strict=True):
            layer.requires_grad_(not part.frozen)
        self.parts, self.again = parts, again

    def forward(self, x: Tensor) -> Tensor:
        # Not x itself: torch makes two tensors of one that is passed twice, and sums in another order.
        stream, total = x * 0.5, x.sum()
        for part, layer in zip(self.parts, self.layers, strict=True):
            call = self.again if part.checkpointed else plainly
            out, number, more = call(layer, stream, x)
            assert isinstance(number, int)
            stream = stream + out
            if part.kind != "mlp":
                total = total + more.float().square().sum()
        return stream.float().square().mean() + 0.01 * total


PARTS = st.lists(
    st.builds(
        Part,
        st.sampled_from(["mlp", "attention", "nested"]),
        st.sampled_from([True, True, False]),
        st.sampled_from([False, False, True]),
        st.sampled_from([0.0, 0.3]),
    ),
    min_size=1,
    max_size=4,
)
Found = tuple[Tensor, dict[str, Tensor | None], Tensor]


def step(parts: list[Part], again: Checkpoint, low: bool) -> Found:
    """The loss, the gradients of parameters and input, and the state of the random numbers afterwards."""
    model = Model(parts, again)
    x = torch.randn(2, 3, WIDTH, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16) if low else nullcontext():
        loss = model(x)
    with warnings.catch_warnings():
        # torch warns of an inner checkpoint whose inputs the outer one hides from it.
        if again is TORCHS:
            warnings.simplefilter("ignore")
        loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()} | {"x": x.grad}
    return loss.detach(), gradients, torch.get_rng_state()


def same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


@settings(max_examples=60)
@given(parts=PARTS, low=st.booleans())
def test_random_models_have_torchs_outputs_and_gradients_to_the_bit(parts: list[Part], low: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = step(parts, TORCHS, low)
    found, plain = step(parts, OURS, low), step(parts, plainly, low)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[0], plain[0])
    assert torch.equal(found[2], plain[2])
    for name, gradient in found[1].items():
        # A gradient that does not exist without checkpoints does not exist with them.
        assert (gradient is None) == (plain[1][name] is None), name
        assert same(gradient, expected[1][name]), name
        if gradient is not None:
            torch.testing.assert_close(
                gradient, plain[1][name], rtol=0.05 if low else 1e-5, atol=1e-2 if low else 1e-6
            )


# Arguments and results


def gradients_of(again: Checkpoint, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """The gradients of all tensors among the arguments, for the sum of all that is returned."""
    leaves = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(0)
    outputs = torch.utils._pytree.tree_leaves(again(function, *args, **kwargs))
    total = sum((out * out).sum() for out in outputs if isinstance(out, Tensor) and out.is_floating_point())
    total.backward()  # type: ignore[union-attr]
    return [leaf.grad for leaf in leaves]


def vector(seed: int, *, grad: bool = True) -> Tensor:
    return torch.randn(5, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


FUNCTIONS: list[tuple[str, Callable[..., Any], Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]] = [
    ("numbers and text", lambda x, n, s: x * n if s == "yes" else x, lambda: ((vector(0), 3, "yes"), {})),
    ("keywords", lambda x, *, y, n=2: (x * y) ** n, lambda: ((vector(0),), {"y": vector(1), "n": 3})),
    ("only keywords", lambda *, x: x.exp(), lambda: ((), {"x": vector(0)})),
    (
        "nested arguments",
        lambda d, pair: d["a"] * pair[0] + pair[1][0],
        lambda: (({"a": vector(0)}, (vector(1), [vector(2)])), {}),
    ),
    (
        "nested results",
        lambda x, y: {"sum": x + y, "more": [x * y, {"n": 3}], "none": None},
        lambda: ((vector(0), vector(1)), {}),
    ),
    ("an input that needs none", lambda x, y: (x * y, y), lambda: ((vector(0), vector(1, grad=False)), {})),
    ("a result twice", lambda x: (lambda y: (y, y))(x.sin()), lambda: ((vector(0),), {})),
    ("the input itself", lambda x, y: (x, x * y), lambda: ((vector(0), vector(1)), {})),
    ("views", lambda x: (x[:2], x.view(1, 5)), lambda: ((vector(0),), {})),
    ("integers", lambda x: (x * x, x.argmax(), x > 0), lambda: ((vector(0),), {})),
    ("integers given", lambda x, i: x[i], lambda: ((vector(0), torch.tensor([0, 0, 3])), {})),
    ("complex", lambda x: torch.view_as_real(torch.complex(x, x) ** 2), lambda: ((vector(0),), {})),
    ("dropout", lambda x: F.dropout(F.dropout(x) + 1), lambda: ((vector(0),), {})),
    ("a detached factor", lambda x: x.detach() * x, lambda: ((vector(0),), {})),
    ("a part without autograd", lambda x: x * without_autograd(x), lambda: ((vector(0),), {})),
    ("a detached result", lambda x: (x.sin(), x.detach() * 2), lambda: ((vector(0),), {})),
]


def without_autograd(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.cos()


@pytest.mark.parametrize(
    ("function", "arguments"), [case[1:] for case in FUNCTIONS], ids=[c[0] for c in FUNCTIONS]
)
def test_a_checkpoint_is_as_its_function(function: Callable[..., Any], arguments: Any) -> None:
    args, kwargs = arguments()
    plain, found = plainly(function, *args, **kwargs), OURS(function, *args, **kwargs)
    assert str(torch.utils._pytree.tree_structure(found)) == str(torch.utils._pytree.tree_structure(plain))
    expected = gradients_of(plainly, function, *args, **kwargs)
    for gradient, wanted in zip(gradients_of(OURS, function, *args, **kwargs), expected, strict=True):
        assert same(gradient, wanted)


def test_what_torch_leaves_out_of_autograd_is_part_of_it_here() -> None:
    x = vector(0)
    assert not TORCHS(lambda x: {"y": x * 2}, x)["y"].requires_grad
    OURS(lambda x: {"y": x * 2}, x)["y"].sum().backward()
    assert torch.equal(x.grad, torch.full((5,), 2.0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Unexpected keyword arguments"):
        TORCHS(lambda x, y: x * y, x, y=x)


def test_a_tensor_that_is_passed_twice_is_one_tensor_in_both_runs() -> None:
    """Attention projects its three inputs at once if they are one, and rounds differently then."""
    seen: list[bool] = []

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen.append(query is key is value)
        out: Tensor = module(query, key, value, need_weights=False)[0]
        return out

    torch.manual_seed(0)
    module = nn.MultiheadAttention(32, 4, dropout=0.1)
    x = torch.randn(6, 2, 32, requires_grad=True)
    [expected, *_] = gradients_of(plainly, attention, x, x, x)
    of_weights = module.in_proj_weight.grad
    module.zero_grad()
    [found, *_] = gradients_of(OURS, attention, x, x, x)
    assert seen == [True] * 3
    assert torch.equal(found, expected)
    assert torch.equal(module.in_proj_weight.grad, of_weights)  # type: ignore[arg-type]


def test_an_output_that_the_loss_does_not_use_gives_no_gradient() -> None:
    """torch sends zeros, and a parameter that only that output needs has a gradient of zeros."""
    for again, missing in ((plainly, True), (OURS, True), (TORCHS, False)):
        used, unused, x = nn.Linear(3, 3), nn.Linear(3, 3), torch.ones(3, requires_grad=True)
        y, _ = again(lambda x, a=used, b=unused: (a(x), b(x)), x)
        y.sum().backward()
        assert used.weight.grad is not None
        assert (unused.weight.grad is None) == missing


def test_an_output_that_needs_no_gradient_and_is_known_not_to_says_so() -> None:
    x, table = vector(0), vector(1, grad=False)
    y, same_table, count, mask = OURS(lambda x, t: (x * t, t, x.argmax(), x > 0), x, table)
    assert y.requires_grad
    assert not any(t.requires_grad for t in (same_table, count, mask))


def test_a_parameter_or_a_buffer_that_is_returned_stays_what_it_is() -> None:
    """torch makes an output of the parameter itself: it is no leaf any more, and no optimizer takes it."""

    class Tied(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 3)
            self.register_buffer("table", torch.ones(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
            return super().forward(x), self.weight, self.table  # type: ignore[return-value]

    found = []
    for again in (plainly, OURS):
        torch.manual_seed(0)
        module = Tied()
        y, weight, table = again(module, torch.ones(2, 3, requires_grad=True))
        assert module.weight.is_leaf
        assert not module.table.requires_grad  # type: ignore[union-attr]
        (F.linear(y, weight) * table).sum().backward()
        found.append(module.weight.grad)
    assert same(*found)
    module = Tied()
    TORCHS(module, torch.ones(2, 3, requires_grad=True))
    assert not module.weight.is_leaf


def test_an_output_may_be_changed_in_place() -> None:
    found = []
    for again in (plainly, OURS):
        x = vector(0)
        y = again(lambda x: x * x, x)
        y.add_(1).mul_(2)
        y.sum().backward()
        found.append(x.grad)
    assert same(*found)


Results = tuple[Tensor, Tensor]


def one_twice(x: Tensor) -> Results:
    y = x.sin()
    return y, y


def with_a_part(x: Tensor) -> Results:
    y = x.sin()
    return y, y[:2]


def two_parts(x: Tensor) -> Results:
    y = x.sin()
    return y[:2], y[1:]


def argument_and_part(x: Tensor) -> Results:
    return x, x[:2]


def detached_too(x: Tensor) -> Results:
    y = x.sin()
    return y, y.detach()


def after_a_change(again: Checkpoint, function: Callable[[Tensor], Results], changed: int) -> Any:
    """The gradient when one result is changed and the other is used, or what autograd says."""
    leaf = vector(0)
    try:
        results = again(function, leaf * 2)
        results[changed].mul_(3)
        used = results[1 - changed]
        if used.requires_grad:
            used.square().sum().backward()
    except RuntimeError as error:
        return "error" if "modified" in str(error) else str(error)
    return leaf.grad


@pytest.mark.parametrize("changed", [0, 1])
@pytest.mark.parametrize("function", [one_twice, with_a_part, two_parts, argument_and_part])
def test_results_that_share_memory_are_right_or_refused_as_in_torch(
    function: Callable[[Tensor], Results], changed: int
) -> None:
    ours, torchs, plain = (after_a_change(again, function, changed) for again in (OURS, TORCHS, plainly))
    if isinstance(torchs, str):
        assert ours == torchs == "error"
    else:
        assert torch.equal(ours, torchs)
        assert torch.equal(ours, plain)


def test_one_result_is_one_tensor_wherever_it_stands() -> None:
    a, b = OURS(one_twice, vector(0))
    assert a is b
    a, b = OURS(detached_too, vector(0))
    assert a is not b


def test_a_part_of_an_argument_may_not_be_changed() -> None:
    for again in (OURS, TORCHS):
        part = again(lambda x: x[:2], vector(0) * 2)
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            part.mul_(2)


def test_a_result_that_is_a_part_of_what_nobody_else_has_may_be_changed() -> None:
    """torch refuses it."""
    found = []
    for again in (plainly, OURS):
        x = vector(0)
        again(lambda x: x.sin()[1:], x).mul_(3).square().sum().backward()
        found.append(x.grad)
    assert same(*found)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        TORCHS(lambda x: x.sin()[1:], vector(0)).mul_(3)


# What the two runs have in common


@pytest.mark.parametrize("preserve", [True, False])
def test_both_runs_draw_the_same_only_if_asked_to(preserve: bool) -> None:
    x = torch.ones(1000, requires_grad=True)
    y = OURS(F.dropout, x, preserve_rng_state=preserve)
    y.sum().backward()
    assert torch.equal(x.grad, y) == preserve  # type: ignore[arg-type]


def test_a_generator_that_is_passed_draws_the_same() -> None:
    """torch captures the generators of devices alone, and the gradient is another function's."""

    def noise(x: Tensor, generator: torch.Generator) -> Tensor:
        return x * torch.rand(x.shape, generator=generator)

    for again, right in ((OURS, True), (TORCHS, False)):
        x = torch.ones(10, requires_grad=True)
        y = again(noise, x, torch.Generator().manual_seed(0))
        y.sum().backward()
        assert torch.equal(x.grad, y) == right  # type: ignore[arg-type]


class Boom(Exception):
    pass


def test_an_exception_in_the_second_run_leaves_everything_as_it_was() -> None:
    runs: list[int] = []
    x = vector(0)

    def fails_later(x: Tensor) -> Tensor:
        runs.append(0)
        y = F.dropout(x)
        assert torch.is_autocast_enabled("cpu")
        if len(runs) == 2:
            raise Boom
        return y

    with torch.autocast("cpu", torch.float16, cache_enabled=False):
        y = OURS(fails_later, x)
    before, ambient = torch.get_rng_state(), torch.get_autocast_dtype("cpu")
    with pytest.raises(Boom):
        y.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.is_autocast_enabled("cpu")
    assert (torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()) == (ambient, True)
    assert x.grad is None
    OURS(F.dropout, x).sum().backward()
    assert x.grad is not None


def test_both_runs_are_cast_alike_by_our_own_autocast() -> None:
    """Also a weight that is used in the checkpoint and outside of it, from one cache of casts."""
    from shardbook.precision.autocast import autocast

    found = []
    for again, context in ((OURS, autocast), (plainly, autocast), (TORCHS, torch.autocast)):
        torch.manual_seed(0)
        linear = nn.Linear(WIDTH, WIDTH)
        x = torch.randn(3, WIDTH, requires_grad=True)
        with context("cpu", torch.bfloat16):
            y = again(lambda x, linear=linear: torch.tanh(linear(x)), x)
            assert y.dtype == torch.bfloat16
        y.float().square().sum().backward()
        with context("cpu", torch.bfloat16):
            linear(again(linear, x)).float().sum().backward()
        found.append((x.grad, linear.weight.grad))
    for other in found[1:]:
        assert torch.equal(found[0][0], other[0])  # type: ignore[arg-type]
    assert torch.equal(found[0][1], found[2][1])  # type: ignore[arg-type]


def test_an_exception_in_the_first_run_leaves_no_trace() -> None:
    def fails(x: Tensor) -> Tensor:
        raise Boom

    with pytest.raises(Boom):
        OURS(fails, vector(0))
    assert torch.is_grad_enabled()


def test_both_runs_make_tensors_on_the_same_device() -> None:
    devices: list[torch.device] = []

    def function(x: Tensor) -> Tensor:
        devices.append(torch.empty(1).device)
        return x * 2

    x = vector(0)
    with torch.device("meta"):
        y = OURS(function, x)
    y.sum().backward()
    assert devices == [torch.device("meta")] * 2


# What is kept and what is computed


def saved_bytes(again: Checkpoint, function: Callable[..., Any], *args: Any) -> int:
    """The bytes of all storages that autograd saves for the backward pass."""
    storages: dict[int, tuple[int, Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage.nbytes(), tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        again(function, *args)
    return sum(size for size, _ in storages.values())


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Gelu(torch.autograd.Function):
    """The same formula by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return gelu(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        [x] = ctx.saved_tensors
        c = math.sqrt(2 / math.pi)
        t = torch.tanh(c * (x + 0.044715 * x**3))
        return gradient * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x))


@pytest.mark.full
def test_a_function_by_hand_keeps_a_quarter_and_a_checkpoint_of_the_formula_as_little() -> None:
    x = torch.randn(1000, dtype=torch.float64, requires_grad=True)
    sizes = [saved_bytes(again, f, x) for again, f in ((plainly, gelu), (plainly, Gelu.apply), (OURS, gelu))]
    assert sizes == [4 * 8000, 8000, 8000]
    assert torch.autograd.gradcheck(Gelu.apply, x)


def test_only_the_arguments_are_kept() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)])
    x = torch.randn(32, 64, requires_grad=True)
    assert saved_bytes(OURS, model, x) == x.nbytes
    assert saved_bytes(plainly, model, x) > 10 * x.nbytes


def flops(again: Checkpoint, build: Callable[[Checkpoint], Callable[[Tensor], Tensor]]) -> int:
    x = torch.randn(4, 16, requires_grad=True)
    torch.manual_seed(0)
    model = build(again)
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    return int(counter.get_total_flops())


def test_exactly_one_forward_pass_is_added() -> None:
    layers = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])
    forward = 4 * 2 * 4 * 16 * 16
    counts = [flops(again, lambda c: partial(c, layers)) for again in (plainly, OURS, TORCHS)]
    assert counts == [3 * forward, 4 * forward, 4 * forward]


def test_a_checkpoint_inside_of_another_computes_a_third_time() -> None:
    counts = [0, 0]

    def inner(x: Tensor) -> Tensor:
        counts[0] += 1
        return x.sin()

    def outer(x: Tensor) -> Tensor:
        counts[1] += 1
        return OURS(inner, x * 2) * 3  # type: ignore[no-any-return]

    x = vector(0)
    OURS(outer, x).sum().backward()
    assert counts == [3, 2]
    torch.testing.assert_close(x.grad, 6 * (2 * x.detach()).cos())


def test_everything_is_freed_by_the_backward_pass() -> None:
    """No circle: reference counts alone free the arguments, and what the second run made."""
    made: list[weakref.ref[Tensor]] = []

    def function(x: Tensor, y: Tensor) -> Tensor:
        h = x * y
        made.append(weakref.ref(h))
        return h.sin().exp()

    gc.collect()
    gc.disable()
    try:
        start = vector(0)
        x, y = start * 2, vector(1)
        given = weakref.ref(x)
        loss = OURS(function, x, y).sum()
        del x
        assert given() is not None
        assert made[0]() is None
        loss.backward()
        assert given() is None
        assert made[1]() is None
    finally:
        gc.enable()


def test_a_graph_that_is_dropped_frees_the_arguments() -> None:
    gc.collect()
    gc.disable()
    try:
        x = vector(0) * 2
        given = weakref.ref(x)
        y = OURS(torch.sin, x)
        del x
        assert given() is not None
        del y
        assert given() is None
    finally:
        gc.enable()


def test_a_retained_graph_runs_again_and_a_freed_one_does_not() -> None:
    x = vector(0)
    loss = OURS(lambda x: F.dropout(x.sin()), x).sum()
    loss.backward(retain_graph=True)
    once = x.grad.clone()  # type: ignore[union-attr]
    loss.backward()
    assert torch.equal(x.grad, 2 * once)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_saved_arguments_can_be_moved_elsewhere() -> None:
    x = vector(0)
    with torch.autograd.graph.save_on_cpu():
        loss = OURS(lambda x: x.sin().exp(), x * 2).sum()
    loss.backward()
    found, x.grad = x.grad, None
    (x * 2).sin().exp().sum().backward()
    assert same(found, x.grad)


def test_under_no_grad_a_checkpoint_is_a_call() -> None:
    counts: list[bool] = []

    def function(x: Tensor) -> Tensor:
        counts.append(torch.is_grad_enabled())
        return x * 2

    with torch.no_grad():
        assert not OURS(function, vector(0)).requires_grad
        assert not OURS(function, vector(0, grad=False)).requires_grad
    assert counts == [False] * 2


# The compiler looks at it to know what has a gradient.
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_compiler_leaves_the_checkpoint_as_it_is() -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(4, 4), torch.ones(3, 4, requires_grad=True)

    def model(call: Callable[[Tensor], Tensor]) -> Tensor:
        out: Tensor = OURS(call, x * 2).sum()
        return out

    def inner(x: Tensor) -> Tensor:
        return F.dropout(torch.tanh(linear(x)))

    found = []
    compiled = partial(torch.compile, backend="aot_eager")
    for run in (partial(model, inner), compiled(partial(model, inner)), partial(model, compiled(inner))):
        linear.zero_grad()
        x.grad = None
        torch.manual_seed(0)
        run().backward()
        found.append((x.grad, linear.weight.grad))
    for gradients in found[1:]:
        for gradient, expected in zip(gradients, found[0], strict=True):
            torch.testing.assert_close(gradient, expected)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="compile the function by itself"):
        compiled(partial(model, inner), fullgraph=True)()


def test_a_tensor_without_versions_is_refused_by_autograd() -> None:
    with torch.inference_mode():
        table = torch.ones(5)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        OURS(lambda x, t: x * t, vector(0), table)


# Limits: what the documentation of the reentrant variant warns of


def test_without_an_input_that_needs_a_gradient_there_is_none_and_a_warning() -> None:
    for again in (OURS, TORCHS):
        linear = nn.Linear(3, 3)
        with pytest.warns(UserWarning, match="None of the inputs ha.* requires_grad=True") as caught:
            y = again(linear, torch.ones(3))
        assert caught[0].filename == __file__ or again is TORCHS
        assert not y.requires_grad
    with pytest.warns(UserWarning, match="None of the inputs") as caught:
        door(nn.Linear(3, 3), torch.ones(3), use_reentrant=True)
    assert caught[0].filename == __file__
    linear = nn.Linear(3, 3)
    OURS(linear, torch.ones(3).requires_grad_()).sum().backward()
    assert torch.equal(linear.weight.grad, torch.ones(3, 3))  # type: ignore[arg-type]


def test_if_all_outputs_are_detached_the_backward_pass_says_so() -> None:
    for again in (OURS, TORCHS):
        y = again(lambda x: x.detach() * 2, vector(0))
        assert y.requires_grad
        with pytest.raises(RuntimeError, match=r"none of (the )?outputs? .*requires"):
            y.sum().backward()


@pytest.mark.parametrize("again", [OURS, TORCHS])
def test_gradients_of_some_tensors_only_are_refused(again: Checkpoint) -> None:
    linear, x = nn.Linear(5, 5), vector(0)
    with pytest.raises(RuntimeError, match=r"reentrant.*\.?grad.*inputs"):
        torch.autograd.grad(again(linear, x).sum(), [x])
    with pytest.raises(RuntimeError, match=r"reentrant.*\.?grad.*inputs"):
        again(linear, x).sum().backward(inputs=[x])
    assert linear.weight.grad is None


def test_a_second_derivative_is_refused_where_torch_leaves_the_segment_out() -> None:
    x = torch.full((3,), 2.0, requires_grad=True)
    with pytest.raises(RuntimeError, match="cannot pass create_graph=True, because it records no graph"):
        OURS(lambda x: x**3, x).sum().backward(create_graph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        TORCHS(lambda x: x**3, x).sum().backward(create_graph=True)
    assert x.grad is not None
    assert not x.grad.requires_grad


@contextmanager
def no_grad_is_added(*tensors: Tensor) -> Iterator[None]:
    yield
    assert all(tensor.grad is None for tensor in tensors)


def test_an_argument_that_changes_between_the_runs_is_noticed() -> None:
    for again in (OURS, TORCHS):
        x, table = vector(0), vector(1, grad=False)
        y = again(lambda x, t: x * t, x, table)
        table.mul_(2)
        with no_grad_is_added(x), pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_an_argument_that_the_function_changes_is_refused_where_torch_computes_another_gradient() -> None:
    def doubling(x: Tensor, table: Tensor) -> Tensor:
        return x * table.mul_(2)

    x = torch.ones(3, requires_grad=True)
    TORCHS(doubling, x, torch.ones(3)).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 4.0))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"changed an argument of shape \(3,\) in place"):
        OURS(doubling, x, [torch.ones(3)][0])
    OURS(lambda x, t: x * t.clone().mul_(2), x, torch.ones(3)).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 6.0))  # type: ignore[arg-type]


def test_a_tensor_that_is_left_in_a_list_is_refused() -> None:
    def leaves(x: Tensor, cache: list[Tensor]) -> Tensor:
        cache.append(x * 2)
        return x * 3

    with pytest.raises(RuntimeError, match=r"left a tensor of shape \(5,\) in its arguments"):
        OURS(leaves, vector(0), [])


def test_what_else_the_function_does_to_a_list_reaches_the_caller_once() -> None:
    def counts(x: Tensor, log: list[int]) -> Tensor:
        log.append(len(log))
        return x * len(log)

    log = [7]
    x = torch.ones(3, requires_grad=True)
    y = OURS(counts, x, log)
    y.sum().backward()
    assert log == [7, 1]
    assert torch.equal(x.grad, y)  # type: ignore[arg-type]


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass
class Result:
    value: Any


class Cache:
    """Keeps what the layers of a model have made, an object for each layer, as transformers does."""

    def __init__(self, *tensors: Tensor) -> None:
        self.layers = [Holder(tensor) for tensor in tensors]


def appends(x: Tensor, cache: Cache) -> Tensor:
    cache.layers.append(Holder(x.sin()))
    return torch.stack([layer.value for layer in cache.layers]).sum()


def puts_in(x: Tensor, cache: Cache) -> Tensor:
    cache.layers[0].value = torch.cat([cache.layers[0].value, x])
    return cache.layers[0].value.sum()  # type: ignore[no-any-return]


BOTH = [OURS, checkpoint_saved]


@pytest.mark.parametrize("function", [appends, puts_in])
@pytest.mark.parametrize("again", BOTH)
def test_a_tensor_that_is_left_deep_in_an_object_is_refused(again: Checkpoint, function: Any) -> None:
    """The second run would find it there. torch computes another gradient."""
    said = r"left a tensor of shape \(\d+,\) in a Cache among its arguments, and would find it there"
    with pytest.raises(RuntimeError, match=said):
        again(function, vector(0), Cache(vector(1)))
    with pytest.raises(RuntimeError, match=said):
        again(partial(function, cache=Cache(vector(1))), vector(0))
    with torch.no_grad():
        assert again(function, vector(0), Cache(vector(1))).isfinite()


def test_torch_computes_another_gradient_with_a_cache() -> None:
    found = []
    for again in (plainly, TORCHS):
        x = vector(0)
        again(lambda x, cache: appends(x, cache) * x.sum(), x, Cache(vector(1, grad=False))).backward()
        found.append(x.grad)
    assert not torch.equal(*found)


@pytest.mark.parametrize("again", BOTH)
def test_what_an_object_held_before_may_stay_and_go(again: Checkpoint) -> None:
    def reads(x: Tensor, cache: Cache) -> Tensor:
        cache.layers.reverse()
        cache.seen = [cache.layers[0].value.argmax(), 3, cache]  # type: ignore[attr-defined]
        return x * cache.layers[1].value + cache.layers.pop().value.sum()  # type: ignore[no-any-return]

    shared, x = Cache(vector(1, grad=False), vector(2, grad=False), vector(3, grad=False)), vector(0)
    y = again(reads, x, shared)
    assert len(shared.layers) == 2
    assert y.requires_grad


def test_with_a_graph_a_tensor_without_a_gradient_may_be_left() -> None:
    """Such as a mask that is made once. Without a graph nobody can tell it from a key."""

    def masks(x: Tensor, cache: Cache) -> Tensor:
        if not cache.layers:
            cache.layers.append(Holder(torch.ones(5)))
        return x * cache.layers[0].value  # type: ignore[no-any-return]

    x = vector(0)
    checkpoint_saved(masks, x, Cache()).sum().backward()
    assert torch.equal(x.grad, torch.ones(5))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="in a Cache among its arguments"):
        OURS(masks, x, Cache())


@pytest.mark.parametrize("again", BOTH)
@pytest.mark.parametrize("kind", [iter, lambda values: (value for value in values), partial(map, abs)])
def test_an_iterator_is_refused(again: Checkpoint, kind: Any) -> None:
    with pytest.raises(TypeError, match=r"is a (list_iterator|generator|map), of which .* pass a list"):
        again(lambda x, values: x * sum(values), vector(0), kind([1.0, 2.0]))


@pytest.mark.parametrize("kind", [Holder, Result, lambda v: UserDict(a=Result(v))["a"]])
def test_a_tensor_inside_of_an_object_is_refused(kind: Callable[[Any], Any]) -> None:
    x = vector(0)
    with pytest.raises(TypeError, match=r"returned a (Holder|Result) that holds tensors"):
        OURS(lambda x: (x, kind(x * 2)), x)
    assert OURS(lambda x: kind(3), x).value == 3
    assert torch.equal(OURS(lambda x: kind(x > 0), x).value, x > 0)


def test_a_global_that_changes_is_not_noticed_and_an_argument_is_repeated() -> None:
    world = {"factor": 0.0}
    for again in (OURS, TORCHS):
        x = torch.ones(3, requires_grad=True)
        world["factor"] = 2.0
        by_name = again(lambda x: x * world["factor"], x)
        by_argument = again(lambda x, f: x * f, x, world["factor"])
        world["factor"] = 5.0
        by_name.sum().backward()
        assert torch.equal(x.grad, torch.full((3,), 5.0))  # type: ignore[arg-type]
        x.grad = None
        by_argument.sum().backward()
        assert torch.equal(x.grad, torch.full((3,), 2.0))  # type: ignore[arg-type]


def test_another_structure_in_the_second_run_is_refused() -> None:
    runs: list[int] = []

    def changes(x: Tensor) -> Any:
        runs.append(0)
        return (x, x * 2) if len(runs) == 1 else x * 2

    x = vector(0)
    y, _ = OURS(changes, x)
    with pytest.raises(RuntimeError, match="returned another structure when it was computed again"):
        y.sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("momentum", [0.1, 0.5])
def test_running_statistics_move_twice_unless_the_momentum_is_corrected(momentum: float) -> None:
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def statistics(again: Checkpoint, momentum: float) -> Tensor:
        norm = nn.BatchNorm1d(4, momentum=momentum)
        again(norm, x).sum().backward()
        assert norm.running_mean is not None
        return norm.running_mean

    once = statistics(plainly, momentum)
    torch.testing.assert_close(statistics(OURS, momentum), (2 - momentum) * once)
    torch.testing.assert_close(statistics(OURS, 1 - math.sqrt(1 - momentum)), once)


def test_a_tensor_from_outside_is_reached_by_both_backward_passes() -> None:
    for again in (OURS, TORCHS):
        x = vector(0)
        h = x.sin()
        by_name = again(lambda x, h=h: x * h, x).sum() + h.sum()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            by_name.backward()
    x = vector(0)
    h = x.sin()
    (OURS(lambda x, h: x * h, x, h).sum() + h.sum()).backward()
    found, x.grad = x.grad, None
    h = x.sin()
    ((x * h).sum() + h.sum()).backward()
    torch.testing.assert_close(found, x.grad)
