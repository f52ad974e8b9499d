"""# The command

> `torchrun … -m shardbook.parallel WAY` runs one of the programs of this part and prints its results.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.distributed as dist

from shardbook.command import Mistake, Parser, complain, rank_and_ranks, was_launched
from shardbook.parallel import programs

WAYS = {
    "tensor": programs.tensor,
    "zero-r": programs.zero_r,
    "pipeline": programs.pipeline,
    "three": programs.three,
}
# The possible numbers of ranks: all cuts must be equal.
RANKS = {
    "tensor": (1, 2, 4),
    "zero-r": (1, 2, 4),
    "pipeline": (1, 2, 3, 4, 5, 6),
    "three": (8,),
}


def main(arguments: list[str] | None = None) -> int:
    """Run one program, and print its results on the first rank.

    :returns: [the exit code](command.py)
    """
    try:
        way = parse(arguments).way
        refuse_count(way)
    except Mistake as mistake:
        return complain("shardbook.parallel", mistake)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    outcome = WAYS[way]()
    if dist.get_rank() == 0:
        report(outcome)
    dist.destroy_process_group()
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        prog="torchrun --standalone --nproc-per-node 2 -m shardbook.parallel",
        description="Train a small GPT split over the ranks, beside the same GPT on one rank.",
    )
    parser.add_argument(
        "way",
        choices=list(WAYS),
        help="tensor, zero-r and pipeline: 2 or 4 ranks; three: 8 ranks",
    )
    return parser.parse_args(arguments)


def refuse_count(way: str) -> None:
    """Refuse a number of ranks into which the small model cannot be cut."""
    launch = f"torchrun --standalone --nproc-per-node {RANKS[way][-1]} -m shardbook.parallel {way}"
    if not was_launched():
        raise Mistake(f"{way} runs on several ranks; start it with {launch}")
    _, count = rank_and_ranks(launch)
    if count not in RANKS[way]:
        wanted = ", ".join(map(str, RANKS[way]))
        raise Mistake(f"{way} cannot run on {count} ranks; start one of {wanted}")


def report(outcome: programs.Outcome) -> None:
    """Print the losses side by side, and the notes of the program."""
    print("step  split    one rank")
    for step, (split, alone) in enumerate(
        zip(outcome.losses, outcome.plain, strict=True)
    ):
        print(f"{step:4}  {split:.5f}  {alone:.5f}")
    whole = programs.count(programs.seeded())
    print(f"{outcome.stored:,} of {whole:,} parameters on this rank")
    for note in outcome.notes:
        print(note)


if __name__ == "__main__":
    sys.exit(main())
