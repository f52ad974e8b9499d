r"""# A chain in segments

> Keep the input of each segment and recompute the rest: memory then grows as the root of the depth.

A checkpoint around a function keeps the function's input and drops the rest. Where in a
chain of $n$ layers should checkpoints stand? Around the whole chain a checkpoint does
not lower the peak. The backward pass begins with a recomputation of the chain, and then
the activations of all layers are there at once. Around each single layer the recomputed
part is as small as can be, but $n$ inputs are kept. In between, the chain is cut into
$k$ *segments* of several layers:

```python
y = checkpoint_sequential(model, segments=4, input=x)
```

**How many segments?** Say that each layer saves one tensor of $b$ bytes, and that the
tensors between the layers have $b$ bytes too. After the forward pass the inputs of the
segments are there, $k\,b$. The backward pass adds one segment at a time, $(n/k)\,b$ for
each. Together these are

$$M(k) = \Bigl(k + \frac nk\Bigr)\, b \;\ge\; 2\sqrt n\; b$$

The mean of two positive numbers is at least the root of their product. Mean and root
are equal where $k = n/k$. So the best number of segments is $k = \sqrt n$. A chain of
10,000 layers then needs the memory of 200, for one more forward pass. For a residual
network of 1,000 layers [Chen et al.](bib:chen2016training) report 7 GB instead of
48 GB, and 30 % more time.

**The experiment.** A linear layer and a tanh save one tensor: the tanh saves its
output, and the next layer's input is that same tensor. Sixteen of them, and the input
that the first one saves, make 17. The last segment of the cut is not checkpointed,
since the backward pass begins with it. So after the forward pass the chain holds what
the formula adds up, $k$ inputs and one whole segment. It is cut into more and more
segments:

>>> import torch
>>> from torch import nn
>>> from shardbook.checkpointing.costs import SavedBytes
>>> layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(16)]
>>> x = torch.zeros(4, 8)
>>> for segments in (1, 2, 4, 8, 16):
...     known = nn.ModuleList(layers).parameters()
...     with SavedBytes(known) as saved:
...         y = checkpoint_sequential(layers, segments, x)
...     print(segments, saved.bytes // x.nbytes)
1 17
2 10
4 8
8 10
16 17

At the root of 16 the chain holds 8 tensors, four inputs and the four of the last
segment, as the formula says.

**Where the rule ends.** It supposes layers that save as much as they read. A block of
[the GPT](gpt.py) saves about 16 times that. Let a layer save $a$ bytes. Then
$M(k) = k\,b + (n/k)\,a$ is smallest at $k = \sqrt{n\,a/b}$. With $a = 16\,b$ that is
$4\sqrt n$, and for $n \le 16$ it is $n$ or more: each block is a segment of its own.
For layers that differ there is no formula, but [the cheapest plan](budget.py) for a
budget can be computed.

:notation $n$: `len(layers)`, the number of layers in the chain
:notation $k$: `segments`, the number of segments
:notation $b$: the bytes of a tensor between two layers
:notation $a$: the bytes that a layer saves
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shardbook.checkpointing.checkpointing import Options, checkpoint

__all__ = ["Span", "checkpoint_sequential", "cut", "lengths", "run"]

Function = Callable[[Any], Any]
# sidelit: show


def checkpoint_sequential(
    functions: Iterable[Function],
    segments: int,
    input: Any,
    *,
    last: bool = False,
    balanced: bool = False,
    **options: Any,
) -> Any:
    r"""Run a chain, and checkpoint its segments.

    The result and the gradients are those of
    `torch.utils.checkpoint.checkpoint_sequential` and of the chain without checkpoints.

    **The last segment** is not checkpointed, unless `last` asks for it. The backward
    pass begins with it, so its activations would be recomputed at once. With `last` the
    step computes that segment's forward pass twice, and the peak of the backward pass
    stays as it is. Only the memory between the passes is lower. That helps if what
    follows the chain needs memory of its own, such as [a large loss](chunked_loss.py).
    In the chain of the experiment, with four segments:

    >>> import torch
    >>> from torch import nn
    >>> from shardbook.checkpointing.costs import SavedBytes
    >>> from shardbook.checkpointing.flops import FlopCounter
    >>> layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(16)]
    >>> x, forward = torch.zeros(4, 8, requires_grad=True), 16 * 2 * 4 * 8 * 8
    >>> for last in (False, True):
    ...     known = nn.ModuleList(layers).parameters()
    ...     with FlopCounter() as flops, SavedBytes(known) as saved:
    ...         y = checkpoint_sequential(layers, 4, x, last=last)
    ...         kept = saved.bytes // x.nbytes
    ...         y.sum().backward()
    ...     print(kept, flops.get_total_flops() / forward)
    8 3.75
    4 4.0

    A training step of a linear layer is three products of the same size: one forward,
    two backward. With four segments of sixteen layers 0.75 of a forward pass comes on
    top, and with `last` all of it.

    **Layers that do not divide evenly.** As in PyTorch, all segments but the last have
    $\lfloor n/k \rfloor$ layers, and the last one has the rest. It is also the one that
    keeps all that its layers save. With `balanced`, [lengths](#lengths) differ by one
    at most.

    :param functions: an `nn.Sequential`, or an iterable of modules and functions; each
        takes what the one before it returns
    :param segments: into how many segments the chain is cut, from 1 to its length
    :param input: what the first function takes; a tuple is handed over as one value
    :param last: whether the last segment is checkpointed, too
    :param balanced: whether the segments are as equal as they can be
    :param options: those of [`checkpoint`](checkpointing.py#checkpoint)
    :raises ValueError: if `segments` is not a number from 1 to the length of the chain
    """
    # A module that stands twice in the chain runs twice. `children()` would name it
    # once, and the chain would compute something else.
    layers = list(functions)
    plan = cut(len(layers), segments, last=last, balanced=balanced)
    return run(layers, plan, input, **options)


def cut(
    layers: int, segments: int, *, last: bool = False, balanced: bool = False
) -> list[Span]:
    """The segments of a chain, by the parameters of
    [`checkpoint_sequential`](#checkpoint_sequential).
    """
    plan, start = [], 0
    for length in lengths(layers, segments, balanced=balanced):
        stop = start + length
        plan.append(Span(start, stop, recompute=last or stop < layers))
        start = stop
    return plan


def lengths(layers: int, segments: int, *, balanced: bool = False) -> list[int]:
    """How many layers each segment has.

    >>> lengths(15, 8)
    [1, 1, 1, 1, 1, 1, 1, 8]
    >>> lengths(15, 8, balanced=True)
    [2, 2, 2, 2, 2, 2, 2, 1]

    The first cut leaves eight layers to the last segment, which is not checkpointed. So
    it keeps 16 tensors, if the layers are those of the experiment, as many as without
    checkpoints. In the balanced cut no segment is longer than it has to be, and the
    shorter ones come last. It keeps 9 tensors.

    :raises ValueError: if `segments` is not a number from 1 to `layers`
    """
    whole = isinstance(segments, int) and not isinstance(segments, bool)
    if not whole or not 1 <= segments <= layers:
        raise ValueError(
            f"segments is {segments!r}, but a chain of {layers} layers can be cut into 1 "
            f"to {layers} segments"
        )
    each, rest = divmod(layers, segments)
    if balanced:
        return [each + 1] * rest + [each] * (segments - rest)
    return [each] * (segments - 1) + [each + rest]


@dataclass(frozen=True, slots=True)
class Span:
    """The layers from `start` to just before `stop`.

    :param recompute: whether to checkpoint them
    """

    start: int
    stop: int
    recompute: bool


def run(
    functions: Iterable[Function],
    segments: Iterable[Span],
    input: Any,
    **options: Any,
) -> Any:
    """Run a chain that [the equal cut](#cut) or [a plan](plans.py) has cut.

    :param options: those of [`checkpoint`](checkpointing.py#checkpoint)
    :raises TypeError: if an option is unknown, even if no segment is checkpointed
    :raises ValueError: if the options do not go together
    """
    # To a checkpoint a keyword that is no option is an argument of the function.
    Options(**options)
    layers, value = list(functions), input
    for segment in segments:
        part = partial(through, layers[segment.start : segment.stop])
        value = checkpoint(part, value, **options) if segment.recompute else part(value)
    return value


def through(layers: Sequence[Function], value: Any) -> Any:
    """A chain as one function, so that a checkpoint can run it again."""
    for layer in layers:
        value = layer(value)
    return value
