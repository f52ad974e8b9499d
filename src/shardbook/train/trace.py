r"""# A trace of one step

> `--profile` writes a timeline of one step for each rank, which a browser can show.

`--profile FOLDER` runs PyTorch's profiler around one step of each rank, and writes a
trace for each: `trace-rank0.json`, `trace-rank1.json`. Open it at `chrome://tracing` or in
[Perfetto](https://ui.perfetto.dev). Each thread is a row, and each operation is a bar
whose length is its time. The library labels its own actions [with the name of the
unit](labels.py), such as `gather block1`. The program adds three labels:

| label | what happens |
|---|---|
| `forward micro-batch 0` | the model and the loss |
| `backward micro-batch 0` | the backward pass, and the exchanges of the gradients in it |
| `step optimizer` | the optimizer changes the parameters |

In a good trace of stage 3, a `gather` begins well before the `wait for` of the same
unit, and the `wait for` is short.

The traced step is the third, or the first if the run has at most three steps. The first
two steps are slower than the others, because they allocate memory and create the
optimizer's state. The last step runs under [the meter](measure.py), which slows it
down.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from shardbook.planning.report import beside, named_file

__all__ = ["traced"]


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
