"""What autograd saves in a step of a GPT, and what it costs to save less.

The model is that of the table in the chapter on checkpointing, and so are the ways to checkpoint it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import pytest
import torch
from tools.record.frame import tests_on_the_path
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from shardbook.checkpointing.budget import Chain, FlopCounter, Plan, cheapest, evaluate, least, measure
from shardbook.checkpointing.checkpointing import checkpoint, cut
from shardbook.checkpointing.segment import Placeholder
from shardbook.foundations.torch_private import TorchDispatchMode
from shardbook.models.gpt import Block

tests_on_the_path()

from book import ways as table  # noqa: E402

# In the order of the table.
NAMES = (
    *("plain", "whole", "four segments", "each layer", "each block", "each block, reentrant"),
    *("attention kept", "attention and products kept", "half the bytes", "a quarter", "least memory"),
)
CURVES = ("plain", "whole", "each block")


def record() -> Any:
    """The ways, three curves, the plans of two chains, and one block's saved tensors."""
    # Threads that share a busy core wait for each other at each product.
    torch.set_num_threads(1)
    found = dict(zip(NAMES, (run for run, _ in table.ways().values()), strict=True))
    chain = table.chain()
    return {
        "model": {**asdict(table.CONFIG), "tokens": table.TOKENS.numel()},
        "forward_flops": sum(layer.cost for layer in chain.layers),
        "ways": {name: way(run) for name, run in found.items()},
        "curves": {name: curve(found[name]) for name in CURVES},
        "plans": {"gpt": plans(chain), "linear and tanh": plans(simple_chain())},
        "block": block(),
    }


@contextmanager
def alive(model: nn.Module) -> Iterator[table.Alive]:
    """The storages that wait for a backward pass, within this block."""
    with pytest.MonkeyPatch.context() as patch:
        found = table.Alive(model, patch)
        with saved_tensors_hooks(found.note, lambda tensor: tensor):
            yield found


def way(run: Callable[[Any], Tensor]) -> Any:
    """The saved bytes of one way, and the FLOPs that it adds to a step."""
    model = table.gpt()
    with alive(model) as found:
        result = run(model)
        between = found.peak = found.bytes
        result.backward(torch.ones_like(result))
    added = table.flops_of_backward(run) - table.plain_flops()
    return {"saved": between, "peak": found.peak, "added_flops": added}


def curve(run: Callable[[Any], Tensor]) -> Any:
    """The saved bytes after each operation of a step, over the FLOPs that were computed by then.

    Only the points at which the bytes change are kept, and the moment when the backward pass begins.
    """
    model = table.gpt()
    with alive(model) as found, Each(lambda: found.bytes) as saved:
        result = run(model)
        turn = len(saved.seen)
        result.backward(torch.ones_like(result))
    # The counter of FLOPs keeps tensors alive, so it watches another step with the same operations.
    model = table.gpt()
    with FlopCounter() as counter, Each(counter.get_total_flops) as work:
        result = run(model)
        result.backward(torch.ones_like(result))
    points = list(zip(work.seen, saved.seen, strict=True))
    changes = [now for before, now in zip([(0, -1), *points], points, strict=False) if now[1] != before[1]]
    flops, nbytes = zip(*changes, strict=True)
    return {"flops": flops, "bytes": nbytes, "backward_at": work.seen[turn], "end": work.seen[-1]}


class Each(TorchDispatchMode):
    """Calls a function after each operation below autograd."""

    def __init__(self, look: Callable[[], int]) -> None:
        super().__init__()
        self.look = look
        self.seen: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # The hooks that count what is saved detach it. That is no operation of the step.
        if func is not torch.ops.aten.detach.default:
            self.seen.append(self.look())
        return result


def simple_chain() -> Chain:
    """64 layers that save one tensor each, as large as what they read: the chain of the rule of the root."""
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(64)]
    return measure(layers, torch.zeros(4, 8, requires_grad=True))


def plans(chain: Chain) -> Any:
    """All the best plans for a chain, from everything kept to the least memory, and the equal cuts."""
    best, budget, smallest = [], evaluate(chain, []).peak, least(chain)
    while budget >= smallest:
        plan = cheapest(chain, budget)
        best.append(plan)
        budget = plan.peak - 1
    length = len(chain.layers)
    equal = {k: evaluate(chain, cut(length, k, balanced=True)) for k in range(1, length + 1)}
    return {
        "layers": length,
        "input": chain.input,
        "forward_flops": sum(layer.cost for layer in chain.layers),
        "best": columns(best),
        "equal": {"segments": list(equal), **columns(list(equal.values()))},
        "root": round(length**0.5),
    }


def columns(of: list[Plan]) -> dict[str, list[float]]:
    """The two numbers that make a plan."""
    return {"peak": [plan.peak for plan in of], "added_flops": [plan.cost for plan in of]}


def block() -> Any:
    """What autograd saves of one block, tensor by tensor, and what becomes of it under a checkpoint."""
    model, config = table.gpt(), table.CONFIG
    module: Block = model.block0
    x = torch.zeros(1, config.context, config.width, requires_grad=True)
    known = {parameter.untyped_storage(): name for name, parameter in module.named_parameters()}
    storages = {x.untyped_storage(): "input"}
    saved: list[dict[str, Any]] = []
    used: list[int] = []

    def note(tensor: Tensor) -> tuple[int, Tensor]:
        storage = tensor.untyped_storage()
        name = known.get(storage) or storages.setdefault(storage, f"activation {len(storages)}")
        kind = "parameter" if storage in known else name.partition(" ")[0]
        saved.append({"kind": kind, "of": name, "shape": list(tensor.shape), "bytes": storage.nbytes()})
        return len(saved) - 1, tensor.detach()

    def use(noted: tuple[int, Tensor]) -> Tensor:
        used.append(noted[0])
        return noted[1]

    with saved_tensors_hooks(note, use):
        module(x).sum().backward()
    return {"saved": saved, "used": used, "checkpointed": checkpointed(module, x)}


def checkpointed(module: nn.Module, x: Tensor) -> Any:
    """What happens to the placeholders of one checkpointed block, by their numbers, in the order of time."""
    made: list[Placeholder] = []
    acts: list[tuple[str, int]] = []

    def noted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(placeholder: Placeholder, *args: Any) -> Any:
            if name == "make":
                made.append(placeholder)
            acts.append((name, next(place for place, one in enumerate(made) if one is placeholder)))
            return method(placeholder, *args)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name, method in (("make", "__init__"), ("fill", "fill"), ("take", "take")):
            patch.setattr(Placeholder, method, noted(name, getattr(Placeholder, method)))
        y = checkpoint(module, x)
        backward_at = len(acts)
        y.sum().backward()
    return {"acts": acts, "backward_at": backward_at, "input_bytes": x.nbytes}
