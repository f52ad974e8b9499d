r"""# Tracking the figures of each step

> Each step writes its loss, norm, bytes and time to a JSON file or to labml.

[The table](report.py) at the end summarizes a run. Suppose the loss has jumped
somewhere in 5,000 steps. To find the step, you need the figures of every step:

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

With `--jsonl FILE` rank 0 appends the figures to a file, one line of JSON for each step.
Each line is flushed at once. So even if the run is killed, the file is complete up to
the last step.

```json
{"step": 1, "loss": 5.5694990158081055, "learning_rate": 0.001,
 "norm": 6.454769134521484, "sent": 5251816, "seconds": 1.768}
```

With `--track labml` the figures go to [labml](https://pypi.org/project/labml/). There
all ranks form one run: rank 0 chooses the name of the run, and each rank adds its own
figures. labml writes into the folder `logs`, and sends nothing to other machines. On a
terminal labml also shows the figures, in place of [the line of
progress](report.py#Progress).
"""

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
    """Remove an incomplete line from the end of a file, and the lines of steps that will be repeated.

    Several runs may have written to the file, one after the other. Only lines of the
    newest run are removed.

    :param last: the last step whose line stays; `None` to keep all lines
    """
    # A pipe or a terminal holds no lines from before.
    if not path.is_file():
        return
    lines = path.read_text("utf-8").splitlines(keepends=True)
    # A program that is killed, or a machine that loses power, may leave half a line.
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
    """Whether a line is complete."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return line.endswith("\n")


@contextmanager
def labml_run(options: argparse.Namespace) -> Iterator[Track]:
    """Track with one run of labml that all ranks share."""
    from labml import experiment, tracker

    name = [uuid.uuid4().hex]
    dist.broadcast_object_list(name, src=0)
    # On every rank labml prints where it writes, so its output is redirected. labml
    # also records the git commit of the program's folder. That folder would be the
    # library's, so the current folder is passed instead.
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


def finish_writing() -> None:
    """Wait until labml's thread has written its file.

    [The program](ranks.py) ends without a shutdown of the interpreter. A shutdown would
    wait for the thread, so this function does.
    """
    for thread in threading.enumerate():
        if type(thread).__module__.startswith("labml."):
            thread.join()
