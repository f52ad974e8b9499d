r"""# A trace of one step

> Where the time of a step goes, in a file that a browser shows.

`--profile FOLDER` runs PyTorch's profiler around one step of each rank, and writes a
trace for each: `trace-rank0.json`, `trace-rank1.json`. Open it at `chrome://tracing` or in
[Perfetto](https://ui.perfetto.dev). Each thread is a row, and each operation a bar as
long as it took. What the library does with a unit has [a label](labels.py), such as
`gather block1`. The program adds three more:

| label | what happens |
|---|---|
| `forward micro-batch 0` | the model and the loss |
| `backward micro-batch 0` | the backward pass, and the exchanges of the gradients in it |
| `step optimizer` | the optimizer changes the parameters |

In a good trace of stage 3, a `gather` begins well before the `wait for` of the same
unit, and the `wait for` is short.

The step is the third one, or the first if the run has no more than three. The first two
are slower than the others, since memory is allocated and the optimizer's state is made.
The last one runs under [the meter](measure.py).
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

__all__ = ["traced"]
# sidelit: show


@contextmanager
def traced(folder: Path | None, number: int, steps: range) -> Iterator[None]:
    """Trace the block, if this is the step for it.

    :param folder: where the trace goes; `None` if there is to be none
    :param number: the step
    :param steps: the steps of this run, all of them
    """
    if folder is None or number != steps[2 if len(steps) > 3 else 0]:
        yield
        return
    kinds = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(ProfilerActivity.CUDA)
    with profile(activities=kinds) as trace:
        yield
    folder.mkdir(parents=True, exist_ok=True)
    trace.export_chrome_trace(str(folder / f"trace-rank{dist.get_rank()}.json"))
