r"""# Tracking

> Each step leaves a line of figures, for a program to read or for labml to draw.

[The table](report.py) at the end says how a run went on the whole. To see where a loss
jumped, its figures are needed step by step. A step has these:

| name | what it is | when |
|---|---|---|
| `loss` | the loss of this rank's own batch | always |
| `learning_rate` | [the rate](schedule.py) of the step | always |
| `sent` | the bytes that this rank sent | always |
| `seconds` | the time of the step | always |
| `norm` | the norm of the gradient, before it was clipped | always, unless it [is not taken](not_finite.py) |
| `skipped` | 1 for a step that [was not taken](not_finite.py) | with `--not-finite skip` |
| `loss_scale` | [the factor](loss_scaling.py) of the loss | with `--precision fp16` |
| `unseen` | the loss on the unseen text, the mean over all ranks | after an evaluation |

`--jsonl FILE` appends them to a file, one step a line, in JSON. Rank 0 writes it. Each line is
written out at once, so whatever ends the run, the file is complete up to the last step.

```json
{"step": 1, "loss": 5.5694990158081055, "learning_rate": 0.001,
 "norm": 6.454769134521484, "sent": 5251816, "seconds": 1.768}
```

`--track labml` hands them to [labml](https://pypi.org/project/labml/). There all ranks
are one run: rank 0 chooses its name, and each rank adds its own figures to it. They lie
in the folder `logs`, and nothing leaves the machine. On a terminal labml shows them as
well, and then it takes the place of [the line of progress](report.py#Progress).
"""

# sidelit: hide
from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch.distributed as dist

from shardbook.command import Mistake

__all__ = ["labml_shows", "refuse_missing_tracker", "tracking"]

Track = Callable[[int, Mapping[str, float]], None]
# sidelit: show


@contextmanager
def tracking(options: argparse.Namespace, first: int = 0) -> Iterator[Track]:
    """A function that takes the number of a step and its figures, and writes them wherever that is wanted.

    :param first: how many steps were taken before, in a run that goes on
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
    """Lines at the end of a file, which a run that goes on goes on with.

    Steps that it will take once more are removed, so that each stands there once.

    :param first: how many steps of the run were taken before
    :param again: whether the run was started before, and may have left lines of steps
        that nothing was saved after
    :raises Mistake: on this rank alone, if the disk is full
    """
    tidy(path, first if first or again else None)
    with path.open("a", encoding="utf-8") as file:

        def track(number: int, figures: Mapping[str, float]) -> None:
            # JSON has no infinity and no NaN.
            known = {
                name: value if math.isfinite(value) else None
                for name, value in figures.items()
            }
            try:
                print(json.dumps({"step": number + 1, **known}), file=file, flush=True)
            except OSError as error:
                raise Mistake(f"--jsonl {path} cannot be written: {error}") from error

        yield track


def tidy(path: Path, last: int | None) -> None:
    """Remove half a line from the end of a file, and the lines of steps that are taken again.

    Several runs may have written to the file, one after the other. Only the lines of
    the newest one are its own.

    :param last: the step whose line stays as the run's last one; `None` to keep them all
    """
    # A pipe or a terminal holds no lines from before.
    if not path.is_file():
        return
    lines = path.read_text("utf-8").splitlines(keepends=True)
    # What is killed, or a machine without power, leaves half a line.
    kept = [*takewhile(whole, lines)]
    if last is not None:
        steps = [json.loads(line)["step"] for line in kept]
        starts = (
            index for index in range(1, len(steps)) if steps[index] <= steps[index - 1]
        )
        own = max(starts, default=0)
        kept[own:] = [
            line
            for line, step in zip(kept[own:], steps[own:], strict=True)
            if step <= last
        ]
    if kept != lines:
        draft = path.with_name(f".{path.name}.partial")
        draft.write_text("".join(kept), encoding="utf-8")
        draft.replace(path)


def whole(line: str) -> bool:
    """Whether a line was written to its end."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return line.endswith("\n")


@contextmanager
def labml_run(options: argparse.Namespace) -> Iterator[Track]:
    """One run of labml's, which all ranks share."""
    from labml import experiment, tracker

    name = [uuid.uuid4().hex]
    dist.broadcast_object_list(name, src=0)
    # labml says where it writes, on every rank, and asks git about the folder. The
    # folder of the program would be the library's own, so it is given this one.
    with contextlib.redirect_stdout(io.StringIO()):
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
        tracker.save(number + 1, dict(figures))

    try:
        with run:
            yield track
    finally:
        finish_writing()


def labml_shows(options: argparse.Namespace) -> bool:
    """Whether labml draws the progress: on a terminal, on rank 0."""
    here = options.track == "labml" and sys.stdout.isatty()
    return here and dist.get_rank() == 0


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options as plain values, which labml writes beside the figures."""
    plain = (bool, int, float, str)
    return {
        name: value if isinstance(value, plain) else str(value)
        for name, value in vars(options).items()
        if value is not None
    }


# sidelit: depth A library that is not installed, and threads that still write.


def refuse_missing_tracker(options: argparse.Namespace) -> None:
    """Refuse to track with a library that is not there.

    :raises Mistake: saying what to install, and what to do without it
    """
    if options.track == "labml" and find_spec("labml") is None:
        raise Mistake(
            "--track labml needs the library labml: pip install 'shardbook[train]', "
            "or write the figures with --jsonl FILE"
        )


def finish_writing() -> None:
    """Wait until labml's thread has written its file.

    [The program](ranks.py) ends without a shutdown of the interpreter, which would wait
    for it.
    """
    for thread in threading.enumerate():
        if type(thread).__module__.startswith("labml."):
            thread.join()
