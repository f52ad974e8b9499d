r"""# Weights that change before the backward pass

> A gradient belongs to the weights of its forward pass. A backward pass with other weights is refused.

A gradient is computed from the activations that the forward pass has saved and from the
weights. Suppose an optimizer steps between the two passes. The saved activations then
belong to the old weights, and the result is the gradient of no loss. In an unsharded
model autograd compares the versions of the saved weights. But a unit gathers its
weights anew for the backward pass, so autograd has nothing to compare. The unit
therefore makes its own comparison:

| between the two passes | wrong result |
|---|---|
| the parameters were changed | a gradient of other weights |
| [`full_precision`](full_precision.py) began or ended | a gradient whose dtype is not that of the result |
| the gradient is itself to be differentiated | a second derivative of weights that were freed |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Computed"]


@dataclass(frozen=True, slots=True)
class Computed:
    """The state with which a forward pass has computed.

    :param version: the version of the unit's parameters
    :param dtypes: the dtypes in which it computed, which
        [`full_precision`](full_precision.py) changes
    """

    version: int = -1
    dtypes: tuple[torch.dtype, ...] = ()

    @classmethod
    def of(cls, unit: Any) -> Computed:
        """The present state of [a unit](unit.py)."""
        return cls(unit.version, unit.computes_in)

    def refuse_others(self, unit: Any) -> None:
        """Refuse a backward pass whose gradients would be wrong.

        If the parameters or their dtype have changed since the forward pass, the
        gradient would belong to other weights. Under `create_graph=True` a second
        derivative would read parameters that were freed after the first. Inside the
        forward pass of a unit they are not freed, so a critic with a gradient penalty
        can be one unit.

        :param unit: the unit that the backward pass has reached
        :raises RuntimeError: naming the unit and what to do
        """
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"{unit.name}: backward(create_graph=True) cannot pass a sharded "
                "unit; compute the first derivative inside the forward pass of one unit "
                "around it, by torch.autograd.grad, or on the plain model"
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
