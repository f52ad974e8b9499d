r"""# What a constructor wrote

> The number of writes to a tensor without memory tells whether its values can be made again.

[A model is built on the meta device](construct.py), and gets its values afterwards from
each module's `reset_parameters`. A constructor that goes on after that is not repeated:

```python
class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 8)      # its bias is written to once
        nn.init.zeros_(self.out.bias)   # and once more, by another module
```

[PyTorch counts the writes](versions.py) to a tensor, even if the tensor has no memory.
The constructor above has left 2 at the bias, and `reset_parameters` of the layer writes
once. So one write is missing, and the bias would be random where the plain model's is
zero.

Fewer writes than `reset_parameters` makes are no sign of that. Many modules make their
parameters with `torch.ones` and have a `reset_parameters` for models without memory,
which writes the same values. But a tied parameter is set by every module that has it,
and its constructor kept what one of them had drawn. There the numbers have to be equal.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from shardbook.foundations.versions import writes_to

__all__ = ["Writes"]
# sidelit: show


class Writes:
    """How often tensors were written to in their constructor, and are when they get
    their values.

    :param tensors: what has no memory yet
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.built = {tensor: writes_to(tensor) for tensor in tensors}
        self.start_at: dict[Tensor, int] = {}
        # The modules that have written to each tensor.
        self.writers: dict[Tensor, int] = {}

    def start(self, tensor: Tensor) -> None:
        """A tensor has got memory: count from here."""
        self.start_at[tensor] = writes_to(tensor)

    @contextmanager
    def by(self, module: nn.Module) -> Iterator[None]:
        """In this block a module gets its values."""
        inside = [*module.parameters(), *module.buffers()]
        before = {tensor: writes_to(tensor) for tensor in inside}
        yield
        for tensor, version in before.items():
            if writes_to(tensor) != version:
                self.writers[tensor] = self.writers.get(tensor, 0) + 1

    def beyond(self, tensor: Tensor) -> str | None:
        """What a constructor did to a tensor beyond what was repeated; `None` if nothing."""
        built = self.built.get(tensor, 0)
        again = writes_to(tensor) - self.start_at.get(tensor, 0)
        if built > again:
            return "written to by a constructor after its module's reset_parameters"
        if built < again and self.writers.get(tensor, 0) > 1:
            return "set by several modules, of which the constructor kept one"
        return None
