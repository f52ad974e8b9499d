r"""# A snapshot of the memory at its peak

> `--memory-snapshot` lists every storage that is alive when a rank stores the most,
> with its kind and its unit.

Suppose a step needs 44 MB at its peak, and you want to lower this number. Then you need
to know which tensors are alive at that moment. With `--memory-snapshot FOLDER` [the
meter](measure.py) of the last step records its peak: every storage that was alive, its
size, and its kind. In the run of [the training chapter](loop.py), `memory-rank0.json`
begins like this:

```json
{
 "peak": 44301361,
 "operation": "aten.gelu_backward.default",
 "whole": [
  "block2",
  "block3"
 ],
 "kinds": {
  "activations and temporaries": 36390408,
  "optimizer state": 3501268,
  "shard": 1750528,
  "full": 1586176,
```

| kind | what it is |
|---|---|
| `shard` | [the part](flat.py#Flat) of a unit's parameters that a rank keeps |
| `full` | [the whole vector](unit.py) of a unit that is in use or is being gathered |
| `grad_full` | [the vector](gradients.py) that collects the gradients of a unit |
| `sending` | such a vector while it is sent to the other ranks |
| `gradients` | mean gradients that wait for the optimizer |
| `optimizer state` | the optimizer's moments and counters |
| `text` | the training text, if it is not mapped |
| `activations and temporaries` | the rest: saved activations, results of operations, received messages |

`storages` lists the storages one by one, the largest first, each with its unit.
`operation` is the operation that reached the peak, and `whole` names the units that were
whole at that moment. In this run, the backward pass of GELU was in block 3, while block
2 was prefetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardbook.foundations.torch_private import as_plain, storage_id
from shardbook.models.corpus import Text
from shardbook.planning.measure import Meter
from shardbook.planning.report import as_json, write
from shardbook.zero.conductor import conductor_of

__all__ = ["MemorySnapshot"]

# sidelit: hide
Named = dict[int, tuple[str, str]]
OTHER = "activations and temporaries"
# sidelit: show


class MemorySnapshot(Meter):
    """A meter that records which storages made up the peak.

    :param model: a sharded model, which names the units
    :param optimizer: the model's optimizer
    :param texts: the training texts
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        texts: Sequence[Text] = (),
    ) -> None:
        super().__init__()
        self.units = list(conductor_of(model).drivers)
        self.optimizer, self.texts = optimizer, texts
        self.at_peak: list[tuple[int, str, str]] = []
        self.operation, self.whole = "", list[str]()

    def __torch_dispatch__(
        self,
        operation: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        before = self.peak
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        if self.peak > before or not self.at_peak:
            self.remember(str(operation))
        return result

    def remember(self, operation: str) -> None:
        """Record all storages that are alive now."""
        named = self.named()
        self.operation = operation
        self.whole = [
            unit.name
            for unit in self.units
            if all(flat.full.untyped_storage().nbytes() for flat in unit.flats)
        ]
        self.at_peak = [
            (storage.nbytes(), *named.get(key, (OTHER, "")))
            for key, storage in self.storages.items()
            if storage.nbytes()
        ]

    def named(self) -> Named:
        """The kind and the unit of each storage that is known."""
        with as_plain():
            found = [
                *((tensor, "optimizer state", "") for tensor in self.moments()),
                *((text, "text", "") for text in self.texts),
                *self.of_units(),
            ]
        return {
            storage_id(tensor.untyped_storage()): (kind, unit)
            for tensor, kind, unit in found
            if isinstance(tensor, Tensor)
        }

    def of_units(self) -> Iterator[tuple[Tensor | None, str, str]]:
        """The vectors of all units. If a vector has two names, the later one counts: below stage 3 `shard`
        is a part of `full`.
        """
        for unit in self.units:
            for flat in unit.flats:
                yield flat.full, "full", unit.name
                yield flat.shard, "shard", unit.name
                yield flat.grad_full, "grad_full", unit.name
                yield flat.sending, "sending", unit.name
                for parameter in flat.parameters:
                    yield parameter.grad, "gradients", unit.name

    def moments(self) -> Iterator[Any]:
        """The optimizer's state of each parameter."""
        for state in self.optimizer.state.values():
            yield from state.values()

    def save(self, folder: Path) -> None:
        """Write this rank's file."""
        kinds: dict[str, int] = {}
        for nbytes, kind, _ in self.at_peak:
            kinds[kind] = kinds.get(kind, 0) + nbytes
        ordered = sorted(self.at_peak, key=lambda one: -one[0])
        figures = {
            "peak": self.peak,
            "operation": self.operation,
            "whole": self.whole,
            "kinds": dict(sorted(kinds.items(), key=lambda pair: -pair[1])),
            "storages": [
                {"bytes": nbytes, "kind": kind, "unit": unit}
                for nbytes, kind, unit in ordered
            ],
        }
        option = "--memory-snapshot"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"memory-rank{dist.get_rank()}.json"
        write(file, as_json(figures), option)
