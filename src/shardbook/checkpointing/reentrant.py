r"""# Reentrant checkpointing

> Run a segment without autograd, then again with it, and start a second backward pass inside of the first.

Autograd saves what the derivative of each single operation needs. For
[a segment](segment.py) of a model that is most of what it computes. But all of it
follows from the arguments of the segment. So the segment can run without autograd at
first, and only its arguments are kept. When its backward pass is due it runs again,
with autograd this time, and a second backward pass goes through the graph that this run
has recorded. The second backward pass is started inside of the first one. That is why
this variant is called *reentrant*.

| | plain | checkpointed |
|---|---|---|
| kept from forward to backward | all that its operations save | its arguments |
| how often it computes | once | twice |

A checkpoint inside of a checkpoint computes a third time: in the second run of the
outer one it runs without autograd again.

A checkpoint is an ordinary `torch.autograd.Function`. Any Function can save memory,
because its author decides what it keeps, where autograd decides for each operation
alone. Of GELU, written with its tanh formula in PyTorch operations and with `x**3`,
autograd keeps four vectors of the size of the input. A Function of the same formula
needs the input alone, since all else follows from it. A checkpoint is that Function for
any formula.

## Inside of sharded units, and around them

In [stage 3](zero3.py) a unit is gathered for each use, and a second run is a use. In
the other stages the parameters are there, and a checkpoint costs no gather:

| checkpointed | gathers of a unit in a step |
|---|---|
| nothing | 2, one for each pass |
| a part inside of the unit, or its `forward` by [`checkpoint_module`](checkpointing.py) | 2 |
| the call of the unit, as in `checkpoint(unit, x)`, or of several units | 3 |
| the call of the unit, in a checkpoint inside of a checkpoint | 4 |

Inside of a unit the second run finds the unit whole, because the unit's backward pass
has begun. A segment around units begins its own backward pass with the second run. When
that run is over, each unit in the segment has been freed after its use. The inner
backward pass gathers it again. To keep the units until then would hold all units of the
segment at once.

In [the other variant](saved_tensors.py) the graph of the first run is still there. The
backward pass reaches the last unit of the segment, gathers it, and asks for a saved
tensor. Only then does the segment run again, and it finds this unit whole. So the last
unit of each segment is gathered twice, and the others three times. The gradients are
the same in all cases, to the bit.

Source: [the description](bib:chen2016training) that brought the recomputation of
segments to the training of deep networks. In automatic differentiation checkpoints are
older: Griewank described them in 1992, and Griewank and Walther published a program
that places them, `revolve`, in 2000.

:notation $m$: the weight of the newest batch in a running average
"""

# sidelit: hide
from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from shardbook.checkpointing.arguments import name_of
from shardbook.checkpointing.segment import Passed, Segment, outside_compiler
from shardbook.foundations.labels import label
from shardbook.foundations.torch_private import base_of, reaches_all, tree_unflatten
from shardbook.zero.prefetch import calls_from_outside

__all__ = ["call_reentrant", "checkpoint_reentrant"]
# sidelit: show


def checkpoint_reentrant(
    function: Callable[..., Any],
    /,
    *args: Any,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    r"""Call a function, and keep only its arguments for the backward pass.

    Both runs must do the same. This variant cannot check it, and two mistakes raise no
    error. The first is to read a value that changes between the runs, such as an
    attribute, a global variable or PyTorch's default dtype. Pass the value as an
    argument. The second is to change a state in each run. `BatchNorm` moves its running
    statistics twice. With the momentum $1 - \sqrt{1 - m}$ two moves are as large as one
    with $m$.

    :param function: what to run, twice
    :param args: its arguments, of which at least one tensor must require a gradient;
        tensors may be inside of tuples, lists, dictionaries and other pytrees
    :param preserve_rng_state: let both runs draw [the same random
        numbers](rng.py#capture); without it 5056 bytes less are kept, the state of the
        CPU's generator
    :param kwargs: more arguments
    :returns: what the function returns
    :raises RuntimeError: if the function [changes its
        arguments](segment.py#refuse_changes) or [leaves tensors](segment.py#Held) in
        them; and in the backward pass, if [it is not a plain
        one](#refuse_partial_backward) or no output requires a gradient
    :raises TypeError: if an argument is an iterator, or a result holds tensors inside
        of an object that is no pytree

    >>> x = torch.ones(2, requires_grad=True)
    >>> y = checkpoint_reentrant(lambda x: (x * x).exp(), x)
    >>> y.sum().backward()
    >>> torch.equal(x.grad, 2 * x * y)
    True
    """
    return call_reentrant(function, args, kwargs, preserve_rng_state)


@outside_compiler
def call_reentrant(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    preserve_rng_state: bool,
) -> Any:
    """[The same](#checkpoint_reentrant), for arguments that may have the names of options."""
    if not torch.is_grad_enabled():
        # Either there will be no backward pass, or a checkpoint around this one is in
        # its first run. In its second run autograd is on, and this function is called
        # again.
        return function(*args, **kwargs)
    arguments = (args, kwargs)
    segment, tensors = Segment.of(function, arguments, preserve_rng_state)
    if not any(tensor.requires_grad for tensor in tensors):
        warn_of_no_gradient()
        with torch.no_grad():
            return function(*args, **kwargs)
    returned = Recomputation.apply(  # type: ignore[no-untyped-call]
        segment, arguments, *tensors
    )
    assert segment.returned is not None
    return tree_unflatten(returned, segment.returned)


class Recomputation(torch.autograd.Function):
    """The node that stands in the graph for a whole segment."""

    @staticmethod
    def forward(
        ctx: Any, segment: Segment, arguments: Passed, *tensors: Tensor
    ) -> tuple[Any, ...]:
        """The first run. Inside of this method autograd is off, so what the segment
        computes is freed as soon as the segment itself is done with it.
        """
        ctx.segment = segment
        # Autograd looks after what is saved in this way. It notices at the second run
        # if a tensor was changed in the meantime, it frees the tensors after the
        # backward pass, and it lets hooks [move them elsewhere](residual.py).
        ctx.save_for_backward(*tensors)
        # An output that the loss does not use has no gradient. Zeros in its place would
        # give a gradient to parameters that have none without a checkpoint.
        ctx.set_materialize_grads(False)
        values = segment.first(tensors, arguments)
        outputs = aliases(values, tensors)
        # Which outputs depend on something that requires a gradient is known only after
        # the second run. So all of them claim to, except an output that is itself an
        # argument without a gradient.
        frozen = {id(tensor) for tensor in tensors if not tensor.requires_grad}
        ctx.mark_non_differentiable(
            *[new for new, v in zip(outputs, values, strict=True) if id(v) in frozen]
        )
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The second run, and the backward pass through it.

        The inputs are detached. Otherwise the inner backward pass would go on beyond
        them, through everything before the segment, and the outer one would do so
        again.

        The inner backward pass does go on through a tensor that is no argument and that
        autograd computed, as in `lambda x: x * y` with `y = w.exp()`. If the outer one
        reaches the graph of `y` as well, it raises that the graph was freed. So `y` has
        to be an argument.
        """
        refuse_partial_backward()
        inputs = [
            tensor.detach().requires_grad_(needed)
            for tensor, needed in zip(
                ctx.saved_tensors, ctx.needs_input_grad[2:], strict=True
            )
        ]
        with label("recompute", partial(name_of, ctx.segment.function)):
            values = ctx.segment.again(inputs)
        differentiable = [
            (value, gradient)
            for value, gradient in zip(values, gradients, strict=True)
            if isinstance(value, Tensor) and value.requires_grad
        ]
        if not differentiable:
            refuse_detached()
        # A gradient for an output that the segment detaches ends here, as it would end
        # without a checkpoint. What is detached inside of a segment, by `detach()` or
        # under `no_grad`, needs no care.
        due = [pair for pair in differentiable if pair[1] is not None]
        if due:
            outputs, output_gradients = zip(*due, strict=True)
            torch.autograd.backward(outputs, output_gradients)
        return None, None, *[tensor.grad for tensor in inputs]


# sidelit: depth Results that are parameters or views, and backward passes that would be incomplete.


def aliases(values: Sequence[Any], tensors: Sequence[Tensor]) -> list[Any]:
    """For each different tensor that the segment returns, a new one over its memory.

    Autograd makes the tensors that `forward` returns outputs of the node. A parameter
    that the segment returns as it is would no longer be a leaf, and an optimizer could
    not step on it. A new tensor keeps the parameter as it is.

    If an output shares its memory with another output or with an argument, the new one
    is a *view*. Autograd then knows what it belongs to, and raises when one of them is
    changed in place and the other is used. Otherwise the gradient of the other would be
    that of the unchanged values.
    """
    different = {id(value): value for value in values if isinstance(value, Tensor)}
    if all(base_of(value) is None for value in different.values()):
        new = {key: value.detach() for key, value in different.items()}
    else:
        known = {id(tensor): tensor for tensor in tensors} | different
        owners = [id(t if base_of(t) is None else base_of(t)) for t in known.values()]
        new = {
            key: value.detach()
            if owners.count(id(base_of(value))) < 2
            else value.view_as(value)
            for key, value in different.items()
        }
    return [new.get(id(value), value) for value in values]


def refuse_partial_backward() -> None:
    """The inner backward pass adds to the gradients of all parameters that the segment
    uses, whatever the outer one was asked for, and it records nothing.

    Without the first check `torch.autograd.grad` would change the gradients of
    parameters. Without the second one a second derivative would silently leave this
    segment out.

    :raises RuntimeError: naming what was asked for
    """
    # Only autograd's engine knows what it was asked for, and only tells it here.
    if not reaches_all():
        raise RuntimeError(
            "a reentrant checkpoint cannot pass torch.autograd.grad or "
            "backward(inputs=...), because it reaches all parameters; call backward() "
            "without inputs, or use the variant that is not reentrant"
        )
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a reentrant checkpoint cannot pass create_graph=True, because it records "
            "no graph of its backward pass; use the variant that is not reentrant"
        )


def refuse_detached() -> NoReturn:
    """Refuse a function through which no gradient goes.

    :raises RuntimeError: always
    """
    raise RuntimeError(
        "none of the outputs of the checkpointed function requires a gradient, "
        "because it detaches them all; call it without a checkpoint"
    )


def warn_of_no_gradient() -> None:
    """Autograd runs a node backward only if one of its inputs requires a gradient.

    The parameters are no inputs of this node, since the function finds them by itself.
    So if no argument requires a gradient, the parameters get none. This happens where
    the input of a model is checkpointed, or all that comes before is frozen.
    """
    warnings.warn(
        "None of the inputs has requires_grad=True, so the parameters of the "
        "checkpointed function get no gradient; call x.requires_grad_() on an input, "
        "or use the variant that is not reentrant",
        stacklevel=calls_from_outside(),
    )
