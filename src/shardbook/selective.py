r"""# Keeping some of it

> A policy decides, operation by operation, what is kept and what is computed again.

[A checkpoint](saved_tensors.py) drops every activation inside of it, and then computes
every one of them again. That is more than is needed. Most of the memory lies in tensors
that are cheap to make, and most of the computation in a few operations. So a *policy* is
asked about each ATen operation, which is one call of a kernel:

```python
aten = torch.ops.aten
y = checkpoint(block, x, policy=[aten.addmm, aten._scaled_dot_product_flash_attention])
```

**What is worth keeping?** [Count](flops.py#prices) for each operation of [a GPT's
block](gpt.py#Block) what it computes and what its result takes. Here with a width of 512
and a context of 1024:

>>> import torch
>>> from shardbook.flops import prices
>>> from shardbook.gpt import Block, Config
>>> block = Block(Config(width=512, heads=8, context=1024))
>>> x = torch.randn(1, 1024, 512, requires_grad=True)
>>> for price in prices(block, x):
...     print(f"{price.op[:27]:27} {price.bytes:9,} {price.flops / price.bytes:6.0f}")
native_layer_norm           4,210,688      0
addmm                       18,874,368    341
_scaled_dot_product_flash_a 2,129,920   1008
add                         4,194,304      0
gelu                        8,388,608      0

The last column is what a byte buys, in FLOPs. Norms, additions and GELUs take 44 % of
the bytes, and there is no matrix product in them. A byte of the attention's result buys
about as many FLOPs as there are positions, $T$. A byte of a linear layer's result buys
half as many as the layer has inputs. So the longer the context, the more the attention
is worth keeping.

**What it comes to.** The block keeps its input and what the policy keeps. The rest of
its forward pass runs again:

>>> from shardbook.flops import flops_of
>>> from shardbook.saved_tensors import checkpoint_saved
>>> def step(policy):
...     forward, again = contexts(policy)
...     y = checkpoint_saved(block, x, context_fn=lambda: (forward, again))
...     return forward.bytes, flops_of(y.backward, torch.ones_like(y))
>>> aten, forward = torch.ops.aten, flops_of(block, x)
>>> attention = aten._scaled_dot_product_flash_attention_for_cpu
>>> _, least = step([aten.addmm, attention])
>>> for policy in ([], [attention], [aten.addmm, attention]):
...     kept, computed = step(policy)
...     print(f"{kept:10,} bytes kept, {(computed - least) / forward:.2f} forward passes")
         0 bytes kept, 0.75 forward passes
 2,129,920 bytes kept, 0.50 forward passes
21,004,288 bytes kept, 0.00 forward passes

A quarter of the block is one product, its last, and that one is never repeated: [the
second run](recomputation.py#Collector) ends at the last tensor that is wanted, and the
product comes after it. So the last of the three policies keeps 2 MB for nothing. A policy
that is a function can leave that product out, because it sees the arguments.

:notation $T$: `config.context`, the number of positions
"""

# sidelit: hide
from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._python_dispatch import TorchDispatchMode

from shardbook.kept import Kept, Store, shapes, written_by
from shardbook.machinery import machinery_at_work
from shardbook.rng import RNGState, capture

__all__ = ["Keep", "Policy", "contexts"]

Policy = Callable[..., "Keep"]
# Their types have no public names.
OPERATIONS = (OpOverload, OpOverloadPacket)
# sidelit: show


class Keep(enum.Enum):
    """What a policy answers when it is asked about an operation."""

    # Keep the result. Where that would give wrong gradients, raise.
    SAVE = enum.auto()
    # Keep the result where that is possible, and compute it again elsewhere.
    PREFER = enum.auto()
    # Compute it again.
    RECOMPUTE = enum.auto()


def contexts(policy: Policy | Collection[Any]) -> tuple[Keeping, HandingOut]:
    """The blocks for one call of a checkpointed function, for its two runs.

    ```python
    y = checkpoint_saved(function, x, context_fn=partial(contexts, policy))
    ```

    :param policy: `policy(op, *args, **kwargs)`, which returns a `Keep` for an ATen
        operation and its arguments; or the operations to save, such as
        `torch.ops.aten.mm` with all its overloads, or `torch.ops.aten.mm.default`
    :returns: the block for the forward pass and the one for each recomputation
    :raises TypeError: something else is given
    """
    # It could be called, too, but it would not answer.
    if isinstance(policy, OPERATIONS):
        raise TypeError(f"{policy} is one operation; give a list of them")
    if not callable(policy):
        policy = saves(policy)
    store = Store()
    return Keeping(policy, store), HandingOut(store)


def saves(operations: Collection[Any]) -> Policy:
    """The policy that saves some operations and nothing else."""
    for op in operations:
        if not isinstance(op, OPERATIONS):
            raise TypeError(
                f"{op!r} is not an ATen operation; name it as torch.ops.aten.mm"
            )
    chosen = set(operations)

    def policy(op: OpOverload, *args: Any, **kwargs: Any) -> Keep:
        return Keep.SAVE if {op, op.overloadpacket} & chosen else Keep.RECOMPUTE

    return policy


class Keeping(TorchDispatchMode):
    """The block of the forward pass.

    A dispatch mode sees the operations below autograd, as kernels are called. A linear
    layer with a bias is one `addmm` there, whatever Python function has asked for it.
    """

    def __init__(self, policy: Policy, store: Store) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.policy, self.store = policy, store

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # A recomputation in the middle of the forward pass is no part of it.
        if self.store.replaying or not computes(func):
            return func(*args, **kwargs)
        keep = self.policy(func, *args, **kwargs)
        written = written_by(func, args, kwargs)
        self.store.overwrite(func, written)
        if not wanted(func, keep):
            self.store.calls[func].append(None)
            return func(*args, **kwargs)
        before = random_state(func, args, kwargs)
        result = func(*args, **kwargs)
        after = random_state(func, args, kwargs)
        # The next operation that writes to the same place would change what this one
        # has written. So that is copied. A result of its own is kept as it is.
        value = [tensor.clone() for tensor in written] if written else result
        drawn = after if differ(before, after) else RNGState()
        kept = Kept(func, shapes(args, kwargs), value, drawn, keep is Keep.SAVE)
        self.store.add(kept, written)
        return result

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.store.seal()

    @property
    def bytes(self) -> int:
        """The bytes that are kept at this moment."""
        return self.store.bytes


class HandingOut(TorchDispatchMode):
    """The block of a recomputation: what was kept is handed out, and not computed.

    Autograd takes it for the result of the operation, and goes on as in the forward
    pass.

    An operation that draws random numbers is left out here, and the next one that draws
    may not be. So the generators go on from where the kept one had left them. Otherwise
    each mask after it would be that of another layer. PyTorch 2.13 does not do this:
    with one of two masks kept, its gradients are wrong, and no error is raised.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.store = store

    def __enter__(self) -> HandingOut:
        # A graph that is kept can be gone through again, and then so can this block.
        self.numbers: defaultdict[Any, int] = defaultdict(int)
        self.drawn = ExitStack()
        self.store.replaying += 1
        super().__enter__()  # type: ignore[no-untyped-call]
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
        # At the end of the block they get back the state that they had before.
        self.drawn.enter_context(kept.drawn.restored())
        return kept.hand_out(args, kwargs, copied=not self.store.complete)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.store.replaying -= 1
        self.drawn.close()


def computes(op: OpOverload) -> bool:
    """Whether an operation of the function makes or writes values.

    A view makes none. It takes neither time nor memory, and in the second run it has to
    be a view of that run's tensor. So views are made again, and no policy is asked about
    them. Nor is it asked about [the work of a hook](machinery.py#machinery): the gather
    of a sharded unit may be missing in the second run, which finds the unit whole.
    """
    if machinery_at_work() or op.is_view or torch.Tag.inplace_view in op.tags:
        return False
    # PyTorch has no public name for the signature of an operation.
    schema = op._schema
    gives = any("Tensor" in str(value.type) for value in schema.returns)
    return gives or schema.is_mutable


def wanted(op: OpOverload, keep: Keep) -> bool:
    """Whether a result is kept, given what the policy has answered.

    :raises RuntimeError: if it cannot be kept, but has to be
    """
    if not isinstance(keep, Keep):
        raise TypeError(
            f"for {op} the policy has answered {keep!r}, which is not a Keep"
        )
    if keep is Keep.RECOMPUTE:
        return False
    schema = op._schema
    fresh = any(value.alias_info is None for value in schema.returns)
    if not (schema.is_mutable and fresh):
        return True
    if keep is Keep.SAVE:
        raise RuntimeError(
            f"{op} writes over an argument and gives a new tensor, too, so its result "
            "alone cannot be kept; let the policy answer Keep.PREFER for it"
        )
    return False


def random_state(op: OpOverload, args: Any, kwargs: Any) -> RNGState:
    draws = torch.Tag.nondeterministic_seeded in op.tags
    return capture(args, kwargs) if draws else RNGState()


def differ(before: RNGState, after: RNGState) -> bool:
    return any(
        not torch.equal(state, after.states[source])
        for source, state in before.states.items()
    )
