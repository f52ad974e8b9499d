r"""# Casting inputs in a function mode

> A function mode gets every call of a PyTorch function before autograd does, and casts the inputs.

[Autocast](autocast.py) has to act between the model and autograd. If it acted after
autograd, the operation would be recorded with its old inputs, and its backward pass
would meet other dtypes. If it acted earlier, the model's code would have to change.

PyTorch offers this place. While a `TorchFunctionMode` is on, each PyTorch function that
is called from Python first hands the call to the mode: the function and its arguments.
The mode decides whether the function runs, and with which arguments. `Casting` casts
the arguments by [the rules](autocast_rules.py), and then runs the function.

PyTorch keeps a state for each thread and each type of device: whether to cast, and to
which dtype. The mode reads this state instead of keeping its own. While a function with
a rule runs, the state is off, so that `torch.autocast` does not cast the inputs once
more. A function without a rule runs with the state on. If such a function is written in
C++ and calls matrix products, as `tensordot` and a GRU do, `torch.autocast` casts their
inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

from shardbook.foundations.torch_private import base_of, tree_leaves, tree_map_only
from shardbook.parameters.flat import version_of
from shardbook.precision.autocast_rules import RULES, Rule

__all__ = ["Casting", "Setting", "setting_of"]

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
