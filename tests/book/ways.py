"""All ways to checkpoint one GPT: the rows of a table of the book, and the storages that each keeps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from shardbook.checkpointing import saved_tensors
from shardbook.checkpointing.budget import Chain, FlopCounter, Plan, cheapest, evaluate, least, measure
from shardbook.checkpointing.checkpointing import checkpoint, checkpoint_module, checkpoint_sequential, cut
from shardbook.checkpointing.selective import ATTENTION
from shardbook.models.gpt import GPT, Block, Config

CONFIG = Config(layers=12, width=128, heads=4, context=128)
TOKENS = torch.zeros(1, 128, dtype=torch.long)
LAYERS = CONFIG.layers + 2
Run = Callable[[GPT], Tensor]


def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(CONFIG)


def blocks(**options: Any) -> Run:
    """Each block by itself, and the embedding and the head without a checkpoint."""

    def run(model: GPT) -> Tensor:
        result: Tensor = checkpoint_module(model, units=Block, **options)(TOKENS)
        return result

    return run


def planned(plan: Plan) -> Run:
    return lambda model: plan.apply(model, TOKENS)


@cache
def chain() -> Chain:
    return measure(gpt(), TOKENS)


@cache
def ways() -> dict[str, tuple[Run, Plan | None]]:
    """The rows of the table, and for a cut of the chain the plan."""
    everything = evaluate(chain(), [])
    whole = evaluate(chain(), cut(LAYERS, 1, last=True))
    four = evaluate(chain(), cut(LAYERS, 4, balanced=True))
    each = evaluate(chain(), cut(LAYERS, LAYERS, last=True))
    half, quarter = (cheapest(chain(), everything.peak // part) for part in (2, 4))
    smallest = cheapest(chain(), least(chain()))
    return {
        "no checkpoint": (lambda model: model(TOKENS), everything),
        "one around the model": (lambda model: checkpoint(model, TOKENS), whole),
        "[four equal segments](#module/checkpointing-a-chain-in-segments), the last kept": (
            lambda model: checkpoint_sequential(model, 4, TOKENS, balanced=True),
            four,
        ),
        "each layer": (lambda model: checkpoint_sequential(model, LAYERS, TOKENS, last=True), each),
        "each block": (blocks(), None),
        "each block, [reentrant](reentrant.py)": (blocks(use_reentrant=True), None),
        "each block, [attention kept](selective.py)": (blocks(policy=ATTENTION), None),
        "each block, attention and products kept": (blocks(policy=[*ATTENTION, torch.ops.aten.addmm]), None),
        "[the cheapest plan](budget.py) for half the bytes": (planned(half), half),
        "the cheapest plan for a quarter": (planned(quarter), quarter),
        "the plan with the least memory": (planned(smallest), smallest),
    }


class Alive:
    """The storages that wait for a backward pass (saved, filled or kept by a policy), and their peak."""

    def __init__(self, model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
        self.known = {p.untyped_storage() for p in model.parameters()}
        self.storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self.peak = 0
        fill, add = saved_tensors.Placeholder.fill, saved_tensors.Store.add

        def filled(placeholder: Any, tensor: Tensor) -> None:
            fill(placeholder, tensor)
            self.note(tensor)

        def added(store: Any, entry: saved_tensors.Kept, written: list[Tensor]) -> None:
            add(store, entry, written)
            for tensor in saved_tensors.tensor_leaves(entry.value):
                self.note(tensor)

        monkeypatch.setattr(saved_tensors.Placeholder, "fill", filled)
        monkeypatch.setattr(saved_tensors.Store, "add", added)

    def note(self, tensor: Tensor) -> Tensor:
        if tensor.untyped_storage() not in self.known:
            self.storages.add(tensor.untyped_storage())
        self.peak = max(self.peak, self.bytes)
        return tensor.detach()

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages)


def flops_of_backward(run: Run) -> int:
    y = run(gpt())
    # The counter keeps tensors alive, so bytes are counted in another step.
    with FlopCounter() as counter:
        y.backward(torch.ones_like(y))
    return counter.get_total_flops()


@cache
def plain_flops() -> int:
    return flops_of_backward(ways()["no checkpoint"][0])
