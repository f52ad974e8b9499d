r"""# The watches of a checked run

> Each check is a `Watch`, an object whose methods are called at eight moments of the
> script.

Suppose a check has to compare the batches of all ranks. It needs to be called whenever a
forward pass begins. A [`Watch`](#Watch) has one method for each moment that matters to
the checks: before and after a model is sharded, at the beginning of a forward pass and
of a backward pass, before and after an optimizer step, when a unit acts, and at the end
of the script. A check overrides the methods that it needs.

[`Watched`](#Watched) is the block in which these methods are called. It does not change
the script, and removes its hooks at the end:

| moment | source |
|---|---|
| a model is sharded, a unit acts | [observers](observers.py) |
| a forward pass of a sharded model begins | a hook of the model, which runs before the unit is gathered |
| a backward pass begins | a wrapper of `torch.autograd.backward`, which `loss.backward()` calls |
| an optimizer steps | PyTorch's hooks for all optimizers |

A check computes with tensors, too, for example the digest of a batch. These operations
do not belong to the script, so no mode that counts or records operations may see them.
Therefore the methods are called with all modes turned off.
"""

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


class Run:
    """The data that all checks of one run share.

    :param steps: after how many optimizer steps to end the script
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.found = Findings()
        # The sharded models in their order, and the number of forward passes of all of
        # them.
        self.models: list[nn.Module] = []
        self.forwards = 0
        # Whether autograd records the forward pass that has just begun.
        self.records = False
        # The number of steps of each optimizer. Optimizers without sharded parameters are
        # in the second table.
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
        """The smallest number of steps of an optimizer of the sharded models."""
        return min(self.taken.values(), default=max(self.others.values(), default=0))


class Watch:
    """A check. Each method is called at one moment of the script, and does nothing by default.

    :param run: the data that the checks share
    """

    def __init__(self, run: Run) -> None:
        self.run, self.found = run, run.found

    def patches(self) -> Sequence[Any]:
        """Patches, made by `unittest.mock.patch`, that are active while the script runs."""
        return ()

    def sharding(self, model: nn.Module, options: dict[str, Any]) -> None:
        """Called before a model is sharded, with the options of `shard`."""

    def sharded(self, model: nn.Module) -> None:
        """Called after a model was sharded."""

    def forward(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Called when a sharded model's forward pass begins, before any unit is gathered."""

    def backward(self, losses: Sequence[Tensor]) -> None:
        """Called before a backward pass from these tensors."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Called before an optimizer steps, if its step was not refused."""

    def after_step(self, optimizer: Optimizer) -> None:
        """Called after an optimizer has stepped."""

    def begins(self, act: str, unit: str) -> None:
        """Called when a unit begins to gather, reduce, wait, or free its memory."""

    def ends(self, act: str, unit: str) -> None:
        """Called when the unit has finished this act."""

    def facts(self) -> Any:
        """Plain data for the comparison at the end."""

    def judge(self, facts: list[Any]) -> None:
        """Compare the facts of all ranks. Called on rank 0 only.

        :param facts: the facts in rank order, `None` for a rank that did not answer
        """


class Watched:
    """A block in which the methods of the watches are called.

    :param run: the data that the watches share
    :param watches: the watches, in the order of their calls
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
        """Call one method of each watch, with all modes turned off."""
        with no_modes(), as_plain(), torch.no_grad():
            for watch in self.watches:
                getattr(watch, moment)(*about)

    def begins(self, act: str, about: Any) -> None:
        """[An observer's](observers.py) method for the beginning of `shard` or of a unit's act."""
        if act == "shard":
            # After the model, the options follow as pairs of a name and a value.
            options: dict[str, Any] = dict(
                each for each in about[1:] if isinstance(each, tuple)
            )
            model = options.pop("model", None) if not about else about[0]
            if isinstance(model, nn.Module):
                self.tell("sharding", model, options)
        elif isinstance(about, str):
            self.tell("begins", act, about)

    def ends(self, act: str, about: Any) -> None:
        """An observer's method for the end of `shard` or of a unit's act."""
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
        """The hook of a sharded model. A checkpoint's second forward pass is left out."""
        if not in_backward():
            self.run.forwards += 1
            self.run.records = torch.is_grad_enabled()
            self.tell("forward", model, args, kwargs)

    def backward(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap the function that begins a backward pass, so that the watches are called first."""

        @wraps(original)
        def call(tensors: Any, *args: Any, **kwargs: Any) -> None:
            losses = [tensors] if isinstance(tensors, Tensor) else [*tensors]
            # A reentrant checkpoint begins a backward pass inside another one, which is not
            # counted.
            if not (in_backward() or machinery_at_work()):
                self.tell("backward", losses)
            original(tensors, *args, **kwargs)

        return call

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """The hook before an optimizer step. A step inside another optimizer's step is part of it."""
        if steps_under_way() <= 1:
            self.tell("before_step", optimizer)

    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """The hook after an optimizer step, which is counted now."""
        if steps_under_way() > 1:
            return
        own = any(owner_of(p) is not None for p in trained(optimizer))
        counts = self.run.taken if own else self.run.others
        counts[optimizer] = counts.get(optimizer, 0) + 1
        self.tell("after_step", optimizer)


def trained(optimizer: Optimizer) -> Iterator[Tensor]:
    """The parameters of an optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]


def is_sliced(parameter: Any) -> bool:
    """Whether a parameter is a slice, so that other ranks have the rest."""
    flat = owner_of(parameter) if isinstance(parameter, Tensor) else None
    return flat is not None and flat.sliced and flat.layout.world_size > 1
