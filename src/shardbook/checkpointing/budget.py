r"""# The cheapest plan for a budget

> For a given number of bytes, the segments with the least recomputation are found exactly.

[A cut into equal segments](sequential.py) is a good choice for equal layers. The layers
of a real chain differ: some save many bytes and cost few FLOPs, others the opposite.
And you usually know how many bytes you have, rather than how many segments you want. So
`cheapest` finds [the plan](plans.py) with the least cost among those whose peak of
saved bytes is within a budget. This budget is not the whole memory of a device:
parameters, gradients, optimizer state, workspaces and the allocator's fragments need
room beside it.

```python
plan = cheapest(measure(model, x), budget=2 * 10**9)
y = plan.apply(model, x)
```

**Compared with equal segments.** Take a GPT of 16 blocks. With its embedding and its
head the chain has 18 layers. The square-root rule cuts them into 4 segments and keeps
the last. The table shows the peak of saved bytes and the recomputed forward passes,
first for this rule. Then follow the cheapest plans for the memory that the rule needs,
for half of that, and for the smallest budget with a plan:

>>> import torch
>>> from shardbook.checkpointing.costs import measure
>>> from shardbook.models.gpt import GPT, Config
>>> from shardbook.checkpointing.sequential import cut
>>> model = GPT(Config(layers=16, width=32, heads=4, context=32))
>>> chain = measure(model, torch.zeros(2, 32, dtype=torch.long))
>>> forward = sum(layer.cost for layer in chain.layers)
>>> rule = evaluate(chain, cut(18, 4, balanced=True))
>>> for name, plan in {
...     "all kept": evaluate(chain, []),
...     "the rule": rule,
...     "as the rule": cheapest(chain, rule.peak),
...     "half of it": cheapest(chain, rule.peak // 2),
...     "the least": cheapest(chain, least(chain)),
... }.items():
...     print(f"{name:11} {plan.peak:9,} bytes {plan.cost / forward:.2f} forward passes")
all kept    2,147,584 bytes 0.00 forward passes
the rule      666,112 bytes 0.73 forward passes
as the rule   640,000 bytes 0.52 forward passes
half of it    265,216 bytes 0.65 forward passes
the least     248,320 bytes 0.69 forward passes

A block saves about 16 times what it reads, so segments of one block need the least. The
cheapest plans checkpoint the first blocks, one block a segment, as many as the budget
requires. The embedding joins the first segment, because it computes no FLOPs that are
counted. The last blocks are kept, since the backward pass uses them first. Their
activations are freed when the first blocks run again. The head is checkpointed in all
three plans, at no cost: its matrix product comes after the last tensor that it saves,
so it is never repeated.

**Best among what?** Among all cuts of the chain into segments, each of which is kept or
checkpointed as a whole. Plans of other kinds exist. A checkpoint inside a checkpoint
computes some layers three times, and can need even less memory. [A
policy](selective.py) keeps a part of a layer.

:notation $i$: `start`, the number of layers that a partial plan treats
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from shardbook.checkpointing.costs import Chain
from shardbook.checkpointing.plans import Plan, SegmentCost, evaluate, growing, take
from shardbook.checkpointing.sequential import Span

__all__ = ["cheapest", "least"]


def cheapest(chain: Chain, budget: int) -> Plan:
    """Find the plan with the least recomputation, among those whose peak is within the
    budget.

    The search goes layer by layer. A *partial plan* treats the first $i$ layers. Only
    three things about it matter to later layers: the bytes that it keeps, its cost, and
    whether the tensor between layers $i$ and $i+1$ is among those bytes. Take two
    partial plans that agree about this tensor. If one of them keeps more bytes and also
    costs more, the other one is better whatever follows, so the worse one is dropped.
    No others are dropped, so the best plan is never missed.

    A segment that runs again needs room beside what the segments before it keep.
    Partial plans grow from the front, so these bytes are known when a segment is added.

    **How long the search takes.** Among partial plans with equal cost one is left.
    Where layers are alike, as the blocks of a GPT are, there are few different costs.
    Then each layer has at most three times as many partial plans as the chain has
    layers. If no two layers are alike there are many more plans, and the search through
    a chain of a hundred layers is slow.

    :param chain: [what the layers cost](costs.py#measure)
    :param budget: bytes for what autograd saves
    :raises ValueError: if no plan is within the budget
    """
    ways = search(chain, budget)
    if not ways:
        raise ValueError(
            f"no plan for this chain is within {budget} bytes; the smallest budget for "
            f"which there is one is {least(chain)} bytes"
        )
    best = min(ways, key=lambda way: (way.cost, way.saved))
    return evaluate(chain, best.segments())


def least(chain: Chain) -> int:
    """Find the smallest budget, in bytes, for which there is a plan.

    If a budget is sufficient, so is every larger one. Therefore bisection finds the
    smallest. The cost of a plan does not matter here, so the costs of all layers are
    set to zero. Then at most two partial plans are left at each layer: one that keeps
    the tensor after the layer, and one that does not. So each test of a budget takes
    little time.
    """
    layers = tuple(
        replace(layer, cost=0, replay=None if layer.replay is None else 0)
        for layer in chain.layers
    )
    free = Chain(chain.input, layers)
    # Keeping all segments is a plan, too, so its peak is a sufficient budget.
    enough = evaluate(chain, []).peak
    return bisect_left(
        range(enough), True, key=lambda budget: bool(search(free, budget))
    )


class Way(NamedTuple):
    """A partial plan: a way to treat the first layers of a chain.

    :param counted: whether the tensor after these layers is among the kept bytes
    :param last: the last segment, and `before` the partial plan of what comes before it
    """

    saved: int
    cost: float
    counted: bool
    last: Span | None = None
    before: Way | None = None

    def segments(self) -> list[Span]:
        found: list[Span] = []
        way: Way | None = self
        while way is not None and way.last is not None:
            found.append(way.last)
            way = way.before
        return found[::-1]


def search(chain: Chain, budget: int) -> list[Way]:
    """All plans for the whole chain within a budget, without those that another plan
    makes superfluous.
    """
    length = len(chain.layers)
    ways: list[list[Way]] = [[] for _ in range(length + 1)]
    ways[0].append(Way(0, 0, False))
    for start in range(length):
        for counted in (False, True):
            here = worth_having(way for way in ways[start] if way.counted is counted)
            if not here:
                continue
            for segment, step in next_ones(chain, start, counted):
                room = budget - step.kept - step.recomputed
                for way in here:
                    if way.saved > room:
                        break
                    saved, cost = way.saved + step.kept, way.cost + step.cost
                    further = Way(saved, cost, step.counted, segment, way)
                    ways[segment.stop].append(further)
        # The partial plans of this layer are no longer needed; dropping them frees
        # their memory.
        ways[start].clear()
    return worth_having(ways[length])


def next_ones(
    chain: Chain, start: int, counted: bool
) -> Iterator[tuple[Span, SegmentCost]]:
    """The segments that may begin at a layer, each with the bytes and the cost that it
    adds.
    """
    # A kept segment of two layers equals two kept segments of one layer, so one layer
    # is enough.
    one = Span(start, start + 1, recompute=False)
    step = take(chain, one, counted)
    assert step is not None
    yield one, step
    for length, step in enumerate(growing(chain, start, counted), 1):
        yield Span(start, start + length, recompute=True), step


def worth_having(ways: Iterable[Way]) -> list[Way]:
    """Drop each partial plan that has a better one: one that keeps as few bytes or
    fewer, and costs as little or less.
    """
    kept: list[Way] = []
    for way in sorted(ways, key=lambda way: (way.saved, way.cost)):
        if not kept or way.cost < kept[-1].cost:
            kept.append(way)
    return kept
