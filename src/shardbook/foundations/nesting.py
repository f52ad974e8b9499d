r"""# Calls inside calls

> The stack of calls says which calls are under way, even where an interrupt has hidden the end of one.

The outermost call of a module gathers its unit and frees it. A call inside of that one,
of a part or of the module itself, finds the unit whole and leaves it so. So the hooks
of a module have to know whether another call is around this one. Two hooks could count:
the one before the call adds 1, and the one after it takes 1 away.

The count alone is not enough. An error runs the hook after the call all the same. An
interrupt from the keyboard does not, and neither does [the early
stop](recomputation.py#Enough) of a recomputation. From then on the count is 1 too high.
The next call is taken for one inside of another, gathers nothing, and computes with
memory that was given back.

The stack of Python's calls is never wrong, because an interrupted call is no longer on
it. But to walk along the stack takes some microseconds. So the hooks note each call,
and the stack is looked at only where a call is noted and it matters whether that call
has ended:

| noted | on the stack | |
|---|---|---|
| no call | not looked at | no call is under way |
| one call | one call | the call is under way |
| one call | no call | the call was interrupted, and is forgotten |

In an example the first call is interrupted and the second is not:

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
threads than the one that has called the model. So each note says which thread the call
began in, and that thread's stack is looked at.
"""

# sidelit: hide
from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from threading import get_ident
from types import CodeType, FrameType
from typing import Generic, TypeVar

from torch import nn

from shardbook.foundations.torch_private import MODULE_CALL

__all__ = ["Nesting", "calls_under_way", "frames_of", "modules_called"]

Note = TypeVar("Note")
# For each call the thread it began in, and what is noted of it.
Calls = list[tuple[int, Note]]
# sidelit: show


class Nesting(Generic[Note]):
    """The calls of some modules that have begun and not ended, the outermost first.

    Its length is the number of calls that are noted. Those that were interrupted count
    as well, until [they are forgotten](#Nesting.forget_interrupted).

    :param modules: a call of any of them counts
    """

    def __init__(self, *modules: nn.Module) -> None:
        self.modules = modules
        self.calls: Calls[Note] = []

    def begin(self, note: Note) -> list[Note]:
        """Note a call that begins. A hook before the call does so, so the call itself is
        on the stack already.

        :returns: what was noted of calls that were interrupted
        """
        interrupted = self.forget_interrupted(begun=1)
        self.calls.append((get_ident(), note))
        return interrupted

    def end(self) -> Note | None:
        """Forget the innermost call, which has ended.

        :returns: what was noted of it; `None` if another hook has raised before the call
            was noted
        """
        return self.calls.pop()[1] if self.calls else None

    def under_way(self, note: Note | None = None) -> bool:
        """Whether a call is under way, by the stack if one is noted. To ask forgets nothing.

        :param note: what was noted of the call in question; by default any call will do
        """
        running, _ = self.by_the_stack() if self.calls else ([], [])
        return bool(running) if note is None else any(one is note for _, one in running)

    def forget_interrupted(self, begun: int = 0) -> list[Note]:
        """Forget the calls that are no longer on the stack.

        :param begun: how many calls of this thread are on the stack and not noted yet
        :returns: what was noted of the forgotten calls
        """
        if not self.calls:
            return []
        self.calls, interrupted = self.by_the_stack(begun)
        return [note for _, note in interrupted]

    def by_the_stack(self, begun: int = 0) -> tuple[Calls[Note], Calls[Note]]:
        """The noted calls that are on the stack, and those that are not."""
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
            # An interrupted call was inside of all calls that are still on the stack.
            left[call[0]] -= 1
            (running if left[call[0]] >= 0 else interrupted).append(call)
        return running, interrupted

    def __len__(self) -> int:
        return len(self.calls)


def calls_under_way(
    *modules: nn.Module, thread: int | None = None, most: int | None = None
) -> int:
    """How many calls of these modules are on the stack.

    :param thread: whose stack; by default that of the thread that asks
    :param most: the number from which on more calls make no difference
    """
    called = modules_called(thread)
    under_way = (one for one in called if any(one is module for module in modules))
    return sum(1 for _ in islice(under_way, most))


def modules_called(thread: int | None = None) -> Iterator[nn.Module]:
    """The modules whose calls are under way in a thread, the innermost first."""
    return (frame.f_locals["self"] for frame in frames_of(MODULE_CALL, thread))


def frames_of(code: CodeType, thread: int | None = None) -> Iterator[FrameType]:
    """The calls of one function that are under way in a thread, the innermost first."""
    here = thread is None or thread == get_ident()
    frame = sys._getframe() if here else sys._current_frames().get(thread or 0)
    while frame is not None:
        if frame.f_code is code:
            yield frame
        frame = frame.f_back
