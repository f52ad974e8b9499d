r"""# Forecasting a training step

> The bytes that a rank sends and stores in a step, predicted from shapes before anything runs.

A formula is only as good as its comparison with a count. This chapter predicts three
figures for each rank, and [the training script](loop.py) prints them beside the counted
ones. [The ledger](collectives.py#module/the-byte-ledger) counts the sent bytes, and [a
meter](#module/counting-the-stored-bytes) in the last section counts the stored ones.

- **Bytes sent** in a step. In stage 3 each unit crosses the network three times in each
  micro-batch. It is gathered for the forward pass, gathered for the backward pass, and
  then its gradients are reduced. In the other stages it crosses twice. Each time a rank
  sends $(N_d-1)/N_d$ of the padded vector, at 4 bytes an element. The comparison of
  [which parameters were used](unused.py) takes $n$ more numbers, one for each parameter
  tensor. The norm of the gradient, [checked](not_finite.py) once in a step, takes 8
  bytes for each other rank.
- **Steady bytes**, stored between two steps. AdamW keeps two moments, so in stage 3
  there are 12 bytes for each parameter of the shard. The rest is small: padding,
  AdamW's step counters, and the text.
- **Peak bytes**, the most that is stored at any moment of a step. This figure includes
  activations and the units in flight.

$$\text{sent}_3 = 4\,\Bigl(3 \sum_u P_u + 2n\Bigr)\,\frac{N_d-1}{N_d} \qquad
\text{sent}_{0,1,2} = 4\,\Bigl(2 \sum_u P_u + 2n\Bigr)\,\frac{N_d-1}{N_d}$$

The first two figures are exact for any FP32 model without frozen parameters, if each
unit runs once in a forward pass and each micro-batch exchanges its gradients. [A
policy](forecast.py#module/the-bytes-of-a-policy) changes the bytes of an element, and both remain exact.

The peak is known for stage 3 only, without a policy and without checkpoints. For [this
GPT](gpt.py) on a CPU it is exact: the tests compare it with a count, byte for byte,
over many shapes. On a GPU it is an estimate, because attention saves other tensors for
its backward pass. None of the three figures contains the temporaries inside one
operation, the buffers of the communication backend, or the bytes with which an
allocator rounds a size up.

:notation $N_d$: `world_size`, the number of ranks
:notation $P_u$: `padded`, the elements of unit $u$ with its padding
:notation $n$: `numbers`, one for each parameter tensor, in stage 0 two more, as a multiple of $2N_d$
:notation $S_u$: `shard_numel`, a rank's part of them, $P_u / N_d$
:notation $\Psi_r$: the number of parameters in a rank's slices
:notation $d$: `config.width`, the number of values that stand for one position
:notation $h$: `config.heads`, the number of attention heads in a block
:notation $m$: `masters`, the bytes of a number as it is stored
:notation $b$: `computed`, the bytes of a number as modules compute with it
:notation $c$: `collected`, the bytes of a number in the vector that collects gradients
:notation $s$: `sent`, the bytes of a number as it travels in the exchange of gradients
:notation $R$: `copies`, the number of copies of the model
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from shardbook.foundations.agreement import until
from shardbook.foundations.collectives import all_reduce_bytes
from shardbook.foundations.layout import Layout, plan
from shardbook.foundations.torch_private import (
    TorchDispatchMode,
    storage_id,
    tree_leaves,
)
from shardbook.models.gpt import GPT, Config
from shardbook.zero.parameter_sites import dtypes_of, sites_of
from shardbook.zero.policy import Policy

__all__ = [
    "AS_IT_IS",
    "Forecast",
    "Kinds",
    "Meter",
    "Setup",
    "forecast",
    "kinds_of",
    "layouts_with",
    "total",
]

AS_IT_IS = Policy()

FLOAT, INTEGER = 4, 8


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings on which the figures depend.

    :param config: the model's shape
    :param world_size: the number of ranks
    :param batch: the number of windows in one micro-batch on one rank
    :param accumulate: the number of micro-batches in one step
    :param optimizer: `"adamw"`, or `"sgd"` without momentum, which stores nothing
    :param text: the bytes of text that each rank holds
    :param stage: the stage of ZeRO
    :param copies: the number of copies of the model; the ranks of [a
        row](collectives.py#module/ranks-that-share-a-model) share one
    :param policy: the dtypes in which the model computes and its gradients are sent,
        and whether the model is stored on the host
    :param checkpointed: whether the blocks recompute their activations
    :param clipped: whether the gradient's norm is limited before each step
    :param compiled: whether the blocks are compiled
    :param watched: whether the gradients are [checked](not_finite.py) before each step
    """

    config: Config
    world_size: int
    batch: int
    accumulate: int = 1
    optimizer: str = "adamw"
    text: int = 0
    stage: int = 3
    copies: int = 1
    policy: Policy = AS_IT_IS
    checkpointed: bool = False
    clipped: bool = False
    compiled: bool = False
    watched: bool = False

    @property
    def sharing(self) -> int:
        """The number of ranks that share one copy of the model."""
        return self.world_size // self.copies

    @property
    def scaled(self) -> bool:
        """Whether the loss is scaled: in FP16 only, since BF16 has the range of FP32."""
        return self.policy.param_dtype is torch.float16

    @property
    def norm_from(self) -> int:
        """The number of other ranks that send a number for the gradient's norm.

        To clip, the ranks of one copy exchange their norms. In stage 0 they need not,
        since each rank has the whole gradient. A watched run also compares [the losses
        of all ranks](not_finite.py).
        """
        if self.watched:
            return self.world_size - 1
        return self.sharing - 1 if self.clipped and self.stage > 0 else 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """The figures of one rank, in bytes.

    `steady` has one entry for each term, and `moments` one for each moment that may be
    the peak. If the moments are not known, the peak is `None`. `host` is the part of
    the steady bytes that is on the host. `moved` are the bytes that are copied between
    host and device in a step.
    """

    sent: int
    steady: dict[str, int]
    moments: dict[str, int]
    host: int = 0
    moved: int = 0

    @property
    def peak(self) -> int | None:
        return max(self.moments.values(), default=None)

    @property
    def peak_moment(self) -> str:
        """The moment of a step in which the rank stores the most."""
        return max(self.moments, key=self.moments.__getitem__, default="")


def forecast(setup: Setup, rank: int) -> Forecast:
    """Predict the figures of one rank. Ranks differ in their part of the padding."""
    # A model on the meta device has shapes and no values, so it costs nothing at any
    # size.
    with torch.device("meta"):
        model = GPT(setup.config)
    policy = setup.policy
    units = [
        layouts_with(policy, layer, setup.sharing, setup.copies) for layer in model
    ]
    layouts = [layout for unit in units for layout in unit]
    kinds = total(layouts, setup.stage, policy, setup.copies)
    steady = steady_terms(setup, layouts, rank % setup.sharing)
    plain = policy.param_dtype is None and not policy.offload
    changed = setup.checkpointed or setup.compiled
    known = setup.stage == 3 and plain and not changed and setup.copies == 1
    extra = extra_moments(setup, layouts, rank) if known else {}
    moments = {name: sum(steady.values()) + more for name, more in extra.items()}
    # The optimizer's state is on the same device as the masters.
    state = sum(steady.get(name, 0) for name in ("moments", "step counters"))
    # The ranks compare one flag before each step of the optimizer.
    flag = all_reduce_bytes(rank, setup.world_size, FLOAT, FLOAT) if setup.scaled else 0
    # For the norm each rank gets a number of 8 bytes from each of some other ranks.
    norms = 8 * setup.norm_from
    return Forecast(
        sent=setup.accumulate * kinds.sent + flag + norms,
        steady=steady,
        moments=moments,
        host=kinds.masters_on_host + state if policy.offload else 0,
        moved=setup.accumulate * kinds.moved,
    )


def steady_terms(setup: Setup, layouts: list[Layout], rank: int) -> dict[str, int]:
    r"""The bytes that a rank stores between steps.

    With $\Psi_r$ parameters in this rank's slices, and $n$ parameter tensors in the
    model, they are in stage 3

    $$4 \sum_u S_u + 8\,\Psi_r + 4n + \text{text}$$

    The shards include their padding. The moments do not, since an optimizer sees only
    the slices. Below stage 3 the vectors stay whole, with $P_u$ instead of $S_u$. In
    stage 0 the moments are whole, too. The bytes of a policy are in [another
    table](forecast.py#module/the-bytes-of-a-policy).
    """
    kinds = total(layouts, setup.stage, setup.policy)
    terms = {"parameters": kinds.parameters + kinds.masters_on_host}
    if setup.optimizer == "adamw":
        trained = sum(
            sum(pieces(layout, rank)) if setup.stage else layout.numel
            for layout in layouts
        )
        terms["moments"] = 2 * FLOAT * trained
        # AdamW counts the steps of each tensor, even of one that is empty on this rank,
        # unless [another rank has all of it](access.py#hide_absent).
        counted = [n for layout in layouts for n in counts(layout, rank, setup.stage)]
        terms["step counters"] = FLOAT * sum(counted)
    if setup.scaled:
        # The factor, and the steps since it last changed.
        terms["loss scale"] = FLOAT + FLOAT
    return {**terms, "text": setup.text}


def extra_moments(setup: Setup, layouts: list[Layout], rank: int) -> dict[str, int]:
    r"""The bytes beyond the steady ones, at each moment that may be the peak.

    For each token a block saves $16d + 4 + h$ numbers for its backward pass: $5d$ for
    the inputs of its two norms, of its attention's two products and of the expansion,
    $3d$ for the queries, keys and values, $8d$ around the GELU, and the statistics of
    the norms and of the softmax.
    """
    config, last = setup.config, len(layouts) - 1
    d, vocabulary = config.width, config.vocabulary
    tokens = setup.batch * config.context
    saved = 16 * d + 4 + config.heads
    # The tokens and their targets, the positions, the loss, and the gradient with which
    # the backward pass starts.
    inputs = INTEGER * (2 * tokens + config.context) + 2 * FLOAT
    flight = [units_in_flight(setup, layouts, k, rank) for k in range(last + 1)]
    # When the loss is computed, no unit is gathered. Three tensors of the logits' size
    # exist at once: the log-probabilities, their gradient, and the logits' gradient.
    logits = tokens * vocabulary
    numbers = {
        "loss": waiting_gradients(setup, layouts)
        + tokens * (config.layers * saved + 2 * d + 2)
        + 3 * logits
    }
    # While the gradient of the head's matrix is computed, the larger of two tensors
    # exists: the logits' gradient, or the vector that collects the unit's gradients.
    # This is the first gradient of the head to be stored, so the gather of the unit
    # before it has not [begun](scheduler.py#Scheduler.backward_began).
    collected = layouts[last].padded
    numbers["backward of the head"] = (
        flight[last]
        - layouts[last - 1].padded
        + tokens * (config.layers * saved + 2 * d + 2)
        + vocabulary * d
        + max(tokens * d + logits - collected, 0)
    )
    for k in range(1, last):
        # The incoming gradient, and the larger of two others: the one inside the GELU,
        # four times as wide, or that of the second matrix's weights. The gradient of
        # its bias has been stored, and the unit before is being gathered.
        inside = tokens * d + max(4 * tokens * d, 4 * d * d)
        numbers[f"backward of block {k - 1}"] = flight[k] + tokens * k * saved + inside
        # When this block has ended and is freed, the exchange of the layer after it is
        # completed, and the mean takes memory of its own.
        numbers[f"end of block {k - 1}"] = (
            flight[k]
            - layouts[k].padded
            + layouts[k + 1].shard_numel
            + tokens * ((k - 1) * saved + d)
        )
    # The positions are freed by now. Each was as large as two floats.
    numbers["backward of the embedding"] = (
        flight[0] + tokens * d + vocabulary * d - 2 * config.context
    )
    # The optimizer needs all gradients and, for one tensor at a time, two temporaries.
    largest = max(piece for layout in layouts for piece in pieces(layout, rank))
    moments = {name: FLOAT * number + inputs for name, number in numbers.items()}
    moments["optimizer step"] = FLOAT * (
        sum(layout.shard_numel for layout in layouts) + 2 * largest
    )
    return moments


def units_in_flight(setup: Setup, layouts: list[Layout], k: int, rank: int = 0) -> int:
    """The elements that the units hold beyond their shards, in the middle of unit `k`'s
    backward pass.

    Unit `k` is unsharded, and the unit before it is being gathered. One vector collects
    the gradients of unit `k`. The vector of the unit after it is being exchanged, which
    takes memory for [the received pieces](collectives.py#module/all-to-all-instead-of).
    The later units have their shard of the gradients.
    """
    full = [layout.padded for layout in layouts]
    gathered = sum(full[max(0, k - 1) : k + 1])
    received = setup.world_size - (rank in (0, setup.world_size - 1))
    exchanged = sum(
        layout.padded + received * layout.shard_numel
        for layout in layouts[k + 1 : k + 2]
    )
    finished = sum(layout.shard_numel for layout in layouts[k + 2 :])
    return (
        gathered
        + full[k]
        + exchanged
        + finished
        + waiting_gradients(setup, layouts[: k + 2])
    )


def waiting_gradients(setup: Setup, layouts: list[Layout]) -> int:
    """The elements of gradients that the earlier micro-batches have left."""
    return sum(layout.shard_numel for layout in layouts) if setup.accumulate > 1 else 0


def counts(layout: Layout, rank: int, stage: int) -> Iterator[bool]:
    """Whether a rank's optimizer counts the steps of each parameter of a vector."""
    for slot, size in zip(layout.slots, pieces(layout, rank), strict=True):
        yield not (stage and layout.uncut and size < slot.numel)


def pieces(layout: Layout, rank: int) -> list[int]:
    """The sizes of a rank's slices of a vector."""
    return [
        stop - start
        for start, stop in (layout.piece(slot, rank) for slot in layout.slots)
    ]


# ## The bytes of a policy
#
# > A policy's dtypes decide how many bytes a rank stores, gathers and sends for each number.
#
# [A policy](policy.py) sets the dtypes in which numbers are stored, used by modules,
# collected as gradients, and sent. A unit with parameters of several kinds has a flat
# vector for each kind, so this section counts vector by vector. [The
# planner](planner.py) and [the forecast](forecast.py) add the vectors up.
#
# Let a number have $m$ bytes as a master, $b$ in the modules, $c$ as a collected gradient
# and $s$ when it is sent. One vector then takes:
#
# | stage | masters | `full` between uses | gradients, at most | sent for a micro-batch |
# |---|---|---|---|---|
# | 0 | $m\,P_u$ | $b\,P_u$ | $\max(c, m)\,P_u$ | $2s\,(P_u - S_u)$ |
# | 1 | $m\,S_u$ | $b\,P_u$ | $\max(c\,P_u, m\,S_u)$ | $(s + b)(P_u - S_u)$ |
# | 2 | $m\,S_u$ | $b\,P_u$ | $m\,S_u$ | the same |
# | 3 | $m\,S_u$ | 0 | $m\,S_u$ | $(s + 2b)(P_u - S_u)$ |
#
# If modules compute with the masters themselves, the two columns after the stage are one:
# $m\,P_u$ in stages 0 to 2, $m\,S_u$ in stage 3.
#
# With [offload](offload.py) the masters and the mean gradients are on the host. Each rank
# moves only its own part: in $b$ bytes a number before each gather, or in stage 0 before
# each forward pass, and in $s$ bytes after each exchange.
#
# If there are $R$ [copies of the
# model](collectives.py#module/ranks-that-share-a-model), the mean is then taken over
# them, too, and $2s\,S_u\,(R-1)/R$ more bytes are sent.
#
# These figures hold on every backend. Even on NCCL 16-bit gradients are sent in 16 bits,
# by [an all-to-all](collectives.py#module/all-to-all-instead-of), and added in FP32.


@dataclass(frozen=True, slots=True)
class Kinds:
    """The bytes of trainable vectors on one rank.

    :param parameters: on the device, between steps
    :param masters_on_host: parameters on the host
    :param gradients: on the device, at the end of a backward pass
    :param gradients_on_host: at the same moment, on the host
    :param sent: handed to the network for one micro-batch
    :param moved: copied between host and device, for one micro-batch
    """

    parameters: int = 0
    masters_on_host: int = 0
    gradients: int = 0
    gradients_on_host: int = 0
    sent: int = 0
    moved: int = 0

    def __add__(self, other: Kinds) -> Kinds:
        names = [field.name for field in fields(self)]
        return Kinds(*(getattr(self, name) + getattr(other, name) for name in names))


def kinds_of(layout: Layout, stage: int, policy: Policy, copies: int = 1) -> Kinds:
    """The bytes of one trainable vector on one rank.

    >>> import torch
    >>> (layout,) = plan([("weight", nn.Parameter(torch.ones(64, 64)))], world_size=4)
    >>> kinds_of(layout, 3, Policy()).sent, kinds_of(layout, 3, Policy()).parameters
    (36864, 4096)

    :param layout: its length, and the dtypes in which it is stored and computed with
    :param policy: the dtype in which its gradients are sent, and where it is stored
    :param copies: the number of copies of the model
    """
    masters, computed = layout.dtype.itemsize, layout.computes_in.itemsize
    collected = policy.collects_in(layout.computes_in).itemsize
    sent = policy.sends_in(layout.computes_in).itemsize
    whole, part = layout.padded, layout.shard_numel
    kept = part if stage else whole
    own, mean = masters * kept, masters * kept
    # Stages 0 and 1 keep the collected gradients until the backward pass ends.
    vectors = collected * whole if stage < 2 else 0
    copied = layout.computes_in != layout.dtype or policy.offload
    if not copied:
        full, own = (0, own) if stage == 3 else (masters * whole, 0)
    else:
        full = 0 if stage == 3 else computed * whole
    gathers = (0, 1, 1, 2)[stage]
    reduced = 2 if stage == 0 else 1
    # In stage 0 the masters come from the host without a gather, once for each forward
    # pass.
    entered = max(gathers, 1)
    return Kinds(
        parameters=full if policy.offload else full + own,
        masters_on_host=own if policy.offload else 0,
        gradients=vectors if policy.offload else max(vectors, mean),
        gradients_on_host=mean if policy.offload else 0,
        sent=(reduced * sent + gathers * computed) * (whole - part)
        # The mean is then taken [over the copies](collectives.py#Groups.mean).
        + 2 * sent * (copies - 1) * part // copies,
        moved=(entered * computed + sent) * kept if policy.offload else 0,
    )


def total(
    layouts: Iterable[Layout], stage: int, policy: Policy, copies: int = 1
) -> Kinds:
    """The bytes of all vectors of a model.

    They include [the comparison](unused.py) of the parameters that were used, an
    all-reduce of 4 bytes for each parameter tensor.

    :param layouts: of its trainable vectors
    :param copies: the number of copies of the model
    """
    layouts = list(layouts)
    numbers = sum(len(layout.slots) for layout in layouts) + 2 * (stage == 0)
    size = copies * max((layout.world_size for layout in layouts), default=1)
    compared = 4 * (numbers + -numbers % (2 * size))
    return sum(
        (kinds_of(layout, stage, policy, copies) for layout in layouts),
        Kinds(sent=2 * (size - 1) * compared // size),
    )


def layouts_with(
    policy: Policy,
    unit: nn.Module,
    world_size: int,
    copies: int = 1,
    uncut: Container[str] = (),
) -> tuple[Layout, ...]:
    """The layouts of a unit's vectors, as sharding under the policy would cut them.

    :param unit: not sharded; it may be on the meta device
    :param world_size: the number of ranks that share one copy of the model
    :param copies: the number of copies
    :param uncut: the names in the unit of parameters that belong whole to one rank
    :returns: one layout for each kind of parameter
    """
    dtypes = dtypes_of(policy, sites_of(unit))
    return plan(unit.named_parameters(), world_size, copies, dtypes, uncut)


# ## Counting the stored bytes
#
# > A meter adds up the memory of all live tensors after every operation.
#
# Memory is easy to misjudge. Of the allocator's figures, `memory_reserved` includes its
# cache and `memory_allocated` does not. The system's figures include the interpreter. And
# none of them tells which tensor takes the memory. This meter counts *storages*, the
# blocks of memory under the tensors. Two views of one storage count once. A storage that
# was shrunk to nothing, such as [a unit's vector](flat.py) between its uses, counts
# nothing.
#
# ```python
# with Meter() as meter:
#     step()
# print(meter.peak, meter.now())
# ```
#
# The meter is slow, so use it for one step and not for a whole run.


class Meter(TorchDispatchMode):
    """Counts the bytes of all live storages, on all devices except `meta`.

    The meter sees each operation below autograd. So it also sees the tensors to which
    only the graph refers. A sparse tensor has no storage of its own, and is left out.
    The book makes none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        # The key is the storage's address in C++. An entry goes when its storage does:
        # torch keeps a storage's Python object for as long as the storage is in use,
        # and weak references follow that object.
        self.storages: WeakValueDictionary[int, torch.UntypedStorage] = (
            WeakValueDictionary()
        )

    def __enter__(self) -> Meter:
        wait_for_gloo()
        # Tensors from before the step are stored even if the step does not use them.
        # `type` is used because `isinstance` reads the object's class, and for some
        # objects that raises a warning.
        gc.collect()
        for thing in gc.get_objects():
            if issubclass(type(thing), Tensor):
                self.see(thing)
        self.peak = self.now()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        wait_for_gloo()

    def __torch_dispatch__(
        self,
        operation: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, result)):
            if isinstance(value, Tensor):
                self.see(value)
        self.peak = max(self.peak, self.now())
        return result

    def see(self, tensor: Tensor) -> None:
        """Record the storage under a tensor."""
        if tensor.layout is torch.strided and not tensor.is_meta:
            storage = tensor.untyped_storage()
            self.storages[storage_id(storage)] = storage

    def now(self) -> int:
        """The bytes of all storages that are alive, at their present sizes."""
        return sum(storage.nbytes() for storage in self.storages.values())

    def settled(self) -> int:
        """The same, when the exchanges before have let go of their tensors."""
        wait_for_gloo()
        return self.now()


# sidelit: depth What gloo still holds.


def wait_for_gloo() -> None:
    """Wait until gloo's threads have let go of the tensors that they have exchanged.

    Such a thread holds them for a moment after it has reported the end of the exchange,
    and on a busy machine the moment may be half a second. Then it sleeps. So this
    function waits until all other threads of the process sleep, for at most two
    seconds.
    """
    # A thread that sleeps may also wait for Python's lock, which reading a file gives
    # away. So each thread must be found asleep twice.
    until(lambda: others_sleep() and others_sleep(), timedelta(seconds=2))


def others_sleep() -> bool:
    """Whether no other thread of this process runs. Only Linux tells; elsewhere the answer is yes."""
    own = str(threading.get_native_id())
    states = Path("/proc/self/task").glob("*/stat")
    return not any(runs(each) for each in states if each.parent.name != own)


def runs(state: Path) -> bool:
    """Whether a thread runs or is ready to. One that has ended does not."""
    try:
        # The name of a thread stands before this, in parentheses.
        return state.read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False
