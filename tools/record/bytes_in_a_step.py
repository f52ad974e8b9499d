"""A step of the training loop under a meter that looks at each act of a unit. Several recordings share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shardbook.foundations.collectives import world
from shardbook.foundations.hook_context import observers
from shardbook.models import corpus
from shardbook.models.gpt import Config
from shardbook.train.options import parse
from shardbook.train.plan import Run, run_with, sharded_model
from shardbook.train.tracking import MemorySnapshot

# Small enough for seconds, and its parameters take more memory than its activations.
CONFIG = Config(layers=8, width=96, heads=4, context=16, vocabulary=256)
BATCH = 1
SHAPE = f"--layers {CONFIG.layers} --width {CONFIG.width} --heads {CONFIG.heads} --context {CONFIG.context}"

# What a step consists of: these moments are kept, whatever is stored.
PARTS = ("begin", "forward", "backward", "step", "end")


def run_of(arguments: str, make: Callable[[Any], nn.Module] | None = None) -> Run:
    """A run of the training program before its first step, on a text of some kilobytes.

    :param arguments: as for `shardbook.train`, beside the shape of the model
    :param make: the sharded model, given the options; the program's own by default
    """
    options = parse(f"{SHAPE} --batch {BATCH} {arguments}".split())
    rank, world_size = world()
    model = make(options) if make else sharded_model(options, torch.device("cpu"))
    text = corpus.read()[:4096].clone()
    reader = corpus.Reader(
        text, context=CONFIG.context, batch=BATCH, rank=rank, world_size=world_size, seed=options.seed
    )
    return run_with(model, options, reader)


class Watched(MemorySnapshot):
    """A meter that writes down what is stored, by kind, whenever a unit has acted and that has changed it.

    `rows` has for each moment its name and the bytes of each kind, and the highest sum since the row before.
    The text is left out.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run.model, run.optimizer, [run.batches.reader.text])
        self.rows: list[tuple[str, dict[str, int], int]] = []
        self.high = 0

    def __enter__(self) -> Watched:
        super().__enter__()
        observers.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        observers.remove(self)
        super().__exit__(*error)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        self.high = max(self.high, self.now())
        return result

    def begins(self, act: str, about: Any) -> None:
        """Before an exchange of gradients the vector that collects them is still there."""
        if act == "reduce":
            self.note(f"before {act} {about}")

    def ends(self, act: str, about: Any) -> None:
        """A unit has acted, or a part of the step is over."""
        self.note(f"{act} {about}")

    def note(self, moment: str) -> None:
        """Write down what is stored now."""
        named = self.named()
        kinds: dict[str, int] = {}
        for key, storage in list(self.storages.items()):
            if storage.nbytes():
                kind, _ = named.get(key, ("activations and temporaries", ""))
                kinds[kind] = kinds.get(kind, 0) + storage.nbytes()
        text, total = kinds.pop("text"), self.now()
        if not self.rows or kinds != self.rows[-1][1] or moment.startswith(PARTS):
            self.rows.append((moment, kinds, max(self.high, total) - text))
            self.high = total

    def columns(self) -> dict[str, Any]:
        """The same by kind: one list of bytes for each."""
        kinds = sorted({kind for _, row, _ in self.rows for kind in row})
        return {
            "moments": [moment for moment, _, _ in self.rows],
            "bytes": {kind: [row.get(kind, 0) for _, row, _ in self.rows] for kind in kinds},
            "highest": [high for _, _, high in self.rows],
        }
