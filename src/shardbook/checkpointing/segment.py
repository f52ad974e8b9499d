r"""# The second run of a checkpoint

> The second run of a function gets the arguments, the random numbers and the autocast
> settings of the first run.

A checkpoint runs its function twice, and the second run has to do the same as the
first. So a checkpoint captures [the settings](#Settings) around the first run, and
restores them for the second: random numbers, [autocast](#module/restoring-autocast),
and the default device. The two variants differ in what they take from the second run:

- The [non-reentrant](saved_tensors.py) variant takes the tensors that autograd saves.
  They [fill the placeholders](#module/the-recomputation) of the first run.
- The [reentrant](reentrant.py) variant takes the results, together with their graph. It
  keeps a *segment*: the function with its arguments and settings. (The segments of [a
  chain](checkpointing.py#module/checkpointing-a-chain-in-segments) are something else:
  ranges of layers.)

The arguments are taken apart. The tensors are saved by autograd, which frees them after
the backward pass and detects whether they were changed. The rest is kept as it is, with
a mark where each tensor stood, and is put together again for the second run.

Two mistakes would give wrong gradients without an error, so a segment refuses them. If
a function changes its arguments, its second run would get the changed values. And if a
tensor leaves the first run by another way than the return value, no gradient reaches
it, because the first run works without autograd.

:notation $i$: `number`, the number of a saved tensor
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial, wraps
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from shardbook.checkpointing.determinism import (
    CheckpointError,
    Record,
    is_filled_later,
)
from shardbook.foundations.hook_context import tensors_in
from shardbook.foundations.rng import RNGState, capture
from shardbook.foundations.torch_private import (
    TreeSpec,
    Versions,
    compiler_is_loaded,
    forbid_compiling,
    tree_flatten,
    tree_is_leaf,
    tree_leaves,
    tree_unflatten,
    writes_to,
)
from shardbook.precision.autocast import Setting, current
from shardbook.precision.autocast import restored as casting_restored
from shardbook.zero.policy import rules_in_force

__all__ = [
    "AmbientAutocast",
    "Collector",
    "Enough",
    "Held",
    "Passed",
    "Place",
    "Placeholder",
    "Segment",
    "Settings",
    "capture_autocast",
    "device_types",
    "outside_compiler",
    "take_apart",
]

# sidelit: hide
# The positional arguments and the keyword arguments of a call.
Passed = tuple[tuple[Any, ...], dict[str, Any]]
# sidelit: show


@dataclass(eq=False, slots=True)
class Segment:
    """A function, with everything that its second run needs besides the tensors.

    :param leaves: the arguments without their structure, with [a place](#Place) for
        each tensor
    :param spec: the structure of the arguments
    :param settings: the settings around the first run
    :param returned: the structure of what the first run returned
    """

    function: Callable[..., Any]
    leaves: list[Any]
    spec: TreeSpec
    settings: Settings
    returned: TreeSpec | None = None

    @classmethod
    def of(
        cls, function: Callable[..., Any], arguments: Passed, preserve_rng_state: bool
    ) -> tuple[Segment, list[Tensor]]:
        """Make a segment with the current settings, and return the tensors among its
        arguments, too.
        """
        tensors, leaves, spec = take_apart(arguments)
        args, kwargs = arguments
        settings = Settings.now(function, args, kwargs, preserve_rng_state)
        return cls(function, leaves, spec, settings), tensors

    def first(self, tensors: Sequence[Tensor], arguments: Passed) -> list[Any]:
        """Run the function for the first time, and take its results apart.

        :raises RuntimeError: if the function changed its arguments
        :raises TypeError: if an argument is an iterator, or a result holds tensors
            inside an object that is no pytree
        """
        before = Versions(*tensors)
        held = Held(self.function, self.leaves)
        args, kwargs = arguments
        output = self.function(*args, **kwargs)
        refuse_changes(tensors, before)
        refuse_additions(tensors, arguments)
        held.refuse_additions()
        values, self.returned = tree_flatten(output)
        refuse_hidden(values)
        return values

    def again(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Run the function again with the settings of the first run, and with autograd.

        The second run gets new lists and dictionaries. So if the function appends to a
        list, the caller's list grows only once.

        :raises RuntimeError: if the function returns another structure than before
        """
        leaves = [
            tensors[leaf.index] if isinstance(leaf, Place) else leaf
            for leaf in self.leaves
        ]
        args, kwargs = tree_unflatten(leaves, self.spec)
        with self.settings.restored():
            values, returned = tree_flatten(self.function(*args, **kwargs))
        self.refuse_other(returned)
        return values

    # sidelit: depth A second run that returns another structure.

    def refuse_other(self, returned: TreeSpec) -> None:
        """Refuse a second run whose results do not match the gradients.

        :raises RuntimeError: naming both structures
        """
        if returned != self.returned:
            raise RuntimeError(
                "the checkpointed function returned another structure when it was "
                f"computed again: {returned} instead of {self.returned}; make it "
                "depend on its arguments alone"
            )


@dataclass(frozen=True, slots=True)
class Place:
    """Marks where a tensor stood among the arguments; `index` is the tensor's number."""

    index: int


def take_apart(arguments: Passed) -> tuple[list[Tensor], list[Any], TreeSpec]:
    """Take arguments apart: the different tensors, all leaves with a place in the
    position of each tensor, and the structure.

    A tensor that is passed twice must be one object in the second run, too, because
    some functions test for identity. For example, if `query`, `key` and `value` are one
    object, attention computes one matrix product for them, and it rounds differently
    from three products.
    """
    leaves, spec = flatten_arguments(arguments)
    tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}
    places = {key: Place(index) for index, key in enumerate(tensors)}
    return list(tensors.values()), [places.get(id(leaf), leaf) for leaf in leaves], spec


def flatten_arguments(arguments: Passed) -> tuple[list[Any], TreeSpec]:
    """The leaves of some arguments, and their structure.

    Flattening a pytree takes longer than a small operation. Most calls pass plain
    tensors and numbers, and for those the structure is known.
    """
    args, kwargs = arguments
    values = [*args, *kwargs.values()]
    if all(isinstance(value, (Tensor, NoneType, int, float, str)) for value in values):
        return values, structure_of_singles(len(args), *kwargs)
    return tree_flatten(arguments)


@cache
def structure_of_singles(number: int, *names: str) -> TreeSpec:
    return tree_flatten(((None,) * number, dict.fromkeys(names)))[1]


# sidelit: depth Functions that change their arguments, and tensors that no gradient would reach.


def refuse_changes(tensors: Sequence[Tensor], before: Versions) -> None:
    """Refuse a function that changes an argument, since its second run would get the
    changed values. Autograd cannot detect this. It reads the version of a saved tensor
    when `forward` returns, and by then the change has happened.

    :raises RuntimeError: naming the shape of an argument that was changed in place
    """
    for tensor in before.changed(*tensors):
        raise RuntimeError(
            "the checkpointed function changed an argument of shape "
            f"{tuple(tensor.shape)} in place, and would be given the changed one "
            "when it is computed again; let it change a clone"
        )


def refuse_additions(tensors: Sequence[Tensor], arguments: Passed) -> None:
    """Refuse a function that leaves a tensor in a list among its arguments, where no
    gradient would reach it.

    :raises RuntimeError: naming the shape of a tensor that was not there before
    """
    known = {id(tensor) for tensor in tensors}
    for leaf in flatten_arguments(arguments)[0]:
        if isinstance(leaf, Tensor) and id(leaf) not in known:
            raise RuntimeError(
                f"the checkpointed function left a tensor of shape {tuple(leaf.shape)} "
                "in its arguments, where no gradient would reach it; return it instead"
            )


class Held:
    """The tensors inside objects among the arguments, such as the cache of a language
    model.

    The second run finds in an object whatever the first run left there. For example, a
    decoder that appends its keys to a cache would attend to each key twice. Tensors
    that a function leaves in its own attributes, or in those of a module, are not
    searched for. [The non-reentrant variant](saved_tensors.py) uses this class, too.

    :param leaves: the arguments without their structure
    :raises TypeError: if an argument is an iterator, which the first run would use up
    """

    def __init__(self, function: Callable[..., Any], leaves: Sequence[Any]) -> None:
        if isinstance(function, partial):
            leaves = [*leaves, *tree_leaves((function.args, function.keywords))]
        self.objects = [leaf for leaf in leaves if may_hold(leaf)]
        for one in leaves:
            if isinstance(one, Iterator):
                raise TypeError(
                    f"an argument of the checkpointed function is a {type(one).__name__},"
                    " of which the first run would leave nothing; pass a list"
                )
        # The dictionary also holds the tensors themselves, because the `id` of a freed
        # tensor may be reused.
        self.before = {id(t): t for one in self.objects for t in reachable(one)}

    def refuse_additions(self) -> None:
        """Refuse a function that left a tensor in one of these objects. If autograd was
        on during the first run, a tensor that requires no gradient is allowed, such as
        a mask that is made once for all layers.

        :raises RuntimeError: naming the object, and the shape of what it now holds
        """
        for one in self.objects:
            for tensor in reachable(one):
                if id(tensor) not in self.before and may_need_gradient(tensor):
                    raise RuntimeError(
                        "the checkpointed function left a tensor of shape "
                        f"{tuple(tensor.shape)} in a {type(one).__name__} among its "
                        "arguments, and would find it there when it runs again; return "
                        "it, or pass no cache, as with use_cache=False in transformers"
                    )


def may_hold(value: Any) -> bool:
    """Whether an object has attributes that may hold tensors."""
    atoms = (Tensor, nn.Module, type, ModuleType, FunctionType, MethodType)
    return hasattr(value, "__dict__") and not isinstance(value, atoms)


def reachable(start: Any) -> Iterator[Tensor]:
    """The tensors in an object's attributes, in the attributes of these, and so on."""
    seen, waiting = set(), [start]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, dict):
                waiting += value.values()
            elif isinstance(value, (list, tuple)):
                waiting += value
            if may_hold(value):
                waiting += vars(value).values()


def may_need_gradient(tensor: Tensor) -> bool:
    if torch.is_grad_enabled():
        return tensor.requires_grad
    return tensor.is_floating_point() or tensor.is_complex()


def refuse_hidden(values: Sequence[Any]) -> None:
    """Refuse a result that holds tensors inside an object that is no pytree, since they
    would have no gradient.

    :raises TypeError: naming the object's type
    """
    for value in values:
        if not isinstance(value, Tensor) and any(
            may_need_gradient(tensor) for tensor in tensors_in(value)
        ):
            raise TypeError(
                f"the checkpointed function returned a {type(value).__name__} that "
                "holds tensors, where no gradient would reach them; return the tensors "
                "in a tuple, a list or a dictionary"
            )


# sidelit: core
# sidelit: depth `torch.compile`, which would record the first run only.

# The function inside a checkpoint may be compiled, but the checkpoint around it may
# not.
REASON = (
    "a checkpointed function runs again in the backward pass, where nothing is "
    "compiled; compile the function by itself, as in checkpoint(torch.compile(block), x)"
)


def outside_compiler(
    checkpoint: Callable[..., Any], reason: str = REASON
) -> Callable[..., Any]:
    """A function that `torch.compile` does not enter.

    The compiler would record the first run only, and parameters would get wrong
    gradients. The checkpointed function itself may be compiled.

    :param reason: the compiler's error under `fullgraph=True`
    """
    quiet: list[Callable[..., Any]] = []

    @wraps(checkpoint)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Loading the compiler takes seconds. As long as it is not loaded, nothing is
        # being compiled.
        if not compiler_is_loaded():
            return checkpoint(*args, **kwargs)
        if not quiet:
            quiet.append(torch.compiler.disable(checkpoint, reason=reason))
        return quiet[0](*args, **kwargs)

    # The compiler may meet this function before it was called for the first time.
    forbid_compiling(call, reason)
    return call


# sidelit: core


# ## The recomputation
#
# > The second run fills the placeholders of the first run in order, and ends as soon as all are full.
#
# [A checkpoint](saved_tensors.py) keeps no saved tensors, but a list of placeholders in
# their order. In the second run, the $i$-th tensor that autograd is about to save goes to
# the $i$-th placeholder. This works as long as the function [does the
# same](determinism.py) in both runs.
#
# As soon as the last placeholder is full, the rest of the run is of no use, so the run
# ends. This *early stop* saves whole matrix products. PyTorch saves the inputs of an
# operation before it computes the result. So if the last layer is a matrix product, its
# input is saved, the run ends, and the product is not repeated.
#
# If a program drops one of two results before the backward pass, autograd frees the
# placeholders that only this result needs. Operations after the last remaining
# placeholder do not run again either. All operations before it do, whether they are
# needed or not. A result that the program still holds keeps all of its placeholders, even
# if the loss does not use it.


class Placeholder:
    """The object that autograd keeps in place of a saved tensor. It is empty until the
    recomputation.
    """

    __slots__ = ("__weakref__", "value", "version")

    def __init__(self) -> None:
        self.value: Tensor | None = None
        # The version of the tensor at the moment when it was saved.
        self.version = 0

    def fill(self, tensor: Tensor) -> None:
        """Hold a tensor of the recomputation, without its history, because the history
        would keep the whole graph of that run.
        """
        self.value = tensor.detach() if tensor.requires_grad else tensor
        self.version = writes_to(tensor)

    def take(self) -> Tensor:
        """Hand over the tensor and forget it, so that its memory is free as soon as its
        node has run.

        A second backward pass through the same graph recomputes the tensor.

        :raises CheckpointError: if an operation has changed the tensor in place after
            autograd saved it. Autograd checks this itself, but not for tensors that a
            hook has packed, and the gradient would be that of the changed values.
        """
        value, self.value = self.value, None
        assert value is not None
        if writes_to(value) != self.version:
            refuse_altered(value.shape)
        return value


class Enough(BaseException):
    """Raised to end a recomputation early.

    It is deliberately not an `Exception`. A function with `try` and `except Exception`
    would catch it, and take its other branch.
    """


class Collector:
    """The hooks of a recomputation.

    :param placeholders: the placeholders to fill, in order; a dead reference belongs to
        a tensor that no gradient needs any more
    :param record: an empty record, which will be [compared](determinism.py) with that
        of the forward pass
    :param early_stop: whether to end the run when all needed placeholders are full
    """

    def __init__(
        self,
        placeholders: list[weakref.ref[Placeholder]],
        record: Record,
        early_stop: bool,
    ) -> None:
        self.placeholders = placeholders
        self.early_stop = early_stop
        self.record = record
        alive = (i for i, ref in enumerate(placeholders) if ref() is not None)
        self.needed = 1 + max(alive, default=-1)
        self.stopped = False

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """A block in which each tensor that autograd saves goes to its placeholder."""
        keep = saved_tensors_hooks(self.pack, lambda tensor: tensor)
        with keep, self.record.watching():
            yield

    def pack(self, tensor: Tensor) -> Tensor:
        """Fill the next placeholder with a tensor that autograd is about to save.

        Autograd itself gets the plain tensor, because the function may run a backward
        pass of its own.
        """
        number = len(self.record.saved)
        known = number < len(self.placeholders)
        placeholder = self.placeholders[number]() if known else None
        self.record.note(None if placeholder is None else tensor)
        if placeholder is not None:
            placeholder.fill(tensor)
        enough = self.early_stop and number + 1 >= self.needed
        if enough and not is_filled_later(sys._getframe(1)):
            self.stopped = True
            raise Enough
        return tensor.detach() if tensor.requires_grad else tensor

    def filled(self) -> list[Tensor]:
        """The tensors that the placeholders hold now."""
        held = [ref() for ref in self.placeholders]
        return [one.value for one in held if one and one.value is not None]

    def until_enough(self, run: Callable[[], Any]) -> None:
        """Run the function to its end, or until all needed placeholders are full.

        A function that catches even `BaseException` goes on, and the next saved tensor
        ends it. If it fails before that, the placeholders are full all the same.
        """
        try:
            run()
        except Enough:
            pass
        except Exception:
            if not self.stopped:
                raise


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings around a function that its second run needs: random numbers,
    autocast and the default device.

    In the backward pass they may differ, since its random numbers are later ones and
    the block of autocast has ended. Nor does a backward pass record a graph unless it
    is asked to.

    :param device: the default device of new tensors
    """

    random: RNGState
    autocast: AmbientAutocast
    device: torch.device

    @classmethod
    def now(cls, function: Any, args: Any, kwargs: Any, draw_again: bool) -> Settings:
        """Capture the current settings, for the generators and devices that are found
        among the arguments.

        :param draw_again: whether the state of the generators is captured, too
        """
        return cls(
            capture(function, *args, *kwargs.values()) if draw_again else RNGState(),
            capture_autocast(device_types(*args, *kwargs.values())),
            torch.get_default_device(),
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A block with these settings."""
        with torch.enable_grad(), self.random.restored(), self.autocast.restored():
            if self.device == torch.get_default_device():
                yield
            else:
                with self.device:
                    yield


# sidelit: depth A tensor that the function changes after autograd has saved it.


def refuse_altered(shape: torch.Size) -> NoReturn:
    """Refuse a tensor whose values are no longer those that autograd has saved.

    :raises CheckpointError: naming the shape
    """
    raise CheckpointError(
        f"a tensor of shape {tuple(shape)} was changed in place inside "
        "the checkpointed function after autograd had saved it; use an "
        "operation that gives a new tensor"
    )


# sidelit: core


# ## Restoring autocast
#
# > A recomputation runs after the block of `torch.autocast` has ended, so the settings
# > are captured and restored.
#
# A forward pass usually runs inside `with torch.autocast(...)`, and the backward pass
# after it. So a recomputation in the backward pass finds autocast off, and would compute
# in FP32 what the forward pass computed in BF16. The gradient would then belong to
# slightly different activations, and the recomputed activations would take twice the
# memory.
#
# Therefore a checkpoint captures these settings before the first run and restores them
# for the second:
#
# | setting | set for | what goes wrong without it |
# |---|---|---|
# | enabled | each type of device | the second run computes in another dtype |
# | dtype | each type of device | BF16 becomes FP16, or the reverse |
# | whether casts are kept | the thread | the gradient differs in its last bits |
# | how many blocks surround the function | the thread | the gradient differs in its last bits |
#
# The third setting is the cache of casts. With the cache, a weight that is used twice is
# cast once, and the gradients of both uses are added in 16 bits. Without the cache the
# weight is cast twice, and the gradients are added in FP32. PyTorch clears the cache when
# the outermost block of `torch.autocast` ends. In the second run a block inside the
# function must not become the outermost one. So a checkpoint counts the blocks that
# surround the function.
#
# [This book's autocast](autocast.py) has settings of its own, and they are captured in
# the same way.


@dataclass(frozen=True, slots=True)
class AmbientAutocast:
    """The settings of autocast at one moment.

    :param settings: for each type of device whether autocast is enabled, and its dtype
    :param keeps_casts: whether a weight that was cast once is kept in its new dtype
    :param depth: how many blocks of `torch.autocast` are open
    :param own: the settings of [this book's autocast](autocast.py#current)
    :param rules: gives a block in which [norms and losses](policy.py#rules_in_force) of
        a sharded model are computed as they were
    """

    settings: dict[str, tuple[bool, torch.dtype]]
    keeps_casts: bool
    depth: int
    own: dict[str, Setting]
    rules: Callable[[], AbstractContextManager[None]]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A block with these settings. At its end the settings from before the block
        come back, even if the block raises.
        """
        surrounding = capture_autocast(self.settings)
        # This book's autocast is a function mode, which runs Python code at each
        # operation. If its settings already agree, no mode is entered.
        differs = self.own != surrounding.own
        try:
            with casting_restored(self.own) if differs else nullcontext(), self.rules():
                self.set()
                yield
        finally:
            surrounding.set()

    def set(self) -> None:
        """Make these settings those of the current thread.

        The cache of casts is cleared both on the way into the block and on the way out.
        The cache finds a cast by the weight alone, so on the way in it could return a
        cast to another dtype. On the way out it holds casts from the recomputation's
        graph, and would keep their memory after the backward pass.
        """
        torch.clear_autocast_cache()
        for device_type, (enabled, dtype) in self.settings.items():
            torch.set_autocast_enabled(device_type, enabled)
            torch.set_autocast_dtype(device_type, dtype)
        torch.set_autocast_cache_enabled(self.keeps_casts)
        depth = torch.autocast_increment_nesting()
        while depth > self.depth:
            depth = torch.autocast_decrement_nesting()
        while depth < self.depth:
            depth = torch.autocast_increment_nesting()


def capture_autocast(types: Iterable[str] = ()) -> AmbientAutocast:
    """Capture the current settings for the CPU, for this machine's accelerator, and for
    other types of devices.

    A function may move its arguments from the CPU to the accelerator, so the
    accelerator's settings are captured even if all arguments are on the CPU. Reading a
    setting initialises no device.

    :param types: more types of devices, such as `"cuda"`; types without autocast are
        skipped

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     ambient = capture_autocast()
    >>> with ambient.restored():
    ...     torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype
    torch.bfloat16
    """
    accelerator = torch.accelerator.current_accelerator()
    found = dict.fromkeys(["cpu", *([accelerator.type] if accelerator else []), *types])
    settings = {
        device_type: (
            torch.is_autocast_enabled(device_type),
            torch.get_autocast_dtype(device_type),
        )
        for device_type in found
        if torch.amp.is_autocast_available(device_type)
    }
    keeps_casts = torch.is_autocast_cache_enabled()
    # PyTorch returns the depth only from the functions that change it.
    torch.autocast_increment_nesting()
    depth = torch.autocast_decrement_nesting()
    return AmbientAutocast(settings, keeps_casts, depth, current(), rules_in_force())


def device_types(*args: Any) -> set[str]:
    """The types of the devices that hold the tensors among some arguments."""
    types = set()
    for value in args:
        if isinstance(value, Tensor):
            types.add(value.device.type)
        elif not tree_is_leaf(value):
            types |= device_types(*tree_leaves(value))
    return types
