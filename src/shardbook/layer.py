r"""# The ZeRO-3 layer

> A layer that exists in full only while it is used.

[A unit](unit.py) has three states. This chapter attaches a unit to a module and says
when it changes state. Four moments decide: before and after the module's forward pass,
before and after its backward pass. Each is a hook from outside, so the module's own
code stays as it is.

| moment | what the unit does | how we learn of it |
|---|---|---|
| before forward | gathers | a forward pre-hook |
| after forward | frees | a forward hook, which also runs after an exception |
| before backward | gathers again | a hook on the module's output |
| after backward | frees, reduces its gradients | a hook on the module's input |

The unit is freed after the forward pass although the backward pass needs it again. To
keep it would make the memory grow with the number of layers, and that is what sharding
is to prevent. So a vector of the unit's length crosses the network three times in each
forward and backward pass: twice to gather parameters, once to average gradients. Apart
from padding, one rank then sends this many elements for the unit:

$$3\,\Psi_u\,\frac{N_d - 1}{N_d}$$

Plain data parallelism sends $2\,\Psi_u (N_d-1)/N_d$ ([ZeRO](bib:rajbhandari2020zero)).

:notation $N_d$: `world_size`, the number of ranks that share the unit
:notation $\Psi_u$: `numel`, the number of parameters of the unit
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from shardbook.check import agree, unfit
from shardbook.collectives import broadcast
from shardbook.schedule import Conductor
from shardbook.state import keep_state_dict_whole
from shardbook.unit import Site, Unit

__all__ = ["Hooks", "Zero3Layer", "broadcast_buffers", "sites_of"]
# sidelit: show


class Zero3Layer(nn.Module):
    """Wrap one module and keep only this rank's shard of it.

    After construction the module's parameters are 1-D slices of the shard. Any
    elementwise optimizer trains them: `torch.optim.AdamW(layer.parameters())`. Each
    rank feeds its own data; the gradients are the mean over all ranks.

    :param module: any module; its class and its `forward` stay as they are
    :param group: the process group whose ranks share the layer; `None` means all ranks
    :param synchronize: start from the values of rank 0; `False` trusts that all ranks
        hold the same values
    :raises ValueError: on every rank, if a rank's parameters differ from rank 0's in
        number, name, shape, dtype, device type or `requires_grad`
    :raises RuntimeError: if there is no process group yet

    Source: [ZeRO](bib:rajbhandari2020zero), stage 3 ($P_{os+g+p}$).
    """

    def __init__(
        self, module: nn.Module, *, group: Any = None, synchronize: bool = True
    ) -> None:
        super().__init__()
        # Ranks that disagree about the layer would exchange vectors of different
        # lengths, and hang or mix them up. So they compare what they hold before the
        # first exchange.
        sites = sites_of(module)
        named = [(site.name, site.parameter) for site in sites]
        agree(
            [("the layer", *pair) for pair in (*named, *module.named_buffers())],
            group,
            objection=unfit(named),
        )
        self.module = module
        self.conductor = Conductor()
        if sites:
            unit = Unit("the layer", sites, group=group, synchronize=synchronize)
            Hooks(unit, module, self.conductor)
            keep_state_dict_whole(unit, module)
        if synchronize:
            broadcast_buffers(module, group)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Whatever the module computes."""
        self.conductor.recover()
        return self.module(*args, **kwargs)


class Hooks:
    """The four moments of one unit.

    :param unit: the unit to drive
    :param module: the module whose passes drive it
    :param conductor: whom to tell, so that the units of a model work together
    """

    def __init__(self, unit: Unit, module: nn.Module, conductor: Conductor) -> None:
        self.unit, self.module, self.conductor = unit, module, conductor
        conductor.add(self)
        # How many forward passes still expect a backward pass. A layer that is used
        # twice must reduce once, with the sum of both gradients, as an unsharded layer
        # would.
        self.expected = 0
        # Whether the unit's own backward pass has begun and not yet ended, and whether
        # a reduction is still due for it.
        self.in_backward = self.owes = False
        module.register_forward_pre_hook(
            self.before_forward, with_kwargs=True, prepend=True
        )
        # An exception in `forward` must not leave the unit whole: the next gather would
        # find it already there and compute with the weights of an earlier step.
        module.register_forward_hook(self.after_forward, always_call=True)

    def before_forward(
        self, module: nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """Gather, and plant the hook that will announce the end of this module's
        backward pass.

        Autograd works through its nodes from the youngest to the oldest. A view of the
        input, taken here, is older than everything the module computes. Its node runs
        when the module's own nodes have run and all of its gradients are there, whether
        or not each parameter took part.
        """
        # A layer can be called by itself, after a backward pass that failed.
        if self.conductor.passes:
            self.conductor.recover()
        self.unit.wait()
        self.conductor.forward_began(self.unit)
        if torch.is_grad_enabled():
            # What was one object stays one: attention asks whether query, key and value
            # are the same, and then computes with one product instead of three.
            watched = {id(v): self.watch(v) for v in (*args, *kwargs.values())}
            args = tuple(watched[id(value)] for value in args)
            kwargs = {name: watched[id(value)] for name, value in kwargs.items()}
        return args, kwargs

    def watch(self, value: Any) -> Any:
        """A view of a tensor that needs a gradient, its node hooked; anything else as
        it is.

        Tuples are searched. Lists and dictionaries are not, since they would have to be
        copied, and what the module puts into a copy would never reach the caller.
        """
        if type(value) is tuple:
            return tuple(map(self.watch, value))
        if not (isinstance(value, Tensor) and value.requires_grad):
            return value
        view = value.view_as(value)
        assert view.grad_fn is not None
        view.grad_fn.register_hook(self.after_backward)
        return view

    def after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Free, and plant the hooks that will announce the backward pass.

        A forward pass inside the unit's own backward pass is a recomputation for
        activation checkpointing. Its result is wanted right away, by a backward pass
        that has gathered the unit and will free it.
        """
        if self.in_backward:
            return output
        # A module may return a parameter, or a part of one. The caller must not be left
        # with a view of memory that is gone, so it gets a copy.
        if any(map(self.unit.owns, tensors_in(output))):
            output = tree_map_only(Tensor, self.keep, output)
        self.unit.free()
        # A tensor without a node is no result of this module.
        results = [value for value in tensors_in(output) if value.grad_fn is not None]
        for value in results:
            value.register_hook(self.before_backward)
        # Inside a backward pass, a forward pass repeats one that has been counted, or,
        # under reentrant checkpointing, one that has not.
        recomputed = torch._C._current_graph_task_id() != -1
        if results and not (recomputed and self.expected):
            self.expected += 1
        return output

    def keep(self, value: Tensor) -> Tensor:
        """A tensor that outlives the unit's memory."""
        return value.clone() if self.unit.owns(value) else value

    def before_backward(self, gradient: Tensor) -> None:
        """Gather again. Of several outputs the first to receive a gradient does it, the
        others find it done.

        :raises RuntimeError: under `create_graph=True`; a second derivative would read
            parameters that were freed after the first
        """
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"{self.unit.name}: backward(create_graph=True) cannot pass a sharded "
                "unit; compute second derivatives before sharding"
            )
        self.conductor.open(self)
        self.in_backward = self.owes = True
        self.unit.wait()
        self.conductor.backward_began(self.unit)

    def after_backward(self, *_: Any) -> None:
        """Free the unit and, unless more backward passes are to come, reduce its gradients."""
        if not self.in_backward:
            return
        self.in_backward = False
        self.unit.free()
        self.expected = max(0, self.expected - 1)
        if self.expected == 0:
            self.reduce()

    def reduce(self) -> None:
        """Hand the gradients over for reduction."""
        self.owes = False
        self.conductor.reduce(self.unit)

    def close(self) -> None:
        """Do at the end of a whole backward pass what `after_backward` was not called
        for.

        That is so for the first layer, whose input needs no gradient, and for a layer
        one of whose forward passes has no part in the loss. The number of expected
        passes starts again from zero.

        Whether a reduction is due must not depend on the gradients that arrived. On a
        rank where the layer took a way around its parameters none did, and the other
        ranks would wait for it.
        """
        self.in_backward = False
        self.unit.free()
        self.expected = 0
        if self.owes:
            self.reduce()


def tensors_in(output: Any) -> Iterator[Tensor]:
    """Every tensor in what a module returned, also inside of dataclasses and other
    objects.

    An output that is overlooked is one whose backward pass begins without the
    parameters. So a result must be returned; one left in an attribute is not found.
    """
    for value in tree_leaves(output):
        if isinstance(value, Tensor):
            yield value
        elif is_dataclass(value) and not isinstance(value, type):
            yield from tensors_in([getattr(value, f.name, None) for f in fields(value)])
        elif hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
            yield from (v for v in vars(value).values() if isinstance(v, Tensor))


def sites_of(
    module: nn.Module, *, prefix: str = "", without: Collection[nn.Module] = ()
) -> list[Site]:
    """Every place in `module` where a parameter stands, in the order of
    `named_parameters`.

    :param prefix: what to put before the names
    :param without: modules inside `module` that are units of their own
    """
    return [
        Site(f"{path}.{attribute}" if path else attribute, owner, attribute)
        for path, owner in modules_of(module, prefix, without)
        for attribute, parameter in owner._parameters.items()
        if parameter is not None
    ]


def modules_of(
    module: nn.Module, prefix: str, without: Collection[nn.Module]
) -> Iterator[tuple[str, nn.Module]]:
    """A module and its descendants with their paths, stopping at units of their own."""
    yield prefix, module
    for name, child in module.named_children():
        if child not in without:
            yield from modules_of(
                child, f"{prefix}.{name}" if prefix else name, without
            )


def broadcast_buffers(module: nn.Module, group: Any) -> None:
    """Let the buffers, such as the running mean of a batch norm, start from rank 0.

    Afterwards each rank updates its own.
    """
    for buffer in module.buffers():
        values = buffer.contiguous()
        broadcast(values, source=0, group=group)
        # An expanded buffer shows one element many times, and may be written once.
        once = tuple(slice(None if step else 1) for step in buffer.stride())
        buffer[once].copy_(values[once])
