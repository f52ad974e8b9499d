r"""# A model that does not fit

> The layers live on the host, and the device sees two slices of them at a time.

Sharding needs several devices. With a single one, a model that is larger than it can
still be trained if only a part has to be there at any time. A chain of layers has such
parts: its consecutive *slices*.

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
once more, from the last to the first, and each computes its activations again. That is
[a checkpoint](checkpointing.py) around each slice. A gradient leaves for the host as
soon as it is finished.

The parameters stay on the host as the model's own, with their names, and what comes to
the device are copies. So the optimizer runs on the host, where its
state is, and a saved `state_dict` is that of the plain model.

**What is on the device.** While slice $k$ computes, the next one is on its way. With
$P_k$ bytes of parameters in slice $k$, $A_k$ bytes in its input, and $a_k$ in its
activations, the most that is there at any time is about

$$\max_k \left(P_k + P_{k \pm 1} + a_k\right) + \sum_k A_k$$

and the gradient of one parameter. The sum disappears, too, if the inputs [wait on the
host](residual.py).

**What it costs.** Each step moves $2\,\Psi$ numbers to the device and $\Psi$ back, and
computes each activation twice. To move them while the device computes takes a batch that
keeps it busy as long. So this serves fine-tuning with large batches, and inference with
many sequences at a time.

:notation $\Psi$: `numel`, the number of parameters of the model
:notation $k$: `number`, the number of a slice
:notation $P_k$: `nbytes`, the bytes of the parameters of slice $k$
:notation $A_k$: `boundary`, the bytes of the input of slice $k$
:notation $a_k$: `activations`, the bytes that autograd saves within slice $k$
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.func import functional_call

from shardbook.checkpointing import checkpoint
from shardbook.host import Crossing, pin, to_device, to_host
from shardbook.residual import offload
from shardbook.slices import Slice, slices_of

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

    Dropout, batch statistics and gradients are those of the plain model, bit for bit, if
    the device computes as the host does. There is one exception: a parameter that stands
    twice in a slice adds up its gradients there. If one backward pass goes through
    several forward passes, their sum then has another order.

    :param model: the chain, on the host; a list of layers becomes an `nn.Sequential`
    :param device: where the layers compute, and where the output will be
    :param slices: into how many slices the chain is cut, so that the largest is as small
        as can be; by default each layer with parameters begins a slice
    :param offload_activations: whether the inputs of the slices wait on the host
    :param param_dtype: the dtype in which parameters come to the device, and gradients
        leave it; parameters on the host, and their gradients there, keep their own
    :returns: the model, whose calls now stream it
    :raises TypeError: the model is no plain chain
    :raises ValueError: it was streamed or sharded before, is not on the host, or the
        number of slices makes no sense
    """
    chain = model if isinstance(model, nn.Sequential) else nn.Sequential(*model)
    around = offload(least=0) if offload_activations else nullcontext()
    # A device without a number is the current one, and its tensors carry the number.
    numbered = torch.empty(0, device=device).device
    streamer = Streamer(slices_of(chain, slices), numbered, param_dtype, around)
    # From memory that is not pinned the thread would copy by itself, and it could not
    # start the computation that the copy is to run beside.
    if numbered.type != "cpu":
        pin([*chain.parameters(), *chain.buffers()])
    vars(chain).update(forward=streamer.forward, __reduce_ex__=refuse_copy)
    return chain


class Streamer:
    """The slices of one chain, and the one that is on its way to the device.

    :param around: a context around each slice, in which its input is saved
    """

    def __init__(
        self,
        slices: list[Slice],
        device: torch.device,
        dtype: torch.dtype | None,
        around: Any,
    ) -> None:
        self.slices, self.device, self.dtype, self.around = (
            slices,
            device,
            dtype,
            around,
        )
        self.ahead: dict[int, tuple[list[int], list[Crossing]]] = {}

    def forward(self, x: Tensor) -> Tensor:
        """The chain's forward pass, in the place of the one that `nn.Sequential` has."""
        # A backward pass that was cut short may have left a slice on the device.
        self.ahead.clear()
        x = x.to(self.device)
        try:
            for number in range(len(self.slices)):
                call = Call(self, number, x.requires_grad)
                with self.around:
                    x = checkpoint(call, x) if call.backward else call(x)
        finally:
            self.ahead.clear()
        return x

    def bring(self, number: int) -> list[Tensor]:
        """Copies of a slice's parameters, on the device.

        The thread waits for them. It costs little, because the device cannot compute
        without them either. And from then on nobody reads the parameters any more, so
        that whoever writes to them on the host cannot come too early.
        """
        versions, crossings = self.ahead.pop(number, (None, []))
        if versions != self.slices[number].versions():
            crossings = self.send(number)
        return [crossing.arrive() for crossing in crossings]

    def prefetch(self, number: int) -> None:
        """Start to bring a slice that runs next. What came earlier in vain is dropped."""
        self.ahead = {number: (self.slices[number].versions(), self.send(number))}

    def send(self, number: int) -> list[Crossing]:
        return [
            to_device(parameter, self.device, "parameters", self.dtype)
            for parameter in self.slices[number].parameters.values()
        ]


class Call:
    """One use of a slice: it runs in the forward pass, and again in the backward pass.

    Both times it has to compute the same, from the same parameters and buffers.
    """

    def __init__(self, streamer: Streamer, number: int, input_needs: bool) -> None:
        self.streamer, self.number, self.input_needs = streamer, number, input_needs
        self.slice = streamer.slices[number]
        self.backward = torch.is_grad_enabled()
        self.versions: list[int] | None = None
        self.buffers: dict[str, Tensor] = {}
        self.buffer_versions: list[int] = []

    def __call__(self, x: Tensor) -> Any:
        if self.versions is None:
            return self.first(x)
        return self.again(x)

    def first(self, x: Tensor) -> Any:
        """The forward pass, with the next slice on its way.

        Layers such as batch normalisation write to their buffers. They do so on the
        device, and the host gets what they wrote. Some do it without raising the
        version, so the values are compared. The second run has to read what the first
        one read, so for it the values from before are kept.
        """
        self.versions = self.slice.versions()
        streamer = self.streamer
        brought = streamer.bring(self.number)
        if self.number + 1 < len(streamer.slices):
            streamer.prefetch(self.number + 1)
        copies = self.copies_of(self.slice.buffers)
        before = {name: copy.clone() for name, copy in copies.items()}
        y = self.run(brought, copies, x)
        for name, buffer in self.slice.buffers.items():
            self.buffers[name] = buffer
            if not torch.equal(copies[name], before[name]):
                if self.backward:
                    self.buffers[name] = buffer.clone()
                buffer.copy_(to_host(copies[name], "buffers").arrive())
        self.buffer_versions = [buffer._version for buffer in self.buffers.values()]
        return y

    def again(self, x: Tensor) -> Any:
        """The same once more, with the slice before on its way if it has a backward pass.

        What is written to buffers now was written before, and is dropped.

        :raises RuntimeError: a parameter or buffer has changed since the first run
        """
        tensors = [*self.slice.parameters.values(), *self.buffers.values()]
        versions = [*(self.versions or []), *self.buffer_versions]
        for tensor, version in zip(tensors, versions, strict=True):
            if tensor._version != version:
                raise RuntimeError(
                    f"{self.slice.names.get(tensor)} has changed between the forward and "
                    "the backward pass, which computes the activations again; "
                    "let the optimizer step after the backward pass"
                )
        brought = self.streamer.bring(self.number)
        if self.number and self.input_needs:
            self.streamer.prefetch(self.number - 1)
        return self.run(brought, self.copies_of(self.buffers), x)

    def run(self, brought: list[Tensor], tensors: dict[str, Tensor], x: Tensor) -> Any:
        """Compute with copies in the place of the slice's own tensors.

        :param tensors: the copies of the buffers; holds what the slice has left of them
        """
        if self.streamer.dtype is not None and x.is_floating_point():
            x = x.to(self.streamer.dtype)
        for (name, own), copy in zip(
            self.slice.parameters.items(), brought, strict=True
        ):
            tensors[name] = Brought.apply(own, copy)  # type: ignore[no-untyped-call]
        return functional_call(self.slice.layers, tensors, (x,))

    def copies_of(self, buffers: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: to_device(buffer, self.streamer.device, "buffers").wait()
            for name, buffer in buffers.items()
        }


class Brought(torch.autograd.Function):
    """From a parameter on the host to its copy, and from the copy's gradient back."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, copy: Tensor) -> Tensor:
        ctx.dtype = own.dtype
        return copy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Autograd adds the result to `.grad` at once, and it does so on the host. Without
        the wait it would add what the memory held before.
        """
        return to_host(gradient, "gradients").arrive().to(ctx.dtype), None


def refuse_copy(protocol: Any) -> NoReturn:
    """A copy's forward pass would compute with the parameters of the original."""
    raise TypeError(
        "a streamed model cannot be copied or pickled; "
        "load its state_dict() into a plain model"
    )
