r"""# Running a script under watch

> The script runs unchanged and is ended after a few steps, and the findings are printed
> even if the script fails.

```sh
python -m shardbook.check --ranks 2 --steps 3 train.py --lr 1e-3
```

You do not change `train.py`. The script runs as Python would run it: as `__main__`, with
its own arguments, and with its folder first on the path. While it runs, [the
watches](watches.py) check what it does. At the end, [the page of
findings](#module/the-page-of-findings) is printed. With `--races` the page also reports
[races between streams](#module/checking-for-races-between-streams) that the script
would have on a GPU. The page depends on how the script ends:

| the script | the page |
|---|---|
| takes its steps | is complete |
| ends earlier | is complete, with fewer steps |
| raises an error | is printed after the traceback, with the findings until then |
| leaves [the common order](exchange_order.py) | names the line at which the ranks disagreed |
| never calls `shard` | is one sentence, because there was nothing to check |

An error of the script is itself a finding, and it is listed with the errors.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn

from shardbook.check.race_recorder import Recorder
from shardbook.check.race_replay import races
from shardbook.check.watch_data import Data, Enough, Steps
from shardbook.check.watch_gradients import Gradients, Parameters
from shardbook.check.watch_memory import Bytes, Memory, Row
from shardbook.check.watch_slices import Slices
from shardbook.check.watches import (
    WEIGHTS,
    Finding,
    Place,
    Run,
    Watch,
    Watched,
    is_users,
    joined,
)
from shardbook.command import Mistake
from shardbook.foundations.agreement import Disagreement

__all__ = ["Diagnosis", "Races", "check"]


def check(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    steps: int = 3,
    races: bool = False,
) -> Diagnosis | None:
    """Run a script on this rank, and check its steps.

    Collective: all ranks call this function with the same arguments.

    :param script: a Python file that calls `shard` and trains
    :param arguments: the arguments of the script
    :param steps: after how many optimizer steps to end the script
    :param races: whether to look for [races between
        streams](checked_run.py#module/checking-for-races-between-streams), too
    :returns: on rank 0 the findings of all ranks, on the others `None`
    :raises Mistake: if the script has ended without an error and never sharded a model
    """
    run = Run(steps)
    counted, stored = Bytes(run), Memory(run)
    watches: list[Watch] = [
        counted,
        stored,
        Parameters(run),
        Data(run),
        Gradients(run),
        Slices(run),
    ]
    # `Steps` comes last, because it ends the script. All other watches have then seen
    # the last step.
    watches = [*watches, *([Races(run)] if races else []), Steps(run)]
    failed = False
    try:
        with Watched(run, watches):
            run_script(Path(script), arguments)
    except Enough:
        pass
    except SystemExit as end:
        failed = end.code not in (None, 0)
        if failed:
            note_error(run, end)
    except Exception as error:
        failed = True
        note_error(run, error)
    finally:
        counted.counting.close()
    if run.ranks is None:
        return alone(run, failed)
    mine = {
        "facts": None if failed else [watch.facts() for watch in watches],
        "findings": [finding.write() for finding in run.found.made],
    }
    notes = run.ranks.ended(mine)
    if run.ranks.rank:
        return None
    made = diagnose(run, watches, notes)
    if failed:
        return made
    return replace(made, sent=counted.rows(), stored=stored.rows)


def diagnose(run: Run, watches: Sequence[Watch], notes: list[Any]) -> Diagnosis:
    """Join the findings of all ranks on rank 0."""
    for rank, note in enumerate(notes):
        if note is None:
            run.found.add(
                "error",
                "silent",
                f"rank {rank} has not come to the end of the run, or waits for the others",
                "look at its output, and at what the other ranks did not do",
            )
    facts = [note and note["facts"] for note in notes]
    whole = all(fact is not None for fact in facts)
    for number, watch in enumerate(watches if whole else ()):
        watch.judge([fact[number] for fact in facts])
    others = [
        [Finding.read(each) for each in (note or {"findings": ()})["findings"]]
        for note in notes
    ]
    findings = joined([[*run.found.made], *others[1:]])
    return Diagnosis(run.taken_by_all, len(notes), findings)


def run_script(script: Path, arguments: Sequence[str]) -> None:
    """Run a script as `python script.py ARGUMENTS` would."""
    argv, path = sys.argv, [*sys.path]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path


# sidelit: depth Scripts that raise, and scripts that never shard a model.


def note_error(run: Run, error: BaseException) -> None:
    """Print the traceback of an error, beginning at the script, and add a finding.

    An error that all ranks raise is printed by rank 0 only.
    """
    trace = error.__traceback__
    while trace is not None and not is_users(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    of_all = (
        isinstance(error, Disagreement) and run.ranks is not None and run.ranks.rank
    )
    if not of_all:
        traceback.print_exception(type(error), error, trace or error.__traceback__)
    said = str(error).strip().partition("\n")[0]
    kind = "order" if isinstance(error, Disagreement) else "raised"
    todo = (
        "let all ranks do the same, in the same order"
        if kind == "order"
        else "see the traceback above"
    )
    what = f"{type(error).__name__}: {said}" if kind == "raised" else said
    run.found.add("error", kind, what, todo, last_line(error.__traceback__))


def last_line(trace: TracebackType | None) -> Place | None:
    """The innermost line of the user's program in a traceback, or `None`."""
    lines = [
        Place(frame.f_code.co_filename, number)
        for frame, number in traceback.walk_tb(trace)
        if is_users(frame.f_code.co_filename)
    ]
    return lines[-1] if lines else None


def alone(run: Run, failed: bool) -> Diagnosis | None:
    """Make the page of a script that never sharded a model, so that ranks had nothing to compare.

    :raises Mistake: if the script itself has not failed
    """
    if not failed:
        raise Mistake(
            "the script has ended and never called shardbook.shard, so there was nothing to check"
        )
    return Diagnosis(0, 1, joined([[*run.found.made]]))


# sidelit: core


# ## The page of findings
#
# > The page begins with a summary, lists the findings from errors to notes, and ends with
# > the bytes.
#
# ```
# 3 steps on 2 ranks: 1 error, 1 warning, 0 notes
#
# error: PyTorch's clipping sees only this rank's part of each gradient, so each rank scales by another factor
#   train.py:31
#   call shardbook.clip_grad_norm_(model, max_norm)
#
# warning: the model was trained in eval() mode, without dropout and with fixed norms
#   train.py:24
#   call model.train() before the training loop, and after each evaluation
#
# bytes sent by rank 0 in 2 steps         counted    by formula
# blocks.0  gather                         50,688        50,688
# ```
#
# With `--json FILE` the page is also written as one JSON object, for other programs.


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The content of the page that rank 0 prints.

    :param steps: the number of steps that the script has taken
    :param ranks: the number of ranks
    :param findings: the findings, errors first, each with the ranks that made it
    :param sent: the bytes that rank 0 has sent
    :param stored: the bytes that rank 0 stores after the last step
    """

    steps: int
    ranks: int
    findings: list[tuple[Finding, list[int]]]
    sent: list[Row] = field(default_factory=list)
    stored: list[Row] = field(default_factory=list)

    @property
    def count(self) -> Counter[str]:
        """The number of findings of each weight."""
        return Counter(finding.weight for finding, _ in self.findings)

    @property
    def code(self) -> int:
        """The exit code: 1 if a finding is an error."""
        return int(self.count["error"] > 0)

    def page(self) -> str:
        """The page as text."""
        lines = [self.verdict()]
        for finding, ranks in self.findings:
            lines += ["", f"{finding.weight}: {finding.what}"]
            if finding.where is not None:
                some = self.ranks > len(ranks) > 0 and finding.kind not in OF_ALL
                who = f" (rank {', '.join(map(str, ranks))})" if some else ""
                lines.append(f"  {finding.where}{who}")
            lines.append(f"  {finding.todo}")
        steps = counted(self.steps - 1, "step")
        lines += table(f"bytes sent by rank 0 in {steps}", self.sent)
        lines += table("bytes that rank 0 stores after the last step", self.stored)
        return "\n".join(lines)

    def verdict(self) -> str:
        """The first line.

        >>> print(Diagnosis(3, 2, []).verdict())
        3 steps on 2 ranks: nothing found
        """
        head = f"{counted(self.steps, 'step')} on {counted(self.ranks, 'rank')}"
        if not self.findings:
            return f"{head}: nothing found"
        return f"{head}: {', '.join(counted(self.count[weight], weight) for weight in WEIGHTS)}"

    def data(self) -> dict[str, Any]:
        """The page as plain data."""
        return {
            "steps": self.steps,
            "ranks": self.ranks,
            "findings": [
                {
                    **finding.write(),
                    "where": finding.where and str(finding.where),
                    "ranks": ranks,
                }
                for finding, ranks in self.findings
            ],
            "sent": [asdict(row) for row in self.sent],
            "stored": [asdict(row) for row in self.stored],
        }


# The largest number of rows in a table of bytes.
MOST = 24
# Findings of these kinds come from a comparison, which rank 0 makes for all ranks.
OF_ALL = {
    *("alone", "buffers", "first-values", "foreign-optimizer", "no-gradients", "race"),
    *("same-data", "same-masks", "untrained", "unused", "zero-gradients"),
}


def table(head: str, rows: list[Row]) -> list[str]:
    """Format bytes as a table. If there are too many units, those that differ from the formula are kept."""
    if not rows:
        return []
    by_weight = sorted(rows, key=lambda row: row.planned in (None, row.counted))
    shown = rows if len(rows) <= MOST else by_weight[:MOST]
    width = max(len(head), *(len(f"{row.unit}  {row.kind}") for row in shown)) + 2
    lines = ["", f"{head:<{width}}{'counted':>14}{'by formula':>14}"]
    lines += [line(row, width) for row in shown]
    left = [row for row in rows if row not in shown]
    if left:
        plans = [row.planned for row in left]
        plan = None if None in plans else sum(each or 0 for each in plans)
        rest = Row(f"{len(left)} more", "", sum(row.counted for row in left), plan)
        lines.append(line(rest, width))
    return lines


def line(row: Row, width: int) -> str:
    """Format one row of a table of bytes."""
    plan = "" if row.planned is None else f"{row.planned:,}"
    return f"{f'{row.unit}  {row.kind}':<{width}}{row.counted:>14,}{plan:>14}"


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "step"), counted(0, "error")
    ('1 step', '0 errors')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


# ## Checking for races between streams
#
# > `--races` records a CPU run as if on a GPU with streams, and reports accesses to
# > memory without an order.
#
# A program with its own streams may have a race on a GPU and run correctly on a CPU. So
# may a hook that uses a tensor after the library has freed it. With `--races` [a
# recorder](race_recorder.py) records what the script would do on a GPU, and at the end
# [the replay](race_replay.py) searches the recording for races. Each race is reported
# with the line of the program that made the later access.
#
# The recorder inspects each operation, so the script takes several times as long. It also
# pretends that the collectives are NCCL's. With NCCL a rank cannot read the store while
# it waits, so a rank that leaves the common order is detected later than without
# `--races`. On a real GPU no model is needed: PyTorch's own checker,
# `TORCH_CUDA_SANITIZER=1`, watches the real streams.


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
