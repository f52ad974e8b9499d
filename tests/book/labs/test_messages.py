"""Lab 2 tells a deadlock from ranks that have not begun."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from shardbook.labs import NotYet
from shardbook.labs.lessons import messages

# As the functions of a cell: a rank cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def each_waits(given: Any) -> None:
    """Every rank waits for a message that nobody sends."""
    dist.recv(torch.zeros(1), src=(dist.get_rank() + 1) % dist.get_world_size())


def test_a_deadlock_is_told_where_ranks_begin_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the short time no rank has begun; the second, longer run is judged, too."""
    monkeypatch.setattr(messages, "SECONDS", 0.0)
    monkeypatch.setattr(messages, "PATIENCE", 8.0)
    with pytest.raises(NotYet, match="pass_on is a deadlock: after 8 s the ranks still wait"):
        messages.on_ranks("pass_on", each_waits, None)
