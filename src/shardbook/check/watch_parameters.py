r"""# The parameters

> Which values the ranks start from, which parameters have two names, and which nobody shares.

`shard` copies the values of rank 0 to all ranks, so ranks may build their models from
different seeds. With `synchronize=False` it trusts that they are equal. If they are not, the
model is put together from parts of different models, and nothing says so: the check
compares the values before they are cut.

A parameter outside of every unit is averaged by nobody. An optimizer that mixes such
parameters with sharded ones [is refused](unowned.py). An optimizer that holds nothing
else is not: it may train a second model, which the program averages by itself. What
tells the two apart is the values. Values that were equal on all ranks and are not any
longer were trained by each rank alone.

Buffers differ between ranks on purpose: each rank's [batch norm](model.py#copy_buffers)
sees its own data. A note says which, since `state_dict()` saves those of the rank that calls.
"""

# sidelit: hide
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
# sidelit: show


class Parameters(Watch):
    """Compares values between ranks, and names parameters with two names."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        # The values of models that were sharded with `synchronize=False`.
        self.first: list[dict[str, str]] = []
        self.line: Place | None = None
        # The values of optimizers without a sharded parameter, before their first step,
        # and the line of that step.
        self.before: dict[Optimizer, str] = {}
        self.lines: dict[Optimizer, Place | None] = {}

    def sharding(self, model: nn.Module, options: dict[str, Any]) -> None:
        """Note the values with which a model is trusted to start."""
        if options.get("synchronize", True):
            return
        named = [*model.named_parameters(), *model.named_buffers()]
        self.line = place()
        self.first.append({name: digest([t]) for name, t in named if not t.is_meta})

    def sharded(self, model: nn.Module) -> None:
        """Name the parameters that stand in several places."""
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
        """Note the values that an optimizer of other parameters starts from."""
        others = [p for p in trained(optimizer) if owner_of(p) is None]
        if others and optimizer not in self.before and self.run.models:
            self.before[optimizer] = digest(others)
            self.lines[optimizer] = place()

    def facts(self) -> Any:
        """The values, as digests."""
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
        """Compare with rank 0."""
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
        """Note the first parameter with which a rank starts from other values than rank 0."""
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
    """A short text that two lists of tensors have in common if their values are equal, bit for bit.

    >>> import torch
    >>> one, other = torch.ones(2), torch.tensor([1.0, 1.0])
    >>> digest([one]) == digest([other]), digest([one]) == digest([one, one])
    (True, False)
    """
    found = blake2b(digest_size=16)
    for tensor in tensors:
        # On the host, in one stretch of memory; a sparse tensor is spread out.
        here = (
            tensor.detach().to_dense().cpu().contiguous().resolve_conj().resolve_neg()
        )
        found.update(f"{here.dtype} {tuple(here.shape)}".encode())
        # Tensors of some classes have no memory of their own.
        if here.data_ptr():
            found.update(ctypes.string_at(here.data_ptr(), here.nbytes))
    return found.hexdigest()
