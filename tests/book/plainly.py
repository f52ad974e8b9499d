"""The programs of `book.programs`, trained by PyTorch alone.

The same functions run, but the names that they take from the book stand for plain counterparts. Each rank
has a copy of the whole model. After a backward pass that is not in `no_sync` the gradients of all ranks are
collected on the host, added in rank order, and divided. Under a policy the model computes with copies of its
parameters, which are made by hand in each forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import Tensor, nn

from book import programs
from book.programs import Training
from book.reference import ordered_mean, zeros_where_unused
from device.outcomes import outcome_of
from shardbook import Policy

Program = Callable[[], None]

# Where a kernel adds in another order the last bits differ, and three steps of AdamW pass that on. If every
# matrix product is rounded otherwise, the FP32 values of these programs move by up to 3e-6, and those of
# programs that round to 16 bits by up to 4e-3. A wrong gradient moves a weight by a step of AdamW, which is a
# twentieth of the largest weight.
FP32, LOW = 1e-5, 2e-2
ROUNDED = ("accumulated", "narrow", "low", "offloaded_low", "scaled", "crossed", "streamed_low")


def bound(name: str) -> float:
    """How far a program may be from its plain counterpart, as a share of the largest value of a tensor."""
    return LOW if name.rpartition("-")[2] in ROUNDED else FP32


def compared(program: Program, device: str) -> tuple[bool, float]:
    """Whether a program has the bits of its plain counterpart, and how far it is from it."""
    found, expected = outcome_of(program, device), plainly(program, device)
    assert [each.shape for each in found] == [each.shape for each in expected]
    return all(map(torch.equal, found, expected)), max(map(distance, found, expected))


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest difference of two elements, as a share of the largest value; infinite if one is NaN."""
    found, expected = found.double(), expected.double()
    if found.isnan().any() or not expected.isfinite().all():
        return float("inf")
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def plainly(program: Program, device: str) -> list[Tensor]:
    """What the plain counterpart of a program comes to, as `device.outcomes` tells it."""
    Replica.last = None
    with (
        patch.multiple(programs, **COUNTERPARTS),
        patch.object(Tensor, "backward", backward),
        patch.object(Training, "update", update),
    ):
        return outcome_of(program, device)


class Replica:
    """This rank's copy of a model.

    :param dtype: the dtype of the copies that compute, and of their gradients on the way to other ranks
    :param wire: the dtype of gradients on the way, where it is another one
    :param on_host: whether the host keeps the parameters
    :param rows: the rows in which the ranks stand; a mean is taken along each row, and then over the rows
    :param alone: whether this rank trains without the others
    """

    last: Replica | None = None

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        *,
        dtype: torch.dtype | None = None,
        wire: torch.dtype | None = None,
        output: torch.dtype | None = None,
        on_host: bool = False,
        rows: int = 1,
        alone: bool = False,
    ) -> None:
        Replica.last = self
        self.device, self.dtype, self.output, self.rows, self.alone = device, dtype, output, rows, alone
        self.syncing, self.steppers = True, list[torch.optim.Optimizer]()
        self.home = torch.get_device_module(device).current_stream(device)
        if on_host:
            for parameter in model.parameters():
                parameter.data = parameter.data.cpu()
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # The sum of this rank's gradients since the last exchange, and the dtype in which it is sent.
        self.waiting: list[Tensor | None] = [None] * len(self.parameters)
        self.wires = [wire or dtype or parameter.dtype for parameter in self.parameters]
        if dtype or on_host:
            self.inner = Inner(model)
            vars(model).update(forward=self.forward)

    def forward(self, *inputs: Any) -> Any:
        """Compute with copies of the parameters. Autograd takes their gradients back."""
        # Each name gets a copy of its own, so the gradients of a tied matrix are added on the host.
        named = self.inner.named_parameters(remove_duplicate=False)
        copies = {name: parameter.to(self.device, self.dtype) for name, parameter in named}
        result = torch.func.functional_call(self.inner, copies, inputs, tie_weights=False)
        return result.to(self.output) if self.output else result

    def backward(self, loss: Tensor) -> None:
        """A backward pass, whose mean gradients are added to those that are there."""
        means = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        try:
            plain_backward(loss)
            found = [parameter.grad for parameter in self.parameters]
        finally:
            for parameter, mean in zip(self.parameters, means, strict=True):
                parameter.grad = mean
        for index, gradient in enumerate(found):
            if gradient is not None:
                wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
                before = self.waiting[index]
                self.waiting[index] = wide if before is None else before + wide
        if self.syncing:
            self.exchange()
            for stepper in self.steppers:
                stepper.step()
                stepper.zero_grad()

    def exchange(self) -> None:
        """Add the means of the ranks' gradients to `.grad`."""
        sums = zip(self.waiting, self.wires, strict=True)
        mine = [None if each is None else each.to(wire) for each, wire in sums]
        self.waiting = [None] * len(self.parameters)
        columns = zip(*everywhere(mine), strict=True)
        for parameter, wire, column in zip(self.parameters, self.wires, columns, strict=True):
            there = [each if each is None else each.to(parameter.device) for each in column]
            sent = zeros_where_unused(there, parameter.detach().to(wire))
            if sent:
                size = len(sent) // self.rows
                means = [ordered_mean(sent[start : start + size]) for start in range(0, len(sent), size)]
                mean = ordered_mean(means).to(parameter.dtype)
                parameter.grad = mean if parameter.grad is None else parameter.grad + mean


class Inner(nn.Module):
    """A model without the hooks around it, as `functional_call` wants it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.compute = model, model.forward

    def forward(self, *inputs: Any) -> Any:
        return self.compute(*inputs)


def everywhere(mine: Any) -> list[Any]:
    """What each rank has, in rank order. Tensors travel on the host, whatever the backend can carry."""
    answers: list[Any] = [mine]
    if dist.get_world_size() > 1:
        here = torch.utils._pytree.tree_map_only(Tensor, lambda each: each.detach().cpu(), mine)
        answers = [None] * dist.get_world_size()
        dist.all_gather_object(answers, here)
    return answers


# What stands for the names of the book, and for two methods.

plain_backward, plain_update = Tensor.backward, Training.update


def backward(loss: Tensor) -> None:
    if Replica.last is None or Replica.last.alone:
        plain_backward(loss)
    else:
        Replica.last.backward(loss)


def update(training: Training) -> None:
    """The step of an optimizer, on the stream of the passes: nothing else orders them in a plain program."""
    assert Replica.last is not None
    with torch.get_device_module(training.device).stream(Replica.last.home):
        plain_update(training)


NO_POLICY = Policy()


def shard(
    model: nn.Module,
    *,
    policy: Policy = NO_POLICY,
    mesh: tuple[int, int] | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> nn.Module:
    if device is not None:
        model.to_empty(device=device)
        model.apply(lambda part: getattr(part, "reset_parameters", lambda: None)())
    Replica(
        model,
        Training.device,
        dtype=policy.param_dtype,
        wire=policy.reduce_dtype,
        output=policy.output_dtype,
        on_host=policy.offload,
        rows=mesh[0] if mesh else 1,
    )
    return model


def stream(
    chain: nn.Sequential, *, device: torch.device, param_dtype: torch.dtype | None = None, **_: Any
) -> nn.Module:
    """The buffers are on the device for good."""
    for part in chain.modules():
        for name, buffer in part._buffers.items():
            part._buffers[name] = buffer if buffer is None else buffer.to(device)
    Replica(chain, device, dtype=param_dtype, on_host=True, alone=True)
    return chain


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    assert Replica.last is not None
    Replica.last.syncing = False
    yield
    Replica.last.syncing = True


@contextmanager
def full_precision(model: nn.Module) -> Iterator[None]:
    assert Replica.last is not None
    dtype, Replica.last.dtype = Replica.last.dtype, None
    with torch.no_grad():
        yield
    Replica.last.dtype = dtype


def clip_grad_norm_(model: nn.Module, max_norm: float) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)


def clip_grad_value_(model: nn.Module, clip_value: float) -> None:
    nn.utils.clip_grad_value_(model.parameters(), clip_value)


def step_in_backward(model: nn.Module, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> None:
    assert Replica.last is not None
    Replica.last.steppers.append(make([*model.parameters()]))


def optimizer_state_dict(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return torch.utils._pytree.tree_map_only(Tensor, Tensor.cpu, optimizer.state_dict())


def all_reduce(tensor: Tensor) -> None:
    tensor.copy_(sum(everywhere(tensor)))


class AgreeingScaler(torch.amp.GradScaler):
    """PyTorch's scaler; an overflow on one rank is one on all ranks."""

    def __init__(self, device: str = "", **options: Any) -> None:
        super().__init__(device or Training.device.type, **options)

    def _unscale_grads_(self, *args: Any) -> dict[torch.device, Tensor]:
        flags = super()._unscale_grads_(*args)
        for flag in flags.values():
            flag.fill_(max(each.item() for each in everywhere(flag)))
        return flags


COUNTERPARTS: dict[str, Any] = {
    "ShardedGradScaler": AgreeingScaler,
    "all_reduce": all_reduce,
    "book_checkpoint": torch.utils.checkpoint.checkpoint,
    "branch": lambda block, x, stream: block(x) + torch.zeros_like(x),
    "clip_grad_norm_": clip_grad_norm_,
    "clip_grad_value_": clip_grad_value_,
    "full_precision": full_precision,
    "init_device_mesh": lambda kind, shape, **_: shape,
    "no_sync": no_sync,
    "optimizer_state_dict": optimizer_state_dict,
    "residual": SimpleNamespace(offload=lambda **_: nullcontext(), partition=lambda **_: nullcontext()),
    "shard": shard,
    "step_in_backward": step_in_backward,
    "stream": stream,
    "whole": lambda model: nullcontext(),
}
