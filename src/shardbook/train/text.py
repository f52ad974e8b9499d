r"""# The training text

> A run trains on a short book from the library or on your own files, as bytes or as
> tokens.

Without options a run reads [a book](corpus.py) of 148 kB, which each rank stores
completely on its device. `--data PATH` names a file or a folder instead, which is
[mapped](mapped_text.py) and never read as a whole. With `--tokenizer FILE` the text is
[encoded](tokens.py) first.

The end of the text, one tenth by default, is held out. The model is never trained on
this part, and [evaluations](evaluation.py) use it. `--held-out` sets its size.
"""

from __future__ import annotations

import argparse
from importlib.resources import as_file, files

import torch
import torch.distributed as dist

from shardbook.command import Mistake
from shardbook.models import corpus
from shardbook.models.corpus import Text
from shardbook.train.mapped_text import MappedText, files_of, fingerprint
from shardbook.train.tokens import encoded, load, token_dtype

__all__ = ["prepare", "readers", "stored"]


def prepare(options: argparse.Namespace) -> None:
    """Find the files of the text, and encode them if there is a tokenizer.

    This happens before the ranks meet, because encoding can take longer than ranks wait
    for each other. When they meet, [they compare](same_options.py) hashes of their
    texts, because the files of each machine may lie on a disk of its own.

    :raises Mistake: if there are no files, or they cannot be read or encoded
    """
    options.files = files_of(options.data) if options.data is not None else []
    options.token_dtype = torch.uint8
    if options.tokenizer is not None:
        options.token_dtype = token_dtype(load(options.tokenizer))
        # If no files were named, the book is encoded into a file like any other text.
        with as_file(files("shardbook") / "data" / "alice.txt") as book:
            texts = options.files or [book]
            options.files = [encoded(options.tokenizer, texts, options.cache)]
    try:
        text = whole_text(options)
        options.content = {
            "the hash of the text (--data, --tokenizer)": fingerprint(text)
        }
    except OSError as error:
        raise Mistake(f"--data {options.data}: {error}") from error


def whole_text(options: argparse.Namespace) -> Text:
    """The training text and the unseen text in one."""
    if not options.files:
        return corpus.read()
    return MappedText(options.files, options.token_dtype)


def readers(
    options: argparse.Namespace, device: torch.device
) -> tuple[corpus.Reader, corpus.Reader]:
    """The readers of this rank's share of the training text and of the unseen text."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    context = options.context
    training, unseen = halves(options, device)
    # The unseen text is short. With many ranks it may have less than a whole batch for
    # each, so the batch is made smaller.
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
    """Split the text into the training text and the unseen text."""
    text = whole_text(options)
    if isinstance(text, torch.Tensor):
        training, unseen = corpus.split(text, options.held_out)
        return training.to(device), unseen.to(device)
    assert isinstance(text, MappedText)
    cut = len(text) - int(len(text) * options.held_out)
    return text.part(0, cut), text.part(cut, len(text))


def stored(*parts: Text) -> int:
    """The bytes of text on a rank. Mapped text belongs to the system, so it counts 0."""
    return sum(part.nbytes for part in parts if isinstance(part, torch.Tensor))
