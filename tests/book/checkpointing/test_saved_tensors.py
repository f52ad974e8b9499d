"""Checkpointing by saved tensors: the same bits, the same work and no more memory than PyTorch's own."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from shardbook.checkpointing.determinism import CheckpointError
from shardbook.checkpointing.saved_tensors import checkpoint_saved

Run = Callable[..., Any]

torchs: Run = partial(checkpoint, use_reentrant=False)


def plain(function: Run, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


# What each kind of checkpoint does besides running the function.
BOOKKEEPING = {"aten.detach.default", "aten.empty.memory_format"}


class Count(TorchDispatchMode):
    """How often each operation has run."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) not in BOOKKEEPING:
            self.ran[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Cube(torch.autograd.Function):
    """A user's own operation, which saves an input and an output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x**3
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        return grad * 3 * y / x


WIDTH = 6
STEPS = ["linear", "gelu", "relu_", "dropout", "norm", "cube", "gate", "mix", "batch", "keep"]
Tree = list[Any]


class Program(nn.Module):
    """A random function: steps from `STEPS`, and lists of steps that are checkpointed inside."""

    def __init__(self, steps: Tree, inner: Run) -> None:
        super().__init__()
        self.steps, self.inner = steps, inner
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.norm = nn.LayerNorm(WIDTH)
        self.batch = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor, side: dict[str, Tensor]) -> dict[str, Any]:
        for step in self.steps:
            x = self.go(step, x, side)
        return {"x": x, "more": [side["a"] * x, "text", None]}

    def go(self, step: Any, x: Tensor, side: dict[str, Tensor]) -> Tensor:
        match step:
            case "linear":
                return self.linear(x)
            case "gelu":
                return F.gelu(x)
            case "relu_":
                return F.relu_(x + 1)
            case "dropout":
                return F.dropout(x, 0.4)
            case "norm":
                return self.norm(x.float())
            case "cube":
                return Cube.apply(x.float().clamp(0.5, 2))
            case "gate":
                return torch.sigmoid(self.frozen(x)) * side["a"]
            case "mix":
                return x + (x @ side["b"]).softmax(-1)
            case "batch":
                return self.batch(x.float())
            case "keep":
                with torch.no_grad():
                    scale = x.float().norm()
                return x / (1 + scale)
            case list():
                inside: Tensor = self.inner(self.together, step, x, side)
                return inside
        raise AssertionError(step)

    def together(self, steps: Tree, x: Tensor, side: dict[str, Tensor]) -> Tensor:
        for step in steps:
            x = self.go(step, x, side)
        return x


trees = st.recursive(
    st.sampled_from(STEPS), lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=8
).map(lambda tree: tree if isinstance(tree, list) else [tree])


def outcome(steps: Tree, outer: Run, inner: Run, autocast: bool) -> tuple[list[Tensor], Counter[str]]:
    """All that a step leaves: results, gradients, buffers, the generator; and what its backward ran."""
    torch.manual_seed(0)
    model = Program(steps, inner)
    x = torch.randn(4, WIDTH, requires_grad=True)
    side = {"a": torch.randn(4, WIDTH, requires_grad=True), "b": torch.randn(WIDTH, WIDTH)}
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result = outer(model, x, side)
    tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    with Count() as count:
        torch.autograd.backward([t.float().square().sum() for t in tensors])
    leaves = [x, side["a"], *model.parameters()]
    gradients = [leaf.grad if leaf.grad is not None else torch.zeros(()) for leaf in leaves]
    kept = [*tensors, *gradients, *model.buffers(), torch.get_rng_state()]
    return [t.detach() for t in kept], count.ran


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype
        assert torch.equal(one, other)


@settings(max_examples=30)
@given(steps=trees, autocast=st.booleans(), early_stop=st.booleans())
def test_any_program_gives_torchs_bits_with_torchs_work(
    steps: Tree, autocast: bool, early_stop: bool
) -> None:
    ours = partial(checkpoint_saved, early_stop=early_stop)
    found, ran = outcome(steps, ours, ours, autocast)
    with set_checkpoint_early_stop(early_stop):
        expected, torch_ran = outcome(steps, torchs, torchs, autocast)
    assert_equal(found, expected)
    assert ran == torch_ran
    if "batch" not in str(steps):
        # A running mean moves once more in a recomputation, with ours as with PyTorch's.
        assert_equal(found, outcome(steps, plain, plain, autocast)[0])


def chain(depth: int, run: Run, weight: Tensor) -> Run:
    """A product and a sine inside of `depth` checkpoints, each of which adds a product and a sine."""

    def function(x: Tensor) -> Tensor:
        y = (x @ weight).sin()
        return run(chain(depth - 1, run, weight), y) if depth else y

    return function


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_each_level_is_recomputed_as_often_as_in_torch(depth: int, early_stop: bool) -> None:
    ran = {}
    for run in (torchs, partial(checkpoint_saved, early_stop=early_stop)):
        weight = torch.randn(3, 3, requires_grad=True)
        x = torch.randn(3, 3, requires_grad=True)
        with set_checkpoint_early_stop(early_stop):
            y = run(chain(depth, run, weight), x)
        with Count() as count:
            y.sum().backward()
        ran[run] = count.ran
    found, expected = ran.values()
    assert found == expected
    # Level 0 runs again once. Without early stop each level below runs once more than the one above.
    if not early_stop:
        assert found["aten.sin.default"] == sum(level + 1 for level in range(depth + 1))


def two_results(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    first = (x @ w).sin()
    result = first.cos()
    return result, (first @ w).exp().tanh()


@pytest.fixture
def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


Inputs = tuple[Tensor, Tensor]


def ways() -> dict[str, Callable[[Run, Tensor, Tensor], list[Tensor]]]:
    """Backward passes that the reentrant variant cannot do."""

    def grad(run: Run, x: Tensor, w: Tensor) -> list[Tensor]:
        a, b = run(two_results, x, w)
        return list(torch.autograd.grad(a.sum() + b.sum(), [x, w]))

    def only_one_input(run: Run, x: Tensor, w: Tensor) -> list[Tensor]:
        a, b = run(two_results, x, w=w)
        (a.sum() + b.sum()).backward(inputs=[w])
        assert x.grad is None
        assert w.grad is not None
        return [w.grad.clone()]

    def results_apart(run: Run, x: Tensor, w: Tensor) -> list[Tensor]:
        a, b = run(two_results, x, w)
        found = list(torch.autograd.grad(b.sum(), [x, w], retain_graph=True))
        return found + list(torch.autograd.grad(a.sum(), [x, w]))

    def one_result(run: Run, x: Tensor, w: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(run(two_results, x, w)[0].sum(), [x, w]))

    def twice(run: Run, x: Tensor, w: Tensor) -> list[Tensor]:
        total = sum(t.sum() for t in run(two_results, x, w))
        assert isinstance(total, Tensor)
        return [g for _ in range(2) for g in torch.autograd.grad(total, [x, w], retain_graph=True)]

    def second_derivative(run: Run, x: Tensor, w: Tensor) -> list[Tensor]:
        a, b = run(two_results, x, w)
        first = torch.autograd.grad((a + b).sum(), [x, w], create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), [x, w])]

    def hooks(run: Run, x: Tensor, w: Tensor) -> list[Tensor]:
        seen: list[Tensor] = []
        y = x * 1
        y.register_hook(seen.append)
        sum(t.sum() for t in run(two_results, y, w)).backward()
        return seen

    return {w.__name__: w for w in (grad, only_one_input, results_apart, one_result, twice)} | {
        w.__name__: w for w in (second_derivative, hooks)
    }


@pytest.mark.parametrize("way", ways().values(), ids=ways())
def test_every_way_to_go_backward_works_as_without_checkpoints(
    way: Callable[[Run, Tensor, Tensor], list[Tensor]], inputs: Inputs
) -> None:
    runs: list[Run] = [plain, checkpoint_saved, partial(checkpoint_saved, early_stop=False)]
    results = []
    for run in runs:
        leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        results.append([tensor.detach() for tensor in way(run, *leaves)])
    assert_equal(results[1], results[0])
    assert_equal(results[2], results[0])


@pytest.mark.parametrize("run", [torchs, checkpoint_saved], ids=["torch", "ours"])
def test_a_retained_graph_is_recomputed_for_each_backward_pass(run: Run, inputs: Inputs) -> None:
    x, w = inputs
    calls = []

    def function(x: Tensor) -> Tensor:
        calls.append(1)
        return (x @ w).sin().cos()

    y = run(function, x).sum()
    for expected in (2, 3, 4):
        y.backward(retain_graph=True)
        assert len(calls) == expected
    y.backward()
    assert len(calls) == 5


def test_of_two_results_the_unused_one_is_not_recomputed(inputs: Inputs) -> None:
    x, w = inputs
    products = {}
    for run in (torchs, checkpoint_saved):
        first, second = run(two_results, x, w)
        del second
        with Count() as count:
            first.sum().backward()
        products[run] = count.ran["aten.mm.default"]
    # The backward pass of one product takes two. PyTorch computes both products again.
    assert products == {torchs: 2 + 2, checkpoint_saved: 2 + 1}
    # What comes before the last tensor that is needed does run again, needed or not.
    unused, second = checkpoint_saved(two_results, x, w)
    other, last = checkpoint_saved(lambda x, w: (((x @ w).sin() @ w).exp(), x.exp()), x, w)
    del unused, other
    for result, expected in ((second, 4 + 2), (last, 0 + 2)):
        with Count() as count:
            result.sum().backward()
        assert count.ran["aten.mm.default"] == expected


def alive(tensors: list[weakref.ref[Tensor]]) -> int:
    return sum(ref() is not None for ref in tensors)


class Storages(TorchDispatchMode):
    """Which memory exists of all that was made inside of the block; what is `known` does not count."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.made: dict[int, tuple[weakref.ref[Any], int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in self.known:
                storage = leaf.untyped_storage()
                self.made[storage._cdata] = weakref.ref(storage), storage.nbytes()
        return result

    @property
    def alive(self) -> list[int]:
        """The bytes of each storage that exists, but for empty ones."""
        return sorted(size for ref, size in self.made.values() if size and ref() is not None)


def mlp(depth: int = 3, width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)) for _ in range(depth)]
    return nn.Sequential(*layers)


@contextlib.contextmanager
def counting_saved() -> Iterator[list[int]]:
    """The bytes of all storages that a forward pass leaves with autograd."""
    seen: dict[int, int] = {}
    total = [0]

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        total[0] = sum(seen.values())
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield total


def test_no_more_bytes_wait_for_the_backward_pass_than_with_torch() -> None:
    waiting = {}
    for name, run in (("plain", plain), ("torch", torchs), ("ours", checkpoint_saved)):
        model, x = mlp(), torch.randn(16, 32)
        with Storages(x, *model.parameters()) as storages:
            y = run(model, x)
        waiting[name] = storages.alive
        del y
    one = 16 * 32
    # The result is there, and the arguments were there before.
    assert waiting["ours"] == waiting["torch"] == [4 * one]
    # A tanh has saved its result, a dropout its mask and its result, which the next layer reads.
    assert waiting["plain"] == [4 * one] * 9


def test_what_the_arguments_hold_is_all_that_the_surroundings_have_to_save() -> None:
    x = torch.randn(16, 32)
    with counting_saved() as total:
        checkpoint_saved(mlp(), x)
    assert total == [16 * 32 * 4]


def made_in(run: Run, x: Tensor) -> tuple[Tensor, list[weakref.ref[Tensor]]]:
    """A result, and the tensors that the function made on the way to it, in both runs."""
    made: list[weakref.ref[Tensor]] = []

    def function(x: Tensor) -> Tensor:
        for _ in range(4):
            x = x.exp()
            made.append(weakref.ref(x.untyped_storage()))
            x = x.sin()
        return x * 1

    return run(function, x), made


def test_tensors_are_freed_one_by_one_in_the_backward_pass() -> None:
    x = torch.zeros(3, requires_grad=True)
    y, made = made_in(checkpoint_saved, x)
    assert len(made) == 4
    assert alive(made) == 0
    made.clear()
    there: list[int] = []
    node: Any = y.grad_fn
    while node.name() in ("MulBackward0", "SinBackward0", "ExpBackward0"):
        node.register_hook(lambda *_: there.append(alive(made)))
        node = node.next_functions[0][0]
    y.sum().backward()
    # Of 4 pairs of an exponential and a sine the second run makes all but the last sine, which nobody
    # reads. An exponential has saved its result, which is also what the sine reads, and goes last.
    assert [there[0], *there[2::2]] == [0, 3, 2, 1, 0]
    assert alive(made) == 0


class Bulky(torch.autograd.Function):
    """An operation whose node holds something that autograd does not know of."""

    held: list[weakref.ref[Any]]

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.bulk = nn.Identity()
        Bulky.held.append(weakref.ref(ctx.bulk))
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def test_of_the_second_run_only_the_tensors_stay(inputs: Inputs) -> None:
    Bulky.held = []
    x, _ = inputs
    there: list[int] = []
    y = checkpoint_saved(lambda x: Bulky.apply(x).exp().sin(), x, early_stop=False)
    node: Any = y.grad_fn
    node.register_hook(lambda *_: there.append(alive(Bulky.held)))
    gc.disable()
    try:
        y.sum().backward()
    finally:
        gc.enable()
    # Two runs have made a node each, and only that of the forward pass is there.
    assert len(Bulky.held) == 2
    assert there == [1]


@pytest.mark.parametrize("retain", [False, True])
def test_nothing_is_left_after_a_backward_pass(retain: bool, inputs: Inputs) -> None:
    x, _ = inputs
    y, made = made_in(checkpoint_saved, x)
    y.sum().backward(retain_graph=retain)
    assert alive(made) == 0
    # Only a part of the graph: what the other part would need is dropped as well.
    made.clear()

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        first = x.exp()
        second = first.exp().sin()
        made.extend(weakref.ref(t.untyped_storage()) for t in (first, second))
        return first.sin(), second.sin()

    a, b = checkpoint_saved(function, x, early_stop=False)
    torch.autograd.grad(a.sum(), x, retain_graph=True)
    assert alive(made) == 0
    torch.autograd.grad(b.sum(), x, retain_graph=retain)
    assert alive(made) == 0


def test_the_arguments_go_with_the_graph() -> None:
    def run(backward: bool) -> weakref.ref[Tensor]:
        x = torch.randn(3, requires_grad=True) * 1
        big = {"deep": [torch.randn(3)]}
        kept = weakref.ref(big["deep"][0])
        y = checkpoint_saved(lambda x, big: x.sin() * big["deep"][0], x, big=big)
        del big
        gc.disable()
        assert kept() is not None
        if backward:
            y.sum().backward()
        else:
            del y
        return kept

    try:
        for backward in (True, False):
            assert run(backward)() is None
    finally:
        gc.enable()


def test_arguments_inside_of_a_checkpoint_are_dropped_too() -> None:
    kept: list[weakref.ref[Any]] = []

    def outer(x: Tensor) -> Tensor:
        y = x.sin()
        z = y.cos()
        kept.extend(weakref.ref(t.untyped_storage()) for t in (y, z))
        return checkpoint_saved(lambda a, *, b: (a * b["z"]).exp(), y, b={"z": z})

    x = torch.randn(3, requires_grad=True)
    result = checkpoint_saved(outer, x)
    assert alive(kept) == 0
    result.sum().backward()
    assert alive(kept) == 0
    found = x.grad
    again = x.detach().clone().requires_grad_()
    y = again.sin()
    (y * y.cos()).exp().sum().backward()
    assert torch.equal(found, again.grad)


class Unlucky(Exception):
    pass


def test_no_function_can_stop_the_early_stop(inputs: Inputs) -> None:
    x, w = inputs
    fallbacks, endings = [], []

    def careful(x: Tensor) -> Tensor:
        y = x @ w
        try:
            return y.sin()
        except Exception:
            fallbacks.append("Exception")
            return y
        finally:
            endings.append(1)

    def reckless(x: Tensor) -> Tensor:
        for attempt in range(3):
            try:
                return (x @ w).sin()
            except BaseException:
                fallbacks.append(attempt)
        raise Unlucky

    expected = torch.autograd.grad((x @ w).sin().sum(), x)
    for function in (careful, reckless):
        assert_equal(list(torch.autograd.grad(checkpoint_saved(function, x).sum(), x)), list(expected))
    assert endings == [1, 1]
    # What catches everything is stopped each time it tries again. Its failure is no failure.
    assert fallbacks == [0, 1, 2]


def surroundings() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_device(),
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("when", ["forward pass", "recomputation"])
@pytest.mark.parametrize("kind", [Unlucky, KeyboardInterrupt])
def test_an_error_leaves_nothing_behind(when: str, kind: type[BaseException]) -> None:
    made: list[weakref.ref[Any]] = []

    def function(x: Tensor) -> Tensor:
        y = F.dropout(x.exp(), 0.5)
        made.append(weakref.ref(y.untyped_storage()))
        z = y @ y
        if fails[0]:
            raise kind("no luck")
        return z.sin() * 2

    fails = [when == "forward pass"]
    x = torch.randn(3, 3, requires_grad=True)
    argument = x * 1
    gone = weakref.ref(argument)
    y = None
    gc.disable()
    try:
        if when == "recomputation":
            y = checkpoint_saved(function, argument)
            fails = [True]
            before = surroundings()
            with pytest.raises(kind, match="no luck"):
                y.sum().backward(retain_graph=True)
            # The graph is whole, and what was collected is gone.
            assert surroundings() == before
            assert alive(made) == 0
            fails = [False]
            y.sum().backward()
            assert x.grad is not None
        else:
            state = torch.get_rng_state()
            with pytest.raises(kind, match="no luck"):
                checkpoint_saved(function, argument)
            torch.set_rng_state(state)
        del argument, y
        assert gone() is None
        assert alive(made) == 0
    finally:
        gc.enable()
    # Autograd saves as before.
    kept: Any = x.exp().grad_fn
    assert type(kept._saved_result) is Tensor


def test_the_error_of_a_checkpoint_around_passes_through(inputs: Inputs) -> None:
    x, _ = inputs
    fails = [False]

    def outer(x: Tensor) -> Tensor:
        y = x.sin()
        if fails[0]:
            raise Unlucky("outside")
        return checkpoint_saved(torch.exp, y)

    result = checkpoint_saved(outer, x)
    fails[0] = True
    with pytest.raises(Unlucky, match="outside"):
        result.sum().backward()


CHANGED = r"argument {} of a checkpointed function changed in place before the backward pass, so the "


def test_an_argument_that_is_changed_in_place_is_named(inputs: Inputs) -> None:
    x, w = inputs
    y, mask = x * 1, torch.ones(4, 4)
    for change, name in ((y, r"\[0\]"), (mask, r"\['deep'\]\[0\]")):
        result = checkpoint_saved(lambda y, deep: (y * deep[0]).sin() @ w, y, deep=[mask])
        with torch.no_grad():
            change.add_(1)
        with pytest.raises(CheckpointError, match=CHANGED.format(name)):
            result.sum().backward()


def test_a_function_that_changes_its_argument_is_refused_and_may_change_a_clone(inputs: Inputs) -> None:
    x, w = inputs
    found = []
    for run in (torchs, checkpoint_saved):
        result = run(lambda y: y.mul_(2).sin() @ w, x * 1)
        with pytest.raises(RuntimeError, match=r"in ?place") as caught:
            result.sum().backward()
        found.append(caught.type)
    assert found == [RuntimeError, CheckpointError]
    result = checkpoint_saved(lambda y: y.clone().mul_(2).sin() @ w, x * 1)
    expected = torch.autograd.grad(((x * 2).sin() @ w).sum(), x)
    assert_equal(list(torch.autograd.grad(result.sum(), x)), list(expected))


def overwrites(x: Tensor) -> Tensor:
    y = x.exp()
    z = y.sin()
    y.mul_(2)
    return z.cos()


def test_a_saved_tensor_that_is_overwritten_is_an_error_as_without_checkpoints(inputs: Inputs) -> None:
    x, _ = inputs
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        overwrites(x).sum().backward()
    with pytest.raises(CheckpointError, match=r"a tensor of shape \(4, 4\) was changed in place inside the"):
        checkpoint_saved(overwrites, x).sum().backward()
    # PyTorch's checkpoint computes a gradient of the changed values.
    wrong = torch.autograd.grad(torchs(overwrites, x).sum(), x)[0]
    right = torch.autograd.grad(x.exp().sin().cos().sum(), x)[0]
    assert not torch.allclose(wrong, right)


def test_parts_without_a_graph_and_inputs_without_gradients_are_no_trouble(inputs: Inputs) -> None:
    x, w = inputs

    def function(x: Tensor) -> tuple[Tensor, Tensor, str]:
        y = x @ w
        with torch.no_grad():
            scale = y.norm()
        return (y / scale).sin(), y.detach(), "text"

    for start in (x, x.detach(), x.detach().int()):
        start = start.float() if start.is_floating_point() else start.to(w.dtype)
        found, detached, text = checkpoint_saved(function, start)
        assert text == "text"
        assert not detached.requires_grad
        expected = function(start)[0]
        leaves = [leaf for leaf in (start, w) if leaf.requires_grad]
        assert_equal(
            list(torch.autograd.grad(found.sum(), leaves)),
            list(torch.autograd.grad(expected.sum(), leaves)),
        )
    with torch.no_grad():
        assert torch.equal(checkpoint_saved(function, x)[0], function(x)[0])


def test_a_function_may_ask_for_gradients_itself(inputs: Inputs) -> None:
    x, w = inputs

    def function(x: Tensor, retain: bool) -> Tensor:
        y = (x @ w).sin().cos()
        (inner,) = torch.autograd.grad(y.sum(), x, retain_graph=retain)
        return x.exp() * inner + y if retain else x.exp() * inner

    for retain in (True, False):
        for early_stop in (True, False):
            run = partial(checkpoint_saved, early_stop=early_stop)
            found = torch.autograd.grad(run(function, x * 1, retain).sum(), [x, w][: 1 + retain])
            expected = torch.autograd.grad(function(x, retain).sum(), [x, w][: 1 + retain])
            assert_equal(list(found), list(expected))


class Reads(torch.autograd.Function):
    """An operation whose backward pass looks twice at what it has saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return ctx.saved_tensors[0] * grad + ctx.saved_tensors[0] * grad


def test_a_second_look_at_a_saved_tensor_costs_one_more_run_and_is_an_error_in_torch(inputs: Inputs) -> None:
    x, _ = inputs
    calls = []

    def function(x: Tensor) -> Tensor:
        calls.append(1)
        result: Tensor = Reads.apply(x.sin())
        return result

    expected = torch.autograd.grad(function(x).sum(), x)
    calls.clear()
    assert_equal(list(torch.autograd.grad(checkpoint_saved(function, x).sum(), x)), list(expected))
    assert len(calls) == 3
    with pytest.raises(RuntimeError, match="already unpacked once"):
        torchs(function, x).sum().backward()


def test_a_program_may_look_at_what_a_node_has_saved(inputs: Inputs) -> None:
    x, _ = inputs
    y, made = made_in(checkpoint_saved, x)
    node: Any = y.grad_fn
    sine: Any = node.next_functions[0][0]
    seen = sine._saved_self
    made.clear()
    again = sine._saved_self
    assert torch.equal(seen, again)
    # Nothing of the second run is left but the tensor that was asked for.
    del seen
    assert alive(made) == 1
    del again
    assert alive(made) == 0


def test_the_settings_of_the_forward_pass_come_back_for_the_second_run() -> None:
    seen: list[tuple[Any, ...]] = []
    x = torch.randn(3, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        seen.append(
            (
                torch.empty(0).device.type,
                torch.mm(x.view(3, 1), x.view(1, 3)).dtype,
                torch.rand(1).item() if torch.get_default_device().type == "cpu" else 0.0,
            )
        )
        return x.sin().cos()

    with torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
        on_meta = checkpoint_saved(function, x)
    with torch.autocast("cpu", torch.float16):
        drawn = checkpoint_saved(function, x)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    (on_meta + drawn).sum().backward()
    assert torch.equal(before, torch.get_rng_state())
    first, second, third, fourth = seen
    assert first == ("meta", torch.bfloat16, 0.0)
    assert {third, fourth} == {first, second}
    assert not torch.is_autocast_enabled("cpu")


def test_random_numbers_may_differ_if_that_is_wanted(inputs: Inputs) -> None:
    x, w = inputs
    drawn = []

    def function(x: Tensor) -> Tensor:
        drawn.append(torch.rand(1).item())
        return (x @ w).sin()

    for preserve in (True, False):
        checkpoint_saved(function, x, preserve_rng_state=preserve).sum().backward()
    assert drawn[0] == drawn[1]
    assert drawn[2] != drawn[3]


def test_blocks_surround_the_forward_pass_and_each_recomputation(inputs: Inputs) -> None:
    x, w = inputs
    entered: list[str] = []

    class Block:
        def __init__(self, name: str, swallows: bool = False) -> None:
            self.name, self.swallows = name, swallows

        def __enter__(self) -> None:
            entered.append(self.name)

        def __exit__(self, *error: Any) -> bool:
            entered.append(f"{self.name} ends, {error[0] and error[0].__name__}")
            return self.swallows

    run = partial(checkpoint_saved, context_fn=lambda: (Block("first"), Block("again")))
    y = run(lambda x: (x @ w).sin(), x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert entered == ["first", "first ends, None", *["again", "again ends, None"] * 2]
    with torch.no_grad():
        run(torch.sin, x)
    assert len(entered) == 6

    def fails(x: Tensor) -> Tensor:
        raise Unlucky

    with pytest.raises(RuntimeError, match="has swallowed an error of the function"):
        checkpoint_saved(fails, x, context_fn=lambda: (Block("deaf", True), Block("again")))


def test_what_surrounds_a_checkpoint_may_move_its_arguments(inputs: Inputs) -> None:
    x, w = inputs
    with save_on_cpu():
        y = checkpoint_saved(two_results, x * 1, w)[0]
    expected = torch.autograd.grad(two_results(x, w)[0].sum(), [x, w])
    assert_equal(list(torch.autograd.grad(y.sum(), [x, w])), list(expected))


def together(layer: nn.MultiheadAttention, x: Tensor) -> Tensor:
    y: Tensor = checkpoint_saved(layer, x, x, value=x, need_weights=False)[0]
    return y


@pytest.mark.parametrize("around", ["nothing", "save_on_cpu", "a checkpoint"])
def test_an_argument_that_is_given_twice_is_one_tensor_in_the_second_run(around: str) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 3, 8, requires_grad=True)
    # If its arguments are one object, attention projects them by one product.
    expected = torch.autograd.grad(layer(x, x, value=x, need_weights=False)[0].sum(), x)
    with save_on_cpu() if around == "save_on_cpu" else contextlib.nullcontext():
        y = checkpoint_saved(together, layer, x) if around == "a checkpoint" else together(layer, x)
    assert_equal(list(torch.autograd.grad(y.sum(), x)), list(expected))


def test_an_argument_that_is_given_twice_is_kept_once_and_named_twice(inputs: Inputs) -> None:
    x, w = inputs
    y, kept = x * 1, []
    run = partial(checkpoint_saved, lambda a, b: a @ b["deep"] @ w, y, b={"deep": y})
    with saved_tensors_hooks(kept.append, lambda _: y):
        run()
    assert len(kept) == 1
    result = run()
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(CheckpointError, match=CHANGED.format(r"\[0\], argument \['b'\]\['deep'\]")):
        result.sum().backward()


def test_a_tensor_of_inference_mode_is_refused_by_autograd_with_what_to_do(inputs: Inputs) -> None:
    x, _ = inputs
    with torch.inference_mode():
        mask = torch.ones(4)
    with pytest.raises(RuntimeError, match=r"Inference tensors cannot be saved for backward.*make a clone"):
        checkpoint_saved(lambda x, mask: (x + mask).sin(), x, mask)
    module = nn.Linear(4, 4)
    with torch.inference_mode():
        module.bias = nn.Parameter(torch.ones(4), requires_grad=False)
    assert checkpoint_saved(module, x).sum().backward() is None


def test_two_threads_may_go_backward_through_one_checkpoint(inputs: Inputs) -> None:
    x, w = inputs
    running, overlaps = threading.Semaphore(1), []

    def function(x: Tensor) -> Tensor:
        # A second run inside of the first would find the semaphore taken.
        overlaps.append(not running.acquire(blocking=False))
        for _ in range(200):
            x = (x @ w).sin()
        running.release()
        return x

    y = checkpoint_saved(function, x, early_stop=False).sum()
    expected = torch.autograd.grad(y, x, retain_graph=True)[0]
    found: list[Tensor] = []

    def go() -> None:
        found.append(torch.autograd.grad(y, x, retain_graph=True)[0])

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(overlaps)
    assert all(torch.equal(one, expected) for one in found)
    assert len(found) == 2


class Answer:
    """No container that PyTorch knows of."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def test_a_result_may_be_any_object(inputs: Inputs) -> None:
    x, w = inputs
    answer = checkpoint_saved(lambda x: Answer((x @ w).sin()), x)
    found = torch.autograd.grad(answer.tensor.sum(), [x, w])
    assert_equal(list(found), list(torch.autograd.grad((x @ w).sin().sum(), [x, w])))


# Dual numbers make PyTorch load decompositions that it has scripted.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_forward_mode_derivatives_are_refused() -> None:
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(3), torch.ones(3))
        with pytest.raises(NotImplementedError, match="jvp"):
            checkpoint_saved(torch.sin, dual)
