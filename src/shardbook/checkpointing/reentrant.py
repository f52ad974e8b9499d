r"""# Reentrant checkpointing

> A segment runs without autograd, then again with it, and a second backward pass runs inside the first.

Autograd saves the tensors that the derivative of each single operation needs. For [a
segment](segment.py) of a model these are most of the tensors that it computes, yet all
of them follow from the segment's arguments. So the reentrant variant first runs the
segment without autograd, and keeps only the arguments. In the backward pass the segment
runs again, this time with autograd. Then a second backward pass goes through the graph
that this run has recorded. The second backward pass starts inside the first one, hence
the name *reentrant*.

| | plain | checkpointed |
|---|---|---|
| kept until the backward pass | all tensors that its operations save | its arguments |
| runs of the segment | one | two |

A segment inside two nested checkpoints runs three times, because the second run of the
outer checkpoint runs the inner segment without autograd again.

A checkpoint is an ordinary `torch.autograd.Function`. Any Function can save memory,
because its author decides what it keeps, whereas autograd decides for each operation by
itself. Take GELU in its tanh formula, written in PyTorch operations with `x**3`:
autograd keeps four vectors of the size of the input. A Function for the same formula
needs only the input, since all else follows from it. A checkpoint is such a Function
for any formula.

## Inside sharded units, and around them

In [stage 3](unit.py#module/stage-3) a unit is gathered for each use, and a second run is a use. In
the other stages the parameters are always whole, so a checkpoint costs no gather:

| checkpointed | gathers of a unit in a step |
|---|---|
| nothing | 2, one for the forward pass and one for the backward pass |
| a part inside the unit, or its `forward` by [`checkpoint_module`](checkpointing.py) | 2 |
| the call of the unit, as in `checkpoint(unit, x)`, or of several units | 3 |
| the call of the unit, in a checkpoint inside a checkpoint | 4 |

Inside a unit the second run finds the unit gathered, because the unit's backward pass
has begun. A segment around units is different. Its backward pass begins with the second
run, and that run frees each unit after its use. So the inner backward pass gathers each
unit again. Keeping the units until then would hold all units of the segment in memory
at once.

In [the other variant](saved_tensors.py) the graph of the first run is still there. The
backward pass reaches the last unit of the segment, gathers it, and unpacks a saved
tensor. Only then does the segment run again, and it finds this unit already gathered.
So the last unit of each segment is gathered twice, and the others three times. The
gradients are the same in all cases, to the bit.

Source: [the description](bib:chen2016training) that brought the recomputation of
segments to the training of deep networks. In automatic differentiation checkpoints are
older: Griewank described them in 1992, and Griewank and Walther published a program
that places them, `revolve`, in 2000.

:notation $m$: the weight of the newest batch in a running average
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from shardbook.checkpointing.arguments import name_of
from shardbook.checkpointing.segment import Passed, Segment, outside_compiler
from shardbook.foundations.hook_context import label
from shardbook.foundations.torch_private import base_of, reaches_all, tree_unflatten
from shardbook.zero.scheduler import calls_from_outside

__all__ = ["call_reentrant", "checkpoint_reentrant"]


def checkpoint_reentrant(
    function: Callable[..., Any],
    /,
    *args: Any,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    r"""Call a function, and keep only its arguments for the backward pass.

    Both runs must do the same. This variant cannot check that, and two mistakes raise
    no error. The first is to read a value that changes between the runs, such as an
    attribute, a global variable or PyTorch's default dtype. Pass such a value as an
    argument. The second is to change a state in each run. For example, `BatchNorm`
    moves its running statistics twice. With the momentum $1 - \sqrt{1 - m}$ two moves
    are as large as one with $m$.

    :param function: what to run, twice
    :param args: its arguments, of which at least one tensor must require a gradient;
        tensors may be inside tuples, lists, dictionaries and other pytrees
    :param preserve_rng_state: let both runs generate [the same random
        numbers](rng.py#capture); `False` keeps 5056 bytes less, the state of the CPU's
        generator
    :param kwargs: more arguments
    :returns: what the function returns
    :raises RuntimeError: if the function [changes its
        arguments](segment.py#refuse_changes) or [leaves tensors](segment.py#Held) in
        them; and in the backward pass, if [it is called for some inputs
        only](#refuse_partial_backward) or with `create_graph=True`, or no output
        requires a gradient
    :raises TypeError: if an argument is an iterator, or a result holds tensors inside
        an object that is no pytree

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
        # its first run. In the second run of that checkpoint autograd is on, and this
        # function is called again.
        return function(*args, **kwargs)
    arguments = (args, kwargs)
    segment, tensors = Segment.of(function, arguments, preserve_rng_state)
    if not any(tensor.requires_grad for tensor in tensors):
        warn_of_no_gradient()
        with torch.no_grad():
            return function(*args, **kwargs)
    returned = Recomputation.apply(segment, arguments, *tensors)
    assert segment.returned is not None
    return tree_unflatten(returned, segment.returned)


class Recomputation(torch.autograd.Function):
    """The autograd node that represents a whole segment."""

    @staticmethod
    def forward(
        ctx: Any, segment: Segment, arguments: Passed, *tensors: Tensor
    ) -> tuple[Any, ...]:
        """The first run of the segment. Inside this method autograd is off, so each
        tensor is freed as soon as the segment itself no longer uses it.
        """
        ctx.segment = segment
        # Autograd manages tensors that are saved in this way. It detects at the second
        # run whether a tensor was changed in place, frees the tensors after the
        # backward pass, and lets hooks [move them elsewhere](residual.py).
        ctx.save_for_backward(*tensors)
        # An output that the loss does not use has no gradient. If autograd filled in
        # zeros, parameters would get a gradient of zeros that have none without a
        # checkpoint.
        ctx.set_materialize_grads(False)
        values = segment.first(tensors, arguments)
        outputs = aliases(values, tensors)
        # Only the second run shows which outputs depend on a tensor that requires a
        # gradient. So all outputs are marked as requiring one, except an output that is
        # itself an argument without a gradient.
        frozen = {id(tensor) for tensor in tensors if not tensor.requires_grad}
        ctx.mark_non_differentiable(
            *[new for new, v in zip(outputs, values, strict=True) if id(v) in frozen]
        )
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The second run of the segment, and the backward pass through it.

        The inputs are detached. Otherwise the inner backward pass would continue beyond
        them, through everything before the segment, and the outer backward pass would
        do so again.

        One case remains. Take `lambda x: x * y` with `y = w.exp()`: here `y` is
        computed by autograd, but is no argument. The inner backward pass continues
        through the graph of `y` and frees it. If the outer backward pass reaches that
        graph as well, PyTorch raises an error. So pass `y` as an argument.
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
        # The gradient of an output that the segment detaches ends here, just as it
        # would without a checkpoint. Tensors that are detached inside the segment, by
        # `detach()` or under `no_grad`, need no treatment.
        due = [pair for pair in differentiable if pair[1] is not None]
        if due:
            outputs, output_gradients = zip(*due, strict=True)
            torch.autograd.backward(outputs, output_gradients)
        return None, None, *[tensor.grad for tensor in inputs]


# sidelit: depth Results that are parameters or views, and backward passes that would be incomplete.


def aliases(values: Sequence[Any], tensors: Sequence[Tensor]) -> list[Any]:
    """Make a new tensor over the same memory for each different tensor that the segment
    returns.

    Autograd makes the tensors that `forward` returns outputs of the node. A parameter
    that the segment returns as it is would no longer be a leaf, and an optimizer could
    not step on it. With a new tensor the parameter itself stays a leaf.

    If an output shares its memory with another output or with an argument, the new one
    is a *view*. Autograd then raises an error if one of the two is changed in place and
    the other is used. Without the view, the gradient would be that of the unchanged
    values.
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
    """Refuse a backward pass that this variant cannot compute. The inner backward pass
    adds to the gradients of all parameters of the segment, even if `autograd.grad` was
    called for one input, and records no graph.

    Without the first check `torch.autograd.grad` would change the gradients of
    parameters. Without the second one a second derivative would silently leave out this
    segment.

    :raises RuntimeError: naming the call that cannot pass
    """
    # Only autograd's engine has this information, and only during the backward pass.
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
    """Warn that the parameters of the function get no gradient.

    Autograd runs a node's backward pass only if one of its inputs requires a gradient.
    The parameters are no inputs of this node, because the function reads them from its
    module. So if no argument requires a gradient, the parameters get none. This happens
    in the first segment of a model, and after layers that are all frozen.
    """
    warnings.warn(
        "None of the inputs has requires_grad=True, so the parameters of the "
        "checkpointed function get no gradient; call x.requires_grad_() on an input, "
        "or use the variant that is not reentrant",
        stacklevel=calls_from_outside(),
    )
