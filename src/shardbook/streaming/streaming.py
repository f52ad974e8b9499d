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

In the forward pass each slice [is copied to the
device](offload.py#module/copies-between-device-and-host), computes, and is dropped with
all its activations. Only its input is kept. In the backward pass the slices are copied
again, from the last to the first, and each recomputes its activations. So each slice is
[a checkpoint](checkpointing.py). When the backward pass of a slice has been queued, its
gradients are copied to the host.

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
inputs [are kept on the host meanwhile](residual.py), and the second term goes away.

The first term also depends on where the chain is cut. So if you pass `slices`, [the
cut](#module/cutting-a-model-into-slices) makes the largest sum of two neighbours, $P_k +
P_{k+1}$, as small as possible.

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

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NoReturn
from weakref import ref

import torch
from torch import Tensor, nn
from torch.func import functional_call

from shardbook.checkpointing.checkpointing import checkpoint
from shardbook.foundations.hook_context import in_backward
from shardbook.foundations.torch_private import Versions, at_end_of_backward, writes_to
from shardbook.streaming.residual import offload
from shardbook.zero.flat import is_sharded
from shardbook.zero.offload import (
    PendingCopy,
    PendingGradients,
    pin,
    to_device,
    to_host,
)
from shardbook.zero.parameter_sites import STREAMED

__all__ = ["Contents", "Seen", "Slice", "cut", "refuse_others", "slices_of", "stream"]


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
        [cut](streaming.py#cut); by default each layer with parameters begins a slice
    :param offload_activations: whether the inputs of the slices are kept on the host
        until the backward pass
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
        self.ahead: dict[int, tuple[Versions, list[PendingCopy]]] = {}
        self.leaving: list[Any] = []

    def forward(self, x: Tensor) -> Any:
        """The chain's forward pass, instead of that of `nn.Sequential`.

        :raises TypeError: if a slice is to compute with something other than a tensor
        :raises RuntimeError: if the chain no longer [holds the layers that were
            cut](streaming.py#Contents)
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

    def send(self, number: int) -> list[PendingCopy]:
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
        self.gradients: dict[str, PendingCopy] = {}
        self.token = PendingGradients.of(self.slice.parameters, self.gradients)
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
        # [Early stop](segment.py#Enough) ends the run by an exception.
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

    Autograd reaches the parameter through the slice's [token](offload.py#PendingGradients).
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


# sidelit: core


# ## Cutting a model into slices
#
# > Consecutive layers form slices, cut so that the largest two neighbours take as few bytes as possible.
#
# [Streaming](streaming.py) moves the *slices* of a chain to the device, one after the
# other. A slice here is some consecutive layers, and has nothing to do with the 1-D
# slices of [parameters](unit.py#module/stage-3) that ranks hold. Two slices are on the device at a
# time: the one that computes, and the next one. So the cut minimises the largest sum of
# two neighbours.
#
# That is not the same as to minimise the largest slice. Suppose layers of 1, 4, 1 and 4
# bytes are to be cut into at most three slices. If no slice may have more than 5 bytes,
# two slices of 5 bytes will do, and 10 bytes are on the device at a time. With slices of
# 5, 1 and 4 bytes it is 6 at a time.
#
# Many small slices need little memory. Few large slices keep fewer inputs between them.
# They also move the same bytes in larger groups, so that more computation hides each
# copy.


def slices_of(
    chain: nn.Sequential, slices: int | None, dtype: torch.dtype | None
) -> list[Slice]:
    """The slices of a chain.

    :param slices: the largest number of slices; by default each layer with parameters
        begins one
    :param dtype: the dtype in which they will compute
    :raises TypeError: if the model is no plain chain, or the dtype no floating-point
        dtype
    :raises ValueError: if the model is streamed or sharded already, is empty or not on
        the host, or the number of slices makes no sense
    """
    refuse_unfit(chain, slices, dtype)
    layers = list(chain)
    parts = cut([bytes_of(layer) for layer in layers], slices)
    tensors = [*chain.named_parameters(), *chain.named_buffers()]
    names = {tensor: name for name, tensor in tensors}
    return [
        Slice(nn.Sequential(*layers[part.start : part.stop]), names) for part in parts
    ]


class Slice:
    """Consecutive layers. A parameter that two of its layers share is moved once.

    :param layers: the layers, as a chain of their own
    :param names: the names that parameters and buffers have in the model
    """

    def __init__(self, layers: nn.Sequential, names: dict[Tensor, str]) -> None:
        self.layers = layers
        self.names = names
        self.parameters = dict(layers.named_parameters())
        self.buffers = dict(layers.named_buffers())
        # A layer that is in the chain twice is visited once. `functional_call` would
        # visit it under both names, and leave the copies in it.
        self.places = {
            f"{prefix}.{name}".lstrip("."): tensor
            for prefix, module in layers.named_modules()
            for name, tensor in named_tensors(module, recurse=False).items()
        }

    def versions(self) -> Versions:
        """The numbers of writes to the parameters, which each in-place write raises."""
        return Versions(*self.parameters.values())

    def call(self, copies: dict[str, Tensor], x: Tensor) -> Any:
        """Compute with copies instead of the slice's own tensors.

        :param copies: of parameters and buffers; after the call, the tensors that the
            layers have put in their place
        """
        own = {**self.parameters, **self.buffers}
        copy_of = {own[name]: copy for name, copy in copies.items()}
        there = {place: copy_of[tensor] for place, tensor in self.places.items()}
        y = functional_call(self.layers, there, (x,), tie_weights=False)
        copies.update({name: there[name] for name in copies})
        return y

    # sidelit: depth A layer that writes to its own parameters.

    def refuse_writes(
        self, copies: dict[str, Tensor], versions: dict[str, int]
    ) -> None:
        """Refuse a forward pass that wrote to its own parameters.

        It has changed the copies, which are dropped. In a plain chain the change would
        stay.

        :raises RuntimeError: naming the parameter
        """
        for name, copy in copies.items():
            if writes_to(copy) != versions[name]:
                raise RuntimeError(
                    f"{self.names.get(self.parameters[name])} was written to in the "
                    "forward pass, and such a write does not last in a streamed chain; "
                    "change parameters between steps"
                )


def cut(sizes: Sequence[int], slices: int | None) -> list[range]:
    """Cut layers into consecutive parts with the smallest possible largest pair of
    neighbours.

    Of the cuts with the same largest pair, the result has the smallest largest part.

    >>> cut([1, 4, 1, 4], 3)
    [range(0, 2), range(2, 3), range(3, 4)]
    >>> cut([4, 0, 0, 1], None)
    [range(0, 3), range(3, 4)]

    :param sizes: the bytes of the layers
    :param slices: the largest number of parts
    """
    if slices is None:
        starts = [number for number, size in enumerate(sizes) if size or not number]
        ends = [*starts, len(sizes)]
    else:
        limits, last = range(sum(sizes) + 1), len(sizes)
        through = partial(fill, sizes, min(slices, last))
        # With a larger limit the parts reach as far or farther. So bisection finds the
        # smallest limit with which they reach the end.
        pair = bisect_left(limits, last, key=lambda limit: through(limit, limit)[-1])
        one = bisect_left(limits, last, key=lambda limit: through(pair, limit)[-1])
        ends = through(pair, one)
        # The smallest number of parts that reaches the end is enough.
        ends = ends[: ends.index(last) + 1]
        # If a part reaches as far as the next one, the next part gets a layer of it.
        for number in reversed(range(1, len(ends) - 1)):
            ends[number] = min(ends[number], ends[number + 1] - 1)
    return [range(*part) for part in pairwise(ends)]


def fill(sizes: Sequence[int], parts: int, pair: int, one: int) -> list[int]:
    """The number of layers that 0, 1, 2, ... parts can hold.

    Each part is limited by its own size, and by its size together with the part before
    it. Several cuts may reach the same layer with the same number of parts. Of these,
    the best one to continue is the one whose last part begins last. This last part
    begins at the farthest layer that the parts before it can reach, or one layer
    earlier, so that it is never empty.

    >>> fill([1, 4, 1, 4], 3, pair=6, one=5)
    [0, 2, 3, 4]

    :param pair: the bytes that two neighbours may have
    :param one: the bytes that a part may have
    """
    totals, ends = [0, *accumulate(sizes)], [0]
    for number in range(parts):
        last = ends[-1]
        before = max(0, min(ends[-2], last - 1)) if number > 1 else 0
        limit = min(totals[before] + pair, totals[last] + one)
        ends.append(bisect_right(totals, limit) - 1)
    return ends


def named_tensors(model: nn.Module, recurse: bool = True) -> dict[str, Tensor]:
    """All parameters and buffers, under each of their names."""
    return {
        **dict(model.named_parameters("", recurse, remove_duplicate=False)),
        **dict(model.named_buffers("", recurse, remove_duplicate=False)),
    }


def bytes_of(layer: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in layer.parameters())


# sidelit: depth Changes between the two runs or after the cut, and models that cannot be streamed.


class Seen:
    """The tensors that the first run of a slice has read, and the second run must read."""

    def __init__(self, part: Slice) -> None:
        self.part = part
        self.buffers = dict(part.buffers)
        self.versions = part.versions()

    def note_buffers(self) -> None:
        """Record the versions of the buffers, which must not change from here on.

        A buffer to which the run wrote is represented by a copy of its earlier values.
        """
        self.versions_of_buffers = Versions(*self.buffers.values())

    def refuse_changes(self) -> None:
        """:raises RuntimeError: if a parameter or buffer has changed"""
        parameters = self.versions.changed(*self.part.parameters.values())
        buffers = self.versions_of_buffers.changed(*self.buffers.values())
        for tensor in [*parameters, *buffers]:
            raise RuntimeError(
                f"{self.part.names.get(tensor)} has changed between the forward and "
                "the backward pass, which recomputes the activations; "
                "let the optimizer step after the backward pass"
            )


class Contents:
    """The layers and tensors of a chain when it was cut.

    A slice computes with the layers and tensors of that moment. Suppose a program
    replaces one of them later. The chain would compute with a tensor that is no longer
    in it, and the new one would never be trained. So this class detects the change.
    """

    def __init__(self, chain: nn.Sequential) -> None:
        # The chain's `forward` refers to this object. A reference back to the chain
        # would keep both alive.
        self.chain = ref(chain)
        self.layers, self.tensors = list(chain), named_tensors(chain)
        STREAMED.add(chain)

    def refuse_changes(self) -> None:
        """Compare with the chain's present layers and tensors.

        Only a new buffer, which a layer may create itself, is allowed.

        :raises RuntimeError: if a layer, parameter or buffer was replaced or moved
        """
        chain = self.chain()
        if chain is None:
            return
        if [*map(id, chain)] != [*map(id, self.layers)]:
            raise RuntimeError(
                "the chain has other layers than when it was streamed; "
                "call stream(list(model), ...) to stream it anew"
            )
        now, parameters = named_tensors(chain), dict(chain.named_parameters())
        for name in [*self.tensors, *parameters]:
            old = self.tensors.get(name)
            if old is None or old is not now.get(name):
                raise RuntimeError(
                    f"{name} was replaced after stream(); change values in place, such as "
                    "by load_state_dict without assign=True, or stream list(model) anew"
                )
            if old.device.type != "cpu":
                raise RuntimeError(
                    f"{name} was moved to {old.device} after stream(), which keeps the "
                    "model on the host; stream list(model.cpu()) anew"
                )


def refuse_unfit(
    chain: nn.Sequential, slices: int | None, dtype: torch.dtype | None
) -> None:
    """Refuse a model that cannot be streamed, and say why."""
    fits = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    if dtype is not None and not (fits and dtype.itemsize > 1):
        raise TypeError(
            f"param_dtype is {dtype!r}, but it must be a floating-point dtype of 16 bits "
            "or more, such as torch.bfloat16"
        )
    kind = type(chain)
    for name, module in chain.named_modules():
        if module in STREAMED:
            one = name or f"this {kind.__name__}"
            raise ValueError(f"{one} is streamed already; call stream once")
    if kind.forward is not nn.Sequential.forward or "forward" in vars(chain):
        raise TypeError(
            f"{kind.__name__} has a forward of its own, so its layers may be no "
            "chain; pass the nn.Sequential or the list of layers inside of it"
        )
    if slices is not None and (type(slices) is not int or slices < 1):
        raise ValueError(
            f"slices is {slices!r}, but it must be a whole number from 1 on"
        )
    if not len(chain):
        raise ValueError("the chain has no layers; pass at least one")
    tensors = [*chain.named_parameters(), *chain.named_buffers()]
    for name, tensor in tensors:
        if is_sharded(tensor):
            raise ValueError(
                f"{name} is sharded; stream the model or shard it, not both"
            )
        if tensor.device.type != "cpu":
            raise ValueError(
                f"{name} is on {tensor.device}, and streaming keeps the model on the host; "
                "call model.cpu() first, or give it memory there"
            )


def refuse_others(slices: list[Slice], number: int, x: Any) -> None:
    """A checkpoint keeps a slice's input, so that has to be a tensor. Within a slice layers
    may pass on what they like.

    :param x: what slice `number` is to compute with
    """
    if not isinstance(x, Tensor):
        last = sum(len(part.layers) for part in slices[:number]) - 1
        raise TypeError(
            f"{f'the output of layer {last}' if number else 'the input'} is a "
            f"{type(x).__name__}, but a slice takes one tensor; put layers that pass on "
            "something else into one nn.Sequential"
        )
