"""A block's flat vector: its parameters, their places, the padding, and where 2 and 4 ranks cut it."""

from __future__ import annotations

from typing import Any

from tools.record.frame import ranks

from shardbook import shard
from shardbook.models.gpt import GPT, Block, Config
from shardbook.zero.scheduler import scheduler_of

# In the narrow block all parts of the vector can be seen; the other one has a usual shape.
WIDTHS = (8, 128)
RANKS = (2, 4)


def record() -> Any:
    """One entry for each width, with what each number of ranks makes of it."""
    found = [ranks(world_size, vectors)[0] for world_size in RANKS]
    return [
        {
            "width": width,
            "cuts": {world_size: vector for world_size, (_, vector) in zip(RANKS, of_width, strict=True)},
            "parameters": of_width[0][0],
        }
        for width, of_width in zip(WIDTHS, zip(*found, strict=True), strict=True)
    ]


def vectors() -> list[Any]:
    """On a rank: the first block's vector, at each width."""
    return [vector(width) for width in WIDTHS]


def vector(width: int) -> tuple[Any, Any]:
    """The parameters of a block as the model has them, and the vector that the library makes of them."""
    model = GPT(Config(layers=1, width=width, heads=2, context=16, vocabulary=16))
    before = {name: list(parameter.shape) for name, parameter in model.block0.named_parameters()}
    shard(model, units=Block)
    (unit,) = (unit for unit in scheduler_of(model).units if unit.name == "block0")
    (flat,) = unit.flats
    layout = flat.layout
    named = [
        {"name": name, "shape": shape, "numel": slot.numel, "offset": slot.offset}
        for (name, shape), slot in zip(before.items(), layout.slots, strict=True)
    ]
    return named, {
        "numel": layout.numel,
        "padded": layout.padded,
        "shard_numel": layout.shard_numel,
        "gaps": layout.gaps,
        # For each parameter, how many of its values each rank keeps.
        "kept": [
            [stop - start for start, stop in (layout.piece(slot, rank) for rank in range(layout.world_size))]
            for slot in layout.slots
        ],
    }
