r"""# Counting a constructor's writes

> The number of writes to a tensor without memory tells whether its values can be computed again.

[A model is constructed on the meta device](construct.py), and gets its values
afterwards from each module's `reset_parameters`. If a constructor writes to a parameter
after that method, the write is not repeated:

```python
class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 8)      # its bias is written to once
        nn.init.zeros_(self.out.bias)   # and once more, by another module
```

[PyTorch counts the writes](versions.py) to a tensor, even if the tensor has no memory.
The constructor above has written to the bias twice, but the layer's `reset_parameters`
writes to it once. So one write is missing, and the bias would be random, while that of
the plain model is zero.

Fewer writes in the constructor are no sign of a missing write. Many modules make their
parameters with `torch.ones`, and have a `reset_parameters` for models without memory
that writes the same values. But a tied parameter is set by every module that has it,
and after the constructor it holds the values of only one of them. For a tied parameter
the two numbers must therefore be equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from shardbook.foundations.versions import writes_to

__all__ = ["Writes"]


class Writes:
    """The number of writes to tensors, in the constructor and when they get their
    values.

    :param tensors: the tensors that have no memory yet
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.built = {tensor: writes_to(tensor) for tensor in tensors}
        self.start_at: dict[Tensor, int] = {}
        # The number of modules that have written to each tensor.
        self.writers: dict[Tensor, int] = {}

    def start(self, tensor: Tensor) -> None:
        """Start to count the writes to a tensor that has just got memory."""
        self.start_at[tensor] = writes_to(tensor)

    @contextmanager
    def by(self, module: nn.Module) -> Iterator[None]:
        """In this block, count the writes of a module that gets its values."""
        inside = [*module.parameters(), *module.buffers()]
        before = {tensor: writes_to(tensor) for tensor in inside}
        yield
        for tensor, version in before.items():
            if writes_to(tensor) != version:
                self.writers[tensor] = self.writers.get(tensor, 0) + 1

    def beyond(self, tensor: Tensor) -> str | None:
        """The write of a constructor that was not repeated, in words; `None` if there is none."""
        built = self.built.get(tensor, 0)
        again = writes_to(tensor) - self.start_at.get(tensor, 0)
        if built > again:
            return "written to by a constructor after its module's reset_parameters"
        if built < again and self.writers.get(tensor, 0) > 1:
            return "set by several modules, of which the constructor kept one"
        return None
