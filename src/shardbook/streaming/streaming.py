r"""# Streaming a model through one device

> The layers live on the host, and the device sees two slices of them at a time.

Sharding needs several devices. A single device can train a model that is larger than
its memory, if only a part of the model has to be there at a time. In a chain of layers
such parts are its consecutive *slices*.

```python
model = stream(GPT(config), device="cuda", slices=8)
optimizer = torch.optim.AdamW(model.parameters())
for tokens_BT, targets_BT in batches:
    loss(model(tokens_BT), targets_BT).backward()
    optimizer.step()
    optimizer.zero_grad()
```

In the forward pass each slice [comes to the device](host.py), computes, and is dropped,
with all its activations. Only its input is kept. In the backward pass the slices come
once more, from the last to the first, and each recomputes its activations. That is
[a checkpoint](checkpointing.py) around each slice. The gradients of a slice leave for
the host when its backward pass has been queued.

The model's own parameters stay on the host, with their names. What comes to the device
are copies of them. So the optimizer runs on the host, and a saved `state_dict` is that
of the plain model.

**What is on the device.** While slice $k$ computes, the slice that runs next is on its
way: $k+1$ in the forward pass, $k-1$ in the backward pass. There the gradients of slice
$k+1$ leave first, while slice $k$ recomputes. Let slice $k$ have $P_k$ bytes of
parameters, $A_k$ bytes of input and $a_k$ bytes of activations. The most that is on the
device at one moment is about

$$\max_k \left(P_k + P_{k \pm 1} + a_k\right) + \sum_k A_k$$

and the gradients of one parameter and of one activation. If the link is slow, the
gradients of a whole slice may be waiting to leave. That does not raise the sum: each
gradient takes the place of the copy of its parameter, and slice $k-1$ is not brought
until those of slice $k+1$ have left. With `offload_activations=True` the inputs [wait
on the host](residual.py), and the sum goes away.

**What it costs.** A step moves $2\,\Psi$ numbers to the device and $\Psi$ back, and
computes each activation twice. The numbers move while the device computes, if the batch
is large enough to keep it busy as long. The first slice of each pass and the last
gradients have no computation beside them. Nor has the optimizer's step, which runs on
the host. With a `param_dtype` the host also casts each slice before it moves, in the
thread that queues the device's work. The device then has only what was queued before.
So streaming serves fine-tuning with large batches, and inference with many sequences at
a time.

:notation $\Psi$: the number of parameters of the model
:notation $k$: `number`, the number of a slice
:notation $P_k$: the bytes of the parameters of slice $k$
:notation $A_k$: the bytes of the input of slice $k$
:notation $a_k$: the bytes that autograd saves within slice $k$
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from shardbook.checkpointing.checkpointing import checkpoint
from shardbook.foundations.hook_context import in_backward
from shardbook.foundations.torch_private import at_end_of_backward
from shardbook.foundations.versions import Versions, writes_to
from shardbook.parameters.host import Crossing, Landing, pin, to_device, to_host
from shardbook.streaming.chain_cuts import (
    Contents,
    Seen,
    Slice,
    refuse_others,
    slices_of,
)
from shardbook.streaming.residual import offload

__all__ = ["stream"]
# sidelit: show


def stream(
    model: nn.Sequential | Sequence[nn.Module],
    *,
    device: torch.device | str,
    slices: int | None = None,
    offload_activations: bool = False,
    param_dtype: torch.dtype | None = None,
) -> nn.Sequential:
    """Let a chain of layers compute on a device that does not hold it.

    Dropout, batch statistics and gradients are those of the plain model, bit for bit,
    if the device computes as the host does. One case differs in the last bits: a
    parameter that stands twice in a slice, when one backward pass goes through several
    forward passes. Its gradients are then added in another order.

    :param model: the chain, on the host; a list of layers becomes an `nn.Sequential`
    :param device: where the layers compute, and where the output will be
    :param slices: into how many slices the chain is [cut](chain_cuts.py#cut) at most;
        by default each layer with parameters begins a slice
    :param offload_activations: whether the inputs of the slices wait on the host
    :param param_dtype: the floating-point dtype, of 16 bits or more, in which
        floating-point parameters come to the device, and gradients leave it; on the
        host both keep their own. Norms compute in it, too. Buffers keep their dtype,
        and a batch norm on a CPU refuses to mix the two.
    :returns: the model, whose calls now stream it
    :raises TypeError: if the model is no plain chain, or the dtype no floating-point
        one
    :raises ValueError: if it was streamed or sharded before, is not on the host, or the
        number of slices makes no sense
    """
    chain = model if isinstance(model, nn.Sequential) else nn.Sequential(*model)
    around = offload(least=0) if offload_activations else nullcontext()
    # A device without a number is the current one. A tensor on it knows the number.
    numbered = torch.empty(0, device=device).device
    parts = slices_of(chain, slices, param_dtype)
    streamer = Streamer(parts, Contents(chain), numbered, param_dtype, around)
    # A copy from memory that is not pinned blocks the host's thread, so it could not
    # start the computation that is to run during the copy.
    if numbered.type != "cpu":
        pin([*chain.parameters(), *chain.buffers()])
    vars(chain).update(forward=streamer.forward, __reduce_ex__=refuse_copy)
    return chain


class Streamer:
    """The slices of one chain, and what is on its way to the device and from it.

    :param around: a context around each slice, in which its input is saved
    """

    def __init__(
        self,
        slices: list[Slice],
        contents: Contents,
        device: torch.device,
        dtype: torch.dtype | None,
        around: Any,
    ) -> None:
        self.slices = slices
        self.contents = contents
        self.device = device
        self.dtype = dtype
        self.around = around
        self.ahead: dict[int, tuple[Versions, list[Crossing]]] = {}
        self.leaving: list[Any] = []

    def forward(self, x: Tensor) -> Any:
        """The chain's forward pass, in the place of the one that `nn.Sequential` has.

        :raises TypeError: if a slice is to compute with something other than a tensor
        :raises RuntimeError: if the chain no longer [holds what was
            cut](chain_cuts.py#Contents)
        """
        self.contents.refuse_changes()
        # A backward pass that failed may have left a slice on the device.
        self.drop()
        calls = [Call(self, number) for number in range(len(self.slices))]
        try:
            for call in calls:
                refuse_others(self.slices, call.number, x)
                x = call.begin(x)
        finally:
            self.drop()
        return x

    def bring(self, number: int) -> list[Tensor]:
        """Copies of a slice's parameters, on the device.

        The host's thread waits until they have arrived. The device could not compute
        without them anyway. And the optimizer, which writes to the parameters on the
        host, cannot write while a copy still reads them.
        """
        versions, crossings = self.ahead.pop(number, (None, []))
        if versions != self.slices[number].versions():
            crossings = self.send(number)
        return [crossing.arrive() for crossing in crossings]

    def prefetch(self, number: int) -> None:
        """Start to bring a slice that runs next. What came earlier in vain is dropped."""
        self.ahead = {number: (self.slices[number].versions(), self.send(number))}

    def send(self, number: int) -> list[Crossing]:
        """Start the copies of a slice's parameters. They are cast before they move."""
        return [
            to_device(parameter, self.device, "parameters", self.dtype)
            for parameter in self.slices[number].parameters.values()
        ]

    def let_leave(self) -> None:
        """Wait until the gradients of the slice after have left the device. If the link is
        slow, they would otherwise pile up there, slice after slice.
        """
        while self.leaving:
            self.leaving.pop().synchronize()

    def drop(self) -> None:
        """The backward pass has ended, perhaps before a slice that is on its way."""
        self.ahead.clear()
        self.leaving.clear()


class Call:
    """One use of a slice: it runs in the forward pass, and again in the backward pass."""

    def __init__(self, streamer: Streamer, number: int) -> None:
        self.streamer = streamer
        self.number = number
        self.slice = streamer.slices[number]
        self.gradients: dict[str, Crossing] = {}
        self.token = Landing.of(self.slice.parameters, self.gradients)
        self.seen: Seen | None = None

    def begin(self, x: Tensor) -> Any:
        """Run, as a checkpoint if there may be a backward pass."""
        x = x.to(self.streamer.device)
        self.input_needs = x.requires_grad
        with self.streamer.around:
            return checkpoint(self, x) if torch.is_grad_enabled() else self(x)

    def __call__(self, x: Tensor) -> Any:
        return self.first(x) if self.seen is None else self.again(x, self.seen)

    def first(self, x: Tensor) -> Any:
        """The forward pass, with the next slice on its way."""
        self.seen = seen = Seen(self.slice)
        streamer, backward = self.streamer, torch.is_grad_enabled()
        brought = streamer.bring(self.number)
        if self.number + 1 < len(streamer.slices):
            streamer.prefetch(self.number + 1)
        copies = self.copies_of(self.slice.buffers)
        before = {name: copy.clone() for name, copy in copies.items()}
        y = self.run(brought, copies, x)
        self.take_over(copies, before, seen if backward else None)
        seen.note_buffers()
        return y

    def again(self, x: Tensor, seen: Seen) -> Any:
        """The recomputation. What it writes to buffers was written in the first run
        already, and is dropped.

        :raises RuntimeError: if a parameter or buffer has changed since the first run
        """
        seen.refuse_changes()
        streamer = self.streamer
        brought = streamer.bring(self.number)
        try:
            return self.run(brought, self.copies_of(seen.buffers), x)
        # [Early stop](recomputation.py#Enough) ends the run by an exception.
        finally:
            # The device has got work for some time. Meanwhile the gradients of the
            # slice after leave it, and the slice before takes their place.
            streamer.let_leave()
            if self.number and self.input_needs:
                streamer.prefetch(self.number - 1)
            # The pass may end without the slice before.
            if in_backward():
                at_end_of_backward(streamer.drop)

    def run(self, brought: list[Tensor], tensors: dict[str, Tensor], x: Tensor) -> Any:
        """Compute with copies in the place of the slice's own tensors.

        :param tensors: the copies of the buffers; after the call, what the slice has
            made of them
        """
        if self.streamer.dtype is not None and x.is_floating_point():
            x = x.to(self.streamer.dtype)
        for name, copy in zip(self.slice.parameters, brought, strict=True):
            tensors[name] = Brought.apply(self.token, copy, self, name)
        versions = {name: writes_to(tensors[name]) for name in self.slice.parameters}
        y = self.slice.call(tensors, x)
        self.slice.refuse_writes({name: tensors[name] for name in versions}, versions)
        return y

    # sidelit: depth Buffers that a layer writes to, such as running statistics.

    def copies_of(self, buffers: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: to_device(buffer, self.streamer.device, "buffers").wait()
            for name, buffer in buffers.items()
        }

    def take_over(
        self,
        copies: dict[str, Tensor],
        before: dict[str, Tensor],
        seen: Seen | None,
    ) -> None:
        """Layers such as batch normalisation write to their buffers on the device, and the
        host's buffers get the new values. Some kernels write without raising the
        version, so the values are compared. The second run has to read what the first
        run read, so the old values are kept for it.

        :param before: the values of the copies before the run
        :param seen: what the second run will read, if there is one
        """
        for name, buffer in self.slice.buffers.items():
            if not torch.equal(copies[name], before[name]):
                if seen is not None:
                    seen.buffers[name] = buffer.clone()
                buffer.copy_(to_host(copies[name], "buffers").arrive())


class Brought(torch.autograd.Function):
    """A copy of a parameter on the device. Autograd reaches the parameter by the slice's
    [token](host.py#Landing).
    """

    @staticmethod
    def forward(ctx: Any, token: Tensor, copy: Tensor, call: Call, name: str) -> Tensor:
        ctx.call = call
        ctx.name = name
        return copy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient starts for the host, and this thread queues the next operation."""
        crossing = to_host(gradient, "gradients")
        ctx.call.gradients[ctx.name] = crossing
        ctx.call.streamer.leaving.append(crossing.done)
        return torch.zeros((), device="cpu"), None, None, None


# sidelit: depth Copies, which would compute with the parameters of the original.


def refuse_copy(protocol: Any) -> NoReturn:
    """A copy's forward pass would compute with the parameters of the original."""
    raise TypeError(
        "a streamed model cannot be copied or pickled; "
        "load its state_dict() into a plain model"
    )
