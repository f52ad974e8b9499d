r"""# The loss on unseen text

> An evaluation computes the loss on text that the model was not trained on, and the
> model continues a prompt.

A model that has learned its text by heart has a low loss on this text and a high loss
on any other. So the loss in training does not tell you how good the model is. A run
holds back [the end of the text](text.py), and computes the loss on it: after the last
step, and with `--evaluate-every 100` after every 100 steps. At the end the model
continues `--prompt`, because a few written lines show more than a number.

Both need forward passes. In a sharded model a forward pass gathers the units, and a
gather needs all ranks. So all ranks evaluate, each on its own share of the text. All
ranks continue the prompt, too, with the same result, and rank 0 prints it.
"""

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


@torch.no_grad()
def evaluate(
    model: nn.Module, unseen: corpus.Reader, batches: int | None = None
) -> float:
    """Compute the mean loss on this rank's share of the unseen text.

    All ranks have to run the model equally often. If one rank had a batch more, its
    gather would find no partner, and [training would stop with an
    error](exchange_order.py). The reader gives each rank the same number of batches.

    :param batches: how many batches to read at most; `None` means all
    """
    numbers = range(min(unseen.batches, batches or unseen.batches))
    losses = [
        gpt.loss(model(inputs), targets).item()
        for inputs, targets in map(unseen.__getitem__, numbers)
    ]
    return sum(losses) / len(losses)


def mean_over_ranks(value: float, device: torch.device | None) -> float:
    """The mean of one number from each rank."""
    total = torch.tensor([value], dtype=torch.float64, device=device)
    all_reduce(total)
    return total.item() / dist.get_world_size()


@torch.no_grad()
def sample(options: argparse.Namespace, model: nn.Module, device: torch.device) -> str:
    """Continue the prompt, one token after the other.

    Each token is drawn with the probability that the model gives it. All ranks have the
    same logits and the same seed, so they draw the same tokens.
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
    """Convert tokens to text. Bytes that are not valid UTF-8 become �."""
    if options.tokenizer is None:
        return printable(bytes(tokens).decode(errors="replace"))
    text: str = load(options.tokenizer).decode(tokens)
    return printable(text)


def printable(text: str) -> str:
    r"""Replace control characters, so that a terminal can show the text.

    A model that has learned little writes control characters, and a terminal would
    execute them, for example clear the screen.

    >>> printable("a\x1b[2Jb\n")
    'a�[2Jb\n'
    """
    return "".join(
        "�" if category(letter) == "Cc" and letter not in "\n\t" else letter
        for letter in text
    )
