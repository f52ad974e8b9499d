r"""# The training text

> A run trains on a short book from the library or on your own files, as bytes or as
> tokens.

Without options a run reads [a book](corpus.py) of 148 kB, which each rank stores
completely on its device. `--data PATH` names a file or a folder instead, which is
[mapped](text.py#module/memory-mapped-text) and never read as a whole. With `--tokenizer FILE` the text is
[encoded](text.py#module/encoding-text-with-a-tokenizer) first.

The end of the text, one tenth by default, is held out. The model is never trained on
this part, and [evaluations](loop.py#module/the-loss-on-unseen-text) use it.
`--held-out` sets its size.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import mmap
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardbook.command import Mistake
from shardbook.models import corpus
from shardbook.models.corpus import Text

__all__ = [
    "CACHE",
    "MappedText",
    "encoded",
    "files_of",
    "fingerprint",
    "load",
    "prepare",
    "readers",
    "stored",
    "token_dtype",
]


def prepare(options: argparse.Namespace) -> None:
    """Find the files of the text, and encode them if there is a tokenizer.

    This happens before the ranks meet, because encoding can take longer than ranks wait
    for each other. When they meet, [they compare](ranks.py#module/the-same-options-on-all) hashes of their
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
    """The training text and the held-out text in one."""
    if not options.files:
        return corpus.read()
    return MappedText(options.files, options.token_dtype)


def readers(
    options: argparse.Namespace, device: torch.device
) -> tuple[corpus.Reader, corpus.Reader]:
    """The readers of this rank's shares of the training text and the held-out text."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    context = options.context
    training, unseen = halves(options, device)
    # The held-out text is short. With many ranks it may have less than a whole batch
    # for each, so the batch is made smaller.
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
    """Split the text into the training text and the held-out text."""
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


# ## Encoding text with a tokenizer
#
# > A tokenizer encodes the text once, and the tokens are kept in a file that all ranks
# > map into memory.
#
# Without a tokenizer each byte is a token, so `The Rabbit` takes 10 tokens. A tokenizer
# gives common words and pieces of words a number each, so the same text may take 2. A
# window of the same length then holds more text. `--tokenizer FILE` names a file of the
# [tokenizers](https://pypi.org/project/tokenizers/) library. Most published models come
# with such a file, under the name `tokenizer.json`. The model then has the vocabulary of
# the tokenizer.
#
# Encoding a text takes much longer than reading it. So one process of each machine
# encodes the text before the ranks meet, and the tokens are [mapped](text.py#module/memory-mapped-text)
# afterwards like bytes. The file of tokens is in a cache (`--cache`). Its name is made
# from the tokenizer and from the names, sizes and times of the text's files. If one of
# them changes, the text is encoded again.
#
# A disk may lose the end of such a file, and a copy may end halfway. A shorter text would
# be trained without a word. So a second file has the length and a digest of the tokens.
# Each run compares them before it maps the tokens, at about 1 GB a second. If they
# differ, or if there is no such file, the text is encoded again.
#
# A token takes 2 bytes if the vocabulary has at most 65,536 tokens, and otherwise 4. The
# text is encoded in pieces of 1 MB that consist of whole lines, so no word is cut.


CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardbook"
PIECE = 2**20


def encoded(tokenizer_file: Path, files: Sequence[Path], cache: Path) -> Path:
    """Return the file with the tokens of a text. The file is written if it is missing.

    :param tokenizer_file: the file of the tokenizer
    :param files: the files of the text
    :param cache: the folder for the result
    """
    result = cache / f"tokens-{name_for(tokenizer_file, files)}.bin"
    # All processes of a machine reach this line. They check the file at the same time.
    # If it is missing or damaged, the first that gets the lock for itself writes it.
    # The others wait for the lock, and find the file complete.
    with lock_file(result) as lock, told_of(cache):
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not is_whole(result):
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_whole(result):
                write_whole(load(tokenizer_file), files, result)
    return result


def is_whole(tokens: Path) -> bool:
    """Whether a file has the length and the digest that were written beside it."""
    try:
        length, digest = tokens.with_suffix(SUM).read_text("ascii").split()
        # The length is compared first, because it needs no reading.
        return str(tokens.stat().st_size) == length and digest_of(tokens) == digest
    except (OSError, ValueError):
        return False


def write_whole(tokenizer: Any, files: Sequence[Path], result: Path) -> None:
    """Encode all files, and write the tokens, then their length and digest.

    If the process is killed in between, the digest is missing or that of other tokens.
    Then the next process begins anew.
    """
    draft = result.with_suffix(".part")
    try:
        write_tokens(tokenizer, files, draft)
        told = f"{draft.stat().st_size} {digest_of(draft)}\n"
        draft.replace(result)
        result.with_suffix(SUM).write_text(told, "ascii")
    finally:
        draft.unlink(missing_ok=True)


SUM = ".sum"


def digest_of(file: Path) -> str:
    """The digest of a file, as text."""
    made = hashlib.blake2b(digest_size=16)
    with file.open("rb") as opened:
        while piece := opened.read(PIECE):
            made.update(piece)
    return made.hexdigest()


def write_tokens(tokenizer: Any, files: Sequence[Path], target: Path) -> None:
    """Encode all files, one after the other, in pieces."""
    kind = "H" if token_dtype(tokenizer) is torch.uint16 else "i"
    with target.open("wb") as numbers:
        for file in files:
            for piece in pieces(file):
                ids = tokenizer.encode(piece, add_special_tokens=False).ids
                numbers.write(array(kind, ids).tobytes())


def pieces(file: Path) -> Iterator[str]:
    """Read a file in pieces of about 1 MB, each of whole lines."""
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            while lines := opened.readlines(PIECE):
                yield "".join(lines)
    except UnicodeDecodeError as error:
        raise Mistake(
            f"--data {file} is no UTF-8 text ({error.reason}); convert it, "
            "or train on bytes without --tokenizer"
        ) from error
    except OSError as error:
        raise Mistake(f"--data {file}: {error.strerror}") from error


def token_dtype(tokenizer: Any) -> torch.dtype:
    """The smallest dtype that holds every token."""
    return torch.uint16 if tokenizer.get_vocab_size() <= 2**16 else torch.int32


def name_for(tokenizer_file: Path, files: Sequence[Path]) -> str:
    """Compute a name that differs for another text or another tokenizer."""
    made = hashlib.blake2b(tokenizer_file.read_bytes(), digest_size=8)
    for file in files:
        about = file.stat()
        told = (str(file.resolve()), about.st_size, about.st_mtime_ns)
        made.update(repr(told).encode())
    return made.hexdigest()


# sidelit: depth A library that is not installed, and files that cannot be read or written.


def load(tokenizer_file: Path) -> Any:
    """Load the tokenizer.

    :raises Mistake: if the library is missing, or the file is not a tokenizer
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise Mistake(
            "--tokenizer needs the library tokenizers: pip install tokenizers"
        ) from error
    if not tokenizer_file.is_file():
        raise Mistake(f"--tokenizer {tokenizer_file}: there is no such file")
    try:
        return Tokenizer.from_file(str(tokenizer_file))
    # The library raises a plain `Exception` for any problem with the file.
    except Exception as error:
        raise Mistake(f"--tokenizer {tokenizer_file}: {error}") from error


def lock_file(result: Path) -> IO[str]:
    """Open the lock file in the folder of the cache, and create the folder if it is missing.

    :raises Mistake: if the folder cannot be written
    """
    with told_of(result.parent):
        result.parent.mkdir(parents=True, exist_ok=True)
        return result.with_suffix(".lock").open("w")


@contextmanager
def told_of(cache: Path) -> Iterator[None]:
    """A block in which an error of the system becomes a message about the cache."""
    try:
        yield
    except OSError as error:
        raise Mistake(
            f"--cache {cache} cannot be written: {error.strerror}; name another folder"
        ) from error


# sidelit: core


# ## Memory-mapped text
#
# > Text files are mapped into memory as one row of tokens, so a rank reads only the
# > windows that it needs.
#
# A training text may be larger than the memory of its machine: 500 GB of text, on a
# machine with 128 GB. So the text is *mapped* instead of read. The system gives the file
# an address, and fetches a page of the file when a program reads at this address. The
# page stays in the system's cache, once for all ranks of the machine, until memory is
# short. A mapped text belongs to no rank, so it does not count in [what a rank
# stores](forecast.py).
#
# Several files form one text, in their order. A window may begin in one file and end in
# the next:
#
# | file | its tokens | a window of 4 that begins at token 5 |
# |---|---|---|
# | `a.txt` | 0 to 6 | 5, 6 |
# | `b.txt` | 7 to 11 | 7, 8 |
#
# A token is a byte, unless [a tokenizer](text.py#module/encoding-text-with-a-tokenizer)
# has written the file. If you name a folder, all of its files are used in the order of
# their names, so every rank sees the same row. Files whose names begin with a dot are
# left out.


class MappedText:
    """One row of tokens in several files. A slice of it is a new tensor.

    :param files: the files in their order
    :param dtype: the type of a token in these files
    """

    def __init__(self, files: Sequence[Path], dtype: torch.dtype = torch.uint8) -> None:
        self.dtype = dtype
        # An empty file cannot be mapped.
        self.maps = [mapped(file) for file in files if file.stat().st_size]
        sizes = (len(each) // dtype.itemsize for each in self.maps)
        # The position in the row where each file begins, and the end of the row.
        self.starts = [0, *accumulate(sizes)]
        self.first, self.last = 0, self.starts[-1]

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, where: slice) -> Tensor:
        start, stop, _ = where.indices(len(self))
        start, stop = start + self.first, stop + self.first
        result = torch.empty(max(0, stop - start), dtype=self.dtype)
        at = start
        while at < stop:
            index = bisect_right(self.starts, at) - 1
            end = min(stop, self.starts[index + 1])
            # This view of the map exists for this line only, so the map can be closed.
            result[at - start : end - start] = torch.frombuffer(
                self.maps[index],
                dtype=self.dtype,
                count=end - at,
                offset=(at - self.starts[index]) * self.dtype.itemsize,
            )
            at = end
        return result

    def part(self, start: int, stop: int) -> MappedText:
        """The tokens from `start` to `stop`, still in their files."""
        result = object.__new__(MappedText)
        result.__dict__.update(self.__dict__)
        result.first, result.last = self.first + start, self.first + stop
        return result


def mapped(file: Path) -> mmap.mmap:
    """Map a file. The map is private, so a write would not change the file."""
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)


def files_of(path: Path) -> list[Path]:
    """The file, or all files of a folder in the order of their names.

    :raises Mistake: if there is no such file or folder, or the folder holds no file
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise Mistake(f"--data {path}: there is no such file or folder")
    found = sorted(each for each in path.rglob("*") if each.is_file())
    files = [
        each
        for each in found
        if not any(part.startswith(".") for part in each.relative_to(path).parts)
    ]
    if not files:
        raise Mistake(f"--data {path}: the folder holds no file")
    return files


def fingerprint(text: Text) -> str:
    """Compute a short hash by which a text can be recognized.

    The hash uses the length and 64 short pieces of the text, so a large text takes no
    longer than a small one. A change between the pieces that keeps the length is not
    detected.

    >>> fingerprint(torch.arange(100)) == fingerprint(torch.arange(100).flip(0))
    False
    """
    made = hashlib.blake2b(str(len(text)).encode(), digest_size=8)
    for index in range(64):
        start = index * len(text) // 64
        made.update(repr(text[start : start + 64].tolist()).encode())
    return made.hexdigest()
