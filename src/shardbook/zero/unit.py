r"""# A unit

> A unit is a group of layers whose parameters are gathered, freed and exchanged together.

A *unit* is, for example, one transformer block. Before a unit computes, each of the
$N_d$ ranks must hold all of its parameters. After the unit's backward pass, the
gradients of all ranks are averaged. The four stages of this book differ in two points:
how much of a unit each rank keeps between two uses, and when the average is taken.
Stages 1 to 3 are those of the [ZeRO paper](bib:rajbhandari2020zero). Stage 0 is plain
data parallelism, and has its number from DeepSpeed:

| stage | a rank keeps its part of |
|---|---|
| 0 | nothing; it keeps everything whole |
| 1 | the optimizer's state |
| 2 | the optimizer's state and the gradients |
| 3 | the optimizer's state, the gradients and the parameters |

This chapter holds the three states of a unit, the steps from one state to the next, and
the exchange of the gradients. [At its end](#Stage) stand the stages, each of which
splits one thing more than the one before. A unit becomes whole by
*gathering* and gives the memory back by *freeing*; FSDP calls these two steps *unshard*
and *reshard*. [The hooks of a layer](hooks.py) decide when the steps are taken.

The table below names the tensors of one flat vector. Its example is that of [the
layout](layout.py), two linear layers with 68 values on 2 ranks. There `full` has 96
elements, because 28 of them are padding. `shard` has 48 on each rank, and `parameters`
have 68 on both ranks together:

| name | elements | what it is |
|---|---|---|
| `full` | $P_u = N_d S_u$ | the whole vector, in the dtype of the computation |
| `whole` | $\Psi_u$ together | the parameters in their original shapes, as views into `full` |
| `shard` | $S_u$; in stage 0 $P_u$ | the part of the vector that this rank [keeps](flat.py) |
| `parameters` | those of `shard` without padding | the model's own parameters, as views into `shard` |
| `grad_full` | $P_u$ | this rank's gradients, laid out like `full` |
| `sending` | $P_u$ | the same gradients while they are exchanged |
| `parameters[i].grad` | those of `parameters[i]` | the mean gradient |

In stages 1 to 3 two equations connect these tensors. First, `full` consists of the
shards of all ranks side by side, each cast to the dtype of `full`. Second, rank $r$
receives the $r$-th piece of the mean of all ranks' gradients, and adds it to
`parameters[i].grad`:

$$\mathrm{full} = \mathrm{shard}_0 \,\Vert\, \mathrm{shard}_1 \,\Vert \cdots \Vert\, \mathrm{shard}_{N_d-1}$$

$$\mathrm{mean}_r = \frac{1}{N_d} \sum_{k=0}^{N_d-1} \mathrm{grad\_full}_k[\,rS_u : (r+1)S_u\,]$$

A mesh of two dimensions holds several copies of the model. There the ranks of one copy
average first, and that mean is then averaged [over the copies](collectives.py#Groups.mean).
In stage 0 every rank keeps the whole vector and receives the whole mean. A parameter
that no rank has used in a step [keeps the gradient `None`](unused.py). [The
layout](layout.py) adds padding so that $N_d$ divides $P_u$ and every parameter begins
at an aligned address. Hence $P_u \ge \Psi_u$.

:figure: unit_states
:notation $N_d$: `world_size`, the number of ranks that share the unit
:notation $\Psi_u$: `numel`, the number of parameters of the unit
:notation $P_u$: `padded`, the length of the flat vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part of it
:notation $r$: `rank`, the number of one rank
:notation $m$: the number of micro-batches in a step
:notation $k$: the number of stages that follow in a pipeline
:notation $P_{os}$: the paper's name for this stage
:notation $P_{os+g}$: the paper's name for this stage
:notation $P_{os+g+p}$: the paper's name for this stage
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
)
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from shardbook.foundations.collectives import (
    Groups,
    Mean,
    PendingPart,
    all_gather,
    all_gather_together,
    world,
)
from shardbook.foundations.exchange_order import Order
from shardbook.foundations.hook_context import label
from shardbook.foundations.layout import plan
from shardbook.foundations.streams import compute_stream, give_back, streams
from shardbook.foundations.torch_private import as_plain, shares_storage
from shardbook.zero.access import guard_slices
from shardbook.zero.flat import Flat, resize
from shardbook.zero.offload import move_out
from shardbook.zero.optimizer_guard import register_guard
from shardbook.zero.parameter_sites import Site, dtypes_of
from shardbook.zero.policy import Policy
from shardbook.zero.refusals import refuse_replaced_in
from shardbook.zero.whole_parameter import Freed, Whole, set_class

if TYPE_CHECKING:
    from shardbook.zero.unused import Usage

__all__ = [
    "BUNDLE",
    "STAGES",
    "Bundle",
    "Stage",
    "State",
    "Unit",
    "bundles",
    "gather_together",
    "gathered_alike",
    "reduced_alike",
]


class State(Enum):
    """How much of `full` is valid at a moment.

    `gather` leads from `SHARDED` to `GATHERING`, `wait` leads on to `WHOLE`, and `free`
    leads back to `SHARDED`. Stages 0 to 2 have the same states, although their `free`
    gives no memory back.
    """

    SHARDED = "only what this rank keeps may be relied on"
    GATHERING = "the parts of the other ranks are on their way into `full`"
    WHOLE = "`full` is complete, and may be computed with"


class Unit:
    """The parameters of one unit, and the transitions between its states.

    :param stage: what the ranks split between them, [0 to 3](#Stage)
    :param name: the unit's name in messages, such as `the block layers.0`
    :param sites: [the places of its parameters](parameter_sites.py#Site) in the model,
        in the order of the flat vector
    :param groups: [the ranks](collectives.py#Groups) that share the unit
    :param policy: [the dtypes](policy.py#Policy) in which the unit computes and
        exchanges
    :param order: [the check](exchange_order.py#Order) that all ranks issue the same
        exchanges
    :param synchronize: whether the values of rank 0 replace those of the other ranks
    :param uncut: the names of parameters that [belong whole to one
        rank](layout.py#uncut_offsets)
    """

    def __init__(
        self,
        stage: int,
        name: str,
        sites: Sequence[Site],
        *,
        groups: Groups,
        policy: Policy,
        order: Order,
        synchronize: bool = True,
        uncut: Container[str] = (),
    ) -> None:
        self.stage = stage
        self.splits = STAGES[stage]
        self.name = name
        self.sites = tuple(sites)
        self.groups = groups
        self.order = order
        self.state = State.SHARDED
        # The dictionaries of parameters of the modules, for each site.
        self.owners: list[dict[str, nn.Parameter | None]] = []
        # Whether `full` holds the values of the current parameters, at first [not](#Unit.expire).
        self.fresh: bool
        self.expire()
        # Whether the modules hold the whole parameters at this moment.
        self.shown = False
        # Whether the unit computes with [the masters themselves](flat.py#Flat/master-weights).
        self.precise = False
        # Whether a compiler runs a module of the unit.
        self.compiled = False
        # The number of blocks that [keep the unit whole](whole.py) now.
        self.pins = 0
        self.rank, world_size = world(groups.shards)
        # A unit can hold several flat vectors, [one for each kind of
        # parameter](layout.py#plan): a frozen parameter needs no gradient, and a 16-bit
        # parameter needs half the bytes.
        named = {site.name: site.parameter for site in self.sites}
        dtypes = dtypes_of(policy, self.sites)
        self.flats = tuple(
            Flat(layout, named, policy)
            for layout in plan(named.items(), world_size, groups.copies, dtypes, uncut)
        )
        for flat in self.flats:
            if synchronize:
                groups.copy_from_first(flat.full)
            self.keep(flat)
            flat.order = order
            guard_slices(flat, name)
        # The vectors whose parameters can be trained, [now or
        # later](whole_parameter.py#module/freezing-and-unfreezing). Only these ever
        # have a gradient.
        self.trainable = tuple(flat for flat in self.flats if flat.learns)
        self.match_sites()
        # The vectors that are filled before each use: those of which a rank keeps a
        # part, and those that are stored in [another dtype or place](flat.py) than
        # modules compute with. Stage 0 without a policy has none.
        self.filled = tuple(f for f in self.flats if f.sliced or f.converts)
        self.parted = tuple(flat for flat in self.flats if flat.sliced)
        # The vectors whose masters have another dtype than modules compute in.
        self.narrowed = tuple(flat for flat in self.flats if flat.narrowed)
        # The work around the exchanges runs on [two streams](streams.py) of its own.
        self.home = self.flats[0].device
        self.device = torch.get_device_module(self.home)
        self.gather_stream, self.reduce_stream = streams(self.home)
        # The record of the parameters that [any rank has used](unused.py). It is kept
        # only where a unit needs it as soon as its mean gradients have arrived.
        self.usage: Usage | None = None
        # The name under which its gradients were exchanged last.
        self.exchanged_as = name
        # Functions to call each time the mean gradients have arrived.
        self.after_reduce: list[Callable[[Unit], None]] = []
        register_guard()

    def keep(self, flat: Flat) -> None:
        """Choose the part of a flat vector that this rank keeps between uses.

        In stages 1 and 2 a frozen parameter has no optimizer state that could be split.
        It stays whole and is not exchanged, unless it [is trained
        later](whole_parameter.py#module/freezing-and-unfreezing). In stage 3 frozen
        parameters are split, too, since they take as much memory as others. There the
        part gets a vector of its own, because `full` is emptied.
        """
        trained = self.splits.optimizer and flat.layout.trainable
        if not (trained or self.splits.parameters):
            flat.keep_whole()
            return
        flat.keep_part(self.rank, apart=self.splits.parameters)
        if self.splits.parameters:
            resize(flat.full, 0)

    @property
    def pending(self) -> tuple[Flat, ...]:
        """The flat vectors whose gradients are to be exchanged next."""
        return tuple(flat for flat in self.trainable if flat.pending)

    @property
    def counterpart(self) -> dict[nn.Parameter, nn.Parameter]:
        """From a parameter of the model to its counterpart in `whole`."""
        return {
            parameter: whole
            for flat in self.flats
            for parameter, whole in zip(flat.parameters, flat.whole, strict=True)
        }

    def match_sites(self) -> None:
        """Note the whole parameter of each site.

        Tied sites name one parameter. They get the same whole one, so they stay tied.
        """
        counterpart = self.counterpart
        self.wholes = [counterpart[site.parameter] for site in self.sites]

    @property
    def nbytes(self) -> int:
        """The bytes of the whole unit in the dtype of `full`, padding included."""
        return sum(flat.layout.padded * flat.full.itemsize for flat in self.flats)

    def gather(self) -> None:
        """Start to make the unit whole; `SHARDED` becomes `GATHERING`.

        In the other two states there is nothing to start. So a caller that needs the
        unit calls `gather` without asking whether the unit was prefetched.
        """
        if self.state is not State.SHARDED:
            return
        self.prepare()
        with label("gather", self.name):
            if self.filled and not self.fresh:
                self.fetch()
        self.state = State.GATHERING

    def fetch(self) -> None:
        """Start to fill `full`: copy the masters into it, and gather the other ranks'
        parts.
        """
        # The gather stream must wait for the compute stream, for two reasons. First,
        # the optimizer's last write to the shard is queued there. Without this wait the
        # other ranks would receive the weights of the step before, and no error would
        # be raised. Second, an earlier computation may still read the memory that the
        # gather overwrites.
        self.gather_stream.wait_stream(compute_stream(self.home))
        with self.device.stream(self.gather_stream):
            for flat in self.filled:
                piece = flat.piece() if flat.converts else flat.shard
                if flat.sliced:
                    flat.gathering = all_gather(
                        flat.full, piece, group=self.groups.shards
                    )

    def prepare(self) -> None:
        """Prepare the modules and `full` for a gather.

        In stage 3 the memory of `full` is allocated, on the compute stream. The allocator
        hands out a block at once, although an earlier computation that is queued on
        this stream may still read it. For work on the same stream that is safe, because
        a stream keeps its order.
        """
        self.owners = refuse_replaced_in(self)
        if not self.filled or self.fresh:
            return
        if self.splits.parameters:
            for flat in self.flats:
                resize(flat.full, flat.layout.padded)
        if self.parted:
            self.order.before("gather", self.name, self.sites[0].name)

    def comes_with(self, parts: Iterable[PendingPart]) -> None:
        """Note that the unit is being gathered [together with others](#gather_together)."""
        for flat, part in zip(self.filled, parts, strict=False):
            flat.gathering = part
        self.state = State.GATHERING

    def wait(self) -> None:
        """Wait until the unit is whole; its state becomes `WHOLE`."""
        # A unit whose data is still there may have been gathered for another stream.
        compute_stream(self.home)
        self.gather()
        if self.state is State.GATHERING:
            with label("wait for", self.name):
                if self.filled and not self.fresh:
                    self.finish_fetch()
                self.fresh = True
                if self.splits.parameters:
                    for flat in self.flats:
                        set_class(flat.whole, Whole)
            self.state = State.WHOLE

    def finish_fetch(self) -> None:
        """Wait until `full` is filled."""
        # The backend runs its exchanges on a stream of its own, and the gather stream
        # waits for that stream here. On gloo and a CPU there are no streams, so this
        # thread waits until the bytes have arrived.
        with self.device.stream(self.gather_stream):
            for flat in self.parted:
                assert flat.gathering is not None
                self.order.watch(flat.gathering.works)
                flat.gathering.wait()
        # Without this wait the computation could start on a vector that is still being
        # filled.
        compute_stream(self.home).wait_stream(self.gather_stream)

    def show(self, whole: bool = True) -> None:
        """Put the whole parameters into the modules, or put the model's own parameters
        back.

        :param whole: whether the modules get the whole parameters
        :raises RuntimeError: if the unit is not whole
        """
        if whole is self.shown:
            return
        if whole and self.state is not State.WHOLE:
            raise RuntimeError(f"{self.name} is not whole; wait for it first")
        self.shown = whole
        with as_plain():
            for flat in self.flats:
                if self.compiled:
                    set_class(flat.whole, nn.Parameter)
                flat.use(whole)
        for site, own, one in zip(self.sites, self.owners, self.wholes, strict=True):
            parameter = one if whole else site.parameter
            # In a plain module it is enough to change the dictionary of parameters. A
            # module with a `__setattr__` of its own, such as a recurrent layer, must see
            # the change, or it would compute with the old parameter.
            if type(site.module).__setattr__ is nn.Module.__setattr__:
                own[site.attribute] = parameter
            else:
                setattr(site.module, site.attribute, parameter)

    def free(self) -> None:
        """Give back the memory that need not be kept; the unit becomes `SHARDED`.

        In every stage the modules get the model's own parameters back. So an optimizer
        that reads `model.parameters()` gets the parameters that it can train.
        """
        if self.pins:
            return
        self.show(False)
        if self.state is State.SHARDED:
            return
        # A prefetch that was never used may still be writing into `full`. If `full`
        # were freed now, the exchange would write into memory that the allocator has
        # given to another tensor.
        self.wait()
        with label("free", self.name):
            self.empty()
        self.state = State.SHARDED
        if self.narrowed:
            self.switch(self.precise)

    def empty(self) -> None:
        """Free the memory that need not be kept between uses. Only stage 3 has any.

        Dropping the reference to the vector would free nothing, because the autograd
        graph keeps views of it for the backward pass. Shrinking the storage under those
        views to zero bytes frees it. When the unit is gathered again, the same storage
        grows again, and the graph's views show the parameters as before.

        DeepSpeed instead points each parameter at a tensor with one element. This frees
        the memory only if the graph has no view of it, such as a transposed weight.
        """
        if self.splits.parameters:
            for flat in self.flats:
                set_class(flat.whole, Freed)
                resize(flat.full, 0)
            self.fresh = False
        give_back(self.home)

    def expire(self) -> None:
        """Fill `full` again before the next use, because ranks may have stepped.

        A rank cannot see the other ranks' steps. Suppose it kept the gathered
        parameters until its own optimizer steps. It would then compute with old weights
        whenever another rank steps alone. So every forward pass of the model gathers,
        and only the backward pass after it relies on the same parameters.
        [Micro-batches](accumulate.py) whose gradients are not exchanged are the
        exception.
        """
        self.fresh = False

    def reduce(self) -> None:
        """Start to exchange the gradients for their mean.

        Every rank takes part, even one whose step used none of these parameters. If
        that rank stayed away, the others would wait for it until their time limit. A
        vector whose parameters are all frozen is not exchanged.

        :raises RuntimeError: if the last exchange of this unit is not finished
        """
        pending = self.pending
        if not pending:
            return
        self.exchanged_as = self.name
        if any(flat.reducing is not None for flat in pending):
            raise RuntimeError(f"{self.name} is being reduced; finish that first")
        with label("reduce", self.name):
            # Stage 0 is left out, because there the ranks have already
            # [compared](unused.py) the vectors that they are about to send.
            if self.stage:
                self.order.before("reduce", self.name, self.sites[0].name)
            for flat in pending:
                flat.send()
            # The compute stream writes the gradients. Without this wait the exchange
            # may start before the last gradient is written, and the other ranks receive
            # a vector that is half old.
            self.reduce_stream.wait_stream(compute_stream(self.home))
            with self.device.stream(self.reduce_stream):
                for flat in pending:
                    assert flat.sending is not None
                    flat.reducing = self.groups.mean(flat.sending)

    def advance(self) -> bool:
        """Wait for the exchange under way, then start the next one or store the mean.

        In stages 1 to 3 on one copy of the model, a mean needs a single exchange. With
        several copies [it needs more](collectives.py#Groups.mean), and each call of
        `advance` starts the next. When none is left, the mean is added to the gradients
        of the model's parameters.

        The rank computes between `reduce` and this call, and between two such calls.
        That computation hides the exchange if it takes at least as long.

        :returns: whether another exchange is under way
        """
        due = [(flat, flat.reducing) for flat in self.trainable if flat.reducing]
        # The exchanges between copies are a part of the common order, too.
        if due and due[0][1].later:
            self.order.before(due[0][1].later[0], self.name, self.sites[0].name)
        with label("wait for the mean of", self.name):
            for flat, mean in due:
                # The reduce stream allocates the sum. The allocator may give it the
                # block of an earlier mean that the compute stream still reads, so the
                # reduce stream waits first.
                self.reduce_stream.wait_stream(compute_stream(self.home))
                with self.device.stream(self.reduce_stream):
                    self.order.watch(mean.works)
                    piece = mean.advance()
                    if piece is not None and not flat.sliced:
                        piece = self.whole_mean(flat, piece)
                    if piece is not None and flat.offloaded:
                        piece = move_out(piece)
                # Without this wait the optimizer could read the mean before it is
                # complete, and the memory of `sending` could be used again while the
                # exchange still reads it.
                compute_stream(self.home).wait_stream(self.reduce_stream)
                if piece is None:
                    flat.sent()
                else:
                    flat.receive(piece)
        give_back(self.home)
        if any(flat.reducing for flat, _ in due):
            return True
        if self.usage is not None:
            self.usage.settle([self])
            self.usage = None
        for act in self.after_reduce if due else ():
            act(self)
        return False

    def whole_mean(self, flat: Flat, piece: Tensor) -> Tensor:
        """The whole mean gradient, gathered from the ranks' pieces.

        A rank that keeps its part of the vector needs only its own piece of the mean,
        which is what the reduce-scatter left. In stage 0, and for a vector that was
        frozen when the model was sharded and is [trained later](whole_parameter.py),
        every rank needs the whole mean. So it gathers the pieces, which is the second
        half of the all-reduce. The vector that was sent is no longer needed, so it
        receives the mean.

        :param piece: the piece of the mean that belongs to this rank, in one dimension
        """
        assert flat.sending is not None
        all_gather(flat.sending, piece, group=self.groups.shards).wait()
        # A thread of the backend may refer to that vector a little longer. The gradient
        # gets memory of its own, which is free as soon as `zero_grad` drops the
        # gradient.
        return flat.sending.clone()

    # sidelit: depth Parameters changed between two passes, full precision, unused parameters, freed views.

    @property
    def version(self) -> int:
        """A number that grows each time the model's own parameters are changed."""
        return sum(flat.version for flat in self.flats)

    def switch(self, precise: bool) -> None:
        """Choose the dtype of the next gather: the masters' dtype, or the policy's.

        :param precise: whether `full` takes the dtype of [the masters](flat.py#Flat/master-weights)
        """
        if sum(flat.switch(precise) for flat in self.narrowed):
            self.match_sites()
            self.empty()
            self.expire()

    def add_zero(self) -> None:
        """Add the gradient zero to all parameters of the unit.

        This happens when [`unused="zero"`](unused.py) was chosen and no rank has used
        the unit in this step.
        """
        for flat in self.trainable:
            flat.add_zero()
        for act in self.after_reduce:
            act(self)

    def owns(self, tensor: Tensor) -> bool:
        """Whether a tensor is a view into `full`, whose memory is freed with the unit."""
        strided = tensor.layout is torch.strided
        return strided and any(shares_storage(tensor, flat.full) for flat in self.flats)


# ## Small units exchange together
#
# > In stages 0 and 1 neighbouring units of few parameters send their gradients in one exchange.
#
# An exchange of a few kilobytes takes as long as one of a few hundred, because most of its
# time goes into starting it. A model of 64 small layers would start 64 exchanges at the end
# of a backward pass. So units whose gradients are exchanged at that moment are taken
# together, as long as they fit into `BUNDLE` bytes. A larger unit is exchanged by itself.
# In stages 2 and 3 each unit is [exchanged while the next one
# computes](scheduler.py#Scheduler.reduce), which gives the memory of its gradients back.
#
# A reduce-scatter leaves rank $r$ the $r$-th piece of a vector. So the vector of a bundle has
# the $r$-th pieces of all its units side by side. Each element is added up over the ranks as
# before, in the same order, and each rank sends the same number of bytes. The vectors of
# PyTorch's `DistributedDataParallel`, its *buckets*, have 25 MB for the same reason.
#
# A program that has the memory can [ask for more](scheduler.py#Prefetch): small units are
# then [gathered in one exchange](#gather_together), before they are due, and in stages 2
# and 3 their gradients are [kept for one exchange](scheduler.py#Scheduler.reduce_together).


class Bundle:
    """Some units whose gradients are exchanged together.

    :param units: the units, all of one stage and one policy, in the order in which their
        gradients would be exchanged
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self.lead = units[0]
        self.name = f"{self.lead.name} and {len(units) - 1} more"
        self.flats = [flat for unit in units for flat in unit.pending]
        self.mean: Mean | None = None
        # The vector that is exchanged.
        self.rows: Tensor
        for unit in units:
            unit.exchanged_as = self.name

    def reduce(self) -> None:
        """Start to exchange the gradients, as [`Unit.reduce`](#Unit.reduce) does."""
        lead, ranks = self.lead, self.flats[0].layout.world_size
        with label("reduce", self.name):
            for unit in self.units if lead.stage else ():
                unit.order.before("reduce", unit.name, unit.sites[0].name)
            for flat in self.flats:
                flat.send()
            sent = [flat.sending for flat in self.flats if flat.sending is not None]
            rows = torch.cat([each.view(ranks, -1) for each in sent], dim=1)
            self.rows = rows.view(-1)
            # Otherwise the gradients would exist twice during the exchange.
            for each in sent:
                resize(each, 0)
            lead.reduce_stream.wait_stream(compute_stream(lead.home))
            with lead.device.stream(lead.reduce_stream):
                self.mean = lead.groups.mean(self.rows)
        for flat in self.flats:
            flat.reducing = self.mean

    def advance(self) -> bool:
        """Wait for the exchange under way, as [`Unit.advance`](#Unit.advance) does."""
        lead, mean = self.lead, self.mean
        assert mean is not None
        if mean.later:
            lead.order.before(mean.later[0], lead.name, lead.sites[0].name)
        with label("wait for the mean of", self.name):
            # What the compute stream read of the bundle before has been waited for when this
            # exchange was started.
            with lead.device.stream(lead.reduce_stream):
                lead.order.watch(mean.works)
                piece = mean.advance()
                parts = None if piece is None else self.parts(piece)
            compute_stream(lead.home).wait_stream(lead.reduce_stream)
            for flat, part in zip(self.flats, parts or (), strict=bool(parts)):
                flat.receive(part)
            resize(self.rows, 0)
        give_back(lead.home)
        if piece is None:
            return True
        for unit in self.units:
            unit.usage = None
        return False

    def parts(self, piece: Tensor) -> list[Tensor]:
        """The part of the mean that each vector receives, in memory of its own.

        :param piece: this rank's pieces of the mean, side by side
        """
        whole = piece.view(1, -1)
        if self.lead.splits.optimizer:
            resize(self.rows, 0)
        else:
            # The vector that was sent is no longer needed, so it receives the whole mean.
            all_gather(self.rows, piece, group=self.lead.groups.shards).wait()
            whole = self.rows.view(self.flats[0].layout.world_size, -1)
        sizes = [flat.layout.shard_numel for flat in self.flats]
        parts = (
            part.clone(memory_format=torch.contiguous_format).view(-1)
            for part in whole.split(sizes, dim=1)
        )
        return [
            move_out(part) if flat.offloaded else part
            for flat, part in zip(self.flats, parts, strict=True)
        ]


# The most bytes of gradients that are exchanged together. While they are put side by side,
# they exist twice, so their number is limited.
BUNDLE = 2**22


def bundles(
    units: Iterable[Unit], most: int, alike: Callable[[Unit], tuple[Hashable, int]]
) -> Iterator[list[Unit]]:
    """Cut units into groups that are exchanged together, in the same order.

    :param most: the most bytes of a group; a larger unit is a group of its own
    :param alike: gives what the units of a group have in common, and the bytes of a unit;
        `None` for a unit that is exchanged by itself
    """
    group: list[Unit] = []
    room, kind = most, None
    for unit in units:
        before, (kind, nbytes) = kind, alike(unit)
        room -= nbytes
        if group and (room < 0 or kind is None or kind != before):
            yield group
            group = []
        if not group:
            room = most - nbytes
        group.append(unit)
    if group:
        yield group


def reduced_alike(unit: Unit) -> tuple[Hashable, int]:
    """What units must have in common whose gradients are exchanged [together](#Bundle)."""
    dtypes = {flat.sends_in for flat in unit.pending}
    alone = unit.after_reduce or len(dtypes) != 1
    # A vector that was frozen when the model was sharded is not cut in stage 1.
    whole = any(flat.sliced is not unit.splits.optimizer for flat in unit.pending)
    nbytes = sum(flat.layout.padded * flat.sends_in.itemsize for flat in unit.pending)
    return None if alone or whole else tuple(dtypes), nbytes


def gathered_alike(unit: Unit) -> tuple[Hashable, int]:
    """What units must have in common that are gathered [together](#gather_together)."""
    dtypes = {flat.full.dtype for flat in unit.filled}
    whole = unit.fresh or not all(flat.sliced for flat in unit.filled)
    alike = None if whole or len(dtypes) != 1 else (unit.home, *dtypes)
    return alike, unit.nbytes


def gather_together(units: Sequence[Unit]) -> None:
    """Start to make units whole [in one exchange](scheduler.py#Prefetch), as
    [`Unit.gather`](#Unit.gather) does for one.
    """
    lead, *others = units
    if not others:
        lead.gather()
        return
    for unit in units:
        unit.prepare()
    with label("gather", f"{lead.name} and {len(others)} more"):
        # As in `fetch`, the optimizer may still write to the shards.
        lead.gather_stream.wait_stream(compute_stream(lead.home))
        with lead.device.stream(lead.gather_stream):
            flats = [flat for unit in units for flat in unit.filled]
            parts = all_gather_together(
                [flat.full for flat in flats],
                [flat.piece() for flat in flats],
                group=lead.groups.shards,
            )
    rest = iter(parts)
    for unit in units:
        unit.comes_with(rest)


class Stage(NamedTuple):
    """What the ranks split between them, instead of keeping it whole on each.

    :param optimizer: the parameters that the optimizer trains, and its state for them
    :param gradients: the mean gradients, which are exchanged [as soon as the unit's own
        backward pass ends](scheduler.py#Scheduler.reduce)
    :param parameters: the parameters between two uses
    """

    optimizer: bool = False
    gradients: bool = False
    parameters: bool = False


# ## Stage 0: every rank keeps everything
#
# > Plain data parallelism: each rank stores the whole model, and the ranks average their gradients.
#
# Every rank holds the whole model and computes with its own data. After the backward pass
# the ranks average their gradients. Since all of them then take the same step, their
# models stay equal.
#
# The ranks of stage 0 need not run the same units. In the other stages they must, because
# each gather needs all ranks, but in stage 0 nothing is gathered. So each rank may drop
# layers of its own. At the end of the backward pass the ranks [compare which units any of
# them has used](unused.py).
#
# Stage 0 saves no memory. With AdamW in FP32 a rank stores 16 bytes for each parameter: 4
# for the parameter, 4 for its gradient, and 8 for the two moments of the optimizer. With
# 64 ranks the same 16 bytes are stored 64 times. The next three stages split one of these
# terms after the other.
#
# An average over all ranks costs one all-reduce of the gradients. For each unit, a rank
# sends
#
# $$2\,P_u\,\frac{N_d - 1}{N_d}$$
#
# elements.
REPLICATED = Stage()

# ## Stage 1: the optimizer's state is split
#
# > Each rank updates its own part of the parameters, and gathers the updated parts of the other ranks.
#
# An optimizer such as AdamW stores two numbers for each parameter, which are needed only
# where that parameter is updated. So each rank updates $1/N_d$ of a unit, and stores the
# optimizer's state for this part alone. The table counts the bytes of a unit in FP32,
# without a policy. Gradients are counted at the end of the backward pass, where they take
# the most memory:
#
# | | parameters | gradients | AdamW |
# |---|---|---|---|
# | stage 0 | $4\,\Psi_u$ | $4\,\Psi_u$ | $8\,\Psi_u$ |
# | stage 1 | $4\,\Psi_u$ | $4\,\Psi_u$ | $8\,\Psi_u / N_d$ |
#
# In FP32 a training step of stage 1 sends exactly as many bytes as one of stage 0. [Stage
# 0](unit.py#module/stage-0) averages the gradients in two halves: a reduce-scatter, which leaves
# each rank its piece of the mean, and an all-gather of the pieces. A rank that updates
# only its own part needs only its own piece of the mean. So stage 1 leaves the second
# half out, and gathers the updated *parameters* instead, which are just as many elements.
#
# Stage 1 sends more in two cases. [A policy](forecast.py#module/the-bytes-of-a-policy)
# may let gradients travel in fewer bytes than parameters. And a forward pass without a
# backward pass, as in an evaluation, gathers the parameters here, while stage 0 sends
# nothing.
#
# The optimizer stays as it is. `model.parameters()` gives it this rank's slices, and it
# updates these.
#
# :figure: stage_homes
#
# Source: [ZeRO](bib:rajbhandari2020zero), stage 1 ($P_{os}$).
ZERO1 = Stage(optimizer=True)

# ## Stage 2: the gradients are split
#
# > Each unit's gradients are exchanged as soon as they are complete, and a rank keeps its piece of the mean.
#
# [Stage 1](unit.py#module/stage-1) needs only its piece of the mean gradient, but keeps all gradients
# until the end of the backward pass. That is not necessary, because the backward pass
# computes them one unit after the other. In stage 2 each unit's gradients are exchanged
# when its own backward pass has ended, while the next unit computes:
#
# | | parameters | gradients | AdamW |
# |---|---|---|---|
# | stage 1 | $4\,\Psi_u$ | $4\,\Psi_u$ | $8\,\Psi_u / N_d$ |
# | stage 2 | $4\,\Psi_u$ | $4\,\Psi_u / N_d$ | $8\,\Psi_u / N_d$ |
#
# Stage 2 sends the same bytes as stage 1, at an earlier time. In a chain of units at most
# two hold a whole vector of gradients at any moment: one unit computes its gradients, and
# those of another are on their way. A unit around the chain, such as an embedding that is
# also the output layer, is used at both ends and keeps its vector during the whole
# backward pass. The exchange hides behind the computation of the next unit, if that
# computation takes at least as long.
#
# A program that adds up the gradients of several micro-batches has a choice. It can
# exchange the gradients of each micro-batch, and store only its pieces of the sum. Or it
# can keep whole gradients under [`no_sync`](accumulate.py#no_sync) and exchange them
# once, but then stage 2 saves no memory.
#
# Source: [ZeRO](bib:rajbhandari2020zero), stage 2 ($P_{os+g}$).
ZERO2 = Stage(optimizer=True, gradients=True)

# ## Stage 3: the parameters are split
#
# > A rank stores its part of each unit, and holds a whole unit only while the unit
# > computes.
#
# [Stage 2](unit.py#module/stage-2) has split everything but the parameters themselves, and with 64
# ranks they are most of what is left. A parameter is used twice in a step: in the forward
# pass of its unit and in the backward pass. For the rest of the step the other ranks'
# parts need not be stored:
#
# | | parameters | gradients | AdamW |
# |---|---|---|---|
# | stage 2 | $4\,\Psi_u$ | $4\,\Psi_u / N_d$ | $8\,\Psi_u / N_d$ |
# | stage 3 | $4\,\Psi_u / N_d$ | $4\,\Psi_u / N_d$ | $8\,\Psi_u / N_d$ |
#
# So before each use the unit allocates `full`, and after the use it frees `full`. This
# time the saving has a price. The parameters that were freed after the forward pass must
# be gathered again for the backward pass. In a step a rank sends for each unit
#
# $$3\,P_u\,\frac{N_d - 1}{N_d}$$
#
# elements: two all-gathers and one reduce-scatter. The other stages send two thirds of
# that.
#
# :figure: bytes_over_a_step
#
# Source: [ZeRO](bib:rajbhandari2020zero), stage 3 ($P_{os+g+p}$).
ZERO3 = Stage(optimizer=True, gradients=True, parameters=True)

# ## How often a unit is gathered
#
# > The gathers of one unit in one step of the optimizer, for each kind of step.
#
# Stage 0 gathers nothing. In stages 1 and 2 each rank keeps the whole parameters, and a
# forward pass gathers what the other ranks have updated, unless [no rank can have
# stepped](scheduler.py#expire). Stage 3 frees a unit after each use, so every forward pass
# and every backward pass gathers it. A step may have $m$ micro-batches, and in a pipeline
# $k$ stages may follow the one that holds the unit:
#
# | in a step | stages 1 and 2 | stage 3 |
# |---|---|---|
# | a forward and a backward pass | 1 | 2 |
# | a forward pass alone, as in an evaluation | 1 | 1 |
# | micro-batches whose gradients are exchanged one by one | $m$ | $2m$ |
# | micro-batches under [`no_sync`](accumulate.py#no_sync) | 1 | $2m$ |
# | a pipeline with [1F1B](pipeline_parallel.py#one_by_one) | $\min(k + 1, m)$ | $2m$ |
# | a pipeline with [all forward passes first](pipeline_parallel.py#all_forward_first) | $m$ | $2m$ |
# | a [checkpoint](checkpointing.py#checkpoint_module) inside a unit, or around its call | 1 | 2 |
# | a checkpoint around the calls of several units | 1 | 3; 2 for the last of them |
# | a reentrant checkpoint around the call of a unit | 1 | 3 |
#
# [Prefetching](scheduler.py#Prefetch) changes when a unit is gathered, and not how often.
# One case is an exception: if a forward pass of the model follows another one, as in the
# pipelines, stage 3 gathers one unit of the model in vain in each step.
STAGES = (REPLICATED, ZERO1, ZERO2, ZERO3)
