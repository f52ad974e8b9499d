"""Parameters that are read outside of the hooks: refused on every rank where they are slices, and right
where they are whole.
"""

from __future__ import annotations

import copy
import io
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from book.toys import assert_equal, plain_gradients, reference_step, whole_gradients
from book.zero.test_transformers import library

Block = Callable[[nn.Module], AbstractContextManager[None]]


class Tower(nn.Module):
    """A unit with a second method, and with a module inside of it that a program may call by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.inner(x))
        return y

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.inner(x))


class Pair(nn.Module):
    """Two towers and a scale that only the loss reads, as in CLIP."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Tower(), Tower()
        self.logit_scale = nn.Parameter(torch.tensor(0.7))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

        self.inside: Block | None = None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.inside is not None:
            with self.inside(self.right):
                x = x + self.right.features(x)
        return self.left(x), self.right(x)


def pair() -> Pair:
    torch.manual_seed(0)
    return Pair()


def data(rank: int, step: int = 0) -> Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))


@contextmanager
def refused(*words: str, kind: type[Exception] = RuntimeError, what: Any = "") -> Iterator[None]:
    """What is done in the block ends in an error that says these words."""
    said = None
    try:
        yield
    except kind as error:
        said = str(error)
    assert said is not None, f"{what}: no {kind.__name__} on rank {dist.get_rank()}"
    missing = [word for word in words if word not in said]
    assert not missing, f"{what}: {said} does not say {missing}"


READS: dict[str, tuple[str, Callable[[Pair, Tensor], Any]]] = {
    "exp": ("logit_scale of unit the root", lambda m, x: m.logit_scale.exp() * (x @ x.T)),
    "a method": ("left.inner.", lambda m, x: m.left.features(x)),
    "a submodule": ("right.inner.", lambda m, x: m.right.inner(x)),
    "a norm layer": ("right.norm.", lambda m, x: m.right.norm(x)),
    "embedding": ("left.inner.weight", lambda m, x: F.embedding(torch.tensor([0, 1]), m.left.inner.weight)),
    "left operand": ("left.inner.weight", lambda m, x: m.left.inner.weight @ x.T),
    "right operand": ("left.inner.weight", lambda m, x: x @ m.left.inner.weight),
    "transposed": ("left.inner.weight", lambda m, x: x @ m.left.inner.weight.mT),
    "two slices": ("left.inner.", lambda m, x: m.left.inner.weight @ m.right.norm.weight),
    "an index": ("left.inner.weight", lambda m, x: m.left.inner.weight[0]),
    "a loop": ("left.inner.weight", lambda m, x: list(m.left.inner.weight)),
    "reshaped": ("left.inner.weight", lambda m, x: m.left.inner.weight.reshape(6, 6)),
    "a number": ("logit_scale", lambda m, x: m.logit_scale.item()),
    "a condition": ("logit_scale", lambda m, x: bool(m.logit_scale > 0)),
    "the largest": ("left.inner.weight", lambda m, x: m.left.inner.weight.max()),
    "joined": ("left.inner.weight", lambda m, x: torch.cat([m.left.inner.weight, m.left.inner.bias])),
    "a vector": ("left.inner.weight", lambda m, x: nn.utils.parameters_to_vector(m.left.parameters())),
    "in place": ("logit_scale", lambda m, x: x.clone().mul_(m.logit_scale)),
    "random": ("left.inner.weight", lambda m, x: nn.init.normal_(m.left.inner.weight)),
    "kaiming": ("left.inner.weight", lambda m, x: nn.init.kaiming_uniform_(m.left.inner.weight)),
    "equal": ("left.inner.weight", lambda m, x: torch.equal(m.left.inner.weight, torch.ones(6, 6))),
}
RECORDED: dict[str, tuple[str, Callable[[Pair, Tensor], Any]]] = {
    "a penalty": ("left.inner.weight", lambda m, x: m.left.inner.weight.square().sum()),
    "a norm": ("left.inner.weight", lambda m, x: m.left.inner.weight.norm()),
    "a scaled slice": ("left.inner.weight", lambda m, x: 2 * m.left.inner.weight),
    "the gradient of slices": (
        "cannot reach logit_scale",
        lambda m, x: torch.autograd.grad(m(x)[0].sum(), list(m.parameters())),
    ),
}


def reads_are_refused() -> None:
    """Every rank raises one sentence that names parameter, unit and way out, with and without gradients."""
    from shardbook import shard

    x = data(0)
    for stage in (1, 2, 3):
        model = shard(pair(), stage=stage, units=Tower)
        for name, (words, read) in {**READS, **RECORDED}.items():
            with refused(words, "unit", what=(stage, name)):
                read(model, x)
        for name, (words, read) in READS.items():
            with torch.no_grad(), refused(words, "unit", what=(stage, name, "no_grad")):
                read(model, x)
        # A refusal leaves nothing behind.
        sum(part.square().sum() for part in model(x)).backward()


def uses_of_slices() -> None:
    """What programs do with slices element by element, and what looks at them, stays as it was."""
    from shardbook import shard

    for stage in (1, 3):
        model = shard(pair(), stage=stage, units=Tower)
        target = shard(pair(), stage=stage, units=Tower)
        x = data(dist.get_rank())
        (model(x)[0].sum() + model(x)[1].square().sum()).backward()
        plain = {name: p.detach().clone() for name, p in model.named_parameters()}
        for name, parameter in model.named_parameters():
            assert isinstance(parameter, nn.Parameter), name
            assert (
                type(parameter.detach().clone()) is type(pickle.loads(pickle.dumps(parameter.data))) is Tensor
            )
            assert type(copy.deepcopy(parameter.data)) is Tensor, name
            assert parameter.shape == parameter.size() == plain[name].shape, name
            assert "Parameter containing" in repr(parameter), name
            assert parameter.to(parameter.device) is parameter, name
            assert type(torch.zeros_like(parameter)) is Tensor, name
            assert type(parameter.new_zeros(2)) is Tensor, name
            assert len(parameter) == parameter.numel(), name
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                follower = target.get_parameter(name)
                follower.mul_(0.5).add_(parameter, alpha=0.5)
                follower.lerp_(parameter, 0.5)
                follower.copy_(parameter)
                follower[...] = parameter
                shadow = parameter.clone()
                shadow.mul_(0.9).add_(plain[name] * 0.1)
                assert torch.allclose(shadow, plain[name]), name
                noise = parameter + 0.01 * torch.randn_like(parameter)
                assert noise.shape == parameter.shape, name
                follower.clamp_(-1, 1)
                assert parameter.norm().item() == plain[name].norm().item(), name
                mask = parameter.abs() > 0.1
                follower[mask] = 0
            parameters = list(model.parameters())
            torch._foreach_mul_(parameters, 2.0)
            torch._foreach_lerp_(parameters, list(plain.values()), 1.0)
            assert len(torch._foreach_norm(parameters)) == len(parameters)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.detach(), plain[name]), name
            parameter.grad = None
        # A sum with what another rank cut elsewhere, and one with a mark that has lost its fit.
        with torch.no_grad(), refused("left.inner", "unit"):
            model.left.inner.weight + model.left.norm.weight
        with torch.no_grad(), refused("logit_scale", "unit"):
            model.logit_scale.exp().clamp(max=9) * x


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
}


def steps_see_plain_parameters() -> None:
    """Inside of a step the slices have the plain class, and afterwards their own, also after an error."""
    from shardbook import shard
    from shardbook.zero.access import Slice

    seen: list[set[type]] = []

    class Watched(torch.optim.SGD):
        fails = False

        def step(self, closure: Any = None) -> Any:
            if closure is not None:
                closure()
            seen.append({type(p) for group in self.param_groups for p in group["params"]})
            if self.fails:
                raise OverflowError("the step fails")
            return super().step()

    model = shard(pair(), units=Tower)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = Watched(trained, lr=0.1)
    x = data(dist.get_rank())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum(part.square().sum() for part in model(x))
        assert isinstance(loss, Tensor)
        loss.backward()
        return loss

    def classes() -> set[type]:
        return {type(p) for p in trained}

    assert classes() == {Slice}
    closure()
    optimizer.step()
    assert seen.pop() == {nn.Parameter}
    assert classes() == {Slice}
    optimizer.step(closure)
    assert seen.pop() == {nn.Parameter}, "the closure's passes put the guard back during the step"
    assert classes() == {Slice}
    optimizer.fails = True
    with refused("the step fails", kind=OverflowError):
        optimizer.step()
    assert classes() == {nn.Parameter}
    model(x)
    assert classes() == {Slice}

    # Whatever else handles an optimizer.
    optimizer.fails = False
    state = optimizer.state_dict()
    torch.save(state, io.BytesIO())
    optimizer.load_state_dict(state)
    copied = copy.deepcopy(optimizer)
    assert {type(p) for group in copied.param_groups for p in group["params"]} == {nn.Parameter}
    for make in OPTIMIZERS.values():
        optimizer = make(trained)
        closure()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        closure()
        optimizer.step()
        assert classes() == {Slice}


def slices_are_not_saved() -> None:
    """A file would hold one rank's slice under the whole parameter's name."""
    from shardbook import shard

    model = shard(pair(), units=Tower)
    saved: list[Any] = [
        list(model.parameters()),
        dict(model.named_parameters()),
        {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad},
        torch.optim.SGD(model.parameters(), lr=0.1),
    ]
    for value in saved:
        for save in (lambda value: torch.save(value, io.BytesIO()), pickle.dumps):
            with refused("only a slice", "model.state_dict()", kind=TypeError, what=type(value)):
                save(value)
    torch.save({name: p.detach() for name, p in model.named_parameters()}, io.BytesIO())
    # What is whole can be saved.
    model = shard(pair(), stage=0, units=Tower)
    file = io.BytesIO()
    torch.save(list(model.parameters()), file)
    file.seek(0)
    for loaded, parameter in zip(torch.load(file), model.parameters(), strict=True):
        assert torch.equal(loaded, parameter)
        assert loaded.requires_grad == parameter.requires_grad


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(
    "function", [reads_are_refused, uses_of_slices, steps_see_plain_parameters, slices_are_not_saved]
)
def test_slices(function: Callable[[], None]) -> None:
    ranks.run(2, function)


def as_clip_does(model: Pair, x: Tensor, block: Block) -> Tensor:
    left, right = model(x)
    with block(model):
        loss: Tensor = (model.logit_scale.exp() * left @ right.T).square().mean()
    return loss


def backward_in_the_block(model: Pair, x: Tensor, block: Block) -> Tensor:
    with block(model):
        left, right = model(x)
        loss: Tensor = (model.logit_scale.exp() * left @ right.T).square().mean()
        loss.backward()
        loss = loss.detach()
    return loss


def another_method(model: Pair, x: Tensor, block: Block) -> Tensor:
    with block(model.left):
        y = model.left.features(x)
    return y.square().mean() + model(y)[1].square().mean()


def modules_by_themselves(model: Pair, x: Tensor, block: Block) -> Tensor:
    with block(model):
        y = model.right.norm(model.left.inner(x).relu())
    return (model(x)[0] * y).sum()


def a_penalty(model: Pair, x: Tensor, block: Block) -> Tensor:
    loss = sum(y.square().mean() for y in model(x))
    with block(model):
        loss = loss + sum(p.square().sum() for p in model.parameters())
    assert isinstance(loss, Tensor)
    return loss


def a_sum_that_saves_nothing(model: Pair, x: Tensor, block: Block) -> Tensor:
    with block(model):
        loss = model.left.inner.weight.sum() - 2 * model.right.norm.bias.sum()
    return loss + model.left(x).square().mean()


def a_vector_of_parameters(model: Pair, x: Tensor, block: Block) -> Tensor:
    with block(model):
        vector = nn.utils.parameters_to_vector(model.parameters())
        loss = sum(y.square().mean() for y in model(x)) + vector.norm()
    assert isinstance(loss, Tensor)
    return loss


def blocks_in_blocks(model: Pair, x: Tensor, block: Block) -> Tensor:
    with block(model):
        y = model.left.features(x)
        with block(model.left):
            y = model.left.features(y) + model.left(y)
        y = model.left.features(y)
    with block(model.right), block(model.left):
        y = model.left.features(model.right.features(y))
    return y.square().mean() * 100


def a_weight_of_another_module(model: Pair, x: Tensor, block: Block) -> Tensor:
    with block(model):
        y = F.linear(x, model.left.inner.weight @ model.right.inner.weight)
    left, right = model(y)
    with block(model):
        z = F.linear(left * right, model.right.inner.weight)
    return z.square().mean()


def in_the_models_own_forward(model: Pair, x: Tensor, block: Block) -> Tensor:
    model.inside = block
    left, right = model(x)
    model.inside = None
    return (left * right).square().mean()


def checkpointed(model: Pair, x: Tensor, block: Block, use_reentrant: bool) -> Tensor:
    def features(x: Tensor) -> Tensor:
        with block(model.left):
            y: Tensor = model.left.features(x) * model.left.norm.weight
        return y

    result: Tensor = checkpoint(features, x.requires_grad_(), use_reentrant=use_reentrant)
    return result


def in_a_checkpoint(model: Pair, x: Tensor, block: Block) -> Tensor:
    left, right = model(checkpointed(model, x, block, use_reentrant=False))
    loss: Tensor = (left * right).mean()
    return loss


def in_a_reentrant_checkpoint(model: Pair, x: Tensor, block: Block) -> Tensor:
    """The graph of the block is recorded in the backward pass, and read there."""
    loss: Tensor = model.right(checkpointed(model, x, block, use_reentrant=True)).square().mean()
    return loss


def a_unit_after_its_method(model: Pair, x: Tensor, block: Block) -> Tensor:
    with block(model):
        left = model.left(model.left.features(x))
    loss: Tensor = (left * model.right(model.left(x))).square().mean()
    return loss


PROGRAMS = [
    in_the_models_own_forward,
    in_a_checkpoint,
    in_a_reentrant_checkpoint,
    a_unit_after_its_method,
    as_clip_does,
    backward_in_the_block,
    another_method,
    modules_by_themselves,
    a_penalty,
    a_sum_that_saves_nothing,
    a_vector_of_parameters,
    blocks_in_blocks,
    a_weight_of_another_module,
]


def step_of(program: Callable[..., Tensor], model: Pair, x: Tensor, block: Block) -> float:
    loss = program(model, x, block)
    if loss.requires_grad:
        loss.backward()
    return loss.item()


def trains_as_plain(stage: int) -> None:
    """Losses and gradients of each program equal those of the plain model bit for bit, over two steps."""
    from shardbook import shard, whole

    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = shard(pair(), stage=stage, units=Tower)
    plain = pair()
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in (model, plain)]
    for step, program in enumerate(2 * PROGRAMS):
        what = (stage, program.__name__, step)
        losses = []
        gradients: list[list[Tensor | None]] = []
        for other in range(world_size):
            plain.zero_grad()
            losses.append(step_of(program, plain, data(other, step), lambda _: nullcontext()))
            gradients.append([p.grad for p in plain.parameters()])
        for parameter, *found in zip(plain.parameters(), *gradients, strict=True):
            parts = [torch.zeros_like(parameter) if g is None else g for g in found]
            parameter.grad = sum(parts[1:], parts[0]) / world_size if parameter.requires_grad else None
        loss = step_of(program, model, data(rank, step), whole)
        assert loss == losses[rank], (*what, loss, losses[rank])
        found_gradients = whole_gradients(model)
        expected = plain_gradients(plain)
        assert list(found_gradients) == list(expected)
        wrong = [name for name in expected if not torch.equal(found_gradients[name], expected[name])]
        assert not wrong, (*what, wrong)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    if stage == 3:
        sizes = [flat.full.untyped_storage().nbytes() for unit in units_of(model) for flat in unit.flats]
        assert not any(sizes), f"memory that is not given back: {sizes}"


def units_of(model: nn.Module) -> list[Any]:
    from shardbook.zero.scheduler import scheduler_of

    return list(scheduler_of(model).units)


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_what_is_computed_in_a_block_trains_as_the_plain_model(stage: int) -> None:
    ranks.run(2, trains_as_plain, stage)


def reads_in_a_block(stage: int) -> None:
    """In the block the values are those of the plain model; after it everything is as before."""
    from shardbook import Policy, full_precision, shard, whole
    from shardbook.zero.access import Slice

    plain, x = pair(), data(dist.get_rank())
    model = shard(pair(), stage=stage, units=Tower)
    own = list(model.parameters())
    kinds = [type(p) for p in own]
    expected = plain.state_dict()
    for grad in (True, False):
        with torch.set_grad_enabled(grad), whole(model):
            assert_equal(dict(model.named_parameters()), dict(plain.named_parameters()))  # type: ignore[arg-type]
            assert torch.equal(model.left.features(x), plain.left.features(x))
            assert model.logit_scale.item() == plain.logit_scale.item()
            alias = weakref.ref(model.left.inner.weight.data)
        assert alias() is None, "what was read through .data is kept"
        with torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"), whole(model):
            assert torch.equal(model.left.features(x), plain.left.features(x))
        with torch.no_grad(), whole(model.left):
            assert model.left.inner.weight.shape == (6, 6)
            assert (type(model.right.inner.weight) is Slice) == (stage > 0)
        assert all(a is b for a, b in zip(own, model.parameters(), strict=True))
        assert [type(p) for p in own] == kinds

    # Whatever leaves the block by an error, inside of two blocks.
    with refused("inside", kind=KeyError), whole(model), whole(model.left):
        raise KeyError("inside")
    with whole(model), whole(model.left):
        pass
    with whole(model):
        inner = model.left.inner.weight
        copied, same = copy.deepcopy([inner, inner])
        assert copied is same
        assert type(copied) is nn.Parameter
        assert_equal({"copy": copied.data}, {"copy": inner.data.clone()})
    in_use = [unit.name for unit in units_of(model) if unit.pins or unit.shown]
    assert not in_use, f"units that stay in use: {in_use}"
    assert_equal(model.state_dict(), expected)

    # What belongs outside of the block.
    optimizer = torch.optim.SGD(own, lr=0.1)
    sum(part.square().sum() for part in model(x)).backward()
    with whole(model):
        with refused("leave the block"):
            optimizer.step()
        with refused("leave whole(model)"):
            model.state_dict()
        with refused("leave whole(model)"):
            model.left.inner.state_dict()
        with refused("leave whole(model)"):
            model.load_state_dict(expected)
        with refused("is in use"), full_precision(model):
            pass
        in_block = list(model.parameters())
    with refused("made in whole(model)"):
        torch.optim.SGD(in_block, lr=0.1).step()
    with whole(model):
        loss = model.left.inner.weight.square().sum()
    optimizer.step()
    with refused("call backward before the optimizer steps"):
        loss.backward()
    model.zero_grad()
    model.load_state_dict(expected)

    # A write lasts only where each rank stores the whole parameter.
    if stage:
        with refused("has written", "left"), whole(model), torch.no_grad():
            model.left.inner.weight.zero_()
        # The next block is not blamed for it.
        with whole(model):
            model(x)
    else:
        with whole(model), torch.no_grad():
            model.left.inner.weight.zero_()
        assert not model.state_dict()["left.inner.weight"].any()

    # The dtype is that in which the model computes, and the masters' in full precision.
    model = shard(pair(), stage=stage, units=Tower, policy=Policy(param_dtype=torch.bfloat16))
    with whole(model):
        assert model.left.inner.weight.dtype is torch.bfloat16
        assert torch.equal(model.left.inner.weight, expected["left.inner.weight"].bfloat16())
    with full_precision(model), whole(model):
        assert torch.equal(model.left.inner.weight, expected["left.inner.weight"])

    for value, kind, words in ((plain, ValueError, "not sharded"), (3, TypeError, "int")):
        with refused(words, kind=kind), whole(value):  # type: ignore[arg-type]
            pass


@pytest.mark.cases(now=2, ci=2)
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_reads_in_a_block(stage: int) -> None:
    ranks.run(2, reads_in_a_block, stage)


def a_read_is_exchanged_with_the_pass(reads: int) -> None:
    """The unit has the backward pass of a penalty, and its own: one exchange, after the second."""
    from shardbook import shard, whole
    from shardbook.zero.scheduler import Scheduler

    seen: list[str] = []

    def exchange(scheduler: Scheduler, *units: Any, real: Any = Scheduler.exchange) -> None:
        seen.extend(unit.name for unit in units)
        real(scheduler, *units)

    model = shard(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), units=nn.Linear)
    x = data(0).requires_grad_()
    x.register_hook(lambda _: seen.append("the input"))
    y = model(x.exp()).sum()
    with whole(model[0]):
        read = [model[0].weight, model[0].bias][:reads]
        penalty = torch.stack([parameter.square().sum() for parameter in read]).sum()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "exchange", exchange)
        (y + penalty).backward()
    assert seen == ["1", "0", "the input"]


def test_a_read_in_a_block_is_exchanged_with_the_pass_of_its_unit() -> None:
    for reads in (1, 2):
        ranks.run(1, a_read_is_exchanged_with_the_pass, reads)


def a_block_in_a_backward_pass() -> None:
    """A unit that the pass has not reached is free again behind the block."""
    from shardbook import shard, whole
    from shardbook.zero.unit import State

    model = shard(nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))), units=nn.Linear)
    first, states = units_of(model)[0], []

    def look(gradient: Tensor) -> None:
        with whole(model[0]):
            states.append(first.state)
        states.append(first.state)

    y = model(data(0)).sum()
    y.register_hook(look)
    y.backward()
    assert first.name == "0"
    assert states == [State.WHOLE, State.SHARDED]


def test_a_block_in_a_backward_pass_keeps_no_unit_whole() -> None:
    ranks.run(1, a_block_in_a_backward_pass)


def blocks_of_one_rank() -> None:
    """One process alone has all slices whole, but in one dimension, so it needs the block as well."""
    trains_as_plain(3)
    reads_in_a_block(3)


def test_a_block_of_one_rank() -> None:
    ranks.run(1, blocks_of_one_rank)


def only_one_rank_enters() -> None:
    """A block that the other rank does not enter ends in the sentence of both."""
    from shardbook import Disagreement, shard, whole

    model, x = shard(pair(), units=Tower), data(0)
    sum(part.square().sum() for part in model(x)).backward()
    with refused("rank 0", "rank 1", kind=Disagreement):
        if dist.get_rank():
            model(x)
        else:
            with whole(model):
                pass


class Merging(nn.Linear):
    """Has the methods of other libraries that no sharded model can follow."""

    def resize_token_embeddings(self, size: int) -> None:
        self.weight = nn.Parameter(self.weight.new_zeros(size, size))

    def merge_adapter(self) -> None:
        self.weight.data += 1


def unsupported() -> None:
    """Transforms, exports and methods that take a model apart end in one sentence, at every stage."""
    from shardbook import shard

    x = data(dist.get_rank())
    for stage in (0, 1, 3):
        model = shard(pair(), stage=stage, units=Tower)
        small = shard(Merging(6, 6), stage=stage)

        def of_input(x: Tensor, model: nn.Module = model) -> Tensor:
            left: Tensor = model(x)[0].sum()
            return left

        for transform in (torch.vmap(of_input), torch.func.grad(of_input)):
            with refused("this model is sharded", "torch.func"):
                transform(x)
        # A unit by itself, outside of the model's forward pass.
        with refused("left is sharded", "torch.func"):
            torch.func.grad(lambda x, unit=model.left: unit(x).sum())(x)
        with refused("this model is sharded", "exported"):
            torch.export.export(small, (x,))
        with refused("this model is sharded", "exported"):
            torch.fx.experimental.proxy_tensor.make_fx(small)(x)
        others = {name: torch.zeros_like(p) for name, p in small.named_parameters()}
        with refused("was replaced", "weight"):
            torch.func.functional_call(small, others, x)
        with refused("resize_token_embeddings", "before shard"):
            small.resize_token_embeddings(9)
        with refused("merge_adapter", "state_dict"):
            small.merge_adapter()
        sum(part.square().sum() for part in model(x)).backward()
        with (
            refused("inference_mode", "outside", kind=ValueError),
            torch.inference_mode(dist.get_rank() == 1),
        ):
            shard(pair(), stage=stage, units=Tower)


def converted_while_whole() -> None:
    """In a block, in a unit's own forward pass, and after one that was interrupted."""
    from shardbook import shard, whole

    class Converts(nn.Linear):
        how = ""

        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            if self.how == "forward":
                self.double()
            if self.how == "interrupt":
                raise KeyboardInterrupt
            return y

    x = data(dist.get_rank())
    for stage, how in product((0, 1, 2, 3), ("block", "data", "forward", "interrupt")):
        model = shard(Converts(6, 6), stage=stage)
        model.how = how
        if how == "block":
            with whole(model):
                model.double()
        elif how == "data":
            with whole(model):
                model.weight.data = model.weight.data.clone()
        elif how == "forward":
            model(x)
        else:
            with pytest.raises(KeyboardInterrupt):
                model(x)
            model.double()
        with refused("has left its shard", "before sharding", what=(stage, how)):
            model(x)


@pytest.mark.cases(now=1, ci=2)
@pytest.mark.parametrize("function", [only_one_rank_enters, unsupported, converted_while_whole])
def test_refused(function: Callable[[], None]) -> None:
    ranks.run(2, function)


def clip() -> Any:
    from transformers import CLIPConfig, CLIPModel

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 20, "max_position_embeddings": 8, "eos_token_id": 19, "bos_token_id": 0}
    vision = {**sizes, "image_size": 8, "patch_size": 4}
    torch.manual_seed(0)
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=12))


def contrastive(model: Any, tokens: Tensor, images: Tensor, block: Block) -> Tensor:
    """The loss of CLIP as programs write it that keep the features of many ranks."""
    with block(model):
        text = F.normalize(model.get_text_features(input_ids=tokens).pooler_output, dim=-1)
        image = F.normalize(model.get_image_features(pixel_values=images).pooler_output, dim=-1)
        logits = model.logit_scale.exp() * text @ image.T
        labels = torch.arange(len(tokens))
        return F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)


def other_libraries() -> None:
    """A CLIP of the transformers library trains as the plain one, and peft's adapters stay apart."""
    library()
    import peft
    from peft.tuners.lora import Linear as Adapted
    from transformers.models.clip.modeling_clip import CLIPEncoderLayer

    from shardbook import shard, whole

    generators = [torch.Generator().manual_seed(rank) for rank in range(dist.get_world_size())]
    inputs = [
        (torch.randint(1, 19, (3, 6), generator=g), torch.randn(3, 3, 8, 8, generator=g)) for g in generators
    ]
    mine = inputs[dist.get_rank()]
    for stage in (1, 3):
        plain, model = clip(), shard(clip(), stage=stage, units=CLIPEncoderLayer)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (plain, model)]
        with refused("logit_scale", "whole(model)"):
            contrastive(model, *mine, lambda _: nullcontext())
        for step in range(2):
            losses: list[Any] = [
                partial(contrastive, plain, *each, lambda _: nullcontext()) for each in inputs
            ]
            expected = reference_step(plain, [losses])
            loss = contrastive(model, *mine, whole)
            assert loss.item() == expected[dist.get_rank()], (stage, step)
            loss.backward()
            assert_equal(whole_gradients(model), plain_gradients(plain))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    with refused("resize_token_embeddings", "before shard"):
        shard(clip().text_model, units=CLIPEncoderLayer).resize_token_embeddings(30)
    for stage in (0, 3):
        config = peft.LoraConfig(target_modules=["inner"], init_lora_weights=False)
        adapted = shard(peft.get_peft_model(pair(), config), stage=stage, units=Adapted)
        with refused("merge_adapter", "state_dict"):
            adapted.merge_adapter()
        with refused("merge_and_unload", "state_dict"):
            adapted.merge_and_unload()


@pytest.mark.nightly
def test_other_libraries() -> None:
    ranks.run(2, other_libraries)
