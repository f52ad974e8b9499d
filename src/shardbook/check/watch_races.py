r"""# The race check

> With `--races` the steps run on a model of a GPU's streams, and two accesses that nothing orders are found.

A program with streams of its own, or a hook that keeps a tensor longer than the library
expects, can race on a GPU and be right on a CPU. With `--races` [a
recorder](stream_recorder.py) writes down what the script asks of its device, and at the end
[the replay](stream_replay.py) looks for races. Each is named with the line of the program
that made the later access.

The recorder looks at each operation, so the script takes several times as long. It also
plays the part of NCCL, with which no rank can look into the store while it waits. So a
rank that leaves the common order is found later than without it. On a GPU itself
there is nothing to model, and PyTorch's own checker, `TORCH_CUDA_SANITIZER=1`, watches
the real streams.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from shardbook.check.stream_recorder import Recorder
from shardbook.check.stream_replay import races
from shardbook.check.watches import Run, Watch
from shardbook.command import Mistake

__all__ = ["Races"]
# sidelit: show


class Races(Watch):
    """Records the script, and judges the recording at its end."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.recorder = Recorder()

    def patches(self) -> Sequence[Any]:
        """The recorder is a block, like the patches."""
        return [self.recorder]

    def sharded(self, model: nn.Module) -> None:
        """Refuse a model whose streams are real.

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
        """The races of this rank."""
        for race in races(self.recorder.trace):
            self.found.add(
                "error",
                "race",
                f"a race between streams: {race.later} is not ordered after {race.earlier}",
                "let the stream of the first wait for that of the second, by wait_stream() or an event",
                race.place,
            )
