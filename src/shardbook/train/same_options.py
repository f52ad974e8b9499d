r"""# The same options on all ranks and in a resumed run

> All ranks compare their options before the first step, and a resumed run compares its
> options with those in the checkpoint.

Every rank is started by its own command line. Suppose the line of one machine says
`--lr 0.01`, and those of the others `--lr 0.001`. Then a few slices of each parameter
move ten times as far as the others. No exchange notices it, and the loss may still
fall. So each rank writes its options into [the store](ranks.py#meeting_place) where the
ranks meet. If two of them differ, all ranks refuse to start, with the same sentence.

A resumed run is compared with its checkpoint, too. Some options may change there:

| option | on another rank | in a resumed run |
|---|---|---|
| `--optimizer`, `--heads`, … give the checkpoint its meaning | the same | the same |
| `--lr`, `--batch`, `--precision`, … decide the next steps | the same | may change, which is printed |
| `--save-every`, `--sample`, … change no step | the same | may change |
| `--json`, `--cache`, … are places of one rank alone | may differ | may change |

The paths of the text and of a pretrained model are like `--save-every`: a run may move
to another disk. The contents are compared as well, by [a short
hash](mapped_text.py#fingerprint), and must be the same in both columns. `--device auto`
and `--backend auto` are compared by what they have chosen.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardbook.command import Mistake, short
from shardbook.foundations.store_rounds import FAREWELL, until
from shardbook.state.run_state import Compared

__all__ = ["RunOptions", "given", "refuse_different"]

# Rank 0 writes most of these files, and each of these folders may lie on a disk of its
# own. `--config` names a file of options, and the options in it are compared.
OF_A_RANK = {"file", "cache", "json", "jsonl", "profile", "memory_snapshot"}
# A checkpoint has the values of one model, one optimizer and one order of the text.
OF_A_CHECKPOINT = {
    *("layers", "width", "heads", "context", "held_out", "seed", "optimizer"),
    *("train", "lora_rank", "lora_targets"),
}
# These change no step of a resumed run, so nothing is printed if they change.
BESIDE_THE_STEPS = {
    *("data", "tokenizer", "model", "device", "backend", "units", "track"),
    *("checkpoints", "save_every", "keep", "save_in_background", "out", "replace"),
    *("evaluate_every", "evaluate_batches", "sample", "prompt"),
}


def given(options: argparse.Namespace) -> dict[str, str]:
    """The options of this rank that must be the same on every rank, as text.

    The contents of files [are among them](text.py#prepare).

    >>> given(argparse.Namespace(lr=0.1, save_every=3, json="figures.json"))
    {'--lr': '0.1', '--save-every': '3'}
    """
    values = {
        flag(name): "left out" if value is None else str(value)
        for name, value in vars(options).items()
        if name not in OF_A_RANK and isinstance(value, PLAIN)
    }
    return values | getattr(options, "content", {})


# A program also stores what it has made from the options, such as a list of files.
PLAIN = (int, float, str, tuple, Path, type(None))


def flag(name: str) -> str:
    """The word of the command line for an option."""
    return "--" + name.replace("_", "-")


def refuse_different(
    store: Any, rank: int, world_size: int, mine: Mapping[str, str]
) -> None:
    """Refuse to start ranks with different options. Collective.

    Rank 0 reads the options of all ranks, and the others read its decision. So the
    number of messages grows with the number of ranks, and not with its square.

    :param store: a part of the store that belongs to these ranks
    :param mine: the options of this rank
    :raises Mistake: on every rank, with the same text
    """
    store.set(f"options of {rank}", json.dumps(mine))
    if rank == 0:
        every = [json.loads(store.get(f"options of {r}")) for r in range(world_size)]
        store.set("difference", difference(every))
    found = store.get("difference").decode()
    if found:
        # The process of rank 0 may keep the store, so no rank ends before all have read.
        store.add("read", 1)
        until(lambda: bool(store.add("read", 0) == world_size), FAREWELL)
        raise Mistake(found)


def difference(every: Sequence[Mapping[str, str]]) -> str:
    """Describe the first option that differs, and name the others; empty if all are equal.

    >>> lr, seed = {"--lr": "0.1", "--seed": "0"}, {"--lr": "0.1", "--seed": "1"}
    >>> difference([lr, seed, lr])
    '--seed differs between the ranks: 0 on rank 0, 1 on rank 1; start every rank with the same options'
    >>> difference([lr, lr])
    ''
    """
    names = dict.fromkeys(name for each in every for name in each)
    values = {name: [each.get(name, "unknown") for each in every] for name in names}
    differ = [name for name in names if len({*values[name]}) > 1]
    if not differ:
        return ""
    first, *others = differ
    also = f" (and {', '.join(others[:8])})" if others else ""
    return (
        f"{first}{also} differs between the ranks: {by_rank(values[first])}; start every "
        "rank with the same options"
    )


def by_rank(values: Sequence[str]) -> str:
    """Say which ranks have which value."""
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(str(rank))
    (value, _), *others = ranks.items()
    told = [f"{short(each)} on rank {listed(who)}" for each, who in others[:8]]
    return f"{short(value)} on rank 0, {', '.join(told)}"


def listed(ranks: Sequence[str]) -> str:
    """The first of some ranks, and how many there are more."""
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return ", ".join(ranks[:8]) + more


class RunOptions(Compared):
    """The options of a run, as [a part of its state](run_state.py#Compared).

    `changes` says which options of a resumed run have another value than before.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.now = given(options)
        self.changes = ""

    def state_dict(self) -> dict[str, str]:
        """The options as text."""
        return self.now

    def compare(self, saved: Mapping[str, str] | None) -> None:
        """Compare the options of a checkpoint with these.

        An option that an older version did not have or did not save is not compared.

        :raises ValueError: naming an option that must be the same
        """
        changed = {
            name: (before, self.now[name])
            for name, before in (saved or {}).items()
            if name in self.now and before != self.now[name]
        }
        # The contents of files have no flag, and must be the same.
        kept = {*map(flag, OF_A_CHECKPOINT), *(n for n in changed if n[:2] != "--")}
        for name, (before, now) in changed.items():
            if name in kept:
                raise ValueError(
                    f"{name} was {short(before)} when the checkpoint was saved, and is "
                    f"{short(now)} now; go on with the same, or name another folder"
                )
        told = [
            f"{name} {short(now)} instead of {short(before)}"
            for name, (before, now) in changed.items()
            if name not in {*map(flag, BESIDE_THE_STEPS)}
        ]
        self.changes = ", with " + ", ".join(told) if told else ""
