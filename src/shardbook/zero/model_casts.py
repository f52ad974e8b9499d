r"""# What goes in and out

> A model in 16 bits is called with what an FP32 model is called with.

The units of a model in 16 bits compute with [16-bit copies](masters.py) of their
parameters. The program around the model has not changed: it brings FP32 inputs, and
they are cast. What the model returns has 16 bits unless the policy names an
`output_dtype`. A loss that is computed outside of the model needs
`output_dtype=torch.float32`, since the rule for [losses](norms.py) ends with the
forward pass. This chapter casts what crosses the model's boundary, and the buffers,
which stand inside and are no parameters.

| what | becomes | unless |
|---|---|---|
| floating-point inputs of the model, also nested ones | `param_dtype` | `cast_inputs=False` |
| floating-point outputs of the model | `output_dtype` | that is `None`, the default |
| floating-point buffers | `buffer_dtype` | that is `None`, the default, or they stand in a norm |
| functions that compute norms and losses | [FP32](norms.py) | no `param_dtype`, or empty tables |

A cast can change an input that carries more than 16 bits. In BF16 the number 1001
becomes 1000, so positions, times or indices that come as floating-point numbers arrive
rounded. Pass whole numbers, which are never cast, or set `cast_inputs=False` and cast
in `forward`.

Only calls of the model itself are cast. A part that is called alone takes what it is
given. Tensors are found in lists, dictionaries and dataclasses, nested as you like. [A
container with a tensor that is cast](hook_context.py#map_tensors) reaches the model as
a copy: what the model puts into it does not reach the caller.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from shardbook.foundations.hook_context import in_backward, map_tensors, not_compiled
from shardbook.foundations.nesting import calls_under_way
from shardbook.parameters.norms import InFP32, compute_in_fp32
from shardbook.parameters.policy import Policy
from shardbook.zero.conductor import conductor_of

__all__ = ["before_casting", "enforce"]
# sidelit: show


def enforce(policy: Policy, model: nn.Module) -> None:
    """Let a sharded model follow those parts of a policy that are not about parameters."""
    if policy.param_dtype is not None:
        rule = InFP32(policy.fp32_norms, policy.fp32_losses)
        drivers = conductor_of(model).drivers.values()
        parts = [part for driver in drivers for part in driver.parts]
        called = {model, *parts}
        for module in model.modules():
            if module in called:
                put_in_force(rule, module)
            else:
                put_in_force_again(rule, module)
        start_afresh(rule, model)
        for module in model.modules():
            if isinstance(module, policy.fp32_modules):
                compute_in_fp32(module)
        if policy.cast_inputs:
            cast_inputs(model, policy.param_dtype)
    if policy.output_dtype is not None:
        cast_outputs(model, policy.output_dtype)
    if policy.buffer_dtype is not None:
        cast_buffers(model, policy.buffer_dtype, policy.fp32_modules)


def put_in_force(rule: InFP32, module: nn.Module) -> None:
    """Let a rule be in force during each forward pass of a module.

    A unit that is computed again in the backward pass, for activation checkpointing, is
    called again, and so has the rule again.
    """
    module.register_forward_pre_hook(not_compiled(rule.enter), prepend=True)
    # After an exception, too.
    module.register_forward_hook(not_compiled(rule.leave), always_call=True)


def cast_inputs(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast what the model is called with.

    Autograd records the cast, so gradients reach the inputs in their own dtype.
    """
    units = tuple(conductor_of(model).drivers)

    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        # [In full precision](full_precision.py) nothing is narrow.
        if any(unit.precise for unit in units):
            return None
        return map_tensors(partial(cast, dtype), (args, kwargs))

    model.register_forward_pre_hook(not_compiled(before), with_kwargs=True)


def cast_outputs(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast what the model returns."""

    def after(_: nn.Module, args: Any, result: Any) -> Any:
        return map_tensors(partial(cast, dtype), result)

    model.register_forward_hook(not_compiled(after))


def cast_buffers(
    model: nn.Module, dtype: torch.dtype, kept: tuple[type[nn.Module], ...]
) -> None:
    """Cast floating-point buffers, but those that stand directly in a norm.

    A buffer remains the same object. In the `state_dict` it has its old dtype, so that
    the file fits a plain model; its values are those of the narrower one.
    """
    old = {
        buffer: buffer.dtype
        for module in model.modules()
        if not isinstance(module, kept)
        for buffer in module.buffers(recurse=False)
        if buffer.is_floating_point()
    }
    for buffer in old:
        buffer.data = buffer.to(dtype)
    names = {
        name: old[buffer]
        for name, buffer in model.named_buffers(remove_duplicate=False)
        if buffer in old
    }

    def widen(_: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name, before in names.items():
            if prefix + name in state:
                state[prefix + name] = state[prefix + name].to(before)

    model.register_state_dict_post_hook(widen)
    before_casting[model] = names


# The dtypes that buffers had, by their names in the model.
before_casting: WeakKeyDictionary[nn.Module, dict[str, torch.dtype]]
before_casting = WeakKeyDictionary()


def cast(dtype: torch.dtype, value: Tensor) -> Tensor:
    """A floating-point tensor in another dtype; any other as it is."""
    return value.to(dtype) if value.is_floating_point() else value


# sidelit: depth Modules that a checkpoint runs again, and a pass that was interrupted.


def put_in_force_again(rule: InFP32, module: nn.Module) -> None:
    """Let a rule be in force if a module inside of a unit is called in a backward pass.

    PyTorch's checkpoint then computes the module again, outside of a forward pass of
    the unit. Without the rule its gradients would belong to another result.
    """

    def again(act: Callable[[], None]) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if not torch.compiler.is_compiling() and in_backward():
                act()

        return hook

    module.register_forward_pre_hook(again(rule.enter), prepend=True)
    module.register_forward_hook(again(rule.leave), always_call=True)


def start_afresh(rule: InFP32, model: nn.Module) -> None:
    """Let no rule be in force from a pass that was interrupted."""

    def before(model: nn.Module, args: Any) -> None:
        if rule.in_force and not in_backward() and calls_under_way(model) < 2:
            rule.forget()

    model.register_forward_pre_hook(not_compiled(before), prepend=True)
