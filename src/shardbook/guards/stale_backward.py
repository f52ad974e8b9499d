r"""# Between the forward pass and the backward pass

> A gradient belongs to the weights of its forward pass, so a backward pass with others is refused.

A gradient is computed from what the forward pass has saved and from the weights. If an
optimizer steps between the two passes, the saved activations belong to the old weights,
and the result is the gradient of no loss. In an unsharded model autograd compares the
versions of the weights it has saved. The weights of a unit are gathered anew for the
backward pass, so autograd has nothing to compare, and the unit does so itself:

| between the two passes | what would be computed |
|---|---|
| the parameters were changed | a gradient of other weights |
| [`full_precision`](full_precision.py) began or ended | a gradient in another dtype than the result |
| the backward pass is to be differentiated itself | a second derivative of weights that were freed |
"""

# sidelit: hide
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Computed"]
# sidelit: show


@dataclass(frozen=True, slots=True)
class Computed:
    """What a forward pass has computed with.

    :param version: the version of the unit's parameters
    :param dtypes: the dtypes in which it computed, which
        [`full_precision`](full_precision.py) changes
    """

    version: int = -1
    dtypes: tuple[torch.dtype, ...] = ()

    @classmethod
    def of(cls, unit: Any) -> Computed:
        """What [a unit](unit.py) computes with now."""
        return cls(unit.version, unit.computes_in)

    def refuse_others(self, unit: Any) -> None:
        """Refuse a backward pass if the parameters or their format changed since, because
        the gradient would be that of other weights; and under `create_graph=True`,
        because a second derivative would read parameters that were freed after the
        first.

        :param unit: the one that the backward pass has reached
        :raises RuntimeError: naming the unit and what to do
        """
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"{unit.name}: backward(create_graph=True) cannot pass a sharded "
                "unit; compute second derivatives before sharding"
            )
        if self.dtypes != unit.computes_in:
            side = "outside" if unit.precise else "inside"
            raise RuntimeError(
                f"{unit.name}: its forward pass was {side} of full_precision(); "
                "call backward there, too"
            )
        if self.version != unit.version:
            raise RuntimeError(
                f"{unit.name}: parameters were changed between this unit's forward "
                "pass and its backward pass; call backward before the optimizer steps"
            )
