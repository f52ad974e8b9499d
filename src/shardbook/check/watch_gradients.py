r"""# Checking gradients and parameters

> The check detects missing, zero, infinite and undivided gradients, and parameters that
> no optimizer trains.

An optimizer raises no error for bad gradients. It skips a parameter without a gradient,
does nothing if all gradients are zero, and writes NaN into the model if a gradient is
NaN. Even if every gradient is right, the ranks may train different models, so [a second
check](#module/checking-the-parameters) compares their parameters. The check of the
gradients answers four questions, the second and the fourth after each step and the
others at the end:

- **Was there a gradient at all?** If `zero_grad()` comes between `backward()` and
  `step()`, there is none. The same happens in stage 0 if parameters are passed to
  `backward(inputs=...)`.
- **Is each gradient finite?** The first parameter with NaN or infinity is named. A
  scaler that skips a step does not call the optimizer, so every step should have finite
  gradients.
- **Which parameters had no gradient?** A parameter that no rank used in any step keeps
  [the gradient `None`](unused.py), and it is named. A parameter that has gradients, but
  is in no optimizer, is named, too.
- **Were several means added up?** With 4 micro-batches each loss should be divided by 4.
  If `backward` begins at a mean itself, the loss was not divided. This is a warning,
  because the program may want the sum, or divide the gradients later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from shardbook.check.watches import Place, Run, Watch, place, trained
from shardbook.foundations.torch_private import reduction_of
from shardbook.zero.flat import owner_of
from shardbook.zero.scheduler import scheduler_of

__all__ = ["Gradients", "Parameters", "digest", "listed"]


class Gradients(Watch):
    """Checks the gradients at each step of an optimizer that trains a sharded model."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        # For each optimizer: the line of its last step, whether any parameter ever had a
        # gradient, and whether a gradient was ever nonzero on this rank.
        self.steps: dict[Optimizer, list[Any]] = {}
        # `used` holds the names of parameters that had a gradient. `held` holds the ids
        # of parameters in an optimizer that has stepped.
        self.used: set[str] = set()
        self.held: set[int] = set()
        # `passes` holds the line of each backward pass since the last step, and whether
        # its loss was a mean. `lost` is the line of the first loss that was not finite.
        self.passes: list[tuple[Place | None, bool]] = []
        self.lost: Place | None = None

    def backward(self, losses: Sequence[Tensor]) -> None:
        """Record the line of a backward pass, and whether its loss is a mean."""
        here = place()
        means = [
            takes_mean(loss.grad_fn) for loss in losses if loss.grad_fn is not None
        ]
        self.passes.append((here, all(means) and len(means) == 1))
        if not all(bool(loss.isfinite().all()) for loss in losses):
            self.lost = self.lost or here

    def after_step(self, optimizer: Optimizer) -> None:
        """Check the gradients of a step. After the step they still exist."""
        if optimizer not in self.run.taken or skips(optimizer):
            return
        here = place()
        known = self.steps.setdefault(optimizer, [None, False, False])
        known[0] = here
        for parameter in trained(optimizer):
            self.held.add(id(parameter))
            if parameter.grad is not None and owner_of(parameter) is not None:
                known[1] = True
                known[2] = known[2] or bool(parameter.grad.any())
        for name, parameter, _ in self.run.parameters():
            if parameter.grad is None:
                continue
            self.used.add(name)
            if id(parameter) in self.held:
                self.refuse_not_finite(name, parameter.grad, here)
        self.warn_of_means()
        self.passes.clear()

    def refuse_not_finite(
        self, name: str, gradient: Tensor, here: Place | None
    ) -> None:
        """Report the first gradient that is infinite or NaN. In later steps all gradients will be."""
        if self.found.has("not-finite") or bool(gradient.isfinite().all()):
            return
        loss = "the loss was not finite before" if self.lost else "the loss was finite"
        self.found.add(
            "error",
            "not-finite",
            f"the optimizer has stepped with a gradient of {name} that is infinite or NaN; {loss}",
            "look at the line of the loss; skip such steps by clip_grad_norm_(..., "
            "error_if_nonfinite=True) or a ShardedGradScaler",
            self.lost or here,
        )

    def warn_of_means(self) -> None:
        """Warn if one line began several backward passes, each from a mean."""
        lines = [line for line, mean in self.passes if mean and line is not None]
        for line in dict.fromkeys(lines):
            count = lines.count(line)
            if count > 1:
                self.found.add(
                    "warning",
                    "undivided",
                    f"{count} losses that are means were added up in one step, so the "
                    f"gradient is {count} times that of the whole batch",
                    f"divide each loss by {count}",
                    line,
                )

    def facts(self) -> Any:
        """The observations of this rank, for a comparison with the others."""
        parameters = [*self.run.parameters()]
        return {
            "steps": [
                [line and str(line), *rest] for line, *rest in self.steps.values()
            ],
            "used": sorted(self.used),
            "trainable": [name for name, p, _ in parameters if p.requires_grad],
            "held": [name for name, p, _ in parameters if id(p) in self.held],
        }

    def judge(self, facts: list[Any]) -> None:
        """Report missing and zero gradients. On one rank alone a gradient may be zero or a slice empty, so
        all ranks are compared.
        """
        present = [fact for fact in facts if fact is not None]
        for number, (line, *_) in enumerate(self.steps.values()):
            of_ranks = [fact["steps"][number : number + 1] for fact in present]
            seen = [steps[0][1:] for steps in of_ranks if steps]
            if not any(had for had, _ in seen):
                self.found.add(
                    "error",
                    "no-gradients",
                    "the optimizer has stepped and no parameter had a gradient",
                    "call loss.backward() after zero_grad() and before step(), without inputs=",
                    line,
                )
            elif not any(other for _, other in seen):
                self.found.add(
                    "error",
                    "zero-gradients",
                    "the optimizer has stepped and all gradients were zero on every rank",
                    "make sure that the loss depends on the model and is not multiplied by zero",
                    line,
                )
        zero = any(scheduler_of(model).unused_get_zero for model in self.run.models)
        if self.steps and not self.found.has("no-gradients"):
            self.name_unused(present, zero=zero)

    def name_unused(self, facts: list[Any], *, zero: bool) -> None:
        """Warn of parameters without a gradient, and of those that are in no optimizer.

        :param zero: whether [unused parameters get zero](unused.py), so that all have one
        """
        used = {name for fact in facts for name in fact["used"]}
        unused = [name for name in facts[0]["trainable"] if name not in used]
        if unused and not zero:
            self.found.add(
                "warning",
                "unused",
                f"no rank has used {listed(unused)} in any step",
                'freeze what is not trained, by requires_grad_(False), or pass unused="zero" '
                "to shard if weight decay is to go on",
            )
        held = {*facts[0]["held"]}
        left = [name for name in facts[0]["trainable"] if name in used - held]
        if left:
            self.found.add(
                "warning",
                "untrained",
                f"{listed(left)} had gradients, and no optimizer that has stepped holds them",
                "give them to the optimizer, or freeze them, which saves their gradients",
            )


LOSSES = {
    *("NllLoss", "NllLoss2D", "MseLoss", "SmoothL1Loss", "HuberLoss", "SoftMarginLoss"),
    *("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"),
}


def takes_mean(node: Any) -> bool:
    """Whether a node of the graph is a mean over all elements, or a loss with a mean at its end.

    A loss that was divided has a division as its last node.
    """
    name = node.name().removesuffix("Backward0")
    return name == "Mean" or (name in LOSSES and reduction_of(node) == 1)


def skips(optimizer: Optimizer) -> bool:
    """Whether a scaler makes the optimizer skip this step."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and bool(found.any())


def listed(names: Iterable[str], most: int = 4) -> str:
    """List the first names, and count the others.

    >>> listed(["a", "b"]), listed("abcdefg")
    ('a, b', 'a, b, c, d and 3 more')
    """
    names = [*names]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# ## Checking the parameters
#
# > The check detects ranks that start from different values, parameters with two names,
# > and parameters that are not averaged.
#
# `shard` copies rank 0's values to all ranks, so the ranks may build their models from
# different seeds. With `synchronize=False` nothing is copied, and the values have to be
# equal already. If they differ, the first half of a weight comes from rank 0's model and
# the second half from rank 1's, without an error. So the check compares the values before
# they are cut.
#
# The gradient of a parameter outside of all units is not averaged. An optimizer that
# mixes such parameters with sharded ones [is
# refused](refusals.py#module/parameters-that-belong-to-no). But an optimizer that has
# only such parameters is allowed, because it may train a second model whose gradients
# the program averages itself. The values tell the two cases apart. If they were equal
# on all ranks before the steps and differ afterwards, each rank has trained alone.
#
# Buffers may differ between ranks, because each rank's [batch
# norm](model.py#copy_buffers) computes the statistics of its own data. A note names these
# buffers, because `state_dict()` saves those of the rank that calls it.


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
