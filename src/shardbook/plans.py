r"""# What a plan takes

> Which segments of a chain are checkpointed decides the bytes at each moment and the FLOPs of the whole.

A *plan* cuts [a chain](sequential.py) into segments. A segment is either kept, with all
that its layers save. Or it is checkpointed: then its input is kept, and when the backward
pass arrives, the whole segment runs again, once. A plan has two numbers. Its *cost* is
what runs again. Its *peak* is the most that is saved at one moment:

$$M = \max_s \bigl(p_1 + \dots + p_s + r_s\bigr)$$

After the forward pass each segment has kept its $p_s$. The backward pass goes through
the segments from the last to the first, and gives back what it has used. So when segment
$s$ runs again, what came after it is gone, and what came before it is still there.

Both numbers are exact. They follow from [what each layer takes](costs.py#measure), and a
real chain that is run by the plan saves as many bytes and computes as many FLOPs. Not
counted are the gradients, the temporaries inside of one layer, and the state of the
generators, which is 5 kB for each checkpoint on a CPU.

:notation $M$: `Plan.peak`, the most that is saved at one moment
:notation $p_s$: `Step.kept`, what segment $s$ keeps between the two passes
:notation $r_s$: `Step.returns`, what comes back when segment $s$ runs again
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardbook.costs import Chain
from shardbook.sequential import Segment, run

__all__ = ["Plan", "evaluate"]
# sidelit: show


@dataclass(frozen=True, slots=True)
class Plan:
    """A way to run a chain, and what it takes.

    :param segments: the cut of the chain; together they are the whole of it
    :param cost: what runs again in the backward pass, in the unit of the chain
    :param saved: the bytes that are saved after the forward pass
    :param peak: the most bytes that are saved at one moment
    """

    segments: tuple[Segment, ...]
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


def evaluate(chain: Chain, segments: Iterable[Segment]) -> Plan:
    """What a plan takes. Layers that are in no segment are kept.

    >>> from shardbook.costs import Layer
    >>> tanh = Layer(10, 10, 0, 4, saves_input=True, saves_output=True)
    >>> evaluate(Chain(4, (tanh,) * 4), [Segment(0, 3, recompute=True)])
    ... # doctest: +NORMALIZE_WHITESPACE
    Plan(segments=(Segment(start=0, stop=3, recompute=True),
                   Segment(start=3, stop=4, recompute=False)),
         cost=30, saved=12, peak=16)

    Four bytes each are saved of the input, of what layer 3 reads and of what it returns.
    Once layer 3 is done, its two are given back, and layers 0 to 2 bring three more.

    :raises ValueError: a segment cannot be checkpointed, because a layer writes over
        its input
    """
    saved = peak = 0
    cost: float = 0
    counted, plan = False, list[Segment]()
    for segment in covering(segments, len(chain.layers)):
        step = take(chain, segment, counted)
        if step is None:
            raise ValueError(
                f"layers {segment.start} to {segment.stop - 1} cannot be checkpointed: "
                "their input is written over, so it is not there for a second run"
            )
        peak = max(peak, saved + step.kept + step.returns)
        saved, cost, counted = saved + step.kept, cost + step.cost, step.counted
        plan.append(segment)
    return Plan(tuple(plan), cost, saved, peak)


class Step(NamedTuple):
    """What one segment adds to a plan.

    :param kept: the bytes that it keeps between the passes
    :param returns: the bytes that come back while it runs again
    :param cost: what runs again
    :param counted: whether the tensor after it is among the kept bytes
    """

    kept: int
    returns: int
    cost: float
    counted: bool


def take(chain: Chain, segment: Segment, counted: bool) -> Step | None:
    """What a segment adds, or nothing if it cannot be checkpointed.

    :param counted: whether its input is among the kept bytes already
    """
    if not segment.recompute:
        kept, after = saved_by(chain, segment, counted)
        return Step(kept, 0, 0, after)
    layers = chain.layers[segment.start : segment.stop]
    through = all(layer.passes for layer in layers)
    saving = [index for index, layer in enumerate(layers) if layer.replay is not None]
    if not saving:
        # Nothing is ever wanted of it, so it does not run again.
        return Step(0, 0, 0, counted and through)
    if overwritten(chain, segment.start):
        return None
    # The second run ends at the last tensor that is saved.
    last = saving[-1]
    cost = sum(layer.cost for layer in layers[:last]) + (layers[last].replay or 0)
    kept = 0 if counted else input_bytes(chain, segment.start)
    returns, _ = saved_by(chain, segment, counted=True)
    return Step(kept, returns, cost, through)


def saved_by(chain: Chain, segment: Segment, counted: bool) -> tuple[int, bool]:
    """The bytes that the layers of a segment save, and whether those of its output are
    among them.

    The output of a layer and the input of the next are one tensor. If both layers save
    it, it is counted once.
    """
    total = 0
    for index in range(segment.start, segment.stop):
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


def overwritten(chain: Chain, index: int) -> bool:
    """Whether the input of a layer is written over, by it or through it."""
    for layer in chain.layers[index:]:
        if layer.overwrites or not layer.passes:
            return layer.overwrites
    return False


def covering(segments: Iterable[Segment], length: int) -> list[Segment]:
    """The segments of a plan, with kept ones in the gaps.

    :raises ValueError: they overlap, or reach beyond the chain
    """
    found: list[Segment] = []
    end = 0
    for segment in [*segments, Segment(length, length, recompute=False)]:
        if not end <= segment.start <= segment.stop <= length:
            raise ValueError(
                f"{segment} does not follow layer {end - 1} of a chain of {length} layers"
            )
        if end < segment.start:
            found.append(Segment(end, segment.start, recompute=False))
        if segment.start < segment.stop:
            found.append(segment)
        end = segment.stop
    return found
