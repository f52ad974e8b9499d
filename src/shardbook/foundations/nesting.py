r"""# Nested calls of a module

> The call stack shows which calls of a module are under way, even after an interrupt.

The outermost call of a module gathers its unit and frees it. A call inside that one, of
a submodule or of the module itself, finds the unit unsharded and must not free it. So
the hooks of a module must know whether another call is around the present one. Two
hooks could count: the one before the call adds 1, and the one after it subtracts 1.

The count alone is not enough. If a call raises an error, the hook after it still runs.
But after an interrupt from the keyboard that hook does not run, and neither does it
after [the early stop](recomputation.py#Enough) of a recomputation. From then on the
count is 1 too high. The hooks take the next call for an inner one, gather nothing, and
the module computes with freed memory.

The stack of Python's calls is never wrong, because an interrupted call is no longer on
it. But a walk along the stack takes some microseconds. So the hooks record each call,
and they read the stack only if a call is recorded and they must know whether it has
ended:

| recorded | on the stack | conclusion |
|---|---|---|
| no call | not read | no call is under way |
| one call | one call | the call is under way |
| one call | no call | the call was interrupted, and is removed |

In this example the first call is interrupted and the second is not:

>>> block = nn.Identity()
>>> calls = Nesting[str](block)
>>> def before(module, inputs):
...     print(f"begins, interrupted: {calls.begin(inputs[0])}, depth: {len(calls)}")
...     if inputs[0] == "first":
...         raise KeyboardInterrupt
>>> handles = block.register_forward_pre_hook(before), block.register_forward_hook(
...     lambda *_: print("ends:", calls.end()))
>>> for name in ("first", "second"):
...     try:
...         _ = block(name)
...     except KeyboardInterrupt:
...         pass
begins, interrupted: [], depth: 1
begins, interrupted: ['first'], depth: 1
ends: second

Each thread has a stack of its own. A backward pass on a GPU runs its hooks in other
threads than the one that called the model. So each record holds the thread in which its
call began, and the hooks read that thread's stack.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from itertools import islice
from threading import RLock, get_ident
from types import CodeType, FrameType
from typing import Generic, TypeVar

from torch import nn

from shardbook.foundations.torch_private import MODULE_CALL

__all__ = ["Nesting", "calls_under_way", "frame_of", "frames_of", "modules_called"]

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
        interrupted = self.forget_interrupted(begun=1)
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
        running, _ = self.by_the_stack() if self.calls else ([], [])
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
    called = modules_called(thread)
    under_way = (one for one in called if any(one is module for module in modules))
    return sum(1 for _ in islice(under_way, most))


def modules_called(thread: int | None = None) -> Iterator[nn.Module]:
    """The modules whose calls are under way in a thread, the innermost first."""
    return (frame.f_locals["self"] for frame in frames_of(MODULE_CALL, thread))


def frames_of(code: CodeType, thread: int | None = None) -> Iterator[FrameType]:
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
