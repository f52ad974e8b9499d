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

A disk may lose the end of such a file, and a copy may end halfway. A shorter text would
be trained without a word. So a second file has the length and a digest of the tokens.
Each run compares them before it maps the tokens, at about 1 GB a second. If they
differ, or if there is no such file, the text is encoded again.

A token takes 2 bytes if the vocabulary has at most 65,536 tokens, and otherwise 4. The
text is encoded in pieces of 1 MB that consist of whole lines, so no word is cut.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
