r"""# A unit

> A unit is a group of layers whose parameters are gathered, freed and exchanged together.

A *unit* is, for example, one transformer block. Before a unit computes, each of the
$N_d$ ranks must hold all of its parameters. After the unit's backward pass, the
gradients of all ranks are averaged. The four stages of this book differ in two points:
how much of a unit each rank keeps between two uses, and when the average is taken.
Stages 1 to 3 are those of the [ZeRO paper](bib:rajbhandari2020zero). Stage 0 is plain
data parallelism, and has its number from DeepSpeed:

| stage | a rank keeps its part of | chapter |
|---|---|---|
| 0 | nothing; it keeps everything whole | [replicate](replicate.py) |
| 1 | the optimizer's state | [zero1](zero1.py) |
| 2 | the optimizer's state and the gradients | [zero2](zero2.py) |
| 3 | the optimizer's state, the gradients and the parameters | [zero3](zero3.py) |

This chapter holds what the stages have in common: the three states of a unit, the steps
from one state to the next, and the exchange of the gradients. A unit becomes whole by
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
| `shard` | $S_u$; in stage 0 $P_u$ | the part of the vector that this rank [keeps](masters.py) |
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
average first, and that mean is then averaged [over the copies](groups.py#Groups.mean).
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
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from enum import Enum
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from shardbook.foundations.collectives import world
from shardbook.foundations.exchange_order import Order
from shardbook.foundations.groups import Groups
from shardbook.foundations.labels import label
from shardbook.foundations.layout import plan, shares_storage
from shardbook.foundations.streams import compute_stream, give_back, streams
from shardbook.guards.optimizer_guard import register_guard
from shardbook.guards.unowned import refuse_replaced_in
from shardbook.parameters.access import guard_again, guard_slices
from shardbook.parameters.flat import Flat
from shardbook.parameters.gradients import FlatWithGradients
from shardbook.parameters.masters import dtypes_of
from shardbook.parameters.parameter_sites import Site
from shardbook.parameters.policy import Policy
from shardbook.parameters.whole_form import set_class

__all__ = ["State", "Unit"]


class State(Enum):
    """How much of `full` is valid at a moment.

    `gather` leads from `SHARDED` to `GATHERING`, `wait` leads on to `WHOLE`, and `free`
    leads back to `SHARDED`. Stages 0 to 2 have the same states, although their `free`
    gives no memory back.
    """

    SHARDED = "only what this rank keeps may be relied on"
    GATHERING = "the parts of the other ranks are on their way into `full`"
    WHOLE = "`full` is complete, and may be computed with"


class Unit(ABC):
    """The parameters of one unit, and the transitions between its states.

    :param name: the unit's name in messages, such as `the block layers.0`
    :param sites: [the places of its parameters](parameter_sites.py#Site) in the model,
        in the order of the flat vector
    :param groups: [the ranks](groups.py#Groups) that share the unit
    :param policy: [the dtypes](policy.py#Policy) in which the unit computes and
        exchanges
    :param order: [the check](exchange_order.py#Order) that all ranks issue the same
        exchanges
    :param synchronize: whether the values of rank 0 replace those of the other ranks
    :param uncut: the names of parameters that [belong whole to one
        rank](layout.py#uncut_offsets)
    """

    # `reduces_early` is true in stages that exchange the gradients as soon as the
    # unit's own backward pass ends.
    stage: ClassVar[int]
    reduces_early: ClassVar[bool]

    def __init__(
        self,
        name: str,
        sites: Sequence[Site],
        *,
        groups: Groups,
        policy: Policy,
        order: Order,
        synchronize: bool = True,
        uncut: Container[str] = (),
    ) -> None:
        self.name = name
        self.sites = tuple(sites)
        self.groups = groups
        self.order = order
        self.state = State.SHARDED
        # Whether the modules hold the whole parameters at this moment.
        self.shown = False
        # Whether the unit computes with [the masters themselves](masters.py).
        self.precise = False
        # Whether a compiler runs a module of the unit.
        self.compiled = False
        # The number of blocks that [keep the unit whole](whole.py) now.
        self.held = 0
        self.rank, world_size = world(groups.shards)
        # A unit can hold several flat vectors, [one for each kind of
        # parameter](layout.py#plan): a frozen parameter needs no gradient, and a 16-bit
        # parameter needs half the bytes.
        named = {site.name: site.parameter for site in self.sites}
        dtypes = dtypes_of(policy, self.sites)
        self.flats = tuple(
            FlatWithGradients(layout, named, policy)
            for layout in plan(named.items(), world_size, groups.copies, dtypes, uncut)
        )
        for flat in self.flats:
            if synchronize:
                groups.copy_from_first(flat.full)
            self.keep(flat)
            flat.order = order
            guard_slices(flat, name)
        # The unit's exchanges run on [two streams](streams.py) of their own.
        self.device = torch.get_device_module(self.flats[0].device)
        self.gather_stream, self.reduce_stream = streams(self.flats[0].device)
        # The record of the parameters that [any rank has used](unused.py). It is kept
        # only where a unit needs it as soon as its mean gradients have arrived.
        self.usage: Any = None
        # Functions to call each time the mean gradients have arrived.
        self.after_reduce: list[Callable[[Unit], None]] = []
        register_guard()

    @abstractmethod
    def keep(self, flat: Flat) -> None:
        """Choose the part of a flat vector that this rank keeps between uses."""

    @abstractmethod
    def fetch(self) -> None:
        """Start to fill `full` with the shards of the other ranks."""

    @abstractmethod
    def arrive(self) -> None:
        """Wait until `full` is filled."""

    @abstractmethod
    def empty(self) -> None:
        """Give back the memory that need not be kept between uses."""

    @abstractmethod
    def kept_mean(self, flat: FlatWithGradients, piece: Tensor) -> Tensor:
        """The part of the mean gradient that this rank keeps.

        :param piece: the piece of the mean that belongs to this rank, in one dimension
        """

    @abstractmethod
    def expire(self) -> None:
        """Make the next `gather` fetch the parameters again."""

    def compute_stream(self) -> Any:
        """The current stream of the device, ordered [after the previous
        one](streams.py#compute_stream).
        """
        return compute_stream(self.flats[0].device)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole unit in the dtype of `full`, padding included."""
        return sum(flat.layout.padded * flat.full.itemsize for flat in self.flats)

    @property
    def trainable(self) -> tuple[FlatWithGradients, ...]:
        """The flat vectors whose parameters can be trained, [now or
        later](freezing.py). Only these vectors ever have a gradient.
        """
        return tuple(flat for flat in self.flats if flat.learns)

    @property
    def due(self) -> tuple[FlatWithGradients, ...]:
        """The flat vectors whose gradients are to be exchanged next."""
        return tuple(flat for flat in self.trainable if flat.due)

    def expect_gradients(self) -> None:
        """Mark the trained vectors as due for an exchange, because the unit's backward
        pass has ended.
        """
        for flat in self.trainable:
            flat.due = flat.due or flat.trains

    @property
    def counterpart(self) -> dict[int, nn.Parameter]:
        """From a parameter of the model to its counterpart in `whole`."""
        return {
            id(parameter): whole
            for flat in self.flats
            for parameter, whole in zip(flat.parameters, flat.whole, strict=True)
        }

    def gather(self) -> None:
        """Start to make the unit whole; `SHARDED` becomes `GATHERING`.

        In the other two states there is nothing to start. So a caller that needs the
        unit calls `gather` without asking whether the unit was prefetched.
        """
        if self.state is not State.SHARDED:
            return
        for flat in self.flats:
            guard_again(flat)
        refuse_replaced_in(self)
        with label("gather", self.name):
            self.fetch()
        self.state = State.GATHERING

    def wait(self) -> None:
        """Wait until the unit is whole; its state becomes `WHOLE`."""
        self.gather()
        if self.state is State.GATHERING:
            with label("wait for", self.name):
                self.arrive()
            self.state = State.WHOLE

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
        for flat in self.flats:
            if self.compiled:
                set_class(flat.whole, nn.Parameter)
            flat.use(whole)
        counterpart = self.counterpart if whole else {}
        # Tied sites name one parameter. They get the same counterpart, so they stay
        # tied.
        for site in self.sites:
            site.put(counterpart.get(id(site.parameter), site.parameter))

    def free(self) -> None:
        """Give back the memory that need not be kept; the unit becomes `SHARDED`.

        In every stage the modules get the model's own parameters back. So an optimizer
        that reads `model.parameters()` gets the parameters that it can train.
        """
        if self.held:
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
            give_back(self.flats[0].device)
        self.state = State.SHARDED
        self.switch(self.precise)

    def reduce(self) -> None:
        """Start to exchange the gradients for their mean.

        Every rank takes part, even one whose step used none of these parameters. If
        that rank stayed away, the others would wait for it until their time limit. A
        vector whose parameters are all frozen is not exchanged.

        :raises RuntimeError: if the last exchange of this unit is not finished
        """
        if not self.due:
            return
        if any(flat.reducing is not None for flat in self.due):
            raise RuntimeError(f"{self.name} is being reduced; finish that first")
        with label("reduce", self.name):
            # Stage 0 is left out, because there the ranks have already
            # [compared](unused.py) the vectors that they are about to send.
            if self.stage:
                self.order.before("reduce", self.name, self.sites[0].name)
            for flat in self.due:
                flat.send()
            # The compute stream writes the gradients. Without this wait the exchange
            # may start before the last gradient is written, and the other ranks receive
            # a vector that is half old.
            self.reduce_stream.wait_stream(self.compute_stream())
            with self.device.stream(self.reduce_stream):
                for flat in self.due:
                    flat.reduce(self.groups)

    def finish_reduce(self) -> None:
        """Wait for the mean, and add it to the gradients of the model's parameters."""
        while self.advance():
            pass

    def advance(self) -> bool:
        """Wait for the exchange under way, then start the next one or store the mean.

        In stages 1 to 3 on one copy of the model, a mean needs a single exchange. With
        several copies [it needs more](groups.py#Groups.mean), and each call of
        `advance` starts the next. When none is left, the mean is added to the gradients
        of the model's parameters.

        The rank computes between `reduce` and this call, and between two such calls.
        That computation hides the exchange if it takes at least as long.

        :returns: whether another exchange is under way
        """
        due = [(flat, flat.reducing) for flat in self.trainable if flat.reducing]
        # The exchanges between copies are a part of the common order, too.
        if due and (following := due[0][1].following):
            self.order.before(following, self.name, self.sites[0].name)
        with label("wait for the mean of", self.name):
            for flat, mean in due:
                # The reduce stream allocates the sum. The allocator may give it the
                # block of an earlier mean that the compute stream still reads, so the
                # reduce stream waits first.
                self.reduce_stream.wait_stream(self.compute_stream())
                with self.device.stream(self.reduce_stream):
                    self.order.watch(mean.works)
                    piece = mean.advance()
                    if piece is not None:
                        piece = flat.brought_home(self.kept_mean(flat, piece))
                # Without this wait the optimizer could read the mean before it is
                # complete, and the memory of `sending` could be used again while the
                # exchange still reads it.
                self.compute_stream().wait_stream(self.reduce_stream)
                if piece is None:
                    flat.sent()
                else:
                    flat.receive(piece)
        give_back(self.flats[0].device)
        if any(flat.reducing for flat, _ in due):
            return True
        if self.usage is not None:
            self.usage.settle([self])
            self.usage = None
        for act in self.after_reduce if due else ():
            act(self)
        return False

    # sidelit: depth Parameters changed between two passes, full precision, unused parameters, freed views.

    @property
    def version(self) -> int:
        """A number that grows each time the model's own parameters are changed."""
        return sum(flat.version for flat in self.flats)

    @property
    def computes_in(self) -> tuple[torch.dtype, ...]:
        """The dtype of each flat vector while the unit is whole."""
        return tuple(flat.full.dtype for flat in self.flats)

    def switch(self, precise: bool) -> None:
        """Choose the dtype of the next gather: the masters' dtype, or the policy's.

        :param precise: whether `full` takes the dtype of [the masters](masters.py)
        """
        if sum(flat.switch(precise) for flat in self.flats):
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
