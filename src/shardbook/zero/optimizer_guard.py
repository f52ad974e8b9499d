r"""# Checks before an optimizer's step

> Before an optimizer steps on sharded parameters, the library checks that it will train the right thing.

A sharded parameter looks like any other, so any optimizer accepts it. But not every
optimizer can train it. Muon, for example, computes with a parameter's shape, which a
slice has lost. And any optimizer that steps too early trains with gradients that were
not averaged. In each case the numbers would be wrong without an error, so this chapter
raises one.

PyTorch calls a hook before each step of each optimizer. The hook costs a loop over the
parameters, and no message. Before the first step it also [tries the
optimizer](optimizer_trial.py).

A step can also come at a wrong time. After [a pass that was
interrupted](#module/interrupted-forward-and-backward-passes) it would use unfinished
gradients, and [between a forward pass and its backward
pass](#module/weights-that-change-before-the) it would change the weights. Both are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from shardbook.foundations.layout import Slot
from shardbook.foundations.streams import compute_stream
from shardbook.foundations.torch_private import own_parameters
from shardbook.zero.flat import Flat, owner_of
from shardbook.zero.optimizer_trial import Kind, options_of, refuse_unless_elementwise
from shardbook.zero.parameter_sites import Site
from shardbook.zero.refusals import refuse_unowned_of

if TYPE_CHECKING:
    from shardbook.zero.scheduler import Scheduler
    from shardbook.zero.unit import Unit

__all__ = [
    "NEVER",
    "Computed",
    "Ending",
    "before_step",
    "let_zero_grad_reach",
    "only_failed",
    "refuse_copies_of",
    "refuse_interrupted",
    "refuse_waiting",
    "register_guard",
]


@cache
def register_guard() -> None:
    """Register the check for every optimizer of this process. One hook serves all models.

    A compiled `optimizer.step` calls the hook uncompiled. The hook counts steps, and a
    compiler would take each new count for another program.
    """
    register_optimizer_step_pre_hook(torch.compiler.disable(before_step))


def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Refuse a step that would silently train something else, and count the other steps.

    Without this check a step would miss gradients that wait for their exchange, or
    gradients of an interrupted pass. The steps are counted because a backward pass
    [must use the weights](hooks.py#Hooks.before_backward) of its forward pass.

    :raises TypeError: if the optimizer does not train each element independently, and
        its parameters are slices
    :raises ValueError: if its groups were made by the shapes of slices, or its state
        has other shapes than the slices
    :raises RuntimeError: if gradients were collected and not averaged, if a pass was
        interrupted while the parameters were in use, or if some of the parameters
        [belong to no unit](refusals.py#module/parameters-that-belong-to-no)
    :raises Disagreement: if the ranks have [left the common order](exchange_order.py)
    """
    parameters = (
        parameter for group in optimizer.param_groups for parameter in group["params"]
    )
    # A dictionary keeps the order, so that every rank names the same parameter.
    flats = list(dict.fromkeys(filter(None, map(owner_of, parameters))))
    if any(flat.order.rendezvous is not None for flat in flats):
        refuse_unowned_of(optimizer)
    if any(flat.sliced for flat in flats):
        # The first argument is the optimizer itself, unless a program passes none.
        given = chain(args[1:], kwargs.values())
        refuse_unfit(optimizer, flats, closure=any(map(callable, given)))
    for flat in flats:
        flat.order.check()
        # The optimizer may run on a stream of its own, which has to wait for the last
        # exchange.
        compute_stream(flat.device)
        refuse_waiting(flat)
        flat.changes += 1


def refuse_waiting(flat: Flat) -> None:
    """Refuse gradients of which [a part has not been averaged](accumulate.py), or which
    belong to [a pass that did not end](optimizer_guard.py#module/interrupted-forward-and-backward-passes).
    """
    refuse_interrupted(flat)
    if flat.waits:
        raise RuntimeError(
            f"the gradient of {flat.layout.slots[0].names[0]} has not been averaged "
            "yet; run a backward pass to its end, outside of no_sync()"
        )


# The options and the state with which each optimizer passed the check.
_passed: WeakKeyDictionary[torch.optim.Optimizer, Any] = WeakKeyDictionary()


def refuse_unfit(
    optimizer: torch.optim.Optimizer, flats: Sequence[Flat], *, closure: bool
) -> None:
    """Check an optimizer of slices before its first step, and again after its groups,
    their options or its state were replaced.
    """
    options = [(len(g["params"]), options_of(g)) for g in optimizer.param_groups]
    before, state = _passed.get(optimizer, (None, None))
    if options == before and state is optimizer.state:
        return
    slots = {
        id(parameter): slot
        for flat in flats
        if flat.sliced
        for slot, parameter in zip(flat.layout.slots, flat.parameters, strict=True)
    }
    uncut = {id(p) for flat in flats if flat.layout.uncut for p in flat.parameters}
    cut = {key: slot for key, slot in slots.items() if key not in uncut}
    refuse_state_of_whole(optimizer, slots, uncut)
    if options != before:
        trained = [
            (parameter, slots[id(parameter)])
            for group in optimizer.param_groups
            for parameter in group["params"]
            # Integers never get a gradient, so no optimizer changes them.
            if id(parameter) in slots and parameter.is_floating_point()
        ]
        if depends_on_shapes(type(optimizer)):
            for parameter, slot in trained:
                if id(parameter) in cut:
                    raise TypeError(
                        f"{type(optimizer).__name__} depends on a parameter's shape, and "
                        f"{slot.names[0]} is cut; name what it trains by "
                        "shard(uncut=...), use an elementwise optimizer such as AdamW, or "
                        "shard with stage=0"
                    )
        refuse_lost_split(optimizer, slots, cut, uncut)
        kinds = {
            id(parameter): Kind(
                len(slot.shape),
                parameter.dtype,
                parameter.device,
                slot.numel,
                id(parameter) in uncut,
            )
            for parameter, slot in trained
        }
        refuse_unless_elementwise(optimizer, kinds, closure=closure)
    _passed[optimizer] = options, optimizer.state


def depends_on_shapes(kind: type[torch.optim.Optimizer]) -> bool:
    """Whether an optimizer computes with a parameter's shape, its norm, or an inner
    product.

    The name of its class or of a base class decides. Other libraries derive classes of
    their own, and add to the name.

    >>> [depends_on_shapes(type(name, (), {})) for name in ("FusedLAMB", "LambdaSGD")]
    [True, False]
    """
    return any(_SHAPE_DEPENDENT.search(base.__name__.lower()) for base in kind.__mro__)


_SHAPE_DEPENDENT = re.compile(
    "adafactor|^came|dadapt|galore|lamb(?!da)|larc|lars|lbfgs|muon|novograd|prodigy|"
    "shampoo|sm3|soap"
)

# sidelit: depth State of a whole model, groups by the shapes of slices, and copies of a model.


def refuse_state_of_whole(
    optimizer: torch.optim.Optimizer, slots: dict[int, Slot], uncut: set[int]
) -> None:
    """Refuse an optimizer whose state does not fit its slices.

    Such an optimizer has trained the model before it was sharded, or has loaded the
    state of a whole model or of another number of ranks. PyTorch compares no sizes when
    it loads.

    :raises ValueError: naming the entry, the parameter and both shapes
    """
    for parameter, state in optimizer.state.items():
        if id(parameter) not in slots:
            continue
        for key, value in state.items():
            if not isinstance(value, Tensor) or value.numel() == 1:
                continue
            # A rank that has all of a parameter may have state of any shape, and one
            # that has nothing of it may have none.
            fits = value.shape == parameter.shape
            if id(parameter) in uncut:
                fits = bool(parameter.numel() or not value.numel())
            if not fits:
                raise ValueError(
                    f"{key} of {slots[id(parameter)].names[0]} in this "
                    f"{type(optimizer).__name__} has shape {tuple(value.shape)}, and the "
                    f"slice has {tuple(parameter.shape)}; load optimizer state by "
                    "load_optimizer_state_dict()"
                )


def refuse_lost_split(
    optimizer: torch.optim.Optimizer,
    slots: dict[int, Slot],
    cut: dict[int, Slot],
    uncut: set[int],
) -> None:
    """Refuse groups that were to differ by the shapes of parameters, but were made from
    slices.

    `p.dim() >= 2` is false for every slice. So the group that was to decay is empty, or
    holds only matrices that are not cut, and the other one holds the matrices beside the
    vectors.

    :raises ValueError: naming the first of the matrices
    """
    groups = optimizer.param_groups
    decays = {
        group.get("weight_decay")
        for group in groups
        if all(id(p) in uncut and p.dim() > 1 for p in group["params"])
    }
    for group in groups:
        here = [cut[id(p)] for p in group["params"] if id(p) in cut]
        matrix = next((slot for slot in here if len(slot.shape) > 1), None)
        vector = any(
            len(slots[id(p)].shape) < 2 for p in group["params"] if id(p) in slots
        )
        if matrix and vector and decays - {group.get("weight_decay")}:
            raise ValueError(
                f"{matrix.names[0]} is in one group with vectors, and a group with "
                "another weight_decay holds no slice, because slices have one "
                "dimension; make groups by shape before shard(), leave an empty group "
                "out, or leave this optimizer's parameters out of uncut="
            )


def refuse_copies_of(module: nn.Module) -> None:
    """Make `deepcopy` and `torch.save` of a module raise an error.

    The parameters of a copy would belong to no unit, so each rank would train them
    alone. Both functions look for this method on the object itself.
    """
    vars(module).update(__reduce_ex__=refuse_copy)


def refuse_copy(protocol: Any) -> NoReturn:
    """Refuse a copy, and say what to do instead.

    :raises TypeError: always
    """
    raise TypeError(
        "a sharded model cannot be copied or pickled; make copies before sharding, and "
        "shard each, or load its state_dict() into a plain model"
    )


# sidelit: core


# ## Interrupted forward and backward passes
#
# > After an interrupted pass, `zero_grad` still works and no optimizer uses the unfinished gradients.
#
# While a unit computes, [the attributes of its modules are the whole
# parameters](unit.py#Unit.show). If an exception ends the pass, they may still be so when
# the program continues:
#
# ```python
# try:
#     model(batch).sum().backward()
# except KeyboardInterrupt:
#     model.zero_grad()
# ```
#
# The gradients belong to the model's own parameters, the slices. But here `zero_grad`
# would find the whole parameters, which have no gradients, and would reset nothing. The
# next step would add its gradients to the old ones, without an error.
#
# How the library detects a failed pass depends on the pass and on the exception:
#
# | pass | exception | detected by |
# |---|---|---|
# | forward | an error | [the hook after the forward pass](hooks.py), which runs even then |
# | forward | an interrupt from the keyboard | nothing, until the next forward pass |
# | backward | any | [the callback of its end](#Ending), which autograd drops without a call |
#
# As soon as the failure is detected, the attributes become the model's own parameters
# again. In the second row that is too late, so there `zero_grad` itself reaches the
# model's own parameters.
#
# The gradients that a failed backward pass has collected are incomplete. They are dropped
# before [the next forward pass](scheduler.py#recover), or before the next backward pass
# if that comes first. Until then no optimizer may step with them, and no norm is
# computed.


@dataclass
class Ending:
    """The callback that autograd calls at the end of a backward pass.

    If the pass fails, autograd drops the callback without a call. On a CPU that happens
    before the exception reaches the program.

    :param scheduler: [the scheduler of the pass](scheduler.py#Scheduler)
    :param task: the number of the pass
    """

    scheduler: Scheduler
    task: int

    def __call__(self) -> None:
        self.scheduler.backward_ended(self.task)

    def __del__(self) -> None:
        if self.task in self.scheduler.passes:
            give_up(self.scheduler, self.task)


def give_up(scheduler: Scheduler, task: int) -> None:
    """Record that a backward pass has failed, and restore the attributes of the units
    that it has reached to the model's own parameters.

    No exchange is waited for and no memory is freed, because an exchange without a
    partner would never end. If the backward pass is inside such a unit's forward pass,
    that unit continues to compute.
    """
    scheduler.failed.add(task)
    for hooks in scheduler.passes[task]:
        computes = hooks.backward_use is None and hooks.uses.under_way()
        if not hooks.unit.pins and not computes:
            hooks.unit.show(False)


def only_failed(scheduler: Scheduler) -> bool:
    """Whether all backward passes that are under way have failed, and there are some."""
    return bool(scheduler.passes) and scheduler.failed.issuperset(scheduler.passes)


def refuse_interrupted(flat: Flat) -> None:
    """Refuse to use gradients in the middle of a pass, or after one that failed.

    :raises RuntimeError: naming the first parameter
    """
    hooks = flat.hooks()
    if hooks is None:
        return
    scheduler = hooks.scheduler
    if hooks.unit.shown or scheduler.failed & scheduler.passes.keys():
        raise RuntimeError(
            f"{flat.layout.slots[0].names[0]} is in the middle of a forward or "
            "backward pass that did not end, or of a block of whole(model); call the "
            "model once more, or leave the block, before its gradients are used"
        )


def let_zero_grad_reach(model: nn.Module, units: Iterable[Unit]) -> None:
    """Make `zero_grad` of a model and its submodules reach the model's own parameters,
    even while the attributes are the whole ones.
    """
    sites = [site for unit in units for site in unit.sites]
    for module in model.modules():
        vars(module)["zero_grad"] = zero_grad_of(module, sites)


def zero_grad_of(module: nn.Module, sites: Sequence[Site]) -> Callable[..., None]:
    """The new `zero_grad` method of a module."""

    def zero_grad(*args: Any, **kwargs: Any) -> None:
        type(module).zero_grad(module, *args, **kwargs)
        inside = set(module.modules())
        others = [
            site.parameter
            for site in sites
            if site.module in inside
            and own_parameters(site.module).get(site.attribute) is not site.parameter
        ]
        nn.ParameterList(others).zero_grad(*args, **kwargs)

    return zero_grad


# ## Weights that change before the backward pass
#
# > A gradient belongs to the weights of its forward pass. A backward pass with other weights is refused.
#
# A gradient is computed from the activations that the forward pass has saved and from the
# weights. Suppose an optimizer steps between the two passes. The saved activations then
# belong to the old weights, and the result is the gradient of no loss. In an unsharded
# model autograd compares the versions of the saved weights. But a unit gathers its
# weights anew for the backward pass, so autograd has nothing to compare. The unit
# therefore makes its own comparison:
#
# | between the two passes | wrong result |
# |---|---|
# | the parameters were changed | a gradient of other weights |
# | [`full_precision`](whole.py) began or ended | a gradient whose dtype is not that of the result |
# | the gradient is itself to be differentiated | a second derivative of weights that were freed |


@dataclass(frozen=True, slots=True)
class Computed:
    """The state with which a forward pass has computed.

    :param version: the version of the unit's parameters
    :param precise: whether it computed with the masters themselves, as in
        [`full_precision`](whole.py)
    """

    version: int | None = None
    precise: bool = False

    @classmethod
    def of(cls, unit: Unit) -> Computed:
        """The present state of [a unit](unit.py)."""
        return cls(unit.version, bool(unit.narrowed) and unit.precise)

    def refuse_others(self, unit: Unit) -> None:
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
        now = Computed.of(unit)
        if self.precise is not now.precise:
            side = "outside" if unit.precise else "inside"
            raise RuntimeError(
                f"{unit.name}: its forward pass was {side} of full_precision(); "
                "call backward there, too"
            )
        if self.version != now.version:
            raise RuntimeError(
                f"{unit.name}: parameters were changed between this unit's forward "
                "pass and its backward pass; call backward before the optimizer steps"
            )


# No forward pass has ended yet.
NEVER = Computed()
