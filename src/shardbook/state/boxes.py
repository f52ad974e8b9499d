r"""# A slice as boxes

> A rank's slice of a flattened parameter, cut into boxes of the parameter's own shape.

A checkpoint that any other program can read says where a number belongs by its place in
the *parameter*: row 3, column 5. A rank of this book has a stretch of the *flattened*
parameter, which may begin and end in the middle of a row. A matrix of 4 rows and 5
columns, whose elements 3 to 17 lie on one rank:

| | 0 | 1 | 2 | 3 | 4 |
|---|---|---|---|---|---|
| 0 | | | | a | a |
| 1 | b | b | b | b | b |
| 2 | b | b | b | b | b |
| 3 | c | c | c | | |

A stretch is the end of a row, some whole rows, and the beginning of a row: three boxes.
With $d$ dimensions the first and the last row are cut in the same way once more, so
there are at most $2d - 1$. In the order of the boxes their elements lie one after
another, as in the stretch. So each box is a view of it, and nothing is copied.

[PyTorch's distributed checkpoints](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html)
hold boxes, too: a file says at
which row and column a box begins and how large it is. Whoever loads asks for other
boxes, and reads where they overlap. That is why a checkpoint can be read on another
number of ranks, in another stage, and by another library.

:notation $d$: `shape`, the number of its entries
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

__all__ = ["Box", "boxes"]
# sidelit: show


def boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The elements from `start` to `stop` of a flattened tensor, as boxes of the tensor.

    >>> for box in boxes((4, 5), 3, 18):
    ...     print(box.offsets, box.sizes)
    (0, 3) (1, 2)
    (1, 0) (2, 5)
    (3, 0) (1, 3)

    :param shape: of the tensor, whose elements lie row by row
    :param start: number of the first element
    :param stop: number of the element after the last one
    :returns: the boxes, in the order of their elements; none if there are no elements
    """
    if start == stop:
        return
    if len(shape) < 2:
        # A number alone has one element, and no place.
        yield Box((start,), (stop - start,)) if shape else Box((), ())
        return
    row = prod(shape[1:])
    # The first row that begins in the stretch, and the last one that ends before it does.
    first, last = -(-start // row), stop // row
    if last < first:
        yield from in_row(last, shape, start, stop)
        return
    yield from in_row(first - 1, shape, start, first * row)
    if first < last:
        rest = len(shape) - 1
        yield Box((first, *(0,) * rest), (last - first, *shape[1:]))
    yield from in_row(last, shape, last * row, stop)


def in_row(number: int, shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The boxes of a stretch that lies in one row, which is a tensor itself."""
    before = number * prod(shape[1:])
    for box in boxes(shape[1:], start - before, stop - before):
        yield Box((number, *box.offsets), (1, *box.sizes))


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor that goes from one index to another in each dimension.

    :param offsets: where it begins
    :param sizes: how far it goes
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return prod(self.sizes)
