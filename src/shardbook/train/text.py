r"""# The text of a run

> A book that comes with the library, or files of your own, in bytes or in tokens.

Without options a run reads [a book](corpus.py), which is so short that each rank holds
all of it on its device. `--data PATH` names a file or a folder instead, which is
[mapped](mapped_text.py) and never read as a whole. With `--tokenizer FILE` it is
[encoded](tokens.py) first.

The end of the text is held out, one tenth unless `--held-out` says otherwise. The model
never trains on it, and [an evaluation](evaluation.py) reads it.
"""

# sidelit: hide
from __future__ import annotations

import argparse
from importlib.resources import as_file, files

import torch
import torch.distributed as dist

from shardbook.models import corpus
from shardbook.models.corpus import Text
from shardbook.train.mapped_text import MappedText, files_of
from shardbook.train.tokens import encoded, load, token_dtype

__all__ = ["prepare", "readers", "stored"]
# sidelit: show


def prepare(options: argparse.Namespace) -> None:
    """Find the files of the text, and encode them if that is wanted.

    This takes place before the ranks meet. Encoding can take longer than ranks wait for
    each other.

    :raises Mistake: if there are no files, or they cannot be encoded
    """
    options.files = files_of(options.data) if options.data is not None else []
    options.token_dtype = torch.uint8
    if options.tokenizer is not None:
        options.token_dtype = token_dtype(load(options.tokenizer))
        # The book in tokens is a file like any other.
        with as_file(files("shardbook") / "data" / "alice.txt") as book:
            texts = options.files or [book]
            options.files = [encoded(options.tokenizer, texts, options.cache)]


def readers(
    options: argparse.Namespace, device: torch.device
) -> tuple[corpus.Reader, corpus.Reader]:
    """This rank's share of the training text and of the unseen text."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    context = options.context
    training, unseen = halves(options, device)
    # The unseen text is short. With many ranks there may be less than a whole batch of
    # it for each.
    share = min(options.batch, max(1, (len(unseen) - 1) // context // world_size))

    def reader(part: Text, batch: int) -> corpus.Reader:
        return corpus.Reader(
            part,
            context=context,
            batch=batch,
            rank=rank,
            world_size=world_size,
            seed=options.seed,
            device=device,
        )

    return reader(training, options.batch), reader(unseen, share)


def halves(options: argparse.Namespace, device: torch.device) -> tuple[Text, Text]:
    """The text that is trained on, and the text that is not."""
    if not options.files:
        training, unseen = corpus.split(corpus.read(), options.held_out)
        return training.to(device), unseen.to(device)
    text = MappedText(options.files, options.token_dtype)
    cut = len(text) - int(len(text) * options.held_out)
    return text.part(0, cut), text.part(cut, len(text))


def stored(*parts: Text) -> int:
    """The bytes of text that a rank holds. What is mapped belongs to the system."""
    return sum(part.nbytes for part in parts if isinstance(part, torch.Tensor))
