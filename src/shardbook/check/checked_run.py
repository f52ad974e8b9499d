r"""# Running a script under watch

> The script runs unchanged and is ended after a few steps, and the findings are printed
> even if the script fails.

```sh
python -m shardbook.check --ranks 2 --steps 3 train.py --lr 1e-3
```

You do not change `train.py`. The script runs as Python would run it: as `__main__`, with
its own arguments, and with its folder first on the path. While it runs, [the
watches](watches.py) check what it does. The page depends on how the script ends:

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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from shardbook.check.diagnosis import Diagnosis
from shardbook.check.findings import Finding, joined
from shardbook.check.place import Place, is_users
from shardbook.check.watch_bytes import Bytes
from shardbook.check.watch_data import Data
from shardbook.check.watch_gradients import Gradients
from shardbook.check.watch_memory import Memory
from shardbook.check.watch_parameters import Parameters
from shardbook.check.watch_races import Races
from shardbook.check.watch_slices import Slices
from shardbook.check.watch_steps import Enough, Steps
from shardbook.check.watches import Run, Watch, Watched
from shardbook.command import Mistake
from shardbook.foundations.agreement import Disagreement

__all__ = ["check"]


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
    :param races: whether to look for [races between streams](watch_races.py), too
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
