r"""# Tracking, traces and memory snapshots

> A run can record the figures of each step, a timeline of one step, and the memory at
> its peak.

[The table](report.py) at the end summarizes a run. Several options record more. If a
step takes too long, [a trace](#module/a-trace-of-one-step) shows where the time goes.
If a step needs too much memory, [a snapshot](#module/a-snapshot-of-the-memory) lists
what is stored at the peak.

Suppose the loss has jumped somewhere in 5,000 steps. To find the step, you need the
figures of every step:

| name | what it is | when |
|---|---|---|
| `loss` | the loss of this rank's own batch | always |
| `learning_rate` | [the rate](plan.py#module/the-learning-rate-schedule) of the step | always |
| `sent` | the bytes that this rank sent | always |
| `seconds` | the time of the step | always |
| `norm` | the norm of the gradient, before it was clipped | always, unless it [is not taken](not_finite.py) |
| `skipped` | 1 for a step that [was not taken](not_finite.py) | with `--not-finite skip` |
| `loss_scale` | [the factor](loss_scaling.py) of the loss | with `--precision fp16` |
| `unseen` | the loss on the held-out text, the mean over all ranks | after an evaluation |

With `--jsonl FILE` rank 0 appends the figures to a file, one line of JSON for each step.
Each line is written at once. So even if the run is killed, the file is complete up to
the last step. A file with any other line in it is refused before the training begins,
and nothing in it changes.

```json
{"step": 1, "loss": 5.5694990158081055, "learning_rate": 0.001,
 "norm": 6.454769134521484, "sent": 5251816, "seconds": 1.768}
```

With `--track labml` the figures go to [labml](https://pypi.org/project/labml/). There
all ranks form one run: rank 0 chooses the name of the run, and each rank adds its own
figures. labml writes into the folder `logs`, and sends nothing to other machines. On a
terminal labml also shows the figures, in place of [the line of
progress](report.py#Progress).

On rank 0 labml also writes into your home folder, and has no setting against it. It
creates the folder `~/.labml` with a random number for this machine, and adds the current
folder to a list of projects there. A file of that name is replaced by the folder. If you
do not want this, set the environment variable `HOME` to another folder for the run, or
use `--jsonl`.

No figure is worth a run. If they cannot be written, because the disk is full or
read-only, rank 0 says so in one line and the run goes on without them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from shardbook.command import Mistake
from shardbook.foundations.torch_private import as_plain, storage_id
from shardbook.models.corpus import Text
from shardbook.planning.forecast import Meter
from shardbook.planning.report import as_json, beside, named_file, write
from shardbook.zero.scheduler import scheduler_of

__all__ = [
    "MemorySnapshot",
    "json_lines",
    "kept",
    "labml_shows",
    "refuse_missing_tracker",
    "traced",
    "tracking",
]

# sidelit: hide
Track = Callable[[int, Mapping[str, float]], None]
# sidelit: show


@contextmanager
def tracking(options: argparse.Namespace, first: int = 0) -> Iterator[Track]:
    """Give a function that writes the figures of a step to the chosen places.

    :param first: how many steps were taken before, in a resumed run
    """
    with ExitStack() as stack:
        tracks: list[Track] = []
        if options.jsonl is not None and dist.get_rank() == 0:
            # `torchrun` counts how often it has started the ranks again.
            again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
            lines = json_lines(options.jsonl, first, again=again)
            tracks.append(stack.enter_context(lines))
        if options.track == "labml":
            tracks.append(stack.enter_context(labml_run(options)))

        def track(number: int, figures: Mapping[str, float]) -> None:
            for each in tracks:
                each(number, figures)

        yield track


@contextmanager
def json_lines(path: Path, first: int = 0, *, again: bool = False) -> Iterator[Track]:
    """Append one line of JSON to a file for each step. A resumed run continues the file.

    The lines of steps that will be repeated are removed first, so each step has one
    line.

    :param first: how many steps of the run were taken before
    :param again: whether the run was started before, so that the file may have lines of
        steps after the last checkpoint
    :raises Mistake: on this rank alone, if the file has a line that no run has written
    """
    with ExitStack() as stack:
        file: io.FileIO | None = None
        with beside("--jsonl"):
            tidy(path, first if first or again else None)
            # Without a buffer no line is left to be written when the file is closed.
            file = stack.enter_context(path.open("ab", buffering=0))

        def track(number: int, figures: Mapping[str, float]) -> None:
            nonlocal file
            if file is None:
                return
            # JSON has no infinity and no NaN.
            known = {
                name: value if math.isfinite(value) else None
                for name, value in figures.items()
            }
            # After a line that could not be written, no other one is tried.
            opened, file = file, None
            with beside("--jsonl"):
                append(opened, json.dumps({"step": number + 1, **known}) + "\n")
                file = opened

        yield track


def append(file: io.FileIO, line: str) -> None:
    """Append a line to a file, or leave the file as it is.

    :raises OSError: if there is no room for the whole line
    """
    before = os.fstat(file.fileno()).st_size
    rest = line.encode()
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError:
        with suppress(OSError):
            file.truncate(before)
        raise


def tidy(path: Path, last: int | None) -> None:
    """Remove an incomplete line from the end of a log, and the lines of steps that will be repeated.

    :param last: the last step whose line stays; `None` to keep all lines
    :raises Mistake: as [`kept`](#kept) does
    """
    # A new log, or a device that holds no lines from before.
    if path.is_file() and (length := kept(path, last)) < path.stat().st_size:
        os.truncate(path, length)


def kept(path: Path, last: int | None = None) -> int:
    """How many bytes of a log stay.

    Several runs may have written to the log, one after the other. Only lines of the
    newest run are removed, and they are the last ones.

    :param last: as in [`tidy`](#tidy)
    :raises Mistake: if the file has a line that no run has written
    """
    step = end = 0
    cut: int | None = None
    with path.open("rb") as file:
        for number, line in enumerate(iter(partial(file.readline, LONGEST), b""), 1):
            found = LINE.fullmatch(line)
            if found is None:
                if file.read(1) or not begun(line):
                    raise Mistake(
                        f"--jsonl {path} has a line {number} that no run has written; "
                        "name another file, so that this one stays as it is"
                    )
                break
            before, step = step, int(found[1])
            if step <= before:
                # A step that does not grow begins another run.
                cut = None
            if cut is None and last is not None and step > last:
                cut = end
            end += len(line)
    return end if cut is None else cut


def begun(line: bytes) -> bool:
    """Whether a line is the beginning of a line of a run.

    A program that is killed may leave a part of a line. A machine that loses power may
    leave zeros.
    """
    text = line.rstrip(b"\0")
    return b"\n" not in line and (text.startswith(START) or START.startswith(text))


# A line as `json_lines` writes it.
START = b'{"step": '
NAMES = b"loss|learning_rate|norm|loss_scale|skipped|sent|seconds|unseen"
LINE = re.compile(
    START + rb'(\d{1,18})(?:, "(?:' + NAMES + rb')": (?:null|-?\d[-+.\de]*))*\}\r?\n'
)
LONGEST = 4096


@contextmanager
def labml_run(options: argparse.Namespace) -> Iterator[Track]:
    """Track with one run of labml that all ranks share."""
    from labml import experiment, tracker

    name = [uuid.uuid4().hex]
    dist.broadcast_object_list(name, src=0)
    # On every rank labml prints where it writes, so its output is redirected. labml
    # also records the git commit of the program's folder. That folder would be the
    # library's, so the current folder is passed instead.
    run: Any = None
    with (
        beside("--track labml", everywhere=True) as failed,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        experiment.create(
            uuid=name[0],
            name="shardbook",
            python_file=str(Path.cwd()),
            writers={"screen", "file"} if labml_shows(options) else {"file"},
            distributed_rank=dist.get_rank(),
            distributed_world_size=dist.get_world_size(),
        )
        experiment.configs(settings(options))
        run = experiment.start()

    def track(number: int, figures: Mapping[str, float]) -> None:
        if run is not None:
            tracker.save(number + 1, dict(figures))

    with errors_of_threads() as errors:
        if failed:
            # What one rank cannot write, no other one writes.
            with suppress(OSError):
                finish(run)
            run = None
            errors.clear()
        try:
            yield track
        except BaseException as error:
            with suppress(OSError):
                finish(run, error)
            raise
        with beside("--track labml", everywhere=True):
            finish(run)
            if errors:
                raise errors[0]


def labml_shows(options: argparse.Namespace) -> bool:
    """Whether labml shows the progress: on a terminal, on rank 0."""
    here = options.track == "labml" and sys.stdout.isatty()
    return here and dist.get_rank() == 0


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options as plain values, which labml stores with the figures."""
    plain = (bool, int, float, str)
    return {
        name: value if isinstance(value, plain) else str(value)
        for name, value in vars(options).items()
        if value is not None
    }


# sidelit: depth A library that is not installed, and threads that still write.


def refuse_missing_tracker(options: argparse.Namespace) -> None:
    """Refuse to track with a library that is not installed.

    :raises Mistake: naming the library to install, and the alternative
    """
    if options.track == "labml" and find_spec("labml") is None:
        raise Mistake(
            "--track labml needs the library labml: pip install 'shardbook[train]', "
            "or write the figures with --jsonl FILE"
        )


def finish(run: Any, error: BaseException | None = None) -> None:
    """End a run of labml, and wait until its thread has written the file.

    [The program](ranks.py) ends without a shutdown of the interpreter. A shutdown would
    wait for the thread, so this function does.

    :param run: `None` if it has not begun
    :param error: the error that has ended the training
    :raises OSError: if labml cannot write
    """
    try:
        if run is not None:
            run.__exit__(None if error is None else type(error), error, None)
    finally:
        for thread in threading.enumerate():
            if of_labml(thread):
                thread.join()


@contextmanager
def errors_of_threads() -> Iterator[list[OSError]]:
    """A block in which labml's thread may fail to write, and prints no traceback then.

    :returns: the errors
    """
    errors: list[OSError] = []
    before = threading.excepthook

    def note(told: threading.ExceptHookArgs) -> None:
        if of_labml(told.thread) and isinstance(told.exc_value, OSError):
            errors.append(told.exc_value)
        else:
            before(told)

    threading.excepthook = note
    try:
        yield errors
    finally:
        threading.excepthook = before


def of_labml(thread: threading.Thread | None) -> bool:
    """Whether labml has started this thread."""
    return type(thread).__module__.startswith("labml.")


# sidelit: core


# ## A trace of one step
#
# > `--profile` writes a timeline of one step for each rank, which a browser can show.
#
# `--profile FOLDER` runs PyTorch's profiler around one step of each rank, and writes a
# trace for each: `trace-rank0.json`, `trace-rank1.json`. Open it at `chrome://tracing` or in
# [Perfetto](https://ui.perfetto.dev). Each thread is a row, and each operation is a bar
# whose length is its time. The library labels its own actions [with the name of the
# unit](hook_context.py#module/labels-for-a-profiler), such as `gather block1`. The program adds three labels:
#
# | label | what happens |
# |---|---|
# | `forward micro-batch 0` | the model and the loss |
# | `backward micro-batch 0` | the backward pass, and the exchanges of the gradients in it |
# | `step optimizer` | the optimizer changes the parameters |
#
# In a good trace of stage 3, a `gather` begins well before the `wait for` of the same
# unit, and the `wait for` is short.
#
# The traced step is the third, or the first if the run has at most three steps. The
# first two steps are slower than the others, because they allocate memory and create
# the optimizer's state. The last step runs under [the
# meter](forecast.py#module/counting-the-stored-bytes), which slows it down.


@contextmanager
def traced(folder: Path | None, number: int, steps: range) -> Iterator[None]:
    """Trace the block if this is the step to trace.

    :param folder: the folder for the trace; `None` for no trace
    :param number: the number of the step
    :param steps: all steps of this run
    """
    if folder is None or number != steps[2 if len(steps) > 3 else 0]:
        yield
        return
    kinds = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(ProfilerActivity.CUDA)
    with profile(activities=kinds, acc_events=True) as trace:
        yield
    with beside("--profile", everywhere=True):
        save(trace, folder / f"trace-rank{dist.get_rank()}.json")


def save(trace: profile, path: Path) -> None:
    """Write a trace so that it exists whole or not at all.

    PyTorch's profiler does not raise an error if the disk is full. So the trace gets
    its name only if its end was written, too.

    :raises OSError: if the trace cannot be written
    """
    target = named_file(path, "--profile")
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=".trace-") as folder:
        draft = Path(folder, target.name)
        trace.export_chrome_trace(str(draft))
        if not draft.exists() or not ends_well(draft):
            raise OSError(f"{path} was cut off, as on a full disk")
        draft.replace(target)


def ends_well(trace: Path) -> bool:
    """Whether a trace has the profiler's last words."""
    with trace.open("rb") as file:
        file.seek(max(0, trace.stat().st_size - 2**14))
        end = file.read().rstrip()
    return b'"traceName"' in end and end.endswith(b"}")


# ## A snapshot of the memory at its peak
#
# > `--memory-snapshot` lists every storage that is alive when a rank stores the most,
# > with its kind and its unit.
#
# Suppose a step needs 44 MB at its peak, and you want to lower this number. Then you
# need to know which tensors are alive at that moment. With `--memory-snapshot FOLDER`
# [the meter](forecast.py#module/counting-the-stored-bytes) of the last step records its
# peak: every storage that was alive, its size, and its kind. In the run of [the
# training chapter](loop.py), `memory-rank0.json` begins like this:
#
# ```json
# {
#  "peak": 44301361,
#  "operation": "aten.gelu_backward.default",
#  "whole": [
#   "block2",
#   "block3"
#  ],
#  "kinds": {
#   "activations and temporaries": 36390408,
#   "optimizer state": 3501268,
#   "shard": 1750528,
#   "full": 1586176,
# ```
#
# | kind | what it is |
# |---|---|
# | `shard` | [the part](flat.py#Flat) of a unit's parameters that a rank keeps |
# | `full` | [the whole vector](unit.py) of a unit that is in use or is being gathered |
# | `grad_full` | [the vector](flat.py#Flat/the-gradients-of-a-flat) that collects the gradients of a unit |
# | `sending` | such a vector while it is sent to the other ranks |
# | `gradients` | mean gradients that wait for the optimizer |
# | `optimizer state` | the optimizer's moments and counters |
# | `text` | the training text, if it is not mapped |
# | `activations and temporaries` | the rest: saved activations, results of operations, received messages |
#
# `storages` lists the storages one by one, the largest first, each with its unit.
# `operation` is the operation that reached the peak, and `whole` names the units that were
# whole at that moment. In this run, the backward pass of GELU was in block 3, while block
# 2 was prefetched.


# sidelit: hide
Named = dict[int, tuple[str, str]]
OTHER = "activations and temporaries"
# sidelit: show


class MemorySnapshot(Meter):
    """A meter that records which storages made up the peak.

    :param model: a sharded model, which names the units
    :param optimizer: the model's optimizer
    :param texts: the training texts
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        texts: Sequence[Text] = (),
    ) -> None:
        super().__init__()
        self.units = list(scheduler_of(model).units)
        self.optimizer, self.texts = optimizer, texts
        self.at_peak: list[tuple[int, str, str]] = []
        self.operation, self.whole = "", list[str]()

    def __torch_dispatch__(
        self,
        operation: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        before = self.peak
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        if self.peak > before or not self.at_peak:
            self.remember(str(operation))
        return result

    def remember(self, operation: str) -> None:
        """Record all storages that are alive now."""
        named = self.named()
        self.operation = operation
        self.whole = [
            unit.name
            for unit in self.units
            if all(flat.full.untyped_storage().nbytes() for flat in unit.flats)
        ]
        self.at_peak = [
            (storage.nbytes(), *named.get(key, (OTHER, "")))
            for key, storage in self.storages.items()
            if storage.nbytes()
        ]

    def named(self) -> Named:
        """The kind and the unit of each storage that is known."""
        with as_plain():
            found = [
                *((tensor, "optimizer state", "") for tensor in self.moments()),
                *((text, "text", "") for text in self.texts),
                *self.of_units(),
            ]
        return {
            storage_id(tensor.untyped_storage()): (kind, unit)
            for tensor, kind, unit in found
            if isinstance(tensor, Tensor)
        }

    def of_units(self) -> Iterator[tuple[Tensor | None, str, str]]:
        """The vectors of all units. If a vector has two names, the later one counts: below stage 3 `shard`
        is a part of `full`.
        """
        for unit in self.units:
            for flat in unit.flats:
                yield flat.full, "full", unit.name
                yield flat.shard, "shard", unit.name
                yield flat.grad_full, "grad_full", unit.name
                yield flat.sending, "sending", unit.name
                for parameter in flat.parameters:
                    yield parameter.grad, "gradients", unit.name

    def moments(self) -> Iterator[Any]:
        """The optimizer's state of each parameter."""
        for state in self.optimizer.state.values():
            yield from state.values()

    def save(self, folder: Path) -> None:
        """Write this rank's file."""
        kinds: dict[str, int] = {}
        for nbytes, kind, _ in self.at_peak:
            kinds[kind] = kinds.get(kind, 0) + nbytes
        ordered = sorted(self.at_peak, key=lambda one: -one[0])
        figures = {
            "peak": self.peak,
            "operation": self.operation,
            "whole": self.whole,
            "kinds": dict(sorted(kinds.items(), key=lambda pair: -pair[1])),
            "storages": [
                {"bytes": nbytes, "kind": kind, "unit": unit}
                for nbytes, kind, unit in ordered
            ],
        }
        option = "--memory-snapshot"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"memory-rank{dist.get_rank()}.json"
        write(file, as_json(figures), option)
