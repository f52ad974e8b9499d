r"""# Where a run is in its text

> Two numbers say which windows were read, whatever the number of ranks.

[The reader](corpus.py#Reader) numbers its batches, and a batch has as many windows as
all ranks read together. So batch 12 of 2 ranks is not batch 12 of 4. A run that was
saved on 2 ranks and goes on with 4 needs a position that does not depend on their
number. Here it is an *epoch* and a *window*: how often the text was read to its end,
and how many windows of the present order have been read since.

| | 2 ranks, 3 windows each | goes on with 4 ranks |
|---|---|---|
| read in 5 steps | windows 0 to 29 | |
| position | epoch 0, window 30 | epoch 0, window 30 |
| the next step reads | windows 30 to 35 | windows 30 to 41 |

No window is read twice, and none is left out. With the same number of windows in a step
the run reads exactly what it would have read without the break.

```python
saved = batches.state_dict()
batches.load_state_dict(saved)
```

:notation $B$: `batch_size`, the number of windows that one rank reads at a time
:notation $N_d$: `world_size`, the number of ranks that read the text
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from shardbook.models.corpus import Reader
from shardbook.train.mapped_text import fingerprint

__all__ = ["Batches"]
# sidelit: show


class Batches:
    """This rank's batches, one after the other, without end.

    :param reader: where they come from
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.epoch = 0
        self.window = 0
        self.text = fingerprint(reader.text)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        # $N_d B$ windows are read in common. At the end of the text fewer may be left,
        # and they are left out, because every rank needs a whole batch.
        share = self.reader.batch_size * self.reader.world_size
        if self.window + share > self.reader.windows:
            self.epoch, self.window = self.epoch + 1, 0
        batch = self.reader.at(self.epoch, self.window)
        self.window += share
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The position, and what it is a position in: plain values, the same on every rank."""
        return {
            "epoch": self.epoch,
            "window": self.window,
            "context": self.reader.context,
            "seed": self.reader.seed,
            "text": self.text,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position that was saved, also by another number of ranks.

        :raises ValueError: if it is a position in another text, or in another order of
            it
        """
        own = self.state_dict()
        for name in ("text", "context", "seed"):
            if state[name] != own[name]:
                raise ValueError(
                    f"the position was saved with {name} {state[name]}, but this run "
                    f"has {name} {own[name]}, so it would read other windows"
                )
        self.epoch, self.window = state["epoch"], state["window"]
