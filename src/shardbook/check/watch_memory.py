r"""# Checking the stored bytes

> The check counts the parameters and the optimizer state after the last step, and
> compares the parameters with the plan.

[The plan](policy_bytes.py) gives the bytes of each unit that a rank stores between two
steps. In stage 3 these are its part of the parameters, in stages 1 and 2 the whole
vector as well. The optimizer state is counted, but has no plan: AdamW stores two numbers
for each parameter, plain SGD none, and your optimizer is unknown to the library.

The check counts the bytes of tensors, and not the blocks of the allocator. It does not
compare the peak, because the peak depends on the activations that your model's
operations save.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from shardbook.check.watch_bytes import Row
from shardbook.check.watches import Run, Watch
from shardbook.foundations.torch_private import storage_id
from shardbook.parameters.flat import Flat, owner_of
from shardbook.parameters.policy import Policy
from shardbook.planning.policy_bytes import kinds_of

__all__ = ["Memory"]


class Memory(Watch):
    """Counts the bytes that this rank stores after each step. The last count is printed."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        # The policy of each model, in the order of the models.
        self.policies: list[Policy] = []
        self.rows: list[Row] = []

    def sharding(self, model: nn.Module, options: dict[str, Any]) -> None:
        """Keep the policy, because the plan depends on it."""
        self.policies.append(options.get("policy") or Policy())

    def after_step(self, optimizer: Optimizer) -> None:
        """Count, unless this is a step in the middle of a backward pass."""
        flats = [flat for unit in self.run.units() for flat in unit.flats]
        if optimizer not in self.run.taken or any(flat.waits for flat in flats):
            return
        kept = [tensor for flat in flats for tensor in (flat.full, flat.shard)]
        state = [
            value
            for one in self.run.taken
            for parameter, values in one.state.items()
            if owner_of(parameter) is not None
            for value in values.values()
            if isinstance(value, Tensor)
        ]
        self.rows = [
            Row("stored", "parameters", nbytes(kept), self.planned()),
            Row("stored", "optimizer's state", nbytes(state), None),
        ]

    def planned(self) -> int | None:
        """The planned bytes of the model's parameters; `None` with several models."""
        if len(self.policies) != 1 or len(self.run.models) != 1:
            return None
        (policy,) = self.policies
        return sum(
            planned(flat, unit.stage, policy)
            for unit in self.run.units()
            for flat in unit.flats
        )


def planned(flat: Flat, stage: int, policy: Policy) -> int:
    """The planned bytes of one vector. In stages 1 and 2 a frozen vector stays whole."""
    if not flat.layout.trainable and stage in (1, 2):
        return kinds_of(flat.layout, 0, policy).parameters
    kinds = kinds_of(flat.layout, stage, policy)
    return kinds.parameters + kinds.masters_on_host


def nbytes(tensors: list[Tensor]) -> int:
    """The bytes of tensors, counting each storage once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage_id(one): one.nbytes() for one in storages}.values())
