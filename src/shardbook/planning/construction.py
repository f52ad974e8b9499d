r"""# The peak of a construction

> What a rank holds at most while a model is built unit by unit follows from shapes alone.

[A model without memory](construct.py) gets it one unit at a time. Each moment in which a
rank may hold the most belongs to a unit that is being cut. Take two units, each with a
matrix of 600 elements in FP32 that pads to 608, on 2 ranks in stage 3:

| moment | shards before | parameters | flat vector | shard | bytes |
|---|---|---|---|---|---|
| the first unit is copied and cut | 0 | 600 | 608 | 304 | 6,048 |
| the second one | 304 | 600 | 608 | 304 | 7,264 |
| afterwards | 608 | 0 | 0 | 0 | 2,432 |

This chapter goes through these moments with a model that has no memory at all, and so
costs nothing at any size. It counts what a unit with several flat vectors adds, what
[a policy](policy.py) changes about them, and buffers.

What is left out are temporaries of the function that gives a module its values.

:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part of it
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from shardbook.foundations.layout import Layout, plan
from shardbook.foundations.torch_private import own_buffers, own_parameters
from shardbook.parameters.masters import dtypes_of
from shardbook.parameters.parameter_sites import Site, sites_by_unit
from shardbook.parameters.policy import Policy
from shardbook.planning.policy_bytes import AS_IT_IS
from shardbook.zero.model import Select, select

__all__ = ["Built", "built", "is_sliced"]
# sidelit: show


@dataclass(frozen=True, slots=True)
class Built:
    """What a construction takes and leaves, in bytes of one rank.

    :param vectors: the layouts of each unit, by the unit's name
    :param parameters: what is kept of them
    :param buffers: of all modules
    :param peak: the most that is held at one moment
    """

    vectors: dict[str, tuple[Layout, ...]]
    parameters: int
    buffers: int
    peak: int


def built(
    model: nn.Module,
    units: Select | None,
    world_size: int,
    *,
    stage: int = 3,
    policy: Policy = AS_IT_IS,
) -> Built:
    """Go through the construction of a model that has no memory.

    >>> import torch
    >>> with torch.device("meta"):
    ...     model = nn.Sequential(*(nn.Linear(20, 30, bias=False) for _ in range(2)))
    >>> built(model, None, world_size=2).peak
    7264

    :param units: as [`shard`](model.py#shard) takes them
    """
    sites = sites_by_unit(model, select(model, units))
    names = {module: name for name, module in model.named_modules()}
    fresh: dict[Tensor, int] = {}
    vectors: dict[str, tuple[Layout, ...]] = {}
    kept = buffers = peak = 0
    for module in parts_first(model):
        for parameter in own_parameters(module).values():
            if parameter is not None:
                fresh[parameter] = parameter.nbytes
        new = [each for each in own_buffers(module).values() if each is not None]
        buffers += sum(each.nbytes for each in new)
        held = kept + buffers + sum(fresh.values())
        peak = max(peak, held)
        name = names[module]
        if not sites.get(name):
            continue
        layouts = layouts_of_unit(sites[name], world_size, policy)
        vectors[name] = layouts
        for more in moments(layouts, stage, policy):
            peak = max(peak, held + more)
        kept += sum(kept_of(layout, stage, policy) for layout in layouts)
        for site in sites[name]:
            # What is cut is counted as shards from now on.
            fresh[site.parameter] = 0
    return Built(vectors, kept, buffers, peak)


def moments(layouts: tuple[Layout, ...], stage: int, policy: Policy) -> Iterator[int]:
    """What a unit adds to its parameters, at each moment while it is cut.

    First all its vectors are filled. Then one after the other is cut, and as soon as
    that is done the parameters in it are views of what is kept.
    """
    waiting = sum(whole(layout) for layout in layouts)
    yield waiting
    done = 0
    for layout in layouts:
        converts = policy.offload or layout.computes_in != layout.dtype
        sliced = is_sliced(layout, stage)
        apart = kept_apart(layout, stage, policy)
        yield done + waiting + apart
        if converts:
            # The vector is dropped before the one is made that is computed with,
            # unless all of it is kept as masters.
            dropped = whole(layout) if sliced or policy.offload else 0
            yield done + waiting - dropped + apart + computed(layout)
        waiting -= whole(layout)
        parameters = sum(slot.numel for slot in layout.slots) * layout.dtype.itemsize
        done += kept_of(layout, stage, policy) - parameters


def kept_of(layout: Layout, stage: int, policy: Policy) -> int:
    """What a rank keeps of a vector."""
    if not policy.offload and layout.computes_in == layout.dtype:
        return part(layout) if stage == 3 else whole(layout)
    masters = part(layout) if is_sliced(layout, stage) else whole(layout)
    return masters + (0 if stage == 3 else computed(layout))


def is_sliced(layout: Layout, stage: int) -> bool:
    """Whether a rank keeps a part of a vector. Stages 1 and 2 keep [what is
    frozen](zero1.py#Zero1.keep) whole.
    """
    return stage == 3 or (stage > 0 and layout.trainable)


def kept_apart(layout: Layout, stage: int, policy: Policy) -> int:
    """What of it is copied out of the vector, and not a view into it."""
    sliced = is_sliced(layout, stage)
    if policy.offload:
        return part(layout) if sliced else whole(layout)
    apart = stage == 3 or (sliced and layout.computes_in != layout.dtype)
    return part(layout) if apart else 0


def whole(layout: Layout) -> int:
    """The bytes of a vector as it is stored."""
    return layout.padded * layout.dtype.itemsize


def computed(layout: Layout) -> int:
    """The bytes of a vector as it is computed with."""
    return layout.padded * layout.computes_in.itemsize


def part(layout: Layout) -> int:
    """The bytes of one rank's part."""
    return layout.shard_numel * layout.dtype.itemsize


def layouts_of_unit(
    sites: list[Site], world_size: int, policy: Policy
) -> tuple[Layout, ...]:
    """The layouts of a unit's vectors, trained and frozen ones."""
    named = {site.name: site.parameter for site in sites}
    return plan(named.items(), world_size, computes_in=dtypes_of(policy, sites))


def parts_first(model: nn.Module) -> list[nn.Module]:
    """All modules in the order in which they get memory."""
    found: list[nn.Module] = []
    model.apply(found.append)
    return list(dict.fromkeys(found))
