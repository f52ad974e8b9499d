"""Recomputations on several streams and in several threads: who waits for whom."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from types import TracebackType
from unittest.mock import patch

import torch
from torch import Tensor

from shardbook import checkpoint
from shardbook.check.race_recorder import Recorder, device
from shardbook.check.race_replay import COMPUTE, Trace, races
from shardbook.checkpointing import arguments
from shardbook.foundations import rng


def line_of(text: str) -> str:
    """Where a line of the chapter stands, as the checker names it."""
    lines = Path(inspect.getfile(arguments)).read_text("utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return f"arguments.py:{number}"


def two_branches() -> Trace:
    """Go backward through a checkpoint with a branch on a side stream, whose backward pass comes first."""
    with Recorder() as recorder:
        side = device.Stream("cpu")
        ones = [torch.ones(3), torch.ones(3)]
        given = [torch.ones(3, requires_grad=True) for _ in ones]
        # Of the two gradients none meets another, so autograd itself lets no stream wait.
        first, second = checkpoint(lambda x, z: (x.exp(), z.sin()), *given)
        # Autograd runs a node on the stream of its forward pass. On a CPU it has none, so the node of the
        # branch is told here.
        node = second.grad_fn
        assert node is not None

        def to_side(*_: object) -> None:
            recorder.current = side.number

        def to_main(*_: object) -> None:
            recorder.current = COMPUTE

        node.register_prehook(to_side)
        node.register_hook(to_main)

        recorder.wait(side.number, recorder.record(COMPUTE), lines=())
        torch.autograd.backward([first, second], ones)
        del first, second, node
        with device.stream(side):
            # Whoever takes memory of the side stream next.
            torch.empty(3).fill_(1.0)
    return recorder.trace


def test_a_tensor_is_waited_for_on_another_stream_than_the_recomputation_s() -> None:
    trace = two_branches()
    assert races(trace) == []
    found = races(trace, without=[line_of("done.wait(current)")])
    assert any("exp" in str(race) or "mul" in str(race) for race in found), found


def test_the_memory_of_a_tensor_is_not_given_away_while_another_stream_reads_it() -> None:
    with patch.object(arguments.Ready, "hand_over", waits_only):
        found = races(two_branches())
    assert any("fill_" in str(race) for race in found), found


def waits_only(ready: arguments.Ready, tensor: Tensor) -> Tensor:
    """What the chapter does, without telling the allocator."""
    for stream, done in ready.moments.values():
        current = device.current_stream("cpu")
        if current != stream:
            done.wait(current)
    return tensor


def test_on_a_cpu_nothing_is_recorded() -> None:
    ready = arguments.Ready([torch.ones(2), torch.ones(2, device="meta")])
    assert ready.moments == {}
    tensor = torch.ones(1)
    assert ready.hand_over(tensor) is tensor


class Watched:
    """A lock that says which threads have come to it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.came: dict[int, threading.Event] = {}

    def __enter__(self) -> None:
        self.came[threading.get_ident()].set()
        self.lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()


def test_two_threads_draw_their_own_numbers_again() -> None:
    lock, met = Watched(), threading.Semaphore(0)
    recomputing = False

    def function(x: Tensor) -> Tensor:
        first = torch.rand(4)
        if recomputing:
            # The other thread has come as far as the lock before this one draws again.
            for came in list(lock.came.values()):
                came.wait(60)
        return (x * first).sin() * torch.rand(4)

    ones = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
    torch.manual_seed(0)
    expected = [torch.autograd.grad(function(x).sum(), x)[0] for x in ones]
    torch.manual_seed(0)
    results = [checkpoint(function, x, early_stop=False) for x in ones]
    state = torch.get_rng_state()
    found: dict[int, Tensor] = {}

    def go(number: int) -> None:
        lock.came[threading.get_ident()] = threading.Event()
        met.release()
        started.wait(60)
        found[number] = torch.autograd.grad(results[number].sum(), ones[number])[0]

    started = threading.Event()
    with patch.object(rng, "LOCK", lock):
        threads = [threading.Thread(target=go, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for _ in threads:
            met.acquire()
        recomputing = True
        started.set()
        for thread in threads:
            thread.join()
    for number, gradient in enumerate(expected):
        assert torch.equal(found[number], gradient), number
    assert torch.equal(torch.get_rng_state(), state)
