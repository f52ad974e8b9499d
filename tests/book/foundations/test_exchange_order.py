"""Ranks that leave the agreed order: the same sentence on every rank, before anything is mixed up."""

from __future__ import annotations

import doctest
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.distributed_c10d import _get_default_store

import ranks
from shardbook.foundations import agreement, watchdog
from shardbook.foundations import agreement as sentences
from shardbook.foundations.agreement import Disagreement
from shardbook.foundations.collectives import all_gather
from shardbook.foundations.exchange_order import Order
from tiers import rows

# A pass: its kind, and what is exchanged in it. "-A" is the reduction of unit A.
Pass = tuple[str, str]
STEP: list[Pass] = [("forward", "A B C"), ("backward", "C B -C A -B -A")]
UNITS = "ABCDEFGH"


class CountingStore:
    """A store that counts what is asked of it."""

    def __init__(self, store: Any) -> None:
        self.store, self.calls = store, 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        return getattr(self.store, name)


def play(order: Order, passes: Sequence[Pass], group: Any = None) -> list[str]:
    """Run through some passes with real exchanges, all of one size; return what was started."""
    size, started = dist.get_world_size(group), []
    for kind, exchanges in passes:
        order.begin(kind)
        for exchange in exchanges.split():
            action, unit = ("reduce" if exchange[0] == "-" else "gather"), exchange[-1]
            order.before(action, unit, f"{unit}.weight")
            started.append(exchange)
            value = float(UNITS.index(unit))
            full = torch.empty(size)
            pending = all_gather(full, torch.tensor([value]), group=group)
            order.watch(pending.works)
            assert full.eq(value).all(), f"{unit} is mixed with another unit: {full}"
        if kind == "backward":
            order.before("end", "", "")
    return started


class Unawaited(dist.Work):
    def wait(self, timeout: timedelta | None = None) -> bool:
        raise AssertionError


def refused(order: Order, passes: Sequence[Pass], group: Any = None) -> str:
    """What a rank says instead of finishing these passes, now and in the next step."""
    with pytest.raises(Disagreement) as caught:
        play(order, passes, group)
    with pytest.raises(Disagreement) as again:
        play(order, STEP, group)
    assert str(again.value) == str(caught.value)
    # Nor is an exchange awaited that is still under way.
    with pytest.raises(Disagreement) as at_once:
        order.watch([Unawaited()])
    assert str(at_once.value) == str(caught.value)
    return str(caught.value)


def counted(order: Order) -> CountingStore:
    assert order.rendezvous is not None
    order.rendezvous.store = CountingStore(order.rendezvous.store)
    return order.rendezvous.store


def calls_of_steps(steps: Sequence[Sequence[Pass]]) -> list[int]:
    """How often each step asks the store."""
    order, calls = Order(), []
    store = counted(order)
    for passes in steps:
        before = store.calls
        play(order, passes)
        calls.append(store.calls - before)
    return calls


def rounds_of_steps(steps: Sequence[Sequence[Pass]]) -> list[int]:
    """In how many rounds the ranks meet in each step."""
    order, rounds = Order(), []
    assert order.rendezvous is not None
    for passes in steps:
        before = order.rendezvous.rounds
        play(order, passes)
        rounds.append(order.rendezvous.rounds - before)
    return rounds


# --- One order on all ranks ------------------------------------------------------------------------------


def test_only_what_is_new_is_asked() -> None:
    """The second step follows a backward pass for the first time; from the third on nothing is new."""
    for first, second, *later in ranks.run(2, calls_of_steps, [STEP] * 5):
        assert first > 0
        assert 0 < second < first
        assert later == [0, 0, 0]


@pytest.mark.cases(now=4, ci=4)
@pytest.mark.parametrize(
    ("steps", "rounds"),
    [
        pytest.param([STEP] * 4, [10, 1, 0, 0], id="the same"),
        pytest.param(
            [STEP, STEP, *[[("forward", "B A C"), STEP[1]]] * 3],
            [10, 1, 2, 0, 0],
            id="another order from the third step on",
        ),
        pytest.param(
            [*[STEP] * 2, *[[("forward", "A C"), ("backward", "C -C A -A")], STEP, STEP] * 2],
            [10, 1, 6, 8, 0, 6, 8, 0],
            id="a layer that is left out now and then",
        ),
        pytest.param(
            [*[STEP] * 2, *[[("evaluation", "A B C")] * 3, STEP, STEP] * 3],
            [10, 1, 5, 2, 1, 1, 0, 1, 1, 0, 1],
            id="evaluation after every second step",
        ),
        pytest.param(
            [[*[("forward", "A B C"), ("no_sync backward", "C B A")] * 3, *STEP]] * 4,
            [18, 1, 0, 0],
            id="gradients accumulated over four batches",
        ),
        pytest.param([[("evaluation", "A B C")]] * 100, [3, *[1] * 64, *[0] * 35], id="no training"),
        pytest.param(
            [STEP, [("forward", ""), ("state_dict", ""), *STEP], STEP], [10, 1, 0], id="passes of no exchange"
        ),
    ],
)
def test_a_change_on_all_ranks_is_agreed_once(steps: Any, rounds: Any) -> None:
    assert ranks.run(2, rounds_of_steps, steps) == [rounds, rounds]


def two_orders() -> tuple[int, int]:
    """Two models with different units, whose steps alternate."""
    first, second = Order(), Order()
    for _ in range(3):
        play(first, STEP)
        play(second, [("forward", "D E F D"), ("backward", "F E -F D -E -D")])
    assert first.rendezvous is not None
    assert second.rendezvous is not None
    first.rendezvous.store.set("mine", "")
    assert not second.rendezvous.store.check(["mine"])
    return first.rendezvous.rounds, second.rendezvous.rounds


def test_orders_of_two_models_do_not_mix() -> None:
    assert ranks.run(3, two_orders) == [(11, 12)] * 3


def leftovers() -> int:
    """Nothing of a round stays in the store but of the last."""
    store = dist.HashStore()
    if dist.get_rank() == 0:
        return 0
    order = Order()
    assert order.rendezvous is not None
    order.rendezvous.store, order.rendezvous.ranks = store, (1,)
    for _ in range(5):
        for kind, exchanges in STEP:
            order.begin(kind)
            for exchange in exchanges.split():
                order.before("gather", exchange, exchange)
    return store.num_keys()


def test_the_store_does_not_grow() -> None:
    assert ranks.run(2, leftovers) == [0, 3]


def free() -> None:
    order = Order()
    assert order.rendezvous is None
    for kind, exchanges in STEP:
        order.begin(kind)
        for exchange in exchanges.split():
            order.before("gather", exchange, exchange)
            full = torch.empty(dist.get_world_size())
            order.watch(all_gather(full, torch.ones(1)).works)
        order.before("end", "", "")


@pytest.mark.parametrize("backend", ["gloo", "fake"])
def test_a_process_without_peers_asks_nobody(backend: str) -> None:
    ranks.run(1, free_under, backend)


def free_under(backend: str) -> None:
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.destroy_process_group()
        dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    free()


# --- One rank leaves the order ---------------------------------------------------------------------------

FORWARD, BACKWARD = STEP
DEVIATIONS: list[tuple[str, list[Pass], str, str]] = [
    (
        "skips a unit in the middle",
        [("forward", "A C"), BACKWARD],
        "gather C (parameter C.weight) as exchange 2 of its forward pass",
        "gather B (parameter B.weight) as exchange 2 of its forward pass",
    ),
    (
        "skips the first unit",
        [("forward", "B C"), BACKWARD],
        "gather B (parameter B.weight) as exchange 1 of its forward pass",
        "gather A (parameter A.weight) as exchange 1 of its forward pass",
    ),
    (
        "skips the last unit",
        [("forward", "A B"), BACKWARD],
        "gather C (parameter C.weight) as exchange 1 of its backward pass",
        "gather C (parameter C.weight) as exchange 3 of its forward pass",
    ),
    (
        "skips the last reduction",
        [FORWARD, ("backward", "C B -C A -B")],
        "end its backward pass after 5 exchanges",
        "reduce A (parameter A.weight) as exchange 6 of its backward pass",
    ),
    (
        "adds a unit",
        [("forward", "A B D C"), BACKWARD],
        "gather D (parameter D.weight) as exchange 3 of its forward pass",
        "gather C (parameter C.weight) as exchange 3 of its forward pass",
    ),
    (
        "adds a reduction at the end",
        [FORWARD, ("backward", "C B -C A -B -A -D"), FORWARD],
        "reduce D (parameter D.weight) as exchange 7 of its backward pass",
        "end its backward pass after 6 exchanges",
    ),
    (
        "swaps two units of equal size",
        [("forward", "A C B"), BACKWARD],
        "gather C (parameter C.weight) as exchange 2 of its forward pass",
        "gather B (parameter B.weight) as exchange 2 of its forward pass",
    ),
    (
        "evaluates while the others train",
        [("evaluation", "A B C"), *STEP],
        "gather A (parameter A.weight) as exchange 1 of its evaluation pass",
        "gather A (parameter A.weight) as exchange 1 of its forward pass",
    ),
    (
        "runs the forward pass again",
        [FORWARD, *STEP],
        "gather A (parameter A.weight) as exchange 1 of its forward pass",
        "gather C (parameter C.weight) as exchange 1 of its backward pass",
    ),
]


def one_leaves(culprit: int, steps_before: int, passes: list[Pass]) -> str:
    order = Order()
    for _ in range(steps_before):
        play(order, STEP)
    if dist.get_rank() == culprit:
        return refused(order, passes)
    # The others find out in this step or, where it was complete for them, in the next.
    return refused(order, [*STEP, *STEP])


@pytest.mark.cases(now=0, ci=7)
@pytest.mark.parametrize("steps_before", rows([0, 3], now=[3]), ids=["in the first step", "in a later step"])
@pytest.mark.parametrize(("what", "passes", "does", "should"), DEVIATIONS, ids=[d[0] for d in DEVIATIONS])
def test_every_rank_says_who_is_about_to_do_what(
    what: str, passes: list[Pass], does: str, should: str, steps_before: int
) -> None:
    """The ranks that kept to the order wait in an exchange of half an hour's limit, and learn of it all the
    same.
    """
    first, second = ranks.run(2, one_leaves, 1, steps_before, passes, timeout=30)
    assert first == second
    assert "rank 1, after" in first
    assert "rank 0" in first
    assert f"is about to {does}" in first
    assert should in first
    # Of two ranks that begin passes of other kinds, one may have run out of batches.
    begins = "exchange 1" in does and "exchange 1 " in should and does.split()[-2:] != should.split()[-2:]
    assert first.endswith(f"{sentences.RULE}; {sentences.UNEVEN}" if begins else sentences.RULE)


@pytest.mark.cases(now=2, ci=2)
@pytest.mark.parametrize("world_size", [3, 4])
@pytest.mark.parametrize("steps_before", [0, 3])
def test_with_more_ranks_too(world_size: int, steps_before: int) -> None:
    said = ranks.run(world_size, one_leaves, 2, steps_before, DEVIATIONS[0][1], timeout=30)
    assert len(set(said)) == 1
    assert "rank 2" in said[0]
    assert DEVIATIONS[0][2] in said[0]
    assert DEVIATIONS[0][3] in said[0]


def one_returns_to_what_was_given_up(culprit: int) -> str:
    order = Order()
    old: list[Pass] = [("forward", "A"), ("evaluation", "A"), ("backward", "-A")]
    new: list[Pass] = [("forward", "A B"), ("backward", "-A")]
    play(order, [*old, *new])
    return refused(order, old if dist.get_rank() == culprit else [*new, *new])


@pytest.mark.full
def test_an_order_that_was_given_up_is_not_known_any_more() -> None:
    """Both orders have been agreed once, and each rank finds its own."""
    first, second = ranks.run(2, one_returns_to_what_was_given_up, 1, timeout=30)
    assert first == second
    assert (
        "rank 1, after 7 exchanges, is about to gather A (parameter A.weight) as exchange 1 of its eval"
        in first
    )
    assert "rank 0 went on, as agreed before, to gather B" in first


def all_leave_differently() -> str:
    order = Order()
    for _ in range(2):
        play(order, STEP)
    return refused(order, [("forward", "A " + "CDE"[dist.get_rank()])])


def test_ranks_that_all_leave_differently() -> None:
    assert len(set(ranks.run(3, all_leave_differently, timeout=30))) == 1


def in_a_smaller_group() -> str:
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return ""
    order = Order(group)
    for _ in range(2):
        play(order, STEP, group)
    passes = STEP if dist.get_rank() == 1 else [("forward", "A C")]
    return refused(order, passes, group)


@pytest.mark.full
def test_a_smaller_group_names_the_ranks_of_the_whole_world() -> None:
    _, first, second = ranks.run(3, in_a_smaller_group, timeout=30)
    assert first == second
    assert first.startswith("rank 2, after 19 exchanges, is about to gather C")
    assert "but rank 1 went on, as agreed before, to gather B" in first


def under_a_tcp_store(culprit: int) -> str:
    rank, size = dist.get_rank(), dist.get_world_size()
    store: Any = dist.TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False) if rank == 0 else None
    port = [store.port if store else 0]
    dist.broadcast_object_list(port)
    store = store or dist.TCPStore("127.0.0.1", port[0], size, False)
    dist.barrier()
    dist.destroy_process_group()
    # As a program names it that also has a backend for its GPUs.
    dist.init_process_group("cpu:gloo", store=store, rank=rank, world_size=size)
    return one_leaves(culprit, 2, DEVIATIONS[0][1])


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("culprit", [0, 2])
def test_the_store_of_torchrun(culprit: int) -> None:
    said = ranks.run(3, under_a_tcp_store, culprit, timeout=30)
    assert len(set(said)) == 1
    assert f"rank {culprit}, after 19 exchanges, is about to gather C" in said[0]


# --- A rank does not come --------------------------------------------------------------------------------


# A rank that waits for nothing more, and still has its model: what ends it is not announced.
alive: list[Order] = []


def before_any_pass() -> None:
    """As `load_state_dict` gathers, or a program that clips first of all."""
    order = Order()
    order.before("gather", "first", "first")
    full = torch.empty(2)
    order.watch(all_gather(full, torch.ones(1)).works)
    assert order.index == 1


def test_what_is_exchanged_before_the_first_pass_has_its_place_in_the_order() -> None:
    ranks.run(2, before_any_pass)


def said_again() -> None:
    order = Order()
    order.check()
    with pytest.raises(Disagreement, match=r"^the ranks have drifted apart$"):
        order.refuse("the ranks have drifted apart")
    # A process alone has nobody to keep in step with.
    if dist.get_world_size() > 1:
        with pytest.raises(Disagreement, match=r"^the ranks have drifted apart$"):
            order.check()


@pytest.mark.parametrize("world_size", [1, 2])
def test_what_all_ranks_have_refused_is_refused_again(world_size: int) -> None:
    ranks.run(world_size, said_again)


def one_has_finished() -> str:
    order = Order()
    alive.append(order)
    play(order, STEP)
    if dist.get_rank() == 1:
        return ""
    assert order.rendezvous is not None
    order.rendezvous.limit = agreement.FAREWELL = timedelta(milliseconds=200)
    return refused(order, STEP)


@pytest.mark.full
def test_a_rank_that_nobody_joins_gives_up_in_time() -> None:
    said, _ = ranks.run(2, one_has_finished, timeout=30)
    assert said.startswith("rank 0, after 9 exchanges, is about to gather A (parameter A.weight)")
    assert "but rank 1 has not come to agree within 0:00:00.200000, the time limit of the process" in said


def one_departs() -> str:
    order = Order()
    alive.append(order)
    for _ in range(2):
        play(order, STEP)
    if dist.get_rank() == 1:
        dist.destroy_process_group()
        return ""
    return refused(order, STEP)


@pytest.mark.nightly
def test_an_exchange_that_fails_names_the_rank_that_is_absent_and_the_error() -> None:
    said, _ = ranks.run(2, one_departs, timeout=30)
    assert said.startswith(
        "rank 1 has not come to exchange 19, in which rank 0 waits to gather A (parameter A.weight) "
        "as exchange 1 of its forward pass, and the exchange has failed ("
    )
    assert "Connection closed by peer" in said or "Connection reset by peer" in said
    assert said.endswith(
        "if rank 1 has raised no error of its own, give every rank as many batches, or loop over "
        "shardbook.join(batches)"
    )


def one_is_late() -> str:
    group = dist.new_group(timeout=timedelta(seconds=2))
    order = Order(group)
    alive.append(order)
    for _ in range(2):
        play(order, STEP, group)
    if dist.get_rank() == 1:
        return ""
    with pytest.raises(Disagreement) as caught:
        play(order, STEP, group)
    return str(caught.value)


@pytest.mark.nightly
def test_the_time_limit_of_the_group_holds() -> None:
    said, _ = ranks.run(2, one_is_late, timeout=30)
    assert said.startswith("rank 1 has not come to exchange 19, in which rank 0 waits to gather A")
    assert "Timed out" in said or "Application timeout" in said


class Waiting(CountingStore):
    """Tells when a rank begins to wait for the others."""

    def __init__(self, store: Any, begun: threading.Semaphore) -> None:
        super().__init__(store)
        self.begun: threading.Semaphore | None = begun

    def check(self, keys: list[str]) -> bool:
        if self.begun is not None:
            self.begun.release()
            self.begun = None
        return bool(self.store.check(keys))


def many_meet(count: int, late: list[int], minutes: float) -> list[str]:
    """What ranks say that meet through one store. Some come only when the others have waited for a time."""
    store, begun, now = dist.HashStore(), threading.Semaphore(0), [0.0]
    said = ["did not end"] * count

    def rank_main(rank: int) -> None:
        one = agreement.Rendezvous(Waiting(store, begun), rank, count, timedelta(minutes=30))
        try:
            one.agree(0, sentences.Step("forward", 0, "gather", "A", "A.weight"), None)
            said[rank] = f"{one.rounds} round"
        except Disagreement as error:
            said[rank] = str(error)

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(count)]
    early = [thread for rank, thread in enumerate(threads) if rank not in late]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "clock", lambda: now[0])
        patch.setattr(agreement, "FAREWELL", timedelta(seconds=-1))
        for thread in early:
            thread.start()
        for _ in early:
            begun.acquire()
        now[0] = 60 * minutes
        if minutes > 30:
            for thread in early:
                thread.join()
        for rank in late:
            threads[rank].start()
        for thread in threads:
            thread.join()
    return said


@pytest.mark.parametrize("count", [32, 33, 64])
def test_a_rank_that_is_only_late_is_no_disagreement(count: int) -> None:
    assert many_meet(count, [count - 1], minutes=29) == ["1 round"] * count


def test_when_the_limit_is_over_all_ranks_name_those_that_have_not_come() -> None:
    (said,) = set(many_meet(64, [5, 63], minutes=31))
    assert "but rank 5, 63 has not come to agree within 0:30:00, the time limit of the process group" in said
    assert "pass a longer timeout to init_process_group" in said


def limits() -> list[float]:
    group = dist.new_group(timeout=timedelta(seconds=77))
    return [agreement.Rendezvous.of(one).limit.total_seconds() for one in (group, dist.group.WORLD, None)]


def test_the_limit_of_a_meeting_is_that_of_its_group() -> None:
    assert ranks.run(1, limits) == [[77, 1800, 1800]]


def queue_all(order: Order, passes: Sequence[Pass]) -> None:
    """Start the exchanges of some passes, and then find out what the monitor has found."""
    for kind, exchanges in passes:
        order.begin(kind)
        for exchange in exchanges.split():
            order.before("reduce" if exchange[0] == "-" else "gather", exchange[-1], exchange)
        if kind == "backward":
            order.before("end", "", "")
    order.monitor.join()
    order.check()


def without_waiting(culprit: int) -> tuple[str, list[str]]:
    """A backend whose ranks queue their exchanges and do not wait for them."""
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("shardbook").addHandler(handler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "get_backend_config", lambda group=None: "cpu:nccl")
        patch.setattr(Order, "glance", timedelta(milliseconds=20))
        order = Order()
    mine = [("forward", "A C")] if dist.get_rank() == culprit else STEP
    with pytest.raises(Disagreement) as caught:
        queue_all(order, [*STEP * 3, *mine])
    order.monitor.join()
    return str(caught.value), logged


def test_a_monitor_tells_the_ranks_whose_devices_wait() -> None:
    said = ranks.run(3, without_waiting, 1, timeout=60)
    (first,) = {sentence for sentence, _ in said}
    assert first.startswith("rank 1, after 28 exchanges, is about to gather C"), first
    assert "went on, as agreed before, to gather B" in first, first
    assert said[0][1] == said[2][1] == [first], said


def an_order_that_ends() -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "get_backend_config", lambda group=None: "cpu:nccl")
        order: Order | None = Order()
    assert order is not None
    thread = order.monitor
    alive = thread.is_alive()
    del order
    thread.join()
    return alive


def test_a_monitor_ends_with_its_order() -> None:
    assert ranks.run(2, an_order_that_ends) == [True, True]


class Interrupting(CountingStore):
    """A user who presses Ctrl-C while a rank waits for the others."""

    def check(self, keys: list[str]) -> bool:
        raise KeyboardInterrupt


def interrupted() -> str:
    order = Order()
    agreement.FAREWELL = timedelta(milliseconds=200)  # rank 0 has left and reads nothing
    assert order.rendezvous is not None
    if dist.get_rank() == 0:
        order.rendezvous.store = Interrupting(order.rendezvous.store)
        with pytest.raises(KeyboardInterrupt):
            play(order, STEP)
        dist.barrier()
    else:
        dist.barrier()
    return refused(order, STEP)


def test_an_interrupted_round_is_not_taken_for_an_agreement() -> None:
    first, second = ranks.run(2, interrupted, timeout=30)
    assert first == second
    assert "rank 0" in first
    assert "did not wait for the other ranks (KeyboardInterrupt)" in first


def slower_than_a_glance() -> int:
    """Rank 0 has its part of an exchange and goes on to a round while rank 1 still waits for rank 2."""
    order = Order()
    order.glance = timedelta(milliseconds=20)
    for _ in range(2):
        play(order, STEP)
    rank = dist.get_rank()
    group = dist.new_group([1, 2])
    store = _get_default_store()
    for exchange in "A", "B":
        if exchange == "A":
            order.begin("forward")
        order.before("gather", exchange, f"{exchange}.weight")
    # Only ranks 1 and 2 have this exchange, so rank 0 is done with it at once.
    if rank == 2:
        store.wait(["looked"])
    if rank > 0:
        tensor = torch.ones(1)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        if rank == 1:
            assert order.rendezvous is not None
            seen = Seen(order.rendezvous.store, store)
            order.rendezvous.store = seen
        order.watch([work])
        if rank == 1:
            order.rendezvous.store = seen.store
        assert tensor.item() == 2
    order.before("gather", "D", "D.weight")
    assert order.rendezvous is not None
    return order.rendezvous.rounds


class Seen(CountingStore):
    """Tells the default store once an open round has been seen."""

    def __init__(self, store: Any, news: Any) -> None:
        super().__init__(store)
        self.news = news

    def get(self, key: str) -> bytes:
        found = self.store.get(key)
        self.news.set("looked", "")
        return bytes(found)


def test_a_rank_that_is_ahead_is_not_accused() -> None:
    assert ranks.run(3, slower_than_a_glance, timeout=30) == [12, 12, 12]


def one_step_ahead() -> str:
    """A device queues exchanges and blocks nobody, so one rank can run a whole step ahead."""
    order = Order()
    for steps in [*[STEP] * 3, *([STEP] if dist.get_rank() == 1 else []), [("evaluation", "A")]]:
        for kind, exchanges in steps:
            order.begin(kind)
            try:
                for exchange in exchanges.split():
                    order.before("reduce" if exchange[0] == "-" else "gather", exchange[-1], exchange)
            except Disagreement as error:
                return str(error)
    return "agreed"


def test_the_same_evaluation_one_step_later_is_another() -> None:
    first, second = ranks.run(2, one_step_ahead, timeout=30)
    assert first == second
    assert "rank 0, after 27 exchanges, is about to gather A" in first
    assert "rank 1, after 36 exchanges, is about to gather A" in first


def after_a_verdict() -> None:
    from shardbook import shard
    from shardbook.foundations.collectives import ledger
    from shardbook.zero.scheduler import scheduler_of

    model = shard(torch.nn.Linear(4, 4))
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
    order = scheduler_of(model).order
    assert order.rendezvous is not None
    order.rendezvous.verdict = "the ranks are at odds"
    with ledger() as sent, pytest.raises(Disagreement, match="the ranks are at odds"):
        model(torch.ones(1, 4))
    assert not sent.calls


def test_after_a_verdict_no_exchange_is_started() -> None:
    ranks.run(2, after_a_verdict)


@pytest.mark.full
def test_a_verdict_is_read_also_by_a_rank_that_is_not_at_odds() -> None:
    """Two ranks fall out ahead of a third, whose exchange then fails because they are gone."""
    store, step = dist.HashStore(), sentences.Step("forward", 0, "gather", "A", "A.weight")
    second, third = (agreement.Rendezvous(store, rank, 2, timedelta(0)) for rank in (1, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "FAREWELL", timedelta(0))
        with pytest.raises(Disagreement) as first:
            second.agree(5, step, None)
        with pytest.raises(Disagreement) as also:
            third.look(5)
    assert str(also.value) == str(first.value)


# --- Any two programs ------------------------------------------------------------------------------------


class Wire:
    """Exchanges between threads: the k-th is complete when every rank has started its k-th."""

    def __init__(self, world_size: int) -> None:
        self.started: list[list[str]] = [[] for _ in range(world_size)]
        self.changed = threading.Condition()

    def start(self, rank: int, exchange: str) -> Pending:
        with self.changed:
            self.started[rank].append(exchange)
            self.changed.notify_all()
            return Pending(self, len(self.started[rank]))


class Pending:
    def __init__(self, wire: Wire, number: int) -> None:
        self.wire, self.number = wire, number

    def is_completed(self) -> bool:
        return all(len(started) >= self.number for started in self.wire.started)

    def wait(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        with self.wire.changed:
            if not self.wire.changed.wait_for(self.is_completed, timeout.total_seconds()):
                raise RuntimeError("time is over")


LAST: Pass = ("last", "Z")


def simulate(scripts: list[list[Pass]]) -> tuple[list[list[str]], list[str | None]]:
    """Run one script a rank, each in a thread; return what was started and what was raised."""
    wire, store = Wire(len(scripts)), dist.HashStore()
    said: list[str | None] = ["did not end"] * len(scripts)

    def rank_main(rank: int) -> None:
        order = Order()
        order.rendezvous = agreement.Rendezvous(store, rank, len(scripts), timedelta(seconds=60))
        order.blocks, order.glance = True, timedelta(milliseconds=1)
        try:
            for kind, exchanges in [*scripts[rank], LAST]:
                order.begin(kind)
                works = []
                for exchange in exchanges.split():
                    action = "reduce" if exchange[0] == "-" else "gather"
                    order.before(action, exchange[-1], exchange)
                    works.append(wire.start(rank, f"{kind}: {exchange}"))
                    # Two in flight, as with a prefetch.
                    order.watch(works[:-1])  # type: ignore[arg-type]
                    del works[:-1]
                order.watch(works)  # type: ignore[arg-type]
                if kind == "backward":
                    order.before("end", "", "")
            said[rank] = None
        except Disagreement as error:
            said[rank] = str(error)

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(len(scripts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wire.started, said


exchanges = st.lists(st.sampled_from(["A", "B", "-A", "-B"]), max_size=4).map(" ".join)
kinds = st.sampled_from(["forward", "evaluation", "no_sync backward", "backward"])
passes = st.tuples(kinds, exchanges)
scripts = st.lists(passes, min_size=1, max_size=4)


@st.composite
def programs(draw: st.DrawFn) -> list[list[Pass]]:
    """What ranks run: some steps, often all the same; then one rank may change something in one of them."""
    step = draw(scripts)
    steps = [draw(st.one_of(st.just(step), st.just(step), scripts)) for _ in range(draw(st.integers(1, 5)))]
    script = [one for step in steps for one in step]
    programs = [list(script) for _ in range(draw(st.integers(2, 3)))]
    where = draw(st.integers(0, len(script) - 1))
    other = draw(st.lists(passes, max_size=2))
    if draw(st.booleans()):
        programs[draw(st.integers(0, len(programs) - 1))][where : where + 1] = other
    return programs


def what_is_done(script: list[Pass]) -> list[Any]:
    """All that can be told apart from outside: the steps of passes in which something happens."""
    return [
        (kind, number, exchange)
        for kind, exchanges in script
        for number, exchange in enumerate([*exchanges.split(), *(["end"] if kind == "backward" else [])])
    ]


def any_programs() -> Counter[bool]:
    seen: Counter[bool] = Counter()

    # A rank does not read the settings that the tests share.
    @settings(
        max_examples=200,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def run(programs: list[list[Pass]]) -> None:
        started, said = simulate(programs)
        for met in zip(*started, strict=False):
            assert len(set(met)) == 1, f"mixed up: {met}"
        first = what_is_done(programs[0])
        agree = all(what_is_done(program) == first for program in programs)
        seen[agree] += 1
        assert len(set(said)) == 1
        assert (said[0] is None) == agree, said

    run()
    return seen


@pytest.mark.full
def test_any_programs_either_agree_or_stop_before_anything_is_mixed() -> None:
    [seen] = ranks.run(1, any_programs, timeout=200)
    assert min(seen[True], seen[False]) >= 40


def test_the_examples_in_the_text() -> None:
    results = doctest.testmod(sentences)
    assert results.attempted > 0
    assert results.failed == 0


def test_a_rank_that_waits_in_an_exchange_writes_that_it_has_come() -> None:
    """Another rank, whose exchange fails first, does not name it among the absent."""
    rendezvous = agreement.Rendezvous(dist.HashStore(), 0, 2, timedelta(seconds=1))
    order: Any = SimpleNamespace(issued=3)
    work: Any = SimpleNamespace(is_completed=lambda: False)
    assert not watchdog.has_come(rendezvous, 0, 3)
    assert not Order.has_failed(order, work, rendezvous)
    assert watchdog.has_come(rendezvous, 0, 3)
