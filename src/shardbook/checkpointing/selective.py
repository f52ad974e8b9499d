r"""# Selective checkpointing

> A policy decides for each operation whether its result is kept or recomputed.

[A checkpoint](saved_tensors.py) drops every activation inside it, and recomputes every
one. That is more than necessary: nearly all of the computation is in a few operations,
while 44% of the bytes below are cheap to recompute. *Selective checkpointing* keeps
the results of those few operations. A *policy* is called for each ATen operation; these
are the operations that PyTorch's operators call below autograd:

```python
y = checkpoint(block, x, policy=[torch.ops.aten.addmm, *ATTENTION])
```

**What is worth keeping?** [Prices](budget.py#prices) lists what each operation of [a
GPT's block](gpt.py#Block) computes, and the bytes of its result. The width here is 512
and the context 1024:

>>> import torch
>>> from shardbook.checkpointing.budget import prices
>>> from shardbook.models.gpt import Block, Config
>>> block = Block(Config(width=512, heads=8, context=1024))
>>> x = torch.randn(1, 1024, 512, requires_grad=True)
>>> for price in prices(block, x):
...     print(f"{price.op[:27]:27} {price.bytes:9,} {price.flops / price.bytes:6.0f}")
native_layer_norm           4,210,688      0
addmm                       18,874,368    341
_scaled_dot_product_flash_a 2,129,920   1008
add                         4,194,304      0
gelu                        8,388,608      0

The last column is what a byte buys, in FLOPs. Norms, additions and GELUs take 44% of
the bytes and contain no matrix product. In FP32 a byte of the attention's result buys
about as many FLOPs as there are positions, $T$. A byte of a linear layer's result buys
half as many as the layer has inputs. In 16 bits both buy twice that. So the longer the
context, the more the attention is worth keeping.

Two details of the table: The count does not subtract the causal mask. A kernel that
skips the masked half computes half as much, so with such a kernel a byte of the
attention buys half as many FLOPs. And each row is one kernel. Here the attention and
the norm are fused, so each is one row; made of separate operations, each would be
several rows.

**What a policy costs.** The bytes that three policies keep, and the FLOPs that they add
to the backward pass:

>>> from shardbook.checkpointing.budget import flops_of
>>> from shardbook.checkpointing.saved_tensors import checkpoint_saved
>>> y = block(x)
>>> plain = flops_of(y.backward, torch.ones_like(y))
>>> def step(policy):
...     forward, again = contexts(policy)
...     y = checkpoint_saved(block, x, context_fn=lambda: (forward, again))
...     return forward.bytes, flops_of(y.backward, torch.ones_like(y)) - plain
>>> once = flops_of(block, x)
>>> for policy in ([], ATTENTION, [torch.ops.aten.addmm, *ATTENTION]):
...     kept, added = step(policy)
...     print(f"{kept:10,} bytes kept, {added / once:.2f} forward passes added")
         0 bytes kept, 0.75 forward passes added
 2,129,920 bytes kept, 0.50 forward passes added
21,004,288 bytes kept, 0.00 forward passes added

A quarter of the block's FLOPs are in its last matrix product, which is never repeated:
[the second run](segment.py#Collector) ends at the last tensor that a gradient
needs, and the product comes after that tensor. So the third policy keeps 2 MB of the
product's result for nothing. A policy that is a function can leave this product out,
because it gets the arguments.

:notation $T$: the number of positions in a sequence
:figure: peak_against_work
"""

from __future__ import annotations

import enum
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.utils.checkpoint import CheckpointPolicy

from shardbook.checkpointing.saved_tensors import Kept, Store, shapes, written_by
from shardbook.foundations.hook_context import machinery_at_work
from shardbook.foundations.rng import RNGState, capture
from shardbook.foundations.torch_private import (
    ATTENTION_KERNELS,
    SOFTMAX_OF_ATTENTION,
    OpOverload,
    OpOverloadPacket,
    TorchDispatchMode,
    schema_of,
)
from shardbook.zero.scheduler import calls_from_outside

__all__ = ["ATTENTION", "Keep", "SavePolicy", "contexts"]

# sidelit: hide
SavePolicy = Callable[..., "Keep | bool | CheckpointPolicy"]
# Their types have no public names.
OPERATIONS = (OpOverload, OpOverloadPacket)
aten = torch.ops.aten
# sidelit: show


class Keep(enum.Enum):
    """What a policy returns.

    A policy that was written for PyTorch's checkpoint may keep its return values:

    | here | in PyTorch |
    |---|---|
    | `Keep.SAVE` | `True`, or `CheckpointPolicy.MUST_SAVE` |
    | `Keep.PREFER` | `CheckpointPolicy.PREFER_SAVE` |
    | `Keep.RECOMPUTE` | `False`, `CheckpointPolicy.MUST_RECOMPUTE` or `PREFER_RECOMPUTE` |

    PyTorch's answers `MUST_CPU_OFFLOAD` and `PREFER_CPU_OFFLOAD` are
    [refused](#keep_of) here. PyTorch itself recomputes such operations outside a
    compiler, without a warning.
    """

    # Keep the result. Raise an error where that would give wrong gradients.
    SAVE = enum.auto()
    # Keep the result, but recompute it where keeping would give wrong gradients.
    PREFER = enum.auto()
    # Recompute the result.
    RECOMPUTE = enum.auto()


def contexts(policy: SavePolicy | Collection[Any]) -> tuple[Keeping, HandingOut]:
    """Make the two blocks for one call of a checkpointed function, one for each run.

    ```python
    y = checkpoint_saved(function, x, context_fn=partial(contexts, policy))
    ```

    :param policy: `policy(op, *args, **kwargs)`, which returns a `Keep` for an ATen
        operation and its arguments; or the operations to save, such as `ATTENTION`,
        `torch.ops.aten.mm` with all its overloads, or `torch.ops.aten.mm.default`
    :returns: the block for the forward pass and the one for each recomputation
    :raises TypeError: if `policy` is neither
    """
    store = Store()
    return Keeping(policy_of(policy), store), HandingOut(store)


def policy_of(policy: SavePolicy | Collection[Any]) -> SavePolicy:
    """Turn a policy or a list of operations into a function.

    :raises TypeError: if it is neither, or the policy was written for PyTorch's
        checkpoint, where the first argument is a context
    """
    refuse_misread(policy)
    return policy if callable(policy) else saves(policy)


def saves(operations: Collection[Any]) -> SavePolicy:
    """The policy that saves some operations and nothing else."""
    refuse_names(operations)
    return Listed(frozenset(operations))


@dataclass(frozen=True)
class Listed:
    """The policy that saves the operations of a list."""

    operations: frozenset[Any]

    def __call__(self, op: OpOverload, *args: Any, **kwargs: Any) -> Keep:
        listed = op in self.operations or op.overloadpacket in self.operations
        return Keep.SAVE if listed else Keep.RECOMPUTE

    # sidelit: depth An attention without a fused kernel.

    def warn_if_unfused(self, ran: Iterable[Any]) -> None:
        """Warn if an attention ran without any of the listed kernels.

        If no kernel fits, PyTorch computes the scores, a softmax and the weighted sum
        as separate operations, and a list of kernels contains none of these.

        :param ran: the operations of one forward pass
        """
        packets = {op.overloadpacket for op in ran}
        # PyTorch uses this softmax nowhere else.
        unfused = SOFTMAX_OF_ATTENTION in packets
        if unfused and self.operations & {*ATTENTION} and not packets & {*ATTENTION}:
            warnings.warn(
                "the policy saves the kernels of attention, and this attention ran "
                "without one, so nothing of it is kept; a CPU has no kernel with "
                "dropout, so set dropout_p=0.0 there, or list torch.ops.aten.bmm, too",
                stacklevel=calls_from_outside(),
            )


# PyTorch's attention is another operation for each kernel. Which kernel runs depends on
# the device, the dtype and the shapes. A list that lacks it keeps nothing, and raises
# no error. Nested tensors call the last three. Where no kernel runs, [a
# warning](#Listed.warn_if_unfused) says so.
ATTENTION = ATTENTION_KERNELS


class Keeping(TorchDispatchMode):
    """The block of the forward pass.

    A dispatch mode intercepts the operations below autograd, where kernels are called.
    A linear layer with a bias is one `addmm` there, whichever Python function called
    it.
    """

    def __init__(self, policy: SavePolicy, store: Store) -> None:
        super().__init__()
        self.policy = policy
        self.store = store

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # A recomputation in the middle of the forward pass does not belong to the
        # forward pass.
        if self.store.replaying or not computes(func):
            return func(*args, **kwargs)
        keep = keep_of(self.policy, func, args, kwargs)
        written = written_by(func, args, kwargs)
        self.store.overwrite(func, written)
        if not wanted(func, keep):
            self.store.calls[func].append(None)
            return func(*args, **kwargs)
        before = random_state(func, args, kwargs)
        result = func(*args, **kwargs)
        after = random_state(func, args, kwargs)
        # If the operation writes to an argument, a later write there would change the
        # kept result. So a copy is kept. A new tensor is kept without a copy.
        value = [tensor.clone() for tensor in written] if written else result
        drawn = after if differ(before, after) else RNGState()
        kept = Kept(func, shapes(args, kwargs), value, drawn, keep is Keep.SAVE)
        self.store.add(kept, written)
        return result

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if isinstance(self.policy, Listed):
            self.policy.warn_if_unfused(self.store.calls)
        self.store.seal()

    @property
    def bytes(self) -> int:
        """The bytes of all kept results at this moment."""
        return self.store.bytes


class HandingOut(TorchDispatchMode):
    """The block of a recomputation: kept results are handed out instead of computed.

    Autograd uses a kept result as the result of the operation, and goes on as in the
    forward pass.

    A kept operation that generates random numbers does not run here, but a later one
    that generates some may run. So after each kept operation the generators are set to
    their state after this operation in the forward pass. Otherwise each later dropout
    would draw the mask of an earlier one. PyTorch 2.13 does not restore this state:
    with one of two masks kept, its gradients are wrong, and no error is raised.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def __enter__(self) -> HandingOut:
        # After `retain_graph=True` another recomputation enters this block once more.
        self.numbers: defaultdict[Any, int] = defaultdict(int)
        self.drawn = ExitStack()
        self.store.replaying += 1
        super().__enter__()
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not computes(func):
            return func(*args, **kwargs)
        number = self.numbers[func]
        self.numbers[func] += 1
        kept = self.store.get(func, number, args, kwargs)
        if kept is None:
            return func(*args, **kwargs)
        # At the end of the block the generators get back their state from before the
        # block.
        self.drawn.enter_context(kept.drawn.restored())
        return kept.hand_out(args, kwargs, copied=not self.store.complete)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.store.replaying -= 1
        self.drawn.close()


def computes(op: OpOverload) -> bool:
    """Whether an operation computes or writes values, so that the policy is called for
    it.

    A view computes no values, and it must be a view of a tensor of its own run. So
    views are made again, without a call of the policy. [The work of a
    hook](hook_context.py#machinery) is excluded, too: in the second run a sharded unit
    may already be gathered, and then its hooks do less.
    """
    if machinery_at_work() or op.is_view or torch.Tag.inplace_view in op.tags:
        return False
    # PyTorch has no public name for the schema of an operation.
    schema = schema_of(op)
    gives = any("Tensor" in str(value.type) for value in schema.returns)
    return gives or schema.is_mutable


def wanted(op: OpOverload, keep: Keep) -> bool:
    """Whether a result is kept, given the policy's answer.

    :raises RuntimeError: if the result cannot be kept, although the policy requires it
    """
    if keep is Keep.RECOMPUTE:
        return False
    schema = schema_of(op)
    fresh = any(value.alias_info is None for value in schema.returns)
    if not (schema.is_mutable and fresh):
        return True
    if keep is Keep.SAVE:
        refuse_to_keep(op)
    return False


def random_state(op: OpOverload, args: Any, kwargs: Any) -> RNGState:
    """The state of the generators that an operation may use."""
    draws = torch.Tag.nondeterministic_seeded in op.tags
    return capture(args, kwargs) if draws else RNGState()


def differ(before: RNGState, after: RNGState) -> bool:
    """Whether an operation has generated random numbers. An attention without dropout
    could do so, but does not.
    """
    return any(
        not torch.equal(state, after.states[source])
        for source, state in before.states.items()
    )


# sidelit: depth Policies that fail, and policies that were written for PyTorch.


def refuse_misread(policy: Any) -> None:
    """Refuse two objects that look like a policy and are none.

    :raises TypeError: for a single operation, and for a policy that takes a context as
        PyTorch's policies do
    """
    # An operation is callable, so it would pass for a policy, and fail at its first
    # call.
    if isinstance(policy, OPERATIONS):
        raise TypeError(f"{policy} is one operation; give a list of them")
    if callable(policy) and first_parameter(policy) in ("ctx", "context"):
        raise TypeError(
            "a policy is called with the operation and its arguments, and the first "
            "parameter of this one is a context, as in PyTorch; leave that parameter "
            "out, or give context_fn=partial(create_selective_checkpoint_contexts, policy)"
        )


def first_parameter(policy: Callable[..., Any]) -> str:
    """The name of a function's first parameter; empty for other callables."""
    code = getattr(policy, "__code__", None)
    return "".join(code.co_varnames[: min(1, code.co_argcount)]) if code else ""


def refuse_names(operations: Collection[Any]) -> None:
    """Refuse a list that holds anything but operations.

    :raises TypeError: naming the wrong element
    """
    for op in operations:
        if not isinstance(op, OPERATIONS):
            raise TypeError(
                f"{op!r} is not an ATen operation; name it as torch.ops.aten.mm"
            )


def refuse_to_keep(op: OpOverload) -> NoReturn:
    """Refuse to keep the new tensor of an operation that also writes to an argument.

    :raises RuntimeError: naming the operation
    """
    raise RuntimeError(
        f"{op} writes over an argument and gives a new tensor, too, so its result "
        "alone cannot be kept; let the policy answer Keep.PREFER for it"
    )


def keep_of(policy: SavePolicy, op: OpOverload, args: Any, kwargs: Any) -> Keep:
    """Call the policy for an operation, and translate its answer into a `Keep`.

    A `TypeError` of the policy becomes a `RuntimeError`. From `x @ x` Python would
    understand a `TypeError` as "tensors have no such operator", and its own error would
    hide the policy's.

    :raises RuntimeError: if the policy fails with a `TypeError`, or its answer is no
        `Keep`
    """
    try:
        answer = policy(op, *args, **kwargs)
    except TypeError as error:
        raise RuntimeError(f"for {op} the policy has failed: {error}") from error
    if isinstance(answer, bool):
        return Keep.SAVE if answer else Keep.RECOMPUTE
    keep = AS_IN_TORCH[answer] if isinstance(answer, CheckpointPolicy) else answer
    if isinstance(keep, Keep):
        return keep
    raise RuntimeError(
        f"for {op} the policy has answered {answer!r}, which is not a Keep; to move "
        "what is kept to the host, use shardbook.offload() around the forward pass"
    )


# Later versions of PyTorch may have more answers. Only these correspond to a `Keep`.
AS_IN_TORCH = dict.fromkeys(CheckpointPolicy) | {
    CheckpointPolicy.MUST_SAVE: Keep.SAVE,
    CheckpointPolicy.PREFER_SAVE: Keep.PREFER,
    CheckpointPolicy.MUST_RECOMPUTE: Keep.RECOMPUTE,
    CheckpointPolicy.PREFER_RECOMPUTE: Keep.RECOMPUTE,
}


def torch_policy(
    policy: SavePolicy | None, context: Any, op: Any, *args: Any, **kwargs: Any
) -> CheckpointPolicy:
    """The same policy for [a compiler](traced.py), with PyTorch's answers.

    :param policy: `None` keeps nothing
    :param context: an argument that PyTorch adds, and that this library's policies do
        not use
    """
    if policy is None or not isinstance(op, OpOverload) or not computes(op):
        return CheckpointPolicy.PREFER_RECOMPUTE
    keep = keep_of(policy, op, args, kwargs)
    if keep is Keep.RECOMPUTE:
        return CheckpointPolicy.PREFER_RECOMPUTE
    save = CheckpointPolicy.MUST_SAVE
    return save if keep is Keep.SAVE else CheckpointPolicy.PREFER_SAVE
