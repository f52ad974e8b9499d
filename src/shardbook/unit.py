r"""# A sharded unit

> Some layers whose parameters exist in full only while they are used.

A *unit* is a group of parameters that are gathered together and freed together: one
transformer block, say. Each of the $N_d$ ranks stores one part of the unit, its
*shard*. Before the unit computes, the ranks exchange their shards and every rank holds
the unit whole. After it has computed, every rank drops all but its shard. This is stage
3 of [ZeRO](bib:rajbhandari2020zero). This chapter says what a unit stores and which
steps lead from one state to the next. [The layer](layer.py) says when the steps are
taken.

All names of this part of the book, for one unit with $\Psi_u$ parameters:

| name | elements | lives | what it is |
|---|---|---|---|
| `shard` | $S_u$ | always | this rank's part of the flat vector |
| `slices` | $S_u$ together | always | the model's own parameters, now 1-D views into `shard` |
| `full` | $P_u = N_d S_u$ | while in use | all shards, side by side |
| `whole` | $\Psi_u$ together | while in use | parameters in their old shapes, views into `full` |
| `grad_full` | $P_u$ | in backward | this rank's gradients, laid out like `full` |
| `sending` | $P_u$ | during the exchange | the same, on its way to the mean |
| `slices[i].grad` | $S_u$ together | until `zero_grad` | the mean gradient, this rank's part |

Two equations connect them. Rank $r$ stores the $r$-th piece of the flat vector, and it
receives the $r$-th piece of the mean of all ranks' gradients:

$$\mathrm{full} = \mathrm{shard}_0 \,\Vert\, \mathrm{shard}_1 \,\Vert \cdots \Vert\, \mathrm{shard}_{N_d-1}$$

$$\mathrm{grad}_r = \frac{1}{N_d} \sum_{k=0}^{N_d-1} \mathrm{grad\_full}_k[\,rS_u : (r+1)S_u\,]$$

[The layout](partition.py) adds padding so that $P_u$ divides by $N_d$ and every parameter
starts at an aligned address. Hence $P_u \ge \Psi_u$.

:notation $N_d$: `world_size`, the number of ranks that share the unit
:notation $\Psi_u$: `numel`, the number of parameters of the unit
:notation $P_u$: `padded`, the length of the flat vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part of it
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.collectives import all_gather, reduce_scatter_mean, world
from shardbook.flat import Flat, resize
from shardbook.partition import plan

__all__ = ["Site", "State", "Unit"]
# sidelit: show


class State(Enum):
    """A unit is in one of three states, and three methods of `Unit` change it.

    `gather` leads from `SHARDED` to `GATHERING`, `wait` on to `WHOLE`, and `free` back
    to `SHARDED`.
    """

    SHARDED = "only the shard is stored"
    GATHERING = "the other shards are on their way into `full`"
    WHOLE = "the model's modules hold the whole parameters"


class Unit:
    """The parameters of one unit, and the transitions between its states.

    A unit knows neither the forward pass nor the backward pass. [The layer's
    hooks](layer.py#Hooks) tell it what to do.

    :param name: how messages call this unit
    :param sites: where its parameters stand in the model, in the order of the flat
        vector
    :param group: the process group whose ranks share the unit; `None` means all ranks
    :param synchronize: whether the values of rank 0 replace those of the other ranks
    :raises ValueError: if the parameters lie on different devices
    """

    def __init__(
        self,
        name: str,
        sites: Sequence[Site],
        *,
        group: Any = None,
        synchronize: bool = True,
    ) -> None:
        self.name, self.sites, self.group = name, tuple(sites), group
        self.state = State.SHARDED
        rank, world_size = world(group)
        # A unit can hold several flat vectors. A frozen parameter needs no gradient and
        # a 16-bit parameter needs half the bytes, so [the layout](partition.py#plan)
        # keeps one vector for each kind.
        named = {site.name: site.parameter for site in self.sites}
        self.flats = tuple(
            Flat(layout, named, rank, group, synchronize)
            for layout in plan(named.items(), world_size)
        )
        # The unit's exchanges run on two streams of their own, so that they can run
        # beside the computation. On a CPU the same calls exist and do nothing.
        device = self.flats[0].shard.device
        self.device = torch.get_device_module(device)
        self.gather_stream, self.reduce_stream = streams(device)
        # From a parameter of the model to its counterpart in `whole`. The sites of
        # shared parameters get the same counterpart, so that what was tied stays tied.
        self.counterpart = {
            id(slice_): whole
            for flat in self.flats
            for slice_, whole in zip(flat.slices, flat.whole, strict=True)
        }

    @property
    def trainable(self) -> tuple[Flat, ...]:
        """The flat vectors of trainable parameters; only they ever have a gradient."""
        return tuple(flat for flat in self.flats if flat.layout.trainable)

    def gather(self) -> None:
        """Start to rebuild the unit; `SHARDED` becomes `GATHERING`.

        In any other state there is nothing to start. That makes a prefetch safe:
        whoever needs the unit calls `gather` too, and does not ask whether somebody
        else was faster.
        """
        if self.state is not State.SHARDED:
            return
        for flat in self.flats:
            flat.check(self.name)
        # Only now does the unit take its full memory. It is taken on the compute
        # stream, so that the allocator hands out a block only after every earlier
        # computation that read it.
        for flat in self.flats:
            resize(flat.full, flat.layout.padded)
        # The gather stream must wait for the compute stream, for two reasons. The
        # optimizer's last write to the shard is queued there: without this line the
        # other ranks receive the weights of the step before, and no error is ever
        # raised. And the block just taken may still be in use there by an earlier
        # computation.
        self.gather_stream.wait_stream(self.device.current_stream())
        # The pieces arrive side by side in `full`, and the parameters are views into
        # it. Nothing is copied out.
        with self.on(self.gather_stream):
            for flat in self.flats:
                flat.gathering = all_gather(flat.full, flat.shard, group=self.group)
        self.state = State.GATHERING

    def wait(self) -> None:
        """Wait until the unit is rebuilt, and give it to the modules; it becomes `WHOLE`."""
        self.gather()
        if self.state is State.WHOLE:
            return
        # The backend exchanges on a stream of its own, too, and the gather stream waits
        # for that one here. On gloo there are no streams, and this line blocks until
        # the bytes are there.
        with self.on(self.gather_stream):
            for flat in self.flats:
                flat.gathering.wait()
        # Without this line the computation would start on a vector that is still being
        # filled.
        self.device.current_stream().wait_stream(self.gather_stream)
        for site in self.sites:
            site.put(self.counterpart[id(site.parameter)])
        self.state = State.WHOLE

    def free(self) -> None:
        """Give back all memory but the shard; the unit becomes `SHARDED`."""
        if self.state is State.SHARDED:
            return
        # A gather that nobody used is still writing. To free its target now would let
        # it write into memory that belongs to somebody else.
        self.wait()
        for site in self.sites:
            site.put(site.parameter)
        # To forget the vector would free nothing: the autograd graph keeps views of it
        # for the backward pass. To shrink the storage under those views frees it. When
        # the unit is gathered again, the same storage grows again, and the graph's
        # views show the parameters as before.
        for flat in self.flats:
            resize(flat.full, 0)
        self.state = State.SHARDED

    def reduce(self) -> None:
        """Start to exchange the gradients for their mean.

        Every rank takes part, also one whose step used none of these parameters. A rank
        that stayed away would leave the others waiting forever.
        """
        for flat in self.trainable:
            flat.fill_missing_gradients()
        # The gradients were written on the compute stream. Without this line the other
        # ranks receive a vector that is half written.
        self.reduce_stream.wait_stream(self.device.current_stream())
        # From here on a gradient starts a new vector. A layer that is used again right
        # away would otherwise add to the vector that is being sent, and the sum would
        # reach some ranks and not others.
        with self.on(self.reduce_stream):
            for flat in self.trainable:
                flat.sending, flat.grad_full = flat.gradients(), None
                flat.reducing = reduce_scatter_mean(flat.sending, group=self.group)

    def finish_reduce(self) -> None:
        """Wait for the mean and add it to the gradients of the slices.

        Between `reduce` and this call a rank computes on. That is the time in which the
        exchange is hidden.
        """
        for flat in self.trainable:
            if flat.reducing is None:
                continue
            # The sum takes its memory on the reduce stream. It may get the block of an
            # earlier mean, which the compute stream still reads.
            self.reduce_stream.wait_stream(self.device.current_stream())
            with self.on(self.reduce_stream):
                mean = flat.reducing.wait()
            # The optimizer reads the mean on the compute stream, and `sending` goes
            # back to that stream's memory. Both must come after the exchange.
            self.device.current_stream().wait_stream(self.reduce_stream)
            flat.receive(mean)

    def drop_gradients(self) -> None:
        """Forget what a failed backward pass left, so that the next step starts clean."""
        for flat in self.trainable:
            if flat.reducing is not None:
                flat.reducing.wait()
            flat.reducing = flat.sending = flat.grad_full = None

    def owns(self, tensor: Tensor) -> bool:
        """Whether a tensor is a view into the unit's memory, and so lives only while it does."""
        if tensor.layout is not torch.strided:
            return False
        storage = tensor.untyped_storage().data_ptr()
        return any(
            storage == flat.full.untyped_storage().data_ptr() for flat in self.flats
        )

    def store(self) -> None:
        """Take this rank's part of the whole parameters into its shard, after they were loaded."""
        for flat in self.flats:
            flat.shard.copy_(flat.own_part())

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse `deepcopy` and `torch.save`: a copy's slices would belong to no shard."""
        raise TypeError(
            "a sharded model cannot be copied or pickled; "
            "load its state_dict() into a plain model"
        )

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Queue what follows on `stream`."""
        context: AbstractContextManager[Any] = self.device.stream(stream)
        return context


class Site:
    """One place where a parameter stands in the model: an attribute of a module.

    The optimizer must see the slices, and the computation must see the whole
    parameters. So the attribute names the one or the other, and both stay leaves of
    their own. If one object served both, its shape would change under the gradient that
    it carries from one micro-batch to the next.

    :param name: the parameter's name in the model, as `named_parameters` gives it
    :param module: the module that owns the attribute
    :param attribute: the attribute's name
    """

    def __init__(self, name: str, module: nn.Module, attribute: str) -> None:
        self.name, self.module, self.attribute = name, module, attribute
        self.parameter: nn.Parameter = getattr(module, attribute)

    def put(self, parameter: nn.Parameter) -> None:
        """Let the attribute name `parameter`."""
        # A plain module needs only its dictionary changed. A module that watches its
        # attributes, as recurrent layers do, must see the change or it computes with
        # the old one.
        if type(self.module).__setattr__ is nn.Module.__setattr__:
            self.module._parameters[self.attribute] = parameter
        else:
            setattr(self.module, self.attribute, parameter)


@cache
def streams(device: torch.device) -> tuple[Any, Any]:
    """The gather stream and the reduce stream of a device, shared by all units.

    One stream for each kind of exchange is enough, since the backend carries out one
    exchange after the other anyway.
    """
    module = torch.get_device_module(device)
    return module.Stream(), module.Stream()
