r"""# Tokens instead of bytes

> With a tokenizer, the text is encoded once and kept as a file of numbers.

A byte is the smallest token there is. A tokenizer gives common pieces of words a number
each, so a window of the same length holds more text. `--tokenizer FILE` names a file of
the [tokenizers](https://pypi.org/project/tokenizers/) library, which most models come
with under the name `tokenizer.json`. The model's vocabulary is then that of the
tokenizer.

To encode a text takes much longer than to read it. So it is done before the ranks meet,
by one process of each machine, and the numbers are [mapped](mapped_text.py) afterwards
as bytes would be. The file lies in a cache (`--cache`), under a name made from the
tokenizer and from the names, sizes and times of the text's files. If one of them
changes, the text is encoded anew.

A token takes 2 bytes if the vocabulary has at most 65,536 numbers, and 4 if it has
more. Text is taken 1 MB at a time, whole lines only, so no word is cut.
"""

# sidelit: hide
from __future__ import annotations

import fcntl
import hashlib
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import torch

from shardbook.command import Mistake

__all__ = ["CACHE", "encoded", "load", "token_dtype"]
# sidelit: show

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardbook"
PIECE = 2**20


def encoded(tokenizer_file: Path, files: Sequence[Path], cache: Path) -> Path:
    """The file that holds a text as tokens; it is written if it is not there yet.

    :param tokenizer_file: the tokenizer's own file
    :param files: the text
    :param cache: the folder for the result
    """
    result = cache / f"tokens-{name_for(tokenizer_file, files)}.bin"
    # All processes of a machine come here. The first has the lock and writes. The
    # others wait for the lock, and then the file is there.
    with lock_file(result) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            draft = result.with_suffix(".part")
            write_tokens(load(tokenizer_file), files, draft)
            draft.replace(result)
    return result


def write_tokens(tokenizer: Any, files: Sequence[Path], target: Path) -> None:
    """Encode all files, one after the other, without ever holding a whole one."""
    kind = "H" if token_dtype(tokenizer) is torch.uint16 else "i"
    with target.open("wb") as numbers:
        for file in files:
            for piece in pieces(file):
                ids = tokenizer.encode(piece, add_special_tokens=False).ids
                numbers.write(array(kind, ids).tobytes())


def pieces(file: Path) -> Iterator[str]:
    """The text of a file, in whole lines of about 1 MB together."""
    with file.open(encoding="utf-8", newline="") as opened:
        try:
            while lines := opened.readlines(PIECE):
                yield "".join(lines)
        except UnicodeDecodeError as error:
            raise Mistake(
                f"--data {file} is no UTF-8 text ({error.reason}); convert it, "
                "or train on bytes without --tokenizer"
            ) from error


def token_dtype(tokenizer: Any) -> torch.dtype:
    """The narrowest type that holds every token."""
    return torch.uint16 if tokenizer.get_vocab_size() <= 2**16 else torch.int32


def name_for(tokenizer_file: Path, files: Sequence[Path]) -> str:
    """A name that another text, or another tokenizer, does not get."""
    made = hashlib.blake2b(tokenizer_file.read_bytes(), digest_size=8)
    for file in files:
        about = file.stat()
        told = (str(file.resolve()), about.st_size, about.st_mtime_ns)
        made.update(repr(told).encode())
    return made.hexdigest()


# sidelit: depth A library that is not installed, and files that cannot be read or written.


def load(tokenizer_file: Path) -> Any:
    """The tokenizer.

    :raises Mistake: if the library is missing, or the file is none of its
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
    # The library raises a plain `Exception`.
    except Exception as error:
        raise Mistake(f"--tokenizer {tokenizer_file}: {error}") from error


def lock_file(result: Path) -> IO[str]:
    """The file that processes lock, in the folder of the cache, which is made if it is not there.

    :raises Mistake: if that is not allowed
    """
    try:
        result.parent.mkdir(parents=True, exist_ok=True)
        return result.with_suffix(".lock").open("w")
    except OSError as error:
        raise Mistake(
            f"--cache {result.parent} cannot be written: {error.strerror}; "
            "name another folder"
        ) from error
