r"""# Autocast

> Inside `autocast`, matrix products run in 16 bits and sensitive operations in FP32;
> the model's code stays as it is.

[Sixteen bits](formats.py) are enough for matrix products, but a sum of exponentials
needs [more digits](rounding.py). If you wrote the casts for both by hand, the model
would be full of them. So `autocast` casts the inputs of each operation at its call:

```python
from shardbook.precision.autocast import autocast

with autocast("cpu", torch.bfloat16):
    logits = model(tokens)
    loss = loss_fn(logits, targets)
loss.backward()
```

The parameters stay in FP32. If an operation has [a
rule](autocast.py#module/the-rules-of-autocast), its inputs are cast, and its result
keeps the resulting dtype. So the 16-bit result of one matrix product goes into the next
product without another cast.

The casts are made in [a function mode](#module/casting-inputs-in-a-function), which
gets each call of a PyTorch function before autograd does. [The context
manager](#module/the-context-manager) sets the device type and the dtype for one thread,
and turns the mode on.

**The gradients come back in FP32.** A cast is an operation like any other, so autograd
records it. The cast's backward pass casts the gradient back to the dtype of its input.
So the gradient of a parameter is FP32, although each of its contributions has only the
digits of 16 bits.

**Why the backward pass is outside the context.** An operation of the backward pass
reads the tensors that its forward operation saved, and receives a gradient in the dtype
of that operation's result. So it runs in the dtype of the forward pass, without any
context. Inside `torch.autocast` a backward pass would go wrong. That context casts the
operations of the backward pass as well, so the gradients of an operation that an inner
context had kept in FP32 would be computed in 16 bits. The context of this chapter
intercepts only operations that are called from Python, and autograd calls its own from
C++.

**What autocast costs.** The context keeps the casts of the parameters until the
outermost context ends, and autograd keeps them until the backward pass. So a layer's
parameters also exist in 16 bits, and as a whole: [stage 3](unit.py#module/stage-3) splits the
parameters, but not these copies. [A policy](policy.py) needs no copies, because it
gathers the parameters in 16 bits, which are also half the bytes.

**Compared with `torch.autocast`.** The results are the same. Our tests compare results
and gradients of whole models, and of every operation in PyTorch's list for CPUs. But
`torch.autocast` acts one level deeper, in the dispatcher of PyTorch, so it also casts
for operations that other operations call in C++.

**Both contexts can be nested in each other**, and the innermost one decides, because
both set the same state of the thread. So in a model that runs a part under
`torch.autocast(device_type, enabled=False)` that part runs in FP32.
`torch.is_autocast_enabled` returns the right value, and everything that reads this
state works: `torch.amp.custom_fwd`, `torch.utils.checkpoint` in both variants, and
`nn.DataParallel`, which passes the state on to the threads of its replicas. In these
threads, and in a recomputation of `torch.utils.checkpoint`, `torch.autocast` does the
casting.

Some differences follow from the level, and [the
rules](autocast.py#module/the-rules-of-autocast) list them. In three points this context
differs on purpose:

- A parameter is cast again after an optimizer or the program has changed it in place,
  so a context may last for many steps. Two changes go undetected: a write to
  `parameter.data`, which PyTorch does not count, and a write by the program where
  PyTorch itself casts the parameter, inside a C++ function such as `tensordot`.
- One parameter can be used in nested contexts of two dtypes.
- Operations of a backward pass that starts inside the context are not cast.

And for a dtype that autocast cannot use, `torch.autocast` warns and casts nothing,
while this context raises an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

from shardbook.foundations.torch_private import (
    NEWER_IN_FP32,
    SOME_DECOMPOSITIONS,
    base_of,
    tree_leaves,
    tree_map_only,
)
from shardbook.zero.flat import version_of

__all__ = [
    "FP32_FUNCTIONS",
    "RULES",
    "Casting",
    "Rule",
    "Rules",
    "Setting",
    "autocast",
    "current",
    "restored",
    "setting_of",
]


# ## Casting inputs in a function mode
#
# > A function mode gets every call of a PyTorch function before autograd does, and casts the inputs.
#
# [Autocast](autocast.py) has to act between the model and autograd. If it acted after
# autograd, the operation would be recorded with its old inputs, and its backward pass
# would meet other dtypes. If it acted before the model, the model's code would have to
# change.
#
# PyTorch offers this place. While a `TorchFunctionMode` is on, each PyTorch function that
# is called from Python first hands the call to the mode: the function and its arguments.
# The mode decides whether the function runs, and with which arguments. `Casting` casts
# the arguments by [the rules](autocast.py#module/the-rules-of-autocast), and then runs the function.
#
# PyTorch keeps a state for each thread and each type of device: whether to cast, and to
# which dtype. The mode reads this state instead of keeping its own. While a function with
# a rule runs, the state is off, so that `torch.autocast` does not cast the inputs once
# more. A function without a rule runs with the state on. If such a function is written in
# C++ and calls matrix products, as `tensordot` and a GRU do, `torch.autocast` casts their
# inputs.


# sidelit: hide
Inputs = tuple[tuple[Any, ...], dict[str, Any]]
# sidelit: show


class Casting(TorchFunctionMode):
    """The function mode that PyTorch calls for each of its functions, before autograd
    records the call.

    So autograd records the casts that are made here. While the mode handles one call,
    PyTorch gives it no others.
    """

    def __init__(self) -> None:
        super().__init__()
        # Whether a context of this book is open around the code that runs now.
        self.on = False
        self.kept: dict[tuple[int, torch.dtype], tuple[Tensor, int, Tensor]] = {}
        # The number of optimizer steps at which the casts in `kept` were made.
        self.steps = 0
        count_steps()
        self.opened: list[Callable[..., Any]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        inputs: Inputs = (args, kwargs or {})
        if not self.on:
            return func(*inputs[0], **inputs[1])
        self.forget_after_a_step()
        # Contexts for two types of device may be open, and one operation may get
        # tensors of both. Each rule casts the tensors of its own device.
        enabled = [name for name in RULES if torch.is_autocast_enabled(name)]
        rules = {
            device_type: rule
            for device_type in enabled
            if (rule := RULES[device_type].of(func.__name__))
        }
        # A caller that passes `out`, the memory for the result, has chosen the dtype.
        if inputs[1].get("out") is None:
            for device_type, rule in rules.items():
                inputs = self.apply(rule, device_type, func.__name__, inputs)
        if rules:
            with switched_off(enabled):
                return func(*inputs[0], **inputs[1])
        if not isinstance(func, FunctionType) or func in self.opened:
            return func(*inputs[0], **inputs[1])
        # No operation of a backward pass is cast anew, neither here nor by PyTorch.
        with switched_off(enabled if func in BACKWARD else []):
            return self.look_into(func, inputs)

    def look_into(self, func: FunctionType, inputs: Inputs) -> Any:
        """Run a function that is written in Python and has no rule, and handle the
        calls inside it.

        Such a function calls other functions, and these may have rules. So the mode is
        entered again while the function runs. A few functions begin by handing
        themselves to the mode once more; in this second call they run unchanged.
        """
        self.opened.append(func)
        try:
            with self:
                return unasked(func)(*inputs[0], **inputs[1])
        finally:
            self.opened.pop()

    def apply(self, rule: Rule, device_type: str, name: str, inputs: Inputs) -> Inputs:
        """Return the inputs of an operation, cast by a rule."""
        setting, leaves = setting_of(device_type), tree_leaves(inputs)
        tensors = [leaf for leaf in leaves if eligible(leaf, device_type)]
        if not tensors:
            return inputs
        match rule:
            case Rule.LOW:
                dtype = setting.dtype
            case Rule.FP32:
                dtype = torch.float32
            case Rule.PROMOTE:
                dtype = setting.dtype
                for tensor in tensors:
                    dtype = torch.promote_types(dtype, tensor.dtype)
            case Rule.RESULT:
                # If the caller asks for a dtype, that dtype stays.
                if leaves[0] is not tensors[0] or any(
                    isinstance(leaf, torch.dtype) for leaf in leaves
                ):
                    return inputs
                return inputs[0], {**inputs[1], "dtype": torch.float32}
            case Rule.REFUSE:
                raise RuntimeError(
                    f"{name} is not safe in 16 bits; "
                    f"use {name}_with_logits and leave out the sigmoid before it"
                )

        def cast(value: Tensor) -> Tensor:
            if not eligible(value, device_type) or value.dtype == dtype:
                return value
            return self.cast(value, dtype, setting)

        found: Inputs = tree_map_only(Tensor, cast, inputs)
        return found

    def cast(self, value: Tensor, dtype: torch.dtype, setting: Setting) -> Tensor:
        """Cast a parameter in FP32 once, however often it is used, and any other tensor
        at each use.

        One cast for all uses saves time, and it also changes digits: the gradients of
        all uses meet at the cast, and are added in 16 bits. Under `no_grad` no cast is
        kept, because a cast that autograd did not record would cut the next use off
        from the parameter.
        """
        if not (
            setting.cache_enabled
            and dtype == setting.dtype
            and value.dtype == torch.float32
            and value.requires_grad
            and value.is_leaf
            # A view changes with its base, so its cast is not kept.
            and base_of(value) is None
            and torch.is_grad_enabled()
        ):
            return value.to(dtype)
        # The tensor is kept together with its cast. Otherwise it could be freed, and
        # another tensor could get its `id`. The version shows whether the tensor was
        # written to since.
        kept, version = self.kept.get((id(value), dtype)), version_of(value)
        if kept is None or kept[1] != version:
            kept = self.kept[id(value), dtype] = (value, version, value.to(dtype))
        return kept[2]

    # sidelit: depth Fused optimizers, whose writes to parameters PyTorch does not count.

    def forget_after_a_step(self) -> None:
        """Drop all kept casts, PyTorch's included, after a step of any optimizer.

        A fused optimizer writes to parameters without raising their versions. So after
        a step no parameter counts as unchanged.
        """
        if self.steps != steps.count:
            self.steps = steps.count
            self.kept.clear()
            torch.clear_autocast_cache()


@dataclass(frozen=True, slots=True)
class Setting:
    """The setting of the innermost context for one type of device."""

    enabled: bool
    dtype: torch.dtype
    cache_enabled: bool


def setting_of(device_type: str) -> Setting:
    """Read PyTorch's state of this thread for one type of device."""
    return Setting(
        torch.is_autocast_enabled(device_type),
        torch.get_autocast_dtype(device_type),
        torch.is_autocast_cache_enabled(),
    )


@contextmanager
def switched_off(device_types: Iterable[str]) -> Iterator[None]:
    """A block in which PyTorch casts nothing for these types of device."""
    for device_type in device_types:
        torch.set_autocast_enabled(device_type, False)
    try:
        yield
    finally:
        for device_type in device_types:
            torch.set_autocast_enabled(device_type, True)


def eligible(value: object, device_type: str) -> bool:
    """Whether a value is cast at all: only a floating-point tensor of the device, and
    not FP64, which is a deliberate choice.
    """
    return (
        isinstance(value, Tensor)
        and value.device.type == device_type
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


# The functions that start a backward pass.
BACKWARD = (Tensor.backward, torch.autograd.backward, torch.autograd.grad)


# sidelit: depth Functions that would call the mode without end, and the count of optimizer steps.


def unasked(func: FunctionType) -> FunctionType:
    """Copy a function without its check for a function mode.

    PyTorch's functions in Python begin with this check. If the mode is off while it
    runs such a function, the calls inside never reach the mode. If the mode is on, the
    function itself comes back to the mode, forever. The copy solves this: only the
    calls inside reach the mode.
    """
    asking = [name for name in func.__code__.co_names if name.startswith("has_torch_")]
    never = dict.fromkeys(asking, lambda *_: False)
    copy = FunctionType(
        func.__code__,
        {**func.__globals__, **never},
        func.__name__,
        func.__defaults__,
        func.__closure__,
    )
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


class Steps:
    """The number of optimizer steps in this process, in all threads."""

    count = 0

    def __call__(self, *_: Any) -> None:
        self.count += 1


steps = Steps()


@cache
def count_steps() -> None:
    """Count each step of each optimizer from now on."""
    register_optimizer_step_post_hook(steps)


# sidelit: core


# ## The context manager


class autocast(ContextDecorator):
    """A context in which each operation runs in the dtype that suits it.

    The context can also decorate a function. Contexts can be nested, and the innermost
    one decides for its type of device. One object can be entered many times.

    A context applies only to the thread that entered it. A thread that is started
    inside the context runs without it, so a function for such a thread has to enter the
    context itself. The easiest way is to decorate the function.

    :param device_type: the type of device whose tensors are cast, `"cpu"` or `"cuda"`
    :param dtype: `torch.bfloat16` or `torch.float16`; by default, as in PyTorch, BF16
        on a CPU and FP16 on a GPU
    :param enabled: with `False` every operation runs in the dtype of its inputs
    :param cache_enabled: whether a parameter that was cast once is kept in its new
        dtype
    :raises ValueError: if there are no rules for this type of device, or the context is
        enabled and the dtype does not have 16 bits
    """

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        *,
        enabled: bool = True,
        cache_enabled: bool = True,
    ) -> None:
        refuse_device(device_type)
        dtype = dtype or RULES[device_type].dtype
        if enabled:
            refuse_wide(dtype)
        self.device_type = device_type
        self.setting = Setting(enabled, dtype, cache_enabled)

    def __enter__(self) -> autocast:
        thread.enter({self.device_type: self.setting})
        # PyTorch counts the blocks that surround one of its own, and clears its casts
        # after the outermost block.
        torch.autocast_increment_nesting()
        return self

    def __exit__(self, *exception: object) -> None:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        thread.leave()


class Thread(threading.local):
    """The contexts that one thread has entered.

    All contexts share one function mode. If each had its own mode, the outer mode would
    get the calls that the inner one left unchanged, and cast their inputs.
    """

    def __init__(self) -> None:
        self.casting = Casting()
        self.surrounding: list[tuple[bool, dict[str, Setting]]] = []

    def enter(self, settings: dict[str, Setting], on: bool = True) -> None:
        if not self.surrounding:
            self.casting.__enter__()
        self.surrounding.append((self.casting.on, present()))
        self.casting.on = on
        put_in_force(settings)

    def leave(self) -> None:
        """Leave a context; after the outermost one, drop the mode and the casts.

        Otherwise the memory of the casts would stay until the thread ends.
        """
        self.casting.on, before = self.surrounding.pop()
        put_in_force(before)
        if not self.surrounding:
            self.casting.__exit__(None, None, None)
            self.casting.kept.clear()


def put_in_force(settings: dict[str, Setting]) -> None:
    """Set PyTorch's state. PyTorch has a single switch for keeping casts, for all types
    of device.
    """
    for device_type, setting in settings.items():
        torch.set_autocast_enabled(device_type, setting.enabled)
        torch.set_autocast_dtype(device_type, setting.dtype)
        torch.set_autocast_cache_enabled(setting.cache_enabled)


def present() -> dict[str, Setting]:
    """Read PyTorch's state for each type of device that has rules."""
    return {device_type: setting_of(device_type) for device_type in RULES}


thread = Thread()


# sidelit: depth Recomputations under the same settings, and settings that autocast cannot have.


def current() -> dict[str, Setting]:
    """Return this thread's setting for each type of device; empty outside all contexts.

    [Checkpointing](segment.py#module/restoring-autocast) captures these settings with the forward pass,
    and [restores](#restored) them for the recomputation.
    """
    return present() if thread.casting.on else {}


@contextmanager
def restored(settings: dict[str, Setting]) -> Iterator[None]:
    """A block with these settings, whatever the settings around the block are.

    :param settings: the result of `current`; if it is empty, nothing is cast
    """
    nothing = {name: replace(now, enabled=False) for name, now in present().items()}
    thread.enter(settings or nothing, on=bool(settings))
    try:
        yield
    finally:
        thread.leave()


def refuse_device(device_type: str) -> None:
    """Refuse a type of device that has no rules.

    :raises ValueError: naming the types that have rules
    """
    if device_type not in RULES:
        raise ValueError(
            f"there are no rules for device type {device_type!r}; "
            f"choose one of {', '.join(RULES)}"
        )


def refuse_wide(dtype: torch.dtype) -> None:
    """Refuse a dtype that does not have 16 bits.

    :raises ValueError: naming the two dtypes of 16 bits
    """
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"autocast cannot run in {dtype}; "
            "choose torch.bfloat16 or torch.float16, or enabled=False"
        )


# sidelit: core


# ## The rules of autocast
#
# > Matrix products run in 16 bits, operations that rounding would harm run in FP32, and
# > all others run as called.
#
# [Autocast](autocast.py) chooses a rule by the name of an operation. Matrix products gain
# most from 16 bits: processors have special units for them, and these units [add up in
# FP32](rounding.py). (On a GPU, PyTorch by default allows some products to add partial
# sums in 16 bits; the switches are in `torch.backends.cuda.matmul`.) An exponential turns
# an error of its input into a relative error of its result, and it overflows FP16 above
# 11.09. A sum of many elements needs more digits than each of them has. So there are five
# rules, and an operation without a rule runs in the dtypes of its inputs:
#
# | rule | its inputs are | for example |
# |---|---|---|
# | `LOW` | cast to 16 bits | `linear`, `conv2d`, `matmul`, attention |
# | `FP32` | cast to FP32 | the losses; on a GPU `exp` and `pow`, too |
# | `RESULT` | not cast; the call asks for a result in FP32 | on a GPU `softmax` and `sum` |
# | `PROMOTE` | cast to the narrowest dtype that holds their dtypes and the context's | `cat` |
# | `REFUSE` | refused | `binary_cross_entropy` on a GPU |
# | none | not cast | `add`, `relu`, views |
#
# The rules are data, and they differ between devices. The two tables below follow
# [`torch.autocast`](https://docs.pytorch.org/docs/stable/amp.html), operation by
# operation. On a GPU nearly every sensitive operation runs in FP32. On a CPU softmax and
# the norms have no rule, because their kernels compute in FP32 internally, and only the
# result is rounded. On a CPU the FP32 rule also covers operations without a BF16 kernel,
# such as the matrix decompositions.
#
# Our tests compare each operation of the table for CPUs with `torch.autocast`: dtypes,
# results and gradients, bit by bit, but for the last bits of matrix decompositions. For
# GPUs the tests compare the dtypes of the results, on tensors without data that claim to
# lie on a GPU. The values were not compared on a GPU.
#
# Some C++ functions call matrix products out of reach of [a function
# mode](autocast.py#module/casting-inputs-in-a-function): `inner`, `tensordot`, `cov`,
# `matrix_power`, and on a CPU recurrent layers. These functions have no rule here, and
# `torch.autocast` casts their products.
#
# In an evaluation on a CPU, PyTorch runs an `nn.TransformerEncoderLayer` as one C++
# function, and `torch.autocast` casts all inputs of that function. While a function mode
# is on, PyTorch runs the layer's operations one by one instead. So here an evaluation
# gives the same result as the forward pass in training.


class Rule(Enum):
    """How the inputs of an operation are cast."""

    LOW = auto()
    FP32 = auto()
    RESULT = auto()
    PROMOTE = auto()
    REFUSE = auto()


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one type of device.

    :param dtype: the dtype for `Rule.LOW`, unless the user chooses another
    :param table: the rule of each operation that has one, by its name in ATen
    """

    dtype: torch.dtype
    table: dict[str, Rule]

    def of(self, name: str) -> Rule | None:
        """The rule for a function of Python with this name.

        Most functions have the name of their operation; some names are synonyms.
        """
        return self.table.get(SYNONYMS.get(name, name))


def words(text: str) -> frozenset[str]:
    """Split a text into a set of names."""
    return frozenset(text.split())


# Operations that run in 16 bits on every device: products, convolutions, attention,
# which is two products, and `prelu`, which PyTorch lists with them.
PRODUCTS = words("""
    addbmm addmm baddbmm bmm linalg_vecdot linear matmul mm prelu
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    _convolution scaled_dot_product_attention
""")

# Functions that are steep at some inputs, where a small error of the input becomes a
# large error of the result.
FUNCTIONS = words("""
    acos asin cosh erfinv exp expm1 log log10 log1p log2 pow reciprocal rsqrt sinh
    softplus tan
""")

# Sums of squares. In FP16, the square of 256 is infinite.
NORMS = words("""
    frobenius_norm group_norm layer_norm linalg_matrix_norm linalg_vector_norm
    native_layer_norm norm nuclear_norm renorm
""")

# Sums of exponentials.
SOFTMAX = words("log_softmax logsumexp softmax")

# Losses: means over all positions, from whose results all gradients start.
LOSSES = words("""
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss
    cross_entropy_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss
    multi_margin_loss multilabel_margin_loss nll_loss nll_loss2d poisson_nll_loss
    smooth_l1_loss soft_margin_loss triplet_margin_loss
""")

# Sums and products over many elements.
SUMS = words("cumprod cumsum prod sum")

# Distances and angles between vectors: sums of products, or of squared differences.
DISTANCES = words("cdist cosine_similarity dist pdist")

# All operations that are sensitive to rounding. The table for CUDA casts their inputs;
# a CPU's kernels mostly need no cast.
FP32_FUNCTIONS = FUNCTIONS | NORMS | NEWER_IN_FP32 | SOFTMAX | LOSSES | SUMS | DISTANCES


# sidelit: depth Operations that a language model rarely calls, and synonyms.

# These functions are in no list of PyTorch, which casts the operations inside them one
# by one, in C++. Here the inputs of the whole function are cast.
COMPOSED = words("chain_matmul einsum linalg_multi_dot")
COMPOSED_FP32 = words("""
    cumulative_trapezoid pairwise_distance square trapezoid trapz
""")

# Operations on images, spectra and matrices as a whole.
UPSAMPLING = words("""
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d upsample_trilinear3d
    _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d
""")

DECOMPOSITIONS = words("""
    cholesky_inverse cholesky_solve geqrf inverse linalg_cholesky
    linalg_cholesky_ex linalg_cond linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh
    linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq linalg_matrix_rank
    linalg_qr linalg_solve linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve
    lu_solve _lu_with_info orgqr ormqr pinverse svd triangular_solve
""").union(SOME_DECOMPOSITIONS)

TRANSFORMS = words("""
    fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft
    fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn polar stft view_as_complex
""")

POOLING = words("""
    adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d fractional_max_pool2d
    fractional_max_pool3d max_pool3d max_unpool2d max_unpool3d reflection_pad1d
    reflection_pad2d replication_pad1d replication_pad2d replication_pad3d
""")

# Other names of the same operations, as other libraries call them.
SYNONYMS = {
    "arccos": "acos",
    "arcsin": "asin",
    "linalg_matmul": "matmul",
    "linalg_norm": "linalg_vector_norm",
    "special_erfinv": "erfinv",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
    "special_log_softmax": "log_softmax",
    "special_logsumexp": "logsumexp",
    "special_softmax": "softmax",
}


# sidelit: core


def table(**names: Iterable[str]) -> dict[str, Rule]:
    """Turn lists of operations, one for each rule, into a table from operation to rule."""
    return {name: Rule[rule] for rule, listed in names.items() for name in listed}


CPU = table(
    LOW=PRODUCTS
    | COMPOSED
    | words("_addmm_activation mkldnn_rnn_layer _native_multi_head_attention"),
    FP32=LOSSES
    | DECOMPOSITIONS
    | TRANSFORMS
    | POOLING
    | words("""
        cdist ctc_loss fake_quantize_per_tensor_affine grid_sampler
        grid_sampler_2d _grid_sampler_2d_cpu_fallback grid_sampler_3d
        multilabel_margin_loss_forward nanquantile prod quantile trace
    """),
    PROMOTE=words("cat index_copy stack"),
)

ASKED = SUMS | words("log_softmax softmax linalg_matrix_norm linalg_vector_norm norm")

CUDA = table(
    LOW=PRODUCTS
    | words("""
        addmv addr chain_matmul convolution cudnn_convolution
        cudnn_convolution_transpose einsum gru_cell linalg_multi_dot lstm_cell mv
        rnn_relu_cell rnn_tanh_cell _scaled_dot_product_flash_attention
        _thnn_fused_gru_cell _thnn_fused_lstm_cell
    """),
    FP32=(FP32_FUNCTIONS | UPSAMPLING | COMPOSED_FP32)
    - ASKED
    - {"binary_cross_entropy"},
    RESULT=ASKED,
    PROMOTE=words("""
        addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add
        tensordot vdot
    """),
    # The gradient of this loss is the inverse of a probability, up to $10^{12}$ where
    # 16 bits have rounded the probability to 0. FP16 cannot hold such a number. PyTorch
    # limits the loss, but not its gradient.
    REFUSE=words("binary_cross_entropy"),
)

RULES = {"cpu": Rules(torch.bfloat16, CPU), "cuda": Rules(torch.float16, CUDA)}
