r"""# The peak of a construction

> The memory that a rank needs while a model is built unit by unit, computed from shapes alone.

[A model without memory](construct.py) gets its memory one unit at a time. The peak is
reached while one of the units is being cut. Take two units on 2 ranks in stage 3. Each
has a matrix of 600 elements in FP32, which is padded to 608:

| moment | shards before | parameters | flat vector | shard | bytes |
|---|---|---|---|---|---|
| the first unit is copied and cut | 0 | 600 | 608 | 304 | 6,048 |
| the second one | 304 | 600 | 608 | 304 | 7,264 |
| afterwards | 608 | 0 | 0 | 0 | 2,432 |

This chapter computes the bytes at these moments. The model has no memory, so the
computation costs nothing at any size. It includes buffers, units with several flat
vectors, and the changes that [a policy](policy.py) makes to them. It leaves out the
temporaries of the function that gives a module its values.
"""

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


@dataclass(frozen=True, slots=True)
class Built:
    """The bytes that a construction takes and leaves on one rank.

    :param vectors: the layouts of each unit, by the unit's name
    :param parameters: the bytes that are kept of the units
    :param buffers: the bytes of the buffers of all modules
    :param peak: the largest number of bytes at one moment
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
    """Compute the bytes at each moment of a construction.

    >>> import torch
    >>> with torch.device("meta"):
    ...     model = nn.Sequential(*(nn.Linear(20, 30, bias=False) for _ in range(2)))
    >>> built(model, None, world_size=2).peak
    7264

    :param model: on the meta device
    :param units: as for [`shard`](model.py#shard)
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
            # A parameter that was cut counts as a shard from now on.
            fresh[site.parameter] = 0
    return Built(vectors, kept, buffers, peak)


def moments(layouts: tuple[Layout, ...], stage: int, policy: Policy) -> Iterator[int]:
    """The bytes that a unit adds to its parameters, at each moment while it is cut.

    First all its vectors are filled. Then they are cut one after the other. As soon as
    a vector is cut, its parameters are views of the part that is kept.
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
            # The vector is dropped before the one with which modules compute is
            # created, unless all of it is kept as masters.
            dropped = whole(layout) if sliced or policy.offload else 0
            yield done + waiting - dropped + apart + computed(layout)
        waiting -= whole(layout)
        parameters = sum(slot.numel for slot in layout.slots) * layout.dtype.itemsize
        done += kept_of(layout, stage, policy) - parameters


def kept_of(layout: Layout, stage: int, policy: Policy) -> int:
    """The bytes that a rank keeps of a vector."""
    if not policy.offload and layout.computes_in == layout.dtype:
        return part(layout) if stage == 3 else whole(layout)
    masters = part(layout) if is_sliced(layout, stage) else whole(layout)
    return masters + (0 if stage == 3 else computed(layout))


def is_sliced(layout: Layout, stage: int) -> bool:
    """Whether a rank keeps only a part of a vector.

    Stages 1 and 2 keep [frozen vectors](zero1.py#Zero1.keep) whole.
    """
    return stage == 3 or (stage > 0 and layout.trainable)


def kept_apart(layout: Layout, stage: int, policy: Policy) -> int:
    """The bytes that are copied out of the vector, and are not a view into it."""
    sliced = is_sliced(layout, stage)
    if policy.offload:
        return part(layout) if sliced else whole(layout)
    apart = stage == 3 or (sliced and layout.computes_in != layout.dtype)
    return part(layout) if apart else 0


def whole(layout: Layout) -> int:
    """The bytes of a vector in the dtype in which it is stored."""
    return layout.padded * layout.dtype.itemsize


def computed(layout: Layout) -> int:
    """The bytes of a vector in the dtype in which modules compute."""
    return layout.padded * layout.computes_in.itemsize


def part(layout: Layout) -> int:
    """The bytes of one rank's part."""
    return layout.shard_numel * layout.dtype.itemsize


def layouts_of_unit(
    sites: list[Site], world_size: int, policy: Policy
) -> tuple[Layout, ...]:
    """The layouts of a unit's vectors, trainable and frozen ones."""
    named = {site.name: site.parameter for site in sites}
    return plan(named.items(), world_size, computes_in=dtypes_of(policy, sites))


def parts_first(model: nn.Module) -> list[nn.Module]:
    """All modules in the order in which they get memory."""
    found: list[nn.Module] = []
    model.apply(found.append)
    return list(dict.fromkeys(found))
