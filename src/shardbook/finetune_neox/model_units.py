r"""# The units of somebody else's model

> Each block of the model is a unit, and so are its embedding and its output layer.

Most models of the `transformers` library are a chain of equal blocks between an
embedding and an output layer. The library names the class of the blocks, since nobody
may put the halves of one on two devices. In a GPT-NeoX that is `GPTNeoXLayer`.

The embedding and the output layer have a row for each token of the vocabulary, and are
about as large as a block. As parts of the root they would be whole during all of a
forward pass. So each is a unit of its own. If they are tied, they are one parameter, and
[belong to the root](parameter_sites.py#sites_by_unit) after all, since both use it.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from shardbook.command import Mistake

__all__ = ["blocks_of", "units_of"]
# sidelit: show


def units_of(model: Any, blocks: list[nn.Module]) -> Callable[[str, nn.Module], bool]:
    """The function by which [`shard`](model.py#shard) chooses units."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    chosen = {id(module) for module in (*blocks, *ends)}
    return lambda name, module: id(module) in chosen


def blocks_of(model: Any, named: str | None = None) -> list[nn.Module]:
    """The blocks of a model.

    :param named: their class; `None` for what the library says
    :raises Mistake: if there are none
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
