"""The nodes of a block's two passes in the order in which they run, and what its unit does between them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tools.record.frame import ranks
from torch import Tensor, nn

from shardbook import shard
from shardbook.foundations.collectives import world
from shardbook.foundations.hook_context import observers
from shardbook.foundations.torch_private import next_number, number_of
from shardbook.zero.scheduler import scheduler_of

BLOCK = "block"
WIDTH = 8
STATES = ("gather", "wait for", "free", "reduce")


def record() -> Any:
    """What rank 0 has seen in its second step; in the first one the order of the units is learned."""
    return ranks(2, on_a_rank)[0]


class Block(nn.Module):
    """A block as in a transformer, without attention: its input is added to its output."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Two matrix products with a nonlinearity between them, beside a path that leaves out both."""
        return x + self.down(torch.relu(self.up(x)))


def on_a_rank() -> Any:
    """A step of three layers: the nodes are numbered from the first one that the step makes."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("before", nn.Linear(WIDTH, WIDTH))
    model.add_module(BLOCK, Block())
    model.add_module("after", nn.Linear(WIDTH, 1))
    shard(model, stage=3, prefetch=0)
    inputs = torch.randn(4, WIDTH) + world()[0]
    model(inputs).sum().backward()
    model.zero_grad()
    told = Told(next_number())
    observers.append(told)
    loss = model(inputs).sum()
    forward, told.rows = told.rows, []
    nodes = nodes_of(loss)
    for node in nodes:
        node.register_prehook(partial(told.runs, node))
    loss.backward()
    observers.remove(told)
    made = [told.row(node) for node in nodes if number_of(node) < told.first + len(nodes)]
    # An act of the forward pass comes before the node that was the next one to be made.
    rows = sorted([*made, *forward], key=lambda row: (row["number"], "node" in row))
    units = [unit.name for unit in scheduler_of(model).units]
    return {"units": units, "block": BLOCK, "forward": rows, "backward": told.rows}


class Told:
    """What has happened, in order; `first` is the number of the step's first node."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.rows: list[dict[str, Any]] = []

    def begins(self, act: str, about: Any) -> None:
        """A unit is about to act."""
        if act in STATES:
            self.rows.append({"act": act, "unit": about, "number": next_number() - self.first})

    def ends(self, act: str, about: Any) -> None:
        """A unit has acted."""

    def runs(self, node: Any, gradients: Any) -> None:
        """A node is about to run. A hook of the unit on this node may have acted already."""
        self.rows.append(self.row(node))

    def row(self, node: Any) -> dict[str, Any]:
        """A node by its name and its number; the one that stores a gradient has none."""
        number = number_of(node) - self.first
        name = node.name().removesuffix("Backward0")
        return {"node": name, "number": number if number < 1 << 32 else None}


def nodes_of(loss: Tensor) -> list[Any]:
    """The nodes of the graph, each once."""
    found: dict[Any, None] = {}
    open_: list[Any] = [loss.grad_fn]
    while open_:
        node = open_.pop()
        if node is not None and node not in found:
            found[node] = None
            open_ += [after for after, _ in node.next_functions]
    return list(found)
