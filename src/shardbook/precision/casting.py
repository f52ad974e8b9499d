r"""# Casting

> A function mode sees every call of a PyTorch function, and can change its inputs first.

[Autocast](autocast.py) has to act between the model and autograd. Later would be too
late: autograd would have recorded the operation with the inputs that it had, and its
backward pass would meet other dtypes. Earlier is the model itself, which is to stay as
it is.

PyTorch has a place for that. While a `TorchFunctionMode` is on, each function of
PyTorch that is called from Python hands the call over to it: the function and its
arguments. The mode decides whether the function runs, and with which arguments. This
one casts the arguments as [the rules](autocast_rules.py) say and then runs the
function.

Whether to cast, and to which dtype, is a state that PyTorch keeps for each thread and
each type of device. The mode reads PyTorch's state instead of keeping one, and while a
function with a rule runs, the state is off, so that `torch.autocast` does not cast once
more. A function without a rule runs with the state on. If it is written in C++ and
calls products, as `tensordot` and a GRU do, `torch.autocast` casts these.
"""

# sidelit: hide
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

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
# sidelit: show


class Casting(TorchFunctionMode):
    """PyTorch hands it each call of one of its functions, before autograd sees the call.

    So a cast made here is recorded. While it handles a call it gets no others.
    """

    def __init__(self) -> None:
        super().__init__()
        # Whether the code that runs now was reached with a context of this book open.
        self.on = False
        self.kept: dict[tuple[int, torch.dtype], tuple[Tensor, int, Tensor]] = {}
        # The count of optimizers' steps that `kept` belongs to.
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
        # tensors of both. Each rule casts those of its own device.
        enabled = [name for name in RULES if torch.is_autocast_enabled(name)]
        rules = {
            device_type: rule
            for device_type in enabled
            if (rule := RULES[device_type].of(func.__name__))
        }
        # A caller that brings the memory for the result has chosen its dtype.
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
        """Handle the calls inside of a function that is written in Python and has no rule.

        It calls other functions, and these may have rules. So the mode is entered again
        while it runs. A few functions start by handing themselves over once more; in
        this second call they run as they are.
        """
        self.opened.append(func)
        try:
            with self:
                return unasked(func)(*inputs[0], **inputs[1])
        finally:
            self.opened.pop()

    def apply(self, rule: Rule, device_type: str, name: str, inputs: Inputs) -> Inputs:
        """The inputs as the operation is to get them."""
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
                # A dtype that the caller has asked for stays.
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
        """A parameter in FP32 is cast once, however often it is used. Any other tensor is cast at each use.

        It saves the time of the casts, and it decides digits: the gradients of all uses
        meet at the cast and are added in 16 bits. Without gradients nothing is kept,
        for a cast that autograd did not record would cut the next use off from the
        parameter.
        """
        if not (
            setting.cache_enabled
            and dtype == setting.dtype
            and value.dtype == torch.float32
            and value.requires_grad
            and value.is_leaf
            # A view changes with its base, and is not worth keeping.
            and base_of(value) is None
            and torch.is_grad_enabled()
        ):
            return value.to(dtype)
        # The tensor is kept with its cast. Otherwise it could be freed, and another one
        # could have its `id`. The version tells whether somebody has written into it.
        kept, version = self.kept.get((id(value), dtype)), version_of(value)
        if kept is None or kept[1] != version:
            kept = self.kept[id(value), dtype] = (value, version, value.to(dtype))
        return kept[2]

    # sidelit: depth Optimizers whose writes to parameters PyTorch does not count.

    def forget_after_a_step(self) -> None:
        """Keep no cast of a parameter, PyTorch's included, beyond a step of any optimizer.

        A fused optimizer writes into parameters, and PyTorch does not count it. So
        after a step nothing is taken for unchanged.
        """
        if self.steps != steps.count:
            self.steps = steps.count
            self.kept.clear()
            torch.clear_autocast_cache()


@dataclass(frozen=True, slots=True)
class Setting:
    """What the innermost context says about one type of device."""

    enabled: bool
    dtype: torch.dtype
    cache_enabled: bool


def setting_of(device_type: str) -> Setting:
    """What PyTorch's state of this thread says about one type of device."""
    return Setting(
        torch.is_autocast_enabled(device_type),
        torch.get_autocast_dtype(device_type),
        torch.is_autocast_cache_enabled(),
    )


@contextmanager
def switched_off(device_types: Iterable[str]) -> Iterator[None]:
    """Inside of the block PyTorch casts nothing for these types of device."""
    for device_type in device_types:
        torch.set_autocast_enabled(device_type, False)
    try:
        yield
    finally:
        for device_type in device_types:
            torch.set_autocast_enabled(device_type, True)


def eligible(value: object, device_type: str) -> bool:
    """What is cast at all: floating-point tensors of the device, except FP64, which somebody has chosen."""
    return (
        isinstance(value, Tensor)
        and value.device.type == device_type
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


# These start the backward pass.
BACKWARD = (Tensor.backward, torch.autograd.backward, torch.autograd.grad)


# sidelit: depth Functions that would hand themselves over without end, and the count of optimizer steps.


def unasked(func: FunctionType) -> FunctionType:
    """The same function, but it does not ask whether a mode wants to handle the call.

    PyTorch's functions in Python begin with this question. A mode that runs one is off,
    and nothing that the function calls would come back. If the mode is on, the function
    itself comes back, forever.
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
    """How often an optimizer of this process has stepped, in whatever thread."""

    count = 0

    def __call__(self, *_: Any) -> None:
        self.count += 1


steps = Steps()


@cache
def count_steps() -> None:
    """Let each step of each optimizer be counted from now on."""
    register_optimizer_step_post_hook(steps)
