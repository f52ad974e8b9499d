r"""# The position of a run in its text

> An epoch and a window say which windows were read, and do not depend on the number of
> ranks.

[The reader](corpus.py#Reader) numbers its batches. The windows of a batch are divided
among all ranks, so batch 12 of 2 ranks and batch 12 of 4 ranks are different windows.
Suppose a run is saved on 2 ranks and resumed on 4. Then it needs a position that does
not depend on their number: an *epoch*, which counts how often the text was read to its
end, and a *window*, which counts the windows that were read since.

| | 2 ranks, 3 windows each | goes on with 4 ranks |
|---|---|---|
| read in 5 steps | windows 0 to 29 | |
| position | epoch 0, window 30 | epoch 0, window 30 |
| the next step reads | windows 30 to 35 | windows 30 to 41 |

No window is read twice, and none is left out. If a step has the same number of windows
as before, the run reads exactly the windows that it would have read without the break.

```python
saved = batches.state_dict()
batches.load_state_dict(saved)
```

:notation $B$: `batch_size`, the number of windows that one rank reads at a time
:notation $N_d$: `world_size`, the number of ranks that read the text
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from shardbook.models.corpus import Reader
from shardbook.train.mapped_text import fingerprint

__all__ = ["Batches"]


class Batches:
    """This rank's batches, one after the other, without end.

    :param reader: the source of the batches
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.epoch = 0
        self.window = 0
        self.text = fingerprint(reader.text)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        # All ranks together read $N_d B$ windows. If fewer are left at the end of the
        # text, they are skipped, because every rank needs a whole batch.
        share = self.reader.batch_size * self.reader.world_size
        if self.window + share > self.reader.windows:
            self.epoch, self.window = self.epoch + 1, 0
        batch = self.reader.at(self.epoch, self.window)
        self.window += share
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The position, with the text and the order to which it belongs. It is the same on every rank."""
        return {
            "epoch": self.epoch,
            "window": self.window,
            "context": self.reader.context,
            "seed": self.reader.seed,
            "text": self.text,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a position, even one that was saved with another number of ranks.

        :raises ValueError: if the position belongs to another text, or to another order
            of the windows
        """
        own = self.state_dict()
        for name in ("text", "context", "seed"):
            if state[name] != own[name]:
                raise ValueError(
                    f"the position was saved with {name} {state[name]}, but this run "
                    f"has {name} {own[name]}, so it would read other windows"
                )
        self.epoch, self.window = state["epoch"], state["window"]
