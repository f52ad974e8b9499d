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
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import ranks
from book.toys import assert_equal, plain_gradients, reference_step, whole_gradients


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


@pytest.mark.parametrize("world_size", [1, 2])
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
    model, _ = alone(lambda block, x: SimpleNamespace(weight=block.linear.weight.t(), y=block.linear(x)))
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


CASES = [
    a_change_in_place_raises,
    nothing_stays_after_a_leak,
    two_backward_passes,
    weights_of_a_later_step_are_refused,
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
