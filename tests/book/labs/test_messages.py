"""Lab 2 tells a deadlock from ranks that have not begun."""

from __future__ import annotations

import sys
import threading

import cloudpickle
import pytest
from torch import Tensor

from shardbook.labs.lessons import messages

# As the functions of a cell: a rank cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Slow:
    """An answer that takes a while to reach a rank, as on a busy machine."""

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def __setstate__(self, state: object) -> None:
        threading.Event().wait(4)

    def __getstate__(self) -> object:
        return "slow"


@pytest.mark.nightly
def test_the_time_of_an_answer_begins_when_all_ranks_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SECONDS", 3.0)
    found = messages.on_ranks("pass_on", Slow(), Tensor)
    assert [sent for _, sent in found] == [0] * messages.RANKS
