r"""# What belongs to one rank

> Buffers and random numbers differ from rank to rank, so a checkpoint holds them by rank.

After some steps the running mean of a batch norm is that of a rank's own data, and its
generators have drawn numbers of their own. A run goes on bit for bit only if each rank
has its own back. A program that knows nothing of ranks finds the first rank's buffers
under their usual names:

| name in the checkpoint | holds |
|---|---|
| `model.norm.running_mean` | the buffer of the first rank |
| `shardbook.rank.1.buffer.norm.running_mean` | that of the second rank |
| `shardbook.rank.1.generator.cpu` | the state of its generator |
| `shardbook.rank.1.generator.cuda` | that of the generator of its GPU, whatever its number |
| `shardbook.rank.1.generator.python` | that of Python's `random` |
"""

# sidelit: hide
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
from shardbook.state.plain_data import plain, restored
from shardbook.state.stored import MODEL, Stretch
from shardbook.zero.conductor import conductor_of
from shardbook.zero.model_casts import before_casting

__all__ = ["blob", "buffers", "generators", "go_on", "own"]
# sidelit: show


def own(kind: str, name: str) -> str:
    """The name of something that belongs to this rank."""
    return f"shardbook.rank.{world(None)[0]}.{kind}.{name}"


def buffers(model: nn.Module, *, mine: bool) -> Iterator[tuple[Tensor, Stretch]]:
    """The buffers that a `state_dict` has, each with a copy of it to write or to read into.

    A buffer that [the policy has cast](model_casts.py#cast_buffers) has its old dtype there.

    :param mine: whether this rank has its own, or takes those of the first one
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
    """A tensor that this rank writes, or reads, whole."""
    return Stretch((name,), tuple(values.shape), 0, values.view(-1))


def generators(model: nn.Module) -> Iterator[Stretch]:
    """The states of this rank's generators: the CPU's, Python's, and those of the model's devices."""
    for source, name in sources(model).items():
        yield blob(own("generator", name), read(source))
    text = json.dumps(plain(random.getstate(), "random"))
    yield blob(own("generator", "python"), as_bytes(text))


def go_on(model: nn.Module, found: dict[str, Tensor]) -> None:
    """Let this rank's generators go on.

    :param found: the states, by the names that they are stored under
    """
    for source, name in sources(model).items():
        state = found.get(own("generator", name))
        if state is not None:
            set_generator(source, state)
    python = found.get(own("generator", "python"))
    if python is not None:
        random.setstate(restored(json.loads(as_text(python))))


def sources(model: nn.Module) -> dict[Source, str]:
    """The generators of a rank, and how each is called.

    The name has no number of a device. A rank may find itself on another one when the
    job is started again, such as the first GPU of its own machine instead of the second
    GPU of a shared one. With offload no parameter lies on the device that computes; the
    units know which one that is.
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
    """A text as a tensor of `uint8`."""
    return torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8)


def as_text(values: Tensor) -> str:
    """The text again."""
    return bytes(values.tolist()).decode("utf-8")
