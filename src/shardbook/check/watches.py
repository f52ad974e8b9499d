r"""# Watches

> Each check is one object that is told what the script does, and that looks at nothing else.

Eight moments of a script matter to the checks: a model is about to be sharded, has been
sharded, begins a forward pass, a loss begins its backward pass, an optimizer is about to
step, has stepped, a unit acts, and the script ends. A [`Watch`](#Watch) has a method for
each, and a check overrides those that it needs. [`Watched`](#Watched) is the block in
which all of them are called. It changes nothing in the script, and leaves nothing behind:

| moment | how it is learned |
|---|---|
| a model is sharded, a unit acts | [observers](observers.py) |
| a forward pass of a sharded model | a hook of that model, before the unit is gathered |
| a backward pass | `torch.autograd.backward`, which `loss.backward()` calls |
| a step | PyTorch's hooks that all optimizers call |

What a check computes itself is no part of the program. Operations that another mode
counts or records would be, so the moments are told where no mode listens.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from shardbook.check.between_ranks import BetweenRanks
from shardbook.check.findings import Findings
from shardbook.foundations.hook_context import in_backward, machinery_at_work
from shardbook.foundations.observers import observers
from shardbook.foundations.torch_private import as_plain, no_modes
from shardbook.parameters.access import steps_under_way
from shardbook.parameters.flat import owner_of
from shardbook.parameters.gradients import FlatWithGradients
from shardbook.zero.conductor import conductor_of
from shardbook.zero.unit import Unit

__all__ = ["Run", "Watch", "Watched", "is_sliced", "trained"]
# sidelit: show


class Run:
    """What all checks of one run share.

    :param steps: after how many steps of the optimizer the script is ended
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.found = Findings()
        # The models that were sharded, in order, and how often any of them was called.
        self.models: list[nn.Module] = []
        self.forwards = 0
        # Whether autograd records the forward pass that has just begun.
        self.records = False
        # How often each optimizer has stepped. One that holds no sharded parameter has
        # its place in the second table.
        self.taken: dict[Optimizer, int] = {}
        self.others: dict[Optimizer, int] = {}
        self.ranks: BetweenRanks | None = None

    def units(self) -> Iterator[Unit]:
        """The units of all sharded models."""
        for model in self.models:
            yield from conductor_of(model).drivers

    def parameters(self) -> Iterator[tuple[str, nn.Parameter, FlatWithGradients]]:
        """The sharded parameters: name, the model's own parameter, its vector."""
        for unit in self.units():
            for flat in unit.flats:
                for slot, one in zip(flat.layout.slots, flat.parameters, strict=True):
                    yield slot.names[0], one, flat

    @property
    def taken_by_all(self) -> int:
        """How many steps each optimizer of the sharded models has taken at least."""
        return min(self.taken.values(), default=max(self.others.values(), default=0))


class Watch:
    """A check. Each method is one moment of the script, and does nothing by default.

    :param run: what the checks share
    """

    def __init__(self, run: Run) -> None:
        self.run, self.found = run, run.found

    def patches(self) -> Sequence[Any]:
        """Functions to replace while the script runs, as `unittest.mock.patch` makes them."""
        return ()

    def sharding(self, model: nn.Module, options: dict[str, Any]) -> None:
        """A model is about to be sharded, with these named options."""

    def sharded(self, model: nn.Module) -> None:
        """It has been."""

    def forward(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """A sharded model was called, and no unit is gathered yet."""

    def backward(self, losses: Sequence[Tensor]) -> None:
        """A backward pass is about to begin from these tensors."""

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step, and its step was not refused."""

    def after_step(self, optimizer: Optimizer) -> None:
        """It has stepped."""

    def begins(self, act: str, unit: str) -> None:
        """A unit begins to gather, to reduce, to wait, or to free itself."""

    def ends(self, act: str, unit: str) -> None:
        """It has done so."""

    def facts(self) -> Any:
        """What the other ranks have to know at the end, as plain data."""

    def judge(self, facts: list[Any]) -> None:
        """Compare the facts of all ranks. This runs on rank 0 alone.

        :param facts: in rank order, `None` for a rank that did not answer
        """


class Watched:
    """In this block the watches are told what the script does.

    :param run: what they share
    :param watches: in the order in which they are told
    """

    def __init__(self, run: Run, watches: Sequence[Watch]) -> None:
        self.run, self.watches = run, watches
        self.patches = ExitStack()

    def __enter__(self) -> Watched:
        enter = self.patches.enter_context
        backward = self.backward(torch.autograd.backward)
        enter(patch.object(torch.autograd, "backward", backward))
        for watch in self.watches:
            for change in watch.patches():
                enter(change)
        for register, act in (
            (register_optimizer_step_pre_hook, self.before_step),
            (register_optimizer_step_post_hook, self.after_step),
        ):
            self.patches.callback(register(torch.compiler.disable(act)).remove)
        observers.append(self)
        self.patches.callback(observers.remove, self)
        return self

    def __exit__(self, *error: object) -> None:
        self.patches.close()

    def tell(self, moment: str, *about: Any) -> None:
        """Call one method of each watch, as something that the script does not do."""
        with no_modes(), as_plain(), torch.no_grad():
            for watch in self.watches:
                getattr(watch, moment)(*about)

    def begins(self, act: str, about: Any) -> None:
        """[An observer](observers.py) is told of a call of `shard`, or of what a unit does."""
        if act == "shard":
            # Options are pairs of a name and a value, behind the model.
            options: dict[str, Any] = dict(
                each for each in about[1:] if isinstance(each, tuple)
            )
            model = options.pop("model", None) if not about else about[0]
            if isinstance(model, nn.Module):
                self.tell("sharding", model, options)
        elif isinstance(about, str):
            self.tell("begins", act, about)

    def ends(self, act: str, about: Any) -> None:
        """The same for the end."""
        if act == "shard":
            if self.run.ranks is None:
                self.run.ranks = BetweenRanks()
            self.run.models.append(about)
            about.register_forward_pre_hook(
                torch.compiler.disable(self.forward), with_kwargs=True, prepend=True
            )
            self.tell("sharded", about)
        elif isinstance(about, str):
            self.tell("ends", act, about)

    def forward(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """A hook of a sharded model. Inside of a backward pass a checkpoint runs it again."""
        if not in_backward():
            self.run.forwards += 1
            self.run.records = torch.is_grad_enabled()
            self.tell("forward", model, args, kwargs)

    def backward(self, original: Callable[..., None]) -> Callable[..., None]:
        """The function that begins a backward pass, which tells of it first."""

        @wraps(original)
        def call(tensors: Any, *args: Any, **kwargs: Any) -> None:
            losses = [tensors] if isinstance(tensors, Tensor) else [*tensors]
            # A reentrant checkpoint begins a backward pass inside of another.
            if not (in_backward() or machinery_at_work()):
                self.tell("backward", losses)
            original(tensors, *args, **kwargs)

        return call

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """A hook of all optimizers. One that steps inside of another's step is part of it."""
        if steps_under_way() <= 1:
            self.tell("before_step", optimizer)

    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """The same after the step, which counts now."""
        if steps_under_way() > 1:
            return
        own = any(owner_of(p) is not None for p in trained(optimizer))
        counts = self.run.taken if own else self.run.others
        counts[optimizer] = counts.get(optimizer, 0) + 1
        self.tell("after_step", optimizer)


def trained(optimizer: Optimizer) -> Iterator[Tensor]:
    """The parameters that an optimizer holds."""
    for group in optimizer.param_groups:
        yield from group["params"]


def is_sliced(parameter: Any) -> bool:
    """Whether a rank has only a part of a parameter, because other ranks have the rest."""
    flat = owner_of(parameter) if isinstance(parameter, Tensor) else None
    return flat is not None and flat.sliced and flat.layout.world_size > 1
