r"""# The watches of a checked run

> Each check is a `Watch`, an object whose methods are called at eight moments of the
> script.

Suppose a check has to compare the batches of all ranks. It needs to be called whenever a
forward pass begins. A [`Watch`](#Watch) has one method for each moment that matters to
the checks: before and after a model is sharded, at the beginning of a forward pass and
of a backward pass, before and after an optimizer step, when a unit acts, and at the end
of the script. A check overrides the methods that it needs.

The check of the batches also needs those of the other ranks, so the ranks [exchange
notes](#module/comparing-notes-between-ranks). If all batches are equal, the check adds
[a finding](#module/findings-a-finding-has-a). The finding names [the
line](#module/the-line-of-the-program) of your program that called the model.

[`Watched`](#Watched) is the block in which these methods are called. It does not change
the script, and removes its hooks at the end:

| moment | source |
|---|---|
| a model is sharded, a unit acts | [observers](hook_context.py#module/observers-a-program-that-watches) |
| a forward pass of a sharded model begins | a hook of the model, which runs before the unit is gathered |
| a backward pass begins | a wrapper of `torch.autograd.backward`, which `loss.backward()` calls |
| an optimizer steps | PyTorch's hooks for all optimizers |

A check computes with tensors, too, for example the digest of a batch. These operations
do not belong to the script, so no mode that counts or records operations may see them.
Therefore the methods are called with all modes turned off.
"""

from __future__ import annotations

import json
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cache, wraps
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from shardbook.foundations.hook_context import in_backward, machinery_at_work, observers
from shardbook.foundations.torch_private import as_plain, default_store, no_modes
from shardbook.zero.access import steps_under_way
from shardbook.zero.flat import Flat, owner_of
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.unit import Unit

__all__ = [
    "WEIGHTS",
    "BetweenRanks",
    "Finding",
    "Findings",
    "Place",
    "Run",
    "Watch",
    "Watched",
    "called_by_user",
    "frames",
    "is_sliced",
    "is_users",
    "joined",
    "place",
    "trained",
]


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
            yield from scheduler_of(model).units

    def parameters(self) -> Iterator[tuple[str, nn.Parameter, Flat]]:
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
        """Compare what the ranks have handed in. Called on rank 0 only.

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
        """[An observer's](hook_context.py#module/observers-a-program-that-watches) method
        for the beginning of `shard` or of a unit's act.
        """
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


# ## Findings
#
# > A finding has a weight, a description, a line of the program, and an advice what to
# > write instead.
#
# A finding has one of three weights:
#
# | weight | meaning | example |
# |---|---|---|
# | error | the trained model is not the intended one | all ranks train on the same batches |
# | warning | the code is rarely correct | `p.numel()` of a slice |
# | note | a fact about this run that is good to know | two names for one parameter |
#
# Only errors make the command end with exit code 1.
#
# Most faults occur in every step and on every rank. So findings with equal weight, text
# and line count as one finding.


WEIGHTS = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    :param weight: one of `WEIGHTS`
    :param kind: one word for programs that read the page, such as `unused`
    :param what: the description
    :param todo: what to write instead
    :param where: the line of the program, or `None` if no single line is the cause
    """

    weight: str
    kind: str
    what: str
    todo: str
    where: Place | None = None

    @classmethod
    def read(cls, written: dict[str, Any]) -> Finding:
        """Read a finding that another rank has converted by [`write`](#Finding.write)."""
        place = written["where"]
        return cls(**{**written, "where": None if place is None else Place(**place)})

    def write(self) -> dict[str, Any]:
        """Convert the finding to plain data."""
        return asdict(self)


class Findings:
    """The findings of one rank, in the order in which they were made."""

    def __init__(self) -> None:
        # A dictionary is used as an ordered set.
        self.made: dict[Finding, None] = {}

    def add(
        self, weight: str, kind: str, what: str, todo: str, where: Place | None = None
    ) -> None:
        """Add a finding, unless it was added before.

        >>> found = Findings()
        >>> for _ in range(3):
        ...     found.add("error", "no-gradients", "nothing to step with", "call backward()")
        >>> len(found.made)
        1
        """
        self.made[Finding(weight, kind, what, todo, where)] = None

    def has(self, kind: str) -> bool:
        """Whether there is a finding of this kind already."""
        return any(finding.kind == kind for finding in self.made)


def joined(
    of_each_rank: Iterable[Iterable[Finding]],
) -> list[tuple[Finding, list[int]]]:
    """Join the findings of all ranks, errors first, each with the ranks that made it.

    Ranks have different slices, so one line may give a finding about another parameter
    on each rank. Then only the first rank's description is kept.
    """
    made: dict[Finding, list[int]] = {}
    nowhere = Place("", 0)
    for rank, findings in enumerate(of_each_rank):
        known = {(f.kind, f.where): f for f in reversed(made) if f.where is not None}
        for finding in findings:
            same = finding
            if finding not in made:
                same = known.get((finding.kind, finding.where or nowhere), finding)
            ranks = made.setdefault(same, [])
            if rank not in ranks:
                ranks.append(rank)
    # `sorted` is stable, so findings of one weight stay in their order.
    return sorted(made.items(), key=lambda item: WEIGHTS.index(item[0].weight))


# ## The line of the program
#
# > A finding names a line of your own program, and not a line of the libraries that it
# > calls.
#
# When a check makes a finding, the stack of calls is deep. The innermost frames belong to
# this library or to PyTorch, and the outermost frames to the command that runs the script.
# Between them are the frames of your program. The innermost of these is the line to
# name.
#
# ```
# train.py:31    loss.backward()          <- the line that is named
# torch/_tensor.py:…  backward
# torch/autograd/__init__.py:…  backward
# shardbook/zero/hooks.py:…  before_backward
# ```
#
# A file belongs to your program if it is not in Python's own folder, not in a folder of
# installed packages, and not in this library. So the modules in the script's folder
# belong to your program. If your model comes from an installed library, the finding names
# your line that calls the model.
#
# On a GPU, PyTorch runs a backward pass in a thread of its own. The stack of this thread
# does not contain your program. So for such a finding the line of the last
# [`backward`](watch_gradients.py) is named.


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        path = Path(self.file)
        short = (
            path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        )
        return f"{short}:{self.line}"


def place() -> Place | None:
    """The innermost line of the user's program, or `None` outside of it."""
    found = next((each for each in frames() if is_users(each.f_code.co_filename)), None)
    return None if found is None else Place(found.f_code.co_filename, found.f_lineno)


def called_by_user() -> Place | None:
    """The line of the user's program that directly made the watched call, or `None`.

    If a library made the call, such as PyTorch's `zero_grad`, the user did not write
    it, so there is no line.
    """
    for each in frames():
        file = each.f_code.co_filename
        if not file.startswith(_CHECKS):
            return Place(file, each.f_lineno) if is_users(file) else None
    return None


def frames() -> Iterator[FrameType]:
    """The frames of this thread, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


@cache
def is_users(file: str) -> bool:
    """Whether a file is part of the user's program.

    >>> is_users(sys.modules["torch"].__file__), is_users("<frozen runpy>")
    (False, False)
    >>> is_users("/home/someone/train.py")
    True
    """
    return not (file.startswith(_LIBRARIES) or file.startswith("<"))


def both_ways(path: str) -> set[str]:
    """The path of a folder as written, and with symbolic links resolved."""
    return {str(Path(path)) + "/", str(Path(path).resolve()) + "/"}


_CHECKS = str(Path(__file__).parent) + "/"
# The folders of PyTorch and of this library.
_OURS = tuple(
    folder
    for each in (Path(str(torch.__file__)).parent, Path(__file__).parents[1])
    for folder in both_ways(str(each))
)
# The folders of Python and of installed packages.
_LIBRARIES = (
    *_OURS,
    *(
        folder
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        for folder in both_ways(sysconfig.get_path(name))
    ),
)


# ## Comparing notes between ranks
#
# > Some faults show only when ranks compare what they have done, so they exchange notes
# > through the store.
#
# Suppose every rank trains on the same batch. No rank can detect this fault alone,
# because each sees a normal batch. So the ranks of a checked run compare notes. They do
# not use collectives for this, because the order of the collectives is itself checked.
# Instead each rank writes a short text into the *store*, the small table through which
# the ranks [found each other](agreement.py#module/rounds-through-the-store). Then it
# reads the texts of the others under the same key.
#
# A rank whose program took another branch may never write its note. The other ranks wait
# for it up to a limit. For a rank that has ended they do not wait at all.


class BetweenRanks:
    """Exchanges notes between the ranks of one checked run.

    The object is made after the script has joined its process group.
    """

    # `limit` is the time in seconds that a rank waits for the notes of others. `runs`
    # counts the checked runs of this process.
    limit = 10.0
    runs = 0

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        store: Any = default_store()
        # Each run has keys of its own.
        BetweenRanks.runs += 1
        self.store = PrefixStore(f"shardbook.check/{BetweenRanks.runs}", store)
        # The ranks that did not answer in time. Later notes of these ranks are read if
        # they exist already, without waiting.
        self.silent: set[int] = set()

    def compare(self, key: str, note: Any) -> list[Any]:
        """Write this rank's note, and read those of all ranks.

        :param key: a name that is used for this comparison only
        :param note: plain data
        :returns: the notes in rank order, `None` for a rank that wrote none in time
        """
        self.store.set(f"{key}/{self.rank}", json.dumps(note))
        end = time.monotonic() + self.limit
        return [
            note if rank == self.rank else self.wait_for(f"{key}/{rank}", rank, end)
            for rank in range(self.world_size)
        ]

    def wait_for(self, key: str, rank: int, end: float) -> Any:
        """Wait for the note of another rank; `None` if the note does not come.

        :param end: the time at which to stop waiting, by the monotonic clock
        """
        while not self.store.check([key]):
            over = self.store.check([f"{ENDED}/{rank}"]) and not self.store.check([key])
            if over or rank in self.silent or time.monotonic() >= end:
                self.silent.add(rank)
                return None
            # The store's own `wait` would print a warning for each timeout.
            time.sleep(0.005)
        return json.loads(self.store.get(key))

    def ended(self, note: Any) -> list[Any]:
        """Make the last comparison. After this call no rank waits for this rank.

        :returns: on rank 0 the notes of all ranks, on the others only this rank's note
        """
        if self.rank:
            # If rank 0 runs the store and has ended already, writing fails.
            with suppress(RuntimeError):
                self.store.set(f"{ENDED}/{self.rank}", json.dumps(note))
            return [note]
        self.silent.clear()
        return self.compare(ENDED, note)


# The key of the last notes.
ENDED = "ended"
