r"""# ZeRO-3 in fifty lines

> Each rank stores a part of every layer, and a layer is whole only while it computes.

You can train a model on one device, and you know data parallel training: each rank has
the whole model, reads its own part of the batch, and the gradients are averaged. Every
rank then stores the same parameters, the same gradients and the same moments of AdamW.
With 64 ranks these bytes exist 64 times.

ZeRO-3 stores them once. Take a layer of 100 parameters on two ranks. Rank 0 stores the
first 50 and rank 1 the last 50. To compute with the layer, a rank needs all 100, so
there are four things to do:

| moment | what a rank does | its memory for the layer |
|---|---|---|
| before the layer's forward pass | **all-gather**: each rank sends its 50 values to the other | 50 → 150 |
| after it | **free** the 100 | 150 → 50 |
| before the layer's backward pass | **all-gather** once more | 50 → 150 |
| after it | **reduce-scatter**: a rank receives the mean gradient of its own 50; **free** again | 150 → 50 |

Then the optimizer updates the 50 values that a rank stores, with moments for 50 values.
No rank ever sees the gradients of the whole model.

This chapter is a program that does so, and it stands here whole. The first half shards
a layer. The second half trains one model twice, plain and sharded, and compares all
parameters:

```sh
torchrun --standalone --nproc-per-node 2 -m shardbook.sketch
```

It prints a loss of 5.578100 for the first step of both models, half the bytes for the
sharded one, and 0.0 as the largest difference of a parameter.

[The first lesson](fifty_lines.md) shows these sections with questions between them, and
then what the sketch gets wrong: the rest of this book answers it.

:figure: bytes_per_rank_sketch
:notation $N_d$: `dist.get_world_size()`, the number of ranks
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from shardbook.command import (
    Mistake,
    Parser,
    complain,
    rank_and_ranks,
    was_launched,
    whole,
)
from shardbook.models.corpus import Reader, read
from shardbook.models.gpt import GPT, Config, loss

__all__ = ["Gather", "Sharded", "free", "gather", "main", "step"]


class Sharded(nn.Module):
    """A layer of which this rank stores one part.

    :param layer: any module that takes one tensor and returns one. It is used up.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        # All parameters become one vector. Zeros at its end make its length a multiple
        # of $N_d$, so that the ranks store equal parts.
        vector = torch.cat([p.detach().flatten() for p in layer.parameters()])
        vector = F.pad(vector, (0, -len(vector) % dist.get_world_size()))
        part = vector.chunk(dist.get_world_size())[dist.get_rank()]
        # The part is the only parameter of this module. So it is what an optimizer
        # updates, and what has a gradient.
        self.shard = nn.Parameter(part.clone())
        # On the device `meta` the layer keeps its shapes and its code, and loses its
        # values. In a tuple, PyTorch does not see it as a part of this module.
        self.layer = (layer.to("meta"),)

    def forward(self, x: Tensor) -> Tensor:
        """Gather, compute, free: moments one and two, and a hook for the third.

        A layer's backward pass begins when the gradient of its output is known. That is
        the moment at which PyTorch calls a hook on the output.
        """
        full = self.shard.new_empty(len(self.shard) * dist.get_world_size())
        whole = Gather.apply(self.shard, full)
        values = self.views(whole)
        y: Tensor = functional_call(self.layer[0], values, (x,))
        free(full)
        if y.requires_grad:
            y.register_hook(lambda gradient: gather(self.shard, full))
        return y

    def views(self, full: Tensor) -> dict[str, Tensor]:
        """Each parameter as a view of the vector, in its own shape. No value is copied."""
        named = dict(self.layer[0].named_parameters())
        sizes = [p.numel() for p in named.values()]
        *pieces, _padding = full.split([*sizes, len(full) - sum(sizes)])
        shapes = zip(named, named.values(), pieces, strict=True)
        return {name: piece.view_as(p) for name, p, piece in shapes}


class Gather(torch.autograd.Function):
    """An all-gather whose backward pass is a reduce-scatter.

    In the forward pass one part goes to all ranks. In the backward pass, therefore,
    what all ranks know about this part comes back to one. Autograd calls `backward`
    when the gradient of the whole layer is complete, which is the fourth moment.
    """

    @staticmethod
    def forward(context: Any, shard: Tensor, full: Tensor) -> Tensor:
        context.full = full
        gather(shard, full)
        # A second tensor on the same memory. Autograd counts the writes to a tensor,
        # and the gather of the third moment will write to the first one.
        return full.data

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        free(context.full)
        total = gradient.new_empty(len(gradient) // dist.get_world_size())
        dist.reduce_scatter(total, [*gradient.chunk(dist.get_world_size())])
        # Each rank has computed the loss of its own part of the batch. The loss of the
        # batch is their mean, and so is its gradient.
        return total / dist.get_world_size(), None


def gather(shard: Tensor, full: Tensor) -> None:
    """Give the vector its memory, and fill it with the parts of all ranks."""
    full.untyped_storage().resize_(full.nbytes)
    dist.all_gather([*full.chunk(dist.get_world_size())], shard.detach())


def free(full: Tensor) -> None:
    """Take the memory away. The graph of the forward pass still refers to the vector, so to drop the tensor
    would free nothing. When the vector gets its memory back, the graph finds the values
    at the same place.
    """
    full.untyped_storage().resize_(0)


def step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: list[tuple[Tensor, Tensor]],
) -> Tensor:
    """One training step, for either of the two models.

    :param batches: the parts of the batch that this process reads
    :returns: the mean of their losses
    """
    optimizer.zero_grad()
    total = torch.zeros(())
    for x, target in batches:
        part = loss(model(x), target) / len(batches)
        part.backward()
        total += part.detach()
    optimizer.step()
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a small GPT on two ranks, plain and sharded.

    The plain model reads the parts of all ranks, one after the other. The sharded one
    reads the part of its rank. So both see the same batch, and both take the mean of
    the same gradients.
    """
    try:
        steps = options(arguments).steps
    except Mistake as mistake:
        return complain("shardbook.sketch", mistake)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    read_by = [
        Reader(read(), context=32, batch=4, rank=each, world_size=ranks)
        for each in range(ranks)
    ]
    torch.manual_seed(0)
    plain = GPT(Config(layers=4, width=64, heads=4, context=32))
    parts = [Sharded(copy.deepcopy(layer)) for layer in plain]
    sharded = nn.Sequential(*parts)
    usual = torch.optim.AdamW(plain.parameters(), lr=3e-3)
    split = torch.optim.AdamW(sharded.parameters(), lr=3e-3)
    for number in range(steps):
        expected = step(plain, usual, [reader[number] for reader in read_by])
        found = step(sharded, split, [read_by[rank][number]])
        dist.all_reduce(found)
        losses = f"plain {expected:.6f}, sharded {found / ranks:.6f}"
        say(f"step {number + 1:>3}  loss: {losses}")
    say(f"\n{'bytes on a rank':<17}{'plain':>12}{'sharded':>12}")
    whole, part = stored(plain, usual), stored(sharded, split)
    for kind in whole:
        say(f"{kind:<17}{whole[kind]:>12,}{part[kind]:>12,}")
    say(f"\nlargest difference of a parameter: {largest_difference(plain, parts)}")
    dist.barrier()
    dist.destroy_process_group()
    return 0


def say(line: str) -> None:
    """One rank speaks for all."""
    if dist.get_rank() == 0:
        print(line, flush=True)


def stored(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """The bytes that a rank stores from step to step."""
    kinds: dict[str, list[Tensor]] = {
        "parameters": list(model.parameters()),
        "gradients": [p.grad for p in model.parameters() if p.grad is not None],
        "optimizer state": [
            moment for state in optimizer.state.values() for moment in state.values()
        ],
    }
    sizes = {kind: sum(each.nbytes for each in kinds[kind]) for kind in kinds}
    return {**sizes, "together": sum(sizes.values())}


def largest_difference(plain: nn.Sequential, parts: Sequence[Sharded]) -> float:
    """Gather each layer once more, and compare its parameters with the plain ones.

    On two ranks the largest difference is 0. Both programs divide and add the same
    numbers, and a sum of two does not depend on their order. With more ranks it does,
    so the last bits differ.
    """
    differences = [0.0]
    for layer, part in zip(plain, parts, strict=True):
        full = part.shard.new_empty(len(part.shard) * dist.get_world_size())
        gather(part.shard, full)
        values = part.views(full)
        for name, parameter in layer.named_parameters():
            differences.append((parameter - values[name]).abs().max().item())
    return max(differences)


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line has one option. Without torchrun there are no ranks, and it says how to start them."""
    parser = Parser(prog="shardbook.sketch", description=main.__doc__)
    parser.add_argument(
        "--steps",
        type=whole(1, 10**6),
        default=15,
        help="of the optimizer (default: 15)",
    )
    given = parser.parse_args(arguments)
    launch = "torchrun --standalone --nproc-per-node 2 -m shardbook.sketch"
    if not was_launched():
        raise Mistake(f"no ranks were started; write {launch}")
    rank_and_ranks(launch)
    return given


if __name__ == "__main__":
    sys.exit(main())
