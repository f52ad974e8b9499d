r"""# Checkpointing a chain in segments

> With about √n segments, the memory of a chain of n layers grows as √n, for one more forward pass.

A checkpoint around a function keeps the function's input and drops the rest. Where in a
chain of $n$ layers should you put checkpoints? One checkpoint around the whole chain
does not lower the peak: the backward pass begins with a recomputation of the chain, and
then the activations of all layers exist at once. With a checkpoint around each single
layer the recomputed part is as small as possible, but $n$ inputs are kept. Between
these extremes, the chain is cut into $k$ *segments* of several layers:

```python
y = checkpoint_sequential(model, segments=4, input=x)
```

**How many segments?** Suppose that each layer saves one tensor of $b$ bytes, and that
the tensors between the layers have $b$ bytes, too. After the forward pass the inputs of
the segments are in memory, $k\,b$ bytes. The backward pass adds one segment at a time,
$(n/k)\,b$ bytes for each. Together these are

$$M(k) = \Bigl(k + \frac{n}{k}\Bigr)\, b \;\ge\; 2\sqrt n\; b$$

The mean of two positive numbers is at least the root of their product. Mean and root
are equal where $k = n/k$. So the best number of segments is $k = \sqrt n$. For example,
a chain of 10,000 layers in 100 segments needs the memory of 200 layers, for one more
forward pass. For a residual network of 1,000 layers [Chen et al.](bib:chen2016training)
report 7 GB instead of 48 GB, and 30 % more time.

**The experiment.** A linear layer and a tanh save one tensor: the tanh saves its
output, and the next layer's input is that same tensor. Sixteen such layers and the
input of the first one make 17 tensors. The last segment is not checkpointed, since the
backward pass begins with it. So after the forward pass the chain holds exactly what the
formula adds up: $k$ inputs and one whole segment. The lines show the number of segments
and of saved tensors:

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

With $\sqrt{16} = 4$ segments the chain holds 8 tensors, four inputs and the four of the
last segment, as the formula says.

**Where the rule fails.** The rule assumes that a layer saves as many bytes as it reads.
A block of [the GPT](gpt.py) saves about 16 times that. Let a layer save $a$ bytes. Then
$M(k) = k\,b + (n/k)\,a$ is smallest at $k = \sqrt{n\,a/b}$. With $a = 16\,b$ that is
$4\sqrt n$, and for $n \le 16$ that is $n$ or more: each block becomes a segment of its
own. For layers that differ from each other there is no formula, but [the cheapest
plan](budget.py) for a budget can be computed.

:figure: sqrt_n_pareto
:notation $n$: `len(layers)`, the number of layers in the chain
:notation $k$: `segments`, the number of segments
:notation $b$: the bytes of a tensor between two layers
:notation $a$: the bytes that a layer saves
:notation $M$: the bytes that the chain holds at most
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shardbook.checkpointing.checkpointing import Options, checkpoint

__all__ = ["Span", "checkpoint_sequential", "cut", "lengths", "run"]

# sidelit: hide
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
    r"""Run a chain of layers, and checkpoint its segments.

    The result and the gradients equal those of
    `torch.utils.checkpoint.checkpoint_sequential`, and those of the chain without
    checkpoints.

    **The last segment** is not checkpointed, unless `last` asks for it. The backward
    pass begins with it, so its activations would be recomputed at once. With `last` a
    step runs the last segment's forward pass twice, and the peak of the backward pass
    does not change. Only the memory between the forward pass and the backward pass is
    lower. That helps if an operation after the chain needs much memory, such as [a
    large loss](chunked_loss.py). In the chain of the experiment, with four segments:

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

    A training step of a linear layer computes three matrix products of the same size:
    one in the forward pass, two in the backward pass. Four segments of sixteen layers
    add 0.75 of a forward pass, and with `last` they add a whole one.

    **Layers that do not divide evenly.** As in PyTorch, all segments but the last have
    $\lfloor n/k \rfloor$ layers, and the last one has the rest. Yet the last segment is
    the one that keeps all tensors of its layers. With `balanced`, [lengths](#lengths)
    differ by at most one.

    :param functions: an `nn.Sequential`, or an iterable of modules and functions; each
        takes what the one before it returns
    :param segments: the number of segments, from 1 to the length of the chain
    :param input: the argument of the first function; a tuple is passed as one value
    :param last: whether the last segment is checkpointed, too
    :param balanced: whether the segments are as equal as they can be
    :param options: those of [`checkpoint`](checkpointing.py#checkpoint)
    :raises ValueError: if `segments` is not a number from 1 to the length of the chain
    """
    # A module that appears twice in the chain runs twice. `children()` would list it
    # once, and the chain would compute something else.
    layers = list(functions)
    plan = cut(len(layers), segments, last=last, balanced=balanced)
    return run(layers, plan, input, **options)


def cut(
    layers: int, segments: int, *, last: bool = False, balanced: bool = False
) -> list[Span]:
    """Cut a chain into segments, by the parameters of
    [`checkpoint_sequential`](#checkpoint_sequential).
    """
    plan, start = [], 0
    for length in lengths(layers, segments, balanced=balanced):
        stop = start + length
        plan.append(Span(start, stop, recompute=last or stop < layers))
        start = stop
    return plan


def lengths(layers: int, segments: int, *, balanced: bool = False) -> list[int]:
    """Compute the number of layers in each segment.

    >>> lengths(15, 8)
    [1, 1, 1, 1, 1, 1, 1, 8]
    >>> lengths(15, 8, balanced=True)
    [2, 2, 2, 2, 2, 2, 2, 1]

    The first cut leaves eight layers to the last segment, which is not checkpointed.
    With the layers of the experiment it keeps 16 tensors, as many as without
    checkpoints. In the balanced cut no segment is longer than necessary, and the
    shorter ones come last. This cut keeps 9 tensors.

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
    """Run a chain by the segments of [an equal cut](#cut) or of [a plan](plans.py).

    :param options: those of [`checkpoint`](checkpointing.py#checkpoint)
    :raises TypeError: if an option is unknown, even if no segment is checkpointed
    :raises ValueError: if the options do not go together
    """
    # `checkpoint` passes an unknown keyword on to the function, so wrong options are
    # refused here.
    Options(**options)
    layers, value = list(functions), input
    for segment in segments:
        part = partial(through, layers[segment.start : segment.stop])
        value = checkpoint(part, value, **options) if segment.recompute else part(value)
    return value


def through(layers: Sequence[Function], value: Any) -> Any:
    """Run layers one after the other, as one function that a checkpoint can repeat."""
    for layer in layers:
        value = layer(value)
    return value
