"""The door to checkpointing: options, modules from outside, sharded models, and exact costs."""

from __future__ import annotations

import copy
import gc
import importlib
import inspect
import io
import pickle
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import ranks
from book.toys import assert_equal, batch, chain, error, whole_gradients
from shardbook.checkpointing.checkpointing import Checkpointed, checkpoint, checkpoint_module
from shardbook.checkpointing.determinism import CheckpointError


def gradients(model: nn.Module, step: int = 0) -> dict[str, Tensor]:
    """The gradients of one step on a plain model, with the same random numbers each time."""
    model.zero_grad()
    torch.manual_seed(7)
    error(model, batch(0, step)).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


class Block(nn.Sequential):
    """A unit: what is in it is used together."""


def blocks() -> nn.Sequential:
    """A chain of blocks, of which the third lies in the second."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(16, 8),
        Block(nn.Linear(8, 13), nn.GELU(), nn.Linear(13, 8), nn.Dropout(0.3)),
        Block(nn.Linear(8, 8), Block(nn.Linear(8, 5), nn.GELU(), nn.Linear(5, 8)), nn.Tanh()),
        nn.Linear(8, 16),
    )


def gathers_of(run: Callable[[], None]) -> dict[str, int]:
    """How often each unit fetches its parameters while something runs."""
    from shardbook.zero.unit import Unit

    fetched: dict[str, int] = {}
    original = Unit.fetch

    def fetch(unit: Unit) -> None:
        fetched[unit.name] = fetched.get(unit.name, 0) + 1
        original(unit)

    Unit.fetch = fetch  # type: ignore[method-assign]
    try:
        run()
    finally:
        Unit.fetch = original  # type: ignore[method-assign]
    return fetched


def wide() -> nn.Sequential:
    """Two stages of three units each."""
    torch.manual_seed(0)
    stages = [
        nn.Sequential(*[Block(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(3)])
        for _ in range(2)
    ]
    return nn.Sequential(nn.Embedding(16, 8), *stages, nn.Linear(8, 16))


def is_stage(name: str, module: nn.Module) -> bool:
    return name in ("1", "2")


def is_inside(name: str, module: nn.Module) -> bool:
    return name.count(".") == 2 and not name.endswith(".2")


CALLS = {
    "units": {"units": Block},
    "inside": {"units": is_inside},
    "reentrant": {"units": Block, "use_reentrant": True},
    "around": {"units": is_stage},
    "around, to the end": {"units": is_stage, "early_stop": False},
}


def sharded_and_checkpointed() -> dict[str, list[Any]]:
    """For each way to checkpoint, before and after sharding: are the gradients those without, and the
    fetches of each unit in the second step."""
    from shardbook import shard

    plain = shard(wide(), units=Block)
    for step in range(2):
        error(plain, batch(dist.get_rank(), step)).backward()
    expected = whole_gradients(plain)
    found: dict[str, list[Any]] = {}
    for name, options in CALLS.items():
        found[name] = []
        for first in ("checkpoint", "shard"):
            model = wide()
            if first == "checkpoint":
                checkpoint_module(model, **options)
            shard(model, units=Block)
            if first == "shard":
                checkpoint_module(model, **options)
            for step in range(2):
                data = batch(dist.get_rank(), step)
                fetched = gathers_of(lambda model=model, data=data: error(model, data).backward())
            same = whole_gradients(model)
            equal = [torch.equal(same[key], expected[key]) for key in expected]
            found[name].append((all(equal), fetched))
    return found


@pytest.mark.nightly
def test_both_orders_of_sharding_and_checkpointing_gather_as_often() -> None:
    units = [f"{stage}.{index}" for stage in (1, 2) for index in range(3)]
    twice = {"the root": 2, **dict.fromkeys(units, 2)}
    three_times = {"the root": 2, **dict.fromkeys(units, 3)}
    # The backward pass of the last unit inside of a checkpoint has begun when the second run comes to it.
    around = {**three_times, "1.2": 2, "2.2": 2}
    expected = {
        "units": twice,
        "inside": twice,
        "reentrant": twice,
        "around": around,
        "around, to the end": around,
    }
    for found in ranks.run(2, sharded_and_checkpointed):
        assert found == {name: [(True, counts)] * 2 for name, counts in expected.items()}


@pytest.mark.parametrize("units", [Block, (nn.Linear, Block), lambda name, _: name == "2", None])
def test_modules_compute_the_same_bits_from_outside(units: Any) -> None:
    plain, model = blocks(), blocks()
    assert checkpoint_module(model, units) is model
    expected = gradients(plain)
    assert_equal(gradients(model), expected)
    # Nothing of a module has changed but what it keeps.
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
    assert [n for n, _ in model.named_modules()] == [n for n, _ in plain.named_modules()]


def wrapped(model: nn.Module) -> list[str]:
    return [name for name, m in model.named_modules() if isinstance(vars(m).get("forward"), Checkpointed)]


def test_which_modules_are_chosen() -> None:
    assert wrapped(checkpoint_module(blocks(), Block)) == ["1", "2", "2.1"]
    assert wrapped(checkpoint_module(blocks(), [Block, nn.Embedding])) == ["0", "1", "2", "2.1"]
    assert wrapped(checkpoint_module(blocks())) == ["0", "1", "2", "3"]
    assert wrapped(checkpoint_module(nn.Linear(2, 2))) == [""]
    model = checkpoint_module(blocks(), lambda name, module: name == "2.1")
    assert wrapped(model) == ["2.1"]
    del model[2][1].forward
    assert wrapped(model) == []


def test_a_model_without_such_modules_is_refused() -> None:
    with pytest.raises(ValueError, match=r"units=.*Conv1d.* selects no module; name a class that the model"):
        checkpoint_module(blocks(), nn.Conv1d)
    with pytest.raises(TypeError, match=r"units=3 chooses no modules; pass a class, several classes"):
        checkpoint_module(blocks(), 3)  # type: ignore[arg-type]


def test_a_module_is_checkpointed_once() -> None:
    model = checkpoint_module(blocks(), lambda name, module: name == "2.1")
    with pytest.raises(ValueError, match=r"^2\.1 is checkpointed already; checkpoint a module only once$"):
        checkpoint_module(model, Block)
    # None of the others was touched before the refusal.
    assert wrapped(model) == ["2.1"]
    with pytest.raises(ValueError, match="the root is checkpointed already"):
        checkpoint_module(checkpoint_module(nn.Linear(2, 2)))


class Scale(nn.Module):
    """A module with a weight, a keyword argument, and one that is called as an option is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, *, policy: str = "plus", bias: Tensor | None = None) -> Tensor:
        assert bias is not None
        y = (x * self.weight).sin() * self.weight
        return y + bias if policy == "plus" else y - bias


def copies() -> dict[str, Callable[[nn.Module], nn.Module]]:
    def saved(model: nn.Module) -> nn.Module:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded: nn.Module = torch.load(file, weights_only=False)
        return loaded

    return {
        "copied": copy.deepcopy,
        "pickled": lambda model: pickle.loads(pickle.dumps(model)),
        "saved": saved,
    }


@pytest.mark.parametrize("copied", copies().values(), ids=copies())
def test_a_copy_computes_with_its_own_weights(copied: Callable[[nn.Module], nn.Module]) -> None:
    model = checkpoint_module(nn.Sequential(Scale()), Scale, early_stop=False)
    twin = copied(model)
    assert wrapped(twin) == ["0"]
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(5)
    x, bias = torch.ones(3, requires_grad=True), torch.zeros(3)
    for one, weight in ((model, 1.0), (twin, 5.0)):
        y = one[0](x, bias=bias)
        assert torch.equal(y, torch.full((3,), weight).sin() * weight)
        y.sum().backward()
    assert all(
        not torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )
    options = vars(twin[0])["forward"].options
    assert options == vars(model[0])["forward"].options
    assert not options.early_stop


def shallow(module: nn.Module) -> nn.Module:
    twin = copy.copy(module)
    twin._parameters = dict(module._parameters)
    return twin


def replica(module: nn.Module) -> nn.Module:
    """What `nn.DataParallel` makes of a module, for each of its devices."""
    twin: nn.Module = module._replicate_for_data_parallel()
    twin.bias = None
    return twin


@pytest.mark.parametrize("compiler", [False, True])
@pytest.mark.parametrize("copied", [shallow, replica])
def test_a_shallow_copy_computes_with_its_own_weights(
    copied: Callable[[nn.Module], nn.Module], compiler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler:
        importlib.import_module("torch._dynamo")
    else:
        monkeypatch.setattr("shardbook.checkpointing.segment.compiler_is_loaded", lambda: False)
    module = checkpoint_module(nn.Linear(2, 2, bias=False))
    twin, weight = copied(module), torch.full((2, 2), 5.0, requires_grad=True)
    twin.weight = nn.Parameter(weight) if copied is shallow else weight
    y = nn.Sequential(twin)(torch.ones(1, 2))
    y.square().sum().backward()
    assert torch.equal(y, torch.full((1, 2), 10.0))
    assert torch.equal(twin.weight.grad, torch.full((2, 2), 20.0))  # type: ignore[arg-type]
    assert module.weight.grad is None
    expected = F.linear(torch.ones(1, 2), module.weight)
    for call in (module, module.forward, lambda x: nn.Sequential.forward(nn.Sequential(module), x)):
        assert torch.equal(call(torch.ones(1, 2)), expected)


class Outer(nn.Module):
    """Calls the `forward` of what is in it, and not the module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.forward(x) + 1


def test_a_direct_call_of_a_forward_belongs_to_its_own_module() -> None:
    model = nn.Sequential(Outer(nn.Tanh()))
    checkpoint_module(model, (Outer, nn.Tanh))
    assert wrapped(model) == ["0", "0.inner"]
    x = torch.ones(3, requires_grad=True)
    y = model(x)
    assert torch.equal(y, x.tanh() + 1)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 1 - x.detach().tanh() ** 2)


def test_a_model_that_goes_frees_its_parameters_at_once() -> None:
    gc.collect()
    gc.disable()
    try:
        model = checkpoint_module(nn.Sequential(Scale()), Scale)
        model[0](torch.ones(3), bias=torch.zeros(3)).sum().backward()
        weight, forward = weakref.ref(model[0].weight), model[0].forward
        del model
        assert weight() is None
    finally:
        gc.enable()
    with pytest.raises(ReferenceError, match="the module of this checkpointed forward is gone"):
        forward(torch.ones(3))


def test_a_forward_that_was_set_on_the_object_is_checkpointed_and_comes_back() -> None:
    module = nn.Linear(2, 2)
    module.forward = lambda x: x * 3  # type: ignore[method-assign,assignment]
    before = module.forward
    checkpoint_module(module)
    x = torch.ones(2, requires_grad=True)
    module(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 3.0))
    module.forward = module.forward.__wrapped__  # type: ignore[attr-defined,method-assign]
    assert module.forward is before


class Static(nn.Module):
    """Its `forward` is not bound to it, and yet is called by it."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()


def test_a_forward_that_is_no_method_is_checkpointed_as_it_is() -> None:
    x = torch.ones(2, requires_grad=True)
    model = checkpoint_module(Static())
    for module in (model, copy.deepcopy(model), copy.copy(model)):
        assert torch.equal(torch.autograd.grad(module(x).sum(), x)[0], x.cos())


# The compiler looks at `grad` of each tensor that enters a frame.
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_module_that_is_compiled_is_checkpointed_all_the_same() -> None:
    torch.manual_seed(0)
    found = []
    for way in ("plain", "around", "by itself"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        if way != "plain":
            checkpoint_module(model, nn.Linear)
        if way == "by itself":
            for module in model:
                module.compile(backend="aot_eager")
        run = torch.compile(model, backend="aot_eager") if way == "around" else model
        x = torch.ones(3, 4, requires_grad=True)
        run(x).sum().backward()
        found.append([x.grad, *[parameter.grad for parameter in model.parameters()]])
    torch.compiler.reset()
    for gradients in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients, found[0], strict=True))


class Named(nn.Module):
    """Its arguments have the names of options, and of what a checkpoint calls the function."""

    def forward(self, x: Tensor, policy: Tensor, context_fn: int = 0, function: int = 0) -> Tensor:
        return (x * policy.sin()).exp() * (1 + context_fn + function)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_tensor_under_the_name_of_an_option_is_an_argument_as_any_other(use_reentrant: bool) -> None:
    module = checkpoint_module(Named(), use_reentrant=use_reentrant)
    x, policy = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    module(x, policy=policy * 1, context_fn=1, function=2).sum().backward()
    found = (x.grad, policy.grad)
    x.grad = policy.grad = None
    Named()(x, policy * 1, 1, 2).sum().backward()
    for gradient, expected in zip(found, (x.grad, policy.grad), strict=True):
        assert gradient is not None
        assert torch.equal(gradient, expected)
    y = module(x, policy=(changed := policy * 1), function=2)
    with torch.no_grad():
        changed.zero_()
    with pytest.raises(RuntimeError, match=r"changed in place before|modified by an inplace operation"):
        y.sum().backward()
    # Without a tensor that requires a gradient but the one of this name.
    module(torch.ones(3), policy=policy * 1).sum().backward()
    assert torch.equal(checkpoint(Named(), x, policy, function=2), Named()(x, policy, 0, 2))


def test_a_checkpointed_module_takes_what_it_took_before() -> None:
    plain, model = Scale(), checkpoint_module(Scale())
    assert inspect.signature(model.forward) == inspect.signature(plain.forward)
    x, bias = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    for policy in ("plus", "minus"):
        found, expected = model(x, policy=policy, bias=bias), plain(x, policy=policy, bias=bias)
        assert torch.equal(found, expected)
        for one, other in zip(
            torch.autograd.grad(found.sum(), [x, bias]),
            torch.autograd.grad(expected.sum(), [x, bias]),
            strict=True,
        ):
            assert torch.equal(one, other)


def test_hooks_of_a_module_run_once() -> None:
    model, calls = (
        checkpoint_module(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), lambda name, _: name == "0"),
        [],
    )
    model[0].register_forward_hook(lambda *_: calls.append("after"))
    model[0].register_forward_pre_hook(lambda *_: calls.append("before"))
    model(torch.ones(2, 3)).sum().backward()
    # Around the module the second run does not pass. Inside of it, it would.
    assert calls == ["before", "after"]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_both_variants_give_torchs_bits(use_reentrant: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.4), nn.Linear(16, 8))
    results = []
    for run in (checkpoint, torch.utils.checkpoint.checkpoint):
        for autocast in (False, True):
            net.zero_grad()
            torch.manual_seed(1)
            x = torch.randn(4, 8, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y = run(net, x, use_reentrant=use_reentrant)
            y.sum().backward()
            results.append([y.detach(), x.grad, *[p.grad.clone() for p in net.parameters()]])  # type: ignore[union-attr]
    for found, expected in zip(results[:2], results[2:], strict=True):
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"determinism_check": "strict"},
            "determinism_check='strict' is not a level; choose one of 'default',",
        ),
        ({"use_reentrant": True, "early_stop": False}, "early_stop=False needs the tensors one by one"),
        ({"use_reentrant": True, "policy": []}, r"policy=\[\] needs the tensors one by one, and a reentrant"),
        ({"use_reentrant": True, "determinism_check": "none"}, "leave out use_reentrant=True"),
        (
            {"policy": [], "determinism_check": "debug"},
            "a policy hands out what it gave before; leave out one",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused_at_once(options: dict[str, Any], said: str) -> None:
    model = blocks()
    for call in (partial(checkpoint, torch.sin, torch.ones(1)), partial(checkpoint_module, model, Block)):
        with pytest.raises(ValueError, match=said):
            call(**options)
    assert wrapped(model) == []


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'early'"):
        checkpoint_module(blocks(), Block, early=True)


def test_what_a_policy_saves_does_not_run_again() -> None:
    from book.checkpointing.test_saved_tensors import Count

    net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Tanh())
    x = torch.randn(4, 8, requires_grad=True)
    ran, found = [], []
    for policy in (None, [torch.ops.aten.addmm]):
        y = checkpoint(net, x, policy=policy)
        with Count() as count:
            found.append(torch.autograd.grad(y.sum(), x)[0])
        ran.append(count.ran["aten.addmm.default"])
    assert ran == [2, 0]
    assert torch.equal(*found)


def flops(run: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_the_price_is_one_more_forward_pass_and_nothing_is_saved_but_the_arguments() -> None:
    from book.checkpointing.test_saved_tensors import Storages

    depth, width, rows = 6, 16, 4
    torch.manual_seed(0)
    net = nn.Sequential(
        *[nn.Sequential(nn.Linear(width, width, bias=False), nn.Tanh()) for _ in range(depth)]
    )
    product = 2 * rows * width * width
    saved, spent = {}, {}
    for name, run in {
        "plain": lambda x: net(x),
        "whole": partial(checkpoint, net, early_stop=False),
        "early": partial(checkpoint, net),
        "reentrant": partial(checkpoint, net, use_reentrant=True),
    }.items():
        x = torch.randn(rows, width, requires_grad=True)
        with Storages(x, *net.parameters()) as storages:
            y = run(x)
        saved[name] = sum(storages.alive) - y.nbytes
        spent[name] = flops(lambda x=x, y=y: y.sum().backward())
        assert flops(lambda run=run, x=x: run(x)) == depth * product
    one = 4 * rows * width
    # Each tanh saves its result, which is the input of the next layer; the last is the result itself.
    assert saved == {"plain": (depth - 1) * one, "whole": 0, "early": 0, "reentrant": 0}
    # A layer's backward pass is two products. The tanh at the end saves its result, so to the last
    # tensor it is one whole forward pass, with early stop and without.
    backward, forward = 2 * depth * product, depth * product
    assert spent == {
        "plain": backward,
        "whole": backward + forward,
        "early": backward + forward,
        "reentrant": backward + forward,
    }
    # A linear layer at the end saves what it reads, and its product is left out.
    y = checkpoint(nn.Sequential(net, net[0][0]), x)
    again = depth * product
    assert flops(lambda: y.sum().backward()) == backward + 2 * product + again


def python_calls(run: Callable[[], Any]) -> int:
    calls = [0]

    def count(frame: Any, event: str, arg: Any) -> None:
        calls[0] += event == "call"

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls[0]


def sines(x: Tensor, number: int) -> Tensor:
    for _ in range(number):
        x = x.sin()
    return x


def test_only_the_reentrant_variant_calls_nothing_for_each_tensor() -> None:
    x = torch.ones(3, requires_grad=True)
    calls = {
        (reentrant, number): python_calls(
            lambda r=reentrant, n=number: checkpoint(sines, x, n, use_reentrant=r).sum().backward()
        )
        for reentrant in (False, True)
        for number in (10, 10, 30)
    }
    assert calls[True, 10] == calls[True, 30]
    assert calls[False, 30] - calls[False, 10] >= 20 * 4


def test_only_the_reentrant_variant_lets_the_second_run_save_other_tensors() -> None:
    runs: list[int] = []

    def square(x: Tensor) -> Tensor:
        runs.append(1)
        return x * x if len(runs) % 2 else x**2

    x = torch.ones(3, requires_grad=True)
    checkpoint(square, x, use_reentrant=True).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    with pytest.raises(CheckpointError, match="The forward pass saved 2 tensors, it saved 1"):
        checkpoint(square, x).sum().backward()


def test_only_the_other_variant_needs_no_input_with_a_gradient() -> None:
    net, x = nn.Linear(3, 3), torch.ones(2, 3)
    with pytest.warns(UserWarning, match="None of the inputs has requires_grad=True"):
        y = checkpoint(net, x, use_reentrant=True)
    assert not y.requires_grad
    checkpoint(net, x).sum().backward()
    assert net.weight.grad is not None


def test_a_running_mean_moves_in_both_runs() -> None:
    moved = []
    for run in (checkpoint, torch.utils.checkpoint.checkpoint):
        norm = nn.BatchNorm1d(3)
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
        run(lambda x, norm=norm: norm(x).sin(), x, use_reentrant=False).sum().backward()
        moved.append(norm.running_mean)
        assert norm.num_batches_tracked == 2
    assert torch.equal(*moved)


def test_a_tensor_from_the_surroundings_is_right_and_is_kept_by_the_function() -> None:
    x = torch.ones(3, requires_grad=True)
    outside = x.sin()
    y = checkpoint(lambda x: (x * outside).cos(), x)
    (found,) = torch.autograd.grad(y.sum(), x)
    (expected,) = torch.autograd.grad((x * x.sin()).cos().sum(), x)
    assert torch.equal(found, expected)


def test_without_gradients_nothing_is_kept() -> None:
    net = checkpoint_module(chain())
    with torch.no_grad():
        y = net(batch(0, 0)[0])
    assert y.grad_fn is None
    assert F.cross_entropy(y.flatten(0, 1), batch(0, 0)[1].flatten()).isfinite()


# The compiler looks at `grad` of each tensor that enters a frame.
@pytest.mark.cases(now=0, ci=1)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_computes_the_same_inside_and_around_compiled_code(use_reentrant: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.Tanh())
    x = torch.randn(3, 4, requires_grad=True)
    inside = torch.compile(net, backend="aot_eager")
    run = partial(checkpoint, use_reentrant=use_reentrant)
    found = {}
    for name, function in {
        "plain": lambda x: net(x * 2).sin(),
        "around": torch.compile(lambda x: run(net, x * 2).sin(), backend="aot_eager"),
        "inside": lambda x: run(inside, x * 2).sin(),
    }.items():
        net.zero_grad()
        x.grad = None
        function(x).sum().backward()
        found[name] = [x.grad, *[parameter.grad for parameter in net.parameters()]]
    for name in ("around", "inside"):
        assert all(torch.equal(a, b) for a, b in zip(found[name], found["plain"], strict=True))
    torch.compiler.reset()
