r"""# The memory planner

> The bytes that each rank will store, by kind, computed from shapes before anything runs.

[The first chapter](memory.py) counts as the ZeRO paper does. This one counts the bytes
that this library stores, by kind. In FP32 a parameter takes 4 bytes, its gradient 4,
and AdamW's two moments 8.

| stage | parameters | gradients | AdamW | sent in a step |
|---|---|---|---|---|
| 0 | $4\sum_u P_u$ | $4\sum_u P_u$ | $8\,\Psi + 4n$ | $8\sum_u P_u\,\frac{N_d-1}{N_d}$ |
| 1 | $4\sum_u P_u$ | $4\sum_u P_u$ | $8\,\Psi_r + 4n$ | the same |
| 2 | $4\sum_u P_u$ | $4\sum_u S_u$ | $8\,\Psi_r + 4n$ | the same |
| 3 | $4\sum_u S_u$ | $4\sum_u S_u$ | $8\,\Psi_r + 4n$ | $12\sum_u P_u\,\frac{N_d-1}{N_d}$ |

The vectors of parameters and gradients include their [padding](layout.py). The moments
do not, since an optimizer sees only the parameters themselves: all $\Psi$ of them, or
the $\Psi_r$ in this rank's slices. AdamW also counts the steps of each of the $n$
tensors, in 4 bytes. The changes by [a policy](policy.py) are in [another
table](forecast.py#module/the-bytes-of-a-policy).

**While the model is built** a rank may need more memory than its parameters take
afterwards, because each unit is first copied into a flat vector. [The last
section](#module/the-peak-of-a-construction) computes this peak.

**Between steps** a rank stores parameters and optimizer state.

**In a step** a rank also stores gradients, and two more kinds that depend on the model.
*In flight* are the [units](unit.py) that are gathered at the moment, and the vectors of
gradients that are being exchanged. *Activations* are the tensors that the forward pass
saves for the backward pass, and those of the loss. These kinds do not all reach their
largest size at the same moment. So their sum is a bound: a step takes at most that
much, if one unit is gathered ahead and the optimizer treats one tensor after the other
(`foreach=False`). [The forecast](forecast.py) gives the exact peak, but of stage 3
only, without a policy and without checkpoints.

The plan leaves out temporaries inside one operation, buffers of the communication
backend, and memory that an allocator adds. On CUDA the allocator of pinned memory
rounds each block on the host up to a power of two. So the tensors that
[offload](offload.py) keeps there may take up to twice the planned bytes. The figures
for activations are those of a CPU, since attention on a GPU saves other tensors.

The tests run the library itself with 7.5 billion parameters on 64 ranks, and with a
trillion on 1024, on tensors that have shapes and no values. The bytes stored between
steps and the bytes sent agree with the table exactly.

:notation $N_d$: `world_size`, the number of ranks
:notation $P_u$: `padded`, the elements of unit $u$ with its padding
:notation $S_u$: `shard_numel`, a rank's part of them, $P_u / N_d$
:notation $\Psi$: `numel`, the number of parameters
:notation $\Psi_r$: `pieces(layout, rank)`, the parameters that rank $r$ trains
:notation $n$: `layout.slots`, the tensors that the optimizer holds, as many as there are slots
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.foundations.layout import Layout, plan
from shardbook.foundations.torch_private import own_buffers, own_parameters
from shardbook.models.gpt import GPT, Config
from shardbook.planning.forecast import (
    AS_IT_IS,
    FLOAT,
    Setup,
    extra_moments,
    layouts_with,
    steady_terms,
    total,
    units_in_flight,
)
from shardbook.zero.model import Select, select
from shardbook.zero.parameter_sites import Site, dtypes_of, sites_by_unit
from shardbook.zero.policy import Policy
from shardbook.zero.unit import BUNDLE

__all__ = [
    "Built",
    "Own",
    "activations",
    "built",
    "is_sliced",
    "layouts_of",
    "one_vector",
    "own_bytes",
    "tables",
]


@dataclass(frozen=True, slots=True)
class Own:
    """The bytes that this library stores and sends on one rank at one stage.

    It is the rank that stores the most: rank 0, unless some parameters [are not
    cut](layout.py#uncut_offsets).

    With offload `host` counts the bytes on the host, gradients included, and the other
    kinds count those on the device.
    """

    stage: int
    parameters: int
    state: int
    gradients: int
    sent: int
    in_flight: int | None = None
    activations: int | None = None
    host: int | None = None
    moved: int | None = None

    @property
    def steady(self) -> int:
        """The bytes that are stored between two steps."""
        return self.parameters + self.state

    @property
    def step(self) -> int | None:
        """The largest number of bytes in a step; `None` if it is not known."""
        if self.in_flight is None or self.activations is None:
            return None
        return self.steady + self.gradients + self.in_flight + self.activations


def own_bytes(
    layouts: list[Layout],
    stage: int,
    optimizer: str,
    extra: int | None = None,
    policy: Policy = AS_IT_IS,
    copies: int = 1,
) -> Own:
    """Add up the bytes of one stage from the layouts of all units.

    :param extra: the bytes of activations; `None` if they are not known, as under a
        policy with a `param_dtype` or offload
    :param policy: the policy, which [changes the bytes](forecast.py#module/the-bytes-of-a-policy)
    :param copies: the number of [copies of the model](collectives.py#module/ranks-that-share-a-model)
    """
    setup = Setup(
        Config(), layouts[0].world_size, 1, 1, optimizer, stage=stage, policy=policy
    )
    kinds = total(layouts, stage, policy, copies)
    uneven = any(layout.uncut for layout in layouts)
    ranks = range(layouts[0].world_size if uneven else 1)
    terms = [list(steady_terms(setup, layouts, rank).values()) for rank in ranks]
    state = max(sum(others) for _, *others in terms)
    on_host = kinds.masters_on_host + kinds.gradients_on_host + state
    # From stage 2 on three vectors of gradients exist at once: one is filled, one is
    # sent, one is received. At stage 3 two units are gathered besides, one that
    # computes and the next one. Stages 0 and 1 keep all vectors until the backward pass
    # ends, so only the received one comes on top, and at stage 0 the mean.
    whole, vectors = (0, 0, 0, 2)[stage], (2, 1, 3, 3)[stage]
    # A unit has one vector for each kind of parameter.
    largest: dict[tuple[Any, ...], int] = {}
    every: Counter[tuple[Any, ...]] = Counter()
    for layout in layouts:
        kind = layout.dtype, layout.computes_in, layout.trainable, layout.uncut
        largest[kind] = max(largest.get(kind, 0), layout.padded)
        every[kind] += layout.padded
    in_flight = 0
    for kind, padded in largest.items():
        size, collected = kind[1].itemsize, policy.collects_in(kind[1]).itemsize
        more = padded * (whole * size + vectors * collected)
        if stage < 2:
            # [Small units](unit.py#Bundle) are exchanged together, after the backward pass.
            # By then the activations are freed, but for the batch and the loss, which are
            # less than a tenth of them.
            together = min(every[kind], BUNDLE // policy.sends_in(kind[1]).itemsize)
            freed = 9 * (extra or 0) // 10
            # A rank that receives the pieces of all others needs one more piece of
            # memory for their sum.
            count = layouts[0].world_size
            piece = together // count if count > 2 and together > padded else 0
            more = max(more, (together * vectors + piece) * collected - freed)
        in_flight += more
    # Two more means are exchanged [with the other
    # copies](scheduler.py#Scheduler.advance), each with memory for the received pieces.
    if copies > 1:
        in_flight += 2 * 2 * FLOAT * sum(largest.values()) // layouts[0].world_size
    return Own(
        stage=stage,
        parameters=kinds.parameters,
        state=0 if policy.offload else state,
        gradients=kinds.gradients,
        in_flight=None if extra is None else in_flight,
        activations=extra,
        sent=kinds.sent,
        host=on_host if policy.offload else None,
        moved=kinds.moved if policy.offload else None,
    )


def activations(config: Config, batch: int, checkpointing: bool) -> int:
    """The most that activations and temporaries take at one moment, on a CPU.

    [The forecast](forecast.py#extra_moments) computes each moment that may be the peak.
    Since each block saves as much as the one before, one block is enough here.

    With activation checkpointing a block saves only its input in the forward pass. In
    the backward pass the block's forward pass runs again, so one block at a time has
    all its activations. For a GPT of 24 blocks and eight windows that is 1.5 GB instead
    of 13.1 GB:

    >>> config = Config(layers=24, width=1024, heads=16, context=1024)
    >>> [activations(config, 8, checkpointing) // 10**6 for checkpointing in (False, True)]
    [13068, 1477]
    """
    loss, head, block, embedding = peak_moments(replace(config, layers=1), batch)
    # The difference that a second block makes is what each block saves.
    each = peak_moments(replace(config, layers=2), batch)[0] - loss
    if checkpointing:
        first = FLOAT * batch * config.context * config.width
        loss = loss - each + first
        head = head - each + first
        each = first
    # The last block is the first to run backward, when all other blocks have saved
    # their activations.
    return max(max(loss, head, block) + (config.layers - 1) * each, embedding)


def peak_moments(config: Config, batch: int) -> tuple[int, int, int, int]:
    """The bytes at the loss, and in the backward pass of the head, a block and the
    embedding.

    The forecast includes the vectors that the units hold at these moments. Here they
    are subtracted. At the head's moment the unit before the head is not gathered yet.
    """
    layouts, setup = layouts_of(config, 1), Setup(config, 1, batch)
    numbers = extra_moments(setup, layouts, 0)
    held = [FLOAT * units_in_flight(setup, layouts, k) for k in range(len(layouts))]
    return (
        numbers["loss"],
        numbers["backward of the head"] - held[-1] + FLOAT * layouts[-2].padded,
        numbers["backward of block 0"] - held[1],
        numbers["backward of the embedding"] - held[0],
    )


def layouts_of(
    config: Config, world_size: int, policy: Policy = AS_IT_IS, copies: int = 1
) -> list[Layout]:
    """The layouts of all units of the GPT. All blocks share the same ones."""
    with torch.device("meta"):
        model = GPT(replace(config, layers=1))
    first, block, last = (
        layouts_with(policy, unit, world_size, copies) for unit in model
    )
    return [*first, *block * config.layers, *last]


def one_vector(numel: int, world_size: int, policy: Policy = AS_IT_IS) -> Layout:
    """The layout of parameters of which only the number is known."""
    tensor = nn.Parameter(torch.empty(numel, device="meta"))
    low = policy.computes_in(tensor.dtype)
    return plan([("all", tensor)], world_size, computes_in=lambda _: low)[0]


# sidelit: depth Both tables as text, and figures that are not known.


def tables(figures: dict[str, Any]) -> str:
    """Both tables, as text."""
    # All cells have one unit, so that they can be compared: the largest one in which
    # stage 3 takes at least 1.
    least = figures["zero"][3]["total"]
    size, unit = next(pair for pair in UNITS if least >= pair[0] or pair[0] == 1)
    ranks, model = figures["ranks"], figures["model"]
    cost = " + ".join(map(str, figures["bytes_per_parameter"].values()))
    kind = f"{figures['precision']} and {figures['optimizer']}"
    known = [f"{name} {value}" for name, value in (model or {}).items()]
    if known:
        state = "with" if figures["checkpointing"] else "without"
        known += [f"batch {figures['batch']}", f"{state} activation checkpointing"]
    numel = figures["parameters"]
    zero = [
        {**row, "moved": f"{row['moved'] // numel} Ψ = {row['moved']:,}"}
        for row in figures["zero"]
    ]
    under = f", {figures['policy']}" if figures["policy"] else ""
    lines = [
        f"{numel:,} parameters on {ranks:,} rank{'s' * (ranks > 1)}",
        *([", ".join(known)] if known else []),
        f"Each figure is for one rank, in {unit}.",
        "",
        f"By the ZeRO paper: {kind}, {cost} bytes for each parameter",
        *columns(zero, ZERO, size),
        "",
        f"Stored by this library: fp32 and {figures['optimizer']}{under}",
        *columns(figures["own"], OWN, size),
    ]
    return "\n".join(lines)


UNITS = [
    (10**9, "GB of 1,000,000,000 bytes"),
    (10**6, "MB of 1,000,000 bytes"),
    (10**3, "kB of 1,000 bytes"),
    (1, "bytes"),
]
STAGES = ("0  nothing", "1  optimizer", "2  + gradients", "3  + parameters")
ZERO = {
    "parameters": "parameters",
    "gradients": "gradients",
    "state": "optimizer",
    "total": "total",
    "moved": "elements sent",
}
OWN = {
    "parameters": "parameters",
    "state": "optimizer",
    "steady": "between steps",
    "gradients": "gradients",
    "in_flight": "in flight",
    "activations": "activations",
    "host": "on the host",
    "step": "step, at most",
    "sent": "sent",
    "moved": "moved",
}


def columns(rows: list[dict[str, Any]], names: dict[str, str], size: int) -> list[str]:
    """The lines of one table. Figures that are not known have no column."""
    shown = [key for key in names if rows[0][key] is not None]
    lines = [["stage splits", *(names[key] for key in shown)]]
    for row, stage in zip(rows, STAGES, strict=True):
        cells = [cell(row[key], size) for key in shown]
        lines.append([stage, *cells])
    widths = [max(map(len, column)) + 2 for column in zip(*lines, strict=True)]
    return [
        first.ljust(widths[0]) + "".join(map(str.rjust, rest, widths[1:]))
        for first, *rest in lines
    ]


def cell(value: Any, size: int) -> str:
    """A number of bytes in the table's unit; text stays as it is."""
    return value if isinstance(value, str) else f"{value / size:,.1f}"


# sidelit: core


# ## The peak of a construction
#
# > The memory that a rank needs while a model is built unit by unit, computed from shapes alone.
#
# [A model without memory](construct.py) gets its memory one unit at a time. The peak is
# reached while one of the units is being cut. Take two units on 2 ranks in stage 3. Each
# has a matrix of 600 elements in FP32, which is padded to 608:
#
# | moment | shards before | parameters | flat vector | shard | bytes |
# |---|---|---|---|---|---|
# | the first unit is copied and cut | 0 | 600 | 608 | 304 | 6,048 |
# | the second one | 304 | 600 | 608 | 304 | 7,264 |
# | afterwards | 608 | 0 | 0 | 0 | 2,432 |
#
# This section computes the bytes at these moments. The model has no memory, so the
# computation costs nothing at any size. It includes buffers, units with several flat
# vectors, and the changes that [a policy](policy.py) makes to them. It leaves out the
# temporaries of the function that gives a module its values.


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

    Stages 1 and 2 keep [frozen vectors](unit.py#Unit.keep) whole.
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
