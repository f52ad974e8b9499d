"""What a rank stores between two steps: every byte of it, by name."""

from __future__ import annotations

import gc
from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer

from shardbook.planning.forecast import Meter
from shardbook.zero.scheduler import scheduler_of


def steady(model: nn.Module, optimizers: Iterable[Optimizer]) -> dict[str, int]:
    """The live bytes of this process by what they are. What none of the names explains stands last.

    The names follow from the layouts of the flat vectors, and the whole from the live storages.
    """
    gc.collect()
    with Meter() as meter:
        everything = meter.now()
    named = {"parameters": 0, "moments": 0, "step counters": 0, "alignment": 0, "padding": 0}
    for unit in scheduler_of(model).units:
        for flat in unit.flats:
            layout, size = flat.layout, flat.layout.dtype.itemsize
            for start, stop in layout.gaps:
                # A gap may lie across the border between two ranks.
                low, high = unit.rank * layout.shard_numel, (unit.rank + 1) * layout.shard_numel
                mine = max(0, min(stop, high) - max(start, low))
                named["padding" if stop == layout.padded else "alignment"] += size * mine
            named["parameters"] += sum(parameter.nbytes for parameter in flat.parameters)
    for optimizer in optimizers:
        for state in optimizer.state.values():
            named["step counters"] += state["step"].nbytes
            named["moments"] += state["exp_avg"].nbytes + state["exp_avg_sq"].nbytes
    return {**named, "unexplained": everything - sum(named.values())}
