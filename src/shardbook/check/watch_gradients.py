r"""# The gradients

> What an optimizer steps with, and which parameters it leaves out.

An optimizer never complains. It passes by a parameter without a gradient, takes a step
of nothing where all gradients are zero, and fills the model with NaN where one of them is
NaN. Four questions are asked after each step:

- **Was there a gradient at all?** After `zero_grad()` in the wrong place there is none, and
  none after `backward(inputs=...)` with the parameters of a model in stage 0.
- **Is it finite?** The first parameter with another gradient is named. A scaler that skips
  a step calls no optimizer, so a step that is taken should have finite gradients.
- **Which parameters had none?** A parameter that no rank has used in any of the steps
  keeps [the gradient `None`](unused.py). It is named, and so is one that has gradients
  which no optimizer takes.
- **Are several means added up?** With micro-batches each loss should be divided by their
  number. A loss that comes straight from a mean was not. It is a warning: the same line
  may mean the sum, or the gradients may be divided later.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from shardbook.check.place import Place, place
from shardbook.check.watches import Run, Watch, trained
from shardbook.foundations.torch_private import reduction_of
from shardbook.parameters.flat import owner_of
from shardbook.zero.conductor import conductor_of

__all__ = ["Gradients", "listed"]
# sidelit: show


class Gradients(Watch):
    """Looks at the gradients of each step of an optimizer that trains a sharded model."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        # Of each optimizer the line of its last step, whether it ever had a gradient,
        # and whether one was ever other than zero on this rank.
        self.steps: dict[Optimizer, list[Any]] = {}
        # The names of the parameters that had a gradient, and of those that were in an
        # optimizer that has stepped.
        self.used: set[str] = set()
        self.held: set[int] = set()
        # Where each backward pass since the last step began, and whether its loss was a
        # mean. The line of a loss that was not finite.
        self.passes: list[tuple[Place | None, bool]] = []
        self.lost: Place | None = None

    def backward(self, losses: Sequence[Tensor]) -> None:
        """Note the line, and what kind of loss it is."""
        here = place()
        means = [
            takes_mean(loss.grad_fn) for loss in losses if loss.grad_fn is not None
        ]
        self.passes.append((here, all(means) and len(means) == 1))
        if not all(bool(loss.isfinite().all()) for loss in losses):
            self.lost = self.lost or here

    def after_step(self, optimizer: Optimizer) -> None:
        """Look at the gradients that the step was taken with. They are still there."""
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
        """Note the first gradient that is infinite or NaN. After the step all are."""
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
        """Several passes from one line, each from a mean: their gradients are added up."""
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
        """What this rank has seen, for a comparison with the others."""
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
        """A gradient may be zero, and a slice empty, on one rank and not on another."""
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
        zero = any(conductor_of(model).unused_get_zero for model in self.run.models)
        if self.steps and not self.found.has("no-gradients"):
            self.name_unused(present, zero=zero)

    def name_unused(self, facts: list[Any], *, zero: bool) -> None:
        """Name the parameters without a gradient, and those that no optimizer takes.

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
    """Whether a node of the graph is a mean over all elements, or a loss that ends in one.

    A loss that was divided by something ends in another node.
    """
    name = node.name().removesuffix("Backward0")
    return name == "Mean" or (name in LOSSES and reduction_of(node) == 1)


def skips(optimizer: Optimizer) -> bool:
    """Whether a scaler has told the optimizer itself to leave this step out."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and bool(found.any())


def listed(names: Iterable[str], most: int = 4) -> str:
    """Some names, and how many more there are.

    >>> listed(["a", "b"]), listed("abcdefg")
    ('a, b', 'a, b, c, d and 3 more')
    """
    names = [*names]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
