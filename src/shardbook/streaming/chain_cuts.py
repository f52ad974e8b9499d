r"""# Cutting a model into slices

> Consecutive layers form slices, cut so that the largest two neighbours take as few bytes as possible.

[Streaming](streaming.py) moves the *slices* of a chain to the device, one after the
other. A slice here is some consecutive layers, and has nothing to do with the 1-D
slices of [parameters](zero3.py) that ranks hold. Two slices are on the device at a
time: the one that computes, and the next one. So this chapter minimises the largest sum
of two neighbours.

That is not the same as to minimise the largest slice. Suppose layers of 1, 4, 1 and 4
bytes are to be cut into at most three slices. If no slice may have more than 5 bytes,
two slices of 5 bytes will do, and 10 bytes are on the device at a time. With slices of
5, 1 and 4 bytes it is 6 at a time.

Many small slices need little memory. Few large slices keep fewer inputs between them.
They also move the same bytes in larger groups, so that more computation hides each
copy.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.func import functional_call

from shardbook.foundations.versions import Versions, writes_to
from shardbook.parameters.flat import is_sharded
from shardbook.parameters.parameter_sites import STREAMED

__all__ = [
    "Contents",
    "Seen",
    "Slice",
    "cut",
    "refuse_others",
    "slices_of",
]


def slices_of(
    chain: nn.Sequential, slices: int | None, dtype: torch.dtype | None
) -> list[Slice]:
    """The slices of a chain.

    :param slices: the largest number of slices; by default each layer with parameters
        begins one
    :param dtype: the dtype in which they will compute
    :raises TypeError: if the model is no plain chain, or the dtype no floating-point
        dtype
    :raises ValueError: if the model is streamed or sharded already, is empty or not on
        the host, or the number of slices makes no sense
    """
    refuse_unfit(chain, slices, dtype)
    layers = list(chain)
    parts = cut([bytes_of(layer) for layer in layers], slices)
    tensors = [*chain.named_parameters(), *chain.named_buffers()]
    names = {tensor: name for name, tensor in tensors}
    return [
        Slice(nn.Sequential(*layers[part.start : part.stop]), names) for part in parts
    ]


class Slice:
    """Consecutive layers. A parameter that two of its layers share is moved once.

    :param layers: the layers, as a chain of their own
    :param names: the names that parameters and buffers have in the model
    """

    def __init__(self, layers: nn.Sequential, names: dict[Tensor, str]) -> None:
        self.layers = layers
        self.names = names
        self.parameters = dict(layers.named_parameters())
        self.buffers = dict(layers.named_buffers())
        # A layer that is in the chain twice is visited once. `functional_call` would
        # visit it under both names, and leave the copies in it.
        self.places = {
            f"{prefix}.{name}".lstrip("."): tensor
            for prefix, module in layers.named_modules()
            for name, tensor in named_tensors(module, recurse=False).items()
        }

    def versions(self) -> Versions:
        """The numbers of writes to the parameters, which each in-place write raises."""
        return Versions(*self.parameters.values())

    def call(self, copies: dict[str, Tensor], x: Tensor) -> Any:
        """Compute with copies instead of the slice's own tensors.

        :param copies: of parameters and buffers; after the call, the tensors that the
            layers have put in their place
        """
        own = {**self.parameters, **self.buffers}
        copy_of = {own[name]: copy for name, copy in copies.items()}
        there = {place: copy_of[tensor] for place, tensor in self.places.items()}
        y = functional_call(self.layers, there, (x,), tie_weights=False)
        copies.update({name: there[name] for name in copies})
        return y

    # sidelit: depth A layer that writes to its own parameters.

    def refuse_writes(
        self, copies: dict[str, Tensor], versions: dict[str, int]
    ) -> None:
        """Refuse a forward pass that wrote to its own parameters.

        It has changed the copies, which are dropped. In a plain chain the change would
        stay.

        :raises RuntimeError: naming the parameter
        """
        for name, copy in copies.items():
            if writes_to(copy) != versions[name]:
                raise RuntimeError(
                    f"{self.names.get(self.parameters[name])} was written to in the "
                    "forward pass, and such a write does not last in a streamed chain; "
                    "change parameters between steps"
                )


def cut(sizes: Sequence[int], slices: int | None) -> list[range]:
    """Cut layers into consecutive parts with the smallest possible largest pair of
    neighbours.

    Of the cuts with the same largest pair, the result has the smallest largest part.

    >>> cut([1, 4, 1, 4], 3)
    [range(0, 2), range(2, 3), range(3, 4)]
    >>> cut([4, 0, 0, 1], None)
    [range(0, 3), range(3, 4)]

    :param sizes: the bytes of the layers
    :param slices: the largest number of parts
    """
    if slices is None:
        starts = [number for number, size in enumerate(sizes) if size or not number]
        ends = [*starts, len(sizes)]
    else:
        limits, last = range(sum(sizes) + 1), len(sizes)
        through = partial(fill, sizes, min(slices, last))
        # With a larger limit the parts reach as far or farther. So bisection finds the
        # smallest limit with which they reach the end.
        pair = bisect_left(limits, last, key=lambda limit: through(limit, limit)[-1])
        one = bisect_left(limits, last, key=lambda limit: through(pair, limit)[-1])
        ends = through(pair, one)
        # The smallest number of parts that reaches the end is enough.
        ends = ends[: ends.index(last) + 1]
        # If a part reaches as far as the next one, the next part gets a layer of it.
        for number in reversed(range(1, len(ends) - 1)):
            ends[number] = min(ends[number], ends[number + 1] - 1)
    return [range(*part) for part in pairwise(ends)]


def fill(sizes: Sequence[int], parts: int, pair: int, one: int) -> list[int]:
    """The number of layers that 0, 1, 2, ... parts can hold.

    Each part is limited by its own size, and by its size together with the part before
    it. Several cuts may reach the same layer with the same number of parts. Of these,
    the best one to continue is the one whose last part begins last. This last part
    begins at the farthest layer that the parts before it can reach, or one layer
    earlier, so that it is never empty.

    >>> fill([1, 4, 1, 4], 3, pair=6, one=5)
    [0, 2, 3, 4]

    :param pair: the bytes that two neighbours may have
    :param one: the bytes that a part may have
    """
    totals, ends = [0, *accumulate(sizes)], [0]
    for number in range(parts):
        last = ends[-1]
        before = max(0, min(ends[-2], last - 1)) if number > 1 else 0
        limit = min(totals[before] + pair, totals[last] + one)
        ends.append(bisect_right(totals, limit) - 1)
    return ends


def named_tensors(model: nn.Module, recurse: bool = True) -> dict[str, Tensor]:
    """All parameters and buffers, under each of their names."""
    return {
        **dict(model.named_parameters("", recurse, remove_duplicate=False)),
        **dict(model.named_buffers("", recurse, remove_duplicate=False)),
    }


def bytes_of(layer: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in layer.parameters())


# sidelit: depth Changes between the two runs or after the cut, and models that cannot be streamed.


class Seen:
    """The tensors that the first run of a slice has read, and the second run must read."""

    def __init__(self, part: Slice) -> None:
        self.part = part
        self.buffers = dict(part.buffers)
        self.versions = part.versions()

    def note_buffers(self) -> None:
        """Record the versions of the buffers, which must not change from here on.

        A buffer to which the run wrote is represented by a copy of its earlier values.
        """
        self.versions_of_buffers = Versions(*self.buffers.values())

    def refuse_changes(self) -> None:
        """:raises RuntimeError: if a parameter or buffer has changed"""
        parameters = self.versions.changed(*self.part.parameters.values())
        buffers = self.versions_of_buffers.changed(*self.buffers.values())
        for tensor in [*parameters, *buffers]:
            raise RuntimeError(
                f"{self.part.names.get(tensor)} has changed between the forward and "
                "the backward pass, which recomputes the activations; "
                "let the optimizer step after the backward pass"
            )


class Contents:
    """The layers and tensors of a chain when it was cut.

    A slice computes with the layers and tensors of that moment. Suppose a program
    replaces one of them later. The chain would compute with a tensor that is no longer
    in it, and the new one would never be trained. So this class detects the change.
    """

    def __init__(self, chain: nn.Sequential) -> None:
        # The chain's `forward` refers to this object. A reference back to the chain
        # would keep both alive.
        self.chain = ref(chain)
        self.layers, self.tensors = list(chain), named_tensors(chain)
        STREAMED.add(chain)

    def refuse_changes(self) -> None:
        """Compare with the chain's present layers and tensors.

        Only a new buffer, which a layer may create itself, is allowed.

        :raises RuntimeError: if a layer, parameter or buffer was replaced or moved
        """
        chain = self.chain()
        if chain is None:
            return
        if [*map(id, chain)] != [*map(id, self.layers)]:
            raise RuntimeError(
                "the chain has other layers than when it was streamed; "
                "call stream(list(model), ...) to stream it anew"
            )
        now, parameters = named_tensors(chain), dict(chain.named_parameters())
        for name in [*self.tensors, *parameters]:
            old = self.tensors.get(name)
            if old is None or old is not now.get(name):
                raise RuntimeError(
                    f"{name} was replaced after stream(); change values in place, such as "
                    "by load_state_dict without assign=True, or stream list(model) anew"
                )
            if old.device.type != "cpu":
                raise RuntimeError(
                    f"{name} was moved to {old.device} after stream(), which keeps the "
                    "model on the host; stream list(model.cpu()) anew"
                )


def refuse_unfit(
    chain: nn.Sequential, slices: int | None, dtype: torch.dtype | None
) -> None:
    """Refuse a model that cannot be streamed, and say why."""
    fits = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    if dtype is not None and not (fits and dtype.itemsize > 1):
        raise TypeError(
            f"param_dtype is {dtype!r}, but it must be a floating-point dtype of 16 bits "
            "or more, such as torch.bfloat16"
        )
    kind = type(chain)
    for name, module in chain.named_modules():
        if module in STREAMED:
            one = name or f"this {kind.__name__}"
            raise ValueError(f"{one} is streamed already; call stream once")
    if kind.forward is not nn.Sequential.forward or "forward" in vars(chain):
        raise TypeError(
            f"{kind.__name__} has a forward of its own, so its layers may be no "
            "chain; pass the nn.Sequential or the list of layers inside of it"
        )
    if slices is not None and (type(slices) is not int or slices < 1):
        raise ValueError(
            f"slices is {slices!r}, but it must be a whole number from 1 on"
        )
    if not len(chain):
        raise ValueError("the chain has no layers; pass at least one")
    tensors = [*chain.named_parameters(), *chain.named_buffers()]
    for name, tensor in tensors:
        if is_sharded(tensor):
            raise ValueError(
                f"{name} is sharded; stream the model or shard it, not both"
            )
        if tensor.device.type != "cpu":
            raise ValueError(
                f"{name} is on {tensor.device}, and streaming keeps the model on the host; "
                "call model.cpu() first, or give it memory there"
            )


def refuse_others(slices: list[Slice], number: int, x: Any) -> None:
    """A checkpoint keeps a slice's input, so that has to be a tensor. Within a slice layers
    may pass on what they like.

    :param x: what slice `number` is to compute with
    """
    if not isinstance(x, Tensor):
        last = sum(len(part.layers) for part in slices[:number]) - 1
        raise TypeError(
            f"{f'the output of layer {last}' if number else 'the input'} is a "
            f"{type(x).__name__}, but a slice takes one tensor; put layers that pass on "
            "something else into one nn.Sequential"
        )
