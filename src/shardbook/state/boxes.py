r"""# Cutting a slice into boxes

> A rank's slice of a flattened parameter is cut into rectangular boxes, which any
> program can read.

A checkpoint for other programs gives the place of a number in the *parameter*, such as
row 3, column 5. A rank of this book has a range of the *flattened* parameter, called a
stretch. A stretch may begin and end in the middle of a row. Take a matrix of 4 rows and
5 columns, and a rank with its elements 3 to 17:

| | 0 | 1 | 2 | 3 | 4 |
|---|---|---|---|---|---|
| 0 | | | | a | a |
| 1 | b | b | b | b | b |
| 2 | b | b | b | b | b |
| 3 | c | c | c | | |

The stretch consists of the end of a row (a), some whole rows (b) and the beginning of a
row (c): three boxes. With $d$ dimensions a row is itself a tensor, so its end and its
beginning are cut in the same way again. This gives at most $2d - 1$ boxes. The elements
of the boxes, one box after another, have the same order as in the stretch. So each box
is a view of the stretch, and nothing is copied.

[PyTorch's distributed checkpoints](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html)
consist of boxes, too: the index says at which row and column a box begins, and how
large it is. A program that loads the checkpoint needs other boxes, and reads the
overlaps. For this reason another number of ranks, another stage or another library can
read the same checkpoint.

:notation $d$: `shape`, the number of its entries
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

__all__ = ["Box", "boxes"]


def boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Cut the elements from `start` to `stop` of a flattened tensor into boxes.

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
        # A 0-dim tensor has one element and no coordinates.
        yield Box((start,), (stop - start,)) if shape else Box((), ())
        return
    row = prod(shape[1:])
    # `first` is the first row that begins in the stretch. `last` is the row after the
    # last one that ends in the stretch.
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
    """Cut a stretch that lies inside one row. The row is a tensor with one dimension less."""
    before = number * prod(shape[1:])
    for box in boxes(shape[1:], start - before, stop - before):
        yield Box((number, *box.offsets), (1, *box.sizes))


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangular part of a tensor.

    :param offsets: the index of its first element, in each dimension
    :param sizes: its length in each dimension
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        """The number of elements in the box."""
        return prod(self.sizes)
