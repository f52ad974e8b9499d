"""Small models, their data, and a plain reference that imports nothing of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 16
Batch = tuple[Tensor, Tensor]


def chain(seed: int = 0) -> nn.Sequential:
    """A chain of layers whose sizes divide by no world size: 13 and 5 and a bias here and there."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, 8),
        nn.Sequential(nn.Linear(8, 13), nn.GELU(), nn.Linear(13, 8)),
        nn.LayerNorm(8),
        nn.Sequential(nn.Linear(8, 5, bias=False), nn.GELU(), nn.Linear(5, 8)),
        nn.Linear(8, VOCABULARY),
    )


def batch(rank: int, step: int) -> Batch:
    """What a rank reads in a step; no two ranks and no two steps read the same."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(0, VOCABULARY, (4, 7), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def error(model: Callable[[Tensor], Tensor], data: Batch) -> Tensor:
    """The mean cross-entropy of a batch."""
    return F.cross_entropy(model(data[0]).flatten(0, 1), data[1].flatten())


def linears(count: int = 3) -> nn.Sequential:
    """Layers of one shape, which take `features`."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(count)])


def features(rank: int, width: int = 4) -> Tensor:
    """What a rank reads where no tokens are read; no two ranks read the same."""
    return torch.full((2, width), 0.1 * (rank + 1))


def said_by(act: Callable[[], Any]) -> str:
    """What a call is refused with. Nothing refers to the exception afterwards."""
    try:
        act()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("the call was not refused")


def optimizer_for(kind: str, parameters: Any) -> torch.optim.Optimizer:
    """AdamW hides a gradient of the wrong scale; plain SGD shows it."""
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.5)
    return torch.optim.AdamW(parameters, lr=1e-2)


def reference_step(
    model: nn.Module, losses_by_round: Sequence[Sequence[Callable[[], Tensor]]]
) -> list[float]:
    """Fill `.grad` of a plain model with the mean over ranks, summed in rank order; return all losses. What
    no rank has used keeps the gradient `None`.

    Each round holds one loss for each rank and is averaged by itself; the rounds are added up. So a round
    is what the ranks do between two reductions.
    """
    values: list[float] = []
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    means: list[Tensor | None] = [None] * len(trainable)
    for losses in losses_by_round:
        gradients: list[list[Tensor | None]] = []
        for compute in losses:
            model.zero_grad()
            loss = compute()
            loss.backward()
            values.append(loss.item())
            gradients.append([None if p.grad is None else p.grad.clone() for p in trainable])
        for index, of_ranks in enumerate(zip(*gradients, strict=True)):
            if all(gradient is None for gradient in of_ranks):
                continue
            zero = torch.zeros_like(trainable[index])
            first, *others = [zero if gradient is None else gradient for gradient in of_ranks]
            mean = sum(others, start=first) / len(losses)
            before = means[index]
            means[index] = mean if before is None else before + mean
    for parameter, mean in zip(trainable, means, strict=True):
        parameter.grad = mean
    return values


def whole_gradients(model: nn.Module) -> dict[str, Tensor]:
    """The gradients of a sharded model in their full shapes; collective, as `state_dict` is."""
    shards = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        gradients = {name: value.clone() for name, value in model.state_dict().items()}
        for name, parameter in model.named_parameters():
            parameter.copy_(shards[name])
    return gradients


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Bit for bit, and name the tensors that are not."""
    assert list(found) == list(expected)
    different = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert not different, f"differ: {different}"


def assert_all_equal(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    """Bit for bit, one after the other, and missing in the same places."""
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        same = one is other if one is None or other is None else torch.equal(one, other)
        assert same, f"number {number}: {one} instead of {other}"


def plain_gradients(model: nn.Module) -> dict[str, Tensor]:
    """The gradients of a plain model under the keys of its `state_dict`."""
    named = dict(model.named_parameters(remove_duplicate=False))
    return {
        name: torch.zeros_like(value) if named[name].grad is None else named[name].grad.clone()  # type: ignore[union-attr]
        for name, value in model.state_dict().items()
        if name in named
    }
