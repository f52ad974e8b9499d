r"""# Activation checkpointing

> A checkpoint keeps the arguments of a function and recomputes its activations in the
> backward pass: less memory for more computation.

```python
y = checkpoint(block, x)
checkpoint_module(model, units=Block)
```

The forward pass leaves *activations* behind: the tensors that autograd saves, because
gradients will be computed from them. *Activation checkpointing* saves only the
arguments of a function. When the backward pass needs one of the function's activations,
the function runs a second time. This second run is the *recomputation*. The first line
of the example checkpoints one call. The second line checkpoints every call of each
`Block`, and leaves the model's code unchanged.

**What a checkpoint costs.** Take a chain of eight linear layers. Its forward pass
computes one matrix product for each layer. Its backward pass computes two, one for the
gradient of the input and one for the gradient of the weight. A checkpoint around the
chain repeats the products of the forward pass, except the last one: no gradient needs
its result, so [the second run ends](recomputation.py#Collector) before it. That is
*early stop*. Between the forward pass and the backward pass autograd keeps only the
input:

>>> import torch
>>> from torch import nn
>>> from shardbook.checkpointing.costs import SavedBytes
>>> from shardbook.checkpointing.flops import FlopCounter
>>> chain = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(8)])
>>> x = torch.zeros(32, 64, requires_grad=True)
>>> for run in (nn.Module.__call__, checkpoint):
...     with SavedBytes(chain.parameters()) as saved, FlopCounter() as flops:
...         y = run(chain, x)
...         kept = saved.bytes // x.nbytes
...         y.sum().backward()
...     print(kept, "saved,", flops.get_total_flops() // (2 * 32 * 64 * 64), "products")
8 saved, 24 products
1 saved, 31 products

**Where to put checkpoints.** The 1 in the second line counts the memory between the
forward pass and the backward pass. The peak does not change: when the backward pass
begins, the whole chain is recomputed, and all eight activations exist at once. So
checkpoint the layers of a model one by one, rather than the model as a whole. The table
shows a GPT of 12 blocks, 128 wide with 4 heads, on a sequence of 128 tokens in FP32,
with 9.8 MB of parameters. Both columns of bytes count what autograd saves; gradients,
temporaries and what the allocator holds in reserve come on top:

| checkpointed | saved after the forward pass | peak of the saved bytes | forward passes added |
|---|---|---|---|
| no checkpoint | 12.77 MB | 12.77 MB | 0.00 |
| one around the model | 0.00 MB | 12.77 MB | 0.99 |
| [four equal segments](sequential.py), the last kept | 2.37 MB | 4.21 MB | 0.75 |
| each layer | 0.85 MB | 1.77 MB | 0.71 |
| each block | 0.92 MB | 1.78 MB | 0.71 |
| each block, [reentrant](reentrant.py) | 0.92 MB | 1.78 MB | 0.99 |
| each block, [attention kept](selective.py) | 1.73 MB | 2.52 MB | 0.56 |
| each block, attention and products kept | 8.81 MB | 9.14 MB | 0.00 |
| [the cheapest plan](budget.py) for half the bytes | 5.72 MB | 5.79 MB | 0.41 |
| the cheapest plan for a quarter | 2.76 MB | 2.83 MB | 0.59 |
| the plan with the least memory | 0.79 MB | 1.71 MB | 0.71 |

The last column counts FLOPs, as multiples of one forward pass. Early stop is the
difference between 0.71 and 0.99, because more than a quarter of a block's FLOPs are in
its last product.

**What a checkpoint does not save.** Parameters, optimizer state and gradients take the
same memory as before. The first backward pass allocates `.grad` of each parameter,
whether its layer is checkpointed or not. So for a large model with short sequences
checkpoints save little, and [ZeRO](memory.py) saves more.

**Several arguments** reach the second run in their order. For a cell of an LSTM that
takes the input and two states, write `checkpoint(cell, x, h, c)`; keyword arguments work,
too.

**Users.** Published models offer checkpoints as a switch: torchvision's DenseNet has
`memory_efficient=True`, because its layers concatenate all earlier results, and the code
of the Swin Transformer has `use_checkpoint`.

**Which variant?** Keep the default, the [non-reentrant](saved_tensors.py) variant,
unless one of the last two rows of the table below describes your function. PyTorch has both
variants, and so has this book. In the non-reentrant variant autograd records the graph
in the first run, with placeholders for the tensors. The older [reentrant](reentrant.py)
variant records no graph in the first run, and starts a second backward pass inside the
first one:

| if you | use | because |
|---|---|---|
| call `autograd.grad` or `backward(inputs=...)` | non-reentrant | the graph is as without checkpoints |
| take a second derivative | non-reentrant | the graph can be differentiated again |
| have no input that requires a gradient | non-reentrant | parameters get gradients all the same |
| drop one of two results before the backward pass | non-reentrant | its tensors alone can be left out |
| want a `policy` or `early_stop` | non-reentrant | the second run is intercepted at each saved tensor |
| want [both runs compared](determinism.py) | non-reentrant | each run records the tensors that it saves |
| save very many small tensors | reentrant | no Python code runs for each tensor |
| run other operations the second time, with equal results | reentrant | the two runs are not compared |

**What holds for both variants.** The function runs twice, so the running mean of a
`BatchNorm` moves twice. A function that changes an argument in place is refused, so let
it change a clone. A function that [leaves tensors in a cache](segment.py#Held) among
its arguments is refused, too; train a language model of the transformers library with
`use_cache=False`. A tensor that the function takes from its surroundings, as a closure
does, stays in memory. If autograd computed that tensor, pass it as an argument to [the
reentrant variant](reentrant.py#Recomputation.backward).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import noop_context_fn

from shardbook.checkpointing.determinism import refuse_level
from shardbook.checkpointing.reentrant import call_reentrant
from shardbook.checkpointing.saved_tensors import Contexts, call_saved
from shardbook.checkpointing.segment import outside_compiler
from shardbook.checkpointing.selective import SavePolicy, contexts
from shardbook.checkpointing.traced import (
    compile_apart,
    enters_graph,
    not_a_beginning,
    not_recorded,
    warn_if_compiling,
)
from shardbook.foundations.nesting import modules_called
from shardbook.zero.model import Select, called, select

__all__ = ["checkpoint", "checkpoint_module"]

# sidelit: hide
M = TypeVar("M", bound=nn.Module)
# sidelit: show


@not_a_beginning
def checkpoint(
    function: Callable[..., Any],
    /,
    *args: Any,
    use_reentrant: bool | None = False,
    preserve_rng_state: bool = True,
    determinism_check: str = "default",
    early_stop: bool = True,
    policy: SavePolicy | Collection[Any] | None = None,
    context_fn: Callable[[], Contexts] = noop_context_fn,
    debug: bool = False,
    **kwargs: Any,
) -> Any:
    """Call a function, keep its arguments, and recompute its activations in the
    backward pass.

    :param function: any function or module
    :param args: its arguments
    :param use_reentrant: `True` chooses the reentrant variant, [see the
        table](#module); `None` means the default, as if the option were left out
    :param preserve_rng_state: draw [the same random numbers](rng.py) in both runs
    :param determinism_check: [how closely](determinism.py) both runs are compared:
        `"default"`, `"none"` or `"debug"`
    :param early_stop: whether the second run ends at the last tensor that a gradient
        needs
    :param policy: [which operations](selective.py#contexts) are not recomputed
    :param context_fn: gives a block for the forward pass and one for each
        recomputation, as `torch.utils.checkpoint.create_selective_checkpoint_contexts`
        does
    :param debug: a message about two runs that differ lists the operations of both
    :param kwargs: its keyword arguments; a keyword with the name of an option sets that
        option
    :returns: what the function returns
    :raises ValueError: if these options exclude each other

    This function works like `torch.utils.checkpoint.checkpoint`, but the non-reentrant
    variant is the default. All options of PyTorch's function exist here, with the same
    meaning, and [the blocks that set some of them](torch_settings.py) have their effect
    here, too. Inside [compiled code](traced.py) a call becomes a call of PyTorch's
    function.
    """
    options = Options(
        use_reentrant,
        preserve_rng_state,
        determinism_check,
        early_stop,
        policy,
        context_fn,
        debug,
    )
    return options.run(function, args, kwargs)


def checkpoint_module(model: M, units: Select | None = None, **options: Any) -> M:
    """Checkpoint each call of some modules.

    The classes, names and parameters of the modules stay, and so do the keys of the
    `state_dict`. The model can still be copied and pickled. If you want to undo the
    checkpoint of one module, set `module.forward = module.forward.__wrapped__`.

    A model can be checkpointed before or after it is [sharded](model.py#shard), with
    the same result. `shard` adds hooks around the call of a module, and this function
    replaces the `forward` inside the call. In stage 3 the number of gathers of a unit
    depends on what is checkpointed:

    | checkpointed | gathers in a step |
    |---|---|
    | nothing | two |
    | the units of `shard`, or modules inside them | two |
    | the call of several units | three; two for the last unit, unless reentrant |

    In the second row the second run finds the unit already gathered for its backward
    pass. In the third row the second run uses all units, and only then the backward
    pass of the first ones begins, so they are gathered once more. So pass the same
    `units` to both functions.

    :param model: any module
    :param units: which modules, [chosen as for](model.py#select) `shard`; `None` means
        the same as there, and a model without such units as a whole
    :param options: those of [`checkpoint`](#checkpoint)
    :returns: the same object
    :raises TypeError: if `units` is of a kind that chooses no modules, or an option is
        unknown
    :raises ValueError: if no module is chosen, one is checkpointed already, or the
        options exclude each other
    """
    chosen = Options(**options)
    root, *inner = select(model, units).items()
    modules = inner or ([] if units else [root])
    if not modules:
        raise ValueError(
            f"units={units!r} selects no module; name a class that the model contains"
        )
    refuse_checkpointed(modules)
    for name, module in modules:
        # An attribute of an object hides the method of the same name in its class.
        module.forward = Checkpointed(module, chosen, called(name))
    return model


@dataclass(frozen=True)
class Options:
    """The options of a checkpoint; the fields are the parameters of
    [`checkpoint`](#checkpoint).
    """

    use_reentrant: bool | None = False
    preserve_rng_state: bool = True
    determinism_check: str = "default"
    early_stop: bool = True
    policy: SavePolicy | Collection[Any] | None = None
    context_fn: Callable[[], Contexts] = noop_context_fn
    debug: bool = False

    @not_a_beginning
    def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Send a call to its variant, or to the compiler if one is recording."""
        if not torch.compiler.is_compiling():
            warn_if_compiling(function)
        # Both debug options need each operation while it runs, so the compiler cannot
        # record them.
        elif not self.debug and self.determinism_check != "debug":
            own = None if self.context_fn is noop_context_fn else self.context_fn
            return enters_graph(function, args, kwargs, self.policy, own)
        return self.call_variant(function, args, kwargs)

    @outside_compiler
    def call_variant(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run the function in its variant. Its keyword arguments may have the names of
        options.
        """
        if self.use_reentrant:
            return call_reentrant(function, args, kwargs, self.preserve_rng_state)
        blocks = None if self.context_fn is noop_context_fn else self.context_fn
        return call_saved(
            function,
            args,
            kwargs,
            self.preserve_rng_state,
            self.determinism_check,
            self.early_stop,
            blocks if self.policy is None else partial(contexts, self.policy),
            self.debug,
        )

    # sidelit: depth Options that exclude each other.

    def __post_init__(self) -> None:
        """Refuse wrong options now, since they would otherwise fail in the middle of a
        training step.
        """
        refuse_level(self.determinism_check)
        for name in NON_REENTRANT:
            value = getattr(self, name)
            if self.use_reentrant and value != getattr(Options, name):
                raise ValueError(
                    f"{name}={value!r} needs the tensors one by one, and a reentrant "
                    "checkpoint has only the whole; leave out use_reentrant=True"
                )
        if self.policy is not None and self.context_fn is not noop_context_fn:
            raise ValueError(
                "policy and context_fn both say what surrounds the two runs; give one"
            )
        if self.policy is not None and self.determinism_check == "debug":
            raise ValueError(
                'determinism_check="debug" compares what each operation gives, and a '
                "policy hands out what it gave before; leave out one of them"
            )


class Checkpointed:
    """The checkpointed `forward` of a module.

    This object refers weakly to the module. A strong reference would close a circle,
    and only the garbage collector would free the module. A shallow copy of the module,
    such as a replica of `nn.DataParallel`, shares this object, and still computes with
    its own weights.
    """

    def __init__(self, module: nn.Module, options: Options, name: str) -> None:
        self.options = options
        self.module = weakref.ref(module)
        # For [the labels of a trace](labels.py).
        self.checkpointed_as = name
        # Another library may have set a `forward` on this one object. `None` means the
        # method of the class.
        method = getattr(module.forward, "__self__", None) is module
        self.own = None if method and "forward" not in vars(module) else module.forward

    @not_a_beginning
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Find the module and run it. The module cannot be found while the compiler
        records, so the recording ends here and begins anew inside.
        """
        if torch.compiler.is_compiling():
            end_graph()
        method, call = self.begin()
        return call(self.options.run, method, args, kwargs)

    @not_recorded
    def begin(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The method to run, and the function that calls it."""
        method = self.method_of(self.caller())
        return method, compile_apart(method)

    # sidelit: depth Copies of the module, shallow or pickled, and calls of `forward` by itself.

    def caller(self) -> nn.Module | None:
        """The module that is being called, found by the frame of its call. A direct
        call of `forward` has no such frame, so it belongs to the original module.
        """
        innermost = next(modules_called(), None)
        if innermost is not None and vars(innermost).get("forward") is self:
            return innermost
        return self.module()

    def method_of(self, module: nn.Module | None) -> Callable[..., Any]:
        """The `forward` without the checkpoint."""
        if module is None:
            raise ReferenceError("the module of this checkpointed forward is gone")
        return (
            MethodType(type(module).forward, module) if self.own is None else self.own
        )

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The plain `forward`, where `inspect.signature` finds the parameters."""
        return self.method_of(self.module())

    def __getstate__(self) -> tuple[Any, ...]:
        """The state for a copy or a pickle. A weak reference cannot be pickled, so the
        copy makes a new one.
        """
        return self.options, self.module(), self.own, self.checkpointed_as

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.options, module, self.own, self.checkpointed_as = state
        self.module = weakref.ref(module)


# sidelit: depth Options of one variant only, compiled calls, and modules that are checkpointed already.


# The options that a reentrant checkpoint cannot have.
NON_REENTRANT = ("determinism_check", "early_stop", "policy", "context_fn", "debug")


BY_ITSELF = (
    "the forward of a checkpointed module begins a graph of its own; compile the module "
    "by itself, as in block.compile(), or call checkpoint(block, x) where one graph is "
    "to hold more than the block"
)


@partial(outside_compiler, reason=BY_ITSELF)
def end_graph() -> None:
    """End the graph that the compiler is recording. The compiler cannot record a call
    of this function.
    """


def refuse_checkpointed(modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Refuse to checkpoint a module twice, before any module is changed.

    :raises ValueError: naming the module
    """
    for name, module in modules:
        if isinstance(vars(module).get("forward"), Checkpointed):
            raise ValueError(
                f"{called(name)} is checkpointed already; checkpoint a module only once"
            )
