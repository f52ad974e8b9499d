"""Parameters that are read outside of the hooks: refused on every rank where they are slices, and right
where they are whole.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import ranks

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
            assert type(parameter.detach()) is type(parameter.data) is Tensor, name
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
    from shardbook.access import Slice

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


@pytest.mark.parametrize(
    "function", [reads_are_refused, uses_of_slices, steps_see_plain_parameters, slices_are_not_saved]
)
def test_slices(function: Callable[[], None]) -> None:
    ranks.run(2, function)


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

        for transform in (
            lambda: torch.vmap(of_input)(x),
            lambda: torch.func.grad(of_input)(x),
        ):
            with refused("is sharded", "torch.func"):
                transform()
        with refused("is sharded", "exported"):
            torch.export.export(small, (x,))
        with refused("is sharded", "exported"):
            torch.fx.experimental.proxy_tensor.make_fx(small)(x)
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


@pytest.mark.parametrize("function", [unsupported])
def test_refused(function: Callable[[], None]) -> None:
    ranks.run(2, function)
