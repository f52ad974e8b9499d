"""Ranks that wait say for whom, and a rank that they wait for says where it is; nobody else says anything."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import signal
import threading
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _get_default_store

import ranks
import shardbook
from book.toys import batch, chain, error
from shardbook import Disagreement, shard, standstill_after
from shardbook.foundations import agreement, watchdog
from shardbook.foundations.agreement import Rendezvous, Step, machine
from shardbook.foundations.exchange_order import Order
from shardbook.foundations.watchdog import Progress, Standstill, after, in_library, line_of, stack_of
from shardbook.zero.scheduler import scheduler_of

HERE = Path(__file__).name
# What the log of a rank says that hangs in `next_batch`.
HELD_UP = rf"waits? for it; rank \d is at \S+{HERE}:\d+ in next_batch"


class Log(logging.Handler):
    """What this rank writes into its log, and a note in the store once it has written what is looked for.

    The note goes over a connection of its own: the rank itself may wait for a key at this moment.
    """

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self.pattern, self.said = re.compile(pattern, re.DOTALL), list[str]()
        self.found, self.on = threading.Event(), threading.Event()
        self.store = _get_default_store().clone()
        logging.getLogger("shardbook").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        self.said.append(said)
        if self.pattern.search(said):
            self.store.set(f"said/{dist.get_rank()}", "")
            self.found.set()
        if " goes on after " in said:
            self.on.set()

    def first(self) -> str:
        return next(said for said in self.said if self.pattern.search(said))


def next_batch(who: list[int]) -> None:
    """A data loader that hangs until these ranks have written what is looked for."""
    _get_default_store().wait([f"said/{rank}" for rank in who])


# --- Ranks that hang ---------------------------------------------------------------------------------------


def hangs(steps: int) -> tuple[str, list[str]]:
    """Rank 1 hangs before a step, until the log of each rank has said so."""
    standstill_after(0.2)
    rank = dist.get_rank()
    log = Log([rf"for rank 1 to .*{HERE}:\d+ in next_batch", HELD_UP][rank])
    model = shard(chain())
    for step in range(steps + 1):
        if step == steps and rank == 1:
            next_batch([0, 1])
        error(model, batch(rank, step)).backward()
    log.on.wait()
    return log.first(), log.said


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("steps", [0, 2])
def test_a_rank_that_hangs_in_its_data_loader_is_named_and_names_the_line(steps: int) -> None:
    """In the first step rank 0 waits in a round through the store, in the third in an exchange."""
    (waits, first), (hung, second) = ranks.run(2, hangs, steps, timeout=60)
    inside, ahead = ("exchange_order", 1) if steps else ("agreement", 0)
    head = re.match(
        r"rank 0 has waited for \d+ s, after (\d+) exchanges, for rank 1 to gather 0 \(param", waits
    )
    assert head, waits
    count = int(head[1]) - ahead
    assert bool(count) is bool(steps)
    assert f" in error (inside of {inside}.py:" in waits, waits
    text = Path(__file__).read_text().splitlines()
    line = next(n for n, code in enumerate(text, 1) if "_get_default_store().wait([f" in code)
    place = rf"at /\S+/{HERE}:{line} in next_batch"
    assert re.search(rf"; rank 1 has started {count} exchanges.*, and is {place}", waits), waits
    assert re.match(
        rf"rank 1 has started nothing for \d+ s, after {count} exchanges, and rank 0 waits for it; rank 1 is "
        rf"{place}; rank 0 has started {count + ahead} exchanges",
        hung,
    ), hung
    # The stack of the rank that hangs is printed whole.
    assert f'{HERE}", line {line}, in next_batch\n' in hung
    assert "next_batch([0, 1])" in hung
    assert any(one.startswith("rank 0 goes on after ") for one in first)
    assert any(one.startswith("rank 1 goes on after ") for one in second)


def two_groups() -> str:
    """Rank 2 waits for rank 1, which waits for rank 0, which hangs. Each pair shares a model."""
    standstill_after(0.2)
    rank = dist.get_rank()
    # Rank 2 may wait before rank 1 has come so far, and says it again and again.
    stuck = r"; rank 1 has started 0 exchanges, and (?:waits|is) at \S+ in error"
    log = Log([HELD_UP, r"for rank 0 to .*next_batch", stuck][rank])
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    first = shard(chain(), mesh=pairs[0]) if rank < 2 else None
    second = shard(chain(), mesh=pairs[1]) if rank > 0 else None
    if rank == 0:
        next_batch([0, 1, 2])
    for model in (first, second):
        if model is not None:
            error(model, batch(rank, 0)).backward()
    return log.first()


def test_in_two_groups_each_rank_names_the_one_it_waits_for() -> None:
    hung, between, last = ranks.run(3, two_groups, timeout=60)
    assert "and rank 1 waits for it" in hung
    assert "rank 2" not in hung
    assert between.startswith("rank 1 has waited for ")
    assert "rank 2" not in between
    assert last.startswith("rank 2 has waited for ")


def on_a_mesh() -> str:
    standstill_after(0.3)
    rank = dist.get_rank()
    average = r"to average the copies of .*in on_a_mesh"
    names = [
        rf"for rank 2 {average}",
        rf"for rank 3 {average}",
        r"for rank 3 to gather .*next_batch",
        HELD_UP,
    ]
    log = Log(names[rank])
    model = shard(chain(), mesh=init_device_mesh("cpu", (2, 2)))
    for step in range(3):
        if step == 2 and rank == 3:
            next_batch([0, 1, 2, 3])
        error(model, batch(rank, step)).backward()
    return log.first()


@pytest.mark.full
def test_on_a_mesh_each_rank_names_the_one_of_its_row_or_column() -> None:
    """The ranks of the first row finish their part, and wait for those of the second in the columns."""
    said = ranks.run(4, on_a_mesh, timeout=60)
    assert [one.split(", after")[0][:22] for one in said[:3]] == [
        f"rank {rank} has waited for " for rank in range(3)
    ]
    assert said[3].startswith("rank 3 has started nothing for ")


def where_the_device_waits() -> str:
    """Exchanges are queued, and nobody waits for them."""
    rank = dist.get_rank()
    standstill_after(0.2)
    log = Log([r"for rank 1 to gather C .*in next_batch", HELD_UP][rank])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "get_backend_config", lambda group=None: "cpu:nccl")
        order = Order()
    for _ in range(2):
        order.begin("evaluation")
        for unit in "ABC":
            order.before("gather", unit, f"{unit}.weight")
    order.begin("evaluation")
    for unit in "AB" if rank == 1 else "ABC":
        order.before("gather", unit, f"{unit}.weight")
    next_batch([0, 1])
    return log.first()


def test_ranks_whose_devices_wait_are_named_too() -> None:
    waits, hung = ranks.run(2, where_the_device_waits, timeout=60)
    assert re.match(
        r"rank 0 has waited for \d+ s, after 9 exchanges, for rank 1 to gather C \(param", waits
    ), waits
    assert "rank 1 has started 8 exchanges, the last one" in waits
    assert hung.startswith("rank 1 has started nothing for ")


def too_late() -> str:
    """Rank 1 comes only when the exchange of rank 0 has failed."""
    # PyTorch warns that the hooks after a forward pass that raised have raised the same.
    warnings.simplefilter("ignore")
    standstill_after(0.1)
    log = Log("for rank 1 to .*in too_late")
    rank, group = dist.get_rank(), dist.new_group(timeout=timedelta(seconds=3))
    model = shard(chain(), mesh=group)
    for step in range(2):
        error(model, batch(rank, step)).backward()
    if rank == 1:
        _get_default_store().wait(["raised"])
        return ""
    with pytest.raises(Disagreement) as caught:
        error(model, batch(rank, 2))
    log.store.set("raised", "")
    return str(caught.value)


@pytest.mark.nightly
def test_the_error_at_the_end_says_it_again() -> None:
    said, _ = ranks.run(2, too_late, timeout=60)
    assert re.match(r"rank 1 has not come to exchange \d+, in which rank 0 waits to gather 0 ", said), said
    assert re.search(
        r"join\(batches\); rank 0 has waited for \d+ s, after \d+ exchanges, for rank 1", said
    ), said
    assert re.search(rf"; rank 1 has started \d+ exchanges, .* at /\S+/{HERE}:\d+ in too_late", said), said


# --- Ranks that die ----------------------------------------------------------------------------------------


def one_is_killed(steps: int) -> None:
    """Nobody waits for a dead rank to read what has become of it."""
    agreement.FAREWELL = watchdog.FAREWELL = timedelta(hours=1)
    rank = dist.get_rank()
    model = shard(chain())
    for step in range(steps):
        error(model, batch(rank, step)).backward()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error(model, batch(rank, steps)).backward()


@pytest.mark.full
def test_a_rank_that_dies_before_a_round_holds_nobody_up() -> None:
    with pytest.raises(ranks.RanksFailed) as caught:
        ranks.run(3, one_is_killed, 0, timeout=60)
    said = str(caught.value)
    assert "HANGS" not in said
    assert said.count("Disagreement: rank 0, after 0 exchanges, is about to gather the root (parameter ") in (
        0,
        2,
    )
    assert said.count("but rank 1 has died; see its own output") == 2


def test_a_rank_that_dies_in_an_exchange_is_named_with_the_unit() -> None:
    with pytest.raises(ranks.RanksFailed) as caught:
        ranks.run(3, one_is_killed, 2, timeout=60)
    said = str(caught.value)
    assert "HANGS" not in said
    assert re.search(
        r"rank 1 has died, and exchange \d+, in which rank \d waits to gather 0 \(parameter 0.wei", said
    )


def the_store_ends() -> None:
    rank = dist.get_rank()
    store: Any = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False) if rank == 1 else None
    port = [store.port if store else 0]
    dist.broadcast_object_list(port, src=1)
    store = store or dist.TCPStore("127.0.0.1", port[0], 2, False)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    one_is_killed(0)


def test_a_rank_that_dies_with_the_store_is_no_riddle() -> None:
    with pytest.raises(ranks.RanksFailed) as caught:
        ranks.run(2, the_store_ends, timeout=60)
    said = str(caught.value)
    assert "Disagreement: rank 0, after 0 exchanges, is about to gather 0 (parameter 0.weight) as ex" in said
    assert "but the store through which the ranks agree cannot be reached (" in said


# --- Threads -----------------------------------------------------------------------------------------------


def threads_end() -> list[bool]:
    standstill_after(0.1)
    model = shard(chain())
    thread = scheduler_of(model).order.monitor
    alive = [thread.is_alive()]
    del model
    gc.collect()
    thread.join()
    order = Order()
    alive.append(order.monitor.is_alive())
    dist.barrier()
    dist.destroy_process_group()
    order.monitor.join()
    return alive


def test_a_thread_ends_with_its_model_and_with_the_process_group() -> None:
    assert ranks.run(2, threads_end, timeout=60) == [[True, True]] * 2


def without_reports() -> Any:
    standstill_after(None)
    return Order().monitor


def test_reports_can_be_turned_off() -> None:
    assert ranks.run(2, without_reports) == [None, None]


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"is no time to wait; pass a number of seconds above 0, or None"):
        standstill_after(seconds)


def test_the_time_is_a_minute() -> None:
    assert after.limit == timedelta(seconds=60)


# --- What is found, at which time ---------------------------------------------------------------------------


@pytest.fixture
def said() -> Iterator[list[str]]:
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("shardbook").addHandler(handler)
    yield logged
    logging.getLogger("shardbook").removeHandler(handler)


class Group:
    """Ranks of one process, whose clock is set by hand."""

    def __init__(self, size: int, *, blocks: bool = True) -> None:
        self.store, self.now = dist.HashStore(), 1000.0
        self.meetings = [Rendezvous(self.store, rank, size, timedelta(minutes=30)) for rank in range(size)]
        self.progress = [Progress() for _ in range(size)]
        self.ranks = [
            Standstill(one, progress, blocks=blocks, waits=[], limit=timedelta(seconds=60))
            for one, progress in zip(self.meetings, self.progress, strict=True)
        ]

    def start(self, unit: str, *which: int, action: str = "gather") -> None:
        for rank in which:
            self.progress[rank].started.append(Step("forward", 0, action, unit, f"{unit}.weight"))
            self.meetings[rank].issued += 1

    def wait(self, seconds: float, *, silent: tuple[int, ...] = ()) -> None:
        """Let this time go by, in which each rank looks every five seconds."""
        for _ in range(round(seconds / 5)):
            self.now += 5
            for rank, one in enumerate(self.ranks):
                if rank not in silent:
                    one.tick(self.now, self.store)


def blocked(one: Standstill) -> None:
    """Let it seem that the thread of this rank waits for others."""
    one.waits = frozenset(call.code for call in stack_of(threading.get_ident()))


def test_slow_ranks_that_move_raise_no_alarm(said: list[str]) -> None:
    group = Group(2)
    blocked(group.ranks[0])
    for step in range(6):
        group.start("A", 0)
        group.wait(55)
        group.start("A", 1)
        group.wait(5 * (step % 2))
    assert said == []


def test_one_that_is_slower_is_named_until_it_goes_on(said: list[str]) -> None:
    group = Group(2)
    group.start("A", 0, 1)
    group.wait(5)
    blocked(group.ranks[0])
    group.start("B", 0)
    group.wait(70)
    assert sorted(one.split(";")[0] for one in said) == [
        "rank 0 has waited for 60 s, after 2 exchanges, for rank 1 to gather B (parameter B.weight) as "
        "exchange 1 of its forward pass",
        "rank 1 has started nothing for 60 s, after 1 exchanges, and rank 0 waits for it",
    ]
    assert group.meetings[0].standstill in said
    group.start("B", 1)
    group.start("C", 0, 1)
    group.wait(5)
    assert said[2:] == ["rank 0 goes on after 70 s", "rank 1 goes on after 75 s"]
    assert group.meetings[0].standstill == ""


def test_the_time_is_that_of_the_rank_that_waits(said: list[str]) -> None:
    """Rank 0 computes for 90 seconds and then waits for 55, and rank 1 computes for 145."""
    group = Group(2)
    group.start("A", 0, 1)
    group.start("B", 0)
    group.wait(90)
    blocked(group.ranks[0])
    group.wait(55)
    assert said == []
    group.wait(40)
    (first, *_) = [one for one in said if one.startswith("rank 0")]
    assert first.startswith("rank 0 has waited for 60 s, after 2 exchanges, for rank 1 to gather B")


def test_a_standstill_is_reported_again_after_twice_the_time(said: list[str]) -> None:
    group = Group(2)
    blocked(group.ranks[0])
    group.start("A", 0)
    group.wait(600, silent=(1,))
    assert [re.findall(r"waited for (\d+) s", one)[0] for one in said] == ["60", "120", "240", "480"]


@pytest.mark.parametrize("blocks", [True, False])
def test_models_that_are_not_in_use_say_nothing(said: list[str], blocks: bool) -> None:
    group = Group(3, blocks=blocks)
    group.start("A", 0, 1, 2)
    group.wait(3600)
    assert said == []


def test_a_rank_that_computes_for_long_while_its_neighbour_does_says_nothing(said: list[str]) -> None:
    """Rank 0 has gathered one unit ahead, and both compile."""
    group = Group(2)
    group.start("A", 0, 1)
    group.start("B", 0)
    group.wait(600)
    assert said == []


def test_a_rank_that_does_not_write_any_more_is_told_from_one_that_does(said: list[str]) -> None:
    group = Group(3)
    group.start("A", 0, 1, 2)
    group.wait(10)
    group.start("B", 0)
    blocked(group.ranks[0])
    group.wait(65, silent=(2,))
    (first,) = [one for one in said if one.startswith("rank 0")]
    assert "for rank 1, 2 to gather B" in first
    assert "; rank 1 has started 1 exchanges" in first
    assert re.search(
        r"; rank 2 has not answered for 1[5-9] s: its process has ended or hangs, or its machine cannot be "
        r"reached; before that it has started 1 exchanges, the last one 5 s ago to gather A",
        first,
    ), first


def test_a_rank_that_has_died_on_this_machine_and_one_that_has_not_begun(said: list[str]) -> None:
    group = Group(3)
    group.start("A", 0)
    blocked(group.ranks[0])
    group.store.set("process/1", json.dumps([machine(), 2**22 + 1, 5]))
    group.wait(65, silent=(1, 2))
    (first,) = said
    assert "for rank 1, 2 to gather A" in first
    assert first.endswith("; rank 1 has died; see its own output; rank 2 has written nothing yet")


def test_ranks_that_have_all_come_wait_for_the_connection(said: list[str]) -> None:
    group = Group(2)
    group.start("A", 0, 1)
    blocked(group.ranks[0])
    group.wait(65)
    (first,) = said
    assert (
        "to gather A (parameter A.weight) as exchange 1 of its forward pass, though every rank has come; the"
        in first
    )


def test_in_a_round_those_that_have_come_are_not_named(said: list[str]) -> None:
    group = Group(4)
    end = Step("backward", 8, "end", "", "")
    for rank in (0, 2):
        group.progress[rank].wish = end
        blocked(group.ranks[rank])
    # Rank 3 has left that round already.
    group.meetings[3].rounds = 1
    group.wait(65)
    assert [one.split(";")[0] for one in said] == [
        f"rank 0 has waited for 60 s, after 0 exchanges, for rank 1 to {end}",
        "rank 1 has started nothing for 60 s, after 0 exchanges, and rank 0, 2 wait for it",
        f"rank 2 has waited for 60 s, after 0 exchanges, for rank 1 to {end}",
    ]


def test_many_ranks_are_counted(said: list[str]) -> None:
    group = Group(40)
    group.start("A", 0)
    blocked(group.ranks[0])
    group.wait(65)
    (first,) = [one for one in said if one.startswith("rank 0")]
    assert "for rank 1, 2, 3, 4, 5, 6, 7, 8 and 31 more to gather A" in first
    assert first.endswith("; and 31 more ranks")


def test_in_a_row_only_its_ranks_are_waited_for(said: list[str]) -> None:
    """Ranks 0 and 1 are a row, ranks 0 and 2 a column. Rank 2 has not come to the exchange of its own row."""
    group = Group(4)
    group.progress[0].partners = {"gather": [0, 1], "average": [0, 2]}
    blocked(group.ranks[0])
    group.start("A", 0)
    group.start("A", 0, action="average")
    group.start("A", 1)
    group.wait(65, silent=(3,))
    (first,) = [one for one in said if one.startswith("rank 0")]
    assert "for rank 2 to average A" in first


# --- Lines -------------------------------------------------------------------------------------------------


def test_the_line_is_that_of_the_program_and_not_of_a_library() -> None:
    found: list[str] = []

    def here() -> None:
        # The call of this function's own helper is left out, so that the innermost one is the library's.
        found.append(line_of(stack_of(threading.get_ident())[2:]))

    for folder in (torch.__file__, logging.__file__, json.__file__):
        file, space = Path(folder).parent / "made_up.py", dict[str, Any]()
        exec(compile("def call(f):\n    f()", str(file), "exec"), space)
        space["call"](here)
    assert len(found) == 3
    for line in found:
        assert re.fullmatch(
            rf"/\S+/{HERE}:\d+ in test_the_line_is_th\w+ \(inside of made_up.py:2 in call\)", line
        ), line


def test_where_all_is_library_the_innermost_call_is_named_and_programs_of_the_book_count() -> None:
    stack = stack_of(threading.get_ident())
    # A process that shares the tests begins in a line that belongs to no file.
    library = [call for call in stack if in_library(call.code)]
    code, line = library[0]
    assert line_of(library) == f"{code.co_filename}:{line} in {code.co_name}"
    assert line_of([]) == ""
    space: dict[str, Any] = {"stack_of": lambda: stack_of(threading.get_ident())[2:3]}
    file = Path(shardbook.__file__).parent / "train" / "made_up.py"
    exec(compile("def train():\n    return stack_of()", str(file), "exec"), space)
    (call,) = space["train"]()
    assert not in_library(call.code)
