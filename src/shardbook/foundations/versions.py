r"""# Counting writes

> PyTorch counts the writes to each tensor, so two equal numbers show that nobody wrote in between.

A tensor is saved in the forward pass and used in the backward pass, or a parameter is
gathered now and used in the next micro-batch. Between the two moments the program may
write to it, and then the old results belong to values that are gone. To compare the
values would take a copy and a pass over both. PyTorch offers a number instead. Each
operation in place raises the *version* of the tensor that it writes to. Two versions
are compared, and a difference means a write:

>>> import torch
>>> weight, bias = torch.zeros(2, 2), torch.zeros(2)
>>> before = Versions(weight, bias)
>>> bias += 1
>>> [tensor is bias for tensor in before.changed(weight, bias)]
[True]

The count belongs to the memory. A view has the count of its tensor, and so has an alias
from `detach`. A write through any of them raises the version of all:

>>> view, alias = weight[0].fill_(1), weight.detach().mul_(2)
>>> writes_to(weight), writes_to(weight.t())
(2, 2)

Only the number tells that there was a write, and not what has written. `zero_` of a
tensor of zeros counts. Some writes are not seen at all:

| a write | counted |
|---|---|
| in place, also under `no_grad` and in inference mode | yes |
| to a tensor on the meta device, which has no memory | yes |
| through `.data`, which shows the same memory with a count of its own | no |
| `tensor.data = other`, which puts other memory below the tensor | no |
| by a step of a fused optimizer, or by a batch norm to its running mean | no |
| to what was made in inference mode | no, it has no version |

The last row is an error if a program reads the version all the same. This library has
to read it wherever tensors come from a program, so such a tensor counts as never
written to. [Autograd](https://docs.pytorch.org/docs/stable/notes/autograd.html) makes
the same comparison for what it saves itself. Where hooks take the place of a saved
tensor, autograd leaves the comparison to the hooks.
"""

# sidelit: hide
from __future__ import annotations

from torch import Tensor

__all__ = ["Versions", "writes_to"]
# sidelit: show


class Versions(tuple[int, ...]):
    """How often each of some tensors had been written to, at one moment.

    It holds numbers and no tensors. So it keeps neither memory nor a graph alive.
    """

    __slots__ = ()

    def __new__(cls, *tensors: Tensor) -> Versions:
        # The same as `writes_to` of each, without a call for each.
        counts = [0 if one.is_inference() else one._version for one in tensors]
        return super().__new__(cls, counts)

    def changed(self, *tensors: Tensor) -> list[Tensor]:
        """Which of the tensors have been written to since.

        :param tensors: the same as then, or aliases of them, in the same order
        """
        now = Versions(*tensors)
        if now == self:
            return []
        rows = zip(tensors, now, self, strict=True)
        return [tensor for tensor, count, before in rows if count != before]


def writes_to(tensor: Tensor) -> int:
    """How often a tensor was written to in place; 0 if PyTorch does not count that.

    >>> import torch
    >>> with torch.inference_mode():
    ...     uncounted = torch.ones(2).add_(1)
    >>> writes_to(uncounted)
    0
    """
    return 0 if tensor.is_inference() else tensor._version
