r"""# The next exchange of a rank

> Each exchange has a name that ranks compare, and that an error prints.

Before an exchange the ranks compare what each of them [is about to
start](exchange_order.py). Suppose rank 0 is about to gather `blocks.3` as the fourth
exchange of its forward pass. Rank 1 is about to gather `blocks.4`, because it has
skipped a block. The two steps differ, and the error prints both.
"""

from __future__ import annotations

import json
from typing import NamedTuple

__all__ = ["Step", "Wish", "rule"]


class Step(NamedTuple):
    """An exchange or the end of a pass.

    >>> print(Step("forward", 3, "gather", "blocks.3", "blocks.3.weight"))
    gather blocks.3 (parameter blocks.3.weight) as exchange 4 of its forward pass
    >>> print(Step("backward", 8, "end", "", ""))
    end its backward pass after 8 exchanges
    """

    kind: str
    number: int
    action: str
    unit: str
    parameter: str

    def __str__(self) -> str:
        if self.action == "leave":
            return "end its program or to drop the model"
        if self.action == "end":
            return f"end its {self.kind} pass after {self.number} exchanges"
        return (
            f"{self.action} {self.unit} (parameter {self.parameter}) "
            f"as exchange {self.number + 1} of its {self.kind} pass"
        )


class Wish(NamedTuple):
    """The record that a rank writes into the store when it opens a round.

    `issued`, the number of exchanges that the rank has started, distinguishes equal
    exchanges of different training steps. `known` is the exchange that followed in the
    known order. Ranks that keep to that order start it, and do not come to the round.
    """

    rank: int
    issued: int
    step: Step
    known: Step | None

    @staticmethod
    def read(text: bytes) -> Wish:
        """The record that a rank has written."""
        rank, issued, step, known = json.loads(text)
        return Wish(rank, issued, Step(*step), Step(*known) if known else None)

    def __str__(self) -> str:
        return (
            f"rank {self.rank}, after {self.issued} exchanges, is about to {self.step}"
        )


RULE = "every rank has to run the same units in the same order, with the same requires_grad"
UNEVEN = "give every rank as many batches, or loop over shardbook.join(batches)"


# sidelit: depth The advice in an error.


def rule(*steps: Step | None) -> str:
    """The advice for ranks that do not come to the same step.

    If one of them begins another kind of pass, its batches may have run out.
    """
    begun = [step for step in steps if step is not None and step.number == 0]
    if any(step.action == "leave" for step in begun):
        return UNEVEN
    # A kind that mentions [newly frozen parameters](freezing.py) is no other kind.
    kinds = {step.kind.rpartition(") ")[2] for step in begun}
    return f"{RULE}; {UNEVEN}" if len(kinds) > 1 else RULE
