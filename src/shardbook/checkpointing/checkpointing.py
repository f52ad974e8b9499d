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
its result, so [the second run ends](segment.py#Collector) before it. That is
*early stop*. Between the forward pass and the backward pass autograd keeps only the
input:

>>> import torch
>>> from torch import nn
>>> from shardbook.checkpointing.budget import SavedBytes
>>> from shardbook.checkpointing.budget import FlopCounter
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
| [four equal segments](#module/checkpointing-a-chain-in-segments), the last kept | 2.37 MB | 4.21 MB | 0.75 |
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

In a chain of layers,
[`checkpoint_sequential`](#module/checkpointing-a-chain-in-segments) puts checkpoints
around segments of several layers. Its section derives how many segments give the lowest
peak if all layers are alike.

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

:notation $n$: `len(layers)`, the number of layers in the chain
:notation $k$: `segments`, the number of segments
:notation $b$: the bytes of a tensor between two layers
:notation $a$: the bytes that a layer saves
:notation $M$: the bytes that the chain holds at most
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
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
from shardbook.foundations.hook_context import modules_called
from shardbook.zero.model import Select, called, select

__all__ = [
    "Span",
    "checkpoint",
    "checkpoint_module",
    "checkpoint_sequential",
    "cut",
    "lengths",
    "run",
]

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
    :param preserve_rng_state: generate [the same random numbers](rng.py) in both runs
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
    meaning, and [the blocks that set some of
    them](determinism.py#module/the-blocks-of-pytorch-that) have their effect here, too.
    Inside [compiled code](traced.py) a call becomes a call of PyTorch's function.
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
    replaces the `forward` inside the call. In stage 3 [the number of gathers of a
    unit](unit.py#module/how-often-a-unit-is) depends on what is checkpointed. If it is
    each unit, or modules inside of it, the second run finds the unit already gathered
    for its backward pass. If a checkpoint contains the calls of several units, the
    second run uses all of them, and only then the backward pass of the first ones
    begins, so they are gathered once more. So pass the same `units` to both functions.

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
        # For [the labels of a trace](hook_context.py#module/labels-for-a-profiler).
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


# sidelit: core


# ## Checkpointing a chain in segments
#
# > With about √n segments, the memory of a chain of n layers grows as √n, for one more forward pass.
#
# A checkpoint around a function keeps the function's input and drops the rest. Where in a
# chain of $n$ layers should you put checkpoints? One checkpoint around the whole chain
# does not lower the peak: the backward pass begins with a recomputation of the chain, and
# then the activations of all layers exist at once. With a checkpoint around each single
# layer the recomputed part is as small as possible, but $n$ inputs are kept. Between
# these extremes, the chain is cut into $k$ *segments* of several layers:
#
# ```python
# y = checkpoint_sequential(model, segments=4, input=x)
# ```
#
# **How many segments?** Suppose that each layer saves one tensor of $b$ bytes, and that
# the tensors between the layers have $b$ bytes, too. After the forward pass the inputs of
# the segments are in memory, $k\,b$ bytes. The backward pass adds one segment at a time,
# $(n/k)\,b$ bytes for each. Together these are
#
# $$M(k) = \Bigl(k + \frac{n}{k}\Bigr)\, b \;\ge\; 2\sqrt n\; b$$
#
# The mean of two positive numbers is at least the root of their product. Mean and root
# are equal where $k = n/k$. So the best number of segments is $k = \sqrt n$. For example,
# a chain of 10,000 layers in 100 segments needs the memory of 200 layers, for one more
# forward pass. For a residual network of 1,000 layers [Chen et al.](bib:chen2016training)
# report 7 GB instead of 48 GB, and 30% more time.
#
# **The experiment.** A linear layer and a tanh save one tensor: the tanh saves its
# output, and the next layer's input is that same tensor. Sixteen such layers and the
# input of the first one make 17 tensors. The last segment is not checkpointed, since the
# backward pass begins with it. So after the forward pass the chain holds exactly what the
# formula adds up: $k$ inputs and one whole segment. The lines show the number of segments
# and of saved tensors:
#
# >>> import torch
# >>> from torch import nn
# >>> from shardbook.checkpointing.budget import SavedBytes
# >>> layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(16)]
# >>> x = torch.zeros(4, 8)
# >>> for segments in (1, 2, 4, 8, 16):
# ...     known = nn.ModuleList(layers).parameters()
# ...     with SavedBytes(known) as saved:
# ...         y = checkpoint_sequential(layers, segments, x)
# ...     print(segments, saved.bytes // x.nbytes)
# 1 17
# 2 10
# 4 8
# 8 10
# 16 17
#
# With $\sqrt{16} = 4$ segments the chain holds 8 tensors, four inputs and the four of the
# last segment, as the formula says.
#
# **Where the rule fails.** The rule assumes that a layer saves as many bytes as it reads.
# A block of [the GPT](gpt.py) saves about 16 times that. Let a layer save $a$ bytes. Then
# $M(k) = k\,b + (n/k)\,a$ is smallest at $k = \sqrt{n\,a/b}$. With $a = 16\,b$ that is
# $4\sqrt n$, and for $n \le 16$ that is $n$ or more: each block becomes a segment of its
# own. For layers that differ from each other there is no formula, but [the cheapest
# plan](budget.py) for a budget can be computed.
#
# :figure: sqrt_n_pareto


# sidelit: hide
Function = Callable[[Any], Any]
# sidelit: show


def checkpoint_sequential(
    functions: Iterable[Function],
    segments: int,
    input: Any,
    *,
    last: bool = False,
    balanced: bool = False,
    **options: Any,
) -> Any:
    r"""Run a chain of layers, and checkpoint its segments.

    The result and the gradients equal those of
    `torch.utils.checkpoint.checkpoint_sequential`, and those of the chain without
    checkpoints.

    **The last segment** is not checkpointed, unless `last` asks for it. The backward
    pass begins with it, so its activations would be recomputed at once. With `last` a
    step runs the last segment's forward pass twice, and the peak of the backward pass
    does not change. Only the memory between the forward pass and the backward pass is
    lower. That helps if an operation after the chain needs much memory, such as [a
    large loss](chunked_loss.py). In the chain of the experiment, with four segments:

    >>> import torch
    >>> from torch import nn
    >>> from shardbook.checkpointing.budget import SavedBytes
    >>> from shardbook.checkpointing.budget import FlopCounter
    >>> layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(16)]
    >>> x, forward = torch.zeros(4, 8, requires_grad=True), 16 * 2 * 4 * 8 * 8
    >>> for last in (False, True):
    ...     known = nn.ModuleList(layers).parameters()
    ...     with FlopCounter() as flops, SavedBytes(known) as saved:
    ...         y = checkpoint_sequential(layers, 4, x, last=last)
    ...         kept = saved.bytes // x.nbytes
    ...         y.sum().backward()
    ...     print(kept, flops.get_total_flops() / forward)
    8 3.75
    4 4.0

    A training step of a linear layer computes three matrix products of the same size:
    one in the forward pass, two in the backward pass. Four segments of sixteen layers
    add 0.75 of a forward pass, and with `last` they add a whole one.

    **Layers that do not divide evenly.** As in PyTorch, all segments but the last have
    $\lfloor n/k \rfloor$ layers, and the last one has the rest. Yet the last segment is
    the one that keeps all tensors of its layers. With `balanced`, [lengths](#lengths)
    differ by at most one.

    :param functions: an `nn.Sequential`, or an iterable of modules and functions; each
        takes what the one before it returns
    :param segments: the number of segments, from 1 to the length of the chain
    :param input: the argument of the first function; a tuple is passed as one value
    :param last: whether the last segment is checkpointed, too
    :param balanced: whether the segments are as equal as they can be
    :param options: those of [`checkpoint`](checkpointing.py#checkpoint)
    :raises ValueError: if `segments` is not a number from 1 to the length of the chain
    """
    # A module that appears twice in the chain runs twice. `children()` would list it
    # once, and the chain would compute something else.
    layers = list(functions)
    plan = cut(len(layers), segments, last=last, balanced=balanced)
    return run(layers, plan, input, **options)


def cut(
    layers: int, segments: int, *, last: bool = False, balanced: bool = False
) -> list[Span]:
    """Cut a chain into segments, by the parameters of
    [`checkpoint_sequential`](#checkpoint_sequential).
    """
    plan, start = [], 0
    for length in lengths(layers, segments, balanced=balanced):
        stop = start + length
        plan.append(Span(start, stop, recompute=last or stop < layers))
        start = stop
    return plan


def lengths(layers: int, segments: int, *, balanced: bool = False) -> list[int]:
    """Compute the number of layers in each segment.

    >>> lengths(15, 8)
    [1, 1, 1, 1, 1, 1, 1, 8]
    >>> lengths(15, 8, balanced=True)
    [2, 2, 2, 2, 2, 2, 2, 1]

    The first cut leaves eight layers to the last segment, which is not checkpointed.
    With the layers of the experiment it keeps 16 tensors, as many as without
    checkpoints. In the balanced cut no segment is longer than necessary, and the
    shorter ones come last. This cut keeps 9 tensors.

    :raises ValueError: if `segments` is not a number from 1 to `layers`
    """
    whole = isinstance(segments, int) and not isinstance(segments, bool)
    if not whole or not 1 <= segments <= layers:
        raise ValueError(
            f"segments is {segments!r}, but a chain of {layers} layers can be cut into 1 "
            f"to {layers} segments"
        )
    each, rest = divmod(layers, segments)
    if balanced:
        return [each + 1] * rest + [each] * (segments - rest)
    return [each] * (segments - 1) + [each + rest]


@dataclass(frozen=True, slots=True)
class Span:
    """The layers from `start` to just before `stop`.

    :param recompute: whether to checkpoint them
    """

    start: int
    stop: int
    recompute: bool


def run(
    functions: Iterable[Function],
    segments: Iterable[Span],
    input: Any,
    **options: Any,
) -> Any:
    """Run a chain by the segments of [an equal cut](#cut) or of [a
    plan](budget.py#module/the-memory-and-the-cost).

    :param options: those of [`checkpoint`](checkpointing.py#checkpoint)
    :raises TypeError: if an option is unknown, even if no segment is checkpointed
    :raises ValueError: if the options do not go together
    """
    # `checkpoint` passes an unknown keyword on to the function, so wrong options are
    # refused here.
    Options(**options)
    layers, value = list(functions), input
    for segment in segments:
        part = partial(through, layers[segment.start : segment.stop])
        value = checkpoint(part, value, **options) if segment.recompute else part(value)
    return value


def through(layers: Sequence[Function], value: Any) -> Any:
    """Run layers one after the other, as one function that a checkpoint can repeat."""
    for layer in layers:
        value = layer(value)
    return value
