r"""# Sharding a model

> One call, `shard(model)`, shards a whole model and leaves its training loop as it was.

[The hooks](hooks.py#Hooks) gather and free one unit, and [the
scheduler](scheduler.py#Scheduler) orders the exchanges of all units. This
chapter attaches both from outside to a model whose code does not refer to them. It
chooses the units, checks that all ranks have chosen the same ones, and attaches the
hooks. For a model that computes in 16 bits it also [casts the
inputs](#module/casts-at-the-models-boundary), so the program around the model need not
change.

```python
model = shard(GPT(config), units=Block)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for batch in batches:
    loss = model(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
```

Nothing else changes in the training loop. The model has the same class, the same
`forward`, and the same parameter names.

In stage 3 a rank holds at most three units whole while the model computes, with the
usual prefetch of one unit. They are the unit in use, the prefetched unit, and the root,
which holds the parameters that belong to no other unit. If units contain units, those
around the unit in use are whole, too.

Three habits of an unsharded program need care:

- Parameter groups that depend on a parameter's shape, such as weight decay for matrices
  only, must be made before sharding. In stages 1 to 3 every parameter that is cut is
  1-D afterwards, so a group made later would take every weight for a bias.
- Conversions such as `model.half()` must come before sharding, too.
- An optimizer must treat each element separately, as SGD and Adam do. What trains whole
  matrices, such as Muon, needs `uncut=`.

In stages 1 to 3 a rank sees only its own part of the gradients. This concerns some functions of
PyTorch:

- `torch.nn.utils.clip_grad_norm_` takes the norm of that part, so each rank would scale
  by another factor. [`clip_grad_norm_`](clip.py#clip_grad_norm_) of this book takes the
  norm of all parts.
- `GradScaler` looks for an overflow only in that part, so one rank might step while
  another does not. [`ShardedGradScaler`](loss_scaling.py#module/loss-scaling-over-ranks) looks on all ranks.
- `torch.autograd.grad` and `backward(inputs=...)` cannot compute gradients for the
  slices, since autograd knows only the whole parameters. Call `loss.backward()`.

Under `autocast` the results are right, but autograd saves 16-bit copies of whole
weights until the backward pass. With a [policy](policy.py#Policy) the units themselves
are gathered in 16 bits, and no such copies are made.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary
from zlib import crc32

import torch
from torch import Tensor, nn

from shardbook.foundations.agreement import agree
from shardbook.foundations.collectives import Groups, groups_of, world
from shardbook.foundations.exchange_order import Order
from shardbook.foundations.hook_context import (
    calls_under_way,
    in_backward,
    map_tensors,
    not_compiled,
    observed,
)
from shardbook.zero.construct import Construction, Init
from shardbook.zero.flat import is_sharded
from shardbook.zero.hooks import Hooks
from shardbook.zero.optimizer_guard import let_zero_grad_reach
from shardbook.zero.parameter_sites import (
    Site,
    parts_of,
    repeated_blocks,
    sites_by_unit,
    unfit,
)
from shardbook.zero.policy import InFP32, Policy, compute_in_fp32
from shardbook.zero.refusals import (
    refuse_methods,
    refuse_wrappers,
    shared_memory,
    wrapped,
)
from shardbook.zero.scheduler import (
    Prefetch,
    Scheduler,
    calls_from_outside,
    scheduler_of,
)
from shardbook.zero.state_dict import copy_buffer, keep_state_dict_whole
from shardbook.zero.unit import STAGES, Unit

__all__ = [
    "STAGES",
    "Zero3Layer",
    "Zero3Sequential",
    "before_casting",
    "enforce",
    "shard",
]

# sidelit: hide
M = TypeVar("M", bound=nn.Module)
Classes = type[nn.Module] | Sequence[type[nn.Module]]
Predicate = Callable[[str, nn.Module], bool]
Select = Classes | Predicate
Uncut = Callable[[str, nn.Parameter], bool]
# sidelit: show


@observed
def shard(
    model: M,
    *,
    stage: int = 3,
    units: Select | None = None,
    mesh: Any = None,
    policy: Policy | None = None,
    prefetch: int | Prefetch = 1,
    synchronize: bool = True,
    device: torch.device | str | None = None,
    init: Init | None = None,
    unused: str = "none",
    uncut: Uncut | None = None,
) -> M:
    """Shard a model over the ranks and return it.

    The model starts from the values of rank 0. Afterwards each parameter is this rank's
    1-D slice of its unit's shard, often an empty one; in stage 0 it keeps its shape, and
    what is `uncut` keeps its dimensions.
    `model.state_dict()` is collective: all ranks call it, and each gets the whole
    parameters in their original shapes.

    :param model: any module
    :param stage: what is split over the ranks: nothing (0), the optimizer's state (1),
        also the gradients (2), also the parameters (3)
    :param units: the modules that are gathered as one: a class, several classes, or a
        function of a module's name and the module. Parameters outside of these modules
        form one more unit, the root. A tied parameter belongs to the innermost unit
        that contains all modules which share it; if no unit does, to the root. A module
        without parameters, such as a dropout, is no unit. `None` makes each child of an
        `nn.Sequential` a unit, and of any other model [the blocks that it
        repeats](parameter_sites.py#repeated_blocks); rank 0 then says which these are.
    :param mesh: a process group; a `DeviceMesh` of one dimension, or of two, where each
        position of the first has its own copy of the model, which the second splits;
        `None` means all ranks
    :param policy: the dtypes in which the model computes and its gradients are
        exchanged, and whether parameters and optimizer state are stored on the host;
        `None` leaves everything in the parameters' own dtype, on their device
    :param prefetch: the number of units that are gathered ahead, or a
        [`Prefetch`](scheduler.py#Prefetch) that also limits their bytes
    :param synchronize: whether the values of rank 0 replace those of the other ranks;
        `False` relies on all ranks holding the same values
    :param device: the device on which a model on the meta device [gets its
        values](construct.py#Construction). `None` means the device of the rest of the
        model; if there is no rest, the mesh's kind of device; without a mesh, the CPU
        if the ranks can exchange on it, else a GPU
    :param init: a function that sets the values of one module of such a model; `None`
        means each module's own `reset_parameters`
    :param unused: the gradient of a parameter that [no rank has used](unused.py) in a
        step: `"none"` leaves it as it was, often `None`, and `"zero"` makes it zero
    :param uncut: a function of a parameter's name and the parameter. What it selects
        belongs [whole to one rank](layout.py#uncut_offsets) and keeps its dimensions,
        for an optimizer such as Muon that computes with whole matrices
    :returns: the same object
    :raises ValueError: on every rank, if ranks disagree about the model or it cannot be
        sharded; and for an unknown stage, a `DeviceMesh` of more than two dimensions, a
        device that does not exist, or a prefetch that is no whole number
    :raises TypeError: if the model, `units`, `mesh`, `policy`, `init` or `uncut` is of
        another kind than those above
    :raises RuntimeError: if there is no process group yet

    Source: [ZeRO](bib:rajbhandari2020zero), stages 1 to 3.
    """
    policy = Policy() if policy is None else policy
    refuse_arguments(model, stage, policy, unused, uncut)
    if not isinstance(prefetch, Prefetch):
        prefetch = Prefetch(depth=prefetch)
    groups = groups_of(mesh) if stage else groups_of(mesh).repeated()
    modules = select(model, units)
    sites = sites_by_unit(model, modules)
    construction = Construction(model, sites, mesh=mesh, device=device, init=init)
    parameters = [
        (called(name), site.name, site.parameter)
        for name in sites
        for site in sites[name]
    ]
    buffers = [(called(""), *pair) for pair in model.named_buffers()]
    kept = {name for _, name, one in parameters if uncut and uncut(name, one)}
    agree(
        [*parameters, *buffers],
        groups.everyone,
        settings=f"stage={stage}, {policy}, {prefetch}, unused={unused!r}, "
        f"device={construction.device.type}, "
        f"{len(kept)} uncut of checksum {crc32(repr(sorted(kept)).encode()):08x}",
        objection=wrapped(model)
        or objections(model, sites, units, construction, uncut and kept),
    )
    # One unit after the other gets memory, is copied into its flat vector, cut, and
    # freed. So at its peak the construction takes the memory of the model as it was
    # before, of all parts that are kept, and of one unit.
    if units is None and stage:
        tell_units(model, sites, groups)
    chain = Scheduler(Order(groups.everyone, device=construction.device), prefetch)
    chain.order.progress.partners = groups.partners()
    chain.unused_get_zero = unused == "zero"
    made = {
        name: Unit(
            stage,
            called(name),
            sites[name],
            groups=groups,
            policy=policy,
            order=chain.order,
            synchronize=synchronize,
            uncut=kept if stage else (),
        )
        for name in construction.unit_by_unit()
        if sites[name]
    }
    for name in filter(made.__contains__, modules):
        # A program may call parts of the root, such as an encoder, directly.
        parts = () if name else parts_of(model, sites[name])
        Hooks(made[name], modules[name], chain, parts)
        keep_state_dict_whole(made[name], modules[name])
    chain.attach(model)
    refuse_wrappers(model)
    let_zero_grad_reach(model, made.values())
    if synchronize:
        copy_buffers(model, groups)
    enforce(policy, model)
    refuse_methods(model)
    return model


class Zero3Layer(nn.Module):
    """A module of which this rank keeps only its shard.

    After construction the module's parameters are 1-D slices of the shard. Any
    elementwise optimizer trains them: `torch.optim.AdamW(layer.parameters())`. Each
    rank computes with its own data, and the gradients are the mean over all ranks.

    :param module: any module; its class and its `forward` stay as they are
    :param group: the process group whose ranks share the layer; `None` means all ranks
    :param synchronize: whether the values of rank 0 replace those of the other ranks

    :raises ValueError: as [`shard`](#shard) does
    :raises TypeError: as [`shard`](#shard) does
    :raises RuntimeError: as [`shard`](#shard) does

    Source: [ZeRO](bib:rajbhandari2020zero), stage 3.
    """

    def __init__(
        self, module: nn.Module, *, group: Any = None, synchronize: bool = True
    ) -> None:
        super().__init__()
        self.module = shard(module, units=(), mesh=group, synchronize=synchronize)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's result."""
        return self.module(*args, **kwargs)


class Zero3Sequential(nn.Sequential):
    """A chain of layers, each of them a unit, that is sharded when it is constructed.

    :param layers: modules to run one after the other
    :param group: the process group whose ranks share the layers; `None` means all ranks
    :raises ValueError: as [`shard`](#shard) does
    :raises TypeError: as [`shard`](#shard) does
    :raises RuntimeError: as [`shard`](#shard) does
    """

    def __init__(self, *layers: nn.Module, group: Any = None) -> None:
        super().__init__(*layers)
        shard(self, mesh=group)


def select(model: nn.Module, units: Select | None) -> dict[str, nn.Module]:
    """The modules that become units, by name, in the order of the model.

    The first one is the root, whose name is `""`.

    :raises TypeError: if `units` cannot choose modules
    """
    if units is None:
        sequential = isinstance(model, nn.Sequential)
        blocks = model.named_children() if sequential else repeated_blocks(model)
        return {"": model, **dict(blocks)}
    if isinstance(units, type | tuple | list):
        chosen = is_instance_of(units)
    elif callable(units):
        chosen = units
    else:
        raise TypeError(
            f"units={units!r} chooses no modules; pass a class, several classes, "
            "or a function of a module's name and the module"
        )
    found = {
        name: module
        for name, module in model.named_modules()
        if name and chosen(name, module)
    }
    return {"": model, **found}


def is_instance_of(classes: Classes) -> Predicate:
    """The function that selects the instances of some classes."""
    chosen = classes if isinstance(classes, type) else tuple(classes)
    return lambda name, module: isinstance(module, chosen)


def called(name: str) -> str:
    """The name of a unit in messages.

    >>> called("blocks.0"), called("")
    ('blocks.0', 'the root')
    """
    return name or "the root"


def copy_buffers(model: nn.Module, groups: Groups) -> None:
    """Give every rank the buffers of rank 0, such as the running mean of a batch norm.

    Afterwards each rank updates its own buffers, and no exchange makes them equal
    again. So the running mean of a rank is that of its own data, as it would be in
    `DistributedDataParallel(broadcast_buffers=False)`.
    """
    for buffer in model.buffers():
        copy_buffer(buffer, groups)


# sidelit: depth Units that nobody chose, arguments that are no choice, and models that cannot be sharded.


def tell_units(model: nn.Module, sites: dict[str, list[Site]], groups: Groups) -> None:
    """Say on rank 0 which units were found, and if one of them is most of the model.

    Then stage 3 saves little memory, because a unit in use is whole. Of a small model
    nothing is said.
    """
    sizes = {
        name: sum({site.parameter: site.parameter.numel() for site in unit}.values())
        for name, unit in sites.items()
    }
    total = sum(sizes.values())
    if total < LARGE or world(groups.everyone)[0]:
        return
    largest = max(sizes, key=sizes.__getitem__)
    kinds = Counter(type(model.get_submodule(name)).__name__ for name in sizes if name)
    if kinds and not isinstance(model, nn.Sequential):
        found = " and ".join(f"{count} {kind}" for kind, count in kinds.items())
        logging.getLogger("shardbook").warning(
            f"the units of this {type(model).__name__} are {found}, and the root holds "
            f"{sizes[''] / total:.0%} of the parameters; name others by shard(units=...)"
        )
    if 2 * sizes[largest] > total:
        warnings.warn(
            f"{called(largest)} holds {sizes[largest] / total:.0%} of the parameters of "
            f"this {type(model).__name__} and is whole while it computes, so sharding "
            "saves little memory; name smaller units by shard(units=...)",
            stacklevel=calls_from_outside(),
        )


LARGE = 2**20


def refuse_arguments(
    model: Any, stage: Any, policy: Any, unused: Any, uncut: Any
) -> None:
    """Refuse arguments of the wrong kind before anything is exchanged."""
    if type(stage) is not int or stage not in range(len(STAGES)):
        raise ValueError(f"stage={stage!r} is not a stage; choose 0, 1, 2 or 3")
    if not isinstance(model, nn.Module):
        raise TypeError(f"pass the model itself, not a {type(model).__name__}")
    if unused not in ("none", "zero"):
        raise ValueError(f"unused={unused!r} is not a choice; choose 'none' or 'zero'")
    if uncut is not None and not callable(uncut):
        raise TypeError(
            f"uncut={uncut!r} selects no parameters; pass a function of a parameter's "
            "name and the parameter"
        )
    if not isinstance(policy, Policy):
        raise TypeError(
            f"policy={policy!r} is not a Policy; pass shardbook.Policy(param_dtype=...)"
        )


def objections(
    model: nn.Module,
    sites: dict[str, list[Site]],
    units: Select | None,
    construction: Construction,
    kept: set[str] | None,
) -> str | None:
    """The reason why this rank cannot shard its model, or `None`."""
    if units and len(sites) == 1:
        return (
            f"units={units!r} selects no module; name a class that the model contains"
        )
    if kept is not None and not kept:
        return "uncut= selects no parameter; let it return True for some names"
    if torch.is_inference_mode_enabled():
        return (
            "torch.inference_mode() is on, and parameters made in it cannot be trained; "
            "call shard outside of it"
        )
    here = [site for unit in sites.values() for site in unit]
    for site in here:
        if is_sharded(site.parameter):
            return f"{site.name} is sharded already; shard a model only once"
    parameters = [(site.name, site.parameter) for site in here]
    return (
        unfit(parameters, construction.device)
        or shared_memory(model)
        or construction.objection()
    )


# sidelit: core


# ## Casts at the model's boundary
#
# > A model that computes in 16 bits still takes FP32 inputs, because they are cast.
#
# The units of a model in 16 bits compute with [16-bit
# copies](flat.py#Flat/master-weights) of their parameters. The program around the model
# has not changed: its inputs are in FP32, so they are cast. The model returns 16 bits
# unless the policy names an `output_dtype`. If the loss is computed outside of the
# model, you need `output_dtype=torch.float32`, because the rule that computes [losses
# in FP32](policy.py#module/norms-and-losses) ends with the forward pass.
#
# The hooks of this section cast what crosses the model's boundary. The buffers, which
# are inside the model but are no parameters, are cast, too.
#
# | what | becomes | unless |
# |---|---|---|
# | floating-point inputs of the model, also nested ones | `param_dtype` | `cast_inputs=False` |
# | floating-point outputs of the model | `output_dtype` | that is `None`, the default |
# | floating-point buffers | `buffer_dtype` | that is `None`, the default, or they belong to a norm |
# | functions that compute norms and losses | [FP32](policy.py) | no `param_dtype`, or empty tables |
#
# A cast can change an input that needs more digits than the 16-bit format has. In BF16
# the number 1001 becomes 1000. So positions, times or indices arrive rounded if they are
# floating-point numbers. Pass them as integers, which are never cast, or set
# `cast_inputs=False` and cast in `forward`.
#
# Only calls of the model itself are cast. A part that is called directly takes its inputs
# as they are. Tensors are found in lists, dictionaries and dataclasses, at any depth. If
# [a container holds a tensor that is cast](hook_context.py#map_tensors), the model gets a
# copy of the container, so the caller does not see what the model puts into it.


def enforce(policy: Policy, model: nn.Module) -> None:
    """Attach the casts of a policy, other than those of parameters, to a sharded model."""
    if policy.param_dtype is not None:
        rule = InFP32(policy.fp32_norms, policy.fp32_losses)
        units = scheduler_of(model).units.values()
        parts = [part for hooks in units for part in hooks.parts]
        called = {model, *parts}
        for module in model.modules():
            if module in called:
                put_in_force(rule, module)
            else:
                put_in_force_again(rule, module)
        start_afresh(rule, model)
        for module in model.modules():
            if isinstance(module, policy.fp32_modules):
                compute_in_fp32(module)
        if policy.cast_inputs:
            cast_inputs(model, policy.param_dtype)
    if policy.output_dtype is not None:
        cast_outputs(model, policy.output_dtype)
    if policy.buffer_dtype is not None:
        cast_buffers(model, policy.buffer_dtype, policy.fp32_modules)


def put_in_force(rule: InFP32, module: nn.Module) -> None:
    """Apply a rule during each forward pass of a module.

    A unit that is recomputed in the backward pass, for activation checkpointing, is
    called again, so the rule applies again.
    """
    module.register_forward_pre_hook(not_compiled(rule.enter), prepend=True)
    # This hook also runs after an exception.
    module.register_forward_hook(not_compiled(rule.leave), always_call=True)


def cast_inputs(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the inputs of the model.

    Autograd records the cast, so the gradients of the inputs have the inputs' own
    dtype.
    """
    units = tuple(scheduler_of(model).units)

    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        # [In full precision](whole.py#module/evaluating-in-full-precision) the units compute in the masters'
        # dtype.
        if any(unit.precise for unit in units):
            return None
        return map_tensors(partial(cast, dtype), (args, kwargs))

    model.register_forward_pre_hook(not_compiled(before), with_kwargs=True)


def cast_outputs(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the outputs of the model."""

    def after(_: nn.Module, args: Any, result: Any) -> Any:
        return map_tensors(partial(cast, dtype), result, opens=True)

    model.register_forward_hook(not_compiled(after))


def cast_buffers(
    model: nn.Module, dtype: torch.dtype, kept: tuple[type[nn.Module], ...]
) -> None:
    """Cast floating-point buffers, except those that belong directly to a norm.

    A buffer remains the same object. In the `state_dict` it has its original dtype, so
    that the file fits a plain model, but its values have the precision of the narrower
    one.
    """
    old = {
        buffer: buffer.dtype
        for module in model.modules()
        if not isinstance(module, kept)
        for buffer in module.buffers(recurse=False)
        if buffer.is_floating_point()
    }
    for buffer in old:
        buffer.data = buffer.to(dtype)
    names = {
        name: old[buffer]
        for name, buffer in model.named_buffers(remove_duplicate=False)
        if buffer in old
    }

    def widen(_: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name, before in names.items():
            if prefix + name in state:
                state[prefix + name] = state[prefix + name].to(before)

    model.register_state_dict_post_hook(widen)
    before_casting[model] = names


# The original dtypes of buffers, by their names in the model.
before_casting: WeakKeyDictionary[nn.Module, dict[str, torch.dtype]]
before_casting = WeakKeyDictionary()


def cast(dtype: torch.dtype, value: Tensor) -> Tensor:
    """A floating-point tensor in another dtype; any other tensor unchanged."""
    return value.to(dtype) if value.is_floating_point() else value


# sidelit: depth Modules that a checkpoint runs again, and a forward pass that was interrupted.


def put_in_force_again(rule: InFP32, module: nn.Module) -> None:
    """Apply a rule when a module inside a unit is called in a backward pass.

    PyTorch's checkpoint then recomputes the module outside of a forward pass of the
    unit. Without the rule the recomputed result would differ from the first one, and
    the gradients would be wrong.
    """

    def again(act: Callable[[], None]) -> Callable[..., None]:
        def hook(*_: object) -> None:
            if not torch.compiler.is_compiling() and in_backward():
                act()

        return hook

    module.register_forward_pre_hook(again(rule.enter), prepend=True)
    module.register_forward_hook(again(rule.leave), always_call=True)


def start_afresh(rule: InFP32, model: nn.Module) -> None:
    """Drop a rule that an interrupted forward pass has left in use."""

    def before(model: nn.Module, args: Any) -> None:
        if rule.in_force and not in_backward() and calls_under_way(model) < 2:
            rule.forget()

    model.register_forward_pre_hook(not_compiled(before), prepend=True)
