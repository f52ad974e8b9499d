"""What the checks of lab 2 share: a count of the bytes in messages, and ranks that may wait forever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from shardbook.foundations.torch_private import TorchDispatchMode
from shardbook.labs.checks import NotYet, expect
from shardbook.labs.lab_ranks import ranks
from shardbook.labs.rank_outcomes import Raised, RanksFailed, Stuck
from shardbook.labs.rank_process import device
from shardbook.labs.reader_lines import own
from shardbook.labs.words import tell

__all__ = [
    "RANKS",
    "Sent",
    "on_ranks",
    "place",
    "portable",
    "refuse_collectives",
    "refuse_other_bytes",
    "refuse_what_is_no_tensor",
]

# Three is the least number of ranks on which the next rank is not the one before.
RANKS = 3
# Two ranks that wait for each other never return, so the reader should not wait long.
SECONDS = 6.0
# A machine that is busy with other programs may take as long to start the ranks.
PATIENCE = 60.0


class Sent(TorchDispatchMode):
    """Counts the bytes that this rank sends in messages while the block runs.

    PyTorch passes each call of a process group through the mode, before it runs.
    `others` are the names of calls that are no messages.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0
        self.others: list[str] = []

    def __torch_dispatch__(
        self, call: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Count one call and run it."""
        namespace, _, name = str(call).partition(".")
        if namespace == "c10d" and name in ("send.default", "recv_.default"):
            tensors, _, other, *_ = args
            refuse_address(other, sends=name.startswith("send"))
            if name.startswith("send"):
                self.nbytes += sum(each.nbytes for each in tensors)
        elif namespace == "c10d":
            self.others.append(name.partition(".")[0].rstrip("_"))
        return call(*args, **(kwargs or {}))


class WrongAddress(Exception):
    """A message to or from a rank that does not exist, for which a rank would wait forever."""


def refuse_address(other: int, sends: bool) -> None:
    """Refuse a message whose other end is no other rank."""
    count, rank = dist.get_world_size(), dist.get_rank()
    if 0 <= other < count and other != rank:
        return
    if sends:
        raise WrongAddress(
            tell(
                "Rank {rank} of {count} sends to rank {other}.",
                rank=rank,
                count=count,
                other=other,
            )
        )
    raise WrongAddress(
        tell(
            "Rank {rank} of {count} receives from rank {other}.",
            rank=rank,
            count=count,
            other=other,
        )
    )


class NotByHand(Exception):
    """A collective of PyTorch where the reader should write one."""


def refuse_collectives(sent: Sent) -> None:
    """Refuse an answer that lets PyTorch do the work."""
    if sent.others:
        raise NotByHand(
            tell(
                "The answer calls {name}, which is a collective of PyTorch.",
                name=sent.others[0],
            )
        )


def on_ranks(name: str, function: Callable[..., Any], given: Any) -> list[Any]:
    """Call a function with the answer on three ranks, for a short time."""
    try:
        return ranks(RANKS, function, given, timeout=SECONDS)
    except RanksFailed as error:
        if has_begun(error):
            tell_failure(name, error, SECONDS)
    try:
        return ranks(RANKS, function, given, timeout=PATIENCE)
    except RanksFailed as error:
        tell_failure(name, error, PATIENCE)


def has_begun(error: RanksFailed) -> bool:
    """Whether the ranks failed in the answer, and not before all of them had started."""
    return all(
        not isinstance(each.failure, Stuck) or own(each.failure.frames)
        for each in error.outcomes
    )


def tell_failure(name: str, error: RanksFailed, seconds: float) -> NoReturn:
    """Turn two failures that are typical here into a sentence, and leave all others as they are."""
    failure = error.outcomes[0].failure
    if isinstance(failure, Raised) and failure.kind == WrongAddress.__name__:
        raise NotYet(
            failure.text,
            tell(
                "The ranks have the numbers 0 to {last}. After the last one comes rank 0 again: "
                "`% ranks`.",
                last=RANKS - 1,
            ),
        )
    if isinstance(failure, Raised) and failure.kind == NotByHand.__name__:
        raise NotYet(
            failure.text,
            tell("Here everything is made of messages to one other rank."),
        )
    if isinstance(failure, Stuck):
        lines = {
            str(own(each.failure.frames)[-1])
            for each in error.outcomes
            if isinstance(each.failure, Stuck) and own(each.failure.frames)
        }
        raise NotYet(
            tell(
                "{name} is a deadlock: after {seconds:g} s the ranks still wait for each other.",
                name=name,
                seconds=seconds,
            ),
            tell(
                "Look at the order of send and receive. A rank that waits for its first message "
                "does not start its second one, and another rank may wait for exactly that. The "
                "ranks stand here:"
            )
            + "\n"
            + "\n".join(sorted(lines)),
        )
    raise error


def refuse_other_bytes(rank: int, sent: int, wanted: int) -> None:
    """Refuse an answer that sends more than it has to."""
    expect(
        sent == wanted,
        tell(
            "The result is right, but rank {rank} sent {sent} bytes, and {wanted} are enough.",
            rank=rank,
            sent=sent,
            wanted=wanted,
        ),
        look=tell(
            "Is there a hop too many, or does a hop carry more than the one piece?"
        ),
    )


def refuse_what_is_no_tensor(name: str, found: object) -> None:
    """A function may return nothing, or print its result instead."""
    expect(
        isinstance(found, Tensor),
        tell("{name} returned {found!r}, which is no tensor.", name=name, found=found),
        look=tell("Does the function end with `return`?"),
    )


def portable(found: Any) -> Any:
    """A result on the CPU, as it is now, so that a process without this rank's GPU can read it."""
    return found.detach().cpu().clone() if isinstance(found, Tensor) else found


def place() -> torch.device:
    """The memory from which this rank's backend can send."""
    return device() if dist.get_backend() == "nccl" else torch.device("cpu")
