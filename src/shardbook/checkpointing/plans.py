r"""# The memory and the cost of a plan

> For a cut of a chain into kept and checkpointed segments, the peak of saved bytes and
> the FLOPs follow exactly.

A *plan* cuts [a chain](sequential.py) into segments, and each segment is either kept or
checkpointed. In a kept segment all tensors that its layers save stay in memory. Of a
checkpointed segment only the input stays, and the backward pass runs the segment once
more. A plan has a *cost*, the FLOPs of these second runs, and a *peak*, the most bytes
that autograd saves at one moment:

$$M = \max_s \bigl(p_1 + \dots + p_s + r_s\bigr)$$

After the forward pass each segment has kept its $p_s$ bytes. The backward pass goes
through the segments from the last to the first, and frees the tensors that it has used.
So when segment $s$ is recomputed, the bytes of the later segments are free already,
while those of the earlier segments are still there.

Cost and peak follow from [the cost of each layer](costs.py#measure), and both are
exact: a chain that runs by the plan saves as many bytes and computes as many FLOPs. The
peak counts saved bytes, and a device needs more than that. Not counted are the
parameters, the gradients, the temporaries and workspaces inside one layer, what the
allocator loses to fragments, and the state of the generators, which is 5 kB for each
checkpoint on a CPU.

:notation $M$: `Plan.peak`, the most bytes that are saved at one moment
:notation $p_s$: `SegmentCost.kept`, the bytes that segment $s$ keeps from its forward
    pass to its backward pass
:notation $r_s$: `SegmentCost.recomputed`, the bytes that its second run saves anew
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from shardbook.checkpointing.costs import Chain
from shardbook.checkpointing.sequential import Span, run

__all__ = ["Plan", "evaluate"]


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

    >>> from shardbook.checkpointing.costs import Layer
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
