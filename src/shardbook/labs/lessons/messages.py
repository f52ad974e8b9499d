"""What the checks of lab 2 share: a count of the bytes in messages, and ranks that may wait forever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardbook.foundations.ranks import Frame
from shardbook.foundations.torch_private import TorchDispatchMode
from shardbook.labs.lab_ranks import ranks
from shardbook.labs.lessons.returned import called
from shardbook.labs.notebook import NotYet, expect
from shardbook.labs.rank_process import RanksFailed, Stuck, device, who
from shardbook.labs.words import line_of, own, tell

__all__ = [
    "RANKS",
    "Sent",
    "on_ranks",
    "refuse_other_bytes",
]

# Three is the least number of ranks on which the next rank is not the one before.
RANKS = 3
# Two ranks that wait for each other never return, so the reader should not wait long.
SECONDS = 6.0


class Sent(TorchDispatchMode):
    """Counts the bytes that this rank sends in messages while the block runs.

    PyTorch passes each call of a process group through the mode, before it runs.
    `others` are the names of calls that are no messages. The mode also runs `wait` of a
    handle in a frame of Python, since C++ leaves none in the stacks of a rank.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0
        self.others: list[str] = []

    def __enter__(self) -> Sent:
        """Begin to count."""
        handle: Any = dist.Work
        self.wait = in_cpp = handle.wait

        def wait(*args: Any, **kwargs: Any) -> Any:
            return in_cpp(*args, **kwargs)

        handle.wait = wait
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        """Count no longer."""
        super().__exit__(*raised)
        handle: Any = dist.Work
        handle.wait = self.wait

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


def refuse_address(other: int, sends: bool) -> None:
    """Refuse a message whose other end is no other rank."""
    count, rank = dist.get_world_size(), dist.get_rank()
    if 0 <= other < count and other != rank:
        return
    blanks = {"rank": rank, "count": count, "other": other}
    raise NotYet(
        tell("Rank {rank} of {count} sends to rank {other}.", **blanks)
        if sends
        else tell("Rank {rank} of {count} receives from rank {other}.", **blanks),
        tell(
            "The ranks have the numbers 0 to {last}. After the last one comes rank 0 again: "
            "`% ranks`.",
            last=count - 1,
        ),
    )


def refuse_collectives(sent: Sent) -> None:
    """Refuse an answer that lets PyTorch do the work."""
    expect(
        not sent.others,
        tell(
            "The answer calls {name}, which is a collective of PyTorch.",
            name="".join(sent.others[:1]),
        ),
        look=tell("Here everything is made of messages to one other rank."),
    )


def on_ranks(
    name: str, given: Callable[[Tensor], Tensor], argument: Callable[[int], Tensor]
) -> list[tuple[Tensor, int]]:
    """Call an answer on three ranks, for a short time.

    :param argument: what the rank with a number calls the answer with
    :returns: for each rank the result on the CPU, and the bytes that it has sent
    """
    try:
        return ranks(RANKS, called_on_a_rank, name, given, argument, timeout=SECONDS)
    except RanksFailed as error:
        standing = {
            each.rank: each.failure.frames
            for each in error.outcomes
            if isinstance(each.failure, Stuck)
        }
        known = all(map(is_known, standing.values()))
        if known and isinstance(error.outcomes[0].failure, Stuck):
            raise stuck(name, standing) from None
        raise


def called_on_a_rank(
    name: str, given: Callable[[Tensor], Tensor], argument: Callable[[int], Tensor]
) -> tuple[Any, int]:
    """What a rank does for a check."""
    tensor = argument(dist.get_rank()).to(place())
    with Sent() as sent:
        found = called(
            name,
            given,
            tensor,
            look=tell(
                "Receive into a tensor of its own, such as `torch.empty_like(tensor)`. While a "
                "tensor is being sent, nothing may write into it."
            ),
        )
        refuse_collectives(sent)
        # What arrives later does not count.
        found = portable(found)
    return found, sent.nbytes


def stuck(name: str, standing: dict[int, list[Frame]]) -> NotYet:
    """Why the ranks have not returned: one still runs, one has left, or all wait for each other.

    :param standing: the frames of each rank that was ended
    """
    running = [rank for rank, frames in standing.items() if not waits(frames)]
    returned = [rank for rank in range(RANKS) if rank not in standing]
    stands = [own(standing[rank]) for rank in running or standing]
    here = "\n" + "\n".join(
        sorted({line_of(frames[-1]) for frames in stands if frames})
    )
    if running:
        return NotYet(
            tell(
                "{name} was still running after {seconds:g} s on {ranks}, where no communication "
                "was waiting.",
                name=name,
                seconds=SECONDS,
                ranks=who(running),
            ),
            tell("Does each of its loops end? It stands here:") + here,
        )
    if returned:
        return NotYet(
            tell(
                "{name} has returned on {returned}, and after {seconds:g} s it still waits on "
                "{ranks}.",
                name=name,
                returned=who(returned),
                seconds=SECONDS,
                ranks=who([*standing]),
            ),
            tell(
                "Each message needs a rank that sends it and one that receives it. The ranks "
                "stand here:"
            )
            + here,
        )
    return NotYet(
        tell(
            "{name} is a deadlock: after {seconds:g} s the ranks still wait for each other.",
            name=name,
            seconds=SECONDS,
        ),
        tell(
            "Look at the order of send and receive. A rank that waits for its first message "
            "does not start its second one, and another rank may wait for exactly that. The "
            "ranks stand here:"
        )
        + here,
    )


def waits(frames: Sequence[Frame]) -> bool:
    """Whether a rank stood in `wait` of a handle; with NCCL, a copy to the host waits instead."""
    here = {each.function for each in frames[-2:] if each.file == __file__}
    return not here.isdisjoint({"wait", "portable"})


def is_known(frames: Sequence[Frame]) -> bool:
    """Whether the frames say if a rank waited: PyTorch may wait in its own functions, too."""
    library = f"{Path(dist.__file__).parent}/"
    return bool(frames) and not frames[-1].file.startswith(library)


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


def portable(found: Any) -> Any:
    """A result on the CPU, as it is now, so that a process without this rank's GPU can read it."""
    return found.detach().cpu().clone() if isinstance(found, Tensor) else found


def place() -> torch.device:
    """The memory from which this rank's backend can send."""
    return device() if dist.get_backend() == "nccl" else torch.device("cpu")
