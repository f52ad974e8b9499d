r"""# The cheapest plan for a budget

> Given the bytes that there are, the least that has to be computed twice can be found exactly.

[A cut into equal segments](sequential.py) is a good choice for equal layers. The layers
of a real chain differ: some save much and cost little, others the opposite. And what is
given is a number of bytes, not a number of segments. So this chapter finds [the
plan](plans.py) whose peak is within a budget and whose cost is the least:

```python
plan = cheapest(measure(model, x), budget=2 * 10**9)
y = plan.apply(model, x)
```

**Against the rule.** A GPT has 16 blocks, and with its embedding and head 18 layers. The
rule of the root cuts them into 4 segments and keeps the last. Below it are the cheapest
plans for the memory that the rule needs, for half of that, and for the least that is
enough:

>>> import torch
>>> from shardbook.costs import measure
>>> from shardbook.gpt import GPT, Config
>>> from shardbook.sequential import cut
>>> model = GPT(Config(layers=16, width=32, heads=4, context=32))
>>> chain = measure(model, torch.zeros(2, 32, dtype=torch.long))
>>> forward = sum(layer.cost for layer in chain.layers)
>>> rule = evaluate(chain, cut(18, 4, balanced=True))
>>> for name, plan in {
...     "all kept": evaluate(chain, []),
...     "the rule": rule,
...     "the same": cheapest(chain, rule.peak),
...     "one half": cheapest(chain, rule.peak // 2),
...     "the least": cheapest(chain, least(chain)),
... }.items():
...     print(f"{name:9} {plan.peak:9,} bytes {plan.cost / forward:.2f} forward passes")
all kept  2,147,584 bytes 0.00 forward passes
the rule    666,112 bytes 0.73 forward passes
the same    640,000 bytes 0.52 forward passes
one half    265,216 bytes 0.65 forward passes
the least   248,320 bytes 0.69 forward passes

A block saves about 16 times what it reads, so a segment of one block is what takes the
least. The cheapest plans checkpoint as many blocks as they must, each by itself, and
keep the last ones, which are gone when the first ones come back. The head is always
checkpointed: its matrix product comes after the last tensor that it saves, and so it is
never repeated.

**Best among what?** Among all cuts of the chain into segments, each of which is kept or
checkpointed as a whole. Other plans exist. A checkpoint inside of a checkpoint computes
some layers three times, and can take still less. [A policy](selective.py) keeps a part
of a layer.

:notation $i$: `start`, the number of layers that are dealt with already
"""

# sidelit: hide
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from shardbook.costs import Chain
from shardbook.plans import Plan, evaluate, take
from shardbook.sequential import Segment

__all__ = ["cheapest", "least"]
# sidelit: show


def cheapest(chain: Chain, budget: int) -> Plan:
    """The plan that computes the least twice, of those whose peak is within the budget.

    It is found layer by layer. All that later layers have to know of a way to treat the
    first $i$ layers is how many bytes it keeps, what it costs, and whether the tensor
    between layers $i$ and $i+1$ is among those bytes already. So of two ways that agree
    in the last, one that keeps more and costs more is forgotten. Nothing else is, and
    therefore no better plan is missed.

    Whether a segment fits when it runs again depends on what is kept *before* it. That
    is known here, because the ways are made from the front.

    :param chain: [what the layers take](costs.py#measure)
    :param budget: bytes for what autograd saves
    :raises ValueError: no plan is within the budget
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
    """The smallest budget for which there is a plan, in bytes.

    If a budget is enough, every larger one is. So half of the range can be left out
    after each try.
    """
    # To keep everything is a plan, too.
    enough = evaluate(chain, []).peak
    return bisect_left(
        range(enough), True, key=lambda budget: bool(search(chain, budget))
    )


class Way(NamedTuple):
    """A way to treat the first layers of a chain.

    :param counted: whether the tensor after them is among the bytes that it keeps
    :param last: the last segment, and `before` the way to treat what comes before it
    """

    saved: int
    cost: float
    counted: bool
    last: Segment | None = None
    before: Way | None = None

    def segments(self) -> list[Segment]:
        earlier = [] if self.before is None else self.before.segments()
        return earlier if self.last is None else [*earlier, self.last]


def search(chain: Chain, budget: int) -> list[Way]:
    """The ways to treat the whole chain that are worth having within a budget."""
    length = len(chain.layers)
    ways: list[list[Way]] = [[] for _ in range(length + 1)]
    ways[0].append(Way(0, 0, False))
    for start in range(length):
        # To keep two layers is the same as to keep one and then the other.
        next_ones = [Segment(start, start + 1, recompute=False)]
        for stop in range(start + 1, length + 1):
            next_ones.append(Segment(start, stop, recompute=True))
        for counted in (False, True):
            here = worth_having(way for way in ways[start] if way.counted is counted)
            for segment in next_ones if here else ():
                step = take(chain, segment, counted)
                if step is None:
                    continue
                for way in here:
                    if way.saved + step.kept + step.returns <= budget:
                        saved, cost = way.saved + step.kept, way.cost + step.cost
                        further = Way(saved, cost, step.counted, segment, way)
                        ways[segment.stop].append(further)
    return worth_having(ways[length])


def worth_having(ways: Iterable[Way]) -> list[Way]:
    """Without those of which another one keeps no more and costs no more."""
    kept: list[Way] = []
    for way in sorted(ways, key=lambda way: (way.saved, way.cost)):
        if not kept or way.cost < kept[-1].cost:
            kept.append(way)
    return kept
