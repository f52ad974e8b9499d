r"""# Casts at the model's boundary

> A model that computes in 16 bits still takes FP32 inputs, because they are cast.

The units of a model in 16 bits compute with [16-bit copies](masters.py) of their
parameters. The program around the model has not changed: its inputs are in FP32, so
they are cast. The model returns 16 bits unless the policy names an `output_dtype`. If
the loss is computed outside of the model, you need `output_dtype=torch.float32`,
because the rule that computes [losses in FP32](norms.py) ends with the forward pass.

This chapter casts what crosses the model's boundary. It also casts the buffers, which
are inside the model but are no parameters.

| what | becomes | unless |
|---|---|---|
| floating-point inputs of the model, also nested ones | `param_dtype` | `cast_inputs=False` |
| floating-point outputs of the model | `output_dtype` | that is `None`, the default |
| floating-point buffers | `buffer_dtype` | that is `None`, the default, or they belong to a norm |
| functions that compute norms and losses | [FP32](norms.py) | no `param_dtype`, or empty tables |

A cast can change an input that needs more digits than the 16-bit format has. In BF16
the number 1001 becomes 1000. So positions, times or indices arrive rounded if they are
floating-point numbers. Pass them as integers, which are never cast, or set
`cast_inputs=False` and cast in `forward`.

Only calls of the model itself are cast. A part that is called directly takes its inputs
as they are. Tensors are found in lists, dictionaries and dataclasses, at any depth. If
[a container holds a tensor that is cast](hook_context.py#map_tensors), the model gets a
copy of the container, so the caller does not see what the model puts into it.
"""

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


def enforce(policy: Policy, model: nn.Module) -> None:
    """Attach the casts of a policy, other than those of parameters, to a sharded model."""
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
    """Apply a rule during each forward pass of a module.

    A unit that is recomputed in the backward pass, for activation checkpointing, is
    called again, so the rule applies again.
    """
    module.register_forward_pre_hook(not_compiled(rule.enter), prepend=True)
    # This hook also runs after an exception.
    module.register_forward_hook(not_compiled(rule.leave), always_call=True)


def cast_inputs(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the inputs of the model.

    Autograd records the cast, so the gradients of the inputs have the inputs' own
    dtype.
    """
    units = tuple(conductor_of(model).drivers)

    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        # [In full precision](full_precision.py) the units compute in the masters'
        # dtype.
        if any(unit.precise for unit in units):
            return None
        return map_tensors(partial(cast, dtype), (args, kwargs))

    model.register_forward_pre_hook(not_compiled(before), with_kwargs=True)


def cast_outputs(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the outputs of the model."""

    def after(_: nn.Module, args: Any, result: Any) -> Any:
        return map_tensors(partial(cast, dtype), result, opens=True)

    model.register_forward_hook(not_compiled(after))


def cast_buffers(
    model: nn.Module, dtype: torch.dtype, kept: tuple[type[nn.Module], ...]
) -> None:
    """Cast floating-point buffers, except those that belong directly to a norm.

    A buffer remains the same object. In the `state_dict` it has its original dtype, so
    that the file fits a plain model, but its values have the precision of the narrower
    one.
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


# The original dtypes of buffers, by their names in the model.
before_casting: WeakKeyDictionary[nn.Module, dict[str, torch.dtype]]
before_casting = WeakKeyDictionary()


def cast(dtype: torch.dtype, value: Tensor) -> Tensor:
    """A floating-point tensor in another dtype; any other tensor unchanged."""
    return value.to(dtype) if value.is_floating_point() else value


# sidelit: depth Modules that a checkpoint runs again, and a forward pass that was interrupted.


def put_in_force_again(rule: InFP32, module: nn.Module) -> None:
    """Apply a rule when a module inside a unit is called in a backward pass.

    PyTorch's checkpoint then recomputes the module outside of a forward pass of the
    unit. Without the rule the recomputed result would differ from the first one, and
    the gradients would be wrong.
    """

    def again(act: Callable[[], None]) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if not torch.compiler.is_compiling() and in_backward():
                act()

        return hook

    module.register_forward_pre_hook(again(rule.enter), prepend=True)
    module.register_forward_hook(again(rule.leave), always_call=True)


def start_afresh(rule: InFP32, model: nn.Module) -> None:
    """Drop a rule that an interrupted forward pass has left in use."""

    def before(model: nn.Module, args: Any) -> None:
        if rule.in_force and not in_backward() and calls_under_way(model) < 2:
            rule.forget()

    model.register_forward_pre_hook(not_compiled(before), prepend=True)
