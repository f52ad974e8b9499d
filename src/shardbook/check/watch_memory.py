r"""# What a rank stores

> The parameters and the optimizer's state after the last step, beside the plan.

[The plan](policy_bytes.py) says how many bytes of each unit stay on a rank between two
steps: in stage 3 its part of the parameters, in stages 1 and 2 the whole vector as
well. The optimizer's state is counted, too. AdamW makes two numbers for each parameter and
SGD none, so a plan for an unknown optimizer does not exist.

The count is of tensors and not of the allocator's blocks. A peak has no plan for a model
that this library does not know: it depends on what the model's own operations save.
"""

# sidelit: hide
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
# sidelit: show


class Memory(Watch):
    """Counts what this rank stores after each step; the last count is printed."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        # The policy of each model, in the order of the models.
        self.policies: list[Policy] = []
        self.rows: list[Row] = []

    def sharding(self, model: nn.Module, options: dict[str, Any]) -> None:
        """Keep the policy, which the plan depends on."""
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
        """What the plan says for the parameters of all models."""
        if len(self.policies) != 1 or len(self.run.models) != 1:
            return None
        (policy,) = self.policies
        return sum(
            planned(flat, unit.stage, policy)
            for unit in self.run.units()
            for flat in unit.flats
        )


def planned(flat: Flat, stage: int, policy: Policy) -> int:
    """What the plan says for one vector. In stages 1 and 2 a frozen one stays whole."""
    if not flat.layout.trainable and stage in (1, 2):
        return kinds_of(flat.layout, 0, policy).parameters
    kinds = kinds_of(flat.layout, stage, policy)
    return kinds.parameters + kinds.masters_on_host


def nbytes(tensors: list[Tensor]) -> int:
    """The bytes of some tensors, each storage once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage_id(one): one.nbytes() for one in storages}.values())
