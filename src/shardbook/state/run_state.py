r"""# The state of a run

> A resumed run needs everything that its next step depends on: parameters, optimizer
> state, random states and counters.

A run with dropout is killed after step 100 and started again. If only its parameters
are restored, AdamW begins with empty moments, dropout draws other masks, and the reader
starts again at the beginning of the text. A resumed run takes the same step 101 only if
all of these were saved:

| state | on which rank | stored as |
|---|---|---|
| parameters, optimizer state | each rank has a part | tensors of the plain model, [in boxes](sharded.py) |
| buffers | one for each rank | [rank 0's by its usual name](rank_state.py), others by rank |
| random number generators | one for each rank | bytes, by rank |
| learning rate, loss scale, position in the data | the same on all ranks | [JSON](plain_data.py) |

Any number of ranks can read the first row. The second and third rows belong to the
number of ranks that saved them. On another number, each rank takes rank 0's buffers,
and keeps the generators that it has.

Frozen parameters are saved, too, unless you pass `frozen=False`. A run that fine-tunes
a few parameters has the frozen ones from the folder of the pretrained model, so there
is no need to write them in each checkpoint.

Pass other objects with `state_dict` and `load_state_dict`, such as a schedule or [a
scaler](sharded_scaler.py), as keyword arguments.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from shardbook.foundations.agreement import Disagreement
from shardbook.foundations.collectives import world
from shardbook.foundations.torch_private import as_plain
from shardbook.state import rank_state
from shardbook.state.checkpoint_index import Damaged, reading, reason, schema
from shardbook.state.folder_names import refuse_extra_state
from shardbook.state.optimizer_entries import (
    groups_from,
    groups_of,
    settings_of,
    wanted_state,
    with_rest,
)
from shardbook.state.plain_data import plain, restored
from shardbook.state.sharded import read, write
from shardbook.state.sharded_files import Reader
from shardbook.state.stored import (
    MODEL,
    Stretch,
    stretches,
    stretches_of_state,
)
from shardbook.state.together import on_each, on_first
from shardbook.training.optimizer_state import groups_as_text
from shardbook.zero.conductor import conductor_of
from shardbook.zero.state_dict import refuse_in_block

__all__ = [
    "Compared",
    "Stateful",
    "come_together",
    "copied",
    "load_run",
    "save_run",
    "state_of",
]


class Compared(ABC):
    """State that a run does not change, but that has to fit its checkpoint.

    An object of this class is passed like the other objects with a state. `compare` is
    called before any value is loaded.
    """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What is saved."""

    @abstractmethod
    def compare(self, saved: Any) -> None:
        """Compare what was saved with what is now.

        :param saved: `None` for a checkpoint that an older version has saved
        :raises ValueError: on every rank, if this run cannot go on from there
        """

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Nothing, because it was compared already."""
        return


class Stateful(Protocol):
    """An object whose state can be saved and restored."""

    def state_dict(self) -> dict[str, Any]:
        """The state of the object."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Restore the state."""


def save_run(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    **others: Stateful,
) -> None:
    """Write everything that the next step depends on. Collective.

    :param folder: an empty folder
    :param model: a sharded model
    :param optimizer: the optimizer of the model's parameters
    :param others: other objects with a state that is the same on every rank
    :raises ValueError: if a state is more than [data](plain_data.py), or a module has
        extra state
    :raises RuntimeError: if gradients of a micro-batch were not exchanged yet, because
        they would be lost
    :raises Disagreement: if another rank does something else
    """
    write(folder, *state_of(model, optimizer, True, **others))


def state_of(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    frozen: bool = True,
    what: str = "the run",
    /,
    **others: Stateful,
) -> tuple[list[Stretch], dict[str, Any]]:
    """Collect everything that the next step depends on, without a copy. Collective.

    :param frozen: whether to include frozen parameters
    :param what: describes what is saved and how, the same on every rank
    :returns: the stretches of this rank, and settings that are not tensors
    :raises ValueError: as `save_run` does
    """
    come_together(model, "save", contents(what, optimizer, frozen, others))
    refuse_waiting(model)
    instead = "pass an object with that state by a name of its own"
    refuse_extra_state(model, "a checkpoint", instead)
    stored = [*stretches(model, frozen=frozen), *rank_state.generators(model)]
    stored += [copy for _, copy in rank_state.buffers(model, mine=True)]
    text: dict[str, Any] = {"ranks": world(None)[1], "optimizer": None, "others": {}}
    settings: dict[str, Any] = {}
    if optimizer is not None:
        # One rank alone has the state of a parameter that is not cut, and all ranks
        # raise its error.
        tensors: list[Stretch] = []
        found = on_each(partial(collect, tensors, model, optimizer))
        refuse_other_groups([groups for _, groups in found])
        stored += tensors
        text["optimizer"] = plain(groups_of(model, optimizer), "the optimizer")
        text["entries"] = {k: rest for each, _ in found for k, rest in each.items()}
        text["rule"] = type(optimizer).__name__
        settings = settings_of(model, optimizer)
    for name, other in others.items():
        text["others"][name] = plain(other.state_dict(), name)
    if world(None)[0] == 0:
        stored.append(rank_state.blob(TEXT, rank_state.as_bytes(json.dumps(text))))
    return stored, settings


def collect(
    tensors: list[Stretch], model: nn.Module, optimizer: Optimizer
) -> tuple[dict[str, dict[str, Any]], str]:
    """Collect the stretches of an optimizer's state.

    :returns: what is no tensor, and the optimizer's groups as text
    """
    found, rest = stretches_of_state(model, optimizer)
    tensors += found
    return rest, groups_as_text(model, optimizer)


def copied(stored: list[Stretch]) -> list[Stretch]:
    """Copy what this rank writes to the host, so that training can change the originals."""
    # The copies from a device are blocking, because the thread that writes does not
    # wait for them.
    return [
        replace(each, values=each.values.to("cpu", copy=True))
        for each in (one.own for one in stored)
    ]


def come_together(model: nn.Module, action: str, what: str = "the run") -> None:
    """Check with [the order of exchanges](exchange_order.py) that all ranks save, or all load.

    :param what: describes what they save or load, the same on every rank
    """
    conductor = conductor_of(model)
    conductor.order.begin(action)
    first = next(iter(conductor.drivers)).sites[0].name
    conductor.order.before(action, what, first)


def contents(
    what: str,
    optimizer: Optimizer | None,
    frozen: bool,
    others: dict[str, Stateful],
) -> str:
    """Describe what a rank saves or loads, for the ranks to compare.

    >>> contents("step 3", None, False, {"schedule": None, "scaler": None})
    'step 3 without frozen parameters, with schedule, scaler'
    """
    names = [type(optimizer).__name__] if optimizer is not None else []
    listed = ", ".join([*names, *others])
    return (
        f"{what}{'' if frozen else ' without frozen parameters,'}"
        f"{f' with {listed}' if listed else ''}"
    )


@torch.no_grad()
def load_run(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    frozen: bool = True,
    /,
    **others: Stateful,
) -> None:
    """Restore a saved run. Collective. Shard the model and make the optimizer first, as
    at the start of the run.

    :param frozen: whether to read frozen parameters; otherwise they stay as they are
    :raises Damaged: if the folder is not a complete checkpoint
    :raises ValueError: if the checkpoint holds other tensors than the model, or no
        state for one of the `others`
    :raises Disagreement: if another rank does something else
    """
    come_together(model, "load", contents("the run", optimizer, frozen, others))
    refuse_waiting(model)
    reader = Reader(folder)
    index = on_first(reader.read_metadata)
    text = text_in(reader, index)
    for name, other in others.items():
        if isinstance(other, Compared):
            other.compare(text["others"].setdefault(name, None))
    refuse_missing(folder, text, optimizer, others)
    refuse_other_rule(folder, text, optimizer)
    refuse_more(folder, index, model)
    if not frozen:
        refuse_trained_before(folder, index, model)
    again = text["ranks"] == world(None)[1]
    copies = list(rank_state.buffers(model, mine=again))
    states = list(states_in(index)) if again else []
    state = list(wanted_state(index, model, optimizer)) if optimizer else []
    take_apart(model)
    own = stretches(model, frozen=frozen)
    stored = [*own, *(copy for _, copy in copies), *states]
    read(reader, index, [*stored, *(each for *_, each in state)])
    note_changes(model)
    for buffer, copy in copies:
        buffer.copy_(copy.whole)
    if optimizer is not None:
        entries: dict[int, dict[str, Tensor]] = {}
        for number, key, value, _ in state:
            entries.setdefault(number, {})[key] = value
        groups: list[dict[str, Any]] = []
        saved = text["optimizer"]
        on_each(lambda: groups.extend(groups_from(saved, model, optimizer)))
        with taken_by("the optimizer", folder):
            whole = with_rest(entries, text.get("entries", {}), model, optimizer)
            optimizer.load_state_dict({"state": whole, "param_groups": groups})
    for name, other in others.items():
        with taken_by(name, folder):
            other.load_state_dict(text["others"][name])
    found = {each.name: each.whole for each in states}
    on_each(partial(rank_state.go_on, model, found))


def take_apart(model: nn.Module) -> None:
    """Free the full parameters of all units, because loading makes them stale."""
    for unit in conductor_of(model).drivers:
        refuse_in_block(unit)
        unit.free()


def note_changes(model: nn.Module) -> None:
    """Mark all parameters as changed, so that the next forward pass gathers them anew."""
    for unit in conductor_of(model).drivers:
        unit.expire()
        for flat in unit.flats:
            flat.changes += 1


TEXT = "shardbook.text"


def text_in(reader: Reader, index: Metadata) -> dict[str, Any]:
    """Read the JSON that rank 0 wrote.

    :raises Damaged: if there is none, or it says something else
    """
    known = schema()
    there = index.state_dict_metadata.get(TEXT)
    if not isinstance(there, TensorStorageMetadata):
        raise Damaged(
            f"{reader.folder} holds tensors only; it was not written by save_run, so no run "
            "can go on from it"
        )
    text = rank_state.blob(TEXT, torch.empty(there.size, dtype=torch.uint8))
    read(reader, index, [text])
    with reading(f"{reader.folder} says nothing of its run that can be understood"):
        found: dict[str, Any] = json.loads(rank_state.as_text(text.whole))
        known.refuse_unlike(found, known.Text)
        found["optimizer"] = restored(found["optimizer"])
        found["others"] = {
            name: restored(state) for name, state in found["others"].items()
        }
        known.refuse_unlike(found["optimizer"], known.Groups | None)
    return found


def states_in(index: Metadata) -> Iterator[Stretch]:
    """Allocate memory for the states of this rank's generators."""
    prefix = rank_state.own("generator", "")
    for name, there in index.state_dict_metadata.items():
        if name.startswith(prefix) and isinstance(there, TensorStorageMetadata):
            yield rank_state.blob(name, torch.empty(there.size, dtype=torch.uint8))


# sidelit: depth Gradients that wait, and a checkpoint without what is to be loaded.


def refuse_waiting(model: nn.Module) -> None:
    """Refuse to save or load between micro-batches.

    :raises RuntimeError: naming a parameter whose gradient was not averaged yet
    """
    for unit in conductor_of(model).drivers:
        for flat in unit.flats:
            with as_plain():
                waits = flat.waits
            if waits:
                name = flat.layout.slots[0].names[0]
                raise RuntimeError(
                    f"gradients of {unit.name} (parameter {name}) wait for their "
                    "exchange and are no part of a checkpoint; save and load after the "
                    "optimizer's step"
                )


@contextmanager
def taken_by(name: str, folder: Path) -> Iterator[None]:
    """A block in which an object takes its state, which may be that of another class.

    :raises ValueError: naming the object, instead of an error about a part of the state
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"{folder} holds a state that {name} does not take: {reason(error)}"
        ) from error


def refuse_other_groups(found: list[str]) -> None:
    """Refuse an optimizer whose groups, or their options, differ between the ranks.

    :param found: the groups of each rank, as text
    :raises Disagreement: on every rank
    """
    for rank, groups in enumerate(found):
        if groups != found[0]:
            raise Disagreement(
                f"rank {rank} has other parameter groups in its optimizer than rank 0, or "
                "other options in them; make groups by shape before shard()"
            )


def refuse_missing(
    folder: Path,
    text: dict[str, Any],
    optimizer: Optimizer | None,
    others: dict[str, Stateful],
) -> None:
    """Refuse a checkpoint without the state of an object that is to be restored.

    :raises ValueError: naming the object
    """
    missing = [name for name in others if name not in text["others"]]
    if optimizer is not None and text["optimizer"] is None:
        missing.append("optimizer")
    if missing:
        raise ValueError(f"{folder} holds no state of {', '.join(missing)}")


def refuse_other_rule(
    folder: Path, text: dict[str, Any], optimizer: Optimizer | None
) -> None:
    """Refuse the state of an optimizer that has other settings, such as AdamW's for SGD.

    A later version of an optimizer may have more settings than an earlier one, and a
    scheduler adds some. So only a group that both lacks a setting and has another one
    instead is that of another optimizer.

    :raises ValueError: naming both
    """
    if optimizer is None or text.get("rule") == type(optimizer).__name__:
        return
    for group in text["optimizer"]:
        lacks = [key for key in optimizer.defaults if key not in group]
        instead = [key for key in group if key not in optimizer.param_groups[0]]
        if lacks and instead:
            raise ValueError(
                f"{folder} holds the state of {text.get('rule', 'another optimizer')} "
                f"with {instead[0]}, but this {type(optimizer).__name__} has "
                f"{lacks[0]}; go on with the optimizer that was saved"
            )


def refuse_more(folder: Path, index: Metadata, model: nn.Module) -> None:
    """Refuse a checkpoint with a tensor that this model does not have.

    :raises ValueError: naming one of them
    """
    buffers = (copy for _, copy in rank_state.buffers(model, mine=False))
    known = {name for each in (*stretches(model), *buffers) for name in each.names}
    more = [
        name
        for name in index.state_dict_metadata
        if name.startswith(f"{MODEL}.") and name not in known
    ]
    if more:
        raise ValueError(
            f"{folder} holds {more[0].removeprefix(MODEL + '.')}, which the model lacks"
        )


def refuse_trained_before(folder: Path, index: Metadata, model: nn.Module) -> None:
    """Refuse to skip a frozen parameter that was trained when the checkpoint was saved.

    :raises ValueError: naming the parameter
    """
    trained = {each.name for each in stretches(model, frozen=False)}
    for each in stretches(model):
        if each.name not in trained and each.name in index.state_dict_metadata:
            raise ValueError(
                f"{folder} holds values of {each.name.removeprefix(MODEL + '.')}, which "
                "is not trained now; train what was trained before, or load with "
                "frozen=True"
            )
