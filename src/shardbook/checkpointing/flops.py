r"""# Counting FLOPs

> The floating point operations of a function follow from the shapes of its tensors, operation by operation.

The time of a step depends on the machine, and varies from run to run. The number of
floating point operations, the *FLOPs*, is the same in every run, and on every machine
that chooses the same kernels. So FLOPs can be compared exactly. A product of an $m
\times k$ and a $k \times n$ matrix takes $2\,m\,k\,n$: one multiplication and one
addition for each of the $m\,n$ results and each of the $k$ terms.

The count leaves something out. An elementwise operation counts as zero, although it
takes time, because it mostly moves bytes and computes little. So FLOPs predict the cost
of a recomputation as long as matrix products take most of the time.

:notation $m$: the number of rows of the first matrix
:notation $k$: the number of its columns, and of the rows of the second
:notation $n$: the number of columns of the second matrix
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from shardbook.foundations.torch_private import (
    ATTENTION_ON_CPU,
    TorchDispatchMode,
    tree_leaves,
)

__all__ = ["FlopCounter", "Price", "flops_of", "prices"]


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
