r"""# Loading a model into shards

> The model is sharded before it has its weights, and then each rank reads only its own
> elements from the files.

The 20.6 billion parameters of the GPT-NeoX take 41 GB in 16 bits. On 8 ranks, each rank
keeps 5 GB of them. A program that reads the model first and shards it afterwards would
need 41 GB on every rank. So this program shards first:

| step | memory on each rank |
|---|---|
| the model is [built without memory](pretrained.py) | none |
| `shard` allocates and cuts [one unit after the other](construct.py) | its shards, and one unit |
| each rank reads its elements from the files | its shards, and 1 MB |

A rank knows [which elements of which tensor](stored.py) it has, and [the head of a
file](tensor_file.py) says where their bytes are. So the rank reads them directly. Each
of $N_d$ ranks reads $1/N_d$ of the files, and nothing is sent.

While a unit is cut, its parameters are zeros, because they will be overwritten. Buffers,
such as the angles of rotary embeddings, get their values from the library as usual. [A
formula](construction.py) gives the bytes that a rank stores meanwhile.

:notation $N_d$: `world_size`, the number of ranks that share the model
"""

from __future__ import annotations

import argparse
from glob import escape
from typing import Any

import torch
from torch import nn

from shardbook.checkpointing.checkpointing import checkpoint_module
from shardbook.finetune_neox.adapters import draw
from shardbook.finetune_neox.model_units import blocks_of, units_of
from shardbook.finetune_neox.pretrained import Pretrained
from shardbook.foundations.torch_private import own_buffers, own_parameters
from shardbook.state.model_folder import load_safetensors
from shardbook.state.stored import MODEL, stretches
from shardbook.state.tensor_file import fill, new_room
from shardbook.state.together import on_each
from shardbook.train.assemble import policy_of
from shardbook.zero.construct import Init
from shardbook.zero.model import shard

__all__ = ["first_values", "shard_and_load"]


def shard_and_load(
    start: Pretrained, options: argparse.Namespace, device: torch.device
) -> nn.Module:
    """Shard the model of a run, and read its weights.

    :param start: the pretrained model without memory; the same model is returned
    :raises ValueError: on every rank, if a tied weight has two values in the files
    :raises OSError: on every rank, if a file cannot be read
    """
    model = start.model
    blocks = blocks_of(model, options.units)
    if options.checkpoint != "none":
        reentrant = options.checkpoint == "reentrant"
        checkpoint_module(model, units=type(blocks[0]), use_reentrant=reentrant)
    # With the same seed all ranks draw the same numbers, so `synchronize` can be off.
    torch.manual_seed(options.seed)
    shard(
        model,
        stage=options.stage,
        units=units_of(model, blocks),
        policy=policy_of(options),
        device=device,
        init=first_values(start),
        synchronize=False,
    )
    load(start, model)
    # A model of the library returns an object. The training loop needs its logits.
    model.register_forward_hook(lambda _model, _inputs, result: result.logits)
    if options.compile != "none":
        for block in blocks:
            block.compile(backend=options.compile)
    return model


def first_values(start: Pretrained) -> Init:
    """Make the function that initializes a module after its memory was allocated."""
    names = {module: name for name, module in start.model.named_modules()}
    from_library: Any = start.model._init_weights

    def give(module: nn.Module) -> None:
        if draw(names[module], module):
            return
        held = [each for each in own_parameters(module).values() if each is not None]
        if start.folder is None or own_buffers(module) or not held:
            from_library(module)
            return
        for parameter in held:
            parameter.zero_()

    return give


def load(start: Pretrained, model: nn.Module) -> None:
    """Read this rank's elements of all tensors in the folder. Collective.

    Tensors that the model does not use, such as a mask of an older version, are
    ignored.
    """
    if start.folder is None:
        return
    used = set(start.stored.values())
    load_safetensors(
        model,
        start.folder,
        cast=True,
        ignore=[escape(name) for name in start.places if name not in used],
        rename=start.stored.get,
    )
    on_each(lambda: refuse_two_values(start, model))


# sidelit: depth A tied weight with two values.


@torch.no_grad()
def refuse_two_values(start: Pretrained, model: nn.Module) -> None:
    """Refuse a folder that holds a tied weight under two names with different values.

    :raises ValueError: naming both
    """
    for own in stretches(model):
        names = [name.removeprefix(f"{MODEL}.") for name in own.names]
        here = [name for name in names if name in start.stored]
        for name in here if len(here) > 1 else ():
            place = start.places[start.stored[name]]
            again = torch.empty_like(own.values)
            with place.file.open("rb") as file:
                fill(again, file, place, own.start, new_room())
            if not torch.equal(own.values, again):
                raise ValueError(
                    f"{here[0]} and {here[-1]} are one parameter by config.json, and have "
                    "different values in the files; set tie_word_embeddings to false there"
                )
