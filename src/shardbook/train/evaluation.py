r"""# The loss on unseen text

> How well the model predicts text that it was not trained on, and what text it writes.

The loss in training says how well the model does on text that it learns from. A model
that learns its text by heart has a low loss there and a high one elsewhere. So the run
holds back [the end of the text](text.py), and computes the loss on it: after the last
step, and with `--evaluate-every 100` after every 100 steps. At the end the model goes
on from `--prompt`, because a few lines show what no number does.

Both take forward passes, and in a sharded model a forward pass takes all ranks. So all
ranks evaluate, each on its own share, and all ranks write the same text, of which rank
0 prints one copy.
"""

# sidelit: hide
from __future__ import annotations

import argparse
from unicodedata import category

import torch
import torch.distributed as dist
from torch import nn

from shardbook.foundations.collectives import all_reduce
from shardbook.models import corpus, gpt
from shardbook.train.tokens import load

__all__ = ["evaluate", "mean_over_ranks", "sample"]
# sidelit: show


@torch.no_grad()
def evaluate(
    model: nn.Module, unseen: corpus.Reader, batches: int | None = None
) -> float:
    """The mean loss of this rank's share of the text that the model was not trained on.

    An evaluation gathers the units, too, and a gather needs all ranks. So every rank
    has to run the model equally often, or [training stops](exchange_order.py) with a
    sentence that says so. The reader gives each rank the same number of batches.

    :param batches: how many to read at most; `None` means all
    """
    numbers = range(min(unseen.batches, batches or unseen.batches))
    losses = [
        gpt.loss(model(inputs), targets).item()
        for inputs, targets in map(unseen.__getitem__, numbers)
    ]
    return sum(losses) / len(losses)


def mean_over_ranks(value: float, device: torch.device | None) -> float:
    """The mean of a number that each rank has one of."""
    total = torch.tensor([value], dtype=torch.float64, device=device)
    all_reduce(total)
    return total.item() / dist.get_world_size()


@torch.no_grad()
def sample(options: argparse.Namespace, model: nn.Module, device: torch.device) -> str:
    """Text that the model writes, one token after the other, from the prompt on.

    Each token is drawn with the probability that the model gives it. The ranks draw
    with the same seed from the same logits, so they draw the same tokens.
    """
    tokens = encode(options)
    generator = torch.Generator().manual_seed(options.seed)
    for _ in range(options.sample):
        seen_1T = torch.tensor([tokens[-options.context :]], device=device)
        logits_V = model(seen_1T)[0, -1].float().cpu()
        drawn = torch.multinomial(logits_V.softmax(dim=0), 1, generator=generator)
        tokens.append(int(drawn))
    return decode(options, tokens)


def encode(options: argparse.Namespace) -> list[int]:
    """The prompt as tokens."""
    if options.tokenizer is None:
        return list(options.prompt.encode())
    ids: list[int] = load(options.tokenizer).encode(options.prompt).ids
    return ids


def decode(options: argparse.Namespace, tokens: list[int]) -> str:
    """Tokens as text. Bytes that are no letter become a question mark in a diamond."""
    if options.tokenizer is None:
        return printable(bytes(tokens).decode(errors="replace"))
    text: str = load(options.tokenizer).decode(tokens)
    return printable(text)


def printable(text: str) -> str:
    r"""A text that a terminal can show.

    A model that has learned little writes control characters, too, and a terminal would
    obey them.

    >>> printable("a\x1b[2Jb\n")
    'a�[2Jb\n'
    """
    return "".join(
        "�" if category(letter) == "Cc" and letter not in "\n\t" else letter
        for letter in text
    )
