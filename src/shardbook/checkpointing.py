r"""# Activation checkpointing

> One call trades memory for time: a function runs twice, and what it computes in between need not be kept.

```python
y = checkpoint(block, x)
checkpoint_module(model, units=Block)
```

The first line checkpoints one call. The second does it for all calls of some modules, and
leaves the model's code as it is.

**What it costs.** Of a chain of linear layers the forward pass is one product of
matrices for each layer, and the backward pass two. A checkpoint around the chain runs
the forward pass again, but [ends before the last product](recomputation.py#Collector),
since nobody needs its result. Between the passes only the input and the output are
there:

>>> import torch
>>> from torch import nn
>>> from shardbook.costs import SavedBytes
>>> from shardbook.flops import FlopCounter
>>> chain = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(8)])
>>> x = torch.zeros(32, 64, requires_grad=True)
>>> for run in (nn.Module.__call__, checkpoint):
...     with SavedBytes(chain.parameters()) as saved, FlopCounter() as flops:
...         y = run(chain, x)
...         kept = saved.bytes // x.nbytes
...         y.sum().backward()
...     print(kept, "tensors kept,", flops.get_total_flops() // (2 * 32 * 64 * 64), "products")
8 tensors kept, 24 products
1 tensors kept, 31 products

**Which variant?** There are two ways to run a function again. [One](saved_tensors.py) lets autograd
record the graph and leaves the tensors out. [The other](reentrant.py) records nothing, and
runs a second backward pass inside of the first. It is the older one:

| you | reentrant | because |
|---|---|---|
| have no reason for either | no | all of the following works, and errors are found |
| call `autograd.grad` or `backward(inputs=...)` | no | there is a graph to go through |
| take a second derivative | no | the graph is the one of a plain forward pass |
| have no input with a gradient, as in a first layer | no | parameters get theirs all the same |
| use one result of two | no | what the graph no longer holds does not run again |
| want a `policy` or `early_stop` | no | the second run goes tensor by tensor |
| read what may change, as a global | no | [both runs are compared](determinism.py) |
| save many small tensors | yes | no Python runs for each of them |
| mean to save other tensors the second time | yes | nothing is compared |

**What remains of the limits, in both.** The function runs twice, so the running mean of
a `BatchNorm` moves twice. A function that changes an argument in place is refused, and
may change a clone of it. A tensor that the function takes from its surroundings, and
not as an argument, is kept by the function.
"""

# sidelit: hide
from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from types import FrameType, MethodType
from typing import Any, TypeVar

from torch import nn

from shardbook.determinism import LEVELS
from shardbook.model import Select, called, select
from shardbook.reentrant import call_reentrant
from shardbook.saved_tensors import call_saved
from shardbook.segment import not_compiled
from shardbook.selective import SavePolicy, contexts

__all__ = ["checkpoint", "checkpoint_module"]

M = TypeVar("M", bound=nn.Module)
# sidelit: show


def checkpoint(
    function: Callable[..., Any],
    /,
    *args: Any,
    use_reentrant: bool = False,
    preserve_rng_state: bool = True,
    determinism_check: str = "default",
    early_stop: bool = True,
    policy: SavePolicy | Collection[Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Call a function, keep what it was given, and compute the rest again when its
    gradient is due.

    :param function: any function or module
    :param args: what it is given
    :param use_reentrant: which variant, by the table above
    :param preserve_rng_state: whether both runs draw [the same random numbers](rng.py)
    :param determinism_check: [how closely](determinism.py) both runs are compared:
        `"default"`, `"none"` or `"debug"`
    :param early_stop: end the second run at the last tensor that is wanted
    :param policy: [which operations](selective.py#contexts) do not run again
    :param kwargs: more of what it is given
    :returns: what the function returns
    :raises ValueError: if these options do not go together

    Works like `torch.utils.checkpoint.checkpoint`, but is not reentrant unless told so.
    """
    options = Options(
        use_reentrant, preserve_rng_state, determinism_check, early_stop, policy
    )
    return options.run(function, args, kwargs)


def checkpoint_module(model: M, units: Select | None = None, **options: Any) -> M:
    """Checkpoint each call of some modules.

    Their classes, names and parameters stay, and so do the keys of the `state_dict`.
    The model can be copied and pickled. To undo it for one module, `del module.forward`.

    [A sharded model](model.py#shard) can be checkpointed before or after it is sharded,
    to the same effect: hooks surround the call of a module, and what is changed here is
    inside of the call. What matters is which modules are units of both. In stage 3 a
    unit is gathered

    | checkpointed | in a step |
    |---|---|
    | nothing | twice |
    | the units of `shard`, or what is inside of them | twice |
    | what is around several units | three times, the last of them twice |

    In the second row the unit is whole in its backward pass anyway, and that is when it
    runs again. In the third row the second run goes through all units before the
    backward pass of any of them begins. So use the same `units` for both.

    :param model: any module
    :param units: which modules, [chosen as for](model.py#select) `shard`; `None` means
        the children of an `nn.Sequential`, and any other model as a whole
    :param options: those of [`checkpoint`](#checkpoint)
    :returns: the same object
    :raises TypeError: if `units` chooses nothing by its kind, or for an unknown option
    :raises ValueError: if no module is chosen, one is checkpointed already, or the
        options do not go together
    """
    chosen = Options(**options)
    root, *inner = select(model, units).items()
    modules = inner or ([] if units else [root])
    if not modules:
        raise ValueError(
            f"units={units!r} selects no module; name a class that the model contains"
        )
    for name, module in modules:
        if isinstance(vars(module).get("forward"), Checkpointed):
            raise ValueError(
                f"{called(name)} is checkpointed already; checkpoint a module only once"
            )
    for _, module in modules:
        # An attribute of the object hides the method of its class.
        module.forward = Checkpointed(module, chosen)
    return model


@dataclass(frozen=True)
class Options:
    """How to checkpoint; the parameters are those of [`checkpoint`](#checkpoint)."""

    use_reentrant: bool = False
    preserve_rng_state: bool = True
    determinism_check: str = "default"
    early_stop: bool = True
    policy: SavePolicy | Collection[Any] | None = None

    def __post_init__(self) -> None:
        """Refuse now what could fail only in the middle of a training step."""
        if self.determinism_check not in LEVELS:
            raise ValueError(
                f"determinism_check={self.determinism_check!r} is not a level; "
                f"choose one of {', '.join(map(repr, LEVELS))}"
            )
        for name in ("determinism_check", "early_stop", "policy"):
            value = getattr(self, name)
            if self.use_reentrant and value != getattr(Options, name):
                raise ValueError(
                    f"{name}={value!r} needs the tensors one by one, and a reentrant "
                    "checkpoint has only the whole; leave out use_reentrant=True"
                )
        if self.policy is not None and self.determinism_check == "debug":
            raise ValueError(
                'determinism_check="debug" compares what each operation gives, and a '
                "policy hands out what it gave before; leave out one of them"
            )

    @not_compiled
    def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Hand a call to its variant. Its arguments may have the names of options."""
        if self.use_reentrant:
            return call_reentrant(function, args, kwargs, self.preserve_rng_state)
        return call_saved(
            function,
            args,
            kwargs,
            self.preserve_rng_state,
            self.determinism_check,
            self.early_stop,
            None if self.policy is None else partial(contexts, self.policy),
        )


class Checkpointed:
    """The `forward` of a module, checkpointed.

    It holds no module. A module that held itself would be freed only by the garbage
    collector, and its parameters with it. And a shallow copy of the module, such as the
    replicas of `nn.DataParallel`, shares this object. It has to compute with its own
    weights, and not with those of the original.
    """

    def __init__(self, module: nn.Module, options: Options) -> None:
        self.options, self.module = options, weakref.ref(module)
        # A `forward` that a library has set on this one object, or the class's.
        self.own = vars(module).get("forward")

    @not_compiled
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.options.run(self.method_of(self.caller()), args, kwargs)

    def caller(self) -> nn.Module | None:
        """The module that is being called. PyTorch does not pass it to `forward`, but
        the frame of its call is on the stack.

        For a direct call of `forward` there is none, and it is the original's.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is nn.Module._call_impl.__code__:
                module: nn.Module = frame.f_locals["self"]
                if vars(module).get("forward") is self:
                    return module
                break
            frame = frame.f_back
        return self.module()

    def method_of(self, module: nn.Module | None) -> Callable[..., Any]:
        """What `forward` would be without the checkpoint."""
        if module is None:
            raise ReferenceError("the module of this checkpointed forward is gone")
        return (
            MethodType(type(module).forward, module) if self.own is None else self.own
        )

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """Under this name `inspect.signature` finds the parameters."""
        return self.method_of(self.module())

    def __getstate__(self) -> tuple[Any, ...]:
        """A weak reference cannot be pickled. The copy of a module holds its own."""
        return self.options, self.module(), self.own

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.options, module, self.own = state
        self.module = weakref.ref(module)
