r"""# Tensor versions

> PyTorch counts the writes to each tensor. If the count is unchanged, the program has not written to it.

A tensor is saved in the forward pass and used in the backward pass. Or a parameter is
gathered now and used in the next micro-batch. If the program writes to it between the
two moments, the old results belong to values that are gone. A comparison of the values
would take a copy and a pass over both. But PyTorch counts writes: each in-place
operation raises the *version* of the tensor to which it writes. If two versions of one
tensor differ, the tensor was written to in between:

>>> import torch
>>> weight, bias = torch.zeros(2, 2), torch.zeros(2)
>>> before = Versions(weight, bias)
>>> bias += 1
>>> [tensor is bias for tensor in before.changed(weight, bias)]
[True]

The count belongs to the memory. A view shares the count of its tensor, and so does an
alias from `detach`. A write through any of them raises the version of all:

>>> view, alias = weight[0].fill_(1), weight.detach().mul_(2)
>>> writes_to(weight), writes_to(weight.t())
(2, 2)

The version counts writes, whatever their values: `zero_` of a tensor of zeros counts.
Some writes are not counted at all:

| write | counted |
|---|---|
| in place, even under `no_grad` and in inference mode | yes |
| to a tensor on the meta device, which has no memory | yes |
| through `.data`, an alias with a count of its own | no |
| `tensor.data = other`, which gives the tensor other memory | no |
| by a step of a fused optimizer, or by a batch norm to its running mean | no |
| to a tensor that was made in inference mode | no, it has no version |

A program that reads the version of a tensor of the last row gets an error. This library
reads versions wherever tensors come from a program, so it takes such a tensor as never
written to. [Autograd](https://docs.pytorch.org/docs/stable/notes/autograd.html) makes
the same comparison for the tensors that it saves itself. If hooks replace a saved
tensor, autograd leaves the comparison to the hooks.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["Versions", "writes_to"]


class Versions(tuple[int, ...]):
    """The number of writes to each of some tensors, at one moment.

    It holds numbers and no tensors, so it keeps neither memory nor a graph alive.
    """

    __slots__ = ()

    def __new__(cls, *tensors: Tensor) -> Versions:
        # The same as `writes_to` of each tensor, without a call for each.
        counts = [0 if one.is_inference() else one._version for one in tensors]
        return super().__new__(cls, counts)

    def changed(self, *tensors: Tensor) -> list[Tensor]:
        """The tensors that have been written to since.

        :param tensors: the same tensors, or aliases of them, in the same order
        """
        now = Versions(*tensors)
        if now == self:
            return []
        rows = zip(tensors, now, self, strict=True)
        return [tensor for tensor, count, before in rows if count != before]


def writes_to(tensor: Tensor) -> int:
    """The number of in-place writes to a tensor; 0 if PyTorch does not count them.

    >>> import torch
    >>> with torch.inference_mode():
    ...     uncounted = torch.ones(2).add_(1)
    >>> writes_to(uncounted)
    0
    """
    return 0 if tensor.is_inference() else tensor._version
