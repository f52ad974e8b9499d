r"""# What a layer costs

> For each layer, the tensors that autograd saves are counted in bytes, and their recomputation in FLOPs.

In the forward pass each operation saves the tensors from which its gradient will be
computed. They stay in memory until the backward pass has used them, and are called
*activations*. Activation checkpointing drops some of them and recomputes them when they
are needed. A good choice needs two numbers for each layer: the bytes that a checkpoint
frees, and the computation that it adds.

Neither number is in a layer's documentation. Some operations save their input, some
their output, some both, and some a mask. So `measure` runs the layers once, and counts
what autograd saves:

>>> from torch import nn
>>> chain = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8), nn.Tanh())
>>> x = torch.zeros(4, 8)
>>> for layer in measure(chain, x).layers:
...     saves = [name for name in ("input", "output") if getattr(layer, f"saves_{name}")]
...     print(f"{layer.cost:4} FLOPs, output {layer.output} bytes, saves its", *saves)
2048 FLOPs, output 512 bytes, saves its input
   0 FLOPs, output 512 bytes, saves its input
2048 FLOPs, output 128 bytes, saves its input
   0 FLOPs, output 128 bytes, saves its output

A linear layer and a GELU save what they read. A tanh saves what it returns, because its
derivative is $1 - \tanh^2$. If two neighbouring layers both save the tensor between
them, it is one tensor, and is counted once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from shardbook.checkpointing.flops import FlopCounter
from shardbook.foundations.rng import capture
from shardbook.foundations.versions import Versions

__all__ = ["Chain", "Layer", "SavedBytes", "measure"]


class SavedBytes:
    """A block in which the bytes that autograd saves are counted.

    ```python
    with SavedBytes(model.parameters()) as saved:
        error = loss(model(x), y)
    print(saved.bytes)
    ```

    :param known: tensors that exist in any case, such as parameters; they are not
        counted
    :param counter: a counter of FLOPs; with it, `flops` holds the count at the moment
        of the last saved tensor
    """

    def __init__(
        self, known: Iterable[Tensor] = (), counter: FlopCounter | None = None
    ) -> None:
        self.hooks = saved_tensors_hooks(self.pack, lambda tensor: tensor)
        self.known = weakref.WeakSet(tensor.untyped_storage() for tensor in known)
        # Two saved tensors may be views of one block of memory, as the queries, keys
        # and values of an attention are. So storages are counted rather than tensors.
        # The references are weak, because counting a storage must not keep it alive.
        self.storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self.counter = counter
        self.flops: int | None = None

    def __enter__(self) -> SavedBytes:
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)

    def pack(self, tensor: Tensor) -> Tensor:
        """Count a tensor that autograd is about to save.

        This hook returns an alias instead of the tensor itself. If an operation saves
        its own output, the output holds the operation, and the operation would hold the
        output. Memory in such a circle stays until the garbage collector runs.
        """
        storage = tensor.untyped_storage()
        if storage not in self.known:
            self.storages.add(storage)
        if self.counter is not None:
            self.flops = self.counter.get_total_flops()
        return tensor.detach()

    @property
    def bytes(self) -> int:
        """The bytes of those saved storages that still exist. After the backward pass
        only the storages that something else holds are left, such as an input or a
        result.
        """
        return sum(storage.nbytes() for storage in self.storages)


@dataclass(frozen=True, slots=True)
class Layer:
    """The bytes and the FLOPs of one layer of a chain.

    :param cost: the FLOPs of its forward pass; or its seconds, if all layers are given
        in seconds
    :param replay: the part of `cost` up to the last tensor that the layer saves, where
        [a recomputation ends](recomputation.py#Collector); this is 0 for a linear
        layer, which saves its input before it computes; `None` if the layer saves
        nothing
    :param inner: the bytes that the layer saves, without its input and its output
    :param output: the bytes of its output
    :param saves_input: whether it saves its input
    :param saves_output: whether it saves its output
    :param passes: whether its output lies in the same memory as its input, as for
        `nn.Identity` or a view
    :param overwrites: whether it writes over its input, as `nn.ReLU(inplace=True)` does
    """

    cost: float
    replay: float | None
    inner: int
    output: int
    saves_input: bool
    saves_output: bool
    passes: bool = False
    overwrites: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """The layers of a chain, in their order.

    :param input: the bytes of what the first layer reads
    """

    input: int
    layers: tuple[Layer, ...]


def measure(functions: Iterable[Callable[[Any], Any]], input: Tensor) -> Chain:
    """Run the forward pass of a chain once, and count bytes and FLOPs layer by layer.

    The parameters and buffers of the modules are not counted. A tensor that two layers
    save is counted once if it is the output of one and the input of the next. Any other
    tensor that two layers save is counted twice, so a chain in which a tensor skips
    layers is overestimated.

    :param functions: an `nn.Sequential`, or an iterable of modules and functions
    :param input: what the first of them reads
    :raises TypeError: if anything but a single tensor goes into or out of a layer
    :raises RuntimeError: under `torch.no_grad()`, where autograd saves nothing
    """
    refuse_no_grad()
    functions = list(functions)
    modules = [function for function in functions if isinstance(function, nn.Module)]
    known = [
        tensor
        for module in modules
        for tensor in (*module.parameters(), *module.buffers())
    ]
    layers, value = [], input
    # The measurement must not change the random numbers or the buffers of the program.
    with capture(input, *modules).restored(), buffers_restored(modules):
        for function in functions:
            layer, value = measure_layer(function, value, known)
            layers.append(layer)
    return Chain(input.untyped_storage().nbytes(), tuple(layers))


def measure_layer(
    function: Callable[[Any], Any], value: Tensor, known: Iterable[Tensor]
) -> tuple[Layer, Tensor]:
    """Measure one layer, and return its output, too."""
    source, before = one_tensor(value).untyped_storage(), Versions(value)
    with FlopCounter() as counter, SavedBytes(known, counter) as saved:
        output = one_tensor(function(value))
    target = output.untyped_storage()
    inner = saved.bytes - sum(
        storage.nbytes() for storage in {source, target} & set(saved.storages)
    )
    return Layer(
        cost=counter.get_total_flops(),
        replay=saved.flops,
        inner=inner,
        output=target.nbytes(),
        saves_input=source in saved.storages,
        saves_output=target in saved.storages,
        passes=target is source,
        overwrites=bool(before.changed(value)),
    ), output


# sidelit: depth Buffers that a forward pass writes to, and chains that cannot be measured.


@contextmanager
def buffers_restored(modules: Iterable[nn.Module]) -> Iterator[None]:
    """A block that restores buffers at its end, such as the running mean of a batch
    normalisation. Some kernels write to a buffer without raising its version, so the
    values are compared.
    """
    before = [(buffer, buffer.clone()) for m in modules for buffer in m.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, values in before:
                if not torch.equal(buffer, values):
                    buffer.copy_(values)


def one_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    raise TypeError(
        f"a layer hands on a {type(value).__name__}; only a chain in which one tensor goes "
        "from layer to layer can be measured"
    )


def refuse_no_grad() -> None:
    """Refuse to measure where autograd saves nothing.

    :raises RuntimeError: if autograd is off
    """
    if not torch.is_grad_enabled():
        raise RuntimeError(
            "autograd saves nothing here; call measure outside of torch.no_grad() and "
            "torch.inference_mode()"
        )
