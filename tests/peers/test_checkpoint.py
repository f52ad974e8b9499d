"""What PyTorch promises of its checkpoints holds for these: any program, every way to go backward, and
afterwards no memory, no hook and no number of a generator is left changed.

The behaviour is that of PyTorch's own tests of `torch.utils.checkpoint`; the code is not.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from book.toys import assert_all_equal
from shardbook import CheckpointError, checkpoint, checkpoint_sequential

aten = torch.ops.aten
Run = Callable[..., Any]


def plain(function: Run, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def nested(function: Run, *args: Any, **kwargs: Any) -> Any:
    return checkpoint(lambda *a, **k: checkpoint(function, *a, **k), *args, **kwargs)


def thrice(function: Run, *args: Any, **kwargs: Any) -> Any:
    return checkpoint(partial(nested, function), *args, **kwargs)


def reentrant_inside(function: Run, *args: Any, **kwargs: Any) -> Any:
    def inner(*a: Any, **k: Any) -> Any:
        return checkpoint(function, *a, use_reentrant=True, **k)

    return checkpoint(inner, *args, use_reentrant=True, **kwargs)


def policy_of_torch(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = (aten.mm.default, aten.addmm.default, aten.sin.default)
    return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE


RUNS: dict[str, Run] = {
    "default": checkpoint,
    "to the end": partial(checkpoint, early_stop=False),
    "debug": partial(checkpoint, determinism_check="debug"),
    "nested": nested,
    "thrice": thrice,
    "selective": partial(checkpoint, policy=[aten.mm, aten.addmm, aten.sin]),
    "all kept": partial(checkpoint, policy=lambda *_, **__: CheckpointPolicy.PREFER_SAVE),
    "selective by torch": partial(
        checkpoint, context_fn=partial(create_selective_checkpoint_contexts, policy_of_torch)
    ),
    "selective inside": lambda f, *a, **k: checkpoint(
        lambda *b, **c: checkpoint(f, *b, policy=[aten.mm, aten.sin], **c), *a, **k
    ),
}
REENTRANT: dict[str, Run] = {
    "reentrant": partial(checkpoint, use_reentrant=True),
    "nested reentrant": reentrant_inside,
}


# Programs. Each takes two tensors that require gradients.


class Double(torch.autograd.Function):
    """Looks at its saved tensors by itself, and needs one of two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        return (
            gradient * y if ctx.needs_input_grad[0] else None,
            gradient * x if ctx.needs_input_grad[1] else None,
        )


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def simple(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y).sin().exp() * x


def several(x: Tensor, y: Tensor) -> dict[str, Any]:
    return {"a": x.sin() * y, "nothing": None, "number": 3, "pair": Pair(y.exp(), x @ y), "list": [x.cos()]}


def keywords(x: Tensor, y: Tensor, *, more: Any = None) -> Tensor:
    return x * y if more is None else (x * more["z"]).sin() @ y


def unused(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin().cos(), (x @ x).exp()


def without_gradient_inside(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        scale = (x @ y).abs().amax()
    return (x / scale).sin() @ y


def with_a_custom_function(x: Tensor, y: Tensor) -> Tensor:
    return Double.apply(x.sin(), Double.apply(x, y.detach()))  # type: ignore[no-any-return]


def in_place(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z.mul_(y).sin_()
    z[0] = y[1]
    z.view(-1)[3:].add_(1.0)
    return z.exp()


def views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = (x * y).sin()
    return z.t() @ x, z[1:], *z.unbind()


def random(x: Tensor, y: Tensor) -> Tensor:
    z = F.dropout(x.sin(), 0.3) @ y
    return z * torch.rand_like(z) + F.dropout(z, 0.5)


def asks_for_gradients(x: Tensor, y: Tensor) -> Tensor:
    z = (x * y).sin().sum()
    (gradient,) = torch.autograd.grad(z, x, create_graph=True)
    return gradient * y


def branches(x: Tensor, y: Tensor) -> Tensor:
    z = x
    for number in range(3):
        z = checkpoint(simple, z, y) if number % 2 else z.sin() * y
    return z


PROGRAMS: list[Run] = [
    simple,
    several,
    partial(keywords, more={"z": torch.full((3, 3), 0.5)}),
    unused,
    without_gradient_inside,
    with_a_custom_function,
    in_place,
    views,
    random,
    asks_for_gradients,
    branches,
]
# Autograd is off in the first run of a reentrant checkpoint, and its result is made of pytrees.
NOT_REENTRANT = (asks_for_gradients,)


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.rand(3, 3, requires_grad=True), torch.rand(3, 3, requires_grad=True)


def leaves(result: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def outcome(run: Run, program: Run, backward: str, autocast: bool = False) -> list[Tensor | None]:
    x, y = inputs()
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        results = leaves(run(program, x, y))
    loss = sum((result.float() * result.float()).sum() for result in results if result.requires_grad)
    assert isinstance(loss, Tensor)
    if backward == "backward":
        loss.backward()
        found = [x.grad, y.grad]
    elif backward == "twice":
        loss.backward(retain_graph=True)
        loss.backward()
        found = [x.grad, y.grad]
    elif backward == "inputs":
        loss.backward(inputs=[x])
        found = [x.grad, y.grad]
    elif backward == "grad":
        found = list(torch.autograd.grad(loss, [x, y], allow_unused=True))
    else:
        first = torch.autograd.grad(loss, x, create_graph=True)[0]
        found = [first, *torch.autograd.grad(first.sin().sum(), [x, y], allow_unused=True)]
    return [*results, *found, torch.get_rng_state()]


@pytest.mark.cases(now=118, ci=119)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: getattr(p, "__name__", "with_keywords"))
@pytest.mark.parametrize("name", [*RUNS, *REENTRANT])
def test_every_program_has_the_gradients_of_the_plain_one(name: str, program: Run) -> None:
    if name in REENTRANT and program in NOT_REENTRANT:
        return
    run = {**RUNS, **REENTRANT}[name]
    for autocast in (False, True):
        expected = outcome(plain, program, "backward", autocast)
        assert_all_equal(outcome(run, program, "backward", autocast), expected)


@pytest.mark.cases(now=2, ci=2)
@pytest.mark.parametrize("name", RUNS)
def test_every_way_to_go_backward_is_as_plain(name: str) -> None:
    for program in PROGRAMS:
        for backward in ("twice", "inputs", "grad", "double"):
            if backward == "twice" and name == "selective by torch":
                continue  # PyTorch hands out what it keeps once
            if backward == "double" and name == "selective by torch":
                continue
            if backward == "double" and program is with_a_custom_function:
                continue
            expected = outcome(plain, program, backward)
            assert_all_equal(outcome(RUNS[name], program, backward), expected)


@pytest.mark.parametrize("name", REENTRANT)
def test_a_reentrant_checkpoint_goes_back_twice_and_refuses_the_rest(name: str) -> None:
    for program in (simple, views, random):
        assert_all_equal(outcome(REENTRANT[name], program, "twice"), outcome(plain, program, "twice"))
    for backward in ("grad", "inputs", "double"):
        with pytest.raises(RuntimeError, match=r"cannot pass torch.autograd.grad|create_graph=True"):
            outcome(REENTRANT[name], simple, backward)


def hooks_are_gone() -> bool:
    """Whether autograd saves tensors as they are."""
    x = torch.ones(1, requires_grad=True)
    return bool((x * x).grad_fn._saved_self is x)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", [*RUNS, *REENTRANT])
@pytest.mark.parametrize("when", ["forward", "recomputation"])
def test_an_error_passes_through_and_leaves_nothing_behind(name: str, when: str) -> None:
    run, calls = {**RUNS, **REENTRANT}[name], [0]

    def fails(x: Tensor, y: Tensor) -> Tensor:
        calls[0] += 1
        z = (x @ y).sin()
        if calls[0] > (0 if when == "forward" else 1):
            raise KeyError("mine")
        return z.exp()

    x, y = inputs()
    state, depth = torch.get_rng_state(), torch.is_grad_enabled()
    with pytest.raises(KeyError, match="mine"):
        run(fails, x, y).sum().backward()
    assert hooks_are_gone()
    assert torch.is_grad_enabled() is depth
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", RUNS)
def test_inputs_without_gradients_and_detached_results(name: str) -> None:
    weight = torch.full((3, 3), 0.5, requires_grad=True)
    x = torch.rand(3, 3)
    for run in (plain, RUNS[name]):
        weight.grad = None
        first, second = run(lambda x: ((x @ weight).sin(), (x @ weight).detach()), x)
        assert not second.requires_grad
        first.sum().backward()
        assert weight.grad is not None
    frozen = RUNS[name](torch.sin, x)
    assert frozen.grad_fn is None
    with torch.no_grad():
        assert RUNS[name](simple, *inputs()).grad_fn is None


def test_a_reentrant_checkpoint_warns_where_nothing_will_get_a_gradient() -> None:
    linear = nn.Linear(3, 3)
    with pytest.warns(UserWarning, match="None of the inputs has requires_grad=True"):
        assert not checkpoint(linear, torch.rand(3, 3), use_reentrant=True).requires_grad


@pytest.mark.cases(now=4, ci=4)
@pytest.mark.parametrize("name", [*RUNS, *REENTRANT])
def test_nothing_stays_in_memory(name: str) -> None:
    """Neither arguments nor recomputed tensors, and no garbage collector is needed."""
    run, made = {**RUNS, **REENTRANT}[name], list[weakref.ref[Any]]()

    def function(x: Tensor) -> Tensor:
        for _ in range(3):
            x = x.sin()
            made.append(weakref.ref(x))
        return x.exp()

    gc.collect()
    gc.disable()
    try:
        leaf = torch.rand(4, requires_grad=True)
        given = leaf * 2
        made.append(weakref.ref(given))
        result = run(function, given)
        alive = [one() is not None for one in made[1:]]
        if name != "all kept" and "selective" not in name:
            assert not any(alive), alive
        result.sum().backward()
        del given, result
        assert [one() for one in made if one() is not None] == []
        # The same if no backward pass ever comes.
        result = run(function, leaf * 2)
        del result
        assert [one() for one in made if one() is not None] == []
    finally:
        gc.enable()


def test_hooks_run_as_often_as_the_function() -> None:
    linear, log = nn.Linear(3, 3), list[str]()
    linear.register_forward_pre_hook(lambda *_: log.append("before"))
    linear.register_forward_hook(lambda *_: log.append("after"))
    linear.register_full_backward_hook(lambda *_: log.append("backward"))
    x = torch.rand(3, 3, requires_grad=True)
    gradients = list[Tensor]()

    def function(x: Tensor) -> Tensor:
        y = linear(x).sin()
        y.register_hook(gradients.append)
        return y.exp()

    for run, expected in (
        (plain, ["before", "after", "backward"]),
        (checkpoint, ["before", "after", "before", "after", "backward"]),
    ):
        log.clear()
        gradients.clear()
        run(function, x).sum().backward()
        assert log == expected
        assert len(gradients) == 1


def test_what_a_node_has_saved_can_be_read() -> None:
    x, y = inputs()
    for run in (plain, *(RUNS[name] for name in RUNS if name != "selective by torch")):
        result = run(lambda x, y: (x * y).exp(), x, y)
        node = result.grad_fn
        assert torch.equal(node._saved_result, result)
        product = node.next_functions[0][0]
        assert torch.equal(product._saved_self, x)
        assert torch.equal(torch.autograd.grad(result.sum(), x)[0], y * result)


@pytest.mark.parametrize("name", RUNS)
def test_hooks_around_a_checkpoint_see_its_arguments(name: str) -> None:
    seen = list[torch.Size]()

    def keep(tensor: Tensor) -> Tensor:
        seen.append(tensor.shape)
        return tensor

    x, y = inputs()
    with saved_tensors_hooks(keep, lambda tensor: tensor), save_on_cpu():
        result = RUNS[name](simple, x, y)
    assert_all_equal(
        list(torch.autograd.grad(result.sum(), [x, y])),
        list(torch.autograd.grad(simple(x, y).sum(), [x, y])),
    )
    assert len(seen) <= 2


def test_a_run_that_differs_is_torchs_error() -> None:
    calls = iter(range(10))

    def shorter(x: Tensor) -> Tensor:
        return x.sin().exp().cos() if next(calls) == 0 else x.sin()

    def other(x: Tensor) -> Tensor:
        return x.sin() if next(calls) == 0 else x.double().sin().float()

    for function in (shorter, other):
        calls = iter(range(10))
        x = torch.rand(3, requires_grad=True)
        with pytest.raises(torch.utils.checkpoint.CheckpointError) as raised:
            checkpoint(function, x).sum().backward()
        assert isinstance(raised.value, CheckpointError)


def test_several_threads_go_backward_at_once() -> None:
    def backward(number: int) -> None:
        try:
            x = torch.full((5,), float(number), requires_grad=True)
            y = checkpoint(lambda x: (x * x).sin().exp(), x)
            y.sum().backward()
            z = torch.full((5,), float(number), requires_grad=True)
            (z * z).sin().exp().sum().backward()
            found.append((number, x.grad, z.grad))
        except BaseException as error:
            found.append((number, error, None))

    found: list[tuple[int, Any, Any]] = []
    threads = [threading.Thread(target=backward, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, one, other in found:
        assert isinstance(one, Tensor), (number, one)
        assert torch.equal(one, other), number
    assert len(found) == 4


@pytest.mark.parametrize("name", [*RUNS, *REENTRANT])
def test_generators_may_be_left_alone(name: str) -> None:
    x, _ = inputs()
    run = {**RUNS, **REENTRANT}[name]
    if "nested" in name or name in ("thrice", "selective inside", "debug"):
        return
    torch.manual_seed(1)
    result = run(lambda x: x * torch.rand(3, 3), x, preserve_rng_state=False)
    kept = torch.get_rng_state()
    result.sum().backward()
    # The recomputation has drawn from the generator as it found it, if it came as far.
    assert name != "to the end" or not torch.equal(torch.get_rng_state(), kept)


def test_the_device_of_new_tensors_is_that_of_the_forward_pass() -> None:
    made = list[torch.device]()

    def function(x: Tensor) -> Tensor:
        made.append(torch.empty(0).device)
        return x.sin()

    x = torch.rand(3, requires_grad=True)
    with torch.device("meta"):
        result = checkpoint(function, x)
    result.sum().backward()
    assert made == [torch.device("meta")] * 2


def test_a_subclass_of_tensor_stays_one() -> None:
    kinds = list[type]()

    def function(x: Tensor) -> Tensor:
        kinds.append(type(x))
        return x.sin().exp()

    for run in (plain, checkpoint, nested):
        x = TwoTensor(torch.rand(3), torch.rand(3)).requires_grad_()
        run(function, x).sum().backward()
        assert type(x.grad) is TwoTensor
        assert torch.equal(x.grad.a, x.a.cos() * x.a.sin().exp())
    assert set(kinds) == {TwoTensor}


@pytest.mark.parametrize("segments", [1, 2, 3, 5])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_chain_in_segments(segments: int, use_reentrant: bool) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 4), nn.ReLU()]
    found = []
    for functions in (None, layers, nn.Sequential(*layers), [partial(plain, layer) for layer in layers]):
        torch.manual_seed(1)
        x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
        for layer in layers:
            layer.zero_grad()
        if functions is None:
            y = nn.Sequential(*layers)(x)
        else:
            y = checkpoint_sequential(functions, segments, x, use_reentrant=use_reentrant)
        y.sum().backward()
        weights = [p.grad for layer in layers for p in layer.parameters()]
        found.append([y, x.grad, *weights])
    for one in found[1:]:
        assert_all_equal(one, found[0])


# Selective checkpoints.


def counted(function: Run, x: Tensor, op: Any, **options: Any) -> tuple[int, Tensor]:
    """How often an operation runs in the backward pass."""
    from book.checkpointing.test_saved_tensors import Count

    y = checkpoint(function, x, **options)
    with Count() as count:
        (gradient,) = torch.autograd.grad(y.sum(), x)
    return count.ran[str(op)], gradient


def two_products(x: Tensor) -> Tensor:
    return ((x @ x).sigmoid() @ x).sigmoid() * x


def alternate(number: Iterator[int]) -> Run:
    """Keeps every second product."""

    def policy(op: Any, *args: Any, **kwargs: Any) -> bool:
        return op is aten.mm.default and next(number) % 2 == 0

    return policy


def test_a_policy_chooses_each_call_by_itself() -> None:
    x, _ = inputs()
    expected = torch.autograd.grad(two_products(x).sum(), x)[0]
    # A product is two in the backward pass. Of the forward pass those run again that were not kept.
    for policy, again in ((lambda *_: True, 0), (alternate(iter(range(2))), 1), (lambda *_: False, 2)):
        ran, gradient = counted(two_products, x, aten.mm.default, policy=policy)
        assert ran == 4 + again
        assert torch.equal(gradient, expected)


def test_what_is_kept_and_then_changed_is_refused() -> None:
    x, _ = inputs()
    for policy in ([aten.sin], lambda op, *_: CheckpointPolicy.MUST_SAVE):
        with pytest.raises(RuntimeError, match=r"writes over the result of aten.sin"):
            checkpoint(lambda x: x.sin().mul_(2).exp(), x, policy=policy)
    kept, y = checkpoint(lambda x: (z := x.sin(), z.cos()), x, policy=[aten.sin])
    with torch.no_grad():
        kept.mul_(2)
    with pytest.raises(RuntimeError, match="was changed in place after the checkpointed function"):
        y.sum().backward()


def test_a_kept_mask_and_one_that_is_drawn_again() -> None:
    expected = outcome(plain, lambda x, y: random(x, y), "backward")
    for keep in (0, 1):
        count = iter(range(10))

        def policy(op: Any, *_: Any, keep: int = keep, count: Iterator[int] = count, **__: Any) -> bool:
            return op is aten.native_dropout.default and next(count) == keep

        found = outcome(partial(checkpoint, policy=policy), lambda x, y: random(x, y), "backward")
        assert_all_equal(found, expected)


def test_a_policy_sees_a_function_that_asks_for_gradients_once() -> None:
    x, _ = inputs()
    y = checkpoint(lambda x: asks_for_gradients(x, x), x, policy=[aten.sin, aten.cos])
    expected = torch.autograd.grad(asks_for_gradients(x, x).sum(), x)[0]
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], expected)
