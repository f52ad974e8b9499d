"""Calls that have begun and not ended: in each other, after errors and interrupts, and in several threads."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shardbook.foundations import hook_context
from shardbook.foundations.hook_context import Nesting, calls_under_way, modules_called


class Runs(nn.Module):
    """It runs whatever it is given."""

    def forward(self, act: Callable[[], Any]) -> Any:
        return act()


class Noted:
    """Modules whose calls are noted by a number, and what each call has found at its beginning."""

    def __init__(self, count: int = 1) -> None:
        self.modules = [Runs() for _ in range(count)]
        self.calls: Nesting[int] = Nesting(*self.modules)
        self.begun = 0
        self.found: list[tuple[int, list[int], int]] = []
        self.ended: list[int | None] = []
        for module in self.modules:
            module.register_forward_pre_hook(lambda *_: self.begin())
            module.register_forward_hook(lambda *_: self.end(), always_call=True)

    def begin(self) -> None:
        self.begun += 1
        number = self.begun
        interrupted = self.calls.begin(number)
        self.found.append((number, interrupted, len(self.calls)))

    def end(self) -> None:
        self.ended.append(self.calls.end())


def interrupt() -> None:
    raise KeyboardInterrupt


def fail() -> None:
    raise ArithmeticError


def walked(act: Callable[[], Any]) -> int:
    """How often the stack is looked at."""
    walks = []
    whole = hook_context.frame_of

    def counted(*args: Any) -> Any:
        walks.append(args)
        return whole(*args)

    hook_context.frame_of = counted
    try:
        act()
    finally:
        hook_context.frame_of = whole
    return len(walks)


def test_calls_one_after_the_other_never_look_at_the_stack() -> None:
    noted = Noted()
    assert walked(lambda: [noted.modules[0](list) for _ in range(3)]) == 0
    assert walked(noted.calls.under_way) == 0
    assert noted.found == [(1, [], 1), (2, [], 1), (3, [], 1)]
    assert noted.ended == [1, 2, 3]


def test_calls_in_each_other_end_from_the_innermost() -> None:
    noted = Noted(2)
    one, other = noted.modules
    inside: list[bool] = []

    def act() -> None:
        other(lambda: one(lambda: inside.append(noted.calls.under_way())))
        inside.append(noted.calls.under_way())

    one(act)
    assert noted.found == [(1, [], 1), (2, [], 2), (3, [], 3)]
    assert (noted.ended, inside) == ([3, 2, 1], [True, True])
    assert not noted.calls.under_way()


def test_an_error_ends_a_call_like_a_result() -> None:
    noted = Noted()
    with pytest.raises(ArithmeticError):
        noted.modules[0](fail)
    assert (len(noted.calls), noted.ended) == (0, [1])


@pytest.mark.parametrize("asked", [False, True])
def test_an_interrupted_call_is_forgotten_by_the_next_one_or_on_request(asked: bool) -> None:
    noted = Noted()
    with pytest.raises(KeyboardInterrupt):
        noted.modules[0](interrupt)
    assert (len(noted.calls), noted.ended) == (1, [])
    if asked:
        assert noted.calls.forget_interrupted() == [1]
        assert len(noted.calls) == 0
    noted.modules[0](list)
    assert noted.found[-1] == (2, [] if asked else [1], 1)
    assert len(noted.calls) == 0


def test_several_interrupted_calls_are_forgotten_at_once() -> None:
    noted = Noted(2)
    one, other = noted.modules
    with pytest.raises(KeyboardInterrupt):
        one(lambda: other(lambda: one(interrupt)))
    other(list)
    assert noted.found[-1] == (4, [1, 2, 3], 1)


def test_the_call_around_an_interrupted_one_goes_on() -> None:
    """It catches the interrupt, as the early stop of a recomputation is caught."""
    noted = Noted(2)
    one, other = noted.modules
    under_way: list[tuple[bool, int]] = []

    def act() -> None:
        with suppress(KeyboardInterrupt):
            other(lambda: one(interrupt))
        under_way.append((noted.calls.under_way(), noted.calls.forget_interrupted()))
        with suppress(KeyboardInterrupt):
            other(interrupt)
        one(list)

    one(act)
    assert under_way == [(True, [2, 3])]
    assert noted.found[-1] == (5, [4], 2)
    assert (noted.ended, len(noted.calls)) == ([5, 1], 0)


def test_what_was_interrupted_is_given_back_once() -> None:
    noted = Noted()
    with pytest.raises(KeyboardInterrupt):
        noted.modules[0](interrupt)
    assert noted.calls.forget_interrupted() == [1]
    assert noted.calls.forget_interrupted() == []


def test_to_ask_forgets_nothing() -> None:
    """The next call still has to clear away what the interrupted one has left."""
    noted = Noted()
    with pytest.raises(KeyboardInterrupt):
        noted.modules[0](interrupt)
    assert not noted.calls.under_way()
    assert not noted.calls.under_way(1)
    noted.modules[0](list)
    assert noted.found[-1] == (2, [1], 1)


def test_one_call_of_several_is_asked_for() -> None:
    noted = Noted(2)
    one, other = noted.modules
    found: list[bool] = []

    def act() -> None:
        with suppress(KeyboardInterrupt):
            other(interrupt)
        found.extend(noted.calls.under_way(number) for number in (1, 2, 3))

    one(act)
    assert found == [True, False, False]


def test_the_end_of_a_call_that_was_never_noted_is_no_error() -> None:
    noted = Noted()
    noted.modules[0].register_forward_pre_hook(lambda *_: fail(), prepend=True)
    with pytest.raises(ArithmeticError):
        noted.modules[0](list)
    assert noted.ended == [None]


class Equal(Runs):
    """It equals every other module, as one whose class compares its attributes."""

    __hash__ = nn.Module.__hash__

    def __eq__(self, other: object) -> bool:
        return True


def test_modules_are_told_apart_by_identity() -> None:
    outer, other = Equal(), Equal()
    assert outer(lambda: (calls_under_way(other), calls_under_way(outer))) == (0, 1)


def test_calls_of_other_modules_do_not_count() -> None:
    noted, others = Noted(), Noted()
    found: list[Any] = []

    def act() -> None:
        found.append((noted.calls.under_way(), others.calls.under_way()))
        found.append((calls_under_way(*noted.modules), calls_under_way(*others.modules)))
        found.append([*modules_called()] == noted.modules)

    noted.modules[0](act)
    assert found == [(True, False), (1, 0), True]


def in_turns(first: Noted, second: Noted, last: Callable[[], Any]) -> list[Any]:
    """One thread is in a call when another one begins and ends its own, and then interrupts a third."""
    inside, done = threading.Event(), threading.Event()
    found: list[Any] = []

    def wait_in_a_call() -> None:
        inside.set()
        assert done.wait(60)

    thread = threading.Thread(target=first.modules[0], args=(wait_in_a_call,))
    thread.start()
    assert inside.wait(60)
    try:
        second.modules[0](list)
        with suppress(KeyboardInterrupt):
            second.modules[0](interrupt)
        found.append((first.calls.under_way(), second.calls.under_way()))
        last()
    finally:
        done.set()
        thread.join()
    found.append((first.calls.under_way(), second.calls.under_way()))
    return found


def test_two_threads_call_two_models() -> None:
    first, second = Noted(), Noted()
    assert in_turns(first, second, list) == [(True, False), (False, False)]
    assert (first.found, first.ended) == ([(1, [], 1)], [1])
    assert (second.found, second.ended) == ([(1, [], 1), (2, [], 1)], [1])


def test_a_call_is_looked_for_in_the_thread_that_it_began_in() -> None:
    """As by the end of a backward pass, which on a GPU runs in a thread of autograd's."""
    first = Noted()
    found: list[bool] = []

    def ask() -> None:
        thread = threading.Thread(target=lambda: found.append(first.calls.under_way()))
        thread.start()
        thread.join()

    first.modules[0](ask)
    ask()
    assert found == [True, False]


def test_a_call_that_was_interrupted_in_a_thread_that_is_gone() -> None:
    noted = Noted()

    def act() -> None:
        with suppress(KeyboardInterrupt):
            noted.modules[0](interrupt)

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    assert len(noted.calls) == 1
    noted.modules[0](list)
    assert noted.found[-1] == (2, [1], 1)


@pytest.mark.parametrize("kind", ["compiled unit", "compiled model"])
def test_calls_of_compiled_modules_are_on_the_stack(kind: str) -> None:
    depths: list[int] = []

    class Inner(nn.Linear):
        pass

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner(2, 2)

        def forward(self, x: Tensor) -> Any:
            return self.inner(x) + 1

    outer = Outer()
    calls: Nesting[None] = Nesting(outer, outer.inner)

    @torch.compiler.disable
    def begin(*_: Any) -> None:
        assert calls.begin(None) == []
        depths.append(len(calls))

    @torch.compiler.disable
    def end(*_: Any) -> None:
        calls.end()

    for module in (outer, outer.inner):
        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end)
    called = outer
    if kind == "compiled unit":
        outer.inner.compile(backend="eager")
    else:
        called = torch.compile(outer, backend="eager")
    with torch.no_grad():
        for _ in range(2):
            called(torch.ones(1, 2))
    assert depths == [1, 2, 1, 2]


def test_it_keeps_no_frame() -> None:
    """A frame would keep its variables, and with them the activations of an interrupted call."""
    noted = Noted()

    class Activations:
        pass

    def act() -> None:
        activations = Activations()
        seen.append(weakref.ref(activations))
        noted.calls.under_way()
        raise KeyboardInterrupt

    seen: list[weakref.ref[Activations]] = []
    with suppress(KeyboardInterrupt):
        noted.modules[0](act)
    gc.collect()
    assert seen[0]() is None
    assert sys.exc_info() == (None, None, None)


WITH_COLLECTIONS = """
import gc, threading
from shardbook.foundations.hook_context import frame_of

def finalizer(phase, info):
    # As a finalizer that waits for a thread: the collector lets another thread run.
    other = threading.Thread(target=lambda: None)
    other.start()
    other.join()

over = threading.Event()
watched = threading.Thread(target=over.wait)
watched.start()
threshold = gc.get_threshold()
for off in (False, True):
    (gc.disable if off else gc.enable)()
    gc.callbacks.append(finalizer)
    gc.set_threshold(1)
    frame = frame_of(watched.ident)
    gc.callbacks.clear()
    gc.set_threshold(*threshold)
    assert frame.f_code.co_name == "wait", frame
    assert gc.isenabled() is not off
over.set()
"""


@pytest.mark.nightly
def test_no_garbage_is_collected_while_the_interpreter_holds_its_lock() -> None:
    command = [sys.executable, "-c", WITH_COLLECTIONS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
