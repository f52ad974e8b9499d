r"""# The cheapest plan for a budget

> For a given number of bytes, the segments with the least recomputation are found exactly.

[A cut into equal segments](checkpointing.py#module/checkpointing-a-chain-in-segments)
is a good choice for equal layers. The layers of a real chain differ: some save many
bytes and cost few FLOPs, others the opposite. And you usually know how many bytes you
have, rather than how many segments you want. So `cheapest` finds [the
plan](budget.py#module/the-memory-and-the-cost) with the least cost among those whose
peak of saved bytes is within a budget. This budget is not the whole memory of a device:
parameters, gradients, optimizer state, workspaces and the allocator's fragments need
room beside it.

```python
plan = cheapest(measure(model, x), budget=2 * 10**9)
y = plan.apply(model, x)
```

`measure` runs the chain once, and counts for each layer [the bytes that autograd
saves](#module/what-a-layer-costs) and [the FLOPs](#module/counting-flops). From these
numbers [the peak and the cost](#module/the-memory-and-the-cost) of every plan follow,
so `cheapest` compares plans without running them.

**Compared with equal segments.** Take a GPT of 16 blocks. With its embedding and its
head the chain has 18 layers. The square-root rule cuts them into 4 segments and keeps
the last. The table shows the peak of saved bytes and the recomputed forward passes,
first for this rule. Then follow the cheapest plans for the memory that the rule needs,
for half of that, and for the smallest budget with a plan:

>>> import torch
>>> from shardbook.checkpointing.budget import measure
>>> from shardbook.models.gpt import GPT, Config
>>> from shardbook.checkpointing.checkpointing import cut
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
:notation $M$: `Plan.peak`, the most bytes that are saved at one moment
:notation $p_s$: `SegmentCost.kept`, the bytes that segment $s$ keeps from its forward
    pass to its backward pass
:notation $r_s$: `SegmentCost.recomputed`, the bytes that its second run saves anew
:notation $m$: the number of rows of the first matrix
:notation $k$: the number of its columns, and of the rows of the second
:notation $n$: the number of columns of the second matrix
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from shardbook.checkpointing.checkpointing import Span, run
from shardbook.foundations.rng import capture
from shardbook.foundations.torch_private import (
    ATTENTION_ON_CPU,
    TorchDispatchMode,
    Versions,
    tree_leaves,
)

__all__ = [
    "Chain",
    "FlopCounter",
    "Layer",
    "Plan",
    "Price",
    "SavedBytes",
    "cheapest",
    "evaluate",
    "flops_of",
    "least",
    "measure",
    "prices",
]


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

    :param chain: [what the layers cost](budget.py#measure)
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


# ## The memory and the cost of a plan
#
# > For a cut of a chain into kept and checkpointed segments, the peak of saved bytes and
# > the FLOPs follow exactly.
#
# A *plan* cuts [a chain](checkpointing.py#module/checkpointing-a-chain-in-segments)
# into segments, and each segment is either kept or checkpointed. In a kept segment all
# tensors that its layers save stay in memory. Of a checkpointed segment only the input
# stays, and the backward pass runs the segment once more. A plan has a *cost*, the
# FLOPs of these second runs, and a *peak*, the most bytes that autograd saves at one
# moment:
#
# $$M = \max_s \bigl(p_1 + \dots + p_s + r_s\bigr)$$
#
# After the forward pass each segment has kept its $p_s$ bytes. The backward pass goes
# through the segments from the last to the first, and frees the tensors that it has used.
# So when segment $s$ is recomputed, the bytes of the later segments are free already,
# while those of the earlier segments are still there.
#
# Cost and peak follow from [the cost of each layer](budget.py#measure), and both are
# exact: a chain that runs by the plan saves as many bytes and computes as many FLOPs. The
# peak counts saved bytes, and a device needs more than that. Not counted are the
# parameters, the gradients, the temporaries and workspaces inside one layer, what the
# allocator loses to fragments, and the state of the generators, which is 5 kB for each
# checkpoint on a CPU.


@dataclass(frozen=True, slots=True)
class Plan:
    """A cut of a chain into segments, with its memory and its cost.

    :param segments: the segments; together they cover the whole chain
    :param cost: the recomputation in the backward pass, in the unit of the chain, as
        FLOPs
    :param saved: the bytes that are saved after the forward pass
    :param peak: the most bytes that are saved at one moment
    """

    segments: tuple[Span, ...]
    cost: float
    saved: int
    peak: int

    def apply(
        self, functions: Iterable[Callable[[Any], Any]], input: Any, **options: Any
    ) -> Any:
        """Run the chain by this plan.

        :param functions: the layers of the chain that was measured
        :param input: what the first function takes
        :param options: those of [`checkpoint`](checkpointing.py#checkpoint); without
            `early_stop` the chain computes more than the plan's cost
        """
        return run(functions, self.segments, input, **options)


def evaluate(chain: Chain, segments: Iterable[Span]) -> Plan:
    """Compute the memory and the cost of a plan. Layers in no segment are kept.

    >>> from shardbook.checkpointing.budget import Layer
    >>> tanh = Layer(10, 10, 0, 4, saves_input=False, saves_output=True)
    >>> evaluate(Chain(4, (tanh,) * 4), [Span(0, 3, recompute=True)])
    ... # doctest: +NORMALIZE_WHITESPACE
    Plan(segments=(Span(start=0, stop=3, recompute=True),
                   Span(start=3, stop=4, recompute=False)),
         cost=30, saved=8, peak=16)

    After the forward pass 8 bytes are saved: 4 for the input of layer 0, which the
    checkpoint keeps, and 4 for the output of layer 3. In the backward pass layer 3
    comes first, and its 4 bytes are freed. Then layers 0 to 2 run again and save 4
    bytes each, beside the 4 of the input. Together these are 16, the peak.

    :raises ValueError: if a segment cannot be checkpointed, because a layer overwrites
        the segment's input
    """
    saved = peak = 0
    cost: float = 0
    counted, plan = False, list[Span]()
    for segment in covering(segments, len(chain.layers)):
        step = take(chain, segment, counted)
        if step is None:
            raise ValueError(
                f"layers {segment.start} to {segment.stop - 1} cannot be checkpointed: "
                "their input is written over, so it is not there for a second run"
            )
        peak = max(peak, saved + step.kept + step.recomputed)
        saved = saved + step.kept
        cost = cost + step.cost
        counted = step.counted
        plan.append(segment)
    return Plan(tuple(plan), cost, saved, peak)


class SegmentCost(NamedTuple):
    """The bytes and the cost that one segment adds to a plan.

    :param kept: the bytes that the segment keeps until its backward pass
    :param recomputed: the bytes that its second run saves anew
    :param cost: the FLOPs of its second run
    :param counted: whether the tensor after the segment is among the kept bytes
    """

    kept: int
    recomputed: int
    cost: float
    counted: bool


def take(chain: Chain, segment: Span, counted: bool) -> SegmentCost | None:
    """What one segment adds to a plan, or `None` if the segment cannot be checkpointed.

    :param counted: whether the segment's input is among the kept bytes already
    """
    length = segment.stop - segment.start
    if segment.recompute:
        steps = growing(chain, segment.start, counted)
        return next(islice(steps, length - 1, None), None)
    kept = 0
    for index in range(segment.start, segment.stop):
        kept, counted = with_layer(chain, index, kept, counted)
    return SegmentCost(kept, 0, 0, counted)


def growing(chain: Chain, start: int, counted: bool) -> Iterator[SegmentCost]:
    """What each checkpointed segment that begins at a given layer adds, the shortest
    first.

    Each segment extends the one before it by one layer, so computing all of them takes
    no more work than the longest. The list ends before the first segment that cannot be
    checkpointed, because every longer segment contains the same layers.
    """
    kept = 0 if counted else input_bytes(chain, start)
    recomputed = 0
    again = True
    through = True
    cost: float | None = None
    before: float = 0
    for index in range(start, len(chain.layers)):
        layer = chain.layers[index]
        recomputed, again = with_layer(chain, index, recomputed, again)
        through = through and layer.passes
        if layer.replay is not None:
            if overwritten(chain, start):
                return
            # Early stop ends the second run at the last saved tensor, so later layers
            # cost nothing yet.
            cost = before + layer.replay
        before += layer.cost
        if cost is None:
            # The segment saves no tensor so far, so it never runs again.
            yield SegmentCost(0, 0, 0, counted and through)
        else:
            yield SegmentCost(kept, recomputed, cost, through)


def with_layer(chain: Chain, index: int, total: int, counted: bool) -> tuple[int, bool]:
    """Add the bytes that a layer saves, and return whether the layer's output is among
    them.

    The output of a layer and the input of the next are one tensor. If both layers save
    it, it is counted once.

    :param counted: whether the layer's input is counted already
    """
    layer = chain.layers[index]
    total += layer.inner
    if layer.saves_input and not counted:
        total, counted = total + input_bytes(chain, index), True
    counted = counted and layer.passes
    if layer.saves_output and not counted:
        total, counted = total + layer.output, True
    return total, counted


def input_bytes(chain: Chain, index: int) -> int:
    return chain.layers[index - 1].output if index else chain.input


# sidelit: depth Layers that write over their input, and cuts with gaps or overlaps.


def overwritten(chain: Chain, index: int) -> bool:
    """Whether the input of a layer is overwritten, by this layer or by a later one
    through a view.
    """
    for layer in chain.layers[index:]:
        if layer.overwrites or not layer.passes:
            return layer.overwrites
    return False


def covering(segments: Iterable[Span], length: int) -> list[Span]:
    """Fill the gaps between the segments of a plan with kept segments.

    :raises ValueError: if they overlap, or reach beyond the chain
    """
    found: list[Span] = []
    end = 0
    for segment in [*segments, Span(length, length, recompute=False)]:
        if not end <= segment.start <= segment.stop <= length:
            raise ValueError(
                f"{segment} does not follow layer {end - 1} of a chain of {length} layers"
            )
        if end < segment.start:
            found.append(Span(end, segment.start, recompute=False))
        if segment.start < segment.stop:
            found.append(segment)
        end = segment.stop
    return found


# sidelit: core


# ## What a layer costs
#
# > For each layer, the tensors that autograd saves are counted in bytes, and their recomputation in FLOPs.
#
# In the forward pass each operation saves the tensors from which its gradient will be
# computed. They stay in memory until the backward pass has used them, and are called
# *activations*. Activation checkpointing drops some of them and recomputes them when they
# are needed. A good choice needs two numbers for each layer: the bytes that a checkpoint
# frees, and the computation that it adds.
#
# Neither number is in a layer's documentation. Some operations save their input, some
# their output, some both, and some a mask. So `measure` runs the layers once, and counts
# what autograd saves:
#
# >>> from torch import nn
# >>> chain = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8), nn.Tanh())
# >>> x = torch.zeros(4, 8)
# >>> for layer in measure(chain, x).layers:
# ...     saves = [name for name in ("input", "output") if getattr(layer, f"saves_{name}")]
# ...     print(f"{layer.cost:4} FLOPs, output {layer.output} bytes, saves its", *saves)
# 2048 FLOPs, output 512 bytes, saves its input
#    0 FLOPs, output 512 bytes, saves its input
# 2048 FLOPs, output 128 bytes, saves its input
#    0 FLOPs, output 128 bytes, saves its output
#
# A linear layer and a GELU save what they read. A tanh saves what it returns, because its
# derivative is $1 - \tanh^2$. If two neighbouring layers both save the tensor between
# them, it is one tensor, and is counted once.


class SavedBytes:
    """A block in which the bytes that autograd saves are counted.

    ```python
    with SavedBytes(model.parameters()) as saved:
        error = loss(model(x), y)
    print(saved.bytes)
    ```

    :param known: tensors that exist in any case, such as parameters; they are not
        counted
    :param counter: a counter of FLOPs; with it, `flops` holds the count at the moment
        of the last saved tensor
    """

    def __init__(
        self, known: Iterable[Tensor] = (), counter: FlopCounter | None = None
    ) -> None:
        self.hooks = saved_tensors_hooks(self.pack, lambda tensor: tensor)
        self.known = weakref.WeakSet(tensor.untyped_storage() for tensor in known)
        # Two saved tensors may be views of one block of memory, as the queries, keys
        # and values of an attention are. So storages are counted rather than tensors.
        # The references are weak, because counting a storage must not keep it alive.
        self.storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self.counter = counter
        self.flops: int | None = None

    def __enter__(self) -> SavedBytes:
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)

    def pack(self, tensor: Tensor) -> Tensor:
        """Count a tensor that autograd is about to save.

        This hook returns an alias instead of the tensor itself. If an operation saves
        its own output, the output holds the operation, and the operation would hold the
        output. Memory in such a circle stays until the garbage collector runs.
        """
        storage = tensor.untyped_storage()
        if storage not in self.known:
            self.storages.add(storage)
        if self.counter is not None:
            self.flops = self.counter.get_total_flops()
        return tensor.detach()

    @property
    def bytes(self) -> int:
        """The bytes of those saved storages that still exist. After the backward pass
        only the storages that something else holds are left, such as an input or a
        result.
        """
        return sum(storage.nbytes() for storage in self.storages)


@dataclass(frozen=True, slots=True)
class Layer:
    """The bytes and the FLOPs of one layer of a chain.

    :param cost: the FLOPs of its forward pass; or its seconds, if all layers are given
        in seconds
    :param replay: the part of `cost` up to the last tensor that the layer saves, where
        [a recomputation ends](segment.py#Collector); this is 0 for a linear
        layer, which saves its input before it computes; `None` if the layer saves
        nothing
    :param inner: the bytes that the layer saves, without its input and its output
    :param output: the bytes of its output
    :param saves_input: whether it saves its input
    :param saves_output: whether it saves its output
    :param passes: whether its output lies in the same memory as its input, as for
        `nn.Identity` or a view
    :param overwrites: whether it writes over its input, as `nn.ReLU(inplace=True)` does
    """

    cost: float
    replay: float | None
    inner: int
    output: int
    saves_input: bool
    saves_output: bool
    passes: bool = False
    overwrites: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """The layers of a chain, in their order.

    :param input: the bytes of what the first layer reads
    """

    input: int
    layers: tuple[Layer, ...]


def measure(functions: Iterable[Callable[[Any], Any]], input: Tensor) -> Chain:
    """Run the forward pass of a chain once, and count bytes and FLOPs layer by layer.

    The parameters and buffers of the modules are not counted. A tensor that two layers
    save is counted once if it is the output of one and the input of the next. Any other
    tensor that two layers save is counted twice, so a chain in which a tensor skips
    layers is overestimated.

    :param functions: an `nn.Sequential`, or an iterable of modules and functions
    :param input: what the first of them reads
    :raises TypeError: if anything but a single tensor goes into or out of a layer
    :raises RuntimeError: under `torch.no_grad()`, where autograd saves nothing
    """
    refuse_no_grad()
    functions = list(functions)
    modules = [function for function in functions if isinstance(function, nn.Module)]
    known = [
        tensor
        for module in modules
        for tensor in (*module.parameters(), *module.buffers())
    ]
    layers, value = [], input
    # The measurement must not change the random numbers or the buffers of the program.
    with capture(input, *modules).restored(), buffers_restored(modules):
        for function in functions:
            layer, value = measure_layer(function, value, known)
            layers.append(layer)
    return Chain(input.untyped_storage().nbytes(), tuple(layers))


def measure_layer(
    function: Callable[[Any], Any], value: Tensor, known: Iterable[Tensor]
) -> tuple[Layer, Tensor]:
    """Measure one layer, and return its output, too."""
    source, before = one_tensor(value).untyped_storage(), Versions(value)
    with FlopCounter() as counter, SavedBytes(known, counter) as saved:
        output = one_tensor(function(value))
    target = output.untyped_storage()
    inner = saved.bytes - sum(
        storage.nbytes() for storage in {source, target} & set(saved.storages)
    )
    return Layer(
        cost=counter.get_total_flops(),
        replay=saved.flops,
        inner=inner,
        output=target.nbytes(),
        saves_input=source in saved.storages,
        saves_output=target in saved.storages,
        passes=target is source,
        overwrites=bool(before.changed(value)),
    ), output


# sidelit: depth Buffers that a forward pass writes to, and chains that cannot be measured.


@contextmanager
def buffers_restored(modules: Iterable[nn.Module]) -> Iterator[None]:
    """A block that restores buffers at its end, such as the running mean of a batch
    normalisation. Some kernels write to a buffer without raising its version, so the
    values are compared.
    """
    before = [(buffer, buffer.clone()) for m in modules for buffer in m.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, values in before:
                if not torch.equal(buffer, values):
                    buffer.copy_(values)


def one_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    raise TypeError(
        f"a layer hands on a {type(value).__name__}; only a chain in which one tensor goes "
        "from layer to layer can be measured"
    )


def refuse_no_grad() -> None:
    """Refuse to measure where autograd saves nothing.

    :raises RuntimeError: if autograd is off
    """
    if not torch.is_grad_enabled():
        raise RuntimeError(
            "autograd saves nothing here; call measure outside of torch.no_grad() and "
            "torch.inference_mode()"
        )


# sidelit: core


# ## Counting FLOPs
#
# > The floating point operations of a function follow from the shapes of its tensors, operation by operation.
#
# The time of a step depends on the machine, and varies from run to run. The number of
# floating point operations, the *FLOPs*, is the same in every run, and on every machine
# that chooses the same kernels. So FLOPs can be compared exactly. A product of an $m
# \times k$ and a $k \times n$ matrix takes $2\,m\,k\,n$: one multiplication and one
# addition for each of the $m\,n$ results and each of the $k$ terms.
#
# The count leaves something out. An elementwise operation counts as zero, although it
# takes time, because it mostly moves bytes and computes little. So FLOPs predict the cost
# of a recomputation as long as matrix products take most of the time.


class FlopCounter(FlopCounterMode):
    """A block that counts the floating point operations inside it.

    In a matrix product, a convolution or an attention, each multiplication with its
    addition counts as two. PyTorch's counter has the formulas, and counts elementwise
    operations as zero. It has no formula for the attention kernel of the CPU, so this
    class adds one.
    """

    def __init__(self) -> None:
        forward, backward = ATTENTION_ON_CPU
        formulas = {forward: attention_flops, backward: attention_backward_flops}
        super().__init__(display=False, custom_mapping=formulas)


def attention_flops(
    q_BHTD: Sequence[int],
    k_BHSD: Sequence[int],
    v_BHSD: Sequence[int],
    *_: Any,
    **__: Any,
) -> int:
    """The FLOPs of an attention: one matrix product for the scores, another for the
    weighted sum of the values.

    A causal mask is not subtracted, just as in PyTorch's count for GPU kernels.

    :param q_BHTD: the shape of the queries; the others are those of the keys and values
    """
    batch, heads, rows, width = q_BHTD
    keys = k_BHSD[2]
    return 2 * batch * heads * rows * keys * (width + v_BHSD[3])


def attention_backward_flops(
    gradient_BHTD: Sequence[int],
    q_BHTD: Sequence[int],
    k_BHSD: Sequence[int],
    v_BHSD: Sequence[int],
    *_: Any,
    **__: Any,
) -> int:
    """The FLOPs of an attention's backward pass: five matrix products. The forward
    kernel keeps no scores, so the first product computes them again. Two more give the
    gradients of the scores and of the values, and the last two give those of the
    queries and of the keys.

    Three of the five are as wide as the queries, and two as wide as the values.

    :param gradient_BHTD: the shape of the gradient of the result; the others are those
        of the queries, the keys and the values
    """
    batch, heads, rows, width = q_BHTD
    keys = k_BHSD[2]
    return 2 * batch * heads * rows * keys * (3 * width + 2 * v_BHSD[3])


def flops_of(function: Callable[..., Any], *args: Any) -> int:
    """The FLOPs of one call.

    >>> import torch
    >>> flops_of(torch.matmul, torch.zeros(2, 3), torch.zeros(3, 5))
    60
    """
    with FlopCounter() as counter:
        function(*args)
    total: int = counter.get_total_flops()
    return total


@dataclass(slots=True)
class Price:
    """The FLOPs of all calls of one ATen operation, and the bytes of their results.

    :param op: its name
    :param calls: how often it was called
    :param flops: the FLOPs of all calls
    :param bytes: the new memory of the results; a view has none
    """

    op: str
    calls: int = 0
    flops: int = 0
    bytes: int = 0


def prices(function: Callable[..., Any], *args: Any) -> list[Price]:
    """Call a function, and list the operations in it that compute something.

    >>> import torch
    >>> prices(lambda x: torch.relu(x @ x).t(), torch.zeros(2, 2))
    [Price(op='mm', calls=1, flops=16, bytes=16), Price(op='relu', calls=1, flops=0, bytes=16)]
    """
    with FlopCounter() as counter, Prices(counter) as found:
        function(*args)
    return list(found.by_op.values())


class Prices(TorchDispatchMode):
    """The mode that records each operation below autograd, inside a counter of FLOPs."""

    def __init__(self, counter: FlopCounter) -> None:
        super().__init__()
        self.counter = counter
        self.by_op = dict[str, Price]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        before = self.counter.get_total_flops()
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            name = func.overloadpacket.__name__
            price = self.by_op.setdefault(name, Price(name))
            price.calls += 1
            price.flops += self.counter.get_total_flops() - before
            price.bytes += fresh_bytes((args, kwargs), result)
        return result


def fresh_bytes(given: Any, result: Any) -> int:
    """The bytes of those storages of a result that the arguments do not have."""
    old, new = (
        {
            leaf.untyped_storage()
            for leaf in tree_leaves(tree)
            if isinstance(leaf, Tensor)
        }
        for tree in (given, result)
    )
    return sum(storage.nbytes() for storage in new - old)
