"""A rank that was killed is named by those that wait for it to agree, and nobody else is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch.distributed as dist

import ranks
from book.toys import batch, chain, error
from shardbook import Disagreement, shard
from shardbook.foundations.agreement import began, ended, machine, sign_in


class Keys(dict[str, str]):
    """A store of this process."""

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        return self[key]


def test_a_process_that_runs_has_not_ended() -> None:
    store = Keys()
    sign_in(store, 0)
    assert json.loads(store["process/0"]) == [machine(), os.getpid(), began(os.getpid())]
    # Of rank 1 nothing is known.
    assert ended(store, [0, 1]) == []


def test_one_that_was_killed_has_ended_also_while_its_parent_has_not_looked() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        store = Keys()
        store.set("process/7", json.dumps([machine(), child.pid, began(child.pid)]))
        assert ended(store, [7]) == []
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert ended(store, [7]) == [7]
    assert ended(store, [7]) == [7]


def test_another_process_with_the_same_number_and_another_machine_are_told_apart() -> None:
    store, start = Keys(), began(os.getpid())
    assert start is not None
    store.set("process/0", json.dumps([machine(), os.getpid(), start - 1]))
    store.set("process/1", json.dumps(["another machine", 2**22 + 1, 5]))
    assert ended(store, [0, 1]) == [0]


def one_is_killed() -> None:
    model = shard(chain())
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    # The first step: the ranks agree on each exchange before it starts.
    with pytest.raises(Disagreement) as caught:
        error(model, batch(dist.get_rank(), 0))
    raise caught.value


@pytest.mark.full
def test_a_rank_that_was_killed_before_a_round_is_named_at_once() -> None:
    """The time limit of the group is half an hour."""
    with pytest.raises(ranks.RanksFailed) as caught:
        ranks.run(3, one_is_killed, timeout=60)
    said = str(caught.value)
    assert "rank 1: died without a word" in said
    assert said.count("but rank 1 has died; see its own output") == 2
