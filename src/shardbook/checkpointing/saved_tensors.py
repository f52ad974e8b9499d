r"""# Non-reentrant checkpointing

> Autograd saves empty placeholders; when the backward pass needs the first one, the function runs again.

[Activation checkpointing](checkpointing.py) keeps the arguments of a function, and runs
the function again in the backward pass ([Chen et al.](bib:chen2016training)). The
*non-reentrant* variant does so without starting a second backward pass.

PyTorch lets a program decide how autograd saves a tensor. Inside
`saved_tensors_hooks(pack, unpack)` autograd hands each tensor to `pack`, and keeps the
object that `pack` returns. When the backward pass needs the tensor, autograd calls
`unpack` with that object. A checkpoint uses the two hooks to keep nothing:

| moment | what the checkpoint does |
|---|---|
| before the forward pass | saves the arguments, captures the state of the generators and of autocast |
| autograd saves a tensor | `pack` returns an empty [placeholder](segment.py#Placeholder) |
| the backward pass needs the first tensor | runs the function again, to fill the placeholders |
| the backward pass needs a tensor | the placeholder hands the tensor over and forgets it |

The graph of the forward pass stays, and the backward pass goes through it as it would
without a checkpoint. So `torch.autograd.grad`, `backward(inputs=...)` and second
derivatives work as they do without checkpoints, and a result may be any object that
holds tensors. [The reentrant variant](reentrant.py) records no graph in the forward
pass, so it supports none of these. The second run records a graph, too, but this graph
is dropped at once, and only its tensors stay.

[A policy](selective.py) keeps the results of some operations, so that the second run
need not compute them again. [A later section](#module/reusing-kept-results-in-the) is
about how the second run gets these results, and which checks prevent a wrong gradient.

## Checkpoints inside checkpoints

A checkpoint saves its arguments with autograd. Inside another checkpoint these
arguments go to the outer checkpoint's `pack`, and become placeholders. When the inner
checkpoint recomputes, it unpacks its arguments, so the outer checkpoint recomputes
first. A tensor inside $d$ checkpoints is computed up to $d + 1$ times, and only the
outermost checkpoints keep their arguments.

## What remains

A function that changes a state and then reads it does something else in the second run.
[The check](determinism.py) detects this if other tensors are saved. Forward-mode
derivatives of an argument cannot pass a checkpoint: PyTorch raises an error at [the
operation that saves the arguments](arguments.py).

[Some settings](segment.py#Settings) of the forward pass are restored for the
second run. Others are not, among them the default dtype, the kernels that `sdpa_kernel`
allows, the cache of `parametrize.cached`, whether TF32 or nondeterministic kernels are
allowed, dispatch modes, and the current stream. Set these inside the function. If the
second run is on another stream than the first, streams [wait for its
tensors](arguments.py#module/tensors-that-cross-streams).

Autograd uses one thread for each device, so two recomputations may run at the same
time. If they restore generators, they [take turns](rng.py#RNGState.restored).

:notation $d$: the number of checkpoints around an operation
:figure: saved_placeholders
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from shardbook.checkpointing.arguments import Arguments, Parameters, Ready, name_of
from shardbook.checkpointing.determinism import (
    Record,
    compare,
    debug_in_force,
    early_stop_in_force,
)
from shardbook.checkpointing.segment import Collector, Held, Placeholder, Settings
from shardbook.foundations.hook_context import in_backward, label
from shardbook.foundations.rng import RNGState
from shardbook.foundations.torch_private import (
    OpOverload,
    Versions,
    at_end_of_backward,
    bypass_hooks,
    group_in_force,
    schema_of,
    tree_leaves,
    tree_map_only,
)

__all__ = ["Contexts", "Kept", "Store", "call_saved", "checkpoint_saved"]

# sidelit: hide
# A block to run the forward pass in, and one for each recomputation.
Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
# sidelit: show


def checkpoint_saved(
    function: Callable[..., Any],
    /,
    *args: Any,
    preserve_rng_state: bool = True,
    determinism_check: str = "default",
    early_stop: bool = True,
    context_fn: Callable[[], Contexts] | None = None,
    debug: bool = False,
    **kwargs: Any,
) -> Any:
    """Call a function, and keep none of the tensors that autograd would save in it. The
    backward pass recomputes them.

    :param function: the function that runs now, and again in the backward pass
    :param args: its arguments; [tensors among them](arguments.py) are kept
    :param preserve_rng_state: generate [the same random numbers](rng.py) again
    :param determinism_check: [how closely](determinism.py) the two runs are compared
    :param early_stop: whether the second run ends [at the last tensor that a gradient
        needs](segment.py#Collector)
    :param context_fn: returns a block for the forward pass and one for recomputations
    :param debug: list the operations of both runs in a message about a difference
    :param kwargs: its keyword arguments
    :returns: what the function returns
    :raises CheckpointError: in the backward pass, if the second run differs from the
        first, or if a tensor was changed in place
    :raises RuntimeError: if the function [left a tensor](segment.py#Held) in an object
        among its arguments
    :raises ValueError: if there is no such level of `determinism_check`

    Source: [Chen et al.](bib:chen2016training).
    """
    return call_saved(
        function,
        args,
        kwargs,
        preserve_rng_state,
        determinism_check,
        early_stop,
        context_fn,
        debug,
    )


def call_saved(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    preserve_rng_state: bool,
    determinism_check: str,
    early_stop: bool,
    context_fn: Callable[[], Contexts] | None,
    debug: bool = False,
) -> Any:
    """[The same](#checkpoint_saved), for arguments that may have the names of options."""
    record = Record(determinism_check, debug_in_force(debug))
    # Without gradients autograd saves nothing, and there is nothing to drop.
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    forward, again = context_fn() if context_fn else (nullcontext(), nullcontext())
    bypass_hooks(forward)
    arguments = Arguments(args, kwargs)
    held = Held(function, arguments.leaves)
    region = Region(
        function,
        arguments,
        Settings.now(function, args, kwargs, draw_again=preserve_rng_state),
        again,
        record,
        early_stop_in_force(early_stop),
    )
    with saved_tensors_hooks(region.pack, region.unpack), record.watching(), forward:
        result = region.run(args, kwargs)
        region.end()
    region.refuse_unfinished()
    held.refuse_additions()
    return result


class Region:
    """One call of a checkpointed function, and how to repeat it.

    Only the hooks and the nodes of the graph hold the region, and the region refers
    weakly to the placeholders. So when autograd frees the graph, the arguments are
    freed, too.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        settings: Settings,
        again: AbstractContextManager[Any],
        record: Record,
        early_stop: bool,
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.settings = settings
        self.again = again
        self.record = record
        self.early_stop = early_stop
        self.placeholders: list[weakref.ref[Placeholder]] = []
        self.parameters = Parameters(None if record.level == "none" else function)
        # Whether the forward pass has ended. A function that computes gradients itself
        # needs its tensors before that.
        self.complete = False
        # Autograd runs the nodes of two devices in two threads, and both may need a
        # tensor first. A recomputation inside another one takes the lock again in the
        # same thread.
        self.lock = RLock()
        # The events after which the tensors of the last recomputation are computed.
        self.ready = arguments.ready
        # The block in which backward passes share that recomputation.
        self.group: Any = None

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function. [Errors](determinism.py#place_of) name lines inside this
        call, and none above it.
        """
        return self.function(*args, **kwargs)

    def end(self) -> None:
        """Record the end of the forward pass."""
        self.complete = True
        self.parameters.begin()

    def pack(self, tensor: Tensor) -> Placeholder:
        """Give autograd an empty placeholder for a tensor of the forward pass."""
        placeholder = Placeholder()
        self.placeholders.append(weakref.ref(placeholder))
        self.record.note(tensor)
        return placeholder

    def unpack(self, placeholder: Placeholder) -> Tensor:
        """Return the tensor of a placeholder to a node of the backward pass. If the
        placeholder is empty, the tensors of all placeholders are recomputed.
        """
        with self.lock:
            # Tensors that were recomputed for another group may come from other
            # weights.
            if self.group is not None and self.group is not group_in_force():
                self.empty()
            if placeholder.value is None:
                self.recompute()
            value = placeholder.take()
            # Outside a backward pass a program reads a single attribute of a node, such
            # as `grad_fn._saved_self`. The other tensors would stay in memory until
            # they are read.
            if self.group is None and not in_backward():
                self.empty()
            return self.ready.hand_over(value) if self.ready.moments else value

    def recompute(self) -> None:
        """Run the function again, and fill the placeholders.

        :raises CheckpointError: if the two runs differ
        """
        self.parameters.refuse_changes()
        args, kwargs = self.arguments.get()
        again = Record(self.record.level, self.record.debug)
        collector = Collector(self.placeholders, again, self.early_stop)
        try:
            with label("recompute", partial(name_of, self.function)):
                self.run_again(args, kwargs, collector)
            # If both runs have reached their end, they must have saved equally many
            # tensors.
            exact = self.complete and not self.early_stop
            compare(self.record, again, collector.needed, exact)
            self.parameters.note()
        except BaseException:
            self.empty()
            raise
        self.group = group_in_force()
        self.ready = Ready(collector.filled())
        self.empty_in_the_end()

    def run_again(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], collector: Collector
    ) -> None:
        """Run the function in the state of the forward pass.

        :raises CheckpointError: if the function fails after it has saved other tensors
            than in the forward pass; since the forward pass did not fail, the
            difference is the cause
        """
        try:
            with self.settings.restored(), self.again, collector.collecting():
                collector.until_enough(partial(self.run, args, kwargs))
        except Exception:
            compare(self.record, collector.record, needed=0, exact=False)
            raise

    # sidelit: depth Tensors that the backward pass never unpacks, and errors that a block swallows.

    def empty_in_the_end(self) -> None:
        """Drop the tensors that were never unpacked when the backward pass has ended."""
        if self.group is None and in_backward():
            # Tensors that this backward pass does not unpack would stay until the next
            # one, and the weights may have changed by then. Autograd's engine holds its
            # callbacks until it has finished, so the callback must not hold the region.
            left = partial(empty, weakref.ref(self))
            at_end_of_backward(left)

    def empty(self) -> None:
        """Drop the tensors that were not unpacked."""
        with self.lock:
            for reference in self.placeholders:
                placeholder = reference()
                if placeholder is not None:
                    placeholder.value = None

    def refuse_unfinished(self) -> None:
        """Refuse to return if the function has not reached its end.

        :raises RuntimeError: naming the block that has hidden the error
        """
        # A block such as `contextlib.suppress` ends without an error, and without a
        # result.
        if not self.complete:
            raise RuntimeError(
                "the block that context_fn gave for the forward pass has swallowed an "
                "error of the function, so there is no result; let errors pass"
            )


# sidelit: depth A region that is gone when its backward pass ends.


def empty(region: weakref.ref[Region]) -> None:
    """Empty a region, if it still exists."""
    there = region()
    if there is not None:
        there.empty()


# sidelit: core


# ## Reusing kept results in the recomputation
#
# > The second run gets a kept result instead of computing it, and six ways to a wrong gradient are closed.
#
# [A policy](selective.py) keeps some results of the forward pass for the recomputation.
# Without checks, six situations would give wrong gradients without an error:
#
# | what happens | what is done |
# |---|---|
# | the result is changed in place, later in the function | refused at that operation, or recomputed |
# | the result is changed in place after the function has returned | refused when the second run needs it |
# | the operation writes to an argument in place | the written values are copied, and written again |
# | the function asks for gradients itself, so it is recomputed in its forward pass | that run is not counted
# | a hook of the library runs in one of the two runs only | [its calls](hook_context.py) are not counted |
# | the second run makes other calls than the first | refused, if their number or shapes show it |


@dataclass(slots=True)
class Kept:
    """The kept result of one call of an operation.

    :param shapes: the shapes of the call's arguments
    :param value: the result, or copies of the written values for an operation in place
    :param drawn: the state of the generators after the call, if it generated random
        numbers
    :param required: whether the result must be kept, or may be recomputed instead
    """

    op: OpOverload
    shapes: list[torch.Size]
    value: Any
    drawn: RNGState
    required: bool
    versions: Versions = field(init=False)

    def __post_init__(self) -> None:
        self.versions = Versions(*tensor_leaves(self.value))

    def hand_out(self, args: Any, kwargs: Any, *, copied: bool = False) -> Any:
        """Return an alias of the result. Autograd attaches the history of the second
        run to the alias, and the kept tensor must not get that history.

        :param copied: return a copy instead, because the forward pass still runs, and a
            write to an alias would change its tensor
        :raises RuntimeError: if the result was changed in place after it was kept
        """
        if self.versions.changed(*tensor_leaves(self.value)):
            raise RuntimeError(
                f"the result of {self.op}, which the policy keeps, was changed in place "
                "after the checkpointed function had returned; use an operation that "
                "gives a new tensor"
            )
        written = written_by(self.op, args, kwargs)
        if not written:
            give = Tensor.clone if copied else Tensor.detach
            return tree_map_only(Tensor, give, self.value)
        for tensor, value in zip(written, self.value, strict=True):
            tensor.copy_(value)
        # An operation in place returns the tensors it wrote to, or nothing.
        returned = written[: len(schema_of(self.op).returns)]
        return returned[0] if len(returned) == 1 else tuple(returned) or None


class Store:
    """All kept results of one call of a checkpointed function.

    A function that computes gradients itself is recomputed in the middle of its forward
    pass. That recomputation uses the results kept so far, and its own calls are not
    counted as calls of the forward pass.
    """

    def __init__(self) -> None:
        # Whether the forward pass is over, and how many recomputations run now.
        self.complete = False
        self.replaying = 0
        # For each operation its calls in order. The second run makes the same calls.
        self.calls: defaultdict[Any, list[Kept | None]] = defaultdict(list)
        # For each storage the kept results that lie in it, while the forward pass runs.
        self.owners: defaultdict[torch.UntypedStorage, list[Kept]] = defaultdict(list)

    def add(self, kept: Kept, written: list[Tensor]) -> None:
        """Add the result of a call. Until the forward pass ends, writes to its storage
        are detected.
        """
        self.calls[kept.op].append(kept)
        if not written:
            for tensor in tensor_leaves(kept.value):
                self.owners[tensor.untyped_storage()].append(kept)

    def overwrite(self, op: OpOverload, written: list[Tensor]) -> None:
        """Drop kept results, or refuse, before an operation writes to their memory.

        :raises RuntimeError: if the policy requires one of these results to be saved
        """
        for tensor in written:
            for kept in self.owners.pop(tensor.untyped_storage(), ()):
                if kept.required:
                    raise RuntimeError(
                        f"{op} writes over the result of {kept.op}, which the policy "
                        "saves; let the policy answer Keep.PREFER for it, or use an "
                        "operation that gives a new tensor"
                    )
                calls = self.calls[kept.op]
                calls[:] = [None if entry is kept else entry for entry in calls]

    def seal(self) -> None:
        """Replace all kept results by aliases when the forward pass has ended.

        By then a result has a history, which would keep the graph, and the graph keeps
        this store: a circle. An alias has no history, and its version still counts the
        writes to its memory.
        """
        self.complete = True
        self.owners.clear()
        for kept in self.entries():
            kept.value = tree_map_only(Tensor, Tensor.detach, kept.value)

    def get(self, op: OpOverload, number: int, args: Any, kwargs: Any) -> Kept | None:
        """The kept result for a call of the second run, or `None` if the call is to be
        computed.

        :raises RuntimeError: if the forward pass made no such call
        """
        calls = self.calls[op]
        known = number < len(calls)
        if not any(calls) or not (known or self.complete):
            return None
        kept = calls[number] if known else None
        if not known or (kept and kept.shapes != shapes(args, kwargs)):
            raise RuntimeError(
                f"call {number} of {op} in the recomputation has no equal in the forward "
                "pass, so what the policy keeps cannot be handed out; a checkpointed "
                "function has to do the same both times"
            )
        return kept

    def entries(self) -> list[Kept]:
        return [kept for calls in self.calls.values() for kept in calls if kept]

    @property
    def bytes(self) -> int:
        tensors = tensor_leaves([kept.value for kept in self.entries()])
        storages = {tensor.untyped_storage() for tensor in tensors}
        return sum(storage.nbytes() for storage in storages)


def written_by(op: OpOverload, args: Any, kwargs: Any) -> list[Tensor]:
    """The arguments that an operation writes to, such as `self` of an operation in
    place, or `out`.
    """
    given = [
        kwargs.get(argument.name) if number >= len(args) else args[number]
        for number, argument in enumerate(schema_of(op).arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return tensor_leaves(given)


def shapes(*given: Any) -> list[torch.Size]:
    return [tensor.shape for tensor in tensor_leaves(given)]


def tensor_leaves(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
