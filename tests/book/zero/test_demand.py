"""Tensors that leave a unit on other ways than as its result: their backward pass reads weights, too.

A unit is announced by what it returns. What a module leaves in an attribute, a list or a closure has a
backward pass that nothing announces. Each such program is compared with plain training, bit for bit.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import ranks
from book.toys import assert_equal, plain_gradients, reference_step, whole_gradients
from tiers import rows

pytestmark = pytest.mark.full


class Leaks(nn.Module):
    """A block that leaves tensors behind which no result leads to.

    :param what: which tensors it leaves
    """

    def __init__(self, what: str, width: int = 6) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.what, self.left = what, []

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        result: Tensor = x + self.outer(hidden.tanh())
        weight = self.inner.weight
        self.left = {
            "square": lambda: [weight.square().sum()],
            "sum": lambda: [weight.sum()],
            "hidden": lambda: [hidden],
            "sine": lambda: [hidden.sin()],
            "nothing": list,
        }[self.what]()
        return result


class Model(nn.Module):
    def __init__(self, what: str, use: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)
        self.blocks = nn.ModuleList(Leaks(what) for _ in range(2))
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.last(x)
        return result

    def loss(self, rank: int) -> Tensor:
        loss: Tensor = self(torch.full((3, 4), 0.1 * (rank + 1))).square().mean()
        left = [tensor for block in self.blocks for tensor in block.left]  # type: ignore[union-attr]
        extra = sum((tensor.square().mean() for tensor in left), torch.zeros(()))
        return {"added": loss + extra, "alone": extra, "first": extra + loss}[self.use]


def train_alike(build: Callable[[], Any], stage: int, steps: int = 2) -> None:
    """Some steps of SGD end with the gradients and values of the plain model."""
    from shardbook import shard

    rank, members = dist.get_rank(), range(dist.get_world_size())
    plain = build()
    sharded = shard(build(), stage=stage, units=Leaks)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (plain, sharded)]
    for _ in range(steps):
        reference_step(plain, [[partial(plain.loss, each) for each in members]])
        sharded.loss(rank).backward()
        assert_equal(whole_gradients(sharded), plain_gradients(plain))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def what_is_left_behind() -> None:
    for what in ("square", "sum", "hidden", "sine"):
        for use in ("added", "alone", "first"):
            for stage in range(4):
                try:
                    train_alike(partial(Model, what, use), stage)
                except AssertionError as error:
                    raise AssertionError(f"{what} {use} at stage {stage}: {error}") from error


@pytest.mark.nightly
@pytest.mark.parametrize("world_size", rows([1, 2], now=[2]))
def test_what_a_unit_leaves_behind_has_the_gradients_of_plain_training(world_size: int) -> None:
    ranks.run(world_size, what_is_left_behind)


class Block(nn.Module):
    """A unit whose forward pass is a function of the test."""

    def __init__(self, compute: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(4, 4)
        self.compute = compute
        self.left: Any = None

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x)


def alone(compute: Callable[[Any, Tensor], Any]) -> Any:
    """A sharded model of one unit, and its plain twin."""
    from shardbook import shard

    return shard(nn.Sequential(Block(compute)), units=Block), nn.Sequential(Block(compute))


def leave_square(block: Any, x: Tensor) -> Tensor:
    block.left = block.linear.weight.square().sum()
    return block.linear(x)


def same_gradients(sharded: nn.Module, plain: nn.Module) -> None:
    assert_equal(whole_gradients(sharded), plain_gradients(plain))


def hooks_in_force() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


INPUT = torch.linspace(-1, 1, 12).view(3, 4)


def a_change_in_place_raises() -> None:
    def changed(block: Any, x: Tensor) -> Tensor:
        y = block.linear(x).exp()
        return y.mul_(2)

    for model in alone(changed):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            model(INPUT).sum().backward()


def nothing_stays_after_a_leak() -> None:
    """Neither the tensors nor the model wait for the garbage collector."""
    gc.disable()
    model, _ = alone(leave_square)
    model(INPUT).sum().backward()
    model[0].left.backward()
    model[0].left = None
    x = INPUT.clone().requires_grad_()
    input_ = weakref.ref(x)
    model(x)
    model[0].left = None
    del x
    assert input_() is None, "its input"
    gc.enable()
    # The module keeps the graph of what it left. The graph must not keep the module.
    model(INPUT)
    module = weakref.ref(model)
    del model
    gc.collect()
    assert module() is None, "the model"


def two_backward_passes() -> None:
    models = alone(leave_square)
    for model in models:
        loss = model(INPUT).sum() + model[0].left
        loss.backward(retain_graph=True)
        model[0].left.backward(retain_graph=True)
        loss.backward()
    same_gradients(*models)


def weights_of_a_later_step_are_refused() -> None:
    for stage in range(4):
        from shardbook import shard

        model = shard(nn.Sequential(Block(leave_square)), units=Block, stage=stage)
        model(INPUT).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        with pytest.raises(RuntimeError, match="0: parameters were changed between"):
            model[0].left.backward()


def new_data_for_a_freed_weight_are_refused() -> None:
    kept: list[nn.Parameter] = []
    model, _ = alone(lambda block, x: kept.append(block.linear.weight) or block.linear(x))
    model(INPUT)
    kept[0].data = torch.zeros_like(kept[0])
    with pytest.raises(RuntimeError, match=r"0.linear.weight in unit 0 has left its shard"):
        model(INPUT)


def reading_a_node_is_refused() -> None:
    model, _ = alone(lambda block, x: block.linear(x).sin())
    y = model(INPUT.clone().requires_grad_())
    assert torch.isfinite(y.grad_fn._saved_self).all()
    linear = y.grad_fn.next_functions[0][0]
    with pytest.raises(RuntimeError, match="0: a view of its weights is read after"):
        linear._saved_mat2  # noqa: B018


def an_interrupt_leaves_no_hooks() -> None:
    def interrupted(block: Any, x: Tensor) -> Tensor:
        if block.left is True:
            raise KeyboardInterrupt
        return leave_square(block, x)

    sharded, plain = alone(interrupted)
    for around in (nullcontext, save_on_cpu):
        for caught_inside in (False, True):
            for model in (sharded, plain):
                model.zero_grad()
            sharded[0].left = True
            inner = suppress(KeyboardInterrupt) if caught_inside else nullcontext()
            with suppress(KeyboardInterrupt), around(), inner:
                sharded(INPUT)
            for model in (sharded, plain):
                model[0].left = None
                (model(INPUT).sum() + model[0].left).backward()
            same_gradients(sharded, plain)
            assert hooks_in_force() is None, f"{around} {caught_inside}"


def an_error_leaves_no_hooks() -> None:
    model, _ = alone(lambda block, x: block.linear(x.double()))
    with pytest.raises(RuntimeError, match="dtype"):
        model(INPUT)
    assert hooks_in_force() is None


def hooks_around_the_model_still_work() -> None:
    seen: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor.numel())
        return tensor.detach()

    models = alone(leave_square)
    counts = []
    for model in models:
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model(INPUT).sum() + model[0].left
        loss.backward()
        counts.append(list(seen))
        seen.clear()
    assert counts[0] == counts[1]
    same_gradients(*models)


def checkpoints_inside_and_around() -> None:
    from shardbook import checkpoint as ours

    variants: list[Callable[..., Any]] = [
        ours,
        partial(torch_checkpoint, use_reentrant=False),
        partial(torch_checkpoint, use_reentrant=True),
    ]
    for number, run in enumerate(variants):

        def inside(block: Any, x: Tensor, run: Any = run) -> Tensor:
            hidden = run(lambda z: block.linear(z).tanh(), x)
            block.left = hidden.square().sum() + block.linear.weight.square().sum()
            return hidden + x

        models = alone(inside)
        for model in models:
            x = INPUT.clone().requires_grad_()
            y = model(x)
            (y.square().sum() + model[0].left).backward()
        same_gradients(*models)
        if number == 2:
            continue  # a reentrant checkpoint forgets what is left behind, in plain models, too
        models = alone(leave_square)
        for model in models:
            y = run(model, INPUT.clone().requires_grad_())
            (y.square().sum() + model[0].left).backward()
        same_gradients(*models)


def a_fresh_thread() -> None:
    def compute(block: Any, x: Tensor) -> Tensor:
        return block.linear(block.linear(x).tanh())

    models = alone(compute)
    for model in models:
        x = INPUT.clone().requires_grad_()
        for _ in range(20):
            x = x * 1.01
        with ThreadPoolExecutor(1) as pool:
            y = pool.submit(model, x).result()
        (y * 2).sum().backward()
    same_gradients(*models)


def micro_batches_without_an_exchange() -> None:
    from shardbook import no_sync

    sharded, plain = alone(leave_square)
    for model in (sharded, plain):
        for last in (False, True):
            with nullcontext() if last or model is plain else no_sync(sharded):
                (model(INPUT).sum() + model[0].left).backward()
    same_gradients(sharded, plain)


def gathered_in_sixteen_bits() -> None:
    from shardbook import Policy, shard

    found = []
    for leak in (leave_square, lambda block, x: (block.linear(x), block.linear.weight.square().sum())):
        model = shard(nn.Sequential(Block(leak)), units=Block, policy=Policy(param_dtype=torch.bfloat16))
        y = model(INPUT)
        y, left = y if isinstance(y, tuple) else (y, model[0].left)
        (left.float() + y.float().sum()).backward()
        found.append(whole_gradients(model))
    assert_equal(*found)


def frozen_weights() -> None:
    from shardbook import shard

    models = []
    for change in (partial(shard, units=Block), lambda model: model):
        model = nn.Sequential(
            nn.Linear(4, 4), Block(lambda block, x: setattr(block, "left", block.linear(x)) or x)
        )
        model[1].linear.weight.requires_grad_(False)
        models.append(change(model))
    for model in models:
        model(INPUT)
        model[1].left.square().sum().backward()
    same_gradients(*models)


class Result:
    """What a model returns, as an object that is no container."""

    def __init__(self, weight: Tensor, y: Tensor) -> None:
        self.weight, self.y = weight, y


def a_kept_view_is_refused() -> None:
    def through(keep: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Tensor]:
        def compute(block: Any, x: Tensor) -> Tensor:
            keep(block, block.linear.weight)
            return block.linear(x)

        return compute

    ways: list[Callable[[Any, Tensor], Any]] = [
        lambda block, weight: setattr(block, "left", weight.t()),
        lambda block, weight: setattr(block, "left", [{"deep": (weight[:1],)}]),
        lambda block, weight: setattr(block.linear, "left", SimpleNamespace(kept=[weight.detach()])),
        lambda block, weight: setattr(block, "other", weight),
        lambda block, weight: setattr(block, "left", [weight]),
    ]
    for number, way in enumerate(ways):
        model, _ = alone(through(way))
        with pytest.raises(
            RuntimeError, match=r"0 keeps a view of its weights in the attribute '(left|other)'"
        ):
            model(INPUT)
        assert hooks_in_force() is None, number
    model, _ = alone(lambda block, x: Result(block.linear.weight.t(), block.linear(x)))
    with pytest.raises(RuntimeError, match="in an object that it returns"):
        model(INPUT)
    model, _ = alone(lambda block, x: setattr(block, "left", block.linear.weight.t().clone()))
    model(INPUT)
    assert model[0].left.isfinite().all()


def a_backward_pass_inside_of_a_forward_pass() -> None:
    def compute(block: Any, x: Tensor) -> Tensor:
        block.linear(x).square().sum().backward()
        return block.linear(x)

    models = alone(compute)
    for model in models:
        model(INPUT).sum().backward()
    same_gradients(*models)


def after_a_failed_backward_pass() -> None:
    def leave_sum(block: Any, x: Tensor) -> Tensor:
        block.left = block.linear.weight.sum()
        return block.linear(x)

    models = alone(leave_sum)
    y = models[0](INPUT)
    y.grad_fn.register_hook(lambda *_: (_ for _ in ()).throw(ArithmeticError("in backward")))
    with pytest.raises(ArithmeticError):
        y.sum().backward()
    for model in models:
        model(INPUT)
        model[0].left.backward()
    same_gradients(*models)


def functional_transforms() -> None:
    """PyTorch runs `vmap` under hooks, and refuses derivatives."""
    models = alone(lambda block, x: torch.vmap(block.linear)(x))
    for model in models:
        model(INPUT).square().sum().backward()
    same_gradients(*models)
    model, _ = alone(lambda block, x: torch.func.grad(lambda y: block.linear(y).sum())(x))
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        model(INPUT)
    assert hooks_in_force() is None


CASES = [
    after_a_failed_backward_pass,
    functional_transforms,
    a_change_in_place_raises,
    nothing_stays_after_a_leak,
    two_backward_passes,
    weights_of_a_later_step_are_refused,
    new_data_for_a_freed_weight_are_refused,
    reading_a_node_is_refused,
    an_interrupt_leaves_no_hooks,
    an_error_leaves_no_hooks,
    hooks_around_the_model_still_work,
    checkpoints_inside_and_around,
    a_fresh_thread,
    micro_batches_without_an_exchange,
    gathered_in_sixteen_bits,
    frozen_weights,
    a_kept_view_is_refused,
    a_backward_pass_inside_of_a_forward_pass,
]


def every_case() -> None:
    for case in CASES:
        try:
            case()
        except Exception as error:
            raise AssertionError(f"{case.__name__}: {error}") from error


def test_leaks_meet_everything_else_that_a_program_does() -> None:
    ranks.run(2, every_case)


# Programs that a generator makes up


@dataclass
class Leak:
    """One tensor that a block leaves behind.

    :param what: which tensor
    :param way: where it is left
    :param early: whether before the block computes its result
    :param used: whether the loss uses it
    """

    what: str
    way: str
    early: bool
    used: bool


WHAT: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "hidden": lambda block, x, hidden: hidden,
    "a view of hidden": lambda block, x, hidden: hidden[:, 1:].t(),
    "sine": lambda block, x, hidden: hidden.sin(),
    "square": lambda block, x, hidden: block.inner.weight.square(),
    "sum": lambda block, x, hidden: block.inner.weight.sum(),
    "transposed": lambda block, x, hidden: block.outer.weight.t().tanh(),
    "bias": lambda block, x, hidden: block.outer.bias * 2,
    "both": lambda block, x, hidden: block.outer(block.inner(x).cos()),
    "clone": lambda block, x, hidden: block.inner.weight.clone(),
    "input": lambda block, x, hidden: x * x,
}


@dataclass
class Box:
    held: Any = None


class Slotted:
    __slots__ = ("held", "more")

    def __init__(self, held: Any, more: Any = None) -> None:
        self.held, self.more = held, more


SHELF: list[Tensor] = []


def yielding(tensor: Tensor) -> Any:
    kept = tensor
    while True:
        yield kept


def leave(block: Any, number: int, way: str, tensor: Tensor) -> Callable[[], Tensor]:
    """Leave a tensor behind; returns how to find it."""
    name, place = f"left{number}", len(SHELF)
    if way == "closure":
        return lambda: tensor
    if way == "generator":
        generator = yielding(tensor)
        next(generator)
        return partial(next, generator)
    if way == "global":
        SHELF.append(tensor)
        return lambda: SHELF[place]
    holders: dict[str, tuple[Any, Callable[[Any], Tensor]]] = {
        "attribute": (tensor, lambda held: held),
        "list": ([1, [tensor]], lambda held: held[1][0]),
        "dictionary": ({"a": {"b": tensor}}, lambda held: held["a"]["b"]),
        "object": (SimpleNamespace(a=SimpleNamespace(b=[tensor])), lambda held: held.a.b[0]),
        "dataclass": (Box({"a": tensor}), lambda held: held.held["a"]),
        "slots": (Slotted((tensor,)), lambda held: held.held[0]),
    }
    holder, find = holders[way]
    setattr(block, name, holder)
    return lambda: find(getattr(block, name))


WAYS = ["attribute", "list", "dictionary", "object", "dataclass", "slots", "closure", "generator", "global"]
RETURNS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tensor": (lambda y: y, lambda result: result),
    "object": (lambda y: SimpleNamespace(states=[y]), lambda result: result.states[0]),
    "slots": (lambda y: Slotted(Box(y)), lambda result: result.held.held),
}


@dataclass
class Program:
    """A model of two blocks, and the order of its loss."""

    leaks: list[list[Leak]]
    order: str
    returns: str
    inside: str
    tapped: bool
    frozen: bool


class Leaky(nn.Module):
    """A block that leaves behind what a program says."""

    def __init__(self, program: Program, leaks: list[Leak]) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 5), nn.Linear(5, 4)
        self.program, self.leaks, self.found = program, leaks, []
        self.inner.weight.requires_grad_(not program.frozen)

    def forward(self, x: Tensor) -> Any:
        run: Callable[..., Tensor] = {
            "plain": lambda f, y: f(y),
            "ours": our_checkpoint,
            "torch": partial(torch_checkpoint, use_reentrant=False),
        }[self.program.inside]
        hidden = run(lambda y: self.inner(y).tanh(), x)
        self.found: list[tuple[bool, Callable[[], Tensor]]] = []
        self.put(x, hidden, early=True)
        y = x + self.outer(hidden)
        self.put(x, hidden, early=False)
        return RETURNS[self.program.returns][0](y)

    def put(self, x: Tensor, hidden: Tensor, *, early: bool) -> None:
        for number, leak in enumerate(self.leaks):
            if leak.early is early:
                tensor = WHAT[leak.what](self, x, hidden)
                self.found.append((leak.used, leave(self, number, leak.way, tensor)))


def our_checkpoint(function: Callable[..., Tensor], x: Tensor) -> Tensor:
    from shardbook import checkpoint

    result: Tensor = checkpoint(function, x)
    return result


class Made(nn.Module):
    """The model of a program."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.program, self.taps = program, []
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.blocks = nn.ModuleList(Leaky(program, leaks) for leaks in program.leaks)
        if program.tapped:
            for block in self.blocks:
                block.outer.register_forward_hook(lambda *given: self.taps.append(given[2]))  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = RETURNS[self.program.returns][1](block(x))
        result: Tensor = self.last(x)
        return result

    def losses(self, rank: int) -> list[Tensor]:
        """What is called `backward` on, one after the other."""
        SHELF.clear()
        self.taps = []
        main: Tensor = self(torch.linspace(-1, 1, 6).view(2, 3) + rank).square().mean()
        found = [find() for block in self.blocks for used, find in block.found if used]  # type: ignore[union-attr]
        found = [tensor for tensor in [*found, *self.taps] if tensor.requires_grad]
        if not found:
            return [main]
        extra = sum((tensor.square().mean() for tensor in found), torch.zeros(()))
        return {
            "sum": [main + extra],
            "the leaks alone": [extra],
            "leaks first": [extra, main],
            "leaks last": [main, extra],
        }[self.program.order]


LEAKS = st.builds(
    Leak, st.sampled_from(list(WHAT)), st.sampled_from(WAYS), early=st.booleans(), used=st.booleans()
)
PROGRAMS = st.builds(
    Program,
    st.tuples(st.lists(LEAKS, max_size=3), st.lists(LEAKS, min_size=1, max_size=2)).map(list),
    st.sampled_from(["sum", "the leaks alone", "leaks first", "leaks last"]),
    st.sampled_from(list(RETURNS)),
    st.sampled_from(["plain", "ours", "torch"]),
    st.booleans(),
    st.booleans(),
)


def trains_alike(program: Program, stage: int) -> None:
    """Two steps of a program, sharded, have the gradients of plain training."""
    from shardbook import shard

    plain, sharded = Made(program), shard(Made(program), units=Leaky, stage=stage)
    members = range(dist.get_world_size())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (plain, sharded)]
    for _ in range(2):
        passes = range(len(plain.losses(0)))
        reference_step(
            plain, [[lambda i=i, each=each: plain.losses(each)[i] for each in members] for i in passes]
        )
        losses = sharded.losses(dist.get_rank())
        for loss in losses:
            loss.backward(retain_graph=loss is not losses[-1])
        same_gradients(sharded, plain)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    SHELF.clear()


def made_up_programs(examples: int) -> None:
    # Every rank makes up the same programs.
    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(PROGRAMS, st.integers(0, 3))
    def check(program: Program, stage: int) -> None:
        trains_alike(program, stage)

    check()


@pytest.mark.nightly
@pytest.mark.parametrize(("world_size", "examples"), rows([(1, 60), (2, 40)], now=[(1, 60)]))
def test_leaks_that_a_generator_makes_up_change_nothing(world_size: int, examples: int) -> None:
    ranks.run(world_size, made_up_programs, examples)
