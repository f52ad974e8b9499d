"""The sketch in other forms: with a line changed, with a prefetch, and watched for ranks that wait."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from shardbook import shard, sketch

SOURCE = Path(inspect.getfile(sketch))


def changed(*changes: tuple[str, str]) -> ModuleType:
    """The sketch with some of its text replaced, each of which stands in it once."""
    text = SOURCE.read_text("utf-8")
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {SOURCE}"
        text = text.replace(old, new)
    made = ModuleType("changed_sketch")
    exec(compile(text, str(SOURCE), "exec"), vars(made))
    return made


class Chain(nn.Sequential):
    """Layers of one size. `path` says in which order they run, each as often as it stands there."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.path = list(range(len(layers)))

    def forward(self, x: Tensor) -> Tensor:
        for place in self.path:
            x = self[place](x)
        return x


def chain(seed: int = 0, count: int = 3) -> Chain:
    torch.manual_seed(seed)
    return Chain(*[nn.Linear(4, 4) for _ in range(count)])


def sketched(model: nn.Sequential, kind: Any = sketch.Sharded) -> Chain:
    """The sketch of a model, whose own values stay."""
    return Chain(*[kind(layer) for layer in copy.deepcopy(model)])


def models(plain: nn.Sequential, kind: Any = sketch.Sharded) -> tuple[nn.Sequential, Chain, nn.Sequential]:
    """A plain model, the sketch of it, and the library's."""
    return plain, sketched(plain, kind), shard(copy.deepcopy(plain))


def from_plain(plain: nn.Sequential, model: nn.Module) -> float:
    """How far the parameters of a sketch or of a sharded model are from the plain ones. Collective."""
    parts: list[Any] = list(model.children())
    if hasattr(parts[0], "views"):
        return sketch.largest_difference(plain, parts)
    found = model.state_dict()
    named = plain.state_dict()
    assert list(found) == list(named)
    return max((found[name] - named[name]).abs().max().item() for name in named)


Loss = Callable[[Any, int], Tensor]  # of a model, as a rank computes it


def mean_backward(plain: nn.Module, loss: Loss) -> None:
    """The gradients of a plain model, as all ranks would have them together."""
    for rank in range(dist.get_world_size()):
        (loss(plain, rank) / dist.get_world_size()).backward()


def one_step(
    trio: tuple[nn.Sequential, Chain, nn.Sequential], loss: Loss, optimizer: Callable[..., Any]
) -> None:
    """All three models take a step."""
    for model in trio:
        stepping = optimizer(model.parameters())
        if model is trio[0]:
            mean_backward(model, loss)
        else:
            loss(model, dist.get_rank()).backward()
        stepping.step()
        stepping.zero_grad()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


class Hang(Exception):
    """Two ranks are about to start collectives that do not belong together."""


@contextmanager
def watched(model: Chain) -> Iterator[None]:
    """In this block ranks compare the names of collectives of the sketch before each, and once at the end.

    :raises Hang: on the ranks that would wait for ever, or would exchange what does not belong together
    """
    names = {id(layer.shard): f"layer {place}" for place, layer in enumerate(model)}
    rank, size, store = dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store()
    gather, scatter, count = sketch.gather, dist.reduce_scatter, 0

    def compare(act: str) -> None:
        nonlocal count
        count += 1
        store.set(f"watched/{count}/{rank}", act)
        for other in range(size):
            theirs = store.get(f"watched/{count}/{other}").decode()
            if theirs != act:
                store.set(f"watched/{count + 1}/{rank}", "gone")
                raise Hang(f"collective {count}: rank {rank} would {act}, rank {other} would {theirs}")

    def watched_gather(part: Tensor, full: Tensor) -> None:
        compare(f"gather {names[id(part)]}")
        gather(part, full)

    def watched_scatter(*tensors: Any) -> None:
        compare("scatter")
        scatter(*tensors)

    with (
        patch.object(sketch, "gather", watched_gather),
        patch.object(dist, "reduce_scatter", watched_scatter),
    ):
        yield
        compare("do no more")


class Prefetching(sketch.Sharded):
    """The sketch with a prefetch: while a layer computes, the next one is gathered.

    In the forward pass the next one is that of the chain, in the backward pass the one that ran before, as
    the forward pass has recorded it. At the end of the backward pass `first` is the next one, if it is set.
    """

    order: list[Prefetching]
    ahead: dict[Prefetching, Tensor]
    following: Prefetching | None = None
    first: Prefetching | None = None

    def taken(self) -> Tensor:
        """The vector that was gathered ahead, or one that is gathered now."""
        self.prefetch()
        return self.ahead.pop(self)

    def prefetch(self) -> None:
        if self not in self.ahead:
            full = self.shard.new_empty(len(self.shard) * dist.get_world_size())
            sketch.gather(self.shard, full)
            self.ahead[self] = full

    def forward(self, x: Tensor) -> Tensor:
        full = self.taken()
        values = self.views(Gathered.apply(self.shard, full))
        y: Tensor = functional_call(self.layer[0], values, (x,))
        if self.following is not None:
            self.following.prefetch()
        sketch.free(full)
        self.order.append(self)
        y.register_hook(lambda gradient: self.before_backward(full))
        return y

    def before_backward(self, full: Tensor) -> None:
        full.untyped_storage().resize_(full.nbytes)
        full.copy_(self.taken())
        self.order.pop()
        following = self.order[-1] if self.order else self.first
        if following is not None:
            following.prefetch()


class Gathered(sketch.Gather):
    """A vector that was gathered before."""

    @staticmethod
    def forward(context: Any, shard: Tensor, full: Tensor) -> Tensor:
        context.full = full
        return full.data


def prefetching(model: nn.Sequential, *, next_step: bool) -> Chain:
    """A chain with the prefetch, also for the next step or not."""
    made = sketched(model, Prefetching)
    layers = cast("list[Prefetching]", list(made))
    order: list[Prefetching] = []
    ahead: dict[Prefetching, Tensor] = {}
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        layer.order, layer.ahead = order, ahead
        # As plain attributes, because one layer is no part of another.
        vars(layer).update(following=following, first=layers[0] if next_step else None)
    return made
