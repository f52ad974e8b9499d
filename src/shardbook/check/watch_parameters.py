r"""# Checking the parameters

> The check detects ranks that start from different values, parameters with two names,
> and parameters that are not averaged.

`shard` copies rank 0's values to all ranks, so the ranks may build their models from
different seeds. With `synchronize=False` nothing is copied, and the values have to be
equal already. If they differ, the first half of a weight comes from rank 0's model and
the second half from rank 1's, without an error. So the check compares the values before
they are cut.

The gradient of a parameter outside of all units is not averaged. An optimizer that mixes
such parameters with sharded ones [is refused](unowned.py). But an optimizer that has
only such parameters is allowed, because it may train a second model whose gradients the
program averages itself. The values tell the two cases apart. If they were equal on all
ranks before the steps and differ afterwards, each rank has trained alone.

Buffers may differ between ranks, because each rank's [batch
norm](model.py#copy_buffers) computes the statistics of its own data. A note names these
buffers, because `state_dict()` saves those of the rank that calls it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from shardbook.check.place import Place, place
from shardbook.check.watch_gradients import listed
from shardbook.check.watches import Run, Watch, trained
from shardbook.parameters.flat import owner_of

__all__ = ["Parameters", "digest"]


class Parameters(Watch):
    """Compares the values of parameters and buffers between ranks."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        # Digests of the values of models that were sharded with `synchronize=False`.
        self.first: list[dict[str, str]] = []
        self.line: Place | None = None
        # For optimizers without sharded parameters: a digest of the values before the
        # first step, and the line of that step.
        self.before: dict[Optimizer, str] = {}
        self.lines: dict[Optimizer, Place | None] = {}

    def sharding(self, model: nn.Module, options: dict[str, Any]) -> None:
        """Record the initial values of a model with `synchronize=False`."""
        if options.get("synchronize", True):
            return
        named = [*model.named_parameters(), *model.named_buffers()]
        self.line = place()
        self.first.append({name: digest([t]) for name, t in named if not t.is_meta})

    def sharded(self, model: nn.Module) -> None:
        """Report parameters with several names."""
        for unit in self.run.units():
            for slot in (slot for flat in unit.flats for slot in flat.layout.slots):
                if len(slot.names) > 1:
                    self.found.add(
                        "note",
                        "tied",
                        f"{' and '.join(slot.names)} are one parameter, of unit {unit.name}",
                        "nothing, if that is meant: it is trained once, with the sum of its gradients",
                    )

    def before_step(self, optimizer: Optimizer) -> None:
        """Record the values before the first step of an optimizer with other parameters."""
        others = [p for p in trained(optimizer) if owner_of(p) is None]
        if others and optimizer not in self.before and self.run.models:
            self.before[optimizer] = digest(others)
            self.lines[optimizer] = place()

    def facts(self) -> Any:
        """Digests of the values."""
        return {
            "first": self.first,
            "before": [*self.before.values()],
            "after": [
                digest(p for p in trained(one) if owner_of(p) is None)
                for one in self.before
            ],
            "buffers": {
                name: digest([buffer])
                for model in self.run.models
                for name, buffer in model.named_buffers()
                if not buffer.is_meta
            },
        }

    def judge(self, facts: list[Any]) -> None:
        """Compare the values of all ranks with those of rank 0."""
        present = [(rank, fact) for rank, fact in enumerate(facts) if fact is not None]
        for rank, fact in present:
            self.compare_first(rank, fact["first"])
        for number, optimizer in enumerate(self.before):
            ends = {tuple(fact["after"][number : number + 1]) for _, fact in present}
            starts = {tuple(fact["before"][number : number + 1]) for _, fact in present}
            if len(starts) == 1 and len(ends) > 1:
                self.found.add(
                    "error",
                    "alone",
                    f"each rank trains the {len([*trained(optimizer)])} parameters of this "
                    f"{type(optimizer).__name__} alone: they were equal on all ranks and are not any longer",
                    "shard the whole model, these parameters included",
                    self.lines[optimizer],
                )
        if self.run.models and self.run.others and not self.run.taken:
            self.found.add(
                "error",
                "foreign-optimizer",
                "no optimizer that has stepped holds a parameter of the sharded model",
                "make the optimizer from model.parameters() of the model that shard returned",
                next(iter(self.lines.values()), None),
            )
        mine = facts[0]["buffers"]
        changed = [
            name
            for name in mine
            if any(f["buffers"].get(name) != mine[name] for _, f in present)
        ]
        if changed:
            self.found.add(
                "note",
                "buffers",
                f"buffers differ between the ranks: {listed(changed)}",
                "nothing, if each rank may keep statistics of its own data; "
                "SyncBatchNorm gives all ranks the same",
            )

    def compare_first(self, rank: int, models: list[dict[str, str]]) -> None:
        """Report the parameters for which a rank's initial values differ from rank 0's."""
        for mine, theirs in zip(self.first, models, strict=False):
            other = [
                name for name in mine if theirs.get(name, mine[name]) != mine[name]
            ]
            if other:
                self.found.add(
                    "error",
                    "first-values",
                    f"rank {rank} starts with other values of {listed(other)} than rank 0, "
                    "and synchronize=False trusts that they are equal",
                    "leave synchronize=False out, or build all models from one seed or file",
                    self.line,
                )
                return


def digest(tensors: Iterable[Tensor]) -> str:
    """Compute a short text that is the same for two lists of tensors if they are equal bit for bit.

    >>> import torch
    >>> one, other = torch.ones(2), torch.tensor([1.0, 1.0])
    >>> digest([one]) == digest([other]), digest([one]) == digest([one, one])
    (True, False)
    """
    found = blake2b(digest_size=16)
    for tensor in tensors:
        # The bytes are read from a contiguous copy on the host. A sparse tensor becomes
        # dense.
        here = (
            tensor.detach().to_dense().cpu().contiguous().resolve_conj().resolve_neg()
        )
        found.update(f"{here.dtype} {tuple(here.shape)}".encode())
        # Tensors of some classes have no memory of their own.
        if here.data_ptr():
            found.update(ctypes.string_at(here.data_ptr(), here.nbytes))
    return found.hexdigest()
