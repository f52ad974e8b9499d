r"""# A chain in slices

> Consecutive layers are put together, so that the largest part is as small as it can be.

[Streaming](streaming.py) brings one *slice* of a chain to the device after the other. A
slice is some consecutive layers. Two of them are there at a time, the one that computes
and the one that comes next, so the largest one decides how much memory it takes.

With many small slices little memory is needed. With few large ones fewer inputs are
kept between the slices, and the copies are larger.
"""

# sidelit: hide
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from torch import Tensor, nn

from shardbook.flat import is_sharded

__all__ = ["Slice", "cut", "slices_of"]
# sidelit: show


def slices_of(chain: nn.Sequential, slices: int | None) -> list[Slice]:
    """The slices of a chain.

    :param slices: how many there may be at most; by default each layer with parameters
        begins one
    :raises TypeError: the model is no plain chain
    :raises ValueError: it is streamed or sharded already, is empty or not on the host, or
        the number of slices makes no sense
    """
    refuse_unfit(chain, slices)
    layers = list(chain)
    parts = cut([bytes_of(layer) for layer in layers], slices)
    tensors = [*chain.named_parameters(), *chain.named_buffers()]
    names = {tensor: name for name, tensor in tensors}
    return [
        Slice(nn.Sequential(*layers[part.start : part.stop]), names) for part in parts
    ]


class Slice:
    """Consecutive layers. A parameter that stands in it twice is brought once.

    :param layers: the layers, as a chain of their own
    :param names: the names that parameters and buffers have in the model
    """

    def __init__(self, layers: nn.Sequential, names: dict[Tensor, str]) -> None:
        self.layers, self.names = layers, names
        self.parameters = dict(layers.named_parameters())
        self.buffers = dict(layers.named_buffers())

    def versions(self) -> list[int]:
        """Every write in place raises a number here."""
        return [parameter._version for parameter in self.parameters.values()]


def cut(sizes: Sequence[int], slices: int | None) -> list[range]:
    """Consecutive parts, of which the largest is as small as it can be.

    >>> cut([4, 1, 1, 1, 4, 4], 3)
    [range(0, 3), range(3, 5), range(5, 6)]
    >>> cut([4, 0, 0, 1], None)
    [range(0, 3), range(3, 4)]

    :param sizes: the bytes of the layers
    :param slices: how many parts there may be at most
    """
    if slices is None:
        starts = [number for number, size in enumerate(sizes) if size or not number]
    else:
        limits = range(sum(sizes) + 1)
        limit = bisect_left(
            limits, True, key=lambda limit: len(fill(sizes, limit)) <= slices
        )
        starts = fill(sizes, limit)
    return [
        range(*ends) for ends in zip(starts, [*starts[1:], len(sizes)], strict=True)
    ]


def fill(sizes: Sequence[int], limit: int) -> list[int]:
    """Where parts begin if each takes as many layers as fit into the limit.

    >>> fill([4, 1, 1, 1, 4, 4], 5)
    [0, 2, 4, 5]
    """
    starts, total = [0], 0
    for number, size in enumerate(sizes):
        total += size
        if total > limit and number > starts[-1]:
            starts.append(number)
            total = size
    return starts


def bytes_of(layer: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in layer.parameters())


def refuse_unfit(chain: nn.Sequential, slices: int | None) -> None:
    """Say why a model cannot be streamed."""
    if type(chain).forward is not nn.Sequential.forward:
        raise TypeError(
            f"{type(chain).__name__} has a forward of its own, so its layers may be no "
            "chain; pass the nn.Sequential or the list of layers inside of it"
        )
    if "forward" in vars(chain):
        name = type(chain).__name__
        raise ValueError(f"this {name} is streamed already; call stream once")
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
