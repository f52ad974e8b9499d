r"""# Checking for races between streams

> `--races` records a CPU run as if on a GPU with streams, and reports accesses to
> memory without an order.

A program with its own streams may have a race on a GPU and run correctly on a CPU. So
may a hook that uses a tensor after the library has freed it. With `--races` [a
recorder](stream_recorder.py) records what the script would do on a GPU, and at the end
[the replay](stream_replay.py) searches the recording for races. Each race is reported
with the line of the program that made the later access.

The recorder inspects each operation, so the script takes several times as long. It also
pretends that the collectives are NCCL's. With NCCL a rank cannot read the store while
it waits, so a rank that leaves the common order is detected later than without
`--races`. On a real GPU no model is needed: PyTorch's own checker,
`TORCH_CUDA_SANITIZER=1`, watches the real streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from shardbook.check.stream_recorder import Recorder
from shardbook.check.stream_replay import races
from shardbook.check.watches import Run, Watch
from shardbook.command import Mistake

__all__ = ["Races"]


class Races(Watch):
    """Records the script, and searches the recording for races at the end."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.recorder = Recorder()

    def patches(self) -> Sequence[Any]:
        """The recorder. It is a context manager, like a patch."""
        return [self.recorder]

    def sharded(self, model: nn.Module) -> None:
        """Refuse a model on a device with real streams.

        :raises Mistake: naming the device
        """
        for unit in self.run.units():
            device = unit.flats[0].device
            if device.type != "cpu":
                raise Mistake(
                    f"--races models the streams of a CPU run, and this model is on {device}; "
                    "leave it out, and set TORCH_CUDA_SANITIZER=1 instead"
                )

    def facts(self) -> Any:
        """Report the races of this rank."""
        for race in races(self.recorder.trace):
            self.found.add(
                "error",
                "race",
                f"a race between streams: {race.later} is not ordered after {race.earlier}",
                "let the stream of the first wait for that of the second, by wait_stream() or an event",
                race.place,
            )
