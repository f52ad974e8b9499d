r"""# Streaming a model through one device

> The layers stay on the host, and the device holds two slices of them at a time.

Sharding needs several devices. But a single device can also train a model that is
larger than its memory, if it never holds more than a part of the model. In a chain of
layers such parts are *slices* of consecutive layers.

```python
model = stream(GPT(config), device="cuda", slices=8)
optimizer = torch.optim.AdamW(model.parameters())
for tokens_BT, targets_BT in batches:
    loss(model(tokens_BT), targets_BT).backward()
    optimizer.step()
    optimizer.zero_grad()
```

In the forward pass each slice [is copied to the device](host.py), computes, and is
dropped with all its activations. Only its input is kept. In the backward pass the
slices are copied again, from the last to the first, and each recomputes its
activations. So each slice is [a checkpoint](checkpointing.py). When the backward pass
of a slice has been queued, its gradients are copied to the host.

The model's own parameters stay on the host, with their names, and the device gets
copies of them. So the optimizer runs on the host, and a saved `state_dict` is that of
the plain model.

**Memory on the device.** While slice $k$ computes, the next slice is being copied:
$k+1$ in the forward pass, $k-1$ in the backward pass. In the backward pass the
gradients of slice $k+1$ leave before that, while slice $k$ recomputes. Let slice $k$
have $P_k$ bytes of parameters, $A_k$ bytes of input and $a_k$ bytes of activations. The
largest sum on the device at one moment is about

$$\max_k \left(P_k + P_{k \pm 1} + a_k\right) + \sum_k A_k$$

and the gradients of one parameter and of one activation. If the link is slow, the
gradients of a whole slice may be waiting to leave. That does not raise the sum. Each
gradient takes the place of the copy of its parameter, and slice $k-1$ is not copied
before the gradients of slice $k+1$ have left. With `offload_activations=True` the
inputs [wait on the host](residual.py), and the second term goes away.

**Costs.** A step moves $2\,\Psi$ numbers to the device and $\Psi$ back, and computes
each activation twice. The numbers move while the device computes, if the batch is large
enough to keep the device busy that long. Three parts are not hidden: the first slice of
each pass, the last gradients, and the optimizer's step on the host. With a
`param_dtype` the host also casts each slice before it moves, in the thread that queues
the device's work. So streaming serves fine-tuning with large batches, and inference
with many sequences at a time.

:notation $\Psi$: the number of parameters of the model
:notation $k$: `number`, the number of a slice
:notation $P_k$: the bytes of the parameters of slice $k$
:notation $A_k$: the bytes of the input of slice $k$
:notation $a_k$: the bytes that autograd saves within slice $k$
"""

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


def stream(
    model: nn.Sequential | Sequence[nn.Module],
    *,
    device: torch.device | str,
    slices: int | None = None,
    offload_activations: bool = False,
    param_dtype: torch.dtype | None = None,
) -> nn.Sequential:
    """Make a chain of layers compute on a device that does not hold it.

    Dropout, batch statistics and gradients are those of the plain model, bit for bit,
    if the device computes as the host does. The last bits differ in one case: if a
    parameter is twice in a slice, and one backward pass goes through several forward
    passes, its gradients are added in another order.

    :param model: the chain, on the host; a list of layers becomes an `nn.Sequential`
    :param device: where the layers compute, and where the output will be
    :param slices: the largest number of slices into which the chain is
        [cut](chain_cuts.py#cut); by default each layer with parameters begins a slice
    :param offload_activations: whether the inputs of the slices wait on the host
    :param param_dtype: the floating-point dtype, of 16 bits or more, to which
        floating-point parameters are cast before they are copied to the device. Their
        gradients leave the device in it; on the host both keep their own dtype. Norms
        compute in it, too. Buffers keep their dtype, and a batch norm on a CPU refuses
        to mix the two
    :returns: the model, whose calls now stream it
    :raises TypeError: if the model is no plain chain, or the dtype no floating-point
        one
    :raises ValueError: if it was streamed or sharded before, is not on the host, or the
        number of slices makes no sense
    """
    chain = model if isinstance(model, nn.Sequential) else nn.Sequential(*model)
    around = offload(least=0) if offload_activations else nullcontext()
    # A device without an index is the current one. A tensor on it knows the index.
    numbered = torch.empty(0, device=device).device
    parts = slices_of(chain, slices, param_dtype)
    streamer = Streamer(parts, Contents(chain), numbered, param_dtype, around)
    # A copy from memory that is not pinned blocks the host's thread. The thread could
    # not queue the computation that is to run during the copy.
    if numbered.type != "cpu":
        pin([*chain.parameters(), *chain.buffers()])
    vars(chain).update(forward=streamer.forward, __reduce_ex__=refuse_copy)
    return chain


class Streamer:
    """The slices of one chain, and the copies that are under way to and from the device.

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
        """The chain's forward pass, instead of that of `nn.Sequential`.

        :raises TypeError: if a slice is to compute with something other than a tensor
        :raises RuntimeError: if the chain no longer [holds the layers that were
            cut](chain_cuts.py#Contents)
        """
        self.contents.refuse_changes()
        # A failed backward pass may have left a slice on the device.
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
        without them anyway. The wait also orders the optimizer, which writes to the
        parameters on the host, after the copies that read them.
        """
        versions, crossings = self.ahead.pop(number, (None, []))
        if versions != self.slices[number].versions():
            crossings = self.send(number)
        return [crossing.arrive() for crossing in crossings]

    def prefetch(self, number: int) -> None:
        """Start to copy the next slice to the device, and drop an unused earlier copy."""
        self.ahead = {number: (self.slices[number].versions(), self.send(number))}

    def send(self, number: int) -> list[Crossing]:
        """Start the copies of a slice's parameters, which are cast before they move."""
        return [
            to_device(parameter, self.device, "parameters", self.dtype)
            for parameter in self.slices[number].parameters.values()
        ]

    def let_leave(self) -> None:
        """Wait until the gradients of slice $k+1$, which ran before, have left the device.

        If the link is slow, they would otherwise pile up on the device, slice after
        slice.
        """
        while self.leaving:
            self.leaving.pop().synchronize()

    def drop(self) -> None:
        """Drop what is under way, because a pass has ended before a slice was used."""
        self.ahead.clear()
        self.leaving.clear()


class Call:
    """One use of a slice, which runs in the forward pass and again in the backward pass."""

    def __init__(self, streamer: Streamer, number: int) -> None:
        self.streamer = streamer
        self.number = number
        self.slice = streamer.slices[number]
        self.gradients: dict[str, Crossing] = {}
        self.token = Landing.of(self.slice.parameters, self.gradients)
        self.seen: Seen | None = None

    def begin(self, x: Tensor) -> Any:
        """Run the slice, as a checkpoint if there may be a backward pass."""
        x = x.to(self.streamer.device)
        self.input_needs = x.requires_grad
        with self.streamer.around:
            return checkpoint(self, x) if torch.is_grad_enabled() else self(x)

    def __call__(self, x: Tensor) -> Any:
        return self.first(x) if self.seen is None else self.again(x, self.seen)

    def first(self, x: Tensor) -> Any:
        """The forward pass, during which the next slice is copied."""
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
        """The recomputation.

        The first run has already written to the buffers, so the writes of this run are
        dropped.

        :raises RuntimeError: if a parameter or buffer has changed since the first run
        """
        seen.refuse_changes()
        streamer = self.streamer
        brought = streamer.bring(self.number)
        try:
            return self.run(brought, self.copies_of(seen.buffers), x)
        # [Early stop](recomputation.py#Enough) ends the run by an exception.
        finally:
            # The device has work queued for some time. Meanwhile the gradients of slice
            # $k+1$ leave it, and slice $k-1$ takes their place.
            streamer.let_leave()
            if self.number and self.input_needs:
                streamer.prefetch(self.number - 1)
            # The backward pass may end without slice $k-1$.
            if in_backward():
                at_end_of_backward(streamer.drop)

    def run(self, brought: list[Tensor], tensors: dict[str, Tensor], x: Tensor) -> Any:
        """Compute with copies instead of the slice's own tensors.

        :param tensors: the copies of the buffers; after the call, the tensors that the
            layers have put in their place
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
        """Copy new values of buffers to the host, such as running statistics.

        Layers such as batch normalisation write to their buffers on the device. Some
        kernels write without raising the version, so the values are compared. The
        second run must read the same values as the first, so the old ones are kept for
        it.

        :param before: the values of the copies before the run
        :param seen: the tensors for the second run, if there is one
        """
        for name, buffer in self.slice.buffers.items():
            if not torch.equal(copies[name], before[name]):
                if seen is not None:
                    seen.buffers[name] = buffer.clone()
                buffer.copy_(to_host(copies[name], "buffers").arrive())


class Brought(torch.autograd.Function):
    """A copy of a parameter on the device.

    Autograd reaches the parameter through the slice's [token](host.py#Landing).
    """

    @staticmethod
    def forward(ctx: Any, token: Tensor, copy: Tensor, call: Call, name: str) -> Tensor:
        ctx.call = call
        ctx.name = name
        return copy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Start to copy the gradient to the host, while this thread queues other work."""
        crossing = to_host(gradient, "gradients")
        ctx.call.gradients[ctx.name] = crossing
        ctx.call.streamer.leaving.append(crossing.done)
        return torch.zeros((), device="cpu"), None, None, None


# sidelit: depth Copies, which would compute with the parameters of the original.


def refuse_copy(protocol: Any) -> NoReturn:
    """Refuse a copy, whose forward pass would use the parameters of the original."""
    raise TypeError(
        "a streamed model cannot be copied or pickled; "
        "load its state_dict() into a plain model"
    )
