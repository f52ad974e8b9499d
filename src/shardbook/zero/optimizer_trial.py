r"""# The trial of an optimizer

> Before its first step, copies of the optimizer train other tensors, once whole and once in slices.

In stages 1 to 3 an optimizer trains slices, as if they were whole parameters. AdamW
computes each element from that element alone, so the elements of a slice get the same
values as in the whole parameter. Many optimizers do more. LAMB multiplies the update of
a matrix by the norm of the matrix:

| | values | norm |
|---|---|---|
| one process has the matrix | $[3, 4]$ | 5 |
| rank 0 has a slice | $[3]$ | 3 |
| rank 1 has a slice | $[4]$ | 4 |

So each rank would train its slice at another speed, without an error. The name of an
optimizer is not enough to detect this, because programs may define optimizers of their
own.

Therefore the update rule is tried. One copy of the optimizer takes a few steps with
tensors that have as many dimensions as the real parameters. Two more copies take
the same steps as two ranks would: each has its slices of the same tensors, and some of
the slices are empty. If the results are equal bit for bit, the optimizer may train
slices. The two copies share nothing, so the trial detects a norm over all parameters as
well as the norm of one.

The optimizer itself must not change in the trial. So it is [copied attribute by
attribute](#module/copying-an-optimizer), with small parameters in place of the model's.

All ranks use the same numbers, and the real slices of a rank have no part in the trial.
So all ranks come to the same result without an exchange. The trial runs before an
optimizer's first step, and again after its groups or their options have changed. For
AdamW and small parameters it takes about 20 ms and a few MB, and for parameters of
hundreds of thousands of elements about 10 times that.

The trial does not detect a rule that takes effect only after more steps or above a
larger size than the trial has, or a method with another name than `step`.
"""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shardbook.foundations.rng import capture
from shardbook.foundations.torch_private import (
    GLOBAL_OPTIMIZER_HOOKS,
    OPTIMIZER_HOOKS,
    no_modes,
    optimizer_module,
)

__all__ = [
    "Kind",
    "StandIns",
    "copied",
    "no_hooks",
    "options_of",
    "refuse_unless_elementwise",
]


class Kind(NamedTuple):
    """The properties of a parameter that the trial uses.

    :param dimensions: the number of dimensions of the whole parameter
    :param numel: the number of its elements
    :param uncut: whether one rank has all of them
    """

    dimensions: int
    dtype: torch.dtype
    device: torch.device
    numel: int = 0
    uncut: bool = False


# The groups to try, each with the kinds of its parameters: of each kind the smallest
# and the largest.
Groups = Sequence[tuple[dict[str, Any], list[Kind]]]


def refuse_unless_elementwise(
    optimizer: Optimizer, kinds: Mapping[int, Kind], *, closure: bool
) -> None:
    """Refuse an optimizer that would train slices otherwise than whole parameters.

    :param optimizer: it does not change, and neither do the random numbers
    :param kinds: of each parameter that is a slice, by its `id`
    :param closure: whether the step gets a closure
    :raises TypeError: if the results differ, or if the optimizer cannot be tried
    """
    groups = groups_to_try(optimizer, kinds)
    name = type(optimizer).__name__
    devices = {kind.device for kind in kinds.values()}
    # A program may watch or replace each operation. The trial needs real values, and is
    # no part of the program.
    with capture(*devices).restored(), no_hooks(), no_modes():
        try:
            trial = try_out(optimizer, groups, closure)
        except Exception as error:
            raise TypeError(
                f"{name} could not be tried on small parameters, so nobody knows "
                f"whether it may train slices ({type(error).__name__}: {error}); use an "
                "elementwise optimizer such as AdamW, or shard with stage=0"
            ) from error
    if not trial.passed:
        raise TypeError(
            f"{name} would train the slices of a parameter otherwise than the whole "
            "parameter, because it depends on a parameter's shape, a norm, or random "
            "numbers; use an elementwise optimizer such as AdamW, or shard with stage=0"
        ) from trial.error


def groups_to_try(optimizer: Optimizer, kinds: Mapping[int, Kind]) -> Groups:
    """The groups that hold slices, each with the kinds of its parameters.

    Of groups with the same options and kinds, the first is enough. Of each kind the
    smallest parameter and the largest are enough, because rules that depend on the size
    treat those above a limit otherwise than those below it.
    """
    found: dict[Any, tuple[dict[str, Any], dict[Kind, list[int]]]] = {}
    for group in optimizer.param_groups:
        here = [kinds[id(p)] for p in group["params"] if id(p) in kinds]
        if here:
            alike = [each._replace(numel=0) for each in here]
            key = options_of(group), frozenset(alike)
            _, sizes = found.setdefault(key, (group, {}))
            for kind, each in zip(alike, here, strict=True):
                sizes.setdefault(kind, []).append(each.numel)
    return [
        (group, [kind._replace(numel=n) for kind in sizes for n in ends(sizes[kind])])
        for group, sizes in found.values()
    ]


def ends(sizes: list[int]) -> list[int]:
    """The smallest and the largest of some numbers, each once."""
    return sorted({min(sizes), max(sizes)})


class Trial:
    """Three copies of an optimizer, and the tensors that they train.

    :param filled: whether the copies start with state
    """

    def __init__(
        self,
        optimizer: Optimizer,
        groups: Groups,
        *,
        closure: bool,
        filled: bool = False,
    ) -> None:
        self.closure = closure
        # The error that the slices raised although the whole tensors did not.
        self.error: Exception | None = None
        self.random = torch.Generator("cpu").manual_seed(0)
        once = [
            # The smallest and the largest of a kind have most of their shapes in common.
            dict.fromkeys((s, k._replace(numel=0)) for k in kinds for s in shapes_of(k))
            for _, kinds in groups
        ]
        # What is on one rank is tried on each of the two.
        shapes = [
            [each for each in group for _ in range(1 + is_together(each[1]))]
            for group in once
        ]
        values = [[self.draw(*each, gaps=True) for each in group] for group in shapes]
        self.shapes = [each for group in shapes for each in group]
        self.drift = [self.draw(*each) for each in self.shapes]
        self.stand_ins: dict[Rank, StandIns] = {}
        self.copies: dict[Rank, Optimizer] = {}
        for rank in RANKS:
            numbers = itertools.count()
            here = [
                [
                    nn.Parameter(self.piece(value, rank, next(numbers)))
                    for value in group
                ]
                for group in values
            ]
            self.stand_ins[rank] = [each for group in here for each in group]
            self.copies[rank] = copied(
                optimizer, [group for group, _ in groups], here, filled=filled
            )
        self.passed = all(map(self.step_is_same, range(STEPS)))

    def draw(self, shape: tuple[int, ...], kind: Kind, gaps: bool = False) -> Tensor:
        """Random numbers for a tensor.

        With `gaps` some of them are zero. Beside a large number, a very small update
        would be lost in rounding.
        """
        # A program may have chosen another default device or dtype.
        values = torch.randn(
            shape, generator=self.random, dtype=torch.float32, device="cpu"
        )
        if gaps:
            values.view(-1)[::4] = 0
        return values.to(kind.device, kind.dtype)

    def step_is_same(self, number: int) -> bool:
        """Whether slices and whole tensors are equal after one more step."""
        # Large gradients trigger a rule that limits the size of an update. A rule that
        # reacts to signs needs some that change and some that do not.
        scale = SCALES[number % len(SCALES)]
        noise = [self.draw(*each) for each in self.shapes]
        pulls = [(a + b) * scale for a, b in zip(self.drift, noise, strict=True)]
        self.step(None, pulls)
        try:
            self.step(0, pulls)
            self.step(1, pulls)
        except Exception as error:
            self.error = error
            return False
        return self.alike()

    def step(self, rank: Rank, pulls: Sequence[Tensor]) -> None:
        """One step of one copy.

        The gradient depends on the parameters, since a rule may compute the gradient at
        more than one place.
        """
        stand_ins = self.stand_ins[rank]

        def gradients() -> Tensor:
            for number, (stand_in, pull) in enumerate(
                zip(stand_ins, pulls, strict=True)
            ):
                # [A step sees no gradient](access.py#hide_absent) of what is on another rank.
                if not self.shapes[number][1].uncut or rank in (None, number % 2):
                    stand_in.grad = self.piece(pull, rank, number) + stand_in.detach()
            return torch.ones((), device=stand_ins[0].device)

        gradients()
        optimizer = self.copies[rank]
        kind: Any = type(optimizer)
        kind.step(optimizer, *[gradients] * self.closure)

    def piece(self, tensor: Tensor, rank: Rank, number: int) -> Tensor:
        """A copy of a tensor, or of the slice that one of two ranks has of it.

        A large tensor is cut inside a row, at an offset at which [a real
        slice](layout.py) can begin. Of a small tensor rank 1 has nothing.

        :param number: the number of the tensor
        """
        kind, home = self.shapes[number][1], number % 2
        if rank is None or (kind.uncut and rank == home):
            return tensor.clone()
        if kind.uncut:
            return tensor.new_empty(0, *tensor.shape[1:])
        size = tensor.numel()
        cut = min(size, 32 * (size // 64 | 1))
        if is_together(kind):
            cut = size * (home == 0)
        values = tensor.flatten()
        return (values[:cut] if rank == 0 else values[cut:]).clone()

    def alike(self) -> bool:
        """Whether the slices, put together, equal the whole tensors."""
        for whole, *parts in zip(*self.stand_ins.values(), strict=True):
            joined = torch.cat([part.detach().flatten() for part in parts])
            expected = whole.detach().flatten()
            # NaN in the same places counts as equal.
            pair = joined, expected
            if not torch.equal(*pair) and not torch.equal(*map(torch.nan_to_num, pair)):
                return False
        return True


STEPS = 12


SCALES = (1.0, 30.0, 0.1)


# A rank of `None` is one process that has everything.
Rank = int | None


RANKS: tuple[Rank, ...] = (None, 0, 1)


def shapes_of(kind: Kind) -> list[tuple[int, ...]]:
    """A large and a small shape with the dimensions of a kind, and one of its own size if
    it is larger or smaller than both.

    Some rules treat small parameters differently: those with fewer than 4096 elements,
    or with fewer than 128 rows or columns. Others treat large ones differently. A
    parameter with more than $2^{18}$ elements is tried with so many.

    >>> device = torch.device("cpu")
    >>> shapes_of(Kind(2, torch.float32, device, 100))
    [(128, 144), (3, 5)]
    >>> shapes_of(Kind(4, torch.float32, device, 10**7))
    [(16, 18, 1, 16), (3, 3, 3, 5), (1024, 1, 1, 256)]
    >>> shapes_of(Kind(1, torch.float32, device, 1))
    [(4608,), (5,), (1,)]
    """
    dimensions, size = kind.dimensions, min(kind.numel, MOST)
    large = {0: (), 1: (4608,), 2: (128, 144)}
    more = (16, 18, *[1] * (dimensions - 3), 16)
    found = [
        large.get(dimensions, more),
        (3,) * (dimensions - 1) + (5,) * (dimensions > 0),
    ]
    if dimensions and size > prod(found[0]):
        row = 256 if dimensions > 1 else 1
        found.append((size // row, *[1] * (dimensions - 2), *[row] * (dimensions > 1)))
    elif dimensions and 0 < size < prod(found[1]):
        found.append((*[1] * (dimensions - 1), size))
    return found


MOST = 2**18


def is_together(kind: Kind) -> bool:
    """Whether one rank has all elements of a parameter, and the other none.

    Such parameters go to both ranks in turn, because a rule that combines several
    parameters would see only those of one rank.
    """
    return kind.uncut or kind.dimensions == 0


# sidelit: depth State that a rule begins with, and options whose change needs another trial.


def try_out(optimizer: Optimizer, groups: Groups, closure: bool) -> Trial:
    """Try an optimizer without state, or with state if it fails without."""
    try:
        return Trial(optimizer, groups, closure=closure)
    except Exception:
        if not optimizer.state:
            raise
        return Trial(optimizer, groups, closure=closure, filled=True)


def options_of(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """The options of a group whose change needs another trial.

    A scheduler changes the learning rate in each step, and the size of a number makes
    no difference to the trial. But zero does, because it often disables a part of the
    rule.

    >>> options_of({"params": [], "lr": 0.1, "betas": (0.9, 0.99), "nesterov": True})
    (('betas', (True, True)), ('nesterov', True))
    """
    left_out = ("params", "param_names", "lr", "initial_lr")
    return tuple((k, roughly(v)) for k, v in group.items() if k not in left_out)


def roughly(option: Any) -> Any:
    """An option without the size of its numbers."""
    if option is None or isinstance(option, bool | str):
        return option
    if isinstance(option, int | float):
        return option != 0
    if isinstance(option, tuple | list):
        return tuple(map(roughly, option))
    return type(option)


# sidelit: core


# ## Copying an optimizer
#
# > A copy of an optimizer has the same options, other parameters, and no state.
#
# [The trial of an optimizer](optimizer_trial.py) must not touch the optimizer itself, its
# state or its parameters. So it needs a second optimizer that is the same in everything
# else. A call of the class cannot make one: the arguments of its constructor are not
# known, and later changes by the program would be missing. So the object is copied,
# attribute by attribute.
#
# Three kinds of references need care:
#
# - A parameter in the object is replaced by a *stand-in*, a small parameter.
# - An inner optimizer, around which the object is a wrapper, is copied together with it.
# - Hooks are left out, because they belong to the program, which may count the steps by
#   them.


# sidelit: hide
# The small parameters that replace those of one group.
StandIns = list[nn.Parameter]
# sidelit: show


def copied(
    optimizer: Optimizer,
    groups: Sequence[dict[str, Any]],
    stand_ins: Sequence[StandIns],
    *,
    filled: bool,
) -> Optimizer:
    """A copy of an optimizer that trains other parameters.

    The constructor is not called, because its arguments are not known. The copy gets a
    copy of every attribute, in which a stand-in replaces each parameter.

    :param filled: whether the copy starts with state
    """
    memo: dict[int, Any] = {}
    for group, own in zip(groups, stand_ins, strict=True):
        memo[id(group["params"])] = own
        memo.update((id(p), own[i % len(own)]) for i, p in enumerate(group["params"]))
    shells = empty_copies(optimizer, memo)
    tried = [copy.deepcopy(group, memo) for group in groups]
    for group in tried:
        start_moving(group)
    # If an optimizer is a wrapper around another, the two share their groups.
    memo.update((id(old.param_groups), tried) for old, _ in shells)
    for old, new in shells:
        for name, value in vars(old).items():
            if name.endswith(OPTIMIZER_HOOKS):
                vars(new)[name] = OrderedDict()
            elif name not in LEFT_OUT:
                vars(new)[name] = duplicate(value, memo)
    if filled:
        for group, own in zip(groups, stand_ins, strict=True):
            fill(memo[id(optimizer.state)], own, optimizer, group["params"])
    return shells[0][1]


# A scheduler sets a `step` of its own on the object. A scaler sets two flags there, one
# of which would make the copy skip the step.
LEFT_OUT = ("step", "found_inf", "grad_scale")


def empty_copies(
    optimizer: Optimizer, memo: dict[int, Any]
) -> list[tuple[Optimizer, Optimizer]]:
    """An optimizer and its inner optimizers, each with an object of the same class that
    has no attributes yet.
    """
    memo[id(optimizer)] = new = object.__new__(type(optimizer))
    memo[id(optimizer.state)] = defaultdict(dict)
    found = [(optimizer, new)]
    for value in vars(optimizer).values():
        for inner in value if isinstance(value, list | tuple) else [value]:
            if isinstance(inner, Optimizer) and id(inner) not in memo:
                found += empty_copies(inner, memo)
    return found


@contextmanager
def no_hooks() -> Iterator[None]:
    """A block in which no hook of all optimizers is called, ours or others'.

    PyTorch keeps these hooks in two private dictionaries. They are replaced and not
    emptied, because PyTorch may be iterating over them.
    """
    kept = {name: getattr(optimizer_module, name) for name in GLOBAL_OPTIMIZER_HOOKS}
    try:
        for name in GLOBAL_OPTIMIZER_HOOKS:
            setattr(optimizer_module, name, OrderedDict())
        yield
    finally:
        for name, hooks in kept.items():
            setattr(optimizer_module, name, hooks)


# sidelit: depth A warm-up, attributes that cannot be copied, and state that a constructor makes.


def start_moving(group: dict[str, Any]) -> None:
    """Replace a learning rate of 0, with which a warm-up often starts and nothing moves."""
    rate = group.get("lr")
    if isinstance(rate, Tensor):
        rate.masked_fill_(rate == 0, 1e-3)
    elif rate == 0:
        group["lr"] = 1e-3


def duplicate(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of an attribute, or the value itself if it is a module or cannot be copied."""
    if isinstance(value, nn.Module):
        return value
    try:
        return copy.deepcopy(value, memo)
    except Exception:
        return value


def fill(
    state: dict[Tensor, Any],
    stand_ins: StandIns,
    optimizer: Optimizer,
    parameters: Sequence[Tensor],
) -> None:
    """Give stand-ins the entries of state that the parameters have.

    Adagrad creates its state in its constructor. A slice of that state may be empty on
    one rank and not on another, so its values are replaced by ones.
    """
    example = next((p for p in parameters if optimizer.state.get(p)), None)
    if example is None:
        return
    for stand_in in stand_ins:
        for name, value in optimizer.state[example].items():
            if isinstance(value, Tensor) and value.shape == example.shape:
                value = torch.ones_like(stand_in, dtype=value.dtype).detach()
            state[stand_in][name] = copy.deepcopy(value)
