r"""# Tensors in one memory

> Two tensors of a model that lie in the same memory are refused, because sharding would take them apart.

A weight is tied when two modules have one `Parameter`, and [a unit keeps such a
tie](parameter_sites.py#sites_by_unit). But two tensors can also be tied by their memory
alone:

```python
self.output.weight.data = self.embedding.weight.data   # two parameters, one memory
self.register_buffer("table", self.embedding.weight.data)
```

In a plain program a step that trains the embedding changes the output layer, too. A
unit copies each parameter into its own part of [the flat vector](flat.py), so after
sharding there would be two memories with equal values, and after a step two different
weights. No error would be raised.

So before a model is sharded, this chapter looks at the memory of its parameters,
buffers, and tensors in the attributes of its modules. Tensors in another place, such as
a closure or a global variable, are not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shardbook.foundations.hook_context import tensors_in
from shardbook.foundations.torch_private import own_buffers, pre_hooks_of, storage_id

__all__ = ["shared_memory"]


class Span(NamedTuple):
    """The bytes of a storage between the first and the last element of a tensor."""

    start: int
    stop: int
    name: str
    tensor: Tensor

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> Span:
        """The span of a tensor with elements."""
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((int(size) - 1) * stride for size, stride in pairs)
        first = int(tensor.storage_offset())
        size = tensor.element_size()
        return cls(first * size, (first + last + 1) * size, name, tensor)

    def meets(self, other: Span) -> bool:
        """Whether two tensors have a byte in common."""
        if self.stop <= other.start or other.stop <= self.start:
            return False
        if self.tensor.is_contiguous() and other.tensor.is_contiguous():
            return True
        # Two columns of a matrix have overlapping spans, and no byte in common.
        start = min(self.start, other.start)
        size = max(self.stop, other.stop) - start
        taken = torch.zeros(size, dtype=torch.bool, device="cpu")
        self.bytes_in(taken, start).fill_(True)
        return bool(other.bytes_in(taken, start).any())

    def bytes_in(self, taken: Tensor, start: int) -> Tensor:
        """The places of the tensor's bytes in a vector with one element for each byte."""
        size = self.tensor.element_size()
        strides = [stride * size for stride in self.tensor.stride()]
        shape = (*self.tensor.shape, size)
        return taken.as_strided(shape, (*strides, 1), self.start - start)


def shared_memory(model: nn.Module) -> str | None:
    """Two tensors that have memory in common, at least one of them a parameter, in words.

    :returns: what they are and what to write instead; `None` if there are none
    """
    by_storage: dict[int, list[Span]] = {}
    parameters: set[int] = set()
    for name, tensor in tensors_of(model, parameters):
        if tensor.layout is torch.strided and tensor.numel():
            here = by_storage.setdefault(storage_id(tensor.untyped_storage()), [])
            span = Span.of(name, tensor)
            for other in here:
                if id(other.tensor) in parameters and span.meets(other):
                    both = id(tensor) in parameters
                    return refusal(span.name, other.name, both=both)
            here.append(span)
    return None


def tensors_of(model: nn.Module, parameters: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of a model once, with its name; the parameters come first.

    :param parameters: receives the `id` of each parameter
    """
    for name, parameter in model.named_parameters():
        parameters.add(id(parameter))
        yield name, parameter
    seen = set(parameters)
    for path, module in model.named_modules():
        own = vars(module)
        # The buffers of a compiled module are in a container of its own.
        others = {name: own[name] for name in own.keys() - _USUAL}
        others.update(own_buffers(module).items())
        for name, value in sorted(others.items()):
            for tensor in tensors_in(value):
                if id(tensor) not in seen and not is_made_anew(module, name):
                    seen.add(id(tensor))
                    yield f"{path}.{name}" if path else name, tensor


_USUAL = frozenset(vars(nn.Module()))


def is_made_anew(module: nn.Module, name: str) -> bool:
    """Whether a hook sets this attribute before each forward pass, as `spectral_norm` does."""
    return any(getattr(hook, "name", None) == name for hook in pre_hooks_of(module))


def refusal(name: str, parameter: str, *, both: bool) -> str:
    """The message about a tensor that lies in the memory of a parameter."""
    if both:
        return (
            f"{name} and {parameter} are two parameters in one memory; give both modules "
            "one Parameter to tie them, or one of them a clone"
        )
    return (
        f"{name} lies in the memory of the parameter {parameter}, and would keep the "
        "values from before sharding; read the parameter itself, or keep a clone"
    )
