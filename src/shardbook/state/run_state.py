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
| buffers | one for each rank | [by name, and by rank](#module/buffers-and-random-states-of) |
| random number generators | one for each rank | bytes, by rank |
| learning rate, loss scale, position in the data | the same on all ranks | [JSON](schema.py) |

Any number of ranks can read the first row. The second and third rows belong to the
number of ranks that saved them. On another number, each rank takes rank 0's buffers,
and keeps the generators that it has.

Frozen parameters are saved, too, unless you pass `frozen=False`. A run that fine-tunes
a few parameters has the frozen ones from the folder of the pretrained model, so there
is no need to write them in each checkpoint.

Pass other objects with `state_dict` and `load_state_dict`, such as a schedule or [a
scaler](loss_scaling.py#module/loss-scaling-over-ranks), as keyword arguments.
"""

from __future__ import annotations

import json
import random
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

from shardbook.foundations import rng
from shardbook.foundations.agreement import Disagreement
from shardbook.foundations.collectives import world
from shardbook.foundations.rng import Source, capture
from shardbook.foundations.rng import write as set_generator
from shardbook.foundations.torch_private import as_plain, lasting_buffers
from shardbook.state.file_formats import (
    Damaged,
    plain,
    reading,
    reason,
    restored,
    schema,
)
from shardbook.state.folder_names import refuse_extra_state
from shardbook.state.optimizer_entries import (
    MODEL,
    Stretch,
    groups_from,
    groups_of,
    settings_of,
    stretches,
    stretches_of_state,
    wanted_state,
    with_rest,
)
from shardbook.state.sharded import Reader, read, write
from shardbook.state.together import on_each, on_first
from shardbook.training.optimizer_state import groups_as_text
from shardbook.zero.model import before_casting
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.state_dict import refuse_in_block

__all__ = [
    "Compared",
    "Stateful",
    "blob",
    "buffers",
    "come_together",
    "copied",
    "generators",
    "go_on",
    "load_run",
    "own",
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
    :raises ValueError: if a state is more than
        [data](file_formats.py#module/object-states-as-json), or a module has extra state
    :raises RuntimeError: if gradients of a micro-batch were not exchanged yet, because
        they would be lost
    :raises Disagreement: if another rank makes another call
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
    stored = [*stretches(model, frozen=frozen), *generators(model)]
    stored += [copy for _, copy in buffers(model, mine=True)]
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
        stored.append(blob(TEXT, as_bytes(json.dumps(text))))
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
    scheduler = scheduler_of(model)
    scheduler.order.begin(action)
    first = next(iter(scheduler.units)).sites[0].name
    scheduler.order.before(action, what, first)


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
    :raises Disagreement: if another rank makes another call
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
    copies = list(buffers(model, mine=again))
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
    on_each(partial(go_on, model, found))


def take_apart(model: nn.Module) -> None:
    """Free the full parameters of all units, because loading makes them stale."""
    for unit in scheduler_of(model).units:
        refuse_in_block(unit)
        unit.free()


def note_changes(model: nn.Module) -> None:
    """Mark all parameters as changed, so that the next forward pass gathers them anew."""
    for unit in scheduler_of(model).units:
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
    text = blob(TEXT, torch.empty(there.size, dtype=torch.uint8))
    read(reader, index, [text])
    with reading(f"{reader.folder} says nothing of its run that can be understood"):
        found: dict[str, Any] = json.loads(as_text(text.whole))
        known.refuse_unlike(found, known.Text)
        found["optimizer"] = restored(found["optimizer"])
        found["others"] = {
            name: restored(state) for name, state in found["others"].items()
        }
        known.refuse_unlike(found["optimizer"], known.Groups | None)
    return found


def states_in(index: Metadata) -> Iterator[Stretch]:
    """Allocate memory for the states of this rank's generators."""
    prefix = own("generator", "")
    for name, there in index.state_dict_metadata.items():
        if name.startswith(prefix) and isinstance(there, TensorStorageMetadata):
            yield blob(name, torch.empty(there.size, dtype=torch.uint8))


# sidelit: depth Gradients that wait, and a checkpoint without what is to be loaded.


def refuse_waiting(model: nn.Module) -> None:
    """Refuse to save or load between micro-batches.

    :raises RuntimeError: naming a parameter whose gradient was not averaged yet
    """
    for unit in scheduler_of(model).units:
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
    copies = (copy for _, copy in buffers(model, mine=False))
    known = {name for each in (*stretches(model), *copies) for name in each.names}
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


# sidelit: core


# ## Buffers and random states of each rank
#
# > Buffers and random number generators differ from rank to rank, so a checkpoint stores
# > them for each rank.
#
# After some steps, a batch norm on rank 1 has the running mean of rank 1's data. The
# generators of rank 1 have generated their own random numbers, too. A resumed run takes
# the same steps bit for bit only if each rank gets its own values back. A program
# without ranks reads rank 0's buffers, which have their usual names:
#
# | name in the checkpoint | content |
# |---|---|
# | `model.norm.running_mean` | the buffer on rank 0 |
# | `shardbook.rank.1.buffer.norm.running_mean` | the buffer on rank 1 |
# | `shardbook.rank.1.generator.cpu` | the state of the CPU's generator on rank 1 |
# | `shardbook.rank.1.generator.cuda` | the state of the GPU's generator, whatever the GPU's number |
# | `shardbook.rank.1.generator.python` | the state of Python's `random` on rank 1 |


def own(kind: str, name: str) -> str:
    """The name in a checkpoint for something that belongs to this rank."""
    return f"shardbook.rank.{world(None)[0]}.{kind}.{name}"


def buffers(model: nn.Module, *, mine: bool) -> Iterator[tuple[Tensor, Stretch]]:
    """The buffers in a `state_dict`, each with a copy to write from or to read into.

    If [the policy has cast](model.py#cast_buffers) a buffer, the copy has the
    dtype from before.

    :param mine: whether this rank uses its own buffers in the checkpoint, or those of
        rank 0
    """
    first = not mine or world(None)[0] == 0
    wide = before_casting.get(model, {})
    for prefix, module in model.named_modules(remove_duplicate=False):
        for key, buffer in lasting_buffers(module).items():
            name = f"{prefix}.{key}" if prefix else key
            stored = f"{MODEL}.{name}" if first else own("buffer", name)
            dtype = wide.get(name, buffer.dtype)
            copy = buffer.detach().to(dtype, copy=True).contiguous()
            yield buffer, blob(stored, copy)


def blob(name: str, values: Tensor) -> Stretch:
    """Describe a tensor that this rank writes or reads as a whole."""
    return Stretch((name,), tuple(values.shape), 0, values.view(-1))


def generators(model: nn.Module) -> Iterator[Stretch]:
    """The states of this rank's generators: the CPU's, Python's, and the devices' of the model."""
    for source, name in sources(model).items():
        yield blob(own("generator", name), rng.read(source))
    text = json.dumps(plain(random.getstate(), "random"))
    yield blob(own("generator", "python"), as_bytes(text))


def go_on(model: nn.Module, found: dict[str, Tensor]) -> None:
    """Set this rank's generators to the saved states.

    :param found: the states, by their names in the checkpoint
    """
    with reading("the state of a random number generator cannot be restored"):
        for source, name in sources(model).items():
            state = found.get(own("generator", name))
            if state is not None:
                set_generator(source, state)
        python = found.get(own("generator", "python"))
        if python is not None:
            random.setstate(restored(json.loads(as_text(python))))


def sources(model: nn.Module) -> dict[Source, str]:
    """The generators of a rank, each with its name.

    The name does not contain a device's number, because a restarted job may give the
    rank another device. For example, rank 1 may get the first GPU of its own machine
    instead of the second GPU of a shared one. With offload, no parameter is on the
    device that computes, so the devices come from the units.
    """
    computing = (
        flat.device for unit in scheduler_of(model).units for flat in unit.flats
    )
    named: dict[Source, str] = {}
    for source in capture(model, *computing).states:
        device = source.device if isinstance(source, torch.Generator) else source
        same = sum(name.partition(".")[0] == device.type for name in named.values())
        named[source] = f"{device.type}.{same}" if same else device.type
    return named


def as_bytes(text: str) -> Tensor:
    """Encode a text as a tensor of `uint8`, of shape `(n,)`."""
    return torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8)


def as_text(values: Tensor) -> str:
    """Decode such a tensor."""
    return bytes(values.tolist()).decode("utf-8")
