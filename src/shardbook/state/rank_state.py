r"""# Buffers and random states of each rank

> Buffers and random number generators differ from rank to rank, so a checkpoint stores
> them for each rank.

After some steps, a batch norm on rank 1 has the running mean of rank 1's data. The
generators of rank 1 have drawn their own random numbers, too. A resumed run takes the
same steps bit for bit only if each rank gets its own values back. A program without
ranks reads rank 0's buffers, which have their usual names:

| name in the checkpoint | content |
|---|---|
| `model.norm.running_mean` | the buffer on rank 0 |
| `shardbook.rank.1.buffer.norm.running_mean` | the buffer on rank 1 |
| `shardbook.rank.1.generator.cpu` | the state of the CPU's generator on rank 1 |
| `shardbook.rank.1.generator.cuda` | the state of the GPU's generator, whatever the GPU's number |
| `shardbook.rank.1.generator.python` | the state of Python's `random` on rank 1 |
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from shardbook.foundations.collectives import world
from shardbook.foundations.rng import Source, capture, read
from shardbook.foundations.rng import write as set_generator
from shardbook.foundations.torch_private import lasting_buffers
from shardbook.state.checkpoint_index import reading
from shardbook.state.plain_data import plain, restored
from shardbook.state.stored import MODEL, Stretch
from shardbook.zero.conductor import conductor_of
from shardbook.zero.model_casts import before_casting

__all__ = ["blob", "buffers", "generators", "go_on", "own"]


def own(kind: str, name: str) -> str:
    """The name in a checkpoint for something that belongs to this rank."""
    return f"shardbook.rank.{world(None)[0]}.{kind}.{name}"


def buffers(model: nn.Module, *, mine: bool) -> Iterator[tuple[Tensor, Stretch]]:
    """The buffers in a `state_dict`, each with a copy to write from or to read into.

    If [the policy has cast](model_casts.py#cast_buffers) a buffer, the copy has the
    dtype from before.

    :param mine: whether this rank uses its own buffers in the checkpoint, or those of
        rank 0
    """
    first = not mine or world(None)[0] == 0
    wide = before_casting.get(model, {})
    for prefix, module in model.named_modules(remove_duplicate=False):
        for key, buffer in lasting_buffers(module).items():
            name = f"{prefix}.{key}" if prefix else key
            stored = f"{MODEL}.{name}" if first else own("buffer", name)
            dtype = wide.get(name, buffer.dtype)
            copy = buffer.detach().to(dtype, copy=True).contiguous()
            yield buffer, blob(stored, copy)


def blob(name: str, values: Tensor) -> Stretch:
    """Describe a tensor that this rank writes or reads as a whole."""
    return Stretch((name,), tuple(values.shape), 0, values.view(-1))


def generators(model: nn.Module) -> Iterator[Stretch]:
    """The states of this rank's generators: the CPU's, Python's, and the devices' of the model."""
    for source, name in sources(model).items():
        yield blob(own("generator", name), read(source))
    text = json.dumps(plain(random.getstate(), "random"))
    yield blob(own("generator", "python"), as_bytes(text))


def go_on(model: nn.Module, found: dict[str, Tensor]) -> None:
    """Set this rank's generators to the saved states.

    :param found: the states, by their names in the checkpoint
    """
    with reading("the state of a random number generator cannot be restored"):
        for source, name in sources(model).items():
            state = found.get(own("generator", name))
            if state is not None:
                set_generator(source, state)
        python = found.get(own("generator", "python"))
        if python is not None:
            random.setstate(restored(json.loads(as_text(python))))


def sources(model: nn.Module) -> dict[Source, str]:
    """The generators of a rank, each with its name.

    The name does not contain a device's number, because a restarted job may give the
    rank another device. For example, rank 1 may get the first GPU of its own machine
    instead of the second GPU of a shared one. With offload, no parameter is on the
    device that computes, so the devices come from the units.
    """
    computing = (
        flat.device for unit in conductor_of(model).drivers for flat in unit.flats
    )
    named: dict[Source, str] = {}
    for source in capture(model, *computing).states:
        device = source.device if isinstance(source, torch.Generator) else source
        same = sum(name.partition(".")[0] == device.type for name in named.values())
        named[source] = f"{device.type}.{same}" if same else device.type
    return named


def as_bytes(text: str) -> Tensor:
    """Encode a text as a tensor of `uint8`, of shape `(n,)`."""
    return torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8)


def as_text(values: Tensor) -> str:
    """Decode such a tensor."""
    return bytes(values.tolist()).decode("utf-8")
