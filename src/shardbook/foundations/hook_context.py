r"""# The context of a hook

> A hook runs in the middle of a program, and must find out what else is under way.

The hooks of this library do not call the program; the program calls the hooks. At that
moment it may be in a backward pass, inside another call of the same module, or in a
compiler's trace. The arguments of a hook contain none of this. The functions of this
chapter find it out.

A hook must also mark its own work. Take [a policy of a checkpoint](selective.py), which
counts the operations of a function in its first run, and finds each of them again in
the second run. If the function calls a sharded unit, the unit's gather makes copies
between the operations. The second run may find the unit unsharded already and make no
copies. From there on each count would belong to another operation. So hooks mark the
time in which they work, and a policy ignores the operations of that time.

Hooks also [change the tensors](#map_tensors) that go into a module or come out of it.

[The call stack](#module/nested-calls-of-a-module) shows which calls of a module are
under way. A program that watches a run sees each action of a unit through
[observers](#module/observers-a-program-that-watches), and a profiler sees it through
[labels](#module/labels-for-a-profiler). [The last
section](#module/rules-in-pytorchs-reentrant-checkpoint) concerns PyTorch's reentrant
checkpoint, whose second run would otherwise compute norms in 16 bits.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import UserDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from threading import RLock, get_ident
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.profiler import record_function
from torch.utils.checkpoint import CheckpointFunction

from shardbook.foundations.torch_private import (
    MODULE_CALL,
    as_plain,
    graph_task,
    profiler_runs,
    tree_flatten,
    tree_map_only,
    tree_unflatten,
)

__all__ = [
    "Nesting",
    "Observer",
    "calls_of",
    "calls_under_way",
    "carry_over",
    "frame_of",
    "in_backward",
    "is_freed",
    "label",
    "machinery",
    "machinery_at_work",
    "map_tensors",
    "modules_called",
    "not_compiled",
    "observed",
    "observers",
    "profiler_labels",
    "tensors_in",
]

# sidelit: hide
P = ParamSpec("P")
R = TypeVar("R")
# sidelit: show


def machinery(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function as the library's own work: its calls change nothing that is watched.

    >>> machinery_at_work(), machinery(machinery_at_work)()
    (False, True)
    """

    @wraps(function)
    def work(*args: P.args, **kwargs: P.kwargs) -> R:
        before, here.at_work = here.at_work, True
        try:
            return function(*args, **kwargs)
        finally:
            here.at_work = before

    return work


def machinery_at_work() -> bool:
    """Whether this thread runs a function marked by [`machinery`](#machinery)."""
    return here.at_work


class Here(threading.local):
    """The state of one thread.

    While one thread gathers, another may run a function that is watched.
    """

    at_work = False


here = Here()


def in_backward() -> bool:
    """Whether this thread is inside a backward pass."""
    return graph_task() != -1


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor among the arguments or results of a module, each of them once.

    The search enters containers of all kinds and the attributes of objects, but no
    modules. If the search [overlooks a tensor](demand.py), its unit is gathered later
    than possible.

    >>> class Output:
    ...     def __init__(self, tensor):
    ...         self.states, self.itself = [{"last": tensor}], self
    >>> tensors_in((Output(torch.ones(1)), None))
    [tensor([1.])]
    """
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    seen: set[int] = set()
    waiting = [value]
    # An argument may refer to a whole program, such as a data set.
    while waiting and len(seen) < MOST:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        kind = type(value)
        if isinstance(value, Tensor):
            found.append(value)
            continue
        values = value.values() if kind is dict else value
        if kind not in (dict, list, tuple):
            values = inside(value)
        waiting += [v for v in values if type(v) not in _PLAIN][::-1]
    return found


# sidelit: depth Containers of all kinds, objects without a dictionary, and whole programs.


def inside(value: Any) -> Iterable[Any]:
    """The elements of a container of any other kind, or the attributes of an object."""
    if isinstance(value, (nn.Module, type, ModuleType)):
        return ()
    found = [getattr(value, name, None) for name in slots_of(type(value))]  # type: ignore[arg-type]
    if isinstance(value, dict):
        found += value.values()
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        found += value
    return found + list(getattr(value, "__dict__", {}).values())


@cache
def slots_of(kind: type) -> tuple[str, ...]:
    """The attributes that the objects of a class hold outside a dictionary."""
    found: list[str] = []
    for one in kind.__mro__:
        slots = vars(one).get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return tuple(found)


MOST = 10_000


_PLAIN = {
    *(type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device),
    *(FunctionType, BuiltinFunctionType, type, ModuleType, torch.Size),
}

# sidelit: core


def map_tensors(
    change: Callable[[Tensor], Tensor], value: Any, *, opens: bool = False
) -> Any:
    """Change the tensors in lists, dictionaries, dataclasses and other containers.

    A container in which nothing changes remains the same object. A decoder writes into
    the cache that it gets as an argument, for example, and in a copy of the cache these
    values would be lost.

    >>> given = ([], [torch.ones(1)])
    >>> found = map_tensors(torch.neg, given)
    >>> found[1], found[0] is given[0]
    ([tensor([-1.])], True)

    :param opens: whether the attributes of the value itself are changed, too, if it is
        an object of any other class, as a model may return it. An object inside of
        another one stays, because it may be a cache.
    """
    # A compiler cannot compare the identity of two containers.
    if isinstance(value, Tensor) or torch.compiler.is_compiling():
        return tree_map_only(Tensor, change, value)
    # Only the outermost container is opened. The function below must not refer to it:
    # PyTorch holds that function in a reference cycle, which would keep the tensors
    # until the garbage collector runs.
    once = iter([False])
    children, structure = tree_flatten(value, is_leaf=lambda _: next(once, True))
    names = []
    if structure.is_leaf():
        names = attributes_of(value, opens)
        if not names:
            return value
        children = [getattr(value, name) for name in names]
    found = [map_tensors(change, child) for child in children]
    if all(new is old for new, old in zip(found, children, strict=True)):
        return value
    if not names:
        return tree_unflatten(found, structure)
    value = copy(value)
    for name, new in zip(names, found, strict=True):
        # A frozen dataclass can be changed in this way, too.
        object.__setattr__(value, name, new)
    return value


def attributes_of(value: Any, opens: bool) -> list[str]:
    """The attributes that hold the contents of an object; none if it stays as it is."""
    if isinstance(value, (nn.Module, type, ModuleType, FunctionType)):
        return []
    if isinstance(value, UserDict):
        return ["data"]
    if is_dataclass(value):
        return [f.name for f in fields(value) if hasattr(value, f.name)]
    if opens or isinstance(value, SimpleNamespace):
        return list(getattr(value, "__dict__", ()))
    return []


# sidelit: depth Programs that are compiled, and tensors whose memory was given back.


def not_compiled(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook marked as the library's work, which `torch.compile` does not compile.

    With `fullgraph=True`, which allows no uncompiled part, the compiler raises an error
    with the reason.
    """
    quiet: Callable[..., Any] = torch.compiler.disable(
        machinery(hook),
        reason="a sharded unit gathers its parameters here; compile its units by "
        "themselves, as in unit.compile()",
    )
    return quiet


def is_freed(tensor: Tensor) -> bool:
    """Whether a tensor's memory has been freed while the tensor still exists."""
    kind = type(tensor)
    if kind not in (Tensor, nn.Parameter) and not getattr(kind, "may_be_freed", False):
        return False
    with as_plain():
        return (
            tensor.layout is torch.strided
            and tensor.numel() > 0
            and tensor.untyped_storage().nbytes() == 0
        )


# sidelit: core


# ## Nested calls of a module
#
# > The call stack shows which calls of a module are under way, even after an interrupt.
#
# The outermost call of a module gathers its unit and frees it. A call inside that one, of
# a submodule or of the module itself, finds the unit unsharded and must not free it. So
# the hooks of a module must know whether another call is around the present one. Two
# hooks could count: the one before the call adds 1, and the one after it subtracts 1.
#
# The count alone is not enough. If a call raises an error, the hook after it still runs.
# But after an interrupt from the keyboard that hook does not run, and neither does it
# after [the early stop](segment.py#Enough) of a recomputation. From then on the
# count is 1 too high. The hooks take the next call for an inner one, gather nothing, and
# the module computes with freed memory.
#
# The stack of Python's calls is never wrong, because an interrupted call is no longer on
# it. But a walk along the stack takes some microseconds. So the hooks record each call,
# and they read the stack only if a call is recorded and they must know whether it has
# ended:
#
# | recorded | on the stack | conclusion |
# |---|---|---|
# | no call | not read | no call is under way |
# | one call | one call | the call is under way |
# | one call | no call | the call was interrupted, and is removed |
#
# In this example the first call is interrupted and the second is not:
#
# >>> block = nn.Identity()
# >>> calls = Nesting[str](block)
# >>> def before(module, inputs):
# ...     print(f"begins, interrupted: {calls.begin(inputs[0])}, depth: {len(calls)}")
# ...     if inputs[0] == "first":
# ...         raise KeyboardInterrupt
# >>> handles = block.register_forward_pre_hook(before), block.register_forward_hook(
# ...     lambda *_: print("ends:", calls.end()))
# >>> for name in ("first", "second"):
# ...     try:
# ...         _ = block(name)
# ...     except KeyboardInterrupt:
# ...         pass
# begins, interrupted: [], depth: 1
# begins, interrupted: ['first'], depth: 1
# ends: second
#
# Each thread has a stack of its own. A backward pass on a GPU runs its hooks in other
# threads than the one that called the model. So each record holds the thread in which its
# call began, and the hooks read that thread's stack.


# sidelit: hide
Note = TypeVar("Note")
# For each call, the thread in which it began, and the note about it.
Calls = list[tuple[int, Note]]
# sidelit: show


class Nesting(Generic[Note]):
    """The calls of some modules that have begun and not ended, the outermost first.

    The length is the number of recorded calls. It includes interrupted calls until
    [they are removed](#Nesting.forget_interrupted).

    :param modules: the modules whose calls count
    """

    def __init__(self, *modules: nn.Module) -> None:
        self.modules = modules
        self.calls: Calls[Note] = []

    def begin(self, note: Note) -> list[Note]:
        """Record a call that begins.

        A hook before the call does so, when the call is already on the stack.

        :returns: the notes about calls that were interrupted
        """
        interrupted = self.forget_interrupted(begun=1) if self.calls else []
        self.calls.append((get_ident(), note))
        return interrupted

    def end(self) -> Note | None:
        """Remove the innermost call, which has ended.

        :returns: its note; `None` if another hook has raised an error before the call
            was recorded
        """
        return self.calls.pop()[1] if self.calls else None

    def under_way(self, note: Note | None = None) -> bool:
        """Whether a call is under way, according to the stack. The records do not change.

        :param note: the note about the call in question; by default any call counts
        """
        if not self.calls:
            return False
        running, _ = self.by_the_stack()
        return bool(running) if note is None else any(one is note for _, one in running)

    def under_way_elsewhere(self) -> bool:
        """Whether a call is under way in another thread than this one."""
        running, _ = self.by_the_stack() if self.calls else ([], [])
        return any(thread != get_ident() for thread, _ in running)

    def forget_interrupted(self, begun: int = 0) -> list[Note]:
        """Remove the recorded calls that are no longer on the stack.

        :param begun: how many calls of this thread are on the stack and not recorded
            yet
        :returns: the notes about the removed calls
        """
        if not self.calls:
            return []
        self.calls, interrupted = self.by_the_stack(begun)
        return [note for _, note in interrupted]

    def by_the_stack(self, begun: int = 0) -> tuple[Calls[Note], Calls[Note]]:
        """The recorded calls that are on the stack, and those that are not."""
        most = len(self.calls) + begun
        left = {
            thread: calls_under_way(*self.modules, thread=thread, most=most)
            for thread, _ in self.calls
        }
        running: Calls[Note] = []
        interrupted: Calls[Note] = []
        here = get_ident()
        left[here] = left.get(here, 0) - begun
        for call in self.calls:
            # An interrupted call was inside all calls that are still on the stack.
            left[call[0]] -= 1
            (running if left[call[0]] >= 0 else interrupted).append(call)
        return running, interrupted

    def __len__(self) -> int:
        return len(self.calls)


def calls_under_way(
    *modules: nn.Module, thread: int | None = None, most: int | None = None
) -> int:
    """The number of calls of these modules on the stack.

    :param thread: the thread whose stack is read; by default the current one
    :param most: the number at which the count may stop
    """
    here = thread is None or thread == get_ident()
    frame, count = sys._getframe(1) if here else frame_of(thread), 0
    wanted = {*map(id, modules)}
    while frame is not None and count != most:
        if frame.f_code is MODULE_CALL:
            count += id(frame.f_locals["self"]) in wanted
        frame = frame.f_back
    return count


def modules_called(thread: int | None = None) -> Iterator[nn.Module]:
    """The modules whose calls are under way in a thread, the innermost first."""
    here = thread is None or thread == get_ident()
    frame = sys._getframe(1) if here else frame_of(thread)
    while frame is not None:
        if frame.f_code is MODULE_CALL:
            yield frame.f_locals["self"]
        frame = frame.f_back


def calls_of(code: CodeType, thread: int | None = None) -> Iterator[FrameType]:
    """The calls of one function that are under way in a thread, the innermost first."""
    frame = frame_of(thread)
    while frame is not None:
        if frame.f_code is code:
            yield frame
        frame = frame.f_back


def frame_of(thread: int | None = None) -> FrameType | None:
    """The innermost call of a thread, by default the caller's own.

    Python 3.11 holds a lock while it makes the objects of all threads' calls. A garbage
    collection at that moment may run a finalizer, and if the finalizer lets another
    thread run, [the process hangs](https://github.com/python/cpython/issues/106883). So
    no collection starts there.
    """
    if thread is None or thread == get_ident():
        return sys._getframe(1)
    with _COLLECTION:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread)
        finally:
            if collects:
                gc.enable()


# Reentrant, because a finalizer may itself ask for the calls of a thread.
_COLLECTION = RLock()


# ## Observers
#
# > A program that watches a run is called when a model is sharded and when a unit acts.
#
# `python -m shardbook.check` [watches a script](checked_run.py) for a few steps. It
# needs to know which models were sharded, and for which unit each byte is sent. The
# library calls it in two places: around [`shard`](model.py#shard), and in [the
# labels](hook_context.py#module/labels-for-a-profiler) that are around each action of a
# unit anyway.
#
# In a normal run the list of observers is empty. A call then checks whether the list is
# empty, and that is its whole cost.


class Observer(Protocol):
    """An object that is called when an action begins and when it ends.

    These calls nest as the actions do.
    """

    def begins(self, act: str, about: Any) -> None:
        """An action begins, such as `"gather"`.

        :param about: the name of the unit; for a function call, its arguments
        """

    def ends(self, act: str, about: Any) -> None:
        """The same action has ended.

        :param about: the name of the unit; for a function call, its result
        """


# The observers of this process.
observers: list[Observer] = []


def observed(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function report each of its calls to the observers.

    A call that raises an error has a beginning and no end.

    >>> class Prints:
    ...     def begins(self, act, about):
    ...         print(act, *about)
    ...     def ends(self, act, about):
    ...         print(act, "gives", about)
    >>> observers.append(Prints())
    >>> observed(abs)(-1)
    abs -1
    abs gives 1
    1
    >>> _ = observers.pop()
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not observers:
            return function(*args, **kwargs)
        act = function.__name__
        for observer in observers:
            observer.begins(act, (*args, *kwargs.items()))
        result = function(*args, **kwargs)
        for observer in observers:
            observer.ends(act, result)
        return result

    return call


# ## Labels for a profiler
#
# > A profiler's trace names what each unit does, in the words of this book.
#
# A profiler shows a training step as thousands of operations. To see whether a gather
# hides behind the computation, you must find the gather among them. So the library labels
# each action of a unit with the unit's name. In a trace of stage 3, a part of a backward
# pass reads like this:
#
# | label | action |
# |---|---|
# | `wait for blocks.2` | the computation [needs the unit](unit.py#Unit.wait), and waits for its gather |
# | `recompute blocks.2` | [a checkpoint](checkpointing.py) runs its function again |
# | `gather blocks.1` | the next unit is [gathered](unit.py#Unit.gather) early |
# | `free blocks.2` | the unit [frees its memory](unit.py#Unit.free) |
# | `wait for the mean of blocks.3` | the previous exchange [must end](unit.py#Unit.advance) |
# | `reduce blocks.2` | the exchange of the unit's gradients [begins](unit.py#Unit.reduce) |
#
# ```python
# with torch.profiler.profile() as profile:
#     train_one_step()
# profile.export_chrome_trace("step.json")
# ```
#
# All stages use the same labels, but [small units that exchange together](unit.py#Bundle)
# have one `reduce`. In stages 1 and 2 the second `gather` of a step sends nothing, and only
# in stage 3 does `free` free memory. A label covers time on the host. On a GPU the trace
# shows the work that was queued under a label beside it, on the stream on which this work
# runs.
#
# PyTorch's `record_function` costs several microseconds for each block even if no
# profiler runs, and each block is an operation that other programs may be watching. So a
# label first checks whether a profiler runs. `python -m benchmarks.guards` measures the
# cost of that check, with labels and without.


def label(
    action: str, name: str | Callable[[], str]
) -> AbstractContextManager[None, None]:
    """A block that a trace shows under a name.

    >>> from torch.profiler import profile
    >>> with profile() as trace:
    ...     with label("gather", "blocks.0"):
    ...         pass
    >>> [event.name for event in trace.events()]
    ['gather blocks.0']

    :param action: the action, such as `gather`
    :param name: the name of the unit, or a function that finds the name; it is called
        only while a profiler runs
    """
    if observers or (Labelled.on and profiler_runs()):
        return Labelled(action, name)
    return _UNSEEN


_UNSEEN: AbstractContextManager[None, None] = nullcontext()


class Labelled(AbstractContextManager[None, None]):
    """The block, while a profiler or an observer looks."""

    __slots__ = ("action", "name", "shown")

    # Whether this process shows labels.
    on = True

    def __init__(self, action: str, name: str | Callable[[], str]) -> None:
        self.action, self.name = action, name
        self.shown: record_function | None = None

    def __enter__(self) -> None:
        if Labelled.on and profiler_runs():
            name = self.name if isinstance(self.name, str) else self.name()
            self.shown = record_function(f"{self.action} {name}")
            self.shown.__enter__()
        for observer in observers:
            observer.begins(self.action, self.name)

    def __exit__(self, *error: object) -> None:
        for observer in observers:
            observer.ends(self.action, self.name)
        if self.shown is not None:
            self.shown.__exit__(*error)


# sidelit: depth Traces of PyTorch's own names alone.


def profiler_labels(on: bool) -> None:
    """Choose whether the traces of this process show labels, as they do at the start.

    :param on: `False` for a trace of PyTorch's own names alone
    :raises TypeError: if it is neither `True` nor `False`
    """
    if not isinstance(on, bool):
        raise TypeError(f"profiler_labels({on!r}) is no choice; pass True or False")
    Labelled.on = on


# sidelit: core


# ## Rules in PyTorch's reentrant checkpoint
#
# > When PyTorch's reentrant checkpoint runs a function again, norms compute in FP32 as in the first run.
#
# [The rules for norms and losses](policy.py#module/norms-and-losses) are in force while a sharded model's
# `forward` runs. A checkpoint runs a part of that `forward` again in the backward pass.
# If the part is a module, the module's hooks put the rules in force again. [This book's
# checkpoint](segment.py#module/restoring-autocast) carries the rules over for any function. PyTorch's
# checkpoint does not carry them over, so its second run computes in 16 bits. With
# `use_reentrant=False` it compares the two runs and raises an error. With
# `use_reentrant=True` it compares nothing, so the gradients would belong to another
# result.
#
# The reentrant checkpoint runs its function without gradients and keeps the function in
# `ctx.run_function` until the backward pass. A function that computes under a rule, and
# without gradients, can find `ctx` on the call stack. The kept function is then replaced
# by one that runs under the rules, too.


# sidelit: hide
Rules = Callable[[], AbstractContextManager[None]]
# sidelit: show


class UnderRules:
    """A function that runs under the rules that were in force when it first ran."""

    def __init__(self, function: Callable[..., Any], rules: Rules) -> None:
        self.function = function
        self.rules = rules

    def __call__(self, *args: Any) -> Any:
        with self.rules():
            return self.function(*args)


def carry_over(rules: Rules) -> None:
    """Make each of PyTorch's reentrant checkpoints around this call recompute under the
    rules.

    The walk along the call stack takes some microseconds. It is made only without
    gradients, since a reentrant checkpoint runs its function in that state.

    :param rules: gives a block in which the present rules are in force
    """
    for frame in calls_of(CHECKPOINTS_FORWARD):
        # `ctx` and `run_function` are PyTorch's names and may change.
        ctx = frame.f_locals["ctx"]
        if not isinstance(ctx.run_function, UnderRules):
            ctx.run_function = UnderRules(ctx.run_function, rules)


CHECKPOINTS_FORWARD = CheckpointFunction.forward.__code__
