r"""# Unsupported uses of a sharded model

> A use that would train something else, or fail deep inside PyTorch, is refused with an
> error that names it.

A program may put a sharded model into a second wrapper, or [add
parameters](#module/parameters-that-belong-to-no) to it. It may call [a transform or a
method](#module/transforms-and-methods-that-a) that needs all parameters at once. Or two
tensors of the model may [lie in one memory](#module/tensors-in-one-memory). Without a
check, each of these would end in a wrong result, or in an error that does not name its
cause.

## A second wrapper

`DistributedDataParallel` averages the gradients of a model over the ranks, and so does
`shard`. Both around one model cannot work. The wrapper compares the shapes of its
parameters over the ranks, but slices have other shapes on every rank. So some ranks
raise an error of the wrapper while the others wait for them. In the same way
`fully_shard` would cut the slices a second time. A program may do this without a line
of its own: `accelerator.prepare(model)` and the `Trainer` of the `transformers` library
wrap each model that they get.

Each wrapper is detected at a point that every rank passes:

| wrapper | detected when |
|---|---|
| DDP, `DataParallel`, FSDP1, DeepSpeed's engine | it stores the model: PyTorch calls a hook |
| `fully_shard` and `replicate`, around the model or a submodule | it looks up the functions applied before |
| a wrapper from before `shard` | `shard` checks the modules and parameters |
| a wrapper around a module whose submodule is sharded later | it calls the submodule: it is on the stack |

No exchange has begun at that moment, and each rank raises the same error.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from functools import cache, partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from shardbook.foundations.hook_context import modules_called, tensors_in
from shardbook.foundations.torch_private import (
    REGISTRY_KEY,
    in_transform,
    is_initialised,
    own_buffers,
    own_parameters,
    own_tables,
    pre_hooks_of,
    storage_id,
)
from shardbook.zero.access import guard_again
from shardbook.zero.flat import is_sharded
from shardbook.zero.whole_parameter import OWNER, refuse_replaced

if TYPE_CHECKING:
    from shardbook.zero.scheduler import Scheduler
    from shardbook.zero.unit import Unit

__all__ = [
    "METHODS",
    "refuse_call_by_wrapper",
    "refuse_methods",
    "refuse_replaced_in",
    "refuse_threads",
    "refuse_transforms",
    "refuse_unowned_in",
    "refuse_unowned_of",
    "refuse_wrappers",
    "shared_memory",
    "wrapped",
]


def refuse_wrappers(model: nn.Module) -> None:
    """Make every attempt to wrap a sharded model, or a submodule of it, raise an error.

    :param model: a model that has just been sharded
    """
    watch_registrations()
    for path, module in model.named_modules():
        held = [f"{path}.{name}".lstrip(".") for name, _ in module.named_parameters()]
        if held:
            vars(module).setdefault(REGISTRY_KEY, Applied(held[0]))


@cache
def watch_registrations() -> None:
    """Check each module that is stored in another. One hook serves the process."""
    register_module_module_registration_hook(refuse_storing)


def refuse_storing(wrapper: nn.Module, name: str, module: nn.Module | None) -> None:
    """Refuse to store a sharded model in a wrapper.

    Only the parameters of wrappers are checked. A program that builds other modules
    pays for one comparison of names for each of them.

    :raises RuntimeError: naming the wrapper and a parameter
    """
    if module is not None and is_wrapper(wrapper):
        for parameter, value in module.named_parameters():
            if is_sharded(value):
                raise RuntimeError(refusal(kind_of(wrapper), parameter))


class Applied(dict[str, Any]):
    """The record of PyTorch's composable functions on a module, which they look up
    before they begin.

    `fully_shard` and `replicate` look up their names in this dictionary of the module.
    The lookup raises an error with the reason why they cannot be applied.

    :param parameter: the name of a parameter in a sharded model
    """

    def __init__(self, parameter: str) -> None:
        super().__init__()
        self.parameter = parameter

    def __contains__(self, name: object) -> bool:
        """:raises RuntimeError: if the function exchanges gradients or parameters"""
        if name in ("fully_shard", "replicate"):
            # `FullyShardedDataParallel` looks up the other two as well.
            raise RuntimeError(refusal(COMPOSABLE, self.parameter))
        return super().__contains__(name)


def wrapped(model: nn.Module) -> str | None:
    """The reason why a model cannot be sharded because of a wrapper inside or around it;
    `None` if there is no such wrapper.
    """
    for name, module in model.named_modules():
        if is_wrapper(module):
            return (
                f"{name or 'the model'} is a {kind_of(module)}; "
                "shard the plain model instead, with no other wrapper around it"
            )
        if isinstance(module, torch.jit.ScriptModule) and [*module.parameters()]:
            return (
                f"{name or 'the model'} was compiled by torch.jit, and its code cannot be "
                "given other parameters; shard the plain module, and compile a plain one "
                "with the trained state_dict()"
            )
    for name, parameter in model.named_parameters():
        if is_distributed(parameter):
            return (
                f"{name} is a DTensor, so something else has distributed it already; "
                "shard the plain model instead, without fully_shard or a parallel plan"
            )
    return None


def refuse_call_by_wrapper(model: nn.Module) -> None:
    """Refuse the forward pass of a sharded model if a wrapper has called it.

    Only this check finds a model whose surroundings were wrapped before it was sharded.

    :raises RuntimeError: naming the wrapper and a parameter
    """
    for caller in modules_called():
        if is_wrapper(caller):
            parameter = next((name for name, _ in model.named_parameters()), "it")
            raise RuntimeError(refusal(kind_of(caller), parameter))


def is_wrapper(module: nn.Module) -> bool:
    """Whether a module is a wrapper that exchanges the parameters inside it.

    The names of its classes decide. So no library must be imported, and derived classes
    of other libraries are found, too.
    """
    return any(base.__name__ in WRAPPERS for base in type(module).__mro__)


WRAPPERS = frozenset(
    (
        "DataParallel",
        "DeepSpeedEngine",
        "DistributedDataParallel",
        "FSDPModule",
        "FullyShardedDataParallel",
        "ShardedDataParallel",
    )
)


def is_distributed(parameter: Tensor) -> bool:
    """Whether a parameter is a `DTensor`, of which each rank holds a part."""
    return any(base.__name__ == "DTensor" for base in type(parameter).__mro__)


# sidelit: depth The wording of the error, and the name of the wrapper in it.


def refusal(wrapper: str, parameter: str) -> str:
    """The text of the error.

    >>> refusal("DataParallel", "head.weight").partition(";")[0]
    'head.weight is sharded, so DataParallel cannot exchange it once more'
    """
    return (
        f"{parameter} is sharded, so {wrapper} cannot exchange it once more; use the "
        "model that shard returned without a wrapper, with stage=0 for what "
        "DistributedDataParallel does"
    )


def kind_of(wrapper: nn.Module) -> str:
    """The name of the class by which a wrapper was found."""
    names = (base.__name__ for base in type(wrapper).__mro__)
    return next(name for name in names if name in WRAPPERS)


COMPOSABLE = "fully_shard, replicate or FullyShardedDataParallel"


# sidelit: core


# ## Parameters that belong to no unit
#
# > Each rank would train a parameter alone that was added after `shard`. Such a parameter is refused.
#
# `shard` puts the model's parameters into units, and the units average their gradients.
# Suppose a program then adds a layer, which is in no unit. Each rank computes the layer's
# gradient from its own data, and the optimizer steps with it. So the layer drifts apart
# between the ranks, while no error is raised and the loss still falls. The same happens
#
# - if only a part of the model was sharded, such as its blocks,
# - if a layer was replaced, for example the head before fine-tuning,
# - if an adapter was put around a layer.
#
# Such parameters are detected at two places. An optimizer that is about to step must not
# mix them with sharded ones, and a sharded model that is about to run must not hold them.
# An optimizer without any sharded parameter is not checked, because a program may train a
# second model in another way.
#
# A third change is more hidden. If a program assigns another parameter to an attribute of
# a module, [the unit](unit.py#Unit.show) would put its own parameter back and train that
# one. [A check before each gather](#refuse_replaced_in) compares the two first.


def refuse_unowned_of(optimizer: Optimizer) -> None:
    """Refuse an optimizer that trains sharded parameters together with others.

    A parameter without a gradient is not trained, so it passes.

    :raises RuntimeError: naming the first of the others
    """
    refuse_unowned(
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and not is_sharded(parameter)
    )


def refuse_unowned_in(model: nn.Module) -> None:
    """Refuse a sharded model that has another trainable parameter.

    The check reads the dictionaries of the modules directly. It runs before each
    forward pass, and `model.parameters()` would take three times as long.

    :raises RuntimeError: naming the parameter
    """
    unowned = [
        parameter
        for own, _ in own_tables(model.modules())
        for parameter in own.values()
        if parameter is not None and getattr(parameter, OWNER, lambda: None)() is None
    ]
    if unowned:
        refuse_unowned(unowned)


def refuse_replaced_in(unit: Unit) -> list[dict[str, nn.Parameter | None]]:
    """Refuse to gather [a unit](unit.py) whose parameters were replaced or converted.

    A new parameter in an attribute would be overwritten, and the old one would be
    trained. `weight_norm`, parametrizations and `functional_call` also put other tensors
    there.

    :returns: for each of the unit's sites, the dictionary of its module's parameters
    :raises RuntimeError: naming the parameter and what to do
    """
    owners = [own_parameters(site.module) for site in unit.sites]
    for site, own in zip(unit.sites, owners, strict=True):
        if own.get(site.attribute) is not site.parameter:
            raise RuntimeError(
                f"{site.name} in unit {unit.name} was replaced or removed after sharding; "
                "change the model before shard(), and values by load_state_dict()"
            )
    for flat in unit.flats:
        if flat.plain:
            guard_again(flat)
        refuse_replaced(flat, unit.name)
    return owners


def refuse_unowned(unowned: Iterable[Tensor]) -> None:
    """Refuse the first parameter that would be trained without being averaged."""
    for parameter in unowned:
        if parameter.requires_grad and not is_averaged(parameter):
            shape = tuple(parameter.shape)
            name = name_of(parameter) or f"a parameter of shape {shape}"
            raise RuntimeError(
                f"{name} belongs to no unit, so each rank would train it alone; call "
                "shard() on the whole model, after the last change of its layers"
            )


# sidelit: depth Parameters that `DistributedDataParallel` averages, and the name in the message.


def is_averaged(parameter: Tensor) -> bool:
    """Whether `DistributedDataParallel` averages the gradient of a parameter.

    That wrapper leaves no trace on a parameter, so all objects of the program are
    searched for it. The search takes as long as a small training step. So its result is
    kept on the parameter.
    """
    if not hasattr(parameter, _AVERAGED):
        for module in modules_of(DistributedDataParallel):
            for each in module.parameters():
                setattr(each, _AVERAGED, True)
    return hasattr(parameter, _AVERAGED)


_AVERAGED = "_shardbook_averaged"


def name_of(parameter: Tensor) -> str | None:
    """The name of a parameter in the outermost module of the program that holds it."""
    names = (
        name
        for module in modules_of(nn.Module)
        for name, other in module.named_parameters()
        if other is parameter
    )
    return max(names, key=len, default=None)


def modules_of(kind: type[nn.Module]) -> Iterator[nn.Module]:
    """All modules of a class, or of a class derived from it, in the program.

    `isinstance` is not used, because it would run the code of objects that pretend to
    be of another class.
    """
    for found in gc.get_objects():
        if issubclass(type(found), kind) and is_initialised(found):
            yield found


# sidelit: core


# ## Transforms and methods that a sharded model refuses
#
# > Functions that need all parameters at once, as plain tensors, are refused, and the error names them.
#
# Some functions take a model apart:
#
# - `torch.vmap` and the other transforms of `torch.func` replace tensors by wrappers, and
#   a wrapper has no memory into which a unit could be gathered.
# - `torch.export` and `make_fx` record the operations of one forward pass, and would
#   record this rank's exchanges, too.
# - Threads that each run some blocks of one model start its exchanges in an order that
#   differs from rank to rank.
# - `resize_token_embeddings` builds a larger table from the old one, of which a rank has
#   only a slice.
#
# Without the checks of this section, each of them would end in an error from deep
# inside PyTorch, or in a wrong result. The checks run when a unit's forward pass begins,
# and cost a microsecond.


# Methods of models of other libraries that change the shapes or the values of whole
# parameters, with the advice for each.
METHODS = {
    "resize_token_embeddings": "call it before shard(model)",
    "merge_adapter": "merge in a plain model that has loaded model.state_dict()",
    "unmerge_adapter": "merge in a plain model that has loaded model.state_dict()",
    "merge_and_unload": "merge in a plain model that has loaded model.state_dict()",
}


def refuse_methods(model: nn.Module) -> None:
    """Make these methods of a model and its submodules raise an error."""
    for module in model.modules():
        for name, instead in METHODS.items():
            if hasattr(type(module), name):
                vars(module)[name] = partial(refuse_method, name, instead)


def refuse_method(name: str, instead: str, *_: object, **__: object) -> NoReturn:
    """Refuse a method, and say what to do instead.

    :raises RuntimeError: always
    """
    raise RuntimeError(
        f"{name} needs whole parameters that can be replaced, and those of this model "
        f"are sharded; {instead}"
    )


def refuse_transforms(unit: str) -> None:
    """Refuse a forward pass that is transformed or recorded.

    :raises RuntimeError: naming the unit and what to do
    """
    # The stack of the transforms of `torch.func` that are under way, such as `vmap`.
    if in_transform() is not None:
        raise RuntimeError(
            f"{unit} is sharded, and torch.func transforms such as vmap, grad and jvp "
            "cannot pass its exchanges; transform a plain model that has loaded "
            "model.state_dict()"
        )
    # `torch.export` and `make_fx` record each operation through this mode.
    if get_proxy_mode() is not None or torch.jit.is_tracing():  # type: ignore[attr-defined]
        raise RuntimeError(
            f"{unit} is sharded, and an exported or traced program would contain this "
            "rank's exchanges; export a plain model that has loaded model.state_dict()"
        )


def refuse_threads(scheduler: Scheduler, unit: str) -> None:
    """Refuse a forward pass in one thread while another thread is in one of the same model.

    :param scheduler: [the scheduler](scheduler.py#Scheduler) of the model's units
    :raises RuntimeError: naming the unit and what to do
    """
    uses = [hooks.uses for hooks in scheduler.units.values()]
    inside = any(each.under_way_elsewhere() for each in uses)
    if inside or scheduler.calls.under_way_elsewhere():
        raise RuntimeError(
            f"{unit} was called while another thread is in a forward pass of the same "
            "model, and the ranks have to run its units in one order; call the units of "
            "a model from one thread"
        )
    scheduler.thread = get_ident()


# ## Tensors in one memory
#
# > Two tensors of a model that lie in the same memory are refused, because sharding would take them apart.
#
# A weight is tied when two modules have one `Parameter`, and [a unit keeps such a
# tie](parameter_sites.py#sites_by_unit). But two tensors can also be tied by their memory
# alone:
#
# ```python
# self.output.weight.data = self.embedding.weight.data   # two parameters, one memory
# self.register_buffer("table", self.embedding.weight.data)
# ```
#
# In a plain program a step that trains the embedding changes the output layer, too. A
# unit copies each parameter into its own part of [the flat vector](flat.py), so after
# sharding there would be two memories with equal values, and after a step two different
# weights. No error would be raised.
#
# So before a model is sharded, [a check](#shared_memory) looks at the memory of its
# parameters, buffers, and tensors in the attributes of its modules. Tensors in another
# place, such as a closure or a global variable, are not found.


class Span(NamedTuple):
    """The bytes of a storage between the first and the last element of a tensor."""

    start: int
    stop: int
    name: str
    tensor: Tensor

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> Span:
        """The span of a tensor with elements."""
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((int(size) - 1) * stride for size, stride in pairs)
        first = int(tensor.storage_offset())
        size = tensor.element_size()
        return cls(first * size, (first + last + 1) * size, name, tensor)

    def meets(self, other: Span) -> bool:
        """Whether two tensors have a byte in common."""
        if self.stop <= other.start or other.stop <= self.start:
            return False
        if self.tensor.is_contiguous() and other.tensor.is_contiguous():
            return True
        # Two columns of a matrix have overlapping spans, and no byte in common.
        start = min(self.start, other.start)
        size = max(self.stop, other.stop) - start
        taken = torch.zeros(size, dtype=torch.bool, device="cpu")
        self.bytes_in(taken, start).fill_(True)
        return bool(other.bytes_in(taken, start).any())

    def bytes_in(self, taken: Tensor, start: int) -> Tensor:
        """The places of the tensor's bytes in a vector with one element for each byte."""
        size = self.tensor.element_size()
        strides = [stride * size for stride in self.tensor.stride()]
        shape = (*self.tensor.shape, size)
        return taken.as_strided(shape, (*strides, 1), self.start - start)


def shared_memory(model: nn.Module) -> str | None:
    """Two tensors that have memory in common, at least one of them a parameter, in words.

    :returns: what they are and what to write instead; `None` if there are none
    """
    by_storage: dict[int, list[Span]] = {}
    parameters: set[int] = set()
    for name, tensor in tensors_of(model, parameters):
        if tensor.layout is torch.strided and tensor.numel():
            here = by_storage.setdefault(storage_id(tensor.untyped_storage()), [])
            span = Span.of(name, tensor)
            for other in here:
                if id(other.tensor) in parameters and span.meets(other):
                    both = id(tensor) in parameters
                    return refusal_of_sharing(span.name, other.name, both=both)
            here.append(span)
    return None


def tensors_of(model: nn.Module, parameters: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of a model once, with its name; the parameters come first.

    :param parameters: receives the `id` of each parameter
    """
    for name, parameter in model.named_parameters():
        parameters.add(id(parameter))
        yield name, parameter
    seen = set(parameters)
    for path, module in model.named_modules():
        own = vars(module)
        # The buffers of a compiled module are in a container of its own.
        others = {name: own[name] for name in own.keys() - _USUAL}
        others.update(own_buffers(module).items())
        for name, value in sorted(others.items()):
            for tensor in tensors_in(value):
                if id(tensor) not in seen and not is_made_anew(module, name):
                    seen.add(id(tensor))
                    yield f"{path}.{name}" if path else name, tensor


_USUAL = frozenset(vars(nn.Module()))


def is_made_anew(module: nn.Module, name: str) -> bool:
    """Whether a hook sets this attribute before each forward pass, as `spectral_norm` does."""
    return any(getattr(hook, "name", None) == name for hook in pre_hooks_of(module))


def refusal_of_sharing(name: str, parameter: str, *, both: bool) -> str:
    """The message about a tensor that lies in the memory of a parameter."""
    if both:
        return (
            f"{name} and {parameter} are two parameters in one memory; give both modules "
            "one Parameter to tie them, or one of them a clone"
        )
    return (
        f"{name} lies in the memory of the parameter {parameter}, and would keep the "
        "values from before sharding; read the parameter itself, or keep a clone"
    )
