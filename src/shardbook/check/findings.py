r"""# Findings

> What a check has found: how bad it is, what it is, where in the program, and what to do.

A finding has one of three weights. An *error* makes training wrong: the model that
comes out is another one than the program means. A *warning* is code that seldom means
what it does, such as `p.numel()` of a slice. A *note* is true of this run and good to
know, such as two names of one parameter. Only errors make the command end with exit code 1.

A program meets most faults in every step, and on every rank. A finding is therefore one
finding however often it is made: what is equal in weight, text and place counts once.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from shardbook.check.place import Place

__all__ = ["WEIGHTS", "Finding", "Findings", "joined"]
# sidelit: show

WEIGHTS = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    :param weight: one of `WEIGHTS`
    :param kind: one word for programs that read the page, such as `unused`
    :param what: what is so
    :param todo: what to write instead
    :param where: the line of the program, or `None` if no single line does it
    """

    weight: str
    kind: str
    what: str
    todo: str
    where: Place | None = None

    @classmethod
    def read(cls, written: dict[str, Any]) -> Finding:
        """The finding that another rank has written down by [`write`](#Finding.write)."""
        place = written["where"]
        return cls(**{**written, "where": None if place is None else Place(**place)})

    def write(self) -> dict[str, Any]:
        """The finding as plain data."""
        return asdict(self)


class Findings:
    """What the checks of one rank have found, in the order of its discovery."""

    def __init__(self) -> None:
        # A dictionary, because its order is kept.
        self.made: dict[Finding, None] = {}

    def add(
        self, weight: str, kind: str, what: str, todo: str, where: Place | None = None
    ) -> None:
        """Note a finding, unless it is known.

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
    """The findings of all ranks, the heaviest first, each with the ranks that made it.

    One line may be found for another parameter on each rank, since each has other
    slices. Then the words of the first rank count.
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
    # `sorted` keeps the order of equals, which is that of discovery.
    return sorted(made.items(), key=lambda item: WEIGHTS.index(item[0].weight))
