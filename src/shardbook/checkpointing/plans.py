r"""# The memory and the cost of a plan

> Which segments of a chain are checkpointed decides the bytes at each moment and the FLOPs of the whole.

A *plan* cuts [a chain](sequential.py) into segments. A segment is kept or checkpointed.
If it is kept, all that its layers save stays. If it is checkpointed, its input stays,
and the backward pass runs the whole segment once more. A plan has a *cost*, the FLOPs
of these second runs, and a *peak*, the most bytes that autograd saves at one moment:

$$M = \max_s \bigl(p_1 + \dots + p_s + r_s\bigr)$$

After the forward pass each segment has kept its $p_s$ bytes. The backward pass goes
through the segments from the last to the first, and frees what it has used. So when
segment $s$ is recomputed, what the later segments kept is gone, and what the earlier
ones kept is still there.

Both numbers are exact, for what autograd saves and for what FLOPs count. They follow
from [what each layer costs](costs.py#measure), and a real chain that is run by the plan
saves as many bytes and computes as many FLOPs. The peak is one of saved bytes, and not
what a device needs. Not counted are the parameters, the gradients, the temporaries and
workspaces inside one layer, what the allocator loses to fragments, and the state of the
generators, which is 5 kB for each checkpoint on a CPU.

:notation $M$: `Plan.peak`, the most bytes that are saved at one moment
:notation $p_s$: `SegmentCost.kept`, the bytes that segment $s$ keeps between the two passes
:notation $r_s$: `SegmentCost.recomputed`, the bytes that its second run saves anew
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from shardbook.checkpointing.costs import Chain
from shardbook.checkpointing.sequential import Span, run

__all__ = ["Plan", "evaluate"]
# sidelit: show


@dataclass(frozen=True, slots=True)
class Plan:
    """A way to run a chain, with its memory and its cost.

    :param segments: the cut of the chain; together they are the whole of it
    :param cost: what the backward pass recomputes, in the unit of the chain
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

        :param functions: the chain that was measured
        :param input: what the first function takes
        :param options: those of [`checkpoint`](checkpointing.py#checkpoint); without
            `early_stop` more is computed than the plan says
        """
        return run(functions, self.segments, input, **options)


def evaluate(chain: Chain, segments: Iterable[Span]) -> Plan:
    """The memory and the cost of a plan. Layers that are in no segment are kept.

    >>> from shardbook.checkpointing.costs import Layer
    >>> tanh = Layer(10, 10, 0, 4, saves_input=False, saves_output=True)
    >>> evaluate(Chain(4, (tanh,) * 4), [Span(0, 3, recompute=True)])
    ... # doctest: +NORMALIZE_WHITESPACE
    Plan(segments=(Span(start=0, stop=3, recompute=True),
                   Span(start=3, stop=4, recompute=False)),
         cost=30, saved=8, peak=16)

    After the forward pass 8 bytes are saved: 4 for the input of layer 0, which the
    checkpoint keeps, and 4 for the output of layer 3. In the backward pass layer 3 is
    done first and gives its 4 back. Then layers 0 to 2 run again and save 4 each,
    beside the 4 of the input: 16.

    :raises ValueError: if a segment cannot be checkpointed, because a layer writes over
        its input
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
    """What one segment adds to a plan.

    :param kept: the bytes that it keeps between the passes
    :param recomputed: the bytes that its second run saves anew
    :param cost: what its second run computes
    :param counted: whether the tensor after it is among the kept bytes
    """

    kept: int
    recomputed: int
    cost: float
    counted: bool


def take(chain: Chain, segment: Span, counted: bool) -> SegmentCost | None:
    """What a segment adds, or nothing if it cannot be checkpointed.

    :param counted: whether its input is among the kept bytes already
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
    """What the checkpointed segments that begin at a layer add, the shortest first.

    Each is the one before it and one layer more, so all of them together take as much
    work as the longest. The list ends before the first segment that cannot be
    checkpointed, because every longer one contains the same layers.
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
            # The second run ends at the last tensor that is saved.
            cost = before + layer.replay
        before += layer.cost
        if cost is None:
            # No tensor of it is ever wanted, so it does not run again.
            yield SegmentCost(0, 0, 0, counted and through)
        else:
            yield SegmentCost(kept, recomputed, cost, through)


def with_layer(chain: Chain, index: int, total: int, counted: bool) -> tuple[int, bool]:
    """Add the bytes that a layer saves, and say whether those of its output are counted.

    The output of a layer and the input of the next are one tensor. If both layers save
    it, it is counted once.

    :param counted: whether those of its input are
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
    """Whether the input of a layer is written over, by it or through it."""
    for layer in chain.layers[index:]:
        if layer.overwrites or not layer.passes:
            return layer.overwrites
    return False


def covering(segments: Iterable[Span], length: int) -> list[Span]:
    """The segments of a plan, with kept ones in the gaps.

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
