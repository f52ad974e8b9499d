r"""# The policy

> In which format gradients travel.

Parameters keep their own dtype. The exchange of their gradients can have another one.
In BF16 it moves half the bytes of FP32, and each value loses 16 of its 24 significant
bits before it is averaged. In the other direction, BF16 gradients that travel as FP32
lose nothing on the way.

```python
shard(model, policy=Policy(reduce_dtype=torch.bfloat16))
```

The format of the exchange is not that of the sum. The ranks' values are
[added](collectives.py#reduce_scatter_mean) in FP32 at least: in FP16, $40000 + 40000$
is infinite, although the mean is not.
"""

# sidelit: hide
from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Policy"]
# sidelit: show


@dataclass(frozen=True, slots=True)
class Policy:
    """The formats in which a sharded model works.

    :param reduce_dtype: the floating-point dtype in which gradients are exchanged;
        `None` leaves each gradient in its parameter's dtype
    :raises TypeError: if that is no floating-point dtype
    """

    reduce_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        wanted = self.reduce_dtype
        if wanted is None:
            return
        if not isinstance(wanted, torch.dtype) or not wanted.is_floating_point:
            raise TypeError(
                f"reduce_dtype={wanted!r} cannot hold a mean; "
                "choose a floating-point dtype such as torch.float32"
            )

    def collects_in(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which the gradients of `dtype` parameters add up before they are sent.

        It is the wider of the two. So a narrow format of the exchange costs no digits of
        the sum over micro-batches, and a wide one keeps more digits of that sum.
        """
        return torch.promote_types(dtype, self.sends_in(dtype))

    def sends_in(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which the gradients of `dtype` parameters travel."""
        return self.reduce_dtype or dtype
