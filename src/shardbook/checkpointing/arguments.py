r"""# Keeping the arguments

> What a checkpoint keeps is kept by autograd, as if one more operation had saved it.

[A recomputation](saved_tensors.py) needs the arguments of its function until the
backward pass. A list of them would do, and would lose three things that autograd does
for the tensors it saves:

| | a list | saved by autograd |
|---|---|---|
| an argument is changed in place before backward | the gradient is wrong | an error |
| this checkpoint is inside another | the tensors stay in memory | the outer one drops and recomputes them |
| saved tensors are moved, as by `save_on_cpu` | the tensors stay in memory | they are moved |

So this chapter records an operation that computes nothing and saves the tensors. Its
node lies on no path of the graph, so no backward pass runs it. The checkpoint holds the
node, and when the checkpoint is freed, so are the tensors.
"""

# sidelit: hide
from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.checkpointing.determinism import CheckpointError
from shardbook.checkpointing.handover import Ready
from shardbook.checkpointing.segment import Place, take_apart
from shardbook.foundations.torch_private import (
    keystr,
    own_children,
    own_parameters,
    tree_leaves_with_path,
    tree_unflatten,
)
from shardbook.foundations.versions import Versions, writes_to
from shardbook.parameters.flat import flat_of

__all__ = ["Arguments", "Parameters", "name_of"]
# sidelit: show


class Arguments:
    """The arguments of a function, with each tensor among them saved by autograd.

    Tensors are found in tuples, lists, dictionaries and other pytrees. An object of
    another class is kept as it is, with what it holds.

    :param args: the positional arguments
    :param kwargs: the keyword arguments
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors, self.leaves, self.structure = take_apart((args, kwargs))
        self.versions = [(weakref.ref(tensor), writes_to(tensor)) for tensor in tensors]
        # A recomputation may run on another stream than the one that computed them.
        self.ready = Ready(tensors)
        saved: Tensor = _Save.apply(_ANCHOR, *tensors)  # type: ignore[no-untyped-call]
        self.node: Any = saved.grad_fn

    def get(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments again, in containers of their own.

        :raises CheckpointError: if a tensor was changed in place since
        """
        tensors = self.tensors()
        leaves = [
            tensors[leaf.index] if isinstance(leaf, Place) else leaf
            for leaf in self.leaves
        ]
        args, kwargs = tree_unflatten(leaves, self.structure)
        return args, kwargs

    def tensors(self) -> tuple[Tensor, ...]:
        """The saved tensors. Autograd raises if one was changed; this method says which
        argument it was.
        """
        try:
            saved: tuple[Tensor, ...] = self.node.saved_tensors
            return tuple(self.ready.hand_over(tensor) for tensor in saved)
        except RuntimeError as error:
            self.refuse_changed(error)
            raise

    # sidelit: depth Arguments that were changed in place before the backward pass.

    def refuse_changed(self, error: RuntimeError) -> None:
        """Refuse to go on, if arguments were changed and autograd has raised for that.

        :raises CheckpointError: naming the arguments
        """
        changed = self.changed()
        # Inside of another checkpoint the saved tensors recompute the outer function.
        # Its errors pass through.
        if changed and not isinstance(error, CheckpointError):
            raise CheckpointError(
                f"{', '.join(changed)} of a checkpointed function changed in place before "
                "the backward pass, so the function cannot be run again on what it was "
                "given; change a clone instead, also inside the function"
            ) from error

    def changed(self) -> list[str]:
        """The names of the tensors that were changed in place, as far as they still exist."""
        given = tree_unflatten(self.leaves, self.structure)
        found = []
        for path, leaf in tree_leaves_with_path(given):
            if isinstance(leaf, Place):
                reference, before = self.versions[leaf.index]
                tensor = reference()
                if tensor is not None and writes_to(tensor) != before:
                    found.append(f"argument {keystr(path[1:])}")
        return found


class _Save(torch.autograd.Function):
    """The operation that does nothing, and saves what it is given."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)


# Autograd records an operation only if something that it is given requires a gradient.
# The arguments need not, because the parameters in the function may.
_ANCHOR = torch.empty(0, requires_grad=True)


# sidelit: depth Parameters that change between the two runs, and the names that a trace shows.


class Parameters:
    """The parameters of a module are arguments, too, which nobody passes.

    Autograd saves a parameter if a gradient is computed from it. A bias is not saved,
    nor is the weight of a first layer, whose input needs no gradient. If an optimizer
    steps before the backward pass, the module runs again with the new values of these,
    and the gradients belong to no loss. So their versions are noted.

    A function may change parameters itself, in every run. The versions are those at the
    end of a run, so that only what happens between two runs counts.

    :param function: the parameters of [modules that it runs](#modules_in) are looked at
    """

    def __init__(self, function: Callable[..., Any] | None) -> None:
        self.modules = list(modules_in(function))
        self.parameters: list[Tensor] = []
        self.versions = Versions()

    def begin(self) -> None:
        """Find the parameters. The first run has ended, so lazy ones are there, too."""
        for module in self.modules:
            self.parameters += parameters_of(module)
        self.note()

    def note(self) -> None:
        """A run of the function has ended."""
        self.versions = Versions(*self.parameters)

    def refuse_changes(self) -> None:
        """Another run is about to begin.

        :raises CheckpointError: if a parameter was changed in place since the last run
        """
        for parameter in self.versions.changed(*self.parameters):
            raise CheckpointError(
                f"parameter {self.name(parameter)} of a checkpointed module changed in "
                "place between the forward pass and the backward pass, so the "
                "gradients would be those of other weights; call backward before "
                "weights are changed"
            )

    def name(self, parameter: Tensor) -> str:
        named = (
            named for module in self.modules for named in module.named_parameters()
        )
        others = ((str(number), one) for number, one in enumerate(self.parameters))
        return next(name for name, one in (*named, *others) if one is parameter)


def modules_in(function: Any) -> Iterator[nn.Module]:
    """The modules that a function runs: itself, the one whose `forward` it is, or those
    in a `partial`.

    Another method may run only a part of its module. The rest may change meanwhile, as
    by an optimizer that [steps in the backward pass](step_in_backward.py).
    """
    if isinstance(function, nn.Module):
        yield function
    elif isinstance(function, MethodType):
        if function.__name__ == "forward":
            yield from modules_in(function.__self__)
    elif isinstance(function, partial):
        yield from modules_in([function.func, *function.args])
    elif isinstance(function, (list, tuple)):
        for one in function:
            yield from modules_in(one)


def name_of(function: Any) -> str:
    """How [a trace](labels.py) names what a checkpointed function runs: by its modules,
    or else as Python does.
    """
    names = [name_of_module(module) for module in modules_in(function)]
    if names:
        return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def name_of_module(module: nn.Module) -> str:
    """The name of the sharded unit that a module is, else the one by which
    [`checkpoint_module`](checkpointing.py#checkpoint_module) found it, else its class.
    """
    for flat in filter(None, map(flat_of, module.parameters())):
        driver = flat.driver()
        if driver is not None and driver.module is module:
            return str(driver.unit.name)
    forward = vars(module).get("forward")
    return str(getattr(forward, "checkpointed_as", type(module).__name__))


def parameters_of(module: nn.Module) -> list[Tensor]:
    """The parameters of a module.

    `module.parameters()` also searches for what appears twice. That search takes as
    long as a small layer, and this is done in each call.
    """
    found: list[Tensor] = [
        one for one in own_parameters(module).values() if one is not None
    ]
    for child in own_children(module).values():
        if child is not None:
            found += parameters_of(child)
    return found
