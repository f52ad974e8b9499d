r"""# The text of the examples

> Every rank reads another part of each batch, and together they read the batch of a single process.

The examples train on *Alice's Adventures in Wonderland*, which comes with the library.
A text of 148 kB is small. But a byte is a token here, so a model of a million
parameters has something to learn in a minute.

In data parallel training, no two ranks may read the same data in a step. Suppose two
ranks read the same windows. They compute the same gradient, the mean over the ranks is
the gradient of one rank, and the loss still falls, so nothing looks wrong. This chapter
makes it easy to check that this does not happen. The ranks share one order of all
windows, and rank $r$ takes the $r$-th part of each batch.

:notation $N_d$: `world_size`, the number of ranks
:notation $B$: `batch`, the number of windows that one rank reads at a time
:notation $T$: `context`, the number of tokens in a window
:notation $r$: `rank`, the number of one rank
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Reader", "Text", "read", "split"]


class Text(Protocol):
    """A sequence of tokens: a 1-D tensor, or [files](text.py#module/memory-mapped-text) with slices of it."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> Tensor: ...


class Reader:
    r"""One rank's share of the batches, the same in every run with the same seed.

    Batches are numbered from 0 and can be read in any order. To resume in the middle, a
    run needs only the number of the batch at which it stopped.

    :param text: the tokens to read, such as a 1-D tensor of bytes
    :param context: $T$, the number of tokens in a window
    :param batch: $B$, the number of windows in one batch on one rank
    :param rank: this rank
    :param world_size: $N_d$, the number of ranks that share the text
    :param seed: decides the order; it must be the same on every rank
    :param device: the device of the batches; `None` leaves them where the text is
    :raises ValueError: if the text is too short for one batch on every rank
    """

    def __init__(
        self,
        text: Text,
        *,
        context: int,
        batch: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self.text = text
        self.context = context
        self.batch_size = batch
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.device = device
        # One token more than the windows cover, because the last window needs a target.
        self.windows = max(0, len(text) - 1) // context
        self.batches = self.windows // (batch * world_size)
        if self.batches == 0:
            raise ValueError(
                f"a batch of {batch} on each of {world_size} ranks takes {batch * world_size} windows, "
                f"but a text of {len(text)} tokens has {self.windows} windows of {context}; "
                "lower batch or context"
            )
        self._shuffled: tuple[int, list[int]] | None = None

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        """The batch with this number: the inputs, and the token that follows each position."""
        epoch, number = divmod(number, self.batches)
        return self.at(epoch, number * self.world_size * self.batch_size)

    def at(self, epoch: int, window: int) -> tuple[Tensor, Tensor]:
        """The batch that begins with this window of the common order."""
        # The $N_d$ parts of a batch lie side by side in the common order, so they
        # cannot overlap.
        first = window + self.rank * self.batch_size
        windows = self.order(epoch)[first : first + self.batch_size]
        return self.cut(windows, 0), self.cut(windows, 1)

    def order(self, epoch: int) -> Sequence[int]:
        """All windows in the order of one epoch, each of them once."""
        if self._shuffled is None or self._shuffled[0] != epoch:
            # The order has a generator of its own. The ranks may use the global one
            # differently, and then their orders would differ and their windows overlap.
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._shuffled = (
                epoch,
                torch.randperm(self.windows, generator=generator).tolist(),
            )
        return self._shuffled[1]

    def cut(self, windows: Sequence[int], shift: int) -> Tensor:
        """The windows' tokens, a `(B, T)` integer tensor, `shift` tokens later."""
        starts = [window * self.context + shift for window in windows]
        batch = torch.stack(
            [self.text[start : start + self.context] for start in starts]
        )
        return batch.long().to(self.device or batch.device)


def read() -> Tensor:
    """The whole text, one `uint8` for each byte."""
    content = (files("shardbook") / "data" / "alice.txt").read_bytes()
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def split(text: Tensor, held_out: float = 0.1) -> tuple[Tensor, Tensor]:
    """The text in two parts: one to train on, and the end of the book as held-out text.

    There is a single cut, so no held-out window overlaps one of the training.
    """
    cut = len(text) - int(len(text) * held_out)
    return text[:cut], text[cut:]
