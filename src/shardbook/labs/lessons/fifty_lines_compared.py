"""Lab 3 on the ranks: small trainings with the reader's code, with the library, and without sharding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from shardbook.labs.rank_process import device
from shardbook.models.gpt import GPT, Config, loss
from shardbook.planning.forecast import Meter
from shardbook.zero.model import shard

__all__ = ["after_a_step", "after_backward", "differences", "gathered", "one_step"]

STEPS = 3
# Odd numbers, so that a vector of two ranks has padding.
CONFIG = Config(layers=1, width=15, heads=3, context=8, vocabulary=20)

# A training takes the plain model and its batches, and returns the vector of each layer.
Batches = Sequence[Sequence[Tensor]]
Training = Callable[[GPT, Batches], list[Tensor]]


def differences(training: Training, stage: int) -> tuple[float, float]:
    """The largest difference of a parameter, to the plain model and to the library."""
    found = training(model(), batches())
    return (
        difference(found, trained_plain(model(), batches())),
        difference(found, trained_by_the_library(model(), batches(), stage)),
    )


def model() -> GPT:
    torch.manual_seed(0)
    return GPT(CONFIG).to(device())


def batches() -> list[list[Tensor]]:
    """For each step a batch for each rank."""
    draw = torch.Generator().manual_seed(1)
    ranks, size = dist.get_world_size(), (2, CONFIG.context + 1)
    return [
        [
            torch.randint(CONFIG.vocabulary, size, generator=draw).to(device())
            for _ in range(ranks)
        ]
        for _ in range(STEPS)
    ]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """An optimizer that conceals no factor, unlike AdamW."""
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


def backward(model: nn.Module, text: Tensor, share: int = 1) -> None:
    (loss(model(text[:, :-1]), text[:, 1:]) / share).backward()


def trained_plain(plain: GPT, batches: Batches) -> list[Tensor]:
    optimizer = sgd(plain.parameters())
    for step in batches:
        optimizer.zero_grad()
        for text in step:
            backward(plain, text, len(step))
        optimizer.step()
    return [vector_of(layer) for layer in plain]


def trained_by_the_library(plain: GPT, batches: Batches, stage: int) -> list[Tensor]:
    sharded = shard(plain, stage=stage)
    trained(sharded, batches)
    whole = model()
    whole.load_state_dict(sharded.state_dict())
    return [vector_of(layer) for layer in whole]


def trained(sharded: nn.Module, batches: Batches) -> None:
    """Train a model that exchanges its gradients in the backward pass."""
    optimizer = sgd(sharded.parameters())
    for step in batches:
        optimizer.zero_grad()
        backward(sharded, step[dist.get_rank()])
        optimizer.step()


def trained_in_layers(wrap: Callable[[nn.Module], Any]) -> Training:
    """Train with a module around each layer, which has its `part` as the only parameter."""

    def training(plain: GPT, batches: Batches) -> list[Tensor]:
        sizes = [len(vector_of(layer)) for layer in plain]
        layers = [wrap(layer) for layer in plain]
        trained(nn.Sequential(*layers), batches)
        whole = (all_parts(layer.part) for layer in layers)
        return [vector[:size] for vector, size in zip(whole, sizes, strict=True)]

    return training


def trained_in_steps(step_of_stage_1: Any) -> Training:
    """Train with the reader's step."""

    def training(plain: GPT, batches: Batches) -> list[Tensor]:
        parts = [part_of(layer) for layer in plain]
        optimizer = sgd(parts)
        for step in batches:
            plain.zero_grad()
            backward(plain, step[dist.get_rank()])
            step_of_stage_1(list(plain), parts, optimizer)
        return [vector_of(layer) for layer in plain]

    return training


def vector_of(layer: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten() for each in layer.parameters()])


def part_of(layer: nn.Module) -> nn.Parameter:
    ranks = dist.get_world_size()
    vector = vector_of(layer)
    padded = F.pad(vector, (0, -len(vector) % ranks))
    return nn.Parameter(padded.chunk(ranks)[dist.get_rank()].clone())


def all_parts(part: Tensor) -> Tensor:
    ranks = dist.get_world_size()
    whole = part.new_empty(len(part) * ranks)
    dist.all_gather([*whole.chunk(ranks)], part.detach())
    return whole


def difference(found: list[Tensor], expected: list[Tensor]) -> float:
    pairs = zip(found, expected, strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


class Kept(nn.Module):
    """A layer that is gathered by the reader's `Gather`, and not freed after its forward pass."""

    def __init__(self, gather: Any, layer: nn.Module) -> None:
        super().__init__()
        self.gather = gather
        self.part = part_of(layer)
        self.layer = (layer.to("meta"),)

    def forward(self, x: Tensor) -> Tensor:
        room = self.part.new_empty(len(self.part) * dist.get_world_size())
        whole = self.gather.apply(self.part, room)
        named = dict(self.layer[0].named_parameters())
        sizes = [each.numel() for each in named.values()]
        *pieces, _ = whole.split([*sizes, len(whole) - sum(sizes)])
        views = {
            name: piece.view_as(named[name])
            for name, piece in zip(named, pieces, strict=True)
        }
        y: Tensor = functional_call(self.layer[0], views, (x,))
        return y


# ## What a rank does for each check


def one_step(step_of_stage_1: Any) -> list[dict[str, Any]]:
    """Two steps with known gradients: value $i$ of the model has the mean gradient $2 i$."""
    layers = [nn.Linear(2, 3).to(device()), nn.Linear(3, 1).to(device())]
    for layer in layers:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    parts = [part_of(layer) for layer in layers]
    optimizer = torch.optim.SGD(parts, lr=1.0)
    found = []
    for _ in range(2):
        for layer in layers:
            first = 1
            for each in layer.parameters():
                values = torch.arange(first, first + each.numel(), device=device())
                each.grad = values.view_as(each) * (1.0 + 2.0 * dist.get_rank())
                first += each.numel()
        step_of_stage_1(layers, parts, optimizer)
        found.append(
            {
                "parts": torch.cat([all_parts(each)[:4] for each in parts]).tolist(),
                "layers": torch.cat([vector_of(each)[:4] for each in layers]).tolist(),
                "dtypes": dtypes([*parts, *nn.ModuleList(layers).parameters()]),
            }
        )
    return found


def dtypes(tensors: Iterable[Tensor]) -> list[str]:
    """The dtypes that some tensors of this check should not have."""
    return sorted({str(each.dtype) for each in tensors} - {"torch.float32"})


def after_backward(gather: Any) -> dict[str, Any]:
    """The gradient that one gather gives to its part: twice the values 1 to 6, cut in two."""
    start = 3.0 * dist.get_rank()
    part = nn.Parameter(torch.arange(1.0, 4.0, device=device()) + start)
    full = part.new_empty(6)
    whole = gather.apply(part, full)
    values = whole.tolist()
    weights = torch.arange(1.0, 7.0, device=device()) * (1.0 + 2.0 * dist.get_rank())
    (whole * weights).sum().backward()
    return {
        "whole": values,
        "gradient": None if part.grad is None else part.grad.tolist(),
        "stored": full.untyped_storage().nbytes(),
    }


# The layer of the next function has 16,384 bytes, and all else in it has far less.
WIDTH = 64


def after_a_step(stage_3: Any) -> dict[str, Any]:
    """One layer: its results, and the bytes that it keeps after each use."""
    torch.manual_seed(0)
    plain = nn.Linear(WIDTH, WIDTH, bias=False).to(device())
    weight = plain.weight.detach().clone()
    layer = stage_3(plain)
    x = torch.ones(1, WIDTH, device=device(), requires_grad=True)
    found: dict[str, Any] = {}
    with Meter() as meter:
        before = meter.now()
        # An output without a gradient takes no hook.
        with torch.no_grad():
            layer(x.detach())
        y = layer(x)
        found["kept after forward"] = meter.settled() - before
        if not isinstance(y, Tensor):
            return {"returned": type(y).__name__}
        found["right"] = torch.allclose(y, x @ weight.t(), atol=1e-5)
        if y.requires_grad:
            y.sum().backward()
        found["kept after backward"] = meter.settled() - before
    found["gradient"] = layer.part.grad is not None
    found["changed"] = not torch.equal(x, torch.ones_like(x))
    found["input"] = x.grad is not None and torch.allclose(
        x.grad, weight.sum(0, keepdim=True), atol=1e-5
    )
    return found


def gathered(gather: Any) -> Training:
    """Train with the reader's `Gather` around each layer."""
    return trained_in_layers(lambda layer: Kept(gather, layer))
