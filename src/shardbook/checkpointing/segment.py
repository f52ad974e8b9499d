r"""# A segment that can run twice

> The second run of a function must find all that the first run found.

[The reentrant variant](reentrant.py) needs more than a function to run it again. It
needs the arguments, and [the state of the program](recomputation.py#Settings) that
surrounded the first run. A *segment* is the function with all of that. (The segments of
[a chain](sequential.py) are ranges of layers.)

The arguments are taken apart. Autograd looks after the tensors: it frees them after the
backward pass, and notices if they were changed. The rest is kept as it is, with a mark
where each tensor stood, and is put together again for the second run.

Two mistakes would lead to wrong gradients without an error, and are refused. If a
function changes its arguments, its second run would be given the changed ones. And if a
tensor leaves the first run by another way than the return value, no gradient reaches
it, because the first run works without autograd.
"""

# sidelit: hide
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
# The positional arguments and the keyword arguments of a call.
Passed = tuple[tuple[Any, ...], dict[str, Any]]
# sidelit: show


@dataclass(eq=False, slots=True)
class Segment:
    """A function, and what its second run needs besides the tensors.

    :param leaves: the arguments without their structure, with [a place](#Place) for
        each tensor
    :param spec: the structure of the arguments
    :param settings: the state of the program around the first run
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
        """The segment in the present state, and the tensors among its arguments."""
        tensors, leaves, spec = take_apart(arguments)
        args, kwargs = arguments
        settings = Settings.now(function, args, kwargs, preserve_rng_state)
        return cls(function, leaves, spec, settings), tensors

    def first(self, tensors: Sequence[Tensor], arguments: Passed) -> list[Any]:
        """Run the function, and take apart what it returns.

        :raises RuntimeError: if the function changed its arguments
        :raises TypeError: if it is given an iterator, or returned tensors inside of an
            object that is no pytree
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
        """Run the function in the state of the first run, with autograd.

        The caller's lists and dictionaries are made anew. So what the function does to
        them does not reach the caller twice.

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

    # sidelit: depth A second run that returns something else.

    def refuse_other(self, returned: TreeSpec) -> None:
        """Refuse a second run whose results would not fit to the gradients.

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
    """The different tensors among some arguments, all leaves with places instead of
    tensors, and the structure.

    A tensor that is passed twice must be one object in the second run, too, because
    functions ask for it. If `query`, `key` and `value` are one object, attention
    projects them by one product, which rounds differently than three.
    """
    leaves, spec = flatten_arguments(arguments)
    tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}
    places = {key: Place(index) for index, key in enumerate(tensors)}
    return list(tensors.values()), [places.get(id(leaf), leaf) for leaf in leaves], spec


def flatten_arguments(arguments: Passed) -> tuple[list[Any], TreeSpec]:
    """The leaves of some arguments, and their structure.

    To flatten a pytree takes longer than a small operation. Most calls are given
    tensors and no structures of tensors, and then the structure is known.
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
    """A function that changes its argument would be given the changed values in its
    second run. Autograd does not notice. It reads the version of a saved tensor when
    `forward` returns, and by then the change is made.

    :raises RuntimeError: naming the shape of an argument that was changed in place
    """
    for tensor in before.changed(*tensors):
        raise RuntimeError(
            "the checkpointed function changed an argument of shape "
            f"{tuple(tensor.shape)} in place, and would be given the changed one "
            "when it is computed again; let it change a clone"
        )


def refuse_additions(tensors: Sequence[Tensor], arguments: Passed) -> None:
    """A tensor that a function leaves in a list has no gradient.

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
    """What objects among the arguments hold, such as the cache of a language model.

    The second run finds in an object what the first has left there. A decoder that
    appends its keys to a cache would attend to each of them twice. What a function
    leaves in its own attributes, or in those of a module, is not looked for. [The other
    variant](saved_tensors.py) uses this class, too.

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
        # The tensors themselves: the `id` of one that is gone may be given to another.
        self.before = {id(t): t for one in self.objects for t in reachable(one)}

    def refuse_additions(self) -> None:
        """Where autograd was on during the first run, a tensor without a gradient may be
        left behind, such as a mask that was made once for all layers.

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
    """Whether an object has attributes to look into."""
    atoms = (Tensor, nn.Module, type, ModuleType, FunctionType, MethodType)
    return hasattr(value, "__dict__") and not isinstance(value, atoms)


def reachable(start: Any) -> Iterator[Tensor]:
    """The tensors in an object's attributes, in theirs, and so on."""
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
    """A tensor inside of an object that is no pytree would come out without a gradient.

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
# sidelit: depth A compiler, which would record the first run only.

# The function itself may be compiled, and only the checkpoint around it may not.
REASON = (
    "a checkpointed function runs again in the backward pass, where nothing is "
    "compiled; compile the function by itself, as in checkpoint(torch.compile(block), x)"
)


def outside_compiler(
    checkpoint: Callable[..., Any], reason: str = REASON
) -> Callable[..., Any]:
    """A function that `torch.compile` does not enter.

    The compiler would record the first run only, and parameters would get wrong
    gradients. The function that is checkpointed may be compiled itself.

    :param reason: what the compiler says where it has to enter, under `fullgraph=True`
    """
    quiet: list[Callable[..., Any]] = []

    @wraps(checkpoint)
    def call(*args: Any, **kwargs: Any) -> Any:
        # To load the compiler takes seconds. Nobody compiles before it is loaded.
        if not compiler_is_loaded():
            return checkpoint(*args, **kwargs)
        if not quiet:
            quiet.append(torch.compiler.disable(checkpoint, reason=reason))
        return quiet[0](*args, **kwargs)

    # The compiler may meet this function before it was called for the first time.
    forbid_compiling(call, reason)
    return call
