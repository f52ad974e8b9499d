r"""# Encoding text with a tokenizer

> A tokenizer encodes the text once, and the tokens are kept in a file that all ranks
> map into memory.

Without a tokenizer each byte is a token, so `The Rabbit` takes 10 tokens. A tokenizer
gives common words and pieces of words a number each, so the same text may take 2. A
window of the same length then holds more text. `--tokenizer FILE` names a file of the
[tokenizers](https://pypi.org/project/tokenizers/) library. Most published models come
with such a file, under the name `tokenizer.json`. The model then has the vocabulary of
the tokenizer.

Encoding a text takes much longer than reading it. So one process of each machine
encodes the text before the ranks meet, and the tokens are [mapped](mapped_text.py)
afterwards like bytes. The file of tokens is in a cache (`--cache`). Its name is made
from the tokenizer and from the names, sizes and times of the text's files. If one of
them changes, the text is encoded again.

A token takes 2 bytes if the vocabulary has at most 65,536 tokens, and otherwise 4. The
text is encoded in pieces of 1 MB that consist of whole lines, so no word is cut.
"""

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

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardbook"
PIECE = 2**20


def encoded(tokenizer_file: Path, files: Sequence[Path], cache: Path) -> Path:
    """Return the file with the tokens of a text. The file is written if it is missing.

    :param tokenizer_file: the file of the tokenizer
    :param files: the files of the text
    :param cache: the folder for the result
    """
    result = cache / f"tokens-{name_for(tokenizer_file, files)}.bin"
    # All processes of a machine reach this line. The first gets the lock and writes the
    # file. The others wait for the lock, and find the file complete.
    with lock_file(result) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            draft = result.with_suffix(".part")
            write_tokens(load(tokenizer_file), files, draft)
            draft.replace(result)
    return result


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
    try:
        result.parent.mkdir(parents=True, exist_ok=True)
        return result.with_suffix(".lock").open("w")
    except OSError as error:
        raise Mistake(
            f"--cache {result.parent} cannot be written: {error.strerror}; "
            "name another folder"
        ) from error
