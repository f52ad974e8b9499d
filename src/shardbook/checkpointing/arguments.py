r"""# Saving the arguments of a checkpoint

> A checkpoint records one operation that computes nothing, so that autograd saves the arguments for it.

[A recomputation](saved_tensors.py) needs the arguments of its function until the
backward pass. A checkpoint could keep them in a list. But autograd does three things
for the tensors it saves, and a list does none of them:

| | a list | saved by autograd |
|---|---|---|
| an argument is changed in place before backward | the gradient is wrong | an error |
| this checkpoint is inside another | the tensors stay in memory | the outer one drops and recomputes them |
| saved tensors are moved, as by `save_on_cpu` | the tensors stay in memory | they are moved |

So a checkpoint records an operation that computes nothing and saves the tensors. The
node of this operation lies on no path of the graph, so no backward pass runs it. The
checkpoint holds the node by its result, an empty tensor, and therefore the saved tensors
are freed together with the checkpoint.

Saved arguments alone do not make the second run correct. Parameters are inputs that the
caller does not pass, so a checkpoint also [compares their versions](#Parameters). And
on a GPU the second run may be on another stream than the forward pass, so a stream
[waits for the tensors](#module/tensors-that-cross-streams) that it reads.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.checkpointing.determinism import CheckpointError
from shardbook.checkpointing.segment import Place, take_apart
from shardbook.foundations.torch_private import (
    Versions,
    keystr,
    own_children,
    own_parameters,
    tree_leaves_with_path,
    tree_unflatten,
    writes_to,
)
from shardbook.zero.flat import flat_of

__all__ = ["Arguments", "Parameters", "Ready", "name_of"]


class Arguments:
    """The arguments of a function, with each tensor among them saved by autograd.

    Tensors are found in tuples, lists, dictionaries and other pytrees. An object of any
    other class is kept as it is, together with the tensors inside it.

    :param args: the positional arguments
    :param kwargs: the keyword arguments
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors, self.leaves, self.structure = take_apart((args, kwargs))
        self.versions = [(weakref.ref(tensor), writes_to(tensor)) for tensor in tensors]
        # The recomputation may run on another stream than the one that computed the
        # arguments.
        self.ready = Ready(tensors)
        # Before PyTorch 2.13 the node of a function written in Python is freed with the
        # last tensor that the function returned. So the checkpoint holds that tensor, and
        # through it the node.
        self.saver: Tensor = _Save.apply(_ANCHOR, *tensors)

    def get(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for the second run, in new tuples, lists and dictionaries.

        :raises CheckpointError: if a tensor was changed in place after the forward pass
        """
        tensors = self.tensors()
        leaves = [
            tensors[leaf.index] if isinstance(leaf, Place) else leaf
            for leaf in self.leaves
        ]
        args, kwargs = tree_unflatten(leaves, self.structure)
        return args, kwargs

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that autograd saved. If one of them was changed in place,
        autograd raises, and this method adds which argument it was.
        """
        try:
            node: Any = self.saver.grad_fn
            return tuple(self.ready.hand_over(tensor) for tensor in node.saved_tensors)
        except RuntimeError as error:
            self.refuse_changed(error)
            raise

    # sidelit: depth Arguments that were changed in place before the backward pass.

    def refuse_changed(self, error: RuntimeError) -> None:
        """Turn autograd's error about a changed tensor into one that names the
        argument.

        :raises CheckpointError: naming the arguments
        """
        changed = self.changed()
        # Inside another checkpoint the saved tensors are placeholders, and reading them
        # recomputes the outer function. Errors of that recomputation pass through
        # unchanged.
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
    """The operation that computes nothing and saves its inputs."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)


# Autograd records an operation only if one of its inputs requires a gradient. The
# arguments of a checkpoint need not require one, since the parameters inside the
# function may do so. This empty tensor therefore always goes in with them.
_ANCHOR = torch.empty(0, requires_grad=True)


# sidelit: depth Parameters that change between the two runs, and the names that a trace shows.


class Parameters:
    """The parameters of a checkpointed module, with their versions. They are inputs of
    the function that the caller does not pass.

    Autograd saves a parameter only if a gradient is computed from its values. A bias is
    not saved, nor is the weight of a first layer whose input needs no gradient. Suppose
    an optimizer steps between the forward pass and the backward pass. Then the second
    run would use the new bias, and the gradients would belong to no loss. So the
    versions of all parameters are recorded and compared.

    A function may also change parameters itself, in each run. So the versions are
    recorded at the end of a run, and only changes between two runs count.

    :param function: the parameters of [modules that it runs](#modules_in) are looked at
    """

    def __init__(self, function: Callable[..., Any] | None) -> None:
        self.modules = list(modules_in(function))
        self.parameters: list[Tensor] = []
        self.versions = Versions()

    def begin(self) -> None:
        """Collect the parameters when the first run has ended. By then lazy modules
        have made theirs, too.
        """
        for module in self.modules:
            self.parameters += parameters_of(module)
        self.note()

    def note(self) -> None:
        """Record the versions of the parameters at the end of a run."""
        self.versions = Versions(*self.parameters)

    def refuse_changes(self) -> None:
        """Compare the versions before another run begins.

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
    """The modules that a function runs: the function itself if it is a module, the
    module whose `forward` it is, or those in a `partial`.

    A method other than `forward` may run only a part of its module, so its module is
    not included. The rest of the module may change meanwhile, for example by an
    optimizer that [steps in the backward pass](accumulate.py#module/stepping-inside-the-backward-pass).
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
    """The name of a checkpointed function in [a
    trace](hook_context.py#module/labels-for-a-profiler): the names of its modules, or
    else Python's name for the function.
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
        hooks = flat.hooks()
        if hooks is not None and hooks.module is module:
            return str(hooks.unit.name)
    forward = vars(module).get("forward")
    return str(getattr(forward, "checkpointed_as", type(module).__name__))


def parameters_of(module: nn.Module) -> list[Tensor]:
    """The parameters of a module.

    `module.parameters()` also searches for parameters that appear twice. That search
    takes as long as the forward pass of a small layer, and here it would run in each
    call.
    """
    found: list[Tensor] = [
        one for one in own_parameters(module).values() if one is not None
    ]
    for child in own_children(module).values():
        if child is not None:
            found += parameters_of(child)
    return found


# sidelit: core


# ## Tensors that cross streams
#
# > A stream that reads a recomputed tensor first waits for the stream that computed it.
#
# Autograd runs the backward pass of each operation on [the stream](streams.py) on which
# the operation ran forward. Where a gradient crosses from one stream to another, autograd
# makes the second stream wait. But a tensor that [a checkpoint](saved_tensors.py) hands
# out is no gradient, so autograd inserts no wait for it.
#
# The recomputation of a function runs on one stream, namely that of the first node which
# needs one of its tensors. Take a checkpoint with one branch on a side stream:
#
# | stream | what runs on it | what could go wrong |
# |---|---|---|
# | main | the last operation's backward pass, with the recomputation of both branches | |
# | side | the branch's backward pass, with a tensor of that recomputation | it reads too early |
# | main | an operation that allocates new memory | it gets that tensor's memory while the side stream reads |
#
# So a checkpoint records an event after the recomputation. Another stream that takes one
# of the tensors waits for the event, and `record_stream` tells the allocator that this
# stream uses the memory, too. The arguments cross in the same way, from the stream of the
# forward pass to that of the recomputation. A CPU has no streams, so nothing is recorded
# there.


class Ready:
    """An event that is queued after the computation of some tensors, for each device that holds one.

    :param tensors: tensors whose computation is queued on the current streams
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.moments: dict[torch.device, tuple[Any, Any]] = {}
        for tensor in tensors:
            if tensor.is_cpu or not queued(tensor):
                continue
            if tensor.device not in self.moments:
                module = torch.get_device_module(tensor.device)
                stream, done = module.current_stream(tensor.device), module.Event()
                done.record(stream)
                self.moments[tensor.device] = stream, done

    def hand_over(self, tensor: Tensor) -> Tensor:
        """Make the current stream wait for one of the tensors, and return it.

        Without the wait, the stream could read memory before the values are written.
        Without `record_stream`, the allocator could give the memory to another tensor
        while the stream still reads it.
        """
        if self.moments and queued(tensor) and tensor.device in self.moments:
            stream, done = self.moments[tensor.device]
            module = torch.get_device_module(tensor.device)
            current = module.current_stream(tensor.device)
            if current != stream:
                done.wait(current)
                tensor.record_stream(current)
        return tensor


def queued(tensor: Tensor) -> bool:
    """Whether a tensor's computation may be queued on one of several streams. Apple's
    `mps` has a single stream.
    """
    return not tensor.is_cpu and tensor.device.type not in ("meta", "mps")
