r"""# Building a model unit by unit

> A model is constructed without memory; then one unit after the other gets memory and
> values, and is sharded.

A model must exist before it can be sharded. An ordinary construction makes all of it on
every rank: $4\,\Psi$ bytes, of which sharding leaves $4\,\Psi/N_d$. So 64 ranks may be
able to train a model that none of them can construct. Therefore the model is
constructed on the *meta* device, where a tensor has a shape and no memory:

```python
with torch.device("meta"):
    model = GPT(config)
shard(model)
```

A simpler way would be that rank 0 alone constructs the model, cuts it, and *scatters*
one piece to each other rank. But then rank 0 needs memory for the whole model, and all
other ranks wait for their pieces.

`shard` goes through the model, the inner modules before the outer ones. It gives each
module memory, and then values. When a unit is complete, it is cut: this rank keeps its
part, and the rest of the memory is freed. At the moment when unit $u$ is cut, a rank
holds in stage 3

$$4 \Bigl( \sum_{v\,<\,u} S_v + R_u + \Psi_u + P_u + S_u \Bigr)$$

bytes of parameters. The first two terms are the shards of earlier units, and those of
the root's parameters that have memory so far. The other three are the unit itself: its
parameters, the flat vector into which they are copied, and the part that is kept. The
root is cut last, and then $R_u$ is zero.

The values are those of an ordinary construction with the same seed on the same kind of
device, whatever the units are. PyTorch's layers end their constructor with
`reset_parameters`. `shard` calls this method in the order in which modules are
registered, the parts before the whole.

A constructor may do more than that: set a bias to zero, scale a weight down, or tie two
weights and so drop the values of one. On the meta device these values do not exist, but
a trace of them does, because PyTorch counts the writes to each tensor. So `shard`
[compares the counts](#module/counting-a-constructors-writes). Suppose a parameter was
written to more often in its constructor than in `reset_parameters`, or several modules
set it in another number of writes. Then `shard` refuses the model and asks for a
function that sets the values.

Two kinds of writes leave no trace. PyTorch does not count writes through `.data`. And
if modules are constructed in one order and registered in another, their random numbers
are drawn in another order than by the constructor.

If the values must differ from those of `reset_parameters`, pass `init`, a function that
sets the values of one module. A model of the `transformers` library has such a
function, which sets buffers, too:

```python
shard(model, units=LlamaDecoderLayer, init=model._init_weights)
```

:figure: meta_construction
:notation $N_d$: `world_size`, the number of ranks that share the model
:notation $\Psi$: the number of parameters of the model
:notation $\Psi_u$: `numel`, the number of parameters of a unit
:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part of it
:notation $R_u$: the number of parameters of the root that have memory when unit $u$ is cut
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from shardbook.foundations.collectives import world
from shardbook.foundations.torch_private import (
    RESET_METHODS,
    Versions,
    apply_to_own,
    own_buffers,
    own_parameters,
    writes_to,
)
from shardbook.zero.parameter_sites import Site, is_inside

__all__ = ["Construction", "Init", "Writes"]

# sidelit: hide
Init = Callable[[nn.Module], Any]
# sidelit: show


class Construction:
    """The way in which a model on the meta device gets its values, unit by unit.

    Tensors that have memory already stay as they are.

    :param model: the model, on the meta device as a whole or in part
    :param sites: for each module that becomes a unit, by name, [the
        places](parameter_sites.py#Site) of its parameters
    :param mesh: the ranks that will share the model, as [`shard`](model.py#shard) takes
        them
    :param device: the device for what is on the meta device. `None` means the device of
        the rest of the model; if there is no rest, the mesh's kind of device; without a
        mesh, the CPU if the ranks can exchange on it, else a GPU
    :param init: a function that sets the values of one module; `None` means the
        module's own `reset_parameters`
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
        # The tensors that have got memory, until their unit is cut.
        self.fresh: set[Tensor] = set()
        # [The writes of the
        # constructor](construct.py#module/counting-a-constructors-writes) to tensors
        # that have no memory yet.
        self.writes = Writes(tensor for tensor in self.tensors if tensor.is_meta)

    def unit_by_unit(self) -> Iterator[str]:
        """Give the model its values, and stop after each unit so that it can be cut.

        Constructors build a module's parts before the module itself is complete, so the
        parts come first here, too. `MultiheadAttention` needs this order: its output
        layer sets a bias, and afterwards the attention sets the same bias again.

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

        So every reference to it stays valid: the other sites of a tied parameter, and
        parameter groups that were made while only the shapes existed.

        :raises ValueError: if PyTorch cannot exchange the contents of this tensor
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
        """The function that gives a module its values, or `None` if there is nothing to
        give.

        A module without parameters of its own may still set values of its parts. So its
        function is called, too, unless all of its parts have been cut.
        """
        inside = (*module.parameters(), *module.buffers())
        if any(tensor.is_meta or tensor in self.fresh for tensor in inside):
            return self.init or own_reset(module)
        return None

    def fill(self, module: nn.Module, fill: Init) -> None:
        """Give a module its values.

        :raises ValueError: if the function also changes parameters that had their
            values before
        """
        done = [one for one in module.parameters() if one not in self.fresh]
        before = Versions(*done)
        # The function may make tensors, which must have memory even if the caller is
        # still in a block for the meta device.
        with torch.no_grad(), self.device, self.writes.by(module):
            fill(module)
        for parameter in before.changed(*done):
            raise ValueError(
                f"{self.tensors[parameter]} had its values already when "
                f"{self.names[module] or 'the model'} was given its own; "
                "let init set what one module holds itself"
            )

    def default_device(self, mesh: Any) -> torch.device:
        """The device of the tensors that have memory, or one on which the ranks can exchange."""
        if self.real:
            return self.real[0].device
        if isinstance(mesh, DeviceMesh):
            return place(mesh.device_type)
        world(mesh)
        # The text is, for example, "cpu:gloo,cuda:nccl".
        config = dist.get_backend_config(mesh)
        kinds = [pair.split(":")[0] for pair in config.split(",")]
        return place("cpu" if "cpu" in kinds else kinds[0])

    # sidelit: depth Modules that cannot be given values, and values other than the constructor's.

    def objection(self) -> str | None:
        """The reason why this rank cannot give the model its values, or `None`. Nothing
        is allocated.
        """
        for tensor in self.real:
            if self.asked not in (None, tensor.device):
                return (
                    f"{self.tensors[tensor]} is on {tensor.device}, and "
                    f"device={self.asked} was asked for; move the model before sharding"
                )
        return next(filter(None, map(self.objection_to, self.names)), None)

    def objection_to(self, module: nn.Module) -> str | None:
        """The reason why a module cannot be given its values, or `None`."""
        held, fill = on_meta(module), self.filler(module)
        where = f"{self.names[module] or 'the model'}, a {type(module).__name__},"
        if held and fill is None:
            return (
                f"{where} has no reset_parameters to give {next(iter(held))} its values; "
                "pass init to shard, a function that does"
            )
        # The units inside this module will have been cut when its turn comes.
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
        """Whether a module contains units other than itself."""
        name = self.names[module]
        others = [unit for unit in self.sites if unit not in ("", name)]
        return any(is_inside(unit, name) for unit in others)

    def check(self, name: str, unit: nn.Module) -> None:
        """Refuse a unit that has memory but no values, or other values than the
        constructor's.

        Fresh memory is often zero. A model that starts from such zeros trains badly,
        and no error is raised.

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
    """The method by which a module sets its values; some of PyTorch's own use a hidden name."""
    for name in RESET_METHODS:
        reset = getattr(module, name, None)
        if callable(reset):
            return lambda _: reset()
    return None


# sidelit: depth Memory that got no values, and devices that do not exist.


def is_blank(tensor: Tensor) -> bool:
    """Whether a part of a tensor has no values yet."""
    mark = blank_mark(tensor)
    if mark is None:
        return False
    # NaN does not even equal itself, so `eq` would not find it.
    return bool((tensor.isnan() if mark != mark else tensor.eq(mark)).any())


def blank_mark(tensor: Tensor) -> float | int | None:
    """A value that marks fresh memory, because no parameter or buffer starts from it.

    >>> [blank_mark(torch.ones(1, dtype=d)) for d in (torch.bfloat16, torch.int64, torch.bool)]
    [nan, -9223372036854775808, None]

    :returns: the value, or `None` if the dtype has none
    """
    dtype = tensor.dtype
    # In a dtype of one byte each of the 256 values may be meant.
    if dtype.itemsize == 1 or not dtype.is_signed:
        return None
    numbers = dtype.is_floating_point or dtype.is_complex
    return float("nan") if numbers else torch.iinfo(dtype).min


def place(device: torch.device | str) -> torch.device:
    """A device with its index.

    :raises ValueError: if there is no such device, or it has no memory
    """
    try:
        found = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={device} is not there; choose another") from error
    if found.type == "meta":
        raise ValueError("device=meta has no memory; choose a device that has")
    return found


# sidelit: core


# ## Counting a constructor's writes
#
# > The number of writes to a tensor without memory tells whether its values can be computed again.
#
# [A model is constructed on the meta device](construct.py), and gets its values
# afterwards from each module's `reset_parameters`. If a constructor writes to a parameter
# after that method, the write is not repeated:
#
# ```python
# class Residual(nn.Module):
#     def __init__(self):
#         super().__init__()
#         self.out = nn.Linear(8, 8)      # its bias is written to once
#         nn.init.zeros_(self.out.bias)   # and once more, by another module
# ```
#
# [PyTorch counts the writes](torch_private.py#module/tensor-versions) to a tensor, even
# if the tensor has no memory. The constructor above has written to the bias twice, but
# the layer's `reset_parameters` writes to it once. So one write is missing, and the
# bias would be random, while that of the plain model is zero.
#
# Fewer writes in the constructor are no sign of a missing write. Many modules make their
# parameters with `torch.ones`, and have a `reset_parameters` for models without memory
# that writes the same values. But a tied parameter is set by every module that has it,
# and after the constructor it holds the values of only one of them. For a tied parameter
# the two numbers must therefore be equal.


class Writes:
    """The number of writes to tensors, in the constructor and when they get their
    values.

    :param tensors: the tensors that have no memory yet
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.built = {tensor: writes_to(tensor) for tensor in tensors}
        self.start_at: dict[Tensor, int] = {}
        # The number of modules that have written to each tensor.
        self.writers: dict[Tensor, int] = {}

    def start(self, tensor: Tensor) -> None:
        """Start to count the writes to a tensor that has just got memory."""
        self.start_at[tensor] = writes_to(tensor)

    @contextmanager
    def by(self, module: nn.Module) -> Iterator[None]:
        """In this block, count the writes of a module that gets its values."""
        inside = [*module.parameters(), *module.buffers()]
        before = {tensor: writes_to(tensor) for tensor in inside}
        yield
        for tensor, version in before.items():
            if writes_to(tensor) != version:
                self.writers[tensor] = self.writers.get(tensor, 0) + 1

    def beyond(self, tensor: Tensor) -> str | None:
        """The write of a constructor that was not repeated, in words; `None` if there is none."""
        built = self.built.get(tensor, 0)
        again = writes_to(tensor) - self.start_at.get(tensor, 0)
        if built > again:
            return "written to by a constructor after its module's reset_parameters"
        if built < again and self.writers.get(tensor, 0) > 1:
            return "set by several modules, of which the constructor kept one"
        return None
