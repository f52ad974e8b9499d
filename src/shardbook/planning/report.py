r"""# The report of a run

> A line shows the progress of the training, and a table at the end compares counts with predictions.

Only rank 0 prints. The ranks exchange their counts after the ledger is closed, so the
report adds nothing to the bytes that it reports.

:figure: forecast_and_count
"""

from __future__ import annotations

import argparse
import json
import math
import os
import stat
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist

from shardbook.command import Failure, Mistake
from shardbook.models.gpt import parameters
from shardbook.planning.forecast import Forecast, Setup, forecast

__all__ = [
    "Counted",
    "Progress",
    "as_json",
    "beside",
    "named_file",
    "report",
    "write",
    "write_figures",
]


@dataclass(slots=True)
class Counted:
    """The counts of one rank in a run."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    unseen: float = math.nan
    sent: dict[str, int] = field(default_factory=dict)
    steady: int = 0
    peak: int = 0

    def add(self, loss: float, seconds: float, sent: dict[str, int]) -> None:
        """Count a step.

        :param sent: the bytes that the step sent, for each collective
        """
        self.losses.append(loss)
        self.seconds.append(seconds)
        for collective, nbytes in sent.items():
            self.sent[collective] = self.sent.get(collective, 0) + nbytes


def report(setup: Setup, counted: Counted, options: argparse.Namespace) -> None:
    """Gather the ranks' figures; rank 0 prints the table and writes the JSON file."""
    ranks: list[Any] = [None] * setup.world_size
    dist.all_gather_object(ranks, counted)
    if dist.get_rank() != 0:
        return
    forecasts = [forecast(setup, rank) for rank in range(setup.world_size)]
    figures = summary(setup, ranks, forecasts, options)
    print(table(figures))
    if options.json is not None:
        with beside("--json"):
            write(options.json, as_json(figures))


def summary(
    setup: Setup,
    ranks: list[Counted],
    forecasts: list[Forecast],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """All figures under flat names.

    `losses` holds the mean over the ranks for each step, and `techniques` the names of
    those in use. `sent`, `steady`, `peak` and their forecasts have an entry for each
    rank. `sent_by_collective`, `steady_terms` and the time are those of rank 0.
    """
    steps = len(ranks[0].losses)
    # The first step creates buffers and state, and the last one runs under the meter.
    # In a run of two steps there is no other, so the first one is timed.
    timed = ranks[0].seconds[1:-1] or ranks[0].seconds[:1]
    tokens = setup.world_size * setup.batch * setup.accumulate * setup.config.context
    losses = [
        statistics.fmean(of_step)
        for of_step in zip(*(rank.losses for rank in ranks), strict=True)
    ]
    worst = max(forecasts, key=lambda one: one.peak or 0)
    return {
        "ranks": setup.world_size,
        "stage": setup.stage,
        "techniques": [
            *[options.precision] * (options.precision != "fp32"),
            *[f"{options.checkpoint} checkpoints"] * (options.checkpoint != "none"),
            *["offload"] * options.offload,
            *[f"compiled by {options.compile}"] * (options.compile != "none"),
            *[f"clipped to {options.clip}"] * setup.clipped,
            *[f"{setup.copies} copies of {setup.sharing} ranks"] * (setup.copies > 1),
        ],
        "steps": steps,
        "parameters": parameters(setup.config),
        **asdict(setup.config),
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "loss_unseen": statistics.fmean(rank.unseen for rank in ranks),
        "loss_of_not_knowing": math.log(setup.config.vocabulary),
        "losses": losses,
        "tokens_per_second": tokens * len(timed) / sum(timed),
        "sent_by_collective": ranks[0].sent,
        "sent": [sum(rank.sent.values()) for rank in ranks],
        "sent_formula": sent_formula(setup),
        "sent_forecast": [steps * one.sent for one in forecasts],
        "steady": [rank.steady for rank in ranks],
        "steady_forecast": [sum(one.steady.values()) for one in forecasts],
        "steady_terms": forecasts[0].steady,
        "peak": [rank.peak for rank in ranks],
        "peak_forecast": [one.peak for one in forecasts],
        "peak_moment": worst.peak_moment,
    }


def sent_formula(setup: Setup) -> str:
    """The formula for the bytes of a step, with N ranks to a copy and A copies."""
    if setup.policy.param_dtype is not None:
        return "each vector in its own format"
    exchanges = 12 if setup.stage == 3 else 8
    everyone = "N-1" if setup.copies == 1 else "AN-1"
    norm = f" + 8 ({everyone if setup.watched else 'N-1'})" if setup.norm_from else ""
    if setup.copies == 1:
        return f"({exchanges} ΣP + 8 n) (N-1)/N{norm}"
    means, compared = "8 ΣP/N (A-1)/A", "8 n (AN-1)/(AN)"
    return f"{exchanges} ΣP (N-1)/N + {means} + {compared}{norm}"


def table(figures: dict[str, Any]) -> str:
    """The table as text, with the largest figure of any rank; the file has them all."""
    steps = figures["steps"]
    rows = [
        ("", "counted", "by formula", ""),
        (
            "loss, first step",
            f"{figures['loss_first']:.3f}",
            f"{figures['loss_of_not_knowing']:.3f}",
            "ln V",
        ),
        ("loss, last step", f"{figures['loss_last']:.3f}", "", ""),
        ("loss, unseen text", f"{figures['loss_unseen']:.3f}", "", ""),
        ("tokens/s", f"{figures['tokens_per_second']:,.0f}", "", ""),
        (
            "bytes sent per rank and step",
            *both(figures, "sent", steps),
            figures["sent_formula"],
        ),
        (
            "steady bytes per rank",
            *both(figures, "steady"),
            " + ".join(figures["steady_terms"]),
        ),
        (
            "peak bytes per rank",
            *both(figures, "peak"),
            f"in: {figures['peak_moment']}" if figures["peak_moment"] else "",
        ),
    ]
    heading = (
        f"GPT of {figures['layers']} x {figures['width']}, {figures['parameters']:,} parameters, "
        f"{figures['ranks']} rank{'s' * (figures['ranks'] > 1)}, stage {figures['stage']}, "
        f"{', '.join([*figures['techniques'], f'{steps} steps'])}"
    )
    lines = [
        f"{name:<30}{left:>14}{right:>14}  {note}".rstrip()
        for name, left, right, note in rows
    ]
    return "\n".join(["", heading, *lines])


def both(figures: dict[str, Any], name: str, steps: int = 1) -> tuple[str, str]:
    """A counted figure and its forecast, which is empty if there is none.

    Each is the largest of any rank, since a run needs memory for the rank that stores
    the most.
    """
    counted = f"{max(figures[name]) / steps:,.0f}"
    forecasts = [one for one in figures[f"{name}_forecast"] if one is not None]
    return counted, f"{max(forecasts) / steps:,.0f}" if forecasts else ""


class Progress:
    """One line on the terminal, redrawn after each step, or about ten lines in a log file.

    The line shows this rank's own loss. A mean over the ranks would cost an exchange in
    each step.

    :param steps: the number of the last step, counted from 1
    :param first: the number of steps before, in a run that continues another
    :param enabled: whether this rank shows anything
    """

    def __init__(self, steps: int, *, first: int = 0, enabled: bool) -> None:
        self.steps, self.first = steps, first
        self.enabled = enabled
        self.bar = terminal_bar(steps, first) if enabled else None
        self.started = time.perf_counter()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.close()

    def show(self, number: int, loss: float) -> None:
        """Show that step `number` is done."""
        done = number + 1
        if self.bar is not None:
            self.bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            self.bar.update()
        elif self.enabled and done * 10 // self.steps > number * 10 // self.steps:
            seconds = (time.perf_counter() - self.started) / (done - self.first)
            left = seconds * (self.steps - done)
            self.say(f"step {done}/{self.steps}  loss {loss:.3f}  {left:.0f} s left")

    def say(self, line: str) -> None:
        """Print a line that stays."""
        if self.bar is not None:
            self.bar.write(line, file=sys.stderr)
        elif self.enabled:
            print(line, file=sys.stderr, flush=True)


def terminal_bar(steps: int, first: int) -> Any:
    """The line of [tqdm](https://tqdm.github.io) on a terminal.

    `None` in a pipe, which cannot redraw a line, and without tqdm.
    """
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return None
    # Some terminals, such as that of a container, do not report their size.
    known = os.get_terminal_size(sys.stderr.fileno()).columns > 0
    size = {"dynamic_ncols": True} if known else {"ncols": 80, "nrows": 20}
    return tqdm(total=steps, initial=first, unit="step", **size)


# sidelit: depth What lies at a name already, and a disk that is full or read-only.


def write(path: Path, text: str, option: str = "--json") -> None:
    """Write a file so that it exists whole or not at all.

    :raises Mistake: as [`named_file`](#named_file) does
    :raises OSError: if it cannot be written; what was there before stays
    """
    target = named_file(path, option)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def write_figures(path: Path, figures: Any) -> None:
    """Write the JSON file that `--json` names.

    :raises Failure: if it cannot be written
    """
    try:
        write(path, as_json(figures))
    except OSError as error:
        raise Failure(f"--json {path} cannot be written: {error.strerror}") from error


def as_json(figures: Any) -> str:
    """The text of a file with figures."""
    return json.dumps(figures, indent=1) + "\n"


def named_file(path: Path, option: str = "--json") -> Path:
    """The file that a user's name stands for, which need not exist. Links are followed.

    A run may write a regular file, and nothing else. Suppose the name of a pipe were
    replaced by a file: its reader would wait forever. With the rights of root even a
    device could be replaced.

    :param option: the option with which the user has named it
    :raises Mistake: if something else lies there
    """
    target = Path(os.path.realpath(path))
    try:
        found = target.lstat()
    except OSError:
        # Nothing is there yet. If nothing can be there, opening the file tells why.
        return target
    for is_such, what in OTHER_KINDS.items():
        if is_such(found.st_mode):
            raise Mistake(f"{option} {path} is {what}; name a file")
    for stream in (1, 2):
        with suppress(OSError):
            if os.path.samestat(found, os.fstat(stream)):
                raise Mistake(
                    f"{option} {path} is the file that this command prints into; "
                    "name another one"
                )
    return target


OTHER_KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


@contextmanager
def beside(what: str, *, everywhere: bool = False) -> Iterator[list[str]]:
    """A block in which rank 0 writes something beside the run, which does not need it.

    If it cannot be written, rank 0 says so in one line, and the run goes on.

    :param what: the option that wants it to be written
    :param everywhere: whether all ranks write. Then the end of the block is collective,
        and rank 0 also says what another rank could not write.
    :returns: a list that has the sentence after the block, on each rank that was in it,
        if something could not be written
    :raises Mistake: if rank 0 alone writes, and [may not](#named_file)
    """
    own: str | None = None
    failed: list[str] = []
    try:
        yield failed
    except Mistake as mistake:
        if not everywhere:
            raise
        own = str(mistake)
    except OSError as error:
        own = f"{what}: {error}"
    said = [own]
    if everywhere:
        said = [None] * dist.get_world_size()
        dist.all_gather_object(said, own)
    for rank, reason in enumerate(said):
        if reason is not None:
            failed.append(f"rank {rank}: {reason}" if rank else reason)
    if failed and (not everywhere or dist.get_rank() == 0):
        print(f"{failed[0]}; the run goes on without it", file=sys.stderr)
