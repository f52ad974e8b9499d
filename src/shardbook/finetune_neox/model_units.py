r"""# Choosing the units of a transformers model

> Each block of the model is a unit, and so are the embedding and the output layer.

Most models of the `transformers` library consist of an embedding, a chain of equal
blocks, and an output layer. A model of the library names the class of its blocks,
because a block must not be divided between devices. In a GPT-NeoX this class is
`GPTNeoXLayer`.

The embedding and the output layer have a row for each token of the vocabulary, so each
is about as large as a block. As parts of the root they would be whole during the whole
forward pass. So each of them is a unit of its own. If the two are tied, they are one
parameter, which [belongs to the root](parameter_sites.py#sites_by_unit), because both
modules use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from shardbook.command import Mistake

__all__ = ["blocks_of", "units_of"]


def units_of(model: Any, blocks: list[nn.Module]) -> Callable[[str, nn.Module], bool]:
    """Make the function by which [`shard`](model.py#shard) chooses units."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    chosen = {id(module) for module in (*blocks, *ends)}
    return lambda name, module: id(module) in chosen


def blocks_of(model: Any, named: str | None = None) -> list[nn.Module]:
    """Find the blocks of a model.

    :param named: the name of their class; `None` for the class that the library names
    :raises Mistake: if the model has no such module
    """
    names = {named} if named is not None else set(model._no_split_modules or ())
    found = [each for each in model.modules() if type(each).__name__ in names]
    if named is not None and not found:
        raise Mistake(
            f"--units {named}: the model has no module of that class; its modules are "
            + ", ".join(sorted({type(each).__name__ for each in model.modules()}))
        )
    if not found:
        raise Mistake(
            f"the library does not say what the blocks of a {type(model).__name__} are; "
            "name their class with --units"
        )
    return found
