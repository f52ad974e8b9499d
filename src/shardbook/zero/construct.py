r"""# Building a model unit by unit

> A model is built without memory, and gets values one unit at a time.

Before a model can be sharded it has to exist. An ordinary construction makes all of
it on every rank: $4\,\Psi$ bytes, where sharding will leave $4\,\Psi/N_d$. On 64 ranks
a model that could be trained can then not even be built. So it is built on the *meta*
device, where a tensor has a shape and no memory:

```python
with torch.device("meta"):
    model = GPT(config)
shard(model)
```

`shard` goes through the model, the inner modules before the outer ones. Each module
gets memory, and then its values. As soon as a unit is complete, the unit is cut and its
memory is given back. At the moment when unit $u$ is cut, a rank holds in stage 3

$$4 \Bigl( \sum_{v\,<\,u} S_v + R_u + \Psi_u + P_u + S_u \Bigr)$$

bytes of parameters: the shards of the units before, what the root has got so far, and
the unit itself three times: its parameters, the flat vector that they are copied into,
and the part that is kept. The root is cut last, and then $R_u$ is zero.

The values are those of an ordinary construction with the same seed on the same kind of
device, whatever the units are. PyTorch's layers end their constructor with
`reset_parameters`, and that is called here, in the order in which modules are
registered, the parts before the whole.

A constructor may do more than that. It sets a bias to zero, scales a weight down, or
ties two weights and so drops the values of one. On the meta device no value is left of
it, but a trace is: PyTorch counts how often each tensor is written to in place. If a
parameter was written to more often in its constructor than `reset_parameters` writes to
it here, or is set by several modules in another number of writes, `shard` refuses and
asks for a function that sets the values. Two things leave no trace. A write through
`.data` is not counted. And modules that are constructed in one order and registered in
another draw their random numbers in another order than the constructor did.

Values that differ from those of `reset_parameters` come from such a function. A model
of the `transformers` library has one for a single module, which sets buffers, too:

```python
shard(model, units=LlamaDecoderLayer, init=model._init_weights)
```

:notation $N_d$: `world_size`, the number of ranks that share the model
:notation $\Psi$: the number of parameters of the model
:notation $\Psi_u$: `numel`, the number of parameters of a unit
:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part of it
:notation $R_u$: the number of parameters of the root that are real when unit $u$ is cut
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from shardbook.foundations.collectives import world
from shardbook.foundations.torch_private import (
    RESET_METHODS,
    apply_to_own,
    own_buffers,
    own_parameters,
)
from shardbook.foundations.versions import Versions
from shardbook.parameters.parameter_sites import Site, is_inside
from shardbook.parameters.written import Writes

__all__ = ["Construction", "Init"]

Init = Callable[[nn.Module], Any]
# sidelit: show


class Construction:
    """How a model gets its values. What is real already stays as it is.

    :param model: the model, on the meta device as a whole or in part
    :param sites: for each module that becomes a unit, by name, where its parameters
        stand
    :param mesh: the ranks that will share it, as [`shard`](model.py#shard) takes them
    :param device: where to make the rest of the model real; `None` means where part of
        the model is real already, else the mesh's kind of device, else the CPU if the
        ranks can exchange on it, else a GPU
    :param init: gives one module its values; `None` means the module's own
        `reset_parameters`
    :raises ValueError: if there is no such device
    :raises TypeError: if `init` cannot be called
    """

    def __init__(
        self,
        model: nn.Module,
        sites: dict[str, list[Site]],
        *,
        mesh: Any = None,
        device: torch.device | str | None = None,
        init: Init | None = None,
    ) -> None:
        if init is not None and not callable(init):
            raise TypeError(f"init={init!r} cannot be called; pass a function")
        self.model = model
        self.sites = sites
        self.init = init
        self.names = {module: name for name, module in model.named_modules()}
        self.tensors = {
            tensor: name
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }
        self.real = [tensor for tensor in self.tensors if not tensor.is_meta]
        self.asked = None if device is None else place(device)
        self.device = self.asked or self.default_device(mesh)
        # What has got memory, until its unit is cut.
        self.fresh: set[Tensor] = set()
        # [What the constructor wrote](written.py) to what has no memory yet.
        self.writes = Writes(tensor for tensor in self.tensors if tensor.is_meta)

    def unit_by_unit(self) -> Iterator[str]:
        """Give the model its values, and stop after each unit so that it can be cut.

        Constructors build a module's parts before the module itself is complete, so the
        parts come first here, too. `MultiheadAttention` relies on it: its output layer
        sets a bias, and the attention sets it again.

        :returns: the names of the units, each when it is complete
        """
        parts_first: list[nn.Module] = []
        self.model.apply(parts_first.append)
        for module in dict.fromkeys(parts_first):
            fill = self.filler(module)
            if on_meta(module):
                # A recurrent layer keeps a list of its parameters, and renews it here.
                apply_to_own(module, self.make_real)
            if fill is not None:
                self.fill(module, fill)
            name = self.names[module]
            if name in self.sites:
                self.check(name, module)
                yield name

    def make_real(self, tensor: Tensor) -> Tensor:
        """Give a tensor memory if it has none. It remains the same object.

        So everything that refers to it stays right: the other places of a tied
        parameter, and parameter groups that were made while the shapes were there.
        """
        if not tensor.is_meta:
            return tensor
        real = torch.empty_like(tensor, device=self.device)
        mark = blank_mark(tensor)
        if mark is not None:
            real.fill_(mark)
        if isinstance(tensor, nn.Parameter):
            real = nn.Parameter(real, requires_grad=False)
        real.requires_grad_(tensor.requires_grad)
        real.__class__ = type(tensor)
        vars(real).update(vars(tensor))
        try:
            torch.utils.swap_tensors(tensor, real)
        except RuntimeError as error:
            name = self.tensors[tensor]
            raise ValueError(f"{name} cannot be given memory: {error}") from error
        self.fresh.add(tensor)
        self.writes.start(tensor)
        return tensor

    def filler(self, module: nn.Module) -> Init | None:
        """What gives a module its values.

        A module that holds nothing itself may set values of its parts. So it is asked,
        too, as long as one of its parts has not been cut.
        """
        inside = (*module.parameters(), *module.buffers())
        if any(tensor.is_meta or tensor in self.fresh for tensor in inside):
            return self.init or own_reset(module)
        return None

    def fill(self, module: nn.Module, fill: Init) -> None:
        """Give a module its values.

        :raises ValueError: if that changes what had its values before
        """
        done = [one for one in module.parameters() if one not in self.fresh]
        before = Versions(*done)
        # Tensors that the function makes must be real, also if the caller is still in a
        # block for the meta device.
        with torch.no_grad(), self.device, self.writes.by(module):
            fill(module)
        for parameter in before.changed(*done):
            raise ValueError(
                f"{self.tensors[parameter]} had its values already when "
                f"{self.names[module] or 'the model'} was given its own; "
                "let init set what one module holds itself"
            )

    def default_device(self, mesh: Any) -> torch.device:
        """The device of what is real, or one with which the ranks can exchange."""
        if self.real:
            return self.real[0].device
        if isinstance(mesh, DeviceMesh):
            return place(mesh.device_type)
        world(mesh)
        # Such as "cpu:gloo,cuda:nccl".
        config = dist.get_backend_config(mesh)
        kinds = [pair.split(":")[0] for pair in config.split(",")]
        return place("cpu" if "cpu" in kinds else kinds[0])

    # sidelit: depth Modules that cannot be given values, and values other than the constructor's.

    def objection(self) -> str | None:
        """Why this rank cannot give the model values, or `None`. Nothing is allocated
        to find out.
        """
        for tensor in self.real:
            if self.asked not in (None, tensor.device):
                return (
                    f"{self.tensors[tensor]} is on {tensor.device}, and "
                    f"device={self.asked} was asked for; move the model before sharding"
                )
        return next(filter(None, map(self.objection_to, self.names)), None)

    def objection_to(self, module: nn.Module) -> str | None:
        """Why a module cannot be given its values, or `None`."""
        held, fill = on_meta(module), self.filler(module)
        where = f"{self.names[module] or 'the model'}, a {type(module).__name__},"
        if held and fill is None:
            return (
                f"{where} has no reset_parameters to give {next(iter(held))} its values; "
                "pass init to shard, a function that does"
            )
        # Its units will have been cut by then.
        if not held and fill and not self.init and self.is_around_units(module):
            return (
                f"{where} has a reset_parameters for several units, which are never "
                "whole together; pass init to shard, a function that sets one module"
            )
        for name, value in vars(module).items():
            unknown = isinstance(value, Tensor) and value not in self.tensors
            if unknown and value.is_meta:
                return f"{name} of {where} is on the meta device; make it a buffer"
        return None

    def is_around_units(self, module: nn.Module) -> bool:
        """Whether there are units inside a module, other than itself."""
        name = self.names[module]
        others = [unit for unit in self.sites if unit not in ("", name)]
        return any(is_inside(unit, name) for unit in others)

    def check(self, name: str, unit: nn.Module) -> None:
        """Refuse to cut a unit that has got memory and no values, or other values than
        the constructor's.

        Fresh memory is often zero. A model that starts from it trains badly, and no
        error is raised.

        :raises ValueError: naming the parameter or buffer
        """
        inside = [*(site.parameter for site in self.sites[name]), *unit.buffers()]
        for tensor in () if self.init else inside:
            if tensor in self.fresh and (more := self.writes.beyond(tensor)):
                raise ValueError(
                    f"{self.tensors[tensor]} was {more}, so its values would be others "
                    "than the constructor's; pass init to shard, a function that sets one "
                    "module"
                )
        for tensor in inside:
            if tensor in self.fresh and is_blank(tensor):
                raise ValueError(
                    f"{self.tensors[tensor]} was given no values; let init or its "
                    "module's reset_parameters set it in place"
                )
        self.fresh.difference_update(inside)


def on_meta(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers that a module holds itself, and that are on the meta device."""
    held = {**own_parameters(module), **own_buffers(module)}
    return {name: t for name, t in held.items() if t is not None and t.is_meta}


def own_reset(module: nn.Module) -> Init | None:
    """What a module offers for giving it its values; PyTorch's own may hide its name."""
    for name in RESET_METHODS:
        reset = getattr(module, name, None)
        if callable(reset):
            return lambda _: reset()
    return None


# sidelit: depth Memory that got no values, and devices that are not there.


def is_blank(tensor: Tensor) -> bool:
    """Whether part of a tensor has no values yet."""
    mark = blank_mark(tensor)
    if mark is None:
        return False
    # NaN is equal to nothing, not even to itself.
    return bool((tensor.isnan() if mark != mark else tensor.eq(mark)).any())


def blank_mark(tensor: Tensor) -> float | int | None:
    """A value that no parameter or buffer starts from; `None` if its dtype has none.

    >>> [blank_mark(torch.ones(1, dtype=d)) for d in (torch.bfloat16, torch.int64, torch.bool)]
    [nan, -9223372036854775808, None]
    """
    dtype = tensor.dtype
    # Of one byte every value may be meant.
    if dtype.itemsize == 1 or not dtype.is_signed:
        return None
    numbers = dtype.is_floating_point or dtype.is_complex
    return float("nan") if numbers else torch.iinfo(dtype).min


def place(device: torch.device | str) -> torch.device:
    """A device with its number.

    :raises ValueError: if there is no such device, or it has no memory
    """
    try:
        found = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={device} is not there; choose another") from error
    if found.type == "meta":
        raise ValueError("device=meta has no memory; choose a device that has")
    return found
