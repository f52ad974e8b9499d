r"""# Saving and loading a sharded model

> `state_dict` gives every rank the whole parameters, and `load_state_dict` takes them.

A file should hold whole parameters. A sharded model has only slices of them, and slices
are of no use to a program with another number of ranks, or to one that does not shard.
So the `state_dict` of a sharded model looks like that of the plain model: the same
keys, the same shapes.

PyTorch calls hooks before and after a module saves its parameters. Before, the unit is
gathered. After, its parameters are copied to the host and the unit is freed. So only
one unit and the root are whole on a device at any time. A model that trains on 64 GPUs,
and fits on none of them, can be saved.

Saving and loading are collective: every rank makes the same calls, even if only one
rank writes the file. If eight ranks on one machine all copy the model, the copies take
eight times the model in the machine's memory. If only rank 0 writes, only rank 0 needs
a copy:

```python
with rank0_only(model):
    state = model.state_dict()
if rank == 0:
    torch.save(state, "model.pt")
```
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardbook.foundations.agreement import Disagreement
from shardbook.foundations.collectives import Groups, world
from shardbook.foundations.torch_private import as_plain, storage_id, tree_leaves
from shardbook.zero.flat import flat_of
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.unit import State, Unit

__all__ = [
    "copy_buffer",
    "keep_state_dict_whole",
    "load_from_rank0",
    "on_the_host",
    "rank0_only",
]


def keep_state_dict_whole(unit: Unit, module: nn.Module) -> None:
    """Set hooks so that `module.state_dict()` gives whole parameters, and
    `module.load_state_dict()` takes them.

    :param unit: the unit whose parameters are below `module`
    :param module: the module to which the unit belongs
    """

    # A backward pass that failed may have left the unit whole, with the values from
    # before the last step. So the unit is freed and gathered again.
    def gather(*_: object) -> None:
        refuse_in_block(unit)
        unit.free()
        unit.switch(True)
        unit.expire()
        unit.order.begin(f"{unit.name.removeprefix('the ')} state_dict")
        unit.wait()
        unit.show()

    # The saved tensors are views into `full`. Stage 3 empties `full` right after, and
    # the other stages write into it later. Without the copy the values in the
    # dictionary would be lost, or change with the next step.
    def copy_and_free(
        _: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any
    ) -> None:
        # A tied weight has several keys. All of them get one copy, so the weight stays
        # tied and is written to a file once.
        copies: dict[tuple[Any, ...], Tensor] = {}
        for key, value in list(state_dict.items()):
            if isinstance(value, Tensor) and unit.owns(value):
                storage = storage_id(value.untyped_storage())
                place = (storage, value.storage_offset(), value.shape)
                if unit in spared:
                    del state_dict[key]
                    continue
                if place not in copies:
                    copies[place] = on_the_host(value)
                state_dict[key] = copies[place]
        unit.free()

    # `load_state_dict` has copied the new values into the whole parameters, and each
    # rank now keeps its part of them.
    def store_and_free(_: nn.Module, keys: Any) -> None:
        refuse_assigned(unit)
        with torch.no_grad():
            if unit in loading:
                for flat in unit.flats:
                    unit.groups.copy_from_first(flat.full)
            else:
                refuse_other_values(unit)
            for flat in unit.flats:
                flat.store()
        unit.free()

    # A part of the unit has no shard of its own, so it cannot gather by itself. Asked
    # directly, it would save slices.
    for part in {site.module for site in unit.sites} - {module}:
        part.register_state_dict_post_hook(partial(names_alone, unit))
    module.register_state_dict_pre_hook(gather)
    module.register_state_dict_post_hook(copy_and_free)
    module.register_load_state_dict_pre_hook(gather)
    module.register_load_state_dict_post_hook(store_and_free)


def on_the_host(value: Tensor) -> Tensor:
    """Copy a whole parameter into the host's memory, for a `state_dict`.

    The copy is complete when this function returns, so the unit may be freed.
    """
    return value.detach().to("cpu", copy=True)


@contextmanager
def rank0_only(model: nn.Module) -> Iterator[None]:
    """In this block `model.state_dict()` holds parameters on rank 0 of the model's
    ranks only.

    All ranks must still call it. On the other ranks the dictionary holds no sharded
    parameter, and they need no memory beyond that of the gathered unit.

    :param model: a model that was sharded
    :raises ValueError: if the model is not sharded
    """
    scheduler = scheduler_of(model)
    rank, _ = world(scheduler.order.group)
    # A block inside another one must not end the outer one, so each removes only the
    # units that it added.
    added = {unit for unit in scheduler.units if rank > 0} - spared
    spared.update(added)
    try:
        yield
    finally:
        spared.difference_update(added)


# The units whose parameters this rank leaves out of a `state_dict`.
spared: set[Unit] = set()


def load_from_rank0(
    model: nn.Module, state_dict: Mapping[str, Any] | None, *, strict: bool = True
) -> None:
    """Load a `state_dict` that only rank 0 has. Collective.

    The other ranks need no memory for the whole model: rank 0 sends one unit after the
    other. Buffers get the values of rank 0, too.

    :param model: a model that was sharded
    :param state_dict: on rank 0 of the model's ranks, what `model.state_dict()` or the
        plain model gave; on the other ranks it is not read
    :param strict: whether the names must be those of the model, as in
        `load_state_dict`
    :raises RuntimeError: on every rank, if the dictionary does not fit; some units may
        have new values by then
    """
    scheduler = scheduler_of(model)
    group = scheduler.order.group
    first = world(group)[0] == 0
    wrong: str | None = None
    loading.update(scheduler.units)
    try:
        given = state_dict if first and state_dict is not None else {}
        model.load_state_dict(given, strict=strict and first)
    except RuntimeError as error:
        if not first:
            raise
        wrong = str(error)
    finally:
        loading.difference_update(scheduler.units)
    said = [wrong]
    dist.broadcast_object_list(said, group=group, group_src=0)
    if said[0] is not None:
        raise RuntimeError(said[0])
    groups = next(iter(scheduler.units)).groups
    for buffer in model.buffers():
        copy_buffer(buffer, groups)


# The units whose next values come from rank 0.
loading: set[Unit] = set()


def copy_buffer(buffer: Tensor, groups: Groups) -> None:
    """Give every rank a buffer of rank 0."""
    values = buffer.contiguous()
    groups.copy_from_first(values)
    # An expanded buffer shows one element many times, but may be written only once.
    once = tuple(slice(None if step else 1) for step in buffer.stride())
    buffer[once].copy_(values[once])


# sidelit: depth Blocks of `whole(model)`, parts of a unit, and loading with `assign=True`.


def refuse_in_block(unit: Unit) -> None:
    """Raise an error if a unit to be saved or loaded is kept whole by [a block](whole.py)."""
    if unit.pins:
        raise RuntimeError(
            f"{unit.name} is whole for a block; leave whole(model) before "
            "state_dict() or load_state_dict()"
        )


# A program may need only the names in a part: `peft` picks the values under them from
# the `state_dict` of the model.
def names_alone(
    unit: Unit, part: nn.Module, found: dict[str, Any], prefix: str, *_: object
) -> None:
    """Replace the slices in the `state_dict` of a part by tensors without values."""
    refuse_in_block(unit)
    if unit.state is State.WHOLE:
        return
    for site in unit.sites:
        key = prefix + site.attribute
        flat = flat_of(site.parameter)
        if site.module is part and key in found and flat is not None and flat.sliced:
            whole = unit.counterpart[site.parameter]
            nothing = torch.empty(whole.shape, dtype=whole.dtype, device="meta")
            found[key] = nothing.as_subclass(Named)
            found[key].refuse = partial(refuse_part, unit, part)


def refuse_part(unit: Unit, part: nn.Module) -> NoReturn:
    """:raises RuntimeError: always"""
    raise RuntimeError(
        f"a {type(part).__name__} inside {unit.name} has no state_dict of its "
        "own; call state_dict() on the unit or on the model"
    )


class Named(Tensor):
    """A tensor of which only the shape and the dtype are known here."""

    refuse: Callable[[], NoReturn]

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer what needs no values, and refuse all else.

        :raises RuntimeError: if an operation reads the values
        """
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__hash__", "size", "dim", "numel"):
            with as_plain():
                return func(*args, **(kwargs or {}))
        for each in tree_leaves((args, kwargs)):
            if type(each) is cls:
                each.refuse()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be saved or copied.

        :raises RuntimeError: always
        """
        self.refuse()


def refuse_other_values(unit: Unit) -> None:
    """Refuse values that differ between the ranks.

    Each rank keeps its part of the values that it was given. If the ranks were given
    different dictionaries, or one of them an empty one, the model would be a mixture.

    :raises Disagreement: on every rank, naming the parameter and what to do. By then
        other units may have their new values, and in stage 0 this one, too.
    """
    names = [slot.names[0] for flat in unit.flats for slot in flat.layout.slots]
    mine = [checksum(each) for flat in unit.flats for each in flat.whole]
    if unit.stage:
        unit.order.before("compare", f"what was loaded into {unit.name}", names[0])
        found: list[Any] = [None] * world(unit.groups.everyone)[1]
        dist.all_gather_object(found, mine, group=unit.groups.everyone)
    else:
        found = found_in_store(unit, mine)
    for rank, theirs in enumerate(found):
        for name, number, expected in zip(names, theirs, found[0], strict=True):
            if number != expected:
                unit.free()
                raise Disagreement(
                    f"rank {rank} was given other values of {name} than rank 0; give "
                    "every rank the same dictionary, or let rank 0 alone read it, with "
                    "load_from_rank0(model, state_dict)"
                )


def checksum(value: Tensor) -> int:
    """A checksum of a tensor's bits."""
    octets = value.detach().reshape(-1).view(torch.uint8)
    room = bytearray(octets.numel())
    if room:
        torch.frombuffer(room, dtype=torch.uint8).copy_(octets)
    return crc32(room)


def found_in_store(unit: Unit, mine: list[int]) -> list[list[int]]:
    """The checksums of all ranks, if all of them load within 5 seconds; else none.

    In stage 0 loading is no exchange, so a rank does not wait long for the others. A
    rank that loads alone is refused by [the next
    comparison](unused.py#refuse_other_steps).
    """
    rendezvous = unit.order.rendezvous
    if rendezvous is None or unit.order.loaded_alone:
        return []
    unit.order.loads[unit.name] += 1
    key = f"loaded/{unit.name}/{unit.order.loads[unit.name]}"
    keys = [f"{key}/{rank}" for rank in rendezvous.ranks]
    rendezvous.store.set(f"{key}/{rendezvous.rank}", json.dumps(mine))
    try:
        rendezvous.store.wait(keys, PATIENCE)
    except RuntimeError:
        unit.order.loaded_alone = True
        return []
    return [json.loads(rendezvous.store.get(each)) for each in keys]


PATIENCE = timedelta(seconds=5)


def refuse_assigned(unit: Unit) -> None:
    """Raise an error if `load_state_dict` has replaced parameters instead of copying into them."""
    for site in unit.sites:
        if getattr(site.module, site.attribute) is not unit.counterpart[site.parameter]:
            raise RuntimeError(
                f"{site.name} was replaced, not loaded; "
                "call load_state_dict without assign=True"
            )
