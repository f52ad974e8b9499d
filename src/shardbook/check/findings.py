r"""# Findings

> A finding has a weight, a description, a line of the program, and an advice what to
> write instead.

A finding has one of three weights:

| weight | meaning | example |
|---|---|---|
| error | the trained model is not the intended one | all ranks train on the same batches |
| warning | the code is rarely correct | `p.numel()` of a slice |
| note | a fact about this run that is good to know | two names for one parameter |

Only errors make the command end with exit code 1.

Most faults occur in every step and on every rank. So findings with equal weight, text
and line count as one finding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from shardbook.check.place import Place

__all__ = ["WEIGHTS", "Finding", "Findings", "joined"]

WEIGHTS = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    :param weight: one of `WEIGHTS`
    :param kind: one word for programs that read the page, such as `unused`
    :param what: the description
    :param todo: what to write instead
    :param where: the line of the program, or `None` if no single line is the cause
    """

    weight: str
    kind: str
    what: str
    todo: str
    where: Place | None = None

    @classmethod
    def read(cls, written: dict[str, Any]) -> Finding:
        """Read a finding that another rank has converted by [`write`](#Finding.write)."""
        place = written["where"]
        return cls(**{**written, "where": None if place is None else Place(**place)})

    def write(self) -> dict[str, Any]:
        """Convert the finding to plain data."""
        return asdict(self)


class Findings:
    """The findings of one rank, in the order in which they were made."""

    def __init__(self) -> None:
        # A dictionary is used as an ordered set.
        self.made: dict[Finding, None] = {}

    def add(
        self, weight: str, kind: str, what: str, todo: str, where: Place | None = None
    ) -> None:
        """Add a finding, unless it was added before.

        >>> found = Findings()
        >>> for _ in range(3):
        ...     found.add("error", "no-gradients", "nothing to step with", "call backward()")
        >>> len(found.made)
        1
        """
        self.made[Finding(weight, kind, what, todo, where)] = None

    def has(self, kind: str) -> bool:
        """Whether there is a finding of this kind already."""
        return any(finding.kind == kind for finding in self.made)


def joined(
    of_each_rank: Iterable[Iterable[Finding]],
) -> list[tuple[Finding, list[int]]]:
    """Join the findings of all ranks, errors first, each with the ranks that made it.

    Ranks have different slices, so one line may give a finding about another parameter
    on each rank. Then only the first rank's description is kept.
    """
    made: dict[Finding, list[int]] = {}
    nowhere = Place("", 0)
    for rank, findings in enumerate(of_each_rank):
        known = {(f.kind, f.where): f for f in reversed(made) if f.where is not None}
        for finding in findings:
            same = finding
            if finding not in made:
                same = known.get((finding.kind, finding.where or nowhere), finding)
            ranks = made.setdefault(same, [])
            if rank not in ranks:
                ranks.append(rank)
    # `sorted` is stable, so findings of one weight stay in their order.
    return sorted(made.items(), key=lambda item: WEIGHTS.index(item[0].weight))
