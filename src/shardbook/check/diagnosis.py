r"""# The page of findings

> The page begins with a summary, lists the findings from errors to notes, and ends with
> the bytes.

```
3 steps on 2 ranks: 1 error, 1 warning, 0 notes

error: PyTorch's clipping sees only this rank's part of each gradient, so each rank scales by another factor
  train.py:31
  call shardbook.clip_grad_norm_(model, max_norm)

warning: the model was trained in eval() mode, without dropout and with fixed norms
  train.py:24
  call model.train() before the training loop, and after each evaluation

bytes sent by rank 0 in 2 steps         counted    by formula
blocks.0  gather                         50,688        50,688
```

With `--json FILE` the page is also written as one JSON object, for other programs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from shardbook.check.findings import WEIGHTS, Finding
from shardbook.check.watch_bytes import Row

__all__ = ["Diagnosis"]


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
