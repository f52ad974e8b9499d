r"""# A unit

> Some layers whose parameters are exchanged together.

A *unit* is a group of parameters that are gathered together and freed together, such as
those of one transformer block. Before the unit computes, each of the $N_d$ ranks must
hold it whole. After its backward pass, the gradients of all ranks are averaged. How
much a rank keeps in between, and when the average is taken, is what the four stages of
this book differ in. Stages 1 to 3 are those of the [ZeRO
paper](bib:rajbhandari2020zero); stage 0, plain data parallelism, has its number from
DeepSpeed:

| stage | a rank keeps its part of | chapter |
|---|---|---|
| 0 | nothing; it keeps everything whole | [replicate](replicate.py) |
| 1 | the optimizer's state | [zero1](zero1.py) |
| 2 | the optimizer's state and the gradients | [zero2](zero2.py) |
| 3 | the optimizer's state, the gradients and the parameters | [zero3](zero3.py) |

This chapter holds what the stages have in common: the states of a unit, the steps from
one to the next, and the exchange of the gradients. [The layer](hooks.py) says when the
steps are taken.

The names in this part of the book, for one flat vector of a unit. In the example of
[the layout](layout.py), two linear layers with 68 values on 2 ranks, `full` has 96
elements, `shard` has 48, and `parameters` on both ranks together have 68:

| name | elements | what it is |
|---|---|---|
| `full` | $P_u = N_d S_u$ | the whole vector, in the dtype that is computed with |
| `whole` | $\Psi_u$ together | parameters in their old shapes, views into `full` |
| `shard` | $S_u$, or $P_u$ where a rank keeps everything | what this rank [keeps of it](masters.py) |
| `parameters` | those of `shard` without padding | the model's own, views into `shard` |
| `grad_full` | $P_u$ | this rank's gradients, laid out like `full` |
| `sending` | $P_u$ | the same, on its way to the mean |
| `parameters[i].grad` | those of `parameters[i]` | the mean gradient |

Two equations connect them in stages 1 to 3. The whole vector is all ranks' parts side
by side, each cast to the dtype of `full`. And rank $r$ receives the $r$-th piece of the
mean of all ranks' gradients, which is added to `parameters[i].grad`:

$$\mathrm{full} = \mathrm{shard}_0 \,\Vert\, \mathrm{shard}_1 \,\Vert \cdots \Vert\, \mathrm{shard}_{N_d-1}$$

$$\mathrm{mean}_r = \frac{1}{N_d} \sum_{k=0}^{N_d-1} \mathrm{grad\_full}_k[\,rS_u : (r+1)S_u\,]$$

Where a mesh holds several copies of the model, the mean over one copy is averaged [over
the copies](groups.py#Groups.mean) afterwards. In stage 0 every rank has all parts and
gets the whole mean. A parameter that no rank has used in a step [keeps the gradient
`None`](unused.py). [The layout](layout.py)
adds padding so that $P_u$ divides by $N_d$ and every parameter starts at an aligned
address. Hence $P_u \ge \Psi_u$.

:notation $N_d$: `world_size`, the number of ranks that share the unit
:notation $\Psi_u$: `numel`, the number of parameters of the unit
:notation $P_u$: `padded`, the length of the flat vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part of it
"""

# sidelit: hide
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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

__all__ = ["State", "Unit"]
# sidelit: show


class State(Enum):
    """What may be relied on in `full`. `gather` leads from `SHARDED` to `GATHERING`,
    `wait` on to `WHOLE`, and `free` back, also in stages 0 to 2, where the memory
    stays.
    """

    SHARDED = "only what this rank keeps may be relied on"
    GATHERING = "the parts of the other ranks are on their way into `full`"
    WHOLE = "`full` is complete, and may be computed with"


class Unit(ABC):
    """The parameters of one unit, and the transitions between its states.

    :param name: how messages call this unit
    :param sites: [where its parameters stand](parameter_sites.py#Site) in the model, in
        the order of the flat vector
    :param groups: [the ranks](groups.py#Groups) that share the unit
    :param policy: [the formats](policy.py#Policy) in which it works
    :param order: [who makes sure](exchange_order.py#Order) that all ranks issue the
        same exchanges
    :param synchronize: whether the values of rank 0 replace those of the other ranks
    """

    # `reduces_early`: are gradients exchanged as soon as the unit's own backward pass
    # ends?
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
    ) -> None:
        self.name = name
        self.sites = tuple(sites)
        self.groups = groups
        self.order = order
        self.state = State.SHARDED
        # Whether the modules name the whole parameters.
        self.shown = False
        # Whether [the masters themselves](masters.py) are computed with.
        self.precise = False
        # How many blocks [keep the unit whole](whole.py) now.
        self.held = 0
        self.rank, world_size = world(groups.shards)
        # A unit can hold several flat vectors. A frozen parameter needs no gradient and
        # a 16-bit parameter needs half the bytes, so [the layout](layout.py#plan)
        # keeps one vector for each kind.
        named = {site.name: site.parameter for site in self.sites}
        dtypes = dtypes_of(policy, self.sites)
        self.flats = tuple(
            FlatWithGradients(layout, named, policy)
            for layout in plan(named.items(), world_size, groups.copies, dtypes)
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
        # Which parameters [any rank has used](unused.py), if that is needed as soon as
        # the mean gradients have arrived.
        self.usage: Any = None
        # What to do each time the mean gradients have arrived.
        self.after_reduce: list[Callable[[Unit], None]] = []
        register_guard()

    @abstractmethod
    def keep(self, flat: Flat) -> None:
        """Decide what this rank keeps of a flat vector between uses."""

    @abstractmethod
    def fetch(self) -> None:
        """Start to fill `full` with the parts of the other ranks."""

    @abstractmethod
    def arrive(self) -> None:
        """Wait until `full` is filled."""

    @abstractmethod
    def empty(self) -> None:
        """Give back what need not be stored between uses."""

    @abstractmethod
    def kept_mean(self, flat: FlatWithGradients, piece: Tensor) -> Tensor:
        """What this rank keeps of the mean gradient, given its own piece of it."""

    @abstractmethod
    def expire(self) -> None:
        """Do not rely any longer on what was gathered."""

    def compute_stream(self) -> Any:
        """The stream that is current, ordered [after the one before](streams.py#compute_stream)."""
        return compute_stream(self.flats[0].device)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole unit in the dtype of `full`, padding included."""
        return sum(flat.layout.padded * flat.full.itemsize for flat in self.flats)

    @property
    def trainable(self) -> tuple[FlatWithGradients, ...]:
        """The flat vectors whose parameters can be trained, [now or
        later](freezing.py); only they ever have a gradient.
        """
        return tuple(flat for flat in self.flats if flat.learns)

    @property
    def due(self) -> tuple[FlatWithGradients, ...]:
        """The flat vectors whose gradients are to be exchanged next."""
        return tuple(flat for flat in self.trainable if flat.due)

    def expect_gradients(self) -> None:
        """The unit's part of a backward pass is over: what it has trained is due."""
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

        In any other state there is nothing to start. So whoever needs the unit calls
        this, whether or not it was gathered ahead.
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
        """Wait until the unit is whole; it becomes `WHOLE`."""
        self.gather()
        if self.state is State.GATHERING:
            with label("wait for", self.name):
                self.arrive()
            self.state = State.WHOLE

    def show(self, whole: bool = True) -> None:
        """Give the modules the whole parameters to compute with, or the model's own back."""
        if whole is self.shown:
            return
        if whole and self.state is not State.WHOLE:
            raise RuntimeError(f"{self.name} is not whole; wait for it first")
        self.shown = whole
        for flat in self.flats:
            flat.use(whole)
        counterpart = self.counterpart if whole else {}
        # Tied sites name one parameter, so they get one counterpart and stay tied.
        for site in self.sites:
            site.put(counterpart.get(id(site.parameter), site.parameter))

    def free(self) -> None:
        """Give back what need not be stored between uses; the unit becomes `SHARDED`.

        In every stage the modules get the model's own parameters back. So an optimizer
        that asks the model for its parameters gets those that it can train.
        """
        if self.held:
            return
        self.show(False)
        if self.state is State.SHARDED:
            return
        # A gather that nobody used is still writing. To free its target now would let
        # it write into memory that belongs to somebody else.
        self.wait()
        with label("free", self.name):
            self.empty()
            give_back(self.flats[0].device)
        self.state = State.SHARDED
        self.switch(self.precise)

    def reduce(self) -> None:
        """Start to exchange the gradients for their mean.

        Every rank takes part, also one whose step used none of these parameters. A rank
        that stayed away would leave the others waiting until their time limit. A vector
        of which all parameters are frozen is not exchanged.
        """
        if not self.due:
            return
        if any(flat.reducing is not None for flat in self.due):
            raise RuntimeError(f"{self.name} is being reduced; finish that first")
        with label("reduce", self.name):
            # In stage 0 the ranks have [compared what they are about to
            # send](unused.py).
            if self.stage:
                self.order.before("reduce", self.name, self.sites[0].name)
            for flat in self.due:
                flat.send()
            # The gradients were written on the compute stream. Without this line the
            # other ranks receive a vector that is half written.
            self.reduce_stream.wait_stream(self.compute_stream())
            with self.device.stream(self.reduce_stream):
                for flat in self.due:
                    flat.reduce(self.groups)

    def finish_reduce(self) -> None:
        """Wait for the mean and add it to the gradients of the model's parameters."""
        while self.advance():
            pass

    def advance(self) -> bool:
        """Wait for the exchange under way. Then start the next one that [the
        mean](groups.py#Groups.mean) needs, or, if there is none, add the mean to the
        gradients of the model's parameters.

        Between `reduce` and this call, and between two such calls, a rank computes on,
        and that hides the exchanges.

        :returns: whether another exchange is under way
        """
        due = [(flat, flat.reducing) for flat in self.trainable if flat.reducing]
        # The exchanges between copies keep the common order, too.
        if due and (following := due[0][1].following):
            self.order.before(following, self.name, self.sites[0].name)
        with label("wait for the mean of", self.name):
            for flat, mean in due:
                # The sum takes its memory on the reduce stream. It may get the block of
                # an earlier mean, which the compute stream still reads.
                self.reduce_stream.wait_stream(self.compute_stream())
                with self.device.stream(self.reduce_stream):
                    self.order.watch(mean.works)
                    piece = mean.advance()
                    if piece is not None:
                        piece = flat.brought_home(self.kept_mean(flat, piece))
                # Without this line the optimizer could read the mean too early, and the
                # memory of `sending` could be used again while the exchange reads it.
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
        """A number that grows whenever the model's own parameters are changed."""
        return sum(flat.version for flat in self.flats)

    @property
    def computes_in(self) -> tuple[torch.dtype, ...]:
        """The dtype that each flat vector has while it is whole."""
        return tuple(flat.full.dtype for flat in self.flats)

    def switch(self, precise: bool) -> None:
        """Let the next gather fill `full` in the masters' format, or in the usual one."""
        if sum(flat.switch(precise) for flat in self.flats):
            self.empty()
            self.expire()

    def add_zero(self) -> None:
        """No rank has used the unit in this step, and [`unused="zero"`](unused.py) was
        chosen: the mean of nothing is zero.
        """
        for flat in self.trainable:
            flat.add_zero()
        for act in self.after_reduce:
            act(self)

    def owns(self, tensor: Tensor) -> bool:
        """Whether a tensor is a view into the unit's memory, and so lives only while it does."""
        strided = tensor.layout is torch.strided
        return strided and any(shares_storage(tensor, flat.full) for flat in self.flats)
