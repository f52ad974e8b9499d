r"""# A segment of a reentrant checkpoint

> A segment is a function with everything that its second run needs: arguments, random numbers, autocast.

To run a function again, [the reentrant variant](reentrant.py) also needs the arguments,
and [the settings](recomputation.py#Settings) around the first run. A *segment* is the
function together with these. (The segments of [a chain](sequential.py) are something
else: ranges of layers.)

The arguments are taken apart. The tensors are saved by autograd, which frees them after
the backward pass and detects whether they were changed. The rest is kept as it is, with
a mark where each tensor stood, and is put together again for the second run.

Two mistakes would give wrong gradients without an error, so they are refused. If a
function changes its arguments, its second run would get the changed values. And if a
tensor leaves the first run by another way than the return value, no gradient reaches
it, because the first run works without autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial, wraps
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.checkpointing.recomputation import Settings
from shardbook.foundations.hook_context import tensors_in
from shardbook.foundations.torch_private import (
    TreeSpec,
    compiler_is_loaded,
    forbid_compiling,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)
from shardbook.foundations.versions import Versions

__all__ = ["Held", "Passed", "Place", "Segment", "outside_compiler", "take_apart"]
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
