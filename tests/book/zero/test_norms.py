"""Norms and losses in FP32, inputs, outputs and buffers: what modules and functions of a 16-bit model see."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ranks
from book.toys import assert_equal, whole_gradients
from shardbook.checkpointing import checkpointing
from shardbook.foundations.hook_context import map_tensors
from shardbook.foundations.torch_private import NEWER_LOSSES
from shardbook.zero.policy import LOSSES, NORM_FUNCTIONS, NORMS, InFP32, widen

BF16, FP32 = torch.bfloat16, torch.float32
WIDTH = 8


class OwnNorm(nn.Module):
    """A norm that calls no function of the tables."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == self.scale.dtype == FP32
        return self.scale * x / x.square().mean(-1, keepdim=True).sqrt()


Wrap = Callable[..., Any]


def plainly(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


class Block(nn.Module):
    """Norms as modules and as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.own = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), OwnNorm()
        self.inside: Wrap = plainly

        self.computed: Callable[[Tensor], Tensor] = functional_norm

    def forward(self, x: Tensor) -> Tensor:
        x = self.own(self.norm(self.linear(x)))
        return x + self.inside(self.computed, x)


def functional_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,)).square()


class FunctionalNorm(nn.Module):
    """A module that is no unit and holds no parameter."""

    def forward(self, x: Tensor) -> Tensor:
        return functional_norm(x)


class Model(nn.Module):
    def __init__(self, around: Wrap = plainly) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 5)
        self.around = around

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.around(block, x)
        loss = F.cross_entropy(self.head(x), target)
        assert loss.dtype == FP32
        return loss


def data(rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(6, WIDTH, generator=generator), torch.arange(6) % 5


def by_hand(model: Model, x: Tensor, target: Tensor) -> Tensor:
    """The same with every cast written down. The model's parameters are in FP32."""

    def low(linear: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(x, linear.weight.to(BF16), linear.bias.to(BF16))

    x = x.to(BF16)
    for block in model.blocks:
        x = block.norm(low(block.linear, x).float()).to(BF16)
        x = block.own(x.float()).to(BF16)
        x = x + F.layer_norm(x.float(), (WIDTH,)).to(BF16).square()
    return F.cross_entropy(low(model.head, x).float(), target)


def sharded(model: Model, stage: int = 3, **options: Any) -> Model:
    from shardbook import Policy, shard

    policy = Policy(param_dtype=BF16, fp32_modules=(*NORMS, OwnNorm), **options)
    return shard(model, stage=stage, units=Block, policy=policy)


def expected() -> tuple[float, dict[str, Tensor]]:
    """This rank's loss, and the mean gradients of two ranks in the dtypes in which they travel."""
    losses, gradients = [], []
    for rank in range(2):
        model = Model()
        loss = by_hand(model, *data(rank))
        loss.backward()
        losses.append(loss.item())
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    mean = {}
    for name, one in gradients[0].items():
        wire = FP32 if "norm" in name or "own" in name else BF16
        # The gradient of a cast weight came back through the cast, so it has 16 bits already.
        mean[name] = ((one + gradients[1][name]) / 2).to(wire).float()  # type: ignore[operator]
    return losses[dist.get_rank()], mean


reentrant = partial(checkpoint, use_reentrant=True)
otherwise = partial(checkpoint, use_reentrant=False)
first, second = (partial(checkpointing.checkpoint, use_reentrant=kind) for kind in (True, False))
WAYS = [
    *((plainly, plainly), (otherwise, plainly), (reentrant, second), (second, plainly), (plainly, first)),
    # A plain function in PyTorch's reentrant checkpoint.
    (plainly, reentrant),
]
# PyTorch's checkpoint of a module that is no unit.
MODULES = [(plainly, reentrant), (plainly, otherwise), (otherwise, plainly)]


def norms_and_losses_are_in_fp32() -> None:
    loss, gradients = expected()
    for stage, (modular, around, inside) in product(
        range(4), [*[(False, *ways) for ways in WAYS], *[(True, *ways) for ways in MODULES]]
    ):
        model = Model(around)
        for block in model.blocks:
            block.inside = inside
            if modular:
                block.computed = FunctionalNorm()
        sharded(model, stage)
        x, target = data(dist.get_rank())
        # A reentrant checkpoint is one only for what needs a gradient.
        found = model(x.requires_grad_(around is reentrant), target)
        found.backward()
        assert found.item() == loss
        assert_equal(whole_gradients(model), gradients)


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


class Measure(nn.Module):
    """A part without parameters, so that it can be called alone."""

    def forward(self, x: Tensor) -> Tensor:
        return F.mse_loss(x, x)


def a_function_that_torch_runs_again_has_no_rule() -> None:
    """Unless it is reentrant. The chapter says so, and what comes of it: an error."""
    model = sharded(Model())
    model.blocks[1].inside = otherwise
    loss = model(*data(0))
    error = torch.utils.checkpoint.CheckpointError
    with pytest.raises(error, match=r"different metadata|different number"):
        loss.backward()


def without_the_tables_everything_is_in_16_bits() -> None:
    from shardbook import Policy, shard

    seen = []
    empty = Policy(param_dtype=BF16, fp32_modules=(), fp32_norms=(), fp32_losses=())
    model = shard(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)), policy=empty, units=())
    model[1].register_forward_pre_hook(lambda module, args: seen.append((module.weight.dtype, args[0].dtype)))
    y = model(data(0)[0])
    assert seen == [(BF16, BF16)]
    assert y.dtype == BF16


def a_hook_of_the_program_is_inside_of_the_rule() -> None:
    """Also one that was registered before sharding: on the model, a unit, and a part that runs again."""
    seen: list[torch.dtype] = []

    def measure(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        narrow = args[0].to(BF16)
        seen.append(F.mse_loss(narrow, narrow).dtype)

    model = Model()
    model.register_forward_pre_hook(measure)
    block = model.blocks[1]
    block.computed, block.inside = FunctionalNorm(), otherwise
    for module in (block, block.computed):
        module.register_forward_pre_hook(measure)
    sharded(model)(*data(0)).backward()
    assert seen == [FP32] * 4


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        x = self.linear(x)
        if depth:
            x = self(x, depth - 1)
        assert F.mse_loss(x, x).dtype == FP32
        return x


def a_model_that_calls_itself_keeps_the_rule() -> None:
    from shardbook import Policy, shard

    shard(Recursive(), policy=Policy(param_dtype=BF16))(data(0)[0]).sum().backward()


def nothing_stays_in_force() -> None:
    """After a pass, after an exception in a pass, in another thread, and for a part that is called alone."""
    x = torch.ones(2, WIDTH, dtype=BF16)
    model = Model()
    model.blocks[0].measure = Measure()
    # PyTorch ends a second run, of a module here, by an exception as soon as it has what it needs.
    model.blocks[1].computed, model.blocks[1].inside = FunctionalNorm(), otherwise
    sharded(model)
    assert model.blocks[0].measure(x).dtype == BF16
    with pytest.raises(IndexError):
        model(*data(0)[:1], torch.full((6,), 99))
    assert F.mse_loss(x, x).dtype == BF16
    model(*data(0)).backward()
    assert F.mse_loss(x, x).dtype == BF16
    # An interrupt runs no hooks. The next pass makes up for it.
    hook = model.blocks[1].linear.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(*data(0))
    hook.remove()
    model(*data(0)).backward()
    assert F.mse_loss(x, x).dtype == BF16
    rule = InFP32(NORM_FUNCTIONS, LOSSES)
    rule.enter()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(F.mse_loss, x, x).result().dtype == BF16
    assert F.mse_loss(x, x).dtype == FP32
    # A rule inside of itself is the same rule.
    rule.enter()
    rule.leave()
    assert F.mse_loss(x, x).dtype == FP32
    rule.leave()
    assert F.mse_loss(x, x).dtype == BF16


class Passes(nn.Module):
    """Returns what it was given, and notes the dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.register_buffer("table", torch.arange(3) / 7)
        self.register_buffer("counts", torch.arange(3))
        self.seen: list[Any] = []

    def forward(self, x: Tensor, *, more: dict[str, list[Tensor]]) -> Any:
        self.seen = [x.dtype, *(value.dtype for value in more["list"])]
        return {"y": self.linear(x), "more": more["list"]}


def inputs_and_outputs_are_cast() -> None:
    from shardbook import Policy, shard

    numbers = torch.arange(3)
    for cast, out in product((True, False), (None, FP32)):
        policy = Policy(param_dtype=BF16, cast_inputs=cast, output_dtype=out)
        model = shard(Passes(), policy=policy)
        x = torch.randn(2, WIDTH, dtype=FP32 if cast else BF16, requires_grad=True)
        result = model(x, more={"list": [torch.ones(1, dtype=torch.float64), numbers]})
        other = BF16 if cast else torch.float64
        assert model.seen == [BF16, other, torch.int64]
        assert result["y"].dtype == (out or BF16)
        assert [value.dtype for value in result["more"]] == [out or other, torch.int64]
        result["y"].sum().backward()
        assert x.grad is not None
        assert x.grad.dtype == x.dtype
        assert x.grad.any()


def buffers_are_cast() -> None:
    from shardbook import Policy, shard

    plain, model = Passes(), Passes()
    buffers = dict(model.named_buffers())
    shard(model, policy=Policy(buffer_dtype=BF16))
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    dtypes = {name: buffer.dtype for name, buffer in model.named_buffers()}
    assert dtypes["table"] == BF16
    # Those of a norm, and numbers, stay.
    assert dtypes == {name: buffer.dtype for name, buffer in plain.named_buffers()} | {"table": BF16}
    state = model.state_dict()
    assert {name: value.dtype for name, value in state.items()} == {
        name: value.dtype for name, value in plain.state_dict().items()
    }
    assert torch.equal(state["table"], plain.table.to(BF16).float())
    model.load_state_dict({**state, "table": state["table"] * 3})
    assert torch.equal(model.table, (state["table"] * 3).to(BF16))
    # Under each of its names.
    model = Passes()
    model.linear.register_buffer("again", model.table)
    state = shard(model, policy=Policy(buffer_dtype=BF16)).state_dict()
    assert state["table"].dtype == state["linear.again"].dtype == FP32


CASES = [
    norms_and_losses_are_in_fp32,
    a_function_that_torch_runs_again_has_no_rule,
    without_the_tables_everything_is_in_16_bits,
    a_hook_of_the_program_is_inside_of_the_rule,
    a_model_that_calls_itself_keeps_the_rule,
    nothing_stays_in_force,
    inputs_and_outputs_are_cast,
    buffers_are_cast,
]


def each_case(number: int) -> None:
    torch.manual_seed(0)
    CASES[number]()


@pytest.mark.cases(now=1, ci=3)
@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.__name__ for case in CASES])
def test_on_two_ranks(number: int) -> None:
    ranks.run(2, each_case, number, timeout=120)


def test_a_norm_writes_its_running_mean_where_it_stands() -> None:
    """Also where that is in 16 bits and the norm computes in FP32."""
    x = torch.randn(5, 3)
    mean, variance = torch.zeros(3, dtype=BF16), torch.ones(3, dtype=BF16)
    rule = InFP32(NORM_FUNCTIONS, LOSSES)
    for named in (False, True):
        wide, wider = mean.float(), variance.float()
        y = F.batch_norm(x.to(BF16).float(), wide, wider, training=True).to(BF16)
        before = mean.clone()
        rule.enter()
        given = (x.to(BF16),) if named else (x.to(BF16), mean, variance)
        more = {"running_mean": mean, "running_var": variance} if named else {}
        found = F.batch_norm(*given, **more, training=True)
        rule.leave()
        assert torch.equal(found, y)
        assert torch.equal(mean, wide.to(BF16))
        assert torch.equal(variance, wider.to(BF16))
        assert not torch.equal(mean, before)

    # The same functions as C++ has them take their arguments in another order.
    expected = F.batch_norm(x.to(BF16).float(), mean.float(), variance.float(), training=True).to(BF16)
    rule.enter()
    found = torch.batch_norm(x.to(BF16), None, None, mean, variance, True, 0.1, 1e-5, False)
    rule.leave()
    assert torch.equal(found, expected)
    assert not torch.equal(mean, wide.to(BF16))


def test_a_norm_gives_back_the_dtype_of_its_input() -> None:
    """And not that of a weight: whoever widens a tensor by hand wants FP32."""
    rule, x, weight = InFP32(NORM_FUNCTIONS, LOSSES), torch.randn(2, 3), torch.ones(3, dtype=BF16)
    rule.enter()
    assert torch.equal(F.layer_norm(x, (3,), weight), F.layer_norm(x, (3,)))
    named = F.layer_norm(normalized_shape=(3,), weight=weight, input=x.to(BF16))
    assert torch.equal(named, F.layer_norm(x.to(BF16).float(), (3,)).to(BF16))
    rule.leave()


def test_the_tables_have_every_loss_and_every_norm_of_torch() -> None:
    for space, words in ((F, ("loss", "entropy", "kl_div", "norm")), (torch, ("loss", "entropy", "kl_div"))):
        for name in dir(space):
            if any(word in name for word in words) and callable(getattr(space, name)):
                # Private names and those of one vendor's kernels are for PyTorch itself.
                listed = name not in ELSEWHERE and not name.startswith(("_", "cudnn_", "miopen_"))
                assert (getattr(space, name) in (*NORM_FUNCTIONS, *LOSSES)) == listed, name


# Imported into the module by another name.
ELSEWHERE: tuple[str, ...] = ()


ROUNDS_IN_BETWEEN: tuple[Callable[..., Tensor], ...] = (
    *(F.log_softmax, torch.log_softmax, Tensor.log_softmax, torch.logsumexp, Tensor.logsumexp),
    *(torch.logcumsumexp, Tensor.logcumsumexp, torch.cumsum, Tensor.cumsum),
    *(torch.cumprod, Tensor.cumprod, torch.prod, Tensor.prod),
)
ROUNDS_ONCE: tuple[Callable[..., Tensor], ...] = (
    *(F.softmax, torch.softmax, Tensor.softmax, torch.sum, Tensor.sum, torch.mean, Tensor.mean),
    *(torch.var, Tensor.var, torch.std, partial(torch.linalg.vector_norm, dim=-1), F.softmin),
)


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_long_sums_are_rounded_once(dtype: torch.dtype) -> None:
    """With a rule for those that need one; the kernels of the others add up in FP32 without any."""
    torch.manual_seed(0)
    x = (1 + torch.randn(4, 1000) / 100).to(dtype)

    def called(function: Callable[..., Tensor], x: Tensor) -> Tensor:
        return function(x) if isinstance(function, partial) else function(x, -1)

    for function in (*ROUNDS_IN_BETWEEN, *ROUNDS_ONCE):
        exact = called(function, x.float()).to(dtype)
        with InFP32(NORM_FUNCTIONS, LOSSES):
            found = called(function, x)
        assert torch.equal(found, exact), function
        assert (function in NORM_FUNCTIONS) == (function in ROUNDS_IN_BETWEEN)
    # Without a rule each step of a product is rounded.
    off = x.prod(-1).float() / x.float().prod(-1) - 1
    assert off.abs().max() > 0.005


def test_a_caller_that_names_a_dtype_gets_it() -> None:
    x, out = torch.ones(8, dtype=BF16), torch.zeros(8, dtype=BF16)
    with InFP32(NORM_FUNCTIONS, LOSSES):
        assert x.cumsum(0, dtype=torch.float64).dtype == torch.float64
        assert F.log_softmax(x, 0, dtype=FP32).dtype == FP32
        assert torch.cumsum(x, 0, out=out) is out
    assert out[-1] == 8


class Hundreds(nn.Linear):
    """Adds up 4000 hundreds."""

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = (super().forward(x) * 0 + 100).expand(4000, -1).sum()
        return total


def sums_in_fp16() -> None:
    from shardbook import Policy, shard

    tables: Any = {}, {"fp32_losses": (*LOSSES, torch.sum, Tensor.sum)}
    for options, expected in zip(tables, (float("inf"), 400_000.0), strict=True):
        model = shard(Hundreds(1, 1), policy=Policy(param_dtype=torch.float16, **options))
        assert model(torch.ones(1, 1)).item() == expected


def test_a_sum_in_fp16_ends_where_fp16_does_unless_a_table_names_it() -> None:
    ranks.run(2, sums_in_fp16)


@pytest.mark.skipif(not NEWER_LOSSES, reason="PyTorch has it from 2.13 on")
def test_linear_cross_entropy_is_a_loss() -> None:
    rule, target = InFP32(NORM_FUNCTIONS, LOSSES), torch.arange(16)
    x, weight = torch.randn(16, WIDTH, dtype=BF16), torch.randn(20, WIDTH, dtype=BF16)
    rule.enter()
    loss = F.linear_cross_entropy(x, weight, target)
    rule.leave()
    assert torch.equal(loss, F.linear_cross_entropy(x.float(), weight.float(), target))


class Writes(nn.Module):
    """Leaves something in each of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.own = nn.Linear(WIDTH, WIDTH), Collects()

    def forward(self, x: Tensor, cache: Any, more: dict[str, Any]) -> Tensor:
        x = self.own(self.linear(x), more["own"])
        cache.append(x)
        more["inside"]["x"] = x
        return x


class Collects(OwnNorm):
    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:  # type: ignore[override]
        cache.append(x)
        return super().forward(x)


@dataclass(frozen=True)
class Pair:
    x: Any
    cache: list[Tensor]


class TakesPairs(Writes):
    def forward(self, pair: Pair) -> Pair:  # type: ignore[override]
        more: dict[str, Any] = {"own": [], "inside": {}}
        return Pair(super().forward(pair.x, pair.cache, more), pair.cache)


class Answer:
    """An object of no class that PyTorch knows."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


class GivesAnObject(nn.Linear):
    def forward(self, x: Tensor) -> Answer:  # type: ignore[override]
        return Answer(super().forward(x))


def arguments_are_written_to() -> None:
    from shardbook import Policy, shard

    policy = Policy(param_dtype=BF16, fp32_modules=(*NORMS, OwnNorm), output_dtype=FP32)
    x, kept = torch.randn(2, WIDTH), torch.ones(1, dtype=BF16)
    cache, more = [kept], {"own": [], "inside": {}}
    shard(Writes(), policy=policy)(x, cache, more)
    assert len(cache) == 2
    assert cache[0] is kept
    assert more["inside"]["x"] is cache[1]
    assert [value.dtype for value in more["own"]] == [FP32]
    cache = []
    pair = shard(TakesPairs(), policy=policy)(Pair(x, cache))
    assert pair.x.dtype == FP32
    assert [value.dtype for value in cache] == [BF16]
    assert shard(GivesAnObject(WIDTH, WIDTH), policy=policy)(x).x.dtype == FP32


def test_what_a_model_leaves_in_its_arguments_reaches_the_caller_and_dataclasses_are_cast() -> None:
    ranks.run(2, arguments_are_written_to)


def test_only_what_changes_is_copied() -> None:
    low, empty, full = torch.ones(1, dtype=BF16), [], [torch.ones(1)]
    given = ([low], empty, full, {"a": Pair(low, full)}, Pair(None, full), Unset())
    found = map_tensors(widen, given)
    assert [new is old for new, old in zip(found, given, strict=True)] == [
        False,
        True,
        True,
        False,
        True,
        True,
    ]
    assert found[0] == [low.float()]
    assert found[3]["a"] == Pair(low.float(), full)
    assert map_tensors(widen, given[1:3]) == given[1:3]
    assert map_tensors(widen, Pair) is Pair


def test_what_was_changed_is_free_at_once() -> None:
    given = [(torch.ones(2, dtype=BF16), Pair(torch.ones(3, dtype=BF16), []))]
    old = [weakref.ref(given[0][0]), weakref.ref(given[0][1].x)]
    gc.collect()
    gc.disable()
    try:
        found = map_tensors(widen, given)
        new = [weakref.ref(found[0][0]), weakref.ref(found[0][1].x)]
        del given, found
        assert [reference() for reference in (*old, *new)] == [None] * 4
    finally:
        gc.enable()


@dataclass
class Unset:
    """A field that nobody has set."""

    x: Any = field(init=False)


def compiled() -> None:
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
    loss, gradients = expected()
    for stage, backend in ((3, "eager"), (3, "aot_eager"), (1, "aot_eager")):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = sharded(Model(), stage)
        for block in model.blocks:
            block.compile(backend=backend, fullgraph=True)
        found = model(*data(dist.get_rank()))
        found.backward()
        assert found.item() == loss
        assert_equal(whole_gradients(model), gradients)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


@pytest.mark.nightly
def test_units_are_compiled_with_the_rule() -> None:
    ranks.run(2, compiled, timeout=200)
